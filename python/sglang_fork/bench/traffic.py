# SPDX-License-Identifier: Apache-2.0
"""Requests that a serving benchmark sends: seeded prompts, or a recorded multi-turn trace; and the check that
the answers are not one phrase over and over."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_fork.errors import ForkError

# Ids below this are special tokens in most vocabularies.
FIRST_ID = 16
SHINGLE = 12
# An answer whose shingles are fewer than this share distinct repeats itself.
DISTINCT = 0.3


@dataclass(frozen=True)
class Turn:
    """One request: its whole prompt (text or token ids) and the tokens to generate."""

    prompt: str | tuple[int, ...]
    output_len: int


Session = tuple[Turn, ...]


def synthetic(*, count: int, input_len: int, output_len: int, vocab: int, seed: int = 0) -> list[Session]:
    """``count`` sessions of one turn each, with random ids of no common prefix."""
    rng = random.Random(f"{count}/{input_len}/{output_len}/{vocab}/{seed}")
    draw = range(min(FIRST_ID, vocab - 1), vocab)
    return [(Turn(tuple(rng.choices(draw, k=input_len)), output_len),) for _ in range(count)]


def read_trace(path: Path) -> list[Session]:
    """Sessions of a recorded trace, one JSON object a line::

        {"turns": [{"prompt": "text" or [ids], "answer": "text" or [ids], "output_len": 128}, ...]}

    A turn's prompt follows the earlier turns' prompts and *recorded* answers, so every arm sees the same
    context whatever it generates. The last turn needs no answer. Raises ``ForkError`` naming file and line.
    """
    sessions = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                sessions.append(_session(json.loads(line)["turns"]))
            except (ValueError, KeyError, TypeError) as error:
                raise ForkError(f"{path.name}:{number}: not a recorded session: {error!r}") from error
    if not sessions:
        raise ForkError(f"{path} holds no session")
    return sessions


def _session(turns: Sequence[dict[str, object]]) -> Session:
    if not turns:
        raise ValueError("no turns")
    history: str | tuple[int, ...] | None = None
    out = []
    for index, turn in enumerate(turns):
        prompt = _joined(history, turn["prompt"])
        length = turn["output_len"]
        if not isinstance(length, int) or length < 2:
            raise ValueError(f"output_len {length!r} is not a number of 2 or more")
        out.append(Turn(prompt, length))
        if index + 1 < len(turns):
            history = _joined(prompt, turn["answer"])
    return tuple(out)


def _joined(history: str | tuple[int, ...] | None, more: object) -> str | tuple[int, ...]:
    if isinstance(more, str) and (history is None or isinstance(history, str)):
        return (history or "") + more
    if isinstance(more, list) and (history is None or isinstance(history, tuple)):
        if not all(isinstance(token, int) for token in more):
            raise ValueError("token ids must be numbers")
        return (history or ()) + tuple(more)
    raise ValueError("a session is text throughout or token ids throughout")


def repeats(text: str) -> bool:
    """Whether an answer is mostly the same few phrases: speculative steps accept such text far too easily."""
    shingles = [text[i : i + SHINGLE] for i in range(len(text) - SHINGLE + 1)]
    return len(shingles) >= 4 * SHINGLE and len(set(shingles)) < DISTINCT * len(shingles)
