# SPDX-License-Identifier: Apache-2.0
"""One arm of a served Qwen3.5, with the megakernel or without: what a user can ask of it, as one JSON file.

``qwen3_5_served.py stock|mega CHECKPOINT OUT.json``, a process an arm, because an engine reads its switches
once. ``qwen3_5_served.py compare MEGA.json STOCK.json``: the same tokens, or a first difference where stock's
own two best tokens tie.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from pathlib import Path
from typing import Any

# In log-probabilities, between the chosen token and the other arm's: what BF16 rounding moves.
TIE = 0.125
TRACK = 64


def prompt(length: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 470) for _ in range(length)]


class Arm:
    """A running engine and the requests of each scenario."""

    def __init__(self, engine: Any, tokens: int) -> None:
        self.engine, self.tokens = engine, tokens

    def ask(
        self, prompts: list[list[int]], tokens: int | None = None, **sampling: Any
    ) -> list[dict[str, Any]]:
        """Greedy tokens, the two best log-probabilities of each, and how many prompt tokens were cached."""
        count = tokens or self.tokens
        out = self.engine.generate(
            input_ids=prompts,
            sampling_params={"temperature": 0.0, "ignore_eos": True, "max_new_tokens": count, **sampling},
            return_logprob=True,
            top_logprobs_num=2,
        )
        return [
            {
                "tokens": o["output_ids"],
                "top": [[[p, t] for p, t, *_ in step] for step in o["meta_info"]["output_top_logprobs"]],
                "cached": o["meta_info"]["cached_tokens"],
                "finish": o["meta_info"]["finish_reason"]["type"],
            }
            for o in out
        ]

    def flush(self) -> None:
        for _ in range(200):
            if self.engine.flush_cache().success:
                return
            self.engine.loop.run_until_complete(asyncio.sleep(0.05))
        raise RuntimeError("the engine does not become idle")

    def widths(self) -> list[list[dict[str, Any]]]:
        """As many requests as fill a graph, leave padded rows in one, or exceed the megakernel's rows."""
        return [self.ask([prompt(5 + 3 * i, i) for i in range(n)]) for n in (1, 2, 3, 5, 8, 9)]

    def chunks(self) -> list[dict[str, Any]]:
        """A prompt longer than a chunk beside short ones that decode meanwhile."""
        self.flush()
        return self.ask([prompt(9, 20), prompt(200, 21), prompt(17, 22)])

    def radix(self) -> list[dict[str, Any]]:
        """A continued conversation whose decode passed a tracking boundary: warm, then cold."""
        self.flush()
        first = prompt(TRACK - 6, 30)
        reply = self.ask([first], 16)[0]
        longer = [*first, *reply["tokens"], *prompt(7, 31)]
        warm = self.ask([longer])[0]
        self.flush()
        return [warm, self.ask([longer])[0]]

    def grammar(self) -> list[dict[str, Any]]:
        return self.ask([prompt(6, 40)], 12, regex="[0-9]{4,8}", ignore_eos=False)

    def aborted(self) -> list[dict[str, Any]]:
        """A stream that is left in its middle, beside another; then the engine answers as before."""

        async def leave() -> None:
            stream = await self.engine.async_generate(
                input_ids=prompt(11, 50),
                sampling_params={"temperature": 0.0, "ignore_eos": True, "max_new_tokens": 400},
                rid="left",
                stream=True,
            )
            async for _ in stream:
                self.engine.tokenizer_manager.abort_request("left")
                break

        self.engine.loop.run_until_complete(leave())
        return self.ask([prompt(11, 50)])


