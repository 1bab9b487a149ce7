# SPDX-License-Identifier: Apache-2.0
"""Bundles of tiny wheels: pruning, pieces, licences, and the installer run for real on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from sglang_fork.build.forkwheel import write_wheel
from sglang_fork.bundle import fetch, install, pack, sbom
from sglang_fork.bundle.slim import is_pruned, runs_on, slim
from sglang_fork.cli import main
from sglang_fork.errors import ForkError
from sglang_fork.lock.markers import holds, target_environment
from sglang_fork.stack.platforms import Platform

HERE = f"cp{sys.version_info[0]}{sys.version_info[1]}"


def wheel(out: Path, name: str, version: str = "1.0", extra: dict[str, bytes] | None = None) -> Path:
    info = f"{name}-{version}.dist-info/"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense-Expression: BSD-3-Clause\n"
    files = {
        f"{name}/__init__.py": f"NAME = {name!r}\n".encode(),
        info + "METADATA": metadata.encode(),
        info + "WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        info + "licenses/LICENSE": f"the licence of {name}\n".encode(),
    }
    return write_wheel(out / f"{name}-{version}-py3-none-any.whl", files | (extra or {}), info)


@pytest.fixture
def fat(tmp_path: Path) -> bytes:
    """A library with machine code of sm_80 and sm_90."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "doctor"))
    try:
        from test_doctor import fatbin_library
    finally:
        sys.path.pop(0)
    return fatbin_library(tmp_path / "fat", 80, 90).read_bytes()


def test_slim_wheel_is_whole_and_names_its_architecture(tmp_path: Path, fat: bytes) -> None:
    torch = wheel(tmp_path, "torch", extra={"torch/lib/libtorch_cuda.so": fat, "torch/a,b.json": b"{}"})
    done = slim(torch, 90, tmp_path / "out" if (tmp_path / "out").mkdir() is None else tmp_path)
    assert done.path.name == "torch-1.0-0sm90-py3-none-any.whl" and (done.kept, done.zeroed) == (16, 16)
    with zipfile.ZipFile(done.path) as archive:
        library = archive.read("torch/lib/libtorch_cuda.so")
        assert len(library) == len(fat) and bytes([90]) * 16 in library and bytes([80]) * 16 not in library
        record = archive.read("torch-1.0.dist-info/RECORD").decode()
        assert archive.read("torch/a,b.json") == b"{}" and '"torch/a,b.json"' in record
    digest = hashlib.sha256(library).digest()
    import base64

    assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() in record
    assert runs_on(done.path, 90) and runs_on(torch, 80)
    assert not runs_on(torch, 121)
    assert done.path.read_bytes() == slim(torch, 90, tmp_path / "out").path.read_bytes()


def test_only_wheels_whose_licence_allows_it_are_pruned(tmp_path: Path, fat: bytes) -> None:
    nvidia = wheel(tmp_path, "nvidia_cublas", extra={"nvidia/libcublas.so": fat})
    other = wheel(tmp_path, "torch", extra={"torch/x.so": fat})
    plain = wheel(tmp_path, "sglang_kernel")
    assert not is_pruned(nvidia) and is_pruned(other)
    chosen, rows = pack.choose_wheels([nvidia, other, plain], 90, tmp_path / "slim")
    assert [p.name.split("-")[0] for p in chosen] == ["nvidia_cublas", "torch", "sglang_kernel"]
    assert chosen[0] == nvidia and chosen[1] != other and chosen[2] == plain
    assert "3 wheels in all" in pack.report(rows)


def test_markers_are_decided_for_the_target() -> None:
    there = target_environment("3.12", "aarch64")
    assert holds("", there) and holds("platform_machine == 'aarch64'", there)
    assert not holds("platform_machine == 'x86_64' and sys_platform == 'linux'", there)
    assert holds("python_full_version == '3.12.*'", there) and not holds(
        "python_full_version < '3.12'", there
    )
    assert holds("python_version >= '3.9' and (implementation_name != 'PyPy' or os_name == 'nt')", there)
    assert not holds("python_full_version < '3.9'", there), "versions are compared as numbers"
    for wrong in ("nonsense ==", "unknown_name == 'x'", "sys_platform < 'm'", "len(sys_platform)"):
        with pytest.raises(ForkError, match="not understood"):
            holds(wrong, there)


