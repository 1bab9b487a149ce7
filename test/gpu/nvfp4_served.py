# SPDX-License-Identifier: Apache-2.0
"""Post-quantised NVFP4 models served on a GPU, each held to a BF16 model that says what it should compute.

    PYTHONPATH=python python test/gpu/nvfp4_served.py FOLDER --seconds 300 [--arms marlin,exact,...] [--dry]

Makes synthetic Qwen3.5 checkpoints of one GPU's shapes, serves each arm in a process of its own, all at once,
and appends a line to FOLDER/served.jsonl as each ends and as each pair of arms is compared. What an arm said
is FOLDER/ARM.json, its log FOLDER/ARM.log. When the seconds are over, arms still running are ended.

An arm is right when its log-probabilities of fixed prompts are nearer to its reference than to half the way
that the same step of quantisation moves the reference itself. ``damaged`` must be refused by the self-test.
``--dry`` goes through all of it without a GPU: small checkpoints, arguments and calls held to SGLang's own
signatures, an engine that answers by hash; its lines say ``"dry": true``.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

UNIT = Path(__file__).resolve().parents[1] / "unit"
sys.path[:0] = [str(UNIT / "gb10"), str(UNIT / "models" / "production")]

PROMPTS, LENGTH, TOKENS = 4, 48, 24
GDN = {"SGLANG_NVFP4_POST_QUANT": "gdn"}
PRESET = GDN | {"SGLANG_FP8_POST_QUANT": "attention,shared_expert,lm_head"}
MTP = {
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 2,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 3,
}
MARLIN = {"fp4_gemm_runner_backend": "marlin", "moe_runner_backend": "marlin"}
# For --dry: the smallest sizes that every format takes.
SMALL = {
    "HIDDEN": 128, "HEADS": 2, "KV_HEADS": 1, "GDN_KEY_HEADS": 2, "GDN_VALUE_HEADS": 2, "EXPERTS": 4,
    "TOP_K": 2, "EXPERT_WIDTH": 64, "SHARED_WIDTH": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """A form of the checkpoint, how it is served, and the arm that says what it should compute.

    ``yardstick`` is the arm whose distance from the reference is what quantisation of this kind moves.
    """

    form: str
    environment: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    reference: str | None = None
    yardstick: str | None = None
    refused_by: str | None = None


ARMS = {
    "preset": Arm("nvfp4", PRESET, MARLIN, "all_ref", "exact"),
    "all_ref": Arm("all"),
    "exact": Arm("exact"),
    "marlin": Arm("nvfp4", {}, MARLIN, "exact", "gdn_ref"),
    "gdn": Arm("nvfp4", GDN, MARLIN, "gdn_ref", "exact"),
    "gdn_ref": Arm("gdn"),
    "mtp": Arm("nvfp4", PRESET, MARLIN | MTP, "all_ref", "exact"),
    "damaged": Arm("damaged", {}, MARLIN, refused_by="NVFP4 layer"),
}


def arguments(arm: Arm, models: Path) -> dict[str, Any]:
    """What sglang.Engine is given."""
    return {
        "model_path": str(models / arm.form),
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "context_length": 512,
        "max_running_requests": PROMPTS,
        "max_total_tokens": 8192,
        "max_mamba_cache_size": 16,
        "mem_fraction_static": 0.3,  # the arms share the card
        "disable_radix_cache": True,
        "attention_backend": "triton",
        "sampling_backend": "pytorch",
        "random_seed": 1,
        "log_level": "info",
        "cuda_graph_config": {
            "decode": {"backend": "full", "bs": [1, 2, 4]},
            "prefill": {"backend": "disabled"},
        },
        **arm.arguments,
    }


def request() -> dict[str, Any]:
    """What the engine is asked: greedy continuations and the log-probabilities of the prompts themselves."""
    draw = random.Random(7)
    return {
        "input_ids": [[draw.randrange(3, 500) for _ in range(LENGTH)] for _ in range(PROMPTS)],
        "sampling_params": {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": TOKENS},
        "return_logprob": True,
        "logprob_start_len": 0,
    }


class DryEngine:
    """Takes what sglang.Engine takes, by SGLang's own signatures, and answers by hash."""

    def __init__(self, **given: Any) -> None:
        from sglang.srt.server_args import ServerArgs

        self.salt = Path(ServerArgs(**given).model_path).name

    def generate(self, **given: Any) -> list[dict[str, Any]]:
        from sglang.srt.entrypoints.engine import Engine

        inspect.signature(Engine.generate).bind(self, **given)
        draw = random.Random(self.salt)
        rows = [
            [[None, 0, None]] + [[-draw.random(), t, None] for t in ids[1:]] for ids in given["input_ids"]
        ]
        count = given["sampling_params"]["max_new_tokens"]
        return [
            {
                "output_ids": [draw.randrange(500) for _ in range(count)],
                "meta_info": {"input_token_logprobs": r},
            }
            for r in rows
        ]

    def shutdown(self) -> None:
        return


