# SPDX-License-Identifier: Apache-2.0
"""Golden dry runs of every preset and variant, and what the shell and the command line change.

``UPDATE_GOLDEN=1 pytest test/unit/presets`` rewrites the golden files; review their diff.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from sglang_fork import preset
from sglang_fork.paths import ROOT

GOLDEN = Path(__file__).parent / "golden"
SETUPS = [(n, m) for n in preset.names() for m in ("", *sorted(preset.load(n).machines))]


def sglang(*words: str, state: Path, **shell: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(state), "SGLANG_FORK_HOME": str(state), **shell}
    return subprocess.run(
        [str(ROOT / "sglang.sh"), *words], env=env, capture_output=True, text=True, check=False, timeout=60
    )


def dry_run(*words: str, state: Path, **shell: str) -> str:
    done = sglang(*words, state=state, **shell)
    assert done.returncode == 0, done.stderr
    return done.stdout.replace(str(state), "STATE").replace(str(ROOT), "ROOT")


@pytest.mark.parametrize(("name", "machine"), SETUPS, ids=[f"{n}@{m}" if m else n for n, m in SETUPS])
def test_golden(name: str, machine: str, tmp_path: Path) -> None:
    text = dry_run(name, "--dry-run", *(["--on", machine] if machine else []), state=tmp_path)
    golden = GOLDEN / (f"{name}@{machine}.txt" if machine else f"{name}.txt")
    if os.environ.get("UPDATE_GOLDEN") == "1":
        golden.write_text(text)
    assert text == golden.read_text()
    assert list(tmp_path.iterdir()) == [], "a dry run must leave nothing behind"


def test_every_golden_file_has_its_setup() -> None:
    expected = {f"{n}@{m}.txt" if m else f"{n}.txt" for n, m in SETUPS}
    assert {p.name for p in GOLDEN.iterdir()} == expected


TINY = Path(__file__).parent / "golden_tiny"
FAMILIES = ("DeepSeek-V4.1-Flash", "GLM-5.3-NVFP4", "Kimi-K3", "Qwen3.5-397B-NVFP4")


@pytest.mark.parametrize("profile", ["cpu", "cuda"])
@pytest.mark.parametrize("name", FAMILIES)
def test_golden_tiny(name: str, profile: str, tmp_path: Path) -> None:
    """The same preset on its tiny twin: what each profile's hardware forces, each change with its reason."""
    venv = tmp_path / f"venv-{profile}"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").touch()
    (venv / "sglang-build.json").write_text("{}")
    text = dry_run(name, "--tiny", "--dry-run", state=tmp_path, SGLANG_FORK_PROFILE=profile)
    text = re.sub(r"(?<=\S) {2,}", "  ", text)  # the columns are as wide as this machine's paths
    golden = TINY / f"{name}@{profile}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_every_family_has_its_tiny_golden_files() -> None:
    assert {p.name for p in TINY.iterdir()} == {f"{n}@{p}.txt" for n in FAMILIES for p in ("cpu", "cuda")}
    with_twin = {preset.load(n).family for n in preset.names()} - {""}
    assert {preset.load(n).family for n in FAMILIES} == with_twin


