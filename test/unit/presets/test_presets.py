# SPDX-License-Identifier: Apache-2.0
"""The preset files: inheritance, checks, coverage of the required setups, memory estimates."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from sglang_fork import memory, preset
from sglang_fork.errors import ForkError

REQUIRED = {
    "DeepSeek-V4.1-Flash": {"h200"},
    "Qwen3.5-397B-NVFP4": {"h200"},
    "GLM-5.2-NVFP4": {"h200", "h200-fp8"},
    "GLM-5.2-NVFP4-5steps": {"h200", "h200-fp8"},
    "GLM-5.3-NVFP4": {"h200", "h200-fp8"},
    "GLM-5.3-NVFP4-5steps": {"h200", "h200-fp8"},
    "Kimi-K3": set(),
    "Qwen3-30B-MegaMoE": set(),
    "GLM-5.2-NVFP4-W4A16": set(),
    "Qwen3.5-NVFP4": set(),
    "Qwen3.5-35B-NVFP4": {"h200"},
    "Nemotron-NVFP4": set(),
    "Mistral-Small-4-NVFP4": set(),
    "Qwen3.5-35B-A3B": set(),
}
ALL = [preset.load(n) for n in preset.names()]
SETUPS = ALL + [p.on(m) for p in ALL for m in sorted(p.machines)]
IDS = [f"{p.name}@{p.machine}" if p.machine else p.name for p in SETUPS]


def test_every_required_setup_exists() -> None:
    assert {p.name: set(p.machines) for p in ALL} == REQUIRED


@pytest.mark.parametrize("p", SETUPS, ids=IDS)
def test_weights_and_a_context_fit_the_stated_hardware(p: preset.Preset) -> None:
    """Weights plus one full context take less than 85 % of a GPU: the rest is activations and graphs."""
    estimate = memory.estimate(p)
    context = int(str(p.flags["context-length"].value)) if "context-length" in p.flags else 32768
    used = estimate.weights + estimate.token * context + estimate.request
    assert estimate.weights > memory.GIB and used < 0.85 * p.hardware.memory_gib * memory.GIB


@pytest.mark.parametrize("p", SETUPS, ids=IDS)
def test_parallel_sizes_use_every_gpu(p: preset.Preset) -> None:
    tp = int(str(p.flags["tp-size"].value)) if "tp-size" in p.flags else 1
    assert tp == p.hardware.gpus


@pytest.mark.parametrize("p", SETUPS, ids=IDS)
def test_draft_tokens_are_steps_plus_one(p: preset.Preset) -> None:
    if "speculative-num-steps" in p.draft:
        steps = int(str(p.draft["speculative-num-steps"].value))
        assert p.draft["speculative-num-draft-tokens"].value == steps + 1
    assert not any(flag.startswith("speculative") for flag in p.flags), "draft flags belong to [draft]"


# Lines of each specification document, as the citations count them.
SEED_LINES = {"000": 155, "001": 333, "002": 927, "003": 458, "004": 123}


def sources(p: preset.Preset) -> set[str]:
    settings = [s.source for table in (p.flags, p.draft, p.env) for s in table.values()]
    return {*settings, p.model.source, p.hardware.source, p.megakernel.source}


@pytest.mark.parametrize("p", SETUPS, ids=IDS)
def test_every_value_cites_a_line_that_exists(p: preset.Preset) -> None:
    for source in sources(p):
        if not source.startswith("seed "):
            continue
        cited = re.fullmatch(r"seed (\d{3}):([\d,-]+)", source)
        assert cited, f"{source}: not seed NNN:LINE, LINE,LINE or LINE-LINE"
        lines = [int(number) for number in re.split("[,-]", cited[2])]
        assert lines == sorted(lines) and lines[0] >= 1 and lines[-1] <= SEED_LINES[cited[1]], source


@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not built here")
@pytest.mark.parametrize("p", SETUPS, ids=IDS)
def test_every_upstream_file_that_is_cited_exists(p: preset.Preset) -> None:
    package = importlib.util.find_spec("sglang")
    folder = Path(str(package.origin)).parent / "srt"  # type: ignore[union-attr]
    for source in sources(p):
        for path in re.findall(r"^upstream: ([\w/]+\.py)", source):
            assert (folder / path).is_file(), source
        assert source.count("upstream: ") == len(re.findall(r"^upstream: [\w/]+\.py", source)), source


# Published totals, in billions of parameters: what the shapes must add up to.
TOTALS = {
    "qwen3_5_397b": (397, 0.02),
    "qwen3_5_122b": (122, 0.06),
    "qwen3_5_35b": (35, 0.05),
    "qwen3_30b": (30.5, 0.02),
    "mistral_small_4": (119, 0.03),
    "glm_5_2": (744, 0.03),
}


@pytest.mark.parametrize("name", sorted(TOTALS))
def test_shapes_add_up_to_the_published_size(name: str) -> None:
    counted = memory.count(memory.config(name))
    total, tolerance = TOTALS[name]
    got = (counted.experts + counted.dense) / 1e9
    assert abs(got - total) / total < tolerance, f"{got:.1f} B counted, {total} B published"


def test_kimi_k3_experts_are_too_large_for_eight_h200() -> None:
    """The reason that Kimi-K3 has no h200 variant: about 1.4 TB of MXFP4 experts."""
    experts = memory.count(memory.config("kimi_k3")).experts * memory.BYTES["mxfp4"]
    assert 1.3e12 < experts < 1.5e12 and experts > 8 * 139 * memory.GIB


def test_mla_cache_is_replicated_and_heads_are_sharded() -> None:
    glm = preset.load("GLM-5.2-NVFP4")
    layers, index = 78 + 1, 21 + 1
    assert memory.estimate(glm).token == layers * (512 + 64) + index * 128
    qwen = preset.load("Qwen3.5-397B-NVFP4")
    assert memory.estimate(qwen).token == 16 * 2 * 256, "two KV heads on eight ranks: one each"


def test_a_base_is_overlaid_table_by_table() -> None:
    five, three = preset.load("GLM-5.2-NVFP4-5steps"), preset.load("GLM-5.2-NVFP4")
    assert five.flags == three.flags and five.model == three.model
    assert five.draft["speculative-num-steps"].value == 5
    assert five.draft["speculative-algorithm"] == three.draft["speculative-algorithm"]


def test_a_variant_drops_and_replaces() -> None:
    p = preset.load("Qwen3.5-397B-NVFP4").on("h200")
    assert "attention-backend" not in p.flags and p.hardware.nodes == 1
    assert p.flags["kv-cache-dtype"].value == "fp8_e4m3"


MINIMAL = """
title = "t"
architecture = "A"
[model]
path = "p"
revision = ""
variable = "V"
source = "seed 000:1"
[hardware]
name = "H200"
isas = ["sm_90"]
gpus = 1
memory_gib = 139
source = "seed 000:1"
[weights]
config = "qwen3_5_35b"
experts = "bf16"
dense = "bf16"
draft = "bf16"
[megakernel]
mode = "auto"
source = "seed 000:1"
"""

MALFORMED = {
    "no source": ("[flags]\ntp-size = { value = 1 }", "needs exactly a value and a source"),
    "unknown kind of source": ('[flags]\ntp-size = { value = 1, source = "I think" }', "starts with none of"),
    "unknown table": ("[flgs]", "unknown tables ['flgs']"),
    "ring": ('base = "broken"', "form a ring"),
    "not TOML": ("[flags", "malformed"),
}


@pytest.mark.parametrize("case", sorted(MALFORMED))
def test_a_malformed_preset_is_named(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, says = MALFORMED[case]
    body = text + MINIMAL if text.startswith("base") else MINIMAL + text
    (tmp_path / "broken.toml").write_text(body)
    monkeypatch.setattr(preset, "FOLDER", tmp_path)
    with pytest.raises(ForkError) as caught:
        preset.load("broken")
    assert says in str(caught.value) and "broken" in str(caught.value)


def test_the_minimal_preset_is_well_formed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the malformed ones fail for the reason that they state."""
    (tmp_path / "fine.toml").write_text(MINIMAL)
    monkeypatch.setattr(preset, "FOLDER", tmp_path)
    assert preset.load("fine").megakernel.slots is None