def serve(name: str, folder: Path, dry: bool) -> None:
    """One arm, in this process: what it said goes to FOLDER/NAME.json."""
    arm = ARMS[name]
    os.environ.update(arm.environment)
    if dry:
        engine: Any = DryEngine(**arguments(arm, folder / "models"))
    else:
        import sglang

        engine = sglang.Engine(**arguments(arm, folder / "models"))
    try:
        started = time.monotonic()
        replies = engine.generate(**request())
        seen = {
            "seconds": round(time.monotonic() - started, 2),
            "tokens": [list(reply["output_ids"]) for reply in replies],
            "logprobs": [
                [p for p, *_ in reply["meta_info"]["input_token_logprobs"] if p is not None]
                for reply in replies
            ],
        }
        part = folder / f"{name}.part"
        part.write_text(json.dumps(seen))
        part.rename(folder / f"{name}.json")
    finally:
        engine.shutdown()


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Root mean square difference of the prompts' log-probabilities; infinite where one is not a number."""
    rows = zip(one["logprobs"], other["logprobs"], strict=True)
    pairs = [pair for a, b in rows for pair in zip(a, b, strict=True)]
    mean = sum((p - q) ** 2 for p, q in pairs) / len(pairs)
    return math.sqrt(mean) if math.isfinite(mean) else math.inf


def compare(name: str, seen: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """One arm against its reference, once every arm that this needs has spoken."""
    arm = ARMS[name]
    if (
        arm.reference is None
        or arm.yardstick is None
        or not {name, arm.reference, arm.yardstick} <= seen.keys()
    ):
        return None
    own, reference = seen[name], seen[arm.reference]
    apart, moved = distance(own, reference), distance(seen[arm.yardstick], reference)
    equal = sum(a == b for a, b in zip(own["tokens"], reference["tokens"], strict=True))
    return {
        "compared": name, "with": arm.reference, "apart": apart, "quantisation_moves": moved,
        "ok": apart < 0.5 * moved, "equal_continuations": f"{equal} of {PROMPTS}",
    }  # fmt: skip


def make(models: Path, dry: bool) -> None:
    """Every form of the checkpoint, and one whose block scales hold a NaN."""
    import qwen3_5_checkpoint
    import torch
    from safetensors.torch import save_file

    if dry:
        forms = qwen3_5_checkpoint.make(models, SMALL, vocabulary=512)
    else:
        forms = qwen3_5_checkpoint.make(models, device="cuda")
    damaged = {name: tensor.contiguous().cpu() for name, tensor in forms["nvfp4"].items()}
    name = min(name for name in damaged if name.endswith(".experts.0.gate_proj.weight_scale"))
    damaged[name].view(torch.uint8)[0, 0] = 0x7F
    (models / "damaged").mkdir()
    shutil.copy(models / "nvfp4" / "config.json", models / "damaged")
    save_file(damaged, models / "damaged" / "model.safetensors")


def command(name: str, folder: Path) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), str(folder), "--serve", name]


