# SPDX-License-Identifier: Apache-2.0
"""``python -m sglang_fork.checkpoints.train --corpus FILE --out FOLDER``: train, measure, write.

Log lines are JSON on standard output and in the checkpoint's ``training.json``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from sglang_fork.checkpoints import corpus
from sglang_fork.checkpoints.train import data as streams
from sglang_fork.checkpoints.train import loop, measure, save
from sglang_fork.checkpoints.train.model import Qwen35


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="train")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=90, help="for both stages, measuring aside")
    parser.add_argument("--steps", type=int, nargs=2, default=(0, 0), help="in place of seconds")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=64, help="for measuring acceptance and pass keys")
    parser.add_argument("--state", type=Path, help="a file to continue from, kept up to date")
    parser.add_argument("--no-graph", action="store_true", help="no CUDA graph")
    parser.add_argument("--mixed", action="store_true", help="BF16 matrix products; on a GPU always")
    parser.add_argument("--report", type=int, default=100, help="steps between log lines")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    began = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    text = args.corpus.read_text("ascii")
    data = streams.load(text, device, args.seed)
    model = Qwen35()
    model.initialise(args.seed)
    model.to(device)
    log: list[dict[str, Any]] = []

    def note(line: dict[str, Any]) -> None:
        log.append(line)
        print(json.dumps(line), flush=True)

    note({"parameters": model.count(), "device": _device_name(device), "torch": torch.__version__})
    note({"tokens": {name: len(stream) for name, stream in data.streams.items()}})
    stages = (("whole", loop.whole_loss, 0.75, args.rate), ("mtp", loop.mtp_loss, 0.25, args.rate / 3))
    for index, (name, loss, share, rate) in enumerate(stages):
        if name == "mtp":
            model.requires_grad_(False)
            model.mtp.requires_grad_(True)
        stage = loop.Stage(
            name, args.steps[index], args.seconds * share, rate, args.batch, args.window, args.seed + index
        )
        mixed = args.mixed or device.type == "cuda"
        for line in loop.run(model, data, stage, loss, args.state, not args.no_graph, mixed, args.report):
            note(line)
        note({"stage": name, "held_out_bits_per_byte": round(_held_out(model, data), 4)})
        if index == 0:  # what a run that is stopped later leaves
            save.write(args.out, model, {"figures": {}, "log": log})
    save.round_to_bfloat16(model)
    figures = measure.everything(model, data, text, args.prompts)
    note({"measured": figures, "seconds": round(time.monotonic() - began, 1)})
    settings = {name: getattr(args, name) for name in ("batch", "window", "rate", "seed")}
    record = {
        "corpus": {"package": corpus.REQUIREMENT, "text_sha256": corpus.TEXT_SHA256},
        "figures": figures,
        "settings": settings,
        "log": log,
    }
    save.write(args.out, model, record)


def _held_out(model: Qwen35, data: streams.Data) -> float:
    model.eval()
    return measure.bits_per_byte(model, data)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


if __name__ == "__main__":
    main()
