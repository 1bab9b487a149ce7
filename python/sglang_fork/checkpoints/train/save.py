# SPDX-License-Identifier: Apache-2.0
"""Between torch modules and a Hugging Face folder. Every tensor is BF16, as published checkpoints' are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from sglang_fork.checkpoints import make, qwen3_5, tensorfile, tokenizer
from sglang_fork.checkpoints.tensorfile import Blob
from sglang_fork.checkpoints.train.model import Qwen35

RECORD = "training.json"
"""Beside the weights: how they were trained and what they reach. A checkpoint without it is random."""


def round_to_bfloat16(model: Qwen35) -> None:
    """Make the weights what a saved checkpoint holds."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.bfloat16().float())


def blobs(model: Qwen35) -> Iterator[Blob]:
    weights = model.state_dict()
    for spec in qwen3_5.specs():
        data = weights[spec.name].detach().cpu().bfloat16().contiguous().view(torch.uint8).numpy().tobytes()
        yield Blob(spec.name, "BF16", spec.shape, data)


def write(folder: Path, model: Qwen35, record: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(tokenizer.dump(qwen3_5.config()), "utf-8")
    make.write_tokenizer(folder, qwen3_5)
    tensorfile.write(folder / "model.safetensors", blobs(model))
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def load(folder: Path) -> Qwen35:
    """The checkpoint's weights as an FP32 model in evaluation mode."""
    weights = {
        blob.name: torch.frombuffer(bytearray(blob.data), dtype=torch.bfloat16).view(blob.shape).float()
        for blob in tensorfile.read(folder / "model.safetensors")
    }
    model = Qwen35()
    model.load_state_dict(weights)
    return model.eval()
