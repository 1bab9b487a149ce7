# SPDX-License-Identifier: Apache-2.0
"""When two arms' continuations count as equal: the comparison that the GPU script prints."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "gpu" / "qwen3_5_served.py"


@pytest.fixture(scope="module")
def served():
    found = importlib.util.spec_from_file_location("qwen3_5_served", SCRIPT)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def reply(tokens, second=9, gap=1.0, cached=0):
    """Tokens that each lead ``second`` by ``gap`` in log-probability."""
    return {"tokens": tokens, "top": [[[-0.5, t], [-0.5 - gap, second]] for t in tokens], "cached": cached}


def test_equal_tokens_and_ties_pass_and_the_rest_is_named(served):
    stock = reply([1, 2, 3])
    assert served.first_difference(reply([1, 2, 3]), stock) is None
    assert served.first_difference(reply([1, 9, 5]), reply([1, 2, 3], gap=0.1)) is None
    assert served.first_difference(reply([1, 9, 5]), stock) == "step 1: 9 for 2, 1.000 apart"
    assert "4 is not among stock's two best" in served.first_difference(reply([1, 4, 3]), stock)
    assert served.first_difference(reply([1, 2]), stock) == "2 tokens for 3"


def test_a_table_counts_equal_tied_and_wrong_replies(served):
    stock = {"radix": [reply([1, 2], cached=64), reply([1, 2], gap=0.1), reply([1, 2])]}
    mega = {"radix": [reply([1, 2], cached=64), reply([1, 9]), reply([1, 7])]}
    row = served.compare(mega, stock)["radix"]
    assert (row["replies"], row["equal"], row["ties"], len(row["wrong"])) == (3, 1, 1, 1)
    assert row["cached"] == [64, 0, 0] and row["moved"] == 0.0


def test_a_scenario_that_failed_is_no_agreement(served):
    row = served.compare({"grammar": {"failed": "no"}}, {"grammar": [reply([1])]})["grammar"]
    assert row == {"failed": ["no"]}
