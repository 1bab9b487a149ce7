# SPDX-License-Identifier: Apache-2.0
"""Each step of the mailbox protocol is removed in turn (``enum class Mutant`` in common/mailbox.cuh): the
schedules must notice. A mutant that no schedule notices is listed with the reason.
"""

import re
from pathlib import Path

import pytest
from hop_world import HopWorld, shape_of

from sglang.srt.mega.device.emulator import EmulatorError, Schedule
from sglang.srt.mega.device.sources import kernel_root

pytestmark = pytest.mark.kernels
HEADER = Path(kernel_root()) / "common" / "mailbox.cuh"
ENUM = HEADER.read_text().split("enum class Mutant")[1].split("};")[0]
MUTANTS = re.findall(r"^  (\w+)\b", ENUM, re.MULTILINE)
TWO_SHOT_ONLY = {"no_gather_clear", "no_gather_wait"}
NEEDS_A_MISSING_RANK = {"no_fault_fence", "no_deadline"}
SURVIVORS: dict[str, str] = {}
TRIES = 200


def schedules():
    yield Schedule.late()
    yield Schedule.late(starve_rank=1)
    yield Schedule(starve_rank=1, starve_block=1)
    yield Schedule.late(starve_warp=1)
    yield Schedule(ahead_rank=0)
    for seed in range(TRIES):
        starve = seed // 8 % 4 if seed % 8 == 3 else -1
        yield Schedule.seeded(seed, preempt_one_in=(2, 4, 16, 64)[seed % 4], starve_rank=starve)


def caught_after(mutant: int, ranks: int, two_shot: bool) -> int | None:
    """How many schedules it took to notice; None when none did."""
    name = MUTANTS[mutant]
    for tries, schedule in enumerate(schedules(), start=1):
        world = HopWorld(shape_of(ranks, two_shot, hidden=512, deadline_ms=1000), MUTANT=mutant)
        try:
            world.run(schedule, rounds=6, seed=tries, special=True)
            if name in NEEDS_A_MISSING_RANK:
                try:
                    world.run(schedule, rounds=1, seed=tries, absent=1)
                except EmulatorError as error:
                    assert "store to address 0x0" in str(error), "the fault"
                faults = [mailbox.fault for rank, mailbox in enumerate(world.mailboxes) if rank != 1]
                assert all(fault and fault.rank != 1 for fault in faults), "the record"
                assert any(fault.peer == 1 for fault in faults), "the peer"
        except (AssertionError, EmulatorError):
            return tries
    return None


def test_the_list_of_mutants_is_read_from_the_header():
    assert MUTANTS[0] == "none" and MUTANTS[-1] == "count" and len(MUTANTS) >= 13


@pytest.mark.parametrize("two_shot", [pytest.param(False, id="one-shot"), pytest.param(True, id="two-shot")])
@pytest.mark.parametrize("mutant", range(1, len(MUTANTS) - 1), ids=MUTANTS[1:-1])
def test_removed_step_is_noticed(mutant, two_shot):
    name = MUTANTS[mutant]
    if name in TWO_SHOT_ONLY and not two_shot:
        pytest.skip("a step of the two-shot exchange alone")
    caught = caught_after(mutant, 4, two_shot)
    if name in SURVIVORS:
        assert caught is None, f"{name} is listed as a survivor but schedule {caught} notices it"
    else:
        assert caught is not None, f"no schedule of {TRIES} notices {name}"


@pytest.mark.parametrize("two_shot", [False, True])
def test_nothing_is_noticed_without_a_mutant(two_shot):
    for tries, schedule in enumerate(schedules(), start=1):
        world = HopWorld(shape_of(4, two_shot, hidden=512, deadline_ms=1000), MUTANT=0)
        world.run(schedule, rounds=6, seed=tries, special=True)
        if tries == 25:
            break
