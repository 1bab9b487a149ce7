# SPDX-License-Identifier: Apache-2.0
"""Resolves server arguments as SGLang does, on a GPU that is not there.

Reads JSON from stdin::

    {"isa": "sm_90",
     "requests": [{"name": ..., "folder": ..., "config": "glm_5_2", "quantization": "modelopt",
                   "argv": [...], "env": {...}}, ...]}

and prints one JSON line: name -> ``{"error": null or text, "fields": {...}, "reasons": [...]}``. Each request
is resolved in a child of its own, so that nothing of one reaches the next. ``reasons`` are those against the
megakernel, by the launcher's own probe.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import configs
import fake_gpu
from children import in_child

PROBE = Path(__file__).parents[4] / "python" / "sglang_fork" / "launch"
FIELDS = (
    "attention_backend", "prefill_attention_backend", "decode_attention_backend", "moe_runner_backend",
    "moe_a2a_backend", "quantization", "speculative_algorithm", "speculative_num_steps",
    "speculative_num_draft_tokens", "page_size", "kv_cache_dtype", "tp_size", "dsa_decode_backend",
    "flashinfer_allreduce_fusion_backend", "enable_nvidia_megakernel",
)  # fmt: skip


def resolve(request: dict[str, Any]) -> dict[str, Any]:
    os.environ.update(request["env"])
    folder = configs.write(Path(request["folder"]), request["config"], request["quantization"])
    sys.path.insert(0, str(PROBE))
    import probe

    from sglang.srt.arg_groups.overrides import resolving_view

    argv = ["--model-path", str(folder), *request["argv"]]
    try:
        server_args = probe.resolved(argv)
        _, _, reasons = probe.disable_reasons(server_args)
    except SystemExit as error:
        return {"error": f"argparse refused the arguments ({error.code})"}
    except Exception:
        return {"error": traceback.format_exc(limit=-3)}
    view = resolving_view(server_args)
    return {"error": None, "fields": {f: str(getattr(view, f)) for f in FIELDS}, "reasons": reasons}


def resolve_and_list(request: dict[str, Any]) -> dict[str, Any]:
    """``resolve``, and what it imported."""
    before = set(sys.modules)
    return {**resolve(request), "imported": sorted(set(sys.modules) - before)}


def preload(modules: list[str]) -> None:
    """Import here what a child had to import, so that the next children inherit it."""
    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def main() -> None:
    asked = json.load(sys.stdin)
    fake_gpu.install(asked["isa"])
    import sglang.srt.kernel_plugins.nvidia.binding
    import sglang.srt.server_args  # noqa: F401

    answers = {}
    for request in asked["requests"]:
        answer = answers[request["name"]] = in_child(resolve_and_list, request)
        preload(answer.pop("imported", []))
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
