# SPDX-License-Identifier: Apache-2.0
"""The numbers behind an evaluation, against values computed in another way."""

from __future__ import annotations

import itertools
import math
import random
from decimal import Decimal
from pathlib import Path

import pytest

from sglang_fork.errors import ForkError
from sglang_fork.evaluation import divergence, gsm8k, passkey, tasks
from sglang_fork.evaluation.statistics import Paired, wilson

QUESTIONS = Path(__file__).with_name("questions.jsonl")


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (3, 3), (9, 2), (0, 6), (12, 4)])
def test_mcnemar_equals_counting_every_outcome(first: int, second: int) -> None:
    count = first + second
    extreme = max(first, second)
    tosses = itertools.product((0, 1), repeat=count)
    as_far = sum(max(sum(toss), count - sum(toss)) >= extreme for toss in tosses)
    wanted = as_far / 2**count if count else 1.0
    assert Paired(50, first, second, 7).p_value == pytest.approx(wanted)


def test_pairs_are_counted_by_question() -> None:
    first, second = [True, True, False, False, True], [True, False, True, False, False]
    assert Paired.of(first, second) == Paired(both=1, first_alone=2, second_alone=1, neither=1)
    with pytest.raises(ValueError):
        Paired.of([True], [])


def test_wilson_interval() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(160, 200) == pytest.approx((0.7392, 0.8496), abs=1e-4)
    for right, count in ((0, 10), (10, 10), (3, 7)):
        low, high = wilson(right, count)
        assert 0 <= low <= right / count <= high <= 1
        for bound in (b for b in (low, high) if 0 < b < 1):  # where the score test is at its limit
            score = (right / count - bound) / math.sqrt(bound * (1 - bound) / count)
            assert abs(score) == pytest.approx(1.959964, rel=1e-5)


def test_kl_equals_the_whole_distributions_where_all_tokens_are_named() -> None:
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    draw = random.Random(seed)
    p, q = ([draw.random() + 0.01 for _ in range(6)] for _ in range(2))
    p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
    whole = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    named = [{i: math.log(x) for i, x in enumerate(side)} for side in (p, q)]
    assert divergence.kl(*named) == pytest.approx(whole, abs=1e-6)
    part = [{i: side[i] for i in (0, 1, 2)} for side in named]
    assert 0 <= divergence.kl(*part) <= whole + 1e-9, "merging tokens can only lose divergence"
    assert divergence.kl(named[0], named[0]) == 0.0


def test_summary_of_divergences() -> None:
    assert divergence.summary([3.0, 1.0, 2.0]) == {"mean": 2.0, "p99": 3.0, "max": 3.0}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 3 + 4 = 7\n#### 7", 7),
        ("#### $1,300 in all", 1300),
        ("first 12, then 15.", 15),
        ("#### -5", -5),
        ("it costs $7.50", Decimal("7.5")),
        ("none at all", None),
    ],
)
def test_the_final_number(text: str, number: object) -> None:
    assert gsm8k.final_number(text) == number


def test_questions_are_read_and_judged() -> None:
    questions = gsm8k.load(QUESTIONS, None)
    assert [q.answer for q in questions] == [42, 1300, Decimal("7.5"), -5]
    assert len(gsm8k.load(QUESTIONS, 2)) == 2
    assert questions[1].is_right(" She has 1300.\nQuestion: what is 2 + 2?\n#### 4")
    assert not questions[1].is_right(" She has 1,301.")
    assert questions[0].prompt.endswith("How many bottles do 7 crates hold?\nAnswer:")
    assert all(gsm8k.final_number(said) is not None for _, said in gsm8k.EXAMPLES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"question": "q", "answer": "#### 1"}\n{"question": "q", "answer": "one"}\n',
            ":2 is no GSM8K question",
        ),
        ("not json\n", ":1 is no GSM8K question"),
        ("\n", "holds no question"),
    ],
    ids=["no final number", "no JSON", "empty"],
)
def test_a_bad_file_is_refused_by_its_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "q").write_text(content)
    with pytest.raises(ForkError, match=message):
        gsm8k.load(tmp_path / "q", None)
    with pytest.raises(ForkError, match="cannot read"):
        gsm8k.load(tmp_path / "absent", None)


def test_pass_keys_lie_from_the_start_to_the_end() -> None:
    prompts = tasks.passkey_prompts(5, filler=8)
    places = [text.index(key) / len(text) for key, text in prompts]
    assert places == sorted(places) and places[0] < 0.1 and places[-1] > 0.8
    assert len({key for key, _ in prompts}) == 5
    assert all(text.endswith(passkey.QUESTION) and text.count(key) == 2 for key, text in prompts)
    assert passkey.is_right("12345", " 12345. 99") and not passkey.is_right("12345", " 123456")
