# SPDX-License-Identifier: Apache-2.0
"""Sends sessions to running servers with upstream's own streaming client: ``python -m
sglang_fork.bench.load``, in a Python that has SGLang.

One process serves a whole benchmark, since importing SGLang takes longer than many a run. Each line of its
input is a job, ``{"url": ..., "concurrency": n, "sessions": [[{"prompt": ..., "output_len": n}, ...]]}``;
each line of its output the answers, a list with one object a request, as ``Answer``.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from sglang_fork.bench.traffic import Session, Turn

SGLANG_READS = {
    "body benchmark/serving.py::async_request_sglang_generate",
    "sig benchmark/serving.py::set_global_args",
}


@dataclass(frozen=True)
class Answer:
    """What the client saw of one request. Seconds; ``itl_s`` one gap a token after the first."""

    session: int
    turn: int
    started_s: float
    ttft_s: float
    latency_s: float
    tokens: int
    itl_s: tuple[float, ...]
    accept_length: float
    text: str
    error: str = ""

    @property
    def tpot_s(self) -> float:
        """Seconds a token after the first; 0 for a single token."""
        return (self.latency_s - self.ttft_s) / (self.tokens - 1) if self.tokens > 1 else 0.0


def client_arguments() -> argparse.Namespace:
    """What upstream's client reads from its command line: greedy, streamed, to the asked length."""
    return argparse.Namespace(
        temperature=0.0,
        top_p=1.0,
        disable_ignore_eos=False,
        disable_stream=False,
        return_logprob=False,
        return_routed_experts=False,
        logprob_start_len=-1,
        top_logprobs_num=0,
        token_ids_logprob=None,
        cache_report=False,
        header=None,
    )


async def drive(url: str, sessions: list[Session], concurrency: int) -> list[Answer]:
    """Run every session, at most ``concurrency`` at a time, each one's turns in order."""
    from sglang.benchmark import serving

    serving.set_global_args(client_arguments())
    slots = asyncio.Semaphore(concurrency)
    answers: list[Answer] = []

    async def one(number: int, session: Session) -> None:
        async with slots:
            for index, turn in enumerate(session):
                prompt: Any = turn.prompt if isinstance(turn.prompt, str) else list(turn.prompt)
                sent = serving.RequestFuncInput(
                    prompt=prompt,
                    api_url=f"{url}/generate",
                    prompt_len=len(prompt),
                    output_len=turn.output_len,
                    model="",
                    lora_name="",
                    image_data=None,
                    extra_request_body={},
                )
                got = await serving.async_request_sglang_generate(sent)
                answers.append(
                    Answer(
                        session=number,
                        turn=index,
                        started_s=got.start_time,
                        ttft_s=got.ttft,
                        latency_s=got.latency,
                        tokens=got.output_len,
                        itl_s=tuple(got.itl),
                        accept_length=float(got.spec_accept_length or 0.0),
                        text=got.generated_text,
                        error="" if got.success else got.error or "the request failed",
                    )
                )
                if not got.success:
                    return

    await asyncio.gather(*(one(number, session) for number, session in enumerate(sessions)))
    return answers


def sessions_of(job: dict[str, Any]) -> list[Session]:
    return [
        tuple(
            Turn(t["prompt"] if isinstance(t["prompt"], str) else tuple(t["prompt"]), t["output_len"])
            for t in session
        )
        for session in job["sessions"]
    ]


def work(jobs: Iterable[str], out: TextIO) -> None:
    """A line of answers for each line of ``jobs``, at once."""
    for line in jobs:
        job = json.loads(line)
        answers = asyncio.run(drive(job["url"], sessions_of(job), job["concurrency"]))
        print(json.dumps([asdict(answer) for answer in answers]), file=out, flush=True)


def main() -> int:
    # What upstream's client prints is no answer: it goes to the log.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    importlib.import_module("sglang.benchmark.serving")
    work(sys.stdin, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
