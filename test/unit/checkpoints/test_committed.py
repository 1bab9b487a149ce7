# SPDX-License-Identifier: Apache-2.0
"""The checkpoint in the repository: what the trainer writes today, small, language, drafts that serve."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from sglang_fork.checkpoints import corpus, make, qwen3_5, tensorfile
from sglang_fork.launch import tiny
from sglang_fork.paths import ROOT

FOLDER = ROOT / "test" / "checkpoints"
HELD_OUT = (FOLDER / "held_out.txt").read_text("ascii")


def test_twelve_megabytes_in_all() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < 12e6


def test_it_is_what_tiny_serves_and_says() -> None:
    assert tiny.twin("qwen3_5") == FOLDER / "qwen3_5"
    assert "trained on the King James Bible" in tiny.about(FOLDER / "qwen3_5")
    assert "random" in tiny.about(FOLDER / "no-such-family")


def test_config_tokenizer_and_tensors_are_todays(tmp_path: Path) -> None:
    assert json.loads((FOLDER / "qwen3_5" / "config.json").read_text()) == qwen3_5.config()
    make.write_tokenizer(tmp_path, qwen3_5)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (FOLDER / "qwen3_5" / name).read_text("utf-8") == (tmp_path / name).read_text("utf-8")
    entries = tensorfile.read_header(FOLDER / "qwen3_5" / "model.safetensors")
    assert {(entry.name, entry.shape) for entry in entries} == {(s.name, s.shape) for s in qwen3_5.specs()}


def test_the_record_meets_what_was_asked() -> None:
    record = tiny.training(FOLDER / "qwen3_5")
    assert record is not None and record["corpus"]["text_sha256"] == corpus.TEXT_SHA256
    assert record["figures"]["held_out_bits_per_byte"] <= 2.5
    assert record["figures"]["acceptance"]["draft_steps"] == 3
    assert record["figures"]["acceptance"]["accepted_per_step"] >= 1.8


def test_held_out_text_is_language_to_transformers() -> None:
    torch = pytest.importorskip("torch", reason="needs the built environment")
    from transformers import AutoTokenizer
    from transformers.models.qwen3_5_moe import Qwen3_5MoeForCausalLM

    model = Qwen3_5MoeForCausalLM.from_pretrained(FOLDER / "qwen3_5", dtype=torch.float32).eval()
    encoder = AutoTokenizer.from_pretrained(FOLDER / "qwen3_5")
    nats = size = 0.0
    for line in HELD_OUT.splitlines():
        ids = encoder(line, return_tensors="pt").input_ids
        with torch.inference_mode():
            scores = model(ids, use_cache=False).logits[0, :-1].log_softmax(-1)
        nats -= float(scores.gather(1, ids[0, 1:, None]).sum())
        size += len(line) - len(encoder.decode(ids[0, 0]))
    assert nats / math.log(2) / size < 1.6


def test_three_drafts_accept_on_held_out_prompts() -> None:
    torch = pytest.importorskip("torch", reason="needs the built environment")
    from sglang_fork.checkpoints.train import data, measure, save

    encoder = data.load_tokenizer()
    prompts = torch.tensor([encoder.encode(line).ids[:64] for line in HELD_OUT.splitlines()])
    found = measure.acceptance(save.load(FOLDER / "qwen3_5"), "held out", prompts, tokens=40)
    assert found.accepted_per_step > 1.4, found