def run(arm: str, checkpoint: str, tokens: int) -> dict[str, Any]:
    import sglang

    arguments: dict[str, Any] = {
        "model_path": checkpoint,
        "dtype": "bfloat16",
        "context_length": 512,
        "chunked_prefill_size": 64,
        "max_running_requests": 12,
        "enable_nvidia_megakernel": arm == "mega",
        "enable_metrics": True,
        "log_level": "info",
        "random_seed": 1,
        "attention_backend": "triton",
        "mamba_radix_cache_strategy": "extra_buffer",
        "mamba_track_interval": TRACK,
        "sampling_backend": "pytorch",
        "mem_fraction_static": 0.9,
        "max_total_tokens": 16384,
        "max_mamba_cache_size": 96,
        "grammar_backend": "xgrammar",
        "cuda_graph_config": {
            "decode": {"backend": "full", "bs": [1, 2, 4, 8, 12]},
            "prefill": {"backend": "disabled"},
        },
    }
    engine = sglang.Engine(**arguments)
    try:
        served, seen = Arm(engine, tokens), {}
        for name in ("widths", "chunks", "radix", "grammar", "aborted"):
            try:
                seen[name] = getattr(served, name)()
            except Exception as error:  # one scenario's failure is a finding, not the end of the others
                seen[name] = {"failed": repr(error)[:500]}
            print(f"{arm}: {name} done", flush=True)
        return seen
    finally:
        engine.shutdown()


def replies(value: Any) -> list[dict[str, Any]]:
    """The replies of a scenario, in order, however nested."""
    if isinstance(value, dict):
        return [value]
    return [reply for each in value for reply in replies(each)]


def first_difference(mega: dict[str, Any], stock: dict[str, Any]) -> str | None:
    """None where the arms' tokens are equal or first differ at a tie; else what differs."""
    for step, (a, b) in enumerate(zip(mega["tokens"], stock["tokens"], strict=False)):
        if a == b:
            continue
        scores = {token: p for p, token in stock["top"][step]}
        if a not in scores:
            return f"step {step}: {a} for {b}, and {a} is not among stock's two best"
        margin = scores[b] - scores[a]
        return None if margin <= TIE else f"step {step}: {a} for {b}, {margin:.3f} apart"
    if len(mega["tokens"]) != len(stock["tokens"]):
        return f"{len(mega['tokens'])} tokens for {len(stock['tokens'])}"
    return None


def compare(mega: dict[str, Any], stock: dict[str, Any]) -> dict[str, Any]:
    """Scenario -> (replies, equal ones, worst of the others)."""
    table = {}
    for name in stock:
        sides = (replies(mega[name])[0], replies(stock[name])[0])
        failed = [side["failed"] for side in sides if "failed" in side]
        if failed:
            table[name] = {"failed": failed}
            continue
        pairs = list(zip(replies(mega[name]), replies(stock[name]), strict=True))
        equal = sum(a["tokens"] == b["tokens"] for a, b in pairs)
        wrong = [why for a, b in pairs if (why := first_difference(a, b)) is not None]
        moved = [
            abs(p - q)
            for a, b in pairs
            if a["tokens"] == b["tokens"]
            for x, y in zip(a["top"], b["top"], strict=True)
            for (p, _), (q, _) in zip(x[:1], y[:1], strict=True)
        ]
        table[name] = {
            "replies": len(pairs),
            "equal": equal,
            "ties": len(pairs) - equal - len(wrong),
            "wrong": wrong,
            "cached": [a["cached"] for a, _ in pairs],
            "stock_cached": [b["cached"] for _, b in pairs],
            "moved": max(moved, default=0.0),
        }
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("arm", choices=("stock", "mega", "compare"))
    parser.add_argument("checkpoint", help="for compare: mega's file")
    parser.add_argument("out", type=Path, help="for compare: stock's file")
    parser.add_argument("--tokens", type=int, default=24)
    chosen = parser.parse_args()
    if chosen.arm == "compare":
        mega, stock = (json.loads(Path(p).read_text()) for p in (chosen.checkpoint, chosen.out))
        for name, row in compare(mega, stock).items():
            print(name, json.dumps(row))
        return
    seen = run(chosen.arm, chosen.checkpoint, chosen.tokens)
    chosen.out.write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
