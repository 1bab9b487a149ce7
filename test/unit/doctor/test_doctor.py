# SPDX-License-Identifier: Apache-2.0
"""Every check on made-up machines: a healthy one, and one with each fault."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sglang_fork import env
from sglang_fork.binary import fatbin
from sglang_fork.binary.elf import Elf
from sglang_fork.build.stamp import Stamp, write_stamp
from sglang_fork.commands import doctor
from sglang_fork.doctor import gb10, libraries, resources, toolchain
from sglang_fork.doctor.finding import Finding, Level
from sglang_fork.doctor.machine import Machine
from sglang_fork.doctor.report import as_text, examine
from sglang_fork.launch.hardware import Gpu

GIB = 1 << 30
H200 = Gpu(0, "NVIDIA H200", "sm_90", 141 * GIB, 0.0)
GB10 = Gpu(0, "NVIDIA GB10", "sm_121", 0.0, 0.0)
SMI = "| NVIDIA-SMI 580.65.06    Driver Version: 580.65.06    CUDA Version: {} |"
PTXAS_HELP = "Allowed values for this option:  'sm_90','sm_90a','sm_100a','sm_103a','sm_121','sm_121a'."
CUDART = "#define CUDART_VERSION  13000\n"


@dataclass(frozen=True)
class Fake(Machine):
    """A machine whose GPUs and commands are given."""

    cards: tuple[Gpu, ...] = ()
    commands: dict[str, str] = field(default_factory=dict)
    busy: frozenset[int] = frozenset()

    def run(self, *command: str) -> str | None:
        return self.commands.get(Path(command[0]).name)

    def which(self, name: str) -> Path | None:
        return Path("/bin") / name if name in self.commands else None

    @property
    def gpus(self) -> tuple[Gpu, ...]:  # type: ignore[override]
        return self.cards

    @property
    def arch(self) -> str:
        return "x86_64"

    @property
    def glibc(self) -> tuple[int, int]:  # type: ignore[override]
        return (2, 36)

    def port_free(self, port: int) -> bool:
        return port not in self.busy


COMMANDS = {
    "nvidia-smi": SMI.format("13.0"),
    "nvcc": "Cuda compilation tools, release 13.0, V13.0.88",
    "ptxas": PTXAS_HELP,
    "g++": "g++ 12.2.0\n",
    "ninja": "1.13.2\n",
}


def put(path: Path, content: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fake]:
    """Makes a machine with a built cuda profile and a whole toolkit; keywords change it."""
    monkeypatch.setenv("SGLANG_FORK_HOME", str(tmp_path / "state"))
    venv = env.venv_dir("cuda")
    packages = venv / "lib/python3.12/site-packages"
    toolkit = packages / "nvidia/cu13"
    put(venv / "bin/python")
    put(venv / "bin/ninja")
    put(toolkit / "include/cuda_runtime_api.h", CUDART)
    put(toolkit / "include/cccl/cuda/std/__cccl/version.h", "#define CCCL_VERSION 3000001\n")
    put(toolkit / "bin/nvcc")
    put(toolkit / "bin/ptxas")
    put(toolkit / "lib/libcudart.so.13")
    put(packages / "torch-2.14.1.dist-info/METADATA", "Name: torch\nVersion: 2.14.1\n\ntext: Name: no\n")
    (venv / "cuda-home").mkdir()
    for name in ("bin", "include"):
        (venv / "cuda-home" / name).symlink_to(toolkit / name)
    write_stamp(Stamp("cuda", "1.2.3+mega.1.gabc", "0" * 64, "cp312", "x86_64"))
    root = tmp_path / "root"
    put(root / "proc/meminfo", "MemTotal: 200000000 kB\nMemAvailable: 150000000 kB\nSwapTotal: 0 kB\n")
    put(root / "usr/lib/x86_64-linux-gnu/libcuda.so.1")

    def make(**changes: object) -> Fake:
        given = {"root": root, "environ": {}, "profile": "cuda", "cards": (H200,), "commands": COMMANDS}
        return Fake(**(given | changes))  # type: ignore[arg-type]

    return make


def problems(found: list[Finding], area: str = "") -> list[Finding]:
    return [f for f in found if f.level in (Level.WARN, Level.ERROR) and area in ("", f.area)]


def only(found: list[Finding], area: str) -> Finding:
    hits = problems(found, area)
    assert len(hits) == 1, found
    assert hits[0].breaks and hits[0].fix
    return hits[0]


def test_a_healthy_machine_has_no_problem(machine: Callable[..., Fake]) -> None:
    found = examine(machine())
    assert problems(found) == []
    areas = {finding.area for finding in found}
    assert areas >= {"build", "driver", "CUDA_HOME", "CUDA headers", "ptxas", "g++", "ninja", "pins"}
    assert areas >= {"libraries", "libcudart", "memory", "disk", "port", "caches"}


def test_no_driver_is_a_fact_and_not_a_fault(machine: Callable[..., Fake], tmp_path: Path) -> None:
    (tmp_path / "root/usr/lib/x86_64-linux-gnu/libcuda.so.1").unlink()
    found = list(toolchain.driver(machine(cards=())))
    assert [f.level for f in found] == [Level.INFO] and "serves on the CPU" in found[0].what


def test_driver_that_does_not_answer(machine: Callable[..., Fake]) -> None:
    assert "does not answer" in only(list(toolchain.driver(machine(commands={}, cards=()))), "driver").what


def test_driver_too_old(machine: Callable[..., Fake]) -> None:
    commands = COMMANDS | {"nvidia-smi": SMI.format("12.4")}
    assert "driver 580" in only(list(toolchain.driver(machine(commands=commands))), "driver").fix


def test_no_toolkit(machine: Callable[..., Fake]) -> None:
    assert "no CUDA toolkit" in only(list(toolchain.cuda_home(machine(profile=None))), "CUDA_HOME").what


def test_cuda_home_of_the_user_with_another_compiler(machine: Callable[..., Fake], tmp_path: Path) -> None:
    put(tmp_path / "system/include/cuda_runtime_api.h", "#define CUDART_VERSION 12080\n")
    given = machine(environ={"CUDA_HOME": str(tmp_path / "system")})
    finding = only(list(toolchain.cuda_home(given)), "CUDA headers")
    assert "nvcc is 13.0" in finding.what and "are 12.8" in finding.what and "unset CUDA_HOME" in finding.fix
    broken = machine(environ={"CUDA_HOME": str(tmp_path / "nowhere")}, commands={})
    assert "does not run" in only(list(toolchain.cuda_home(broken)), "CUDA_HOME").what


def test_headers_newer_than_the_compiler(machine: Callable[..., Fake]) -> None:
    given = machine(commands=COMMANDS | {"nvcc": "release 13.5, V13.5.37"})
    assert "incompatible" in only(list(toolchain.cuda_home(given)), "CUDA headers").breaks


def test_ptxas_that_does_not_know_gb10(machine: Callable[..., Fake]) -> None:
    assert problems(list(toolchain.ptxas(machine(cards=(GB10,))))) == []
    old = machine(cards=(GB10,), commands=COMMANDS | {"ptxas": "'sm_90','sm_90a'"})
    assert "sm_121a" in only(list(toolchain.ptxas(old)), "ptxas").what


@pytest.mark.parametrize("tool", ["g++", "ninja"])
def test_missing_compiler_tools(machine: Callable[..., Fake], tool: str) -> None:
    commands = {name: text for name, text in COMMANDS.items() if name != tool}
    assert "no " + tool in only(list(toolchain.compilers(machine(commands=commands))), tool).what


def test_nothing_built(machine: Callable[..., Fake]) -> None:
    found = examine(machine(profile=None))
    assert "nothing is built" in only(found, "build").what


def test_cpu_profile_on_a_gpu_machine(machine: Callable[..., Fake]) -> None:
    venv = env.venv_dir("cpu")
    put(venv / "bin/python")
    write_stamp(Stamp("cpu", "1", "0", "cp312", "x86_64", left_out=("nvidia-cublas",)))
    (venv / "lib/python3.12/site-packages").mkdir(parents=True)
    finding = only(list(libraries.built(machine(profile="cpu"))), "build")
    assert finding.fix.endswith("--profile cuda")


def test_packages_that_differ_from_the_lock(machine: Callable[..., Fake]) -> None:
    packages = machine().packages
    assert packages is not None
    put(packages / "nvidia_nvvm-13.5.37.dist-info/METADATA", "Name: nvidia-nvvm\nVersion: 13.5.37\n")
    assert "nvidia-nvvm 13.5.37 (locked: 13.0.88)" in only(list(libraries.pins(machine())), "pins").what


def test_left_out_metadata_agrees_with_the_lock(machine: Callable[..., Fake]) -> None:
    packages = machine().packages
    assert packages is not None
    put(packages / "a.dist-info/METADATA", "Name: nvidia_cublas\nVersion: 13.1.1.3+left.out\n")
    assert problems(list(libraries.pins(machine()))) == []


def test_two_cuda_runtimes(machine: Callable[..., Fake]) -> None:
    packages = machine().packages
    assert packages is not None
    put(packages / "other/libcudart-8774224f.so.12.8.90")
    assert "majors 12 (other/" in only(list(libraries.cuda_runtimes(machine())), "libcudart").what


def fatbin_library(folder: Path, *archs: int) -> Path:
    """A library with one container of machine code of ``archs`` (negative: PTX), as nvcc lays it out."""
    body = b""
    for arch in archs:
        kind, arch = (fatbin.MACHINE_CODE, arch) if arch > 0 else (fatbin.PTX, -arch)
        header = struct.pack("<HHIQ12sI32s", kind, 0x101, 64, 16, b"", arch, b"")
        body += header + bytes([arch]) * 16
    blob = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "blob.bin").write_bytes(blob)
    (folder / "fat.s").write_text(f'.section .nv_fatbin,"a"\n.balign 8\n.incbin "{folder / "blob.bin"}"\n')
    target = folder / "libtorch_cuda.so"
    subprocess.run(["gcc", "-shared", "-nostdlib", "-o", str(target), str(folder / "fat.s")], check=True)
    (folder / "blob.bin").unlink()
    (folder / "fat.s").unlink()
    return target


def test_gpu_code_of_a_library(machine: Callable[..., Fake]) -> None:
    packages = machine().packages
    assert packages is not None
    path = fatbin_library(packages / "torch/lib", 80, 100)
    assert fatbin.architectures(Elf(path)) == (frozenset({80, 100}), frozenset())
    assert "this machine has sm_90" in only(list(libraries.native(machine())), "GPU code").what
    assert (
        problems(list(libraries.native(machine(cards=(H200.__class__(0, "x", "sm_103", 1, 0),)))), "GPU code")
        == []
    )


def test_pruning_keeps_one_architecture_and_the_layout(tmp_path: Path) -> None:
    path = fatbin_library(tmp_path, 80, 90, 100)
    before = path.read_bytes()
    assert fatbin.prune(path, 90) == (16, 32)
    after = path.read_bytes()
    assert len(after) == len(before)
    assert bytes([90]) * 16 in after and bytes([80]) * 16 not in after and bytes([100]) * 16 not in after
    assert fatbin.architectures(Elf(path))[0] == {80, 90, 100}, "the headers stay"


@pytest.mark.parametrize(
    ("archs", "target", "kept"),
    [
        ((80, 86, 90), 89, {80, 86}),  # the same major, not later
        ((100, 103), 103, {100, 103}),
        ((120, 100), 121, {120}),
        ((80, -80), 90, {80}),  # PTX alone is compiled at load: it stays, the machine code goes
        ((80, -90, 90), 90, {90}),  # machine code that fits makes PTX superfluous
        ((100,), 90, set()),
    ],
)
def test_what_pruning_keeps(tmp_path: Path, archs: tuple[int, ...], target: int, kept: set[int]) -> None:
    path = fatbin_library(tmp_path, *archs)
    fatbin.prune(path, target)
    content = path.read_bytes()
    left = {part.arch for part in fatbin.parts(Elf(path)) if any(content[part.offset : part.offset + 16])}
    assert left == kept


def test_libraries_of_another_machine_or_a_newer_c_library(
    machine: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = machine().packages
    assert packages is not None
    path = fatbin_library(packages / "torch/lib", 90)
    content = bytearray(path.read_bytes())
    content[18:20] = struct.pack("<H", 183)
    (packages / "alien.so").write_bytes(bytes(content))
    (packages / "text.so").write_text("not a library " * 10)
    found = list(libraries.native(machine()))
    text = " / ".join(f.what for f in problems(found, "libraries"))
    assert "alien.so (aarch64)" in text and "text.so: not a 64-bit" in text
    monkeypatch.setattr(libraries, "glibc_floor", lambda elf: (2, 39))
    assert "needs glibc 2.39" in " ".join(f.what for f in libraries.native(machine()))


@pytest.mark.parametrize(("folder", "level"), [("sgl_kernel", Level.ERROR), ("memory_saver", Level.INFO)])
def test_a_library_that_asks_for_another_cuda(
    machine: Callable[..., Fake], tmp_path: Path, folder: str, level: Level
) -> None:
    """Users met it as "libnvrtc.so.12: cannot open shared object file" in the middle of a start."""
    packages = machine().packages
    assert packages is not None
    (packages / folder).mkdir(parents=True)
    asked, empty = tmp_path / "libnvrtc.so.12", tmp_path / "empty.c"
    empty.write_text("")
    gcc = ["gcc", "-shared", "-nostdlib"]
    subprocess.run([*gcc, f"-Wl,-soname,{asked.name}", "-o", str(asked), str(empty)], check=True)
    library = packages / folder / "ops.so"
    subprocess.run([*gcc, "-Wl,--no-as-needed", "-o", str(library), str(empty), str(asked)], check=True)
    (finding,) = [f for f in libraries.native(machine()) if "libnvrtc.so.12" in f.what]
    assert finding.level == level and f"{folder}/ops.so asks for" in finding.what


def test_unified_memory_reads_meminfo(machine: Callable[..., Fake], tmp_path: Path) -> None:
    assert problems(list(resources.memory(machine(cards=(GB10,))))) == []
    put(
        tmp_path / "root/proc/meminfo",
        "MemTotal: 120000000 kB\nMemAvailable: 9000000 kB\nSwapTotal: 8000000 kB\n",
    )
    low = problems(list(resources.memory(machine(cards=(GB10,)))))
    assert [f.level for f in low] == [Level.ERROR, Level.WARN]
    assert "freezes" in low[0].breaks and "swap" in low[1].what
    assert problems(list(resources.memory(machine()))) == [], "host memory is not the H200's"


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64, expandable_segments: True"},
            ["NV_ERR_NO_MEMORY"],
        ),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, ["NV_ERR_NO_MEMORY"]),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}, []),
        ({"SGLANG_NVFP4_SELF_TEST": "0"}, ["gibberish"]),
        ({}, []),
    ],
)
def test_what_users_of_a_gb10_ran_into(
    machine: Callable[..., Fake], environ: dict[str, str], said: list[str]
) -> None:
    found = examine(machine(cards=(GB10,), environ=environ))
    seen = problems(found, "gb10")
    assert len(seen) == len(said) and all(word in f.breaks for f, word in zip(seen, said, strict=True))
    assert [f for f in found if f.area == "gb10" and "DISABLE_MTP=1" in f.what]
    assert list(gb10.known_causes(machine(environ=environ))) == [], "an H200 is told none of it"


def test_gpu_memory_in_use(machine: Callable[..., Fake]) -> None:
    used = Gpu(0, "NVIDIA H200", "sm_90", 141 * GIB, 100 * GIB)
    assert "41.0 of 141.0 GiB free" in only(list(resources.memory(machine(cards=(used,)))), "memory").what


def test_little_disk(machine: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        resources.shutil, "disk_usage", lambda path: type("U", (), {"free": GIB, "total": GIB})
    )
    assert "1.0 GiB free" in only(list(resources.disk(machine())), "disk").what


def test_port_in_use(machine: Callable[..., Fake]) -> None:
    assert "30000 is in use" in only(list(resources.ports(machine(busy=frozenset({30000})))), "port").what
    assert problems(list(resources.ports(machine(busy=frozenset({30000}), environ={"PORT": "31000"})))) == []


def test_a_check_that_breaks_is_a_finding(machine: Callable[..., Fake], tmp_path: Path) -> None:
    (tmp_path / "root/proc/meminfo").unlink()
    found = examine(machine())
    assert [f.area for f in problems(found)] == ["resources.memory"]
    assert "1 errors, 0 warnings" in as_text(found)


def test_a_problem_must_say_what_it_breaks_and_the_fix() -> None:
    with pytest.raises(ValueError, match="what it breaks"):
        Finding(Level.ERROR, "x", "y")
    with pytest.raises(ValueError, match="what it breaks"):
        Finding(Level.OK, "x", "y", "z", "w")


def test_command_and_json(
    machine: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = machine()
    monkeypatch.setattr(doctor, "Machine", lambda profile: made)
    arguments = type("Args", (), {"json": True})()
    assert doctor.run(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"level", "area", "what", "breaks", "fix"} == set(found[0])
    monkeypatch.setattr(doctor, "Machine", lambda profile: machine(commands={}))
    assert doctor.run(arguments) == 1
