# SPDX-License-Identifier: Apache-2.0
"""Lab: the mailbox hops on one GPU: virtual ranks on streams of their own, two processes over CUDA IPC, a
rank that never arrives.

``python3 test/bench/lab/hop.py --parts virtual ipc fault --out hop.jsonl``. Every round is checked against
the reference; ranks must agree bit for bit. Times are microseconds a hop with every rank on a stream of its
own: one GPU stands for all ranks, so they say what the protocol costs, not what NVLink does.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lab
import torch

lab.use_checkout()

from sglang.srt.mega.comm.deadline import read_record  # noqa: E402
from sglang.srt.mega.comm.hop import HopNorm, HopShape  # noqa: E402
from sglang.srt.mega.comm.mailbox import EMPTY, Mailbox  # noqa: E402
from sglang.srt.mega.comm.peers import IpcInbox, connect_virtual  # noqa: E402
from sglang.srt.mega.comm.reference import add_norm, all_reduce  # noqa: E402

HIDDEN, EPSILON = 4096, 1e-6
CUDA = torch.device("cuda")
BLOCKS_OF_THE_CARD = 132  # multiprocessors; a hop's blocks have 512 threads, so each holds one at least


def shape_of(ranks: int, rows: int, two_shot: bool, deadline_ms: int = 3000) -> HopShape:
    return HopShape(ranks, rows, HIDDEN, EPSILON, gemma=True, two_shot=two_shot, deadline_ms=deadline_ms)


def inputs(seed: int, ranks: int, rows: int) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Every rank's partial sums, the residual and the norm's weight, the same wherever they are made."""
    generator = torch.Generator().manual_seed(seed)
    partials = [torch.randn(rows, HIDDEN, generator=generator).bfloat16() for _ in range(ranks)]
    residual = torch.randn(rows, HIDDEN, generator=generator).bfloat16()
    weight = (0.1 * torch.randn(HIDDEN, generator=generator)).bfloat16()
    return [p.to(CUDA) for p in partials], residual.to(CUDA), weight.to(CUDA)


def worst(out: torch.Tensor, residual: torch.Tensor, want: tuple[torch.Tensor, torch.Tensor]) -> float:
    """The largest difference of the normed rows over their largest value; the residual must be exact."""
    assert torch.equal(residual, want[1]), "the residual differs"
    return float((out.double() - want[0].double()).abs().max() / want[0].double().abs().max())


class VirtualRanks:
    """All ranks of a hop in this process, each with its stream and its own copies of the inputs."""

    def __init__(self, shape: HopShape) -> None:
        assert shape.ranks * shape.rows <= BLOCKS_OF_THE_CARD, "not all blocks would be resident"
        self.shape, self.kernel = shape, HopNorm(shape, CUDA)
        self.boxes = [Mailbox(shape.layout, rank, CUDA, slot=3) for rank in range(shape.ranks)]
        connect_virtual(self.boxes)
        self.streams = [torch.cuda.Stream() for _ in self.boxes]

    def launch(self, work: list[tuple[torch.Tensor, ...]], times: int = 1) -> None:
        """``times`` hops of every rank on its own stream, forked from the current stream and joined to it.

        Several hops run without PDL: a chain of dependents would become resident, hop after hop, and take the
        places that another rank's first hop needs on the one GPU that stands for all of them.
        """
        here = torch.cuda.current_stream()
        for stream in self.streams:
            stream.wait_stream(here)
        for _ in range(times):
            for rank, stream in enumerate(self.streams):
                with torch.cuda.stream(stream):
                    self.kernel.launch(self.boxes[rank], *work[rank], pdl=times == 1)
        for stream in self.streams:
            here.wait_stream(stream)

    def check(self, rounds: int) -> float:
        """The worst difference of ``rounds`` rounds with fresh inputs and rows."""
        worst_of_all = 0.0
        for seed in range(rounds):
            rows = 1 + seed % self.shape.rows
            partials, before, weight = inputs(seed, self.shape.ranks, rows)
            work = [(p, before.clone(), weight, torch.full_like(before, float("nan"))) for p in partials]
            torch.cuda.synchronize()
            self.launch(work)
            torch.cuda.synchronize()
            want = add_norm(all_reduce(partials), before, weight, EPSILON, True)
            for _, residual, _, out in work:
                assert torch.equal(out, work[0][3]), f"round {seed}: ranks differ"
                worst_of_all = max(worst_of_all, worst(out, residual, want))
        assert all((box.inbox == EMPTY).all() for box in self.boxes), "cells were left full"
        return worst_of_all

    def time_us(self, rows: int, hops: int = 60) -> float:
        """All launches wait behind a pause of the GPU, so that the host's pace does not count."""
        partials, before, weight = inputs(1, self.shape.ranks, rows)
        work = [(p, before.clone(), weight, torch.empty_like(before)) for p in partials]
        times = []
        for _ in range(7):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(40_000_000)  # cycles: about 20 ms
            start.record()
            self.launch(work, hops)
            end.record()
            try:
                end.synchronize()
            except RuntimeError:
                print([str(read_record(box.record)) for box in self.boxes], flush=True)
                raise
            times.append(start.elapsed_time(end) * 1e3 / hops)
        return lab.summary(times)["median_us"]


