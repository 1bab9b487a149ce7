# SPDX-License-Identifier: Apache-2.0
"""Starts ``sglang.Engine`` on the CPU and asks it with token ids."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_fork import cpu_flags

GREEDY = {"temperature": 0.0, "ignore_eos": True}


@dataclass(frozen=True)
class Reply:
    """One request's outcome: its new tokens, and the engine's own account of it."""

    tokens: list[int]
    meta: dict[str, Any]

    @property
    def cached(self) -> int:
        """Prompt tokens that came from the radix cache."""
        return int(self.meta["cached_tokens"])

    @property
    def finish(self) -> dict[str, Any]:
        return self.meta["finish_reason"]


class CpuEngine:
    """An engine and the few calls that tests make."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int, **sampling: Any) -> list[Reply]:
        """Greedy continuations of ``prompts`` (token ids), ``tokens`` each unless a stop intervenes."""
        out = self.engine.generate(
            input_ids=[list(p) for p in prompts],
            sampling_params={**GREEDY, "max_new_tokens": tokens, **sampling},
        )
        return [Reply(o["output_ids"], o["meta_info"]) for o in out]

    def continuations(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        return [reply.tokens for reply in self.generate(prompts, tokens)]

    def prompt_logprobs(self, prompt: Sequence[int]) -> list[float]:
        """Log-probability of each prompt token after the first, as the prefill computes it."""
        out = self.engine.generate(
            input_ids=[list(prompt)],
            sampling_params={**GREEDY, "max_new_tokens": 1},
            return_logprob=True,
            logprob_start_len=0,
        )[0]
        return [entry[0] for entry in out["meta_info"]["input_token_logprobs"][1:]]

    def flush(self) -> None:
        """Empty the radix cache; the engine refuses until it has put its last request away."""
        deadline = time.monotonic() + 10
        while not self.engine.flush_cache().success:
            assert time.monotonic() < deadline, "the engine does not become idle"
            time.sleep(0.01)


@contextmanager
def cpu_engine(family: str, model: Path, **overrides: Any) -> Iterator[CpuEngine]:
    """A running engine of ``family`` serving ``model`` in FP32; stopped at the end."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1":
        raise RuntimeError(
            "engine tests need the CPU build's process environment; run ./sglang.sh test, or set"
            " what sglang_fork.env.process_env('cpu') returns"
        )
    import sglang

    os.environ.update(cpu_flags.FAMILIES[family].environment)
    arguments = {
        "dtype": "float32",
        "context_length": 512,
        "log_level": "error",
        "random_seed": 1,
        **overrides,
    }
    engine = sglang.Engine(model_path=str(model), **cpu_flags.engine_arguments(family, **arguments))
    try:
        yield CpuEngine(engine)
    finally:
        engine.shutdown()


def re_prefill_mismatches(engine: CpuEngine, prompts: Sequence[Sequence[int]], tokens: int) -> list[str]:
    """Decodes ``tokens`` greedily, then asks the prefill for each of them again from scratch.

    Returns a line for each token on which decode and prefill disagree. The cache is emptied in between, so
    that the prefill computes everything itself.
    """
    wrong = []
    decoded = engine.continuations(prompts, tokens)
    for prompt, out in zip(prompts, decoded, strict=True):
        assert len(out) == tokens
        for k, token in enumerate(out):
            engine.flush()
            again = engine.continuations([[*prompt, *out[:k]]], 1)[0][0]
            if again != token:
                wrong.append(f"prompt of {len(prompt)}, token {k}: decode {token}, prefill {again}")
    return wrong
