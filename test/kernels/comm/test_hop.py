# SPDX-License-Identifier: Apache-2.0
"""One-shot and two-shot hops of 2, 4 and 8 ranks under 10,000 seeded schedules and adversarial ones."""

import pytest
import torch
from hop_world import CPU, HopWorld, shape_of

from sglang.srt.mega.comm.mailbox import DEPTH, MailboxLayout
from sglang.srt.mega.device.emulator import Deadlock, KernelFault, Schedule, emulator

pytestmark = pytest.mark.kernels
KINDS = [pytest.param(False, id="one-shot"), pytest.param(True, id="two-shot")]
SEEDS = {2: 2000, 4: 2000, 8: 1000}  # for each of the two kinds


def seeded(seed: int) -> Schedule:
    return Schedule.seeded(seed, preempt_one_in=(2, 4, 16, 64)[seed % 4])


@pytest.mark.parametrize("two_shot", KINDS)
@pytest.mark.parametrize("ranks", SEEDS)
def test_seeded_schedules(ranks, two_shot):
    world = HopWorld(shape_of(ranks, two_shot))
    for seed in range(SEEDS[ranks]):
        world.run(seeded(seed), rounds=4, seed=seed)
    assert {mailbox.state[0].item() for mailbox in world.mailboxes} == {4 * SEEDS[ranks]}


@pytest.mark.parametrize("two_shot", KINDS)
@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(Schedule(), id="in-order"),
        pytest.param(Schedule.late(), id="late"),
        pytest.param(Schedule.late(starve_rank=2), id="starved-rank"),
        pytest.param(Schedule.late(starve_rank=1, starve_block=0), id="starved-block"),
        pytest.param(Schedule.late(starve_warp=0, starve_block=1), id="starved-warp"),
        pytest.param(Schedule(ahead_rank=0), id="rank-0-ahead"),
        pytest.param(Schedule.late(ahead_rank=3), id="rank-3-ahead-late"),
        pytest.param(Schedule.late(resident_blocks=1), id="one-block-resident"),
    ],
)
def test_adversarial_schedules(schedule, two_shot):
    world = HopWorld(shape_of(4, two_shot, rows=5, hidden=512))
    world.run(schedule, rounds=2 * DEPTH + 1, seed=4)


@pytest.mark.parametrize("two_shot", KINDS)
@pytest.mark.parametrize("gemma", [False, True])
def test_payloads_that_look_like_an_empty_cell(two_shot, gemma):
    world = HopWorld(shape_of(4, two_shot, rows=4, gemma=gemma))
    for seed in range(40):
        world.run(seeded(seed), rounds=4, seed=seed, special=True)


@pytest.mark.parametrize("two_shot", KINDS)
def test_negative_zero_arrives_as_such(two_shot):
    world = HopWorld(shape_of(2, two_shot))
    zeros = torch.full((1, 256), -0.0).bfloat16()
    residuals, outs = [zeros.clone(), zeros.clone()], [torch.zeros_like(zeros) for _ in range(2)]
    with emulator().together(Schedule()):
        for rank in range(2):
            with emulator().on_rank(rank):
                world.kernel.launch(world.mailboxes[rank], zeros, residuals[rank], zeros[0], outs[rank])
    # The sum starts from +0, as the reference's does; the residual alone keeps its sign in no rank.
    assert all(torch.equal(r.view(torch.int16), torch.zeros(1, 256, dtype=torch.int16)) for r in residuals)


@pytest.mark.parametrize("two_shot", KINDS)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_missing_rank_is_named_by_every_other(ranks, two_shot):
    absent = ranks - 1
    world = HopWorld(shape_of(ranks, two_shot, rows=ranks, deadline_ms=7000))
    world.run(Schedule(), rounds=2, seed=ranks - 1)
    with pytest.raises(KernelFault, match="store to address 0x0") as error:
        world.run(Schedule.late(), rounds=1, seed=ranks - 1, absent=absent)
    assert len(str(error.value).strip().splitlines()) == ranks - 1
    for rank, mailbox in enumerate(world.mailboxes):
        fault = mailbox.fault
        if rank == absent:
            assert fault is None
            continue
        assert (fault.rank, fault.slot, fault.counter, fault.deadline_ms) == (rank, 5, 2, 7000)
        assert f"rank {rank} waited more than 7000 ms for rank" in str(fault)
        # A two-shot rank may wait for a row that its owner cannot sum because of the absent rank.
        assert fault.peer == absent or (two_shot and fault.phase == 2)
    assert any(mailbox.fault and mailbox.fault.peer == absent for mailbox in world.mailboxes)


def test_wait_without_deadline_is_a_reported_deadlock():
    world = HopWorld(shape_of(2, False), MUTANT=10)
    emulator().name_memory(world.mailboxes[0].inbox, "inbox of rank 0")
    with pytest.raises(Deadlock) as error:
        world.run(Schedule(), rounds=1, seed=0, absent=1)
    emulator().forget_memory()
    assert "rank 0 one_shot_norm (grid 0) block (0,0,0) threads 0" in str(error.value)
    waits = (
        "mailbox cell of (rank, phase, counter) 1 1 0, last read 0xffffffffffffffff at inbox of rank 0 + 0x"
    )
    assert waits in str(error.value)


def test_rank_that_runs_ahead_is_at_most_one_round_ahead():
    """Rank 0 runs whenever it can: its sends of the next round must not disturb those that read."""
    world = HopWorld(shape_of(4, False))
    world.run(Schedule(ahead_rank=0), rounds=3 * DEPTH, seed=0)
    assert [mailbox.state[0].item() for mailbox in world.mailboxes] == [3 * DEPTH] * 4


def test_layouts_and_arguments_are_checked():
    with pytest.raises(ValueError, match="2 to 8 ranks, not 9"):
        MailboxLayout(9, 4, 256)
    with pytest.raises(ValueError, match="a multiple of 256"):
        MailboxLayout(2, 4, 300)
    assert MailboxLayout(4, 8, 4096).inbox_bytes == DEPTH * 4 * 8 * 4096 * 2
    assert MailboxLayout(4, 8, 4096, two_shot=True).inbox_bytes == DEPTH * (4 * 2 + 8) * 4096 * 2
    world = HopWorld(shape_of(2, False))
    x = torch.zeros(3, 256, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="up to 2 rows cannot take 3"):
        world.kernel.launch(world.mailboxes[0], x, x, x[0], x)
    with pytest.raises(ValueError, match="weight must be contiguous bf16"):
        world.kernel.launch(world.mailboxes[0], x[:1], x[:1], x[:1], x[:1])
    assert CPU.type == "cpu"
