# SPDX-License-Identifier: Apache-2.0
"""Every preset's arguments through SGLang 0.5.23's own resolution, on a mocked GPU of each of its ISAs.

The model is a config.json of the published shapes. SGLang is imported once an ISA.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_fork import env, preset
from sglang_fork.paths import ROOT
from sglang_fork.resolve import FLAG, Resolution, resolve

SCRIPT = ROOT / "test" / "unit" / "models" / "production" / "resolve_arguments.py"
NODE = {"NODE_RANK": "0", "DIST_INIT_ADDR": "127.0.0.1:5000"}
# How the checkpoint that a preset names stores its weights; the key is the preset's `quantized`.
STORED = {"nvfp4": "modelopt", "fp8": "fp8", "mxfp4": "mxfp4", "": ""}
COMPRESSED = ("Qwen3.5-NVFP4", "Qwen3.5-35B-NVFP4", "Mistral-Small-4-NVFP4")

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sglang.srt.server_args") is None,
    reason="SGLang is not installed in this Python; ./sglang.sh test runs these in the built environment",
)


def setups() -> list[preset.Preset]:
    loaded = [preset.load(name) for name in preset.names()]
    return [q for p in loaded for q in (p, *(p.on(machine) for machine in sorted(p.machines)))]


def key(p: preset.Preset) -> str:
    return f"{p.name}@{p.machine}" if p.machine else p.name


def stored(p: preset.Preset) -> str:
    if p.family == "deepseek_v41":
        return ""  # its published configuration carries its own
    if p.machine == "h200-fp8":
        return "fp8"
    return "compressed-tensors" if p.name in COMPRESSED else STORED[p.quantized]


def request(p: preset.Preset, folder: Path, *extra: str) -> dict[str, Any]:
    resolution: Resolution = resolve(p, NODE)
    argv = [
        word
        for a in resolution.arguments
        if a.flag not in ("--model-path", "--revision")
        for word in (a.flag, *a.words)
    ]
    return {
        "name": key(p),
        "folder": str(folder / key(p)),
        "config": p.weights.config,
        "quantization": stored(p),
        "argv": [*argv, *extra],
        "env": {v.name: v.value for v in resolution.variables},
    }


# What a GB10 chooses where the user says nothing: the preset's flags that are left out, and the fields then.
BY_ITSELF: dict[str, tuple[set[str], dict[str, str]]] = {
    "Qwen3.5-NVFP4": ({"--kv-cache-dtype"}, {"kv_cache_dtype": "fp8_e4m3"}),
    "Nemotron-NVFP4": (
        {"--kv-cache-dtype", "--moe-runner-backend"},
        {"kv_cache_dtype": "fp8_e4m3", "moe_runner_backend": "marlin"},
    ),
    # MLA: Triton's kernels, whose cache stays BF16.
    "Mistral-Small-4-NVFP4": (
        {"--attention-backend"},
        {"attention_backend": "triton", "kv_cache_dtype": "auto"},
    ),
}


def without(asked: dict[str, Any], flags: set[str]) -> dict[str, Any]:
    """The same request without some flags, each of which has one value."""
    argv = asked["argv"]
    assert flags <= set(argv)
    kept = [w for i, w in enumerate(argv) if w not in flags and (i == 0 or argv[i - 1] not in flags)]
    return {**asked, "name": f"{asked['name']} by itself", "argv": kept}


def ask(isa: str, requests: list[dict[str, Any]]) -> dict[str, Any]:
    environ = {**os.environ, **env.process_env("cpu")}
    environ.pop("SGLANG_USE_CPU_ENGINE", None)
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        input=json.dumps({"isa": isa, "requests": requests}),
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def refused(folder: Path) -> list[dict[str, Any]]:
    """Requests that SGLang must not accept, so that its acceptance of the others means something."""
    p = preset.load("Qwen3.5-35B-A3B")
    return [
        {**request(p, folder, "--no-such-flag"), "name": "flag"},
        {**request(p, folder, FLAG), "name": "megakernel"},
    ]


CASES = [(p, isa) for p in setups() for isa in p.hardware.isas]
ISAS = sorted({isa for _, isa in CASES})


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Any]:
    out = {}
    for isa in ISAS:
        folder = tmp_path_factory.mktemp(isa)
        requests = [request(p, folder) for p, on in CASES if on == isa]
        if isa == "sm_121":
            requests += [without(r, BY_ITSELF[r["name"]][0]) for r in requests if r["name"] in BY_ITSELF]
            requests += refused(folder)
        asked = ask(isa, requests)
        out |= {(name, isa): answer for name, answer in asked.items()}
    return out


@pytest.mark.parametrize(("p", "isa"), CASES, ids=[f"{key(p)}-{isa}" for p, isa in CASES])
def test_sglang_accepts_the_arguments(
    p: preset.Preset, isa: str, answers: dict[tuple[str, str], Any]
) -> None:
    answer = answers[key(p), isa]
    assert answer["error"] is None, answer["error"]
    fields = answer["fields"]
    for flag, setting in {**p.flags, **p.draft}.items():
        name = flag.replace("-", "_")
        if name in fields and flag != "speculative-algorithm":
            assert fields[name] == str(setting.value), f"{flag} was resolved away"
    assert bool(p.draft) == (fields["speculative_algorithm"] != "None")


@pytest.mark.parametrize(("p", "isa"), CASES, ids=[f"{key(p)}-{isa}" for p, isa in CASES])
def test_auto_has_an_answer_and_cannot_stop_the_start(
    p: preset.Preset, isa: str, answers: dict[tuple[str, str], Any]
) -> None:
    """The probe answers on every setup; with reasons the launcher leaves the flag out, as here."""
    answer = answers[key(p), isa]
    assert isinstance(answer["reasons"], list)
    assert answer["fields"]["enable_nvidia_megakernel"] == "False"


# What 0.5.23 chooses on Hopper where a preset's Blackwell backends are left out.
HOPPER = {
    "Qwen3.5-397B-NVFP4@h200": {"attention_backend": "fa3"},
    "GLM-5.2-NVFP4@h200": {"attention_backend": "dsa", "dsa_decode_backend": "flashmla_kv"},
    "GLM-5.2-NVFP4@h200-fp8": {"dsa_decode_backend": "flashmla_kv"},
    "Qwen3.5-35B-A3B": {"attention_backend": "fa3"},
    "Qwen3.5-35B-NVFP4@h200": {"attention_backend": "fa3", "moe_runner_backend": "marlin"},
}


@pytest.mark.parametrize("name", sorted(HOPPER))
def test_hopper_gets_its_own_backends(name: str, answers: dict[tuple[str, str], Any]) -> None:
    fields = answers[name, "sm_90"]["fields"]
    assert {k: fields[k] for k in HOPPER[name]} == HOPPER[name]


@pytest.mark.parametrize("name", sorted(BY_ITSELF))
def test_a_gb10_chooses_by_itself_what_its_preset_says(
    name: str, answers: dict[tuple[str, str], Any]
) -> None:
    answer = answers[f"{name} by itself", "sm_121"]
    assert answer["error"] is None, answer["error"]
    wanted = BY_ITSELF[name][1]
    assert {field: answer["fields"][field] for field in wanted} == wanted


def test_what_sglang_does_not_take_is_noticed(answers: dict[tuple[str, str], Any]) -> None:
    flag, megakernel = (answers[name, "sm_121"]["error"] for name in ("flag", "megakernel"))
    assert "argparse refused" in flag
    assert megakernel and FLAG in megakernel


def declared() -> set[str]:
    """The variables that SGLang's environ.py declares, the fork's own patch included."""
    source = Path(str(importlib.util.find_spec("sglang.srt.environ").origin)).read_text()  # type: ignore[union-attr]
    return {line.split("=")[0].strip() for line in source.splitlines() if " = Env" in line}


def packages() -> Path:
    """Where the environment's packages lie."""
    return Path(str(importlib.util.find_spec("torch").origin)).parents[1]  # type: ignore[union-attr]