def test_the_printed_command_is_valid_shell(tmp_path: Path) -> None:
    """bash sees exactly the words that were resolved: the program is replaced by one that prints them."""
    text = dry_run("Qwen3.5-397B-NVFP4", "--dry-run", "--", "--served-model-name", "a b'c", state=tmp_path)
    command = text.split("\n# where each value comes from")[0]
    command = command.replace("STATE/venv-cuda/bin/python -m sglang.launch_server", "printf '%s\\n'")
    done = subprocess.run(
        ["bash", "-c", command],
        env={"NODE_RANK": "1", "DIST_INIT_ADDR": "tray0:5000"},
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.splitlines()
    assert words[words.index("--node-rank") + 1] == "1"
    assert words[words.index("--dist-init-addr") + 1] == "tray0:5000"
    assert words[-1] == "a b'c"
    refused = subprocess.run(["bash", "-c", command], env={}, capture_output=True, text=True, check=False)
    assert refused.returncode != 0 and "NODE_RANK" in refused.stderr


def test_shell_beats_preset_and_command_line_beats_shell(tmp_path: Path) -> None:
    text = dry_run("Kimi-K3", "--dry-run", state=tmp_path, CONTEXT_LENGTH="32k", KIMI_MODEL="/models/k3")
    assert "  --context-length 32768" in text
    assert "shell: CONTEXT_LENGTH" in text
    assert "--model-path /models/k3" in text
    text = dry_run(
        "Kimi-K3", "--dry-run", "--", "--context-length=1024", state=tmp_path, CONTEXT_LENGTH="32768"
    )
    assert "  --context-length 1024" in text
    assert "warning: --context-length 1024 replaces 32768 (shell: CONTEXT_LENGTH)" in text
    assert text.count("--context-length ") == 3, "the command, the warning and the provenance"


def test_disable_mtp_leaves_out_every_draft_flag(tmp_path: Path) -> None:
    text = dry_run("Qwen3.5-NVFP4", "--dry-run", state=tmp_path, DISABLE_MTP="1")
    assert "--speculative" not in text and "extra_buffer" not in text
    assert "--speculative-num-steps 4" in dry_run("Qwen3.5-NVFP4", "--dry-run", state=tmp_path)


def test_slots_and_megakernel_from_the_shell(tmp_path: Path) -> None:
    text = dry_run(
        "Qwen3.5-397B-NVFP4", "--dry-run", "--on", "h200", state=tmp_path, MEGAKERNEL="on", SLOTS=""
    )
    assert "--enable-nvidia-megakernel" in text
    assert "SGLANG_NVIDIA_MEGAKERNEL_SLOTS='' \\" in text, "an empty list runs every slot's stock code"
    text = dry_run("Qwen3.5-397B-NVFP4", "--dry-run", state=tmp_path, MEGAKERNEL="off")
    assert "MEGAKERNEL_SLOTS" not in text and "--enable-nvidia-megakernel" not in text


def test_the_key_is_in_no_dry_run(tmp_path: Path) -> None:
    text = dry_run("Kimi-K3", "--dry-run", state=tmp_path, HOST="0.0.0.0", SGLANG_API_KEY="s3cr3t")
    assert "--host 0.0.0.0" in text and "s3cr3t" not in text
    key = tmp_path / "key"
    key.write_text("s3cr3t")
    text = dry_run("Kimi-K3", "--dry-run", state=tmp_path, HOST="::", SGLANG_API_KEY_FILE=str(key))
    assert "SGLANG_API_KEY_FILE=STATE/key" in text and "s3cr3t" not in text


REFUSALS = [
    ("unknown command", ["biuld"], {}, "did you mean: build"),
    ("unknown preset", ["Qwen35-NVFP4"], {}, "did you mean: Qwen3.5-NVFP4"),
    ("unknown flag", ["Kimi-K3", "--dryrun"], {}, "did you mean: --dry-run"),
    ("unknown variant", ["Kimi-K3", "--dry-run", "--on", "h200"], {}, "has no variant for h200"),
    ("open host", ["Kimi-K3", "--dry-run"], {"HOST": "0.0.0.0"}, "without an API key"),
    ("open host, command line", ["Kimi-K3", "--dry-run", "--", "--host", "::"], {}, "without an API key"),
    ("key as argument", ["Kimi-K3", "--dry-run", "--", "--api-key", "x"], {}, "SGLANG_API_KEY_FILE"),
    ("context", ["Kimi-K3", "--dry-run"], {"CONTEXT_LENGTH": "many"}, "CONTEXT_LENGTH is 'many'"),
    ("port", ["Kimi-K3", "--dry-run"], {"PORT": "70000"}, "port '70000' is not a port"),
    ("port, command line", ["Kimi-K3", "--dry-run", "--", "--port", "x"], {}, "port 'x' is not a port"),
    ("rank", ["Kimi-K3", "--dry-run"], {"NODE_RANK": "2"}, "0 to 1 for Kimi-K3"),
    ("address", ["Kimi-K3", "--dry-run"], {"DIST_INIT_ADDR": "tray0"}, "HOST:PORT of the first node"),
    ("mtp", ["Kimi-K3", "--dry-run"], {"DISABLE_MTP": "yes"}, "DISABLE_MTP is 'yes'"),
    ("mode", ["Kimi-K3", "--dry-run"], {"MEGAKERNEL": "maybe"}, "MEGAKERNEL is 'maybe'"),
    ("stray word", ["Kimi-K3", "--dry-run", "--", "8"], {}, "unexpected argument 8"),
]


@pytest.mark.parametrize(("words", "shell", "says"), [r[1:] for r in REFUSALS], ids=[r[0] for r in REFUSALS])
def test_refused_with_exit_2_and_the_way_out(
    words: list[str], shell: dict[str, str], says: str, tmp_path: Path
) -> None:
    done = sglang(*words, state=tmp_path, **shell)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stdout == "" and list(tmp_path.iterdir()) == []


def test_list_and_show_need_nothing_but_python(tmp_path: Path) -> None:
    listed = dry_run("list", state=tmp_path)
    for name in preset.names():
        assert name in listed
        assert f"{name}: " in dry_run("show", name, state=tmp_path)
    assert "zai-org/GLM-5.3-FP8" in dry_run("show", "GLM-5.3-NVFP4", "--on", "h200-fp8", state=tmp_path)
    assert sglang("show", "GLM-5.3", state=tmp_path).returncode == 2
