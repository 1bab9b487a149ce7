# SPDX-License-Identifier: Apache-2.0
"""Passkey retrieval: a number said once in a long text about other things, asked for at the end."""

from __future__ import annotations

import random
import re

DIGITS = 5
NEEDLE = "The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = "What is the pass key? The pass key is"
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."


def draw_key(draw: random.Random) -> str:
    return str(draw.randrange(10 ** (DIGITS - 1), 10**DIGITS))


def prompt(key: str, before: str, after: str) -> str:
    """The text that a model is to continue with a space and ``key``."""
    return " ".join((before, NEEDLE.format(key=key), after, QUESTION)).strip()


def is_right(key: str, text: str) -> bool:
    """Whether the first number of a continuation is the key."""
    found = re.search(r"\d+", text)
    return found is not None and found.group() == key
