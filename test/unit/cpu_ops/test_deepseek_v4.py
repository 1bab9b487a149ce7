# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4.1's plain-torch operators against references written from their definitions."""

from __future__ import annotations

import cmath
import importlib
import math
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch", reason="the CPU operators are torch code: ./sglang.sh test runs them")

FOLDER = Path(__file__).parents[3] / "python/sglang/srt/hardware_backend/cpu/deepseek_v4"


@pytest.fixture(scope="module")
def load() -> Callable[[str], ModuleType]:
    package = types.ModuleType("cpu_deepseek_v4")
    package.__path__ = [str(FOLDER)]  # type: ignore[attr-defined]
    sys.modules["cpu_deepseek_v4"] = package
    return lambda name: importlib.import_module(f"cpu_deepseek_v4.{name}")


@pytest.fixture(autouse=True)
def seed() -> None:
    value = torch.seed() % 2**31
    print(f"seed {value}")
    torch.manual_seed(value)


def table(positions: int, pairs: int) -> torch.Tensor:
    return torch.polar(torch.ones(positions, pairs), torch.rand(positions, pairs) * 6)


@pytest.mark.parametrize("inverse", [False, True])
def test_rope_turns_interleaved_pairs(load, inverse) -> None:
    q, k = torch.randn(3, 2, 4), torch.randn(3, 1, 4)
    freqs, positions = table(9, 2), torch.tensor([8, 0, 5])
    want = [x.clone() for x in (q, k)]
    for x in want:
        for t in range(3):
            for pair in range(2):
                factor = complex(freqs[positions[t], pair])
                factor = factor.conjugate() if inverse else factor
                for h in range(x.shape[1]):
                    turned = complex(*x[t, h, 2 * pair : 2 * pair + 2].tolist()) * factor
                    x[t, h, 2 * pair], x[t, h, 2 * pair + 1] = turned.real, turned.imag
    load("norm_rope").rope_(q, k, freqs, positions, inverse)
    torch.testing.assert_close(q, want[0])
    torch.testing.assert_close(k, want[1])


def test_norm_rope_norms_the_row_and_turns_its_tail_alone(load) -> None:
    x, weight, eps = torch.randn(2, 10), torch.randn(10), 1e-3
    freqs, positions = table(4, 2), torch.tensor([3, 1])
    got = load("norm_rope").norm_rope(x, weight, eps, freqs, positions)
    for t in range(2):
        scale = 1 / math.sqrt(float(x[t].square().mean()) + eps)
        row = x[t] * scale * weight
        torch.testing.assert_close(got[t, :6], row[:6])
        for pair in range(2):
            at = 6 + 2 * pair
            turned = complex(*row[at : at + 2].tolist()) * complex(freqs[positions[t], pair])
            assert cmath.isclose(complex(*got[t, at : at + 2].tolist()), turned, rel_tol=1e-4, abs_tol=1e-5)


def test_q_norm_rope_writes_its_output_alone(load) -> None:
    q, out = torch.randn(3, 2, 6), torch.full((3, 2, 6), math.nan)
    kept, freqs, positions = q.clone(), table(3, 1), torch.arange(3)
    module = load("norm_rope")
    module.q_norm_rope_(q, out, None, freqs, positions)
    assert torch.equal(q, kept)
    torch.testing.assert_close(out, module.rotate_tail(q, freqs))
    module.q_norm_rope_(q, out, 1e-6, freqs, positions)
    torch.testing.assert_close(out.square().mean(-1), torch.ones(3, 2), rtol=1e-4, atol=1e-4)