# SGLang's own variables: the file below sglang/srt that asks for each.
ASKED_IN = {
    "SGLANG_DSA_FUSE_TOPK": "layers/attention/dsa_backend.py",
    "SGLANG_DSA_PREFILL_DENSE_ATTN_KV_LEN_THRESHOLD": "layers/attention/dsa_backend.py",
    "SGLANG_DSA_TOPK_FLASHINFER_TIE_BREAK": "layers/attention/dsa/dsa_topk_backend.py",
    "SGLANG_DSV41_ENGRAM_HOST_TABLE_LAYOUT": "layers/engram.py",
    "SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE": "layers/engram.py",
    "SGLANG_ENABLE_JIT_DEEPGEMM": "layers/deep_gemm_wrapper/configurer.py",
    "SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16": "layers/moe/flashinfer_megamoe.py",
    "SGLANG_FLASHINFER_MEGAMOE_IN_KERNEL_FC2_REDUCE": "layers/moe/flashinfer_megamoe.py",
    "SGLANG_FLASHINFER_MOE_FUSED_FINALIZE": "layers/moe/moe_runner/flashinfer_cutedsl.py",
    "SGLANG_FLASHINFER_NVFP4_PER_TOKEN_ACTIVATION": "layers/quantization/modelopt_quant.py",
    "SGLANG_FP8_POST_QUANT": "layers/quantization/post_quant.py",
    "SGLANG_MOE_NVFP4_DISPATCH": "layers/quantization/modelopt_quant.py",
    "SGLANG_NVFP4_POST_QUANT": "layers/quantization/post_quant.py",
    "SGLANG_NVIDIA_MEGAKERNEL_SLOTS": "mega/build.py",
    "SGLANG_SPEC_TP_SYNC": "speculative/spec_tp_sync.py",
}
# Variables of libraries: the file that reads each, below site-packages.
READERS = {
    "FLASHINFER_NVFP4_4OVER6": "flashinfer/quantization/fp4_quantization.py",
    "FLASHINFER_NVFP4_4OVER6_E4M3_USE_256": "flashinfer/quantization/fp4_quantization.py",
    "FLASHINFER_NVFP4_4OVER6_ERR_MODE": "flashinfer/quantization/fp4_quantization.py",
    "FLASHINFER_NVFP4_4OVER6_ERR_USE_FAST_MATH": "flashinfer/quantization/fp4_quantization.py",
    "FLASHINFER_TOPK_ALGO": "flashinfer/topk.py",
    "FLASHINFER_DISABLE_FP4_QUANT_FAST_MATH": "sglang/srt/layers/quantization/nvfp4_online.py",
    "TRTLLM_DISABLE_FP4_QUANT_FAST_MATH": "flashinfer/data/csrc/nv_internal/cpp/common/envUtils.cpp",
    "NVSHMEM_DISABLE_NCCL": "nvidia/nvshmem/lib/libnvshmem_host.so.3",
}
GPU_ONLY = ("NVSHMEM_DISABLE_NCCL",)  # its reader is left out of the cpu profile


def variables() -> list[str]:
    return sorted({name for p in setups() for name in p.env} | {"SGLANG_NVIDIA_MEGAKERNEL_SLOTS"})


@pytest.mark.parametrize("name", variables())
def test_every_variable_has_a_named_reader(name: str) -> None:
    if name in ASKED_IN:
        assert name in declared(), f"environ.py declares no {name}"
        origin = Path(str(importlib.util.find_spec("sglang.srt.environ").origin))  # type: ignore[union-attr]
        assert re.search(rf"envs\.{name}\b", (origin.parent / ASKED_IN[name]).read_text())
        return
    file = packages() / READERS[name]
    if name in GPU_ONLY and not file.exists():
        pytest.skip(f"{READERS[name]} belongs to a GPU package, which the cpu profile leaves out")
    assert name.encode() in file.read_bytes()


def test_no_reader_is_named_for_a_variable_that_no_preset_sets() -> None:
    assert {*ASKED_IN, *READERS} == set(variables())
