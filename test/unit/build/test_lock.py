# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sglang_fork.errors import ForkError
from sglang_fork.lock import DEV, FOLDER, RUNTIME, UV
from sglang_fork.lock.check import CUDA_TOOLKIT, check_lock, require_lock, wheel_metadata
from sglang_fork.lock.requirements import (
    Metadata,
    header,
    parse_lock,
    parse_metadata,
    read_lock,
    split_requirement,
)
from sglang_fork.lock.resolve import input_digest, make_locks, runtime_header

HASH = "    --hash=sha256:" + "0" * 64


def lock_text(metadata: Metadata, **versions: str) -> str:
    toolkit = dict.fromkeys(CUDA_TOOLKIT, "13.0.88")
    pins = {**toolkit, "torch": "2.14.1", "av": "16.1.0", "triton": "3.8.0"}
    pins |= {name.replace("_", "-"): version for name, version in versions.items()}
    head = "".join(f"# {key}: {value}\n" for key, value in runtime_header(metadata).items())
    return (
        head + "\n" + "".join(f"{name}=={version} \\\n{HASH}\n" for name, version in pins.items() if version)
    )


@pytest.fixture
def metadata(upstream: Path) -> Metadata:
    return wheel_metadata(upstream)


def inputs(folder: Path) -> Path:
    """A folder with copies of the locks' input files."""
    folder.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.in"):
        shutil.copy(path, folder)
    return folder


def put(folder: Path, text: str) -> Path:
    (inputs(folder) / RUNTIME).write_text(text)
    return folder


def test_metadata_without_extras(metadata: Metadata) -> None:
    assert metadata.version == "1.2.3"
    assert [split_requirement(r)[0] for r in metadata.requires] == ["torch", "av", "triton"]


def test_a_right_lock(metadata: Metadata, tmp_path: Path) -> None:
    assert check_lock(metadata, put(tmp_path, lock_text(metadata))) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"torch": "2.13.0"}, "torch is locked at 2.13.0, required ==2.14.1"),
        ({"triton": ""}, "triton is required and not locked"),
        ({"nvidia_nvvm": "13.5.37"}, "nvidia-nvvm==13.5.37 is not of CUDA 13.0.x"),
        ({"nvidia_cuda_cccl": ""}, "nvidia-cuda-cccl is not locked"),
    ],
)
def test_each_wrong_pin_is_named(
    metadata: Metadata, tmp_path: Path, change: dict[str, str], says: str
) -> None:
    assert check_lock(metadata, put(tmp_path, lock_text(metadata, **change))) == [says]


def test_a_lock_of_another_base(metadata: Metadata, tmp_path: Path) -> None:
    other = parse_metadata("Version: 1.2.4\nRequires-Dist: torch==2.14.1\n")
    problems = check_lock(other, put(tmp_path, lock_text(metadata)))
    assert any(p.startswith("base: the lock was made for sglang==1.2.3") for p in problems)
    assert any(p.startswith("requires-dist: ") for p in problems)
    with pytest.raises(ForkError, match=r"not the lock of this base[\s\S]*sglang\.sh lock"):
        require_lock(other, tmp_path)


def test_no_hash_and_no_address(metadata: Metadata, tmp_path: Path) -> None:
    text = lock_text(metadata) + "extra==1\n--index-url https://example.invalid/simple\n"
    with pytest.raises(ForkError, match="not a pin"):
        check_lock(metadata, put(tmp_path, text))
    problems = check_lock(
        metadata, put(tmp_path, lock_text(metadata) + "extra==1\n# https://example.invalid\n")
    )
    assert problems == ["holds an index address", "extra==1 has no hash"]


def test_missing_lock(metadata: Metadata, tmp_path: Path) -> None:
    with pytest.raises(ForkError, match="does not exist"):
        check_lock(metadata, tmp_path)


@pytest.mark.parametrize("name", [RUNTIME, DEV, UV])
def test_the_shipped_locks(name: str) -> None:
    text = read_lock(FOLDER / name)
    pins = parse_lock(text)
    assert pins and all(pin.hashes for pin in pins)
    assert "://" not in text and "--index" not in text
    assert header(text)["inputs"] == input_digest(name), f"{name}: its input changed, run ./sglang.sh lock"


def test_the_shipped_dev_lock_agrees_with_the_runtime_lock() -> None:
    runtime = {(p.name, p.marker): p.version for p in parse_lock(read_lock(FOLDER / RUNTIME))}
    for pin in parse_lock(read_lock(FOLDER / DEV)):
        assert runtime.get((pin.name, pin.marker), pin.version) == pin.version


def test_the_shipped_runtime_lock_is_for_both_machines() -> None:
    markers = {p.name: p.marker for p in parse_lock(read_lock(FOLDER / RUNTIME)) if "machine" in p.marker}
    assert markers["torchcodec"] == "platform_machine == 'x86_64'"
    assert markers["decord2"] == "platform_machine == 'aarch64'"
    assert "sglang" not in {p.name for p in parse_lock(read_lock(FOLDER / RUNTIME))}


FAKE_UV = """#!/bin/sh
while [ "$1" != --output-file ]; do shift; done
case "$2" in dev.txt) [ -z "$FAIL" ] || { echo "no solution" >&2; exit 1; } ;; esac
echo "thing==1 ; python_full_version < '3.13' and platform_machine == 'x86_64' \\\\" > "$2"
echo "    --hash=sha256:%064d" >> "$2"
"""


@pytest.fixture
def fake_uv(tmp_path: Path) -> Path:
    uv = tmp_path / "uv"
    uv.write_text(FAKE_UV.replace("%064d", "0" * 64))
    uv.chmod(0o755)
    return uv


def test_making_locks(metadata: Metadata, fake_uv: Path, tmp_path: Path) -> None:
    paths = make_locks(fake_uv, metadata, inputs(tmp_path / "out"))
    assert [p.name for p in paths] == [RUNTIME, DEV, UV]
    text = paths[0].read_text()
    assert header(text).items() >= runtime_header(metadata).items()
    pin = parse_lock(text)[0]
    assert (pin.name, pin.marker) == ("thing", "platform_machine == 'x86_64'")


def test_a_failed_resolution_writes_nothing(
    metadata: Metadata, fake_uv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL", "1")
    with pytest.raises(ForkError, match=r"could not resolve dev\.txt:\nno solution"):
        make_locks(fake_uv, metadata, inputs(tmp_path / "out"))
    assert list((tmp_path / "out").glob("*.txt")) == []


def test_a_lock_follows_the_inputs_beside_it(metadata: Metadata, fake_uv: Path, tmp_path: Path) -> None:
    folder = inputs(tmp_path / "out")
    (folder / "runtime.in").write_text("thing\n")
    text = make_locks(fake_uv, metadata, folder)[0].read_text()
    assert header(text)["inputs"] == input_digest(RUNTIME, folder) != input_digest(RUNTIME)
    (folder / "runtime.in").write_text("other\n")
    assert any(problem.startswith("inputs: ") for problem in check_lock(metadata, folder))