def virtual(rows_out: lab.Rows) -> None:
    for ranks in (2, 4, 8):
        for two_shot in (False, True):
            world = VirtualRanks(shape_of(ranks, 16, two_shot))
            error = world.check(48)
            print(f"{ranks} virtual ranks, two-shot {two_shot}: 48 rounds, worst {error:.1e}", flush=True)
            times = {rows: world.time_us(rows) for rows in (1, 8, 16)}
            kind = "two-shot" if two_shot else "one-shot"
            listed = ", ".join(f"{rows} rows {t:.2f} us" for rows, t in times.items())
            print(f"hop {kind} {ranks} virtual ranks: 48 rounds, worst {error:.1e}; {listed}", flush=True)
            rows_out.add(
                kernel=f"{kind} hop", ranks=ranks, worst=error, us=times, place="virtual ranks, one GPU"
            )


def ipc_rank(rank: int, ranks: int, two_shot: bool, pipes: list[Any], results: Any) -> None:
    """One process of the group: maps its peers' inboxes, runs rounds, checks them."""

    def exchange(data: bytes) -> list[bytes]:
        for peer, pipe in enumerate(pipes):
            if peer != rank:
                pipe.send(data)
        return [data if peer == rank else pipe.recv() for peer, pipe in enumerate(pipes)]

    shape = shape_of(ranks, 8, two_shot, deadline_ms=8000)
    inbox = IpcInbox(shape.layout, rank, torch.device("cuda", 0), exchange, slot=7)
    kernel, error = HopNorm(shape, CUDA), 0.0
    exchange(b"compiled")
    for seed in range(60):
        rows = 1 + seed % shape.rows
        partials, before, weight = inputs(seed, ranks, rows)
        residual, out = before.clone(), torch.full_like(before, float("nan"))
        kernel.launch(inbox.mailbox, partials[rank], residual, weight, out)
        torch.cuda.synchronize()
        error = max(
            error, worst(out, residual, add_norm(all_reduce(partials), before, weight, EPSILON, True))
        )
    exchange(b"done")
    inbox.close()
    results.put((rank, error))


def ipc(rows_out: lab.Rows) -> None:
    """Two processes of one GPU take turns on it, so a hop waits for a time slice; only the results count."""
    context, ranks = multiprocessing.get_context("spawn"), 2
    for two_shot in (False, True):
        ends = context.Pipe()
        results = context.Queue()
        children = [
            context.Process(
                target=ipc_rank,
                args=(rank, ranks, two_shot, [None, ends[0]] if rank == 0 else [ends[1], None], results),
            )
            for rank in range(ranks)
        ]
        started = time.perf_counter()
        for child in children:
            child.start()
        seen = dict(results.get(timeout=90) for _ in children)
        for child in children:
            child.join(20)
            assert child.exitcode == 0, f"a rank ended with {child.exitcode}"
        kind = "two-shot" if two_shot else "one-shot"
        took = time.perf_counter() - started
        print(
            f"hop {kind} over CUDA IPC, 2 processes: 60 rounds, worst {max(seen.values()):.1e}, {took:.0f} s"
        )
        rows_out.add(kernel=f"{kind} hop", ranks=ranks, worst=max(seen.values()), place="CUDA IPC, one GPU")


def fault_child() -> None:
    """Rank 1 of 2 never launches; this process must die of the fault, after it has printed the record."""
    shape = shape_of(2, 2, False, deadline_ms=500)
    boxes = [Mailbox(shape.layout, rank, CUDA, slot=9) for rank in range(2)]
    connect_virtual(boxes)
    partials, before, weight = inputs(0, 2, 2)
    HopNorm(shape, CUDA).launch(boxes[0], partials[0], before, weight, torch.empty_like(before))
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"RECORD {read_record(boxes[0].record)} | {str(error).splitlines()[0]}", flush=True)
        sys.stdout.flush()
        raise SystemExit(17) from None
    print("nothing happened", flush=True)


def fault(rows_out: lab.Rows) -> None:
    started = time.perf_counter()
    child = subprocess.run(
        [sys.executable, __file__, "--parts", "fault_child"], capture_output=True, text=True, timeout=60
    )
    records = [line for line in child.stdout.splitlines() if line.startswith("RECORD ")]
    assert child.returncode == 17 and records, (child.returncode, child.stdout[-500:], child.stderr[-500:])
    assert "rank 0 waited more than 500 ms for rank 1: mailbox slot 9, phase 1" in records[0], records[0]
    print(f"missing rank, in a child: {records[0][7:]} ({time.perf_counter() - started:.1f} s)", flush=True)
    rows_out.add(kernel="one-shot hop", place="missing rank", record=records[0][7:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = {"virtual": virtual, "ipc": ipc, "fault": fault}
    parser.add_argument("--parts", nargs="+", choices=[*parts, "fault_child"], default=list(parts))
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    if chosen.parts == ["fault_child"]:
        fault_child()
        return
    rows_out = lab.Rows(chosen.out)
    for part in chosen.parts:
        parts[part](rows_out)


if __name__ == "__main__":
    main()