def test_pins_of_each_target() -> None:
    names = {m: {p.name for p in fetch.target_pins(Platform("cp312", m))} for m in ("x86_64", "aarch64")}
    assert names["aarch64"] - names["x86_64"] == {"av", "decord2"}
    assert names["x86_64"] - names["aarch64"] == {"torchcodec"}
    for pins in (fetch.target_pins(Platform("cp311", "x86_64")), fetch.uv_pins(Platform("cp312", "aarch64"))):
        assert len({pin.name for pin in pins}) == len(pins)


def test_fetch_is_by_hash_and_ignores_this_machines_markers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}

    def download(platform: Platform, requirements: Path, folder: Path) -> None:
        seen["text"] = requirements.read_text()
        wheel(folder, "thing")

    monkeypatch.setattr(fetch, "download_locked", download)
    target = Platform("cp312", "aarch64")
    assert [p.name for p in fetch.fetch(target, fetch.target_pins(target), tmp_path)] == [
        "thing-1.0-py3-none-any.whl"
    ]
    lines = seen["text"].splitlines()
    assert all("--hash=sha256:" in line and ";" not in line for line in lines)


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    """A payload of two small wheels for this Python and machine, with caches and this machine's uv."""
    wheels = [wheel(tmp_path / "w", "torch"), wheel(tmp_path / "w", "sglang", "0.1+mega.1.gabc")]
    uv = tmp_path / "uv-0.0.1-py3-none-any.whl"
    real = shutil.which("uv")
    with zipfile.ZipFile(uv, "w") as archive:
        archive.writestr("uv-0.0.1.dist-info/METADATA", "Name: uv\nVersion: 0.0.1\nLicense: MIT\n")
        script = FAKE_UV if real is None else f'#!/bin/sh\nexec "{real}" "$@"\n'
        archive.writestr("uv-0.0.1.data/scripts/uv", script)
    caches = tmp_path / "caches"
    (caches / "triton").mkdir(parents=True)
    (caches / "triton" / "kernel.cubin").write_bytes(b"warm")
    manifest = pack.Manifest(
        fork="0.1+mega.1.gabc",
        python=HERE,
        machine=platform.machine(),
        arch=90,
        lock="0" * 64,
        wheels={w.name.split("-")[0]: w.name for w in wheels},
        sums={w.name: pack.sha256(w) for w in wheels},
    )
    pack.write_payload(tmp_path / "payload", manifest, wheels, uv, caches)
    return tmp_path / "payload"


FAKE_UV = """#!/bin/sh
shift 2
case "$1" in
  venv) for last; do :; done; python3 -m venv --without-pip "$last" ;;
  pip) [ "$2" = check ] && exit 0; for last; do :; done; echo installed ;;
esac
"""


def test_payload_has_licences_and_a_bill_of_materials(payload: Path) -> None:
    assert (payload / "licences/torch/LICENSE").read_text() == "the licence of torch\n"
    assert "torch 1.0: BSD-3-Clause" in (payload / "licences/LICENCES.txt").read_text()
    bill = json.loads((payload / "sbom.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX" and bill["specVersion"] == "1.5"
    parts = {part["name"]: part for part in bill["components"]}
    assert parts["sglang"]["purl"] == "pkg:pypi/sglang@0.1%2Bmega.1.gabc"
    assert parts["torch"]["hashes"][0]["content"] == pack.sha256(
        payload / "wheels/torch-1.0-py3-none-any.whl"
    )
    assert sbom.component(payload / "wheels/torch-1.0-py3-none-any.whl").licence == "BSD-3-Clause"
    assert (payload / "checkout/sglang.sh").exists() and not (payload / "checkout/.git").exists()


def test_pieces_are_of_the_asked_size_and_make_the_same_archive(payload: Path, tmp_path: Path) -> None:
    whole = pack.write_archive(payload, tmp_path / "one", None)
    assert [p.name for p in whole] == ["payload.tar"]
    pieces = pack.write_archive(payload, tmp_path / "many", 1)
    assert pieces[0].name == "payload.tar.000" and len(pieces) > 1
    assert all(p.stat().st_size == pack.MIB for p in pieces[:-1]) and pieces[-1].stat().st_size <= pack.MIB
    assert b"".join(p.read_bytes() for p in pieces) == whole[0].read_bytes()
    with tarfile.open(whole[0]) as tar:
        assert all((m.uid, m.gid, m.mtime, m.uname) == (0, 0, 0, "") for m in tar.getmembers())
    again = pack.write_archive(payload, tmp_path / "many", None)
    assert sorted(p.name for p in (tmp_path / "many").iterdir()) == [
        "SHA256SUMS",
        "install.sh",
        again[0].name,
    ]


def run_installer(
    bundle: Path, target: Path, python: Path | str = sys.executable
) -> subprocess.CompletedProcess[str]:
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "SGLANG_FORK_HOME")}
    variables["SGLANG_PYTHON"] = str(python)
    return subprocess.run(
        ["bash", str(bundle / "install.sh"), str(target)], capture_output=True, text=True, env=variables
    )


