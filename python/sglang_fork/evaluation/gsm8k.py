# SPDX-License-Identifier: Apache-2.0
"""GSM8K from the user's own copy: JSON lines of ``question`` and ``answer``, which ends in ``#### N``."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

from sglang_fork.errors import ForkError

NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?")
STOP = "\nQuestion:"
# Worked examples of our own, so that the data file needs no training half.
EXAMPLES = (
    ("A shelf holds 3 rows of 8 cups. 5 cups are taken away. How many cups are left?",
     "There were 3 * 8 = 24 cups. 24 - 5 = 19 are left.\n#### 19"),
    ("Mia saves 4 coins a day for 2 weeks and then gives 10 coins to her brother. How many has she?",
     "Two weeks are 14 days. 14 * 4 = 56. 56 - 10 = 46.\n#### 46"),
    ("A train ride takes 90 minutes, a bus ride half as long. How many minutes do both take?",
     "The bus takes 90 / 2 = 45 minutes. 90 + 45 = 135.\n#### 135"),
)  # fmt: skip


@dataclass(frozen=True)
class Question:
    text: str
    answer: Decimal

    @property
    def prompt(self) -> str:
        worked = "".join(f"Question: {asked}\nAnswer: {said}\n\n" for asked, said in EXAMPLES)
        return f"{worked}Question: {self.text}\nAnswer:"

    def is_right(self, text: str) -> bool:
        return final_number(text.split(STOP)[0]) == self.answer


def final_number(text: str) -> Decimal | None:
    """The number behind ``####``, else the last one in the text."""
    marked = re.search(r"####\s*(" + NUMBER.pattern + ")", text)
    found = [marked.group(1)] if marked else NUMBER.findall(text)
    try:
        return Decimal(found[-1].replace(",", "").replace("$", "")) if found else None
    except InvalidOperation:
        return None


def load(path: Path, count: int | None) -> list[Question]:
    """The file's first ``count`` questions (``None``: all); a ForkError that names the line that is off."""
    try:
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise ForkError(f"cannot read {path}: {error.strerror}") from error
    questions = []
    for number, line in enumerate(lines[:count], 1):
        try:
            entry = json.loads(line)
            answer = final_number(entry["answer"]) if "####" in entry["answer"] else None
            text = str(entry["question"])
        except (ValueError, KeyError, TypeError):
            answer, text = None, ""
        if answer is None:
            raise ForkError(
                f"{path}:{number} is no GSM8K question", 'want {"question": ..., "answer": "... #### N"}'
            )
        questions.append(Question(text, answer))
    if not questions:
        raise ForkError(f"{path} holds no question")
    return questions
