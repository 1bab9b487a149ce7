# SPDX-License-Identifier: Apache-2.0
"""Bisecting slots names the smallest part that is bad, keeps what a slot needs beside it, and asks once."""

import random
import sys

import pytest

from sglang_fork import cli, env
from sglang_fork.bench import bisect
from sglang_fork.errors import ForkError

NONE = dict.fromkeys("abcdefgh", ())


def judge(*culprits, seen=None):
    def is_bad(chosen):
        if seen is not None:
            seen.append(chosen)
        return set(culprits) <= set(chosen) and bool(culprits)

    return is_bad


@pytest.mark.parametrize("culprits", [("a",), ("h",), ("d",), ("a", "h"), ("b", "c", "g"), tuple("abcdefgh")])
def test_the_smallest_bad_part_is_named(culprits):
    seen = []
    verdict = bisect.bisect(NONE, judge(*culprits, seen=seen))
    assert verdict.culprits == culprits
    assert len(seen) == len(set(seen)) == verdict.tried, "no list is tried twice"


def test_one_culprit_of_many_takes_few_runs():
    names = {f"slot{i}": () for i in range(64)}
    culprit = f"slot{random.randrange(64)}"
    verdict = bisect.bisect(names, judge(culprit))
    assert verdict.culprits == (culprit,) and verdict.tried <= 2 + 2 * 6


def test_a_slot_is_never_run_without_what_it_needs():
    needs = {"route": (), "mkm": ("route",), "hop": (), "push": ("hop", "mkm")}
    seen = []
    verdict = bisect.bisect(needs, judge("push", seen=seen))
    assert all(set(bisect.with_needs(chosen, needs)) == set(chosen) for chosen in seen)
    assert "push" in verdict.culprits
    assert bisect.with_needs(("push",), needs) == ("route", "mkm", "hop", "push")


def test_what_is_not_the_megakernels_doing_is_said():
    with pytest.raises(ForkError, match="no slot at all"):
        bisect.bisect(NONE, lambda chosen: True)
    with pytest.raises(ForkError, match="good with every slot"):
        bisect.bisect(NONE, lambda chosen: False)


def command(body):
    return [sys.executable, "-c", f"import os, sys\nslots = os.environ['SLOTS'].split(',')\n{body}"]


@pytest.fixture
def slots(monkeypatch):
    monkeypatch.setattr(bisect, "slots_of", lambda architecture: {"gdn": [], "attention": [], "moe": []})


def test_a_command_that_breaks_names_its_slot(slots, capsys):
    assert bisect.run("Qwen", command("sys.exit('attention' in slots)"), "", 0.1) == 0
    out = capsys.readouterr().out
    assert "slot attention, found in" in out and "slots none: good (exit 0)" in out


def test_a_command_that_slows_names_its_slot(slots, capsys):
    body = "print('median 9'); print('median', 100 + 30 * ('moe' in slots) + 5 * ('gdn' in slots))"
    assert bisect.run("Qwen", command(body), r"median (\d+)", 0.1) == 0
    assert "slot moe, found in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "metric", "why"),
    [
        ([], "", "command to run after --"),
        (["/nowhere/at/all"], "", "cannot run"),
        (command("print('nothing')"), r"median (\d+)", "matches nothing"),
        (command(""), "median", "needs one group"),
        (command(""), "(", "--metric"),
    ],
)
def test_bad_input_is_one_error(slots, words, metric, why):
    with pytest.raises(ForkError, match=why):
        bisect.run("Qwen", words, metric, 0.1)


def test_the_command_line_reaches_the_command(slots, capsys):
    words = ["bench", "bisect-slots", "Qwen3.5-35B-A3B", "--", *command("sys.exit('gdn' in slots)")]
    assert cli.main(words) == 0
    assert "slot gdn, found in" in capsys.readouterr().out


@pytest.mark.skipif(env.built_profile() is None, reason="not built: the spec's slots are in the environment")
def test_the_slots_are_those_of_the_spec():
    found = bisect.slots_of("Qwen3_5MoeForConditionalGeneration")
    assert {"gdn", "attention", "moe"} <= set(found)
    with pytest.raises(ForkError, match="no slots of Unknown"):
        bisect.slots_of("Unknown")
