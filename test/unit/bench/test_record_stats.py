# SPDX-License-Identifier: Apache-2.0
"""Lines, intervals, balanced order: what a measurement is and what is refused."""

import dataclasses
import json
import random

import pytest

from sglang_fork.bench import record, stats
from sglang_fork.errors import ForkError


def line(**changes):
    values = {
        "date": "2026-11-30",
        "card": "NVIDIA H200",
        "family": "qwen3_5",
        "preset": "Qwen3.5-397B-NVFP4",
        "slice": "tp8",
        "layers": 24,
        "weights": "bf16",
        "kv": "bf16",
        "mode": "decode",
        "rows": 1,
        "routing": "independent",
        "context": 1024,
        "arm": "stock",
        "slots": "",
        "median_us": 2000.0,
        "ci_low_us": 1990.0,
        "ci_high_us": 2010.0,
        "layers_median_us": 1700.0,
        "layers_ci_low_us": 1690.0,
        "layers_ci_high_us": 1710.0,
        "launches_per_layer": 24.5,
        "weight_bytes": 2_000_000_000,
        "layers_weight_bytes": 1_700_000_000,
        "copy_tb_s": 4.2,
        "read_tb_s": 4.4,
        "fraction_of_copy": 0.24,
        "versions": {"sglang": "0.5.23"},
        "tree": "abc",
    }
    return record.Measurement(**values | changes)


def test_a_line_survives_its_file(tmp_path):
    path = tmp_path / "results" / "step.jsonl"
    first, second = line(), line(arm="mega", slots="layers", kernels={"k": [1.0, 2.0]})
    record.append(path, first)
    record.append(path, second)
    assert list(record.load([path])) == [first, second]
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mode": "prefill"}, "mode 'prefill'"),
        ({"arm": "ours"}, "arm 'ours'"),
        ({"ci_low_us": 2001.0}, "do not hold the median"),
        ({"median_us": 0.0, "ci_low_us": 0.0}, "do not hold the median"),
        ({"rows": 0}, "no step"),
    ],
)
def test_a_line_that_contradicts_itself_is_refused(changes, why):
    with pytest.raises(ForkError, match=why):
        line(**changes)


def test_a_bad_line_is_named_by_file_and_number(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(record.to_line(line()) + "\n\nnot json\n")
    with pytest.raises(ForkError, match=r"r\.jsonl:3: not a line of JSON"):
        list(record.load([path]))
    values = dataclasses.asdict(line())
    path.write_text(json.dumps(values | {"speed": 1}))
    with pytest.raises(ForkError, match=r"r\.jsonl:1: unknown fields speed"):
        list(record.load([path]))
    del values["card"]
    path.write_text(json.dumps(values))
    with pytest.raises(ForkError, match="card"):
        list(record.load([path]))


def test_the_interval_holds_the_median_and_shrinks_with_samples():
    rng = random.Random(3)
    few = stats.interval([rng.gauss(100, 5) for _ in range(20)])
    many = stats.interval([rng.gauss(100, 5) for _ in range(500)])
    assert few.low <= few.median <= few.high
    assert many.high - many.low < few.high - few.low
    assert many.low < 100 < many.high


def test_the_interval_covers_the_true_median_about_nineteen_times_in_twenty():
    rng = random.Random(5)
    hits = 0
    for seed in range(100):
        got = stats.interval([rng.expovariate(1.0) for _ in range(60)], seed)
        hits += got.low <= 0.6931 <= got.high
    assert 88 <= hits <= 100


def test_constant_samples_have_no_width_and_few_are_refused():
    assert stats.interval([7.0] * 10) == stats.Interval(7.0, 7.0, 7.0)
    with pytest.raises(ValueError, match="4 samples are too few"):
        stats.interval([1.0] * 4)


def test_a_verdict_uses_the_bad_end():
    stock = stats.Interval(100, 95, 105)
    assert stats.compare(stock, stats.Interval(80, 70, 94)).faster
    close = stats.compare(stock, stats.Interval(90, 85, 96))
    assert close.ratio > 1 and not close.faster


def test_order_is_balanced():
    assert list(stats.balanced(("a", "b"), 4)) == [("a", "b"), ("b", "a"), ("a", "b"), ("b", "a")]