def test_split_sinkhorn_follows_its_definition(load) -> None:
    streams, iterations, eps = 4, 5, 1e-6
    mixes, scale, base = torch.randn(2, 3, 24), torch.rand(3) + 0.5, torch.randn(24)
    read, write, matrix = load("hyper_connection").split_sinkhorn(
        mixes, scale, base, streams, iterations, eps
    )
    for b in range(2):
        for t in range(3):
            raw = mixes[b, t].double()
            for s in range(streams):
                x = float(raw[s] * scale[0] + base[s])
                assert float(read[b, t, s]) == pytest.approx(1 / (1 + math.exp(-x)) + eps, rel=1e-4)
                x = float(raw[4 + s] * scale[1] + base[4 + s])
                assert float(write[b, t, s]) == pytest.approx(2 / (1 + math.exp(-x)), rel=1e-4)
            m = [
                [float(raw[8 + 4 * j + k] * scale[2] + base[8 + 4 * j + k]) for k in range(4)]
                for j in range(4)
            ]
            m = [[math.exp(v) / sum(map(math.exp, row)) + eps for v in row] for row in m]
            for step in range(iterations):
                if step:
                    m = [[v / (sum(row) + eps) for v in row] for row in m]
                columns = [sum(m[j][k] for j in range(4)) for k in range(4)]
                m = [[m[j][k] / (columns[k] + eps) for k in range(4)] for j in range(4)]
            torch.testing.assert_close(matrix[b, t].double(), torch.tensor(m).double(), rtol=1e-4, atol=1e-5)


def test_combine_weighs_the_streams(load) -> None:
    x, read = torch.randn(5, 4 * 6), torch.randn(5, 4)
    got = load("hyper_connection").combine(x, read, 4, torch.bfloat16)
    assert got.dtype == torch.bfloat16 and got.shape == (5, 6)
    want = sum(read[:, k, None] * x[:, 6 * k : 6 * k + 6] for k in range(4))
    torch.testing.assert_close(got.float(), want, rtol=1e-2, atol=2e-2)


def test_attention_reads_the_chosen_rows_and_no_other(load) -> None:
    module = load("attend")
    rows, heads, dim, scale = 2 * module.ROWS_AT_ONCE + 3, 2, 8, 0.3
    window, latents = torch.randn(20, dim), torch.randn(30, dim)
    # Rows that nobody chose are poison; slot 0 stands for absent keys and is poison too.
    window[[0, 7]] = math.nan
    latents[[0, 11]] = math.nan
    good = [torch.tensor([i for i in range(1, n) if i != bad]) for n, bad in ((20, 7), (30, 11))]
    picks = [g[torch.randint(len(g), (rows, width))] for g, width in zip(good, (4, 6), strict=True)]
    lengths = [torch.randint(1, 5, (rows,)), torch.randint(0, 7, (rows,))]
    for pick, length, bad in zip(picks, lengths, (7, 11), strict=True):
        pick[torch.arange(pick.shape[1]) >= length[:, None]] = bad  # beyond the length: not to be read
    picks[1][:, 2] = -1
    q, sink = torch.randn(rows, heads, dim), torch.randn(heads)
    parts = list(zip((window, latents), picks, lengths, strict=True))
    got = module.attend(q, parts, sink, scale)
    for t in range(rows):
        keys = [
            cache[i] for cache, pick, length in parts for i in pick[t, : int(length[t])].tolist() if i >= 0
        ]
        for h in range(heads):
            weights = [math.exp(float(q[t, h] @ key) * scale) for key in keys]
            total = sum(weights) + math.exp(float(sink[h]))
            want = sum(w / total * key for w, key in zip(weights, keys, strict=True))
            torch.testing.assert_close(got[t, h], want, rtol=1e-4, atol=1e-5)


def test_index_logits_stop_at_each_rows_length(load) -> None:
    rows, heads, dim, positions = 3, 4, 8, 5
    q, weights, keys = torch.randn(rows, heads, dim), torch.randn(rows, heads), torch.randn(12, dim)
    slots, lengths = torch.randint(12, (rows, positions)), torch.tensor([5, 0, 2])
    got = load("indexer").index_logits(q, weights, slots, lengths, keys.view(2, -1))
    for t in range(rows):
        for j in range(positions):
            if j >= lengths[t]:
                assert float(got[t, j]) == -math.inf
                continue
            want = sum(
                float(weights[t, h]) * max(0.0, float(q[t, h] @ keys[slots[t, j]])) for h in range(heads)
            )
            assert float(got[t, j]) == pytest.approx(want, rel=1e-4, abs=1e-4)
