# SPDX-License-Identifier: Apache-2.0
"""One process that is a GB10 to SGLang, and a forked child for each thing that is done on it.

    python loads.py FOLDER [NAME...]

SGLang is imported once, as on a CUDA machine and with the patched seams first: a seam that meets its own
half-made module fails here. Checkpoints are loaded and the scripts that need a GPU go through their plumbing,
each in a child, because SGLang's configuration is process-wide. The process must have OMP_NUM_THREADS=1: a
fork does not survive OpenMP's threads. The last line is JSON: name -> ``{"seen": ...}``, or
``{"failed": text}``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TEST = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "models" / "production"), str(HERE.parent / "marlin")]
sys.path.insert(0, str(TEST / "gpu"))
sys.path.append(str(HERE.parents[2] / "python"))
# What CUDA's branches import in an order of their own, then what every load needs.
SEAMS = ("layers.moe.moe_runner.marlin", "layers.logits_processor")
COMMON = ("server_args", "models.registry", "models.nemotron_h", "models.qwen3_5_mtp", "model_loader.loader")


def pretend() -> None:
    """Show one GB10 to everything that asks torch.cuda; the tests' CPU engine is left."""
    import fake_gpu
    import torch

    os.environ.pop("SGLANG_USE_CPU_ENGINE", None)
    fake_gpu.install("sm_121", count=1)
    for name in (
        "synchronize",
        "empty_cache",
        "max_memory_allocated",
        "memory_allocated",
        "memory_reserved",
    ):
        setattr(torch.cuda, name, lambda *args, **kwargs: 0)


def in_child(load: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``load`` saw, from a fork of this process."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            try:
                answer = {"seen": load()}
            except BaseException:
                answer = {"failed": traceback.format_exc()}
            with os.fdopen(write, "w") as out:
                json.dump(answer, out)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"failed": f"the child ended with status {status}"}


def dry(script: str, results: Path, *words: str) -> dict[str, Any]:
    """A GPU script's exit code and the lines that it left in its file, without a GPU."""
    code = importlib.import_module(script).main([*words, "--dry"])
    return {"code": code, "lines": [json.loads(line) for line in results.read_text().splitlines()]}


def main() -> None:
    folder = Path(sys.argv[1])
    assert os.environ.get("OMP_NUM_THREADS") == "1"
    pretend()
    for name in (*SEAMS, *COMMON):
        importlib.import_module(f"sglang.srt.{name}")
    import load_nvfp4
    import load_quantised
    import load_qwen3_5

    # SGLang picks Mistral's own format by the folder's name.
    loads = {
        "nemotron_h": lambda at: load_nvfp4.loaded(at, "nemotron_h"),
        "Mistral-Small-4": lambda at: load_nvfp4.loaded(at, "mistral_small_4"),
        "qwen3_5": load_qwen3_5.loaded,
        "quantised": load_quantised.loaded,
        "gpu_bench": lambda at: dry("gpu_bench", at / "lines", "--out", str(at / "lines")),
        "nvfp4_served": lambda at: dry("nvfp4_served", at / "served.jsonl", str(at)),
    }
    answers = {}
    for name in sys.argv[2:] or loads:
        load = loads[name]
        at = folder / name
        at.mkdir(parents=True)
        answers[name] = in_child(lambda load=load, at=at: load(at))
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
