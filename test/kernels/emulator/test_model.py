# SPDX-License-Identifier: Apache-2.0
"""The emulator's programming model: barriers, warps, PDL, tile products, bulk copies, and what it reports."""

from pathlib import Path

import pytest
import torch

from sglang.srt.mega.device.emulator import Deadlock, EmulatedKernel, Misuse, Schedule, When, emulator
from sglang.srt.mega.device.spec import KernelSpec, LaunchConfig

pytestmark = pytest.mark.kernels
SOURCE = str(Path(__file__).parent / "csrc" / "model.cuh")
SCHEDULES = [
    pytest.param(Schedule(), id="in-order"),
    pytest.param(Schedule.late(), id="late"),
    pytest.param(Schedule.late(starve_warp=1), id="starved-warp"),
    pytest.param(Schedule.late(starve_block=0), id="starved-block"),
    *(pytest.param(Schedule.seeded(seed), id=f"seed-{seed}") for seed in range(8)),
]


def kernel(entry: str, **constants: int) -> EmulatedKernel:
    return EmulatedKernel(KernelSpec.of(SOURCE, entry, constants))


def config(grid: int, block: int, **attributes) -> LaunchConfig:
    return LaunchConfig((grid, 1, 1), block, **{"pdl": False, **attributes})


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warp_and_block_reduction(schedule):
    torch.manual_seed(0)
    x = torch.randn(5, 256).bfloat16()
    sums = torch.empty(5)
    with emulator().together(schedule):
        kernel("row_squares").launch(config(5, 128), x, sums)
    torch.testing.assert_close(sums, x.float().square().sum(1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_grid_barrier(schedule):
    blocks = 6
    counter, total = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    cells = torch.zeros(2 * blocks, dtype=torch.int32)
    expected = [0] * blocks
    for _ in range(3):
        expected = [expected[(b + 1) % blocks] + b for b in range(blocks)]
    with emulator().together(schedule):
        kernel("grid_rounds").launch(config(blocks, 64, cooperative=True), counter, cells, total)
    assert cells[blocks:].tolist() == expected
    assert total.item() == sum(expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_dependent_waits_for_the_whole_producer(schedule):
    data, out = torch.zeros(4 * 64), torch.zeros(4 * 64)
    with emulator().together(schedule):
        kernel("producer").launch(config(4, 64), data, 1)
        kernel("consumer").launch(config(4, 64, pdl=True), data, out, 1)
    assert torch.equal(out, 2 * torch.arange(1.0, 65.0).repeat(4))


def test_dependent_without_a_wait_is_caught():
    data, out = torch.zeros(4 * 64), torch.zeros(4 * 64)
    with emulator().together(Schedule()):
        kernel("producer").launch(config(4, 64), data, 1)
        kernel("consumer").launch(config(4, 64, pdl=True), data, out, 0)
    assert not torch.equal(out, 2 * torch.arange(1.0, 65.0).repeat(4))


def test_dependent_starts_only_after_the_trigger():
    data, out = torch.zeros(4 * 64), torch.zeros(4 * 64)
    with emulator().together(Schedule()):
        kernel("producer").launch(config(4, 64), data, 0)
        kernel("consumer").launch(config(4, 64, pdl=True), data, out, 0)
    assert torch.equal(out, 2 * torch.arange(1.0, 65.0).repeat(4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_tile_product(dtype):
    torch.manual_seed(1)
    a, b = torch.randn(16, 16).to(dtype), torch.randn(8, 16).to(dtype)
    d = torch.empty(16, 8)
    kernel("tile_product", F16=int(dtype is torch.float16)).launch(config(1, 32), a, b, d)
    torch.testing.assert_close(d, a.float() @ b.float().T, rtol=1e-5, atol=1e-5)


def test_tile_product_through_ldmatrix():
    torch.manual_seed(2)
    a, b = torch.randn(16, 16).bfloat16(), torch.randn(8, 16).bfloat16()
    d = torch.empty(16, 8)
    kernel("tile_product_ldmatrix").launch(config(1, 32), a, b, d)
    torch.testing.assert_close(d, a.float() @ b.float().T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bulk_copies_complete_on_their_mbarrier(schedule):
    source = torch.arange(7 * 64, dtype=torch.float32)
    out = torch.zeros_like(source)
    with emulator().together(schedule):
        kernel("bulk_ring").launch(config(1, 64), source, out, 7)
    assert torch.equal(out, source + 1)


def test_bulk_copy_read_without_its_wait_is_caught():
    source, out = torch.arange(128.0), torch.zeros(128)
    with pytest.raises(Misuse, match="in flight"), emulator().together(Schedule(copies=When.LATE)):
        kernel("bulk_ring", SKIP_WAIT=1).launch(config(1, 64), source, out, 2)
    assert out.isnan().all()  # shared memory was still uninitialised


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_groups_of_async_copies_are_complete_when_waited_for(schedule):
    source = torch.arange(5 * 32, dtype=torch.float32)
    out = torch.zeros_like(source)
    with emulator().together(schedule):
        kernel("async_ring", PENDING=1).launch(config(1, 32), source, out, 5)
    assert torch.equal(out.view(5, 32), source.view(5, 32).flip(1))


def test_an_async_copy_that_is_not_waited_for_is_late():
    source, out = torch.arange(96.0), torch.zeros(96)
    with emulator().together(Schedule(copies=When.LATE)):
        kernel("async_ring", PENDING=2).launch(config(1, 32), source, out, 3)
    assert not torch.equal(out.view(3, 32), source.view(3, 32).flip(1))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_blocks_of_a_cluster_read_each_others_shared_memory(schedule):
    sums = torch.zeros(8)
    with emulator().together(schedule):
        kernel("cluster_sums", BARRIER=1).launch(config(8, 32, cluster=4), sums)
    assert sums.tolist() == [1.0 + 2 + 3 + 4] * 4 + [5.0 + 6 + 7 + 8] * 4


def test_a_missing_cluster_barrier_shows_and_a_barrier_needs_a_cluster():
    sums = torch.zeros(4)
    with emulator().together(Schedule()):
        kernel("cluster_sums", BARRIER=0).launch(config(4, 32, cluster=4), sums)
    assert sums[0].isnan(), "the first block read memory that nobody had written"
    with pytest.raises(Misuse, match="launched without clusters"):
        kernel("cluster_sums", BARRIER=1).launch(config(4, 32), sums)


def test_deadlock_names_rank_block_threads_and_waits():
    never = torch.zeros(1, dtype=torch.int32)
    emulator().name_memory(never, "the flag")
    with pytest.raises(Deadlock) as error, emulator().together(Schedule()), emulator().on_rank(3):
        kernel("divergent_barrier").launch(config(1, 64), never)
    emulator().forget_memory()
    report = str(error.value)
    assert "rank 3 divergent_barrier (grid 0) block (0,0,0) threads 0-31: __syncthreads 0, 32 of 64" in report
    assert "threads 32-63: memory, last read 0x0 at the flag + 0x0" in report


def test_write_past_shared_memory_is_reported():
    with pytest.raises(Misuse, match=r"wrote at least 112 bytes past its 16 bytes of shared memory"):
        kernel("past_shared").launch(config(1, 32), torch.zeros(32))


def test_divergent_warp_operations_are_reported():
    with pytest.raises(Misuse, match="__syncwarp where lanes 0000ffff of its warp call warp shuffle"):
        kernel("divergent_warp").launch(config(1, 32), torch.zeros(32))


def test_grid_that_needs_residency_it_did_not_ask_for():
    flag = torch.zeros(1, dtype=torch.int32)
    limited = Schedule(resident_blocks=2, admit_on_stall=False)
    with pytest.raises(Deadlock, match="2 of 4 blocks were never resident"), emulator().together(limited):
        kernel("wait_for_last").launch(config(4, 32), flag)
    with emulator().together(limited):
        kernel("wait_for_last").launch(config(4, 32, cooperative=True), flag)


def test_wrong_arguments_are_refused():
    run = kernel("row_squares")
    with pytest.raises(TypeError, match="takes 2 arguments, 1 were given"):
        run.launch(config(1, 128), torch.zeros(256).bfloat16())
    with pytest.raises(TypeError, match="argument 1 is 3, the kernel takes kind 'p' of 8 bytes"):
        run.launch(config(1, 128), torch.zeros(256).bfloat16(), 3)
