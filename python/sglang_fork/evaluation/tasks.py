# SPDX-License-Identifier: Apache-2.0
"""The three questions put to a server: GSM8K, pass keys, and the divergence of decode from prefill."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from sglang_fork.evaluation import divergence, gsm8k, passkey
from sglang_fork.evaluation.client import Server

TOP = 20
PASSKEY_TOKENS = 12
PROMPTS = (
    "In the beginning God created the heaven and the earth.",
    "The history of the city begins with a small harbour on the river",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "The three laws of thermodynamics say that",
    "Question: What is the capital of France?\nAnswer:",
    "Once upon a time there was a king who had two sons, and",
)


@dataclass
class Outcome:
    """What one server said: right or wrong by question, and divergences by decode step."""

    right: dict[str, list[bool]] = field(default_factory=dict)
    kl: list[float] = field(default_factory=list)


def ask_gsm8k(server: Server, questions: Sequence[gsm8k.Question], tokens: int) -> list[bool]:
    replies = server.each(lambda question: server.complete(question.prompt, tokens, gsm8k.STOP), questions)
    return [question.is_right(reply) for question, reply in zip(questions, replies, strict=True)]


def passkey_prompts(count: int, filler: int, seed: int = 1) -> list[tuple[str, str]]:
    """``count`` prompts of ``filler`` repeats of the filler text, the key at places from first to last."""
    draw, prompts = random.Random(seed), []
    for index in range(count):
        key = passkey.draw_key(draw)
        before = round(filler * index / max(1, count - 1))
        text = (" ".join([passkey.FILLER] * repeats) for repeats in (before, filler - before))
        prompts.append((key, passkey.prompt(key, *text)))
    return prompts


def ask_passkeys(server: Server, count: int, filler: int) -> list[bool]:
    asked = passkey_prompts(count, filler)
    replies = server.each(lambda pair: server.complete(pair[1], PASSKEY_TOKENS), asked)
    return [passkey.is_right(key, reply) for (key, _), reply in zip(asked, replies, strict=True)]


def ask_divergence(server: Server, count: int, tokens: int) -> list[float]:
    """KL(prefill || decode) of every decode step of ``count`` greedy replies."""
    steps: list[float] = []
    for index in range(count):
        asked, said, decoded = server.decode_likeliest(PROMPTS[index % len(PROMPTS)], tokens, TOP)
        server.flush()
        prefilled = server.prefill_likeliest(asked, said, TOP)
        # The reply's first token comes from the prefill itself.
        steps += [divergence.kl(p, d) for p, d in zip(prefilled[1:], decoded[1:], strict=True)]
    return steps