def test_install_from_pieces(payload: Path, tmp_path: Path) -> None:
    pack.write_archive(payload, tmp_path / "bundle", 1)
    target = tmp_path / "target"
    done = run_installer(tmp_path / "bundle", target)
    assert done.returncode == 0, done.stderr
    state = target / ".sglang"
    stamp = json.loads((state / "venv-cuda/sglang-build.json").read_text())
    assert stamp["fork"] == "0.1+mega.1.gabc" and stamp["kept"] == ["torch pruned to sm_90"]
    assert (state / "cache/triton/kernel.cubin").read_bytes() == b"warm"
    assert (state / "licences/LICENCES.txt").exists() and (target / "sglang.sh").exists()
    assert not list(target.glob(".payload-*")), "the unpacked payload is removed"
    if shutil.which("uv"):
        python = state / "venv-cuda/bin/python"
        code = "import torch, importlib.metadata as m; print(torch.NAME, m.version('sglang'))"
        out = subprocess.run([str(python), "-c", code], capture_output=True, text=True).stdout
        assert out.split() == ["torch", "0.1+mega.1.gabc"]
    assert "exists" in run_installer(tmp_path / "bundle", target).stderr, "never over an installation"


@pytest.mark.parametrize("fault", ["flip", "missing"])
def test_a_damaged_bundle_installs_nothing(payload: Path, tmp_path: Path, fault: str) -> None:
    pieces = pack.write_archive(payload, tmp_path / "bundle", 1)
    if fault == "missing":
        pieces[1].unlink()
    else:
        content = bytearray(pieces[0].read_bytes())
        content[5000] ^= 1
        pieces[0].write_bytes(bytes(content))
    done = run_installer(tmp_path / "bundle", tmp_path / "target")
    assert done.returncode == 1 and "missing or damaged" in done.stderr
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("fault", ["missing", "another version", "a folder"])
def test_a_named_python_that_does_not_serve_is_refused(payload: Path, tmp_path: Path, fault: str) -> None:
    pack.write_archive(payload, tmp_path / "bundle", None)
    named = tmp_path / "named"
    if fault == "another version":
        named.write_text("#!/bin/sh\necho 3.10\n")
        named.chmod(0o755)
    elif fault == "a folder":
        named.mkdir()
    done = run_installer(tmp_path / "bundle", tmp_path / "target", named)
    assert done.returncode == 2 and done.stdout == "", "another Python is not taken in its place"
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert done.stderr == (
        f"install.sh: SGLANG_PYTHON is {named}, which is not a Python {version} that runs\n"
    )
    assert not (tmp_path / "target").exists()


def test_wheels_are_checked_again_on_the_target(payload: Path, tmp_path: Path) -> None:
    (payload / "wheels/torch-1.0-py3-none-any.whl").write_bytes(b"x")
    with pytest.raises(ForkError, match=r"torch-1\.0-py3-none-any\.whl is missing or damaged"):
        install.install(payload, tmp_path / "target")


def test_another_machine_or_python_is_refused(payload: Path, tmp_path: Path) -> None:
    manifest = json.loads((payload / pack.MANIFEST).read_text())
    (payload / pack.MANIFEST).write_text(json.dumps(manifest | {"machine": "riscv64"}))
    with pytest.raises(ForkError, match=r"is for cp3\d+ on riscv64"):
        install.install(payload, tmp_path / "target")
    (payload / pack.MANIFEST).write_text("{}")
    with pytest.raises(ForkError, match="not a bundle's payload"):
        install.install(payload, tmp_path / "target")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--arch", "sm_90", "--piece-mib", "0"], "at least 1"),
        (["--arch", "sm_75"], "invalid choice"),
        ([], "--arch"),
        (["--arch", "sm_90", "--pice-mib", "4"], "did you mean: --piece-mib"),
    ],
)
def test_bad_arguments(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bundle", str(tmp_path / "out"), *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_folder_with_other_files_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("keep")
    assert main(["bundle", str(tmp_path), "--arch", "sm_90"]) == 2
    assert "holds other files" in capsys.readouterr().err