class Results:
    """Lines that are in the file the moment they are known."""

    def __init__(self, file: Path, dry: bool) -> None:
        self.file, self.mark = file, {"dry": True} if dry else {}
        self.good = True

    def add(self, **line: Any) -> None:
        self.good = self.good and line.get("ok", True)
        text = json.dumps(line | self.mark)
        print(text, flush=True)
        with self.file.open("a") as out:
            out.write(text + "\n")


def outcome(name: str, folder: Path, code: int | None, seconds: float) -> dict[str, Any]:
    """What became of an arm's process; ``code`` is None where it was ended for time."""
    arm, log = ARMS[name], folder / f"{name}.log"
    text = log.read_text(errors="replace") if log.exists() else ""
    spoke = (folder / f"{name}.json").exists()
    line: dict[str, Any] = {"arm": name, "ended": round(seconds, 1)}
    if code is None and not spoke:
        return line | {"ok": False, "why": "out of time"}
    if arm.refused_by is not None:
        return line | {"ok": not spoke and arm.refused_by in text, "refused": arm.refused_by in text}
    if not spoke:
        return line | {"ok": False, "why": text[-400:]}
    return line | {"ok": True}


def end(processes: Collection[subprocess.Popen[bytes]]) -> None:
    """End every arm and the schedulers that it started, by process group: a kill ten seconds after a term."""
    for signal_, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 0.0)):
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal_)
        until = time.monotonic() + patience
        while time.monotonic() < until and any(process.poll() is None for process in processes):
            time.sleep(0.1)
    for process in processes:
        process.wait()


def run(folder: Path, names: Sequence[str], seconds: float, dry: bool) -> bool:
    """All arms at once; true where everything that was asked for was seen and right."""
    started = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    results = Results(folder / "served.jsonl", dry)
    make(folder / "models", dry)
    results.add(made=True, seconds=round(time.monotonic() - started, 1))
    seen: dict[str, dict[str, Any]] = {}
    waiting, compared = dict.fromkeys(names), set()
    processes = {}
    for name in names:
        if dry:
            if ARMS[name].refused_by is None:
                serve(name, folder, dry)
            continue
        with (folder / f"{name}.log").open("w") as log:
            processes[name] = subprocess.Popen(
                command(name, folder), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
    while waiting:
        passed = time.monotonic() - started
        for name in list(waiting):
            process = processes.get(name)
            code = process.poll() if process else 0
            spoken = (folder / f"{name}.json").exists()
            if code is None and not spoken and passed < seconds:
                continue
            del waiting[name]
            if dry and ARMS[name].refused_by is not None:
                continue
            results.add(**outcome(name, folder, code, passed))
            if spoken:
                seen[name] = json.loads((folder / f"{name}.json").read_text())
            for other in names:
                if other not in compared and (line := compare(other, seen)) is not None:
                    compared.add(other)
                    results.add(**line)
        if waiting:
            time.sleep(0.5)
    end(processes.values())
    return results.good


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", type=Path)
    made.add_argument("--seconds", type=float, default=300, help="limit of the whole command")
    made.add_argument("--arms", default=",".join(ARMS), help="comma separated")
    made.add_argument("--dry", action="store_true", help="without a GPU: the plumbing alone")
    made.add_argument("--serve", choices=sorted(ARMS), help=argparse.SUPPRESS)
    return made


def main(words: Sequence[str] | None = None) -> int:
    chosen = parser().parse_args(words)
    if chosen.serve:
        serve(chosen.serve, chosen.folder, chosen.dry)
        return 0
    names = chosen.arms.split(",")
    if unknown := set(names) - ARMS.keys():
        raise SystemExit(f"no arm {', '.join(sorted(unknown))}; there are {', '.join(ARMS)}")
    return 0 if run(chosen.folder, names, chosen.seconds, chosen.dry) or chosen.dry else 1


if __name__ == "__main__":
    sys.exit(main())
