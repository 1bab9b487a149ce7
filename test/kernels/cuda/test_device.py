# SPDX-License-Identifier: Apache-2.0
"""The CUDA device layer without a GPU: sources to keys and cubins, the cache, launch sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang.srt.mega.device import sources
from sglang.srt.mega.device.build_cubins import build_cubins
from sglang.srt.mega.device.cubin_cache import CubinCache, key_of
from sglang.srt.mega.device.cuda_compile import CompileError, cache_key, compile_kernel, load_cubin
from sglang.srt.mega.device.spec import ARCHITECTURES, KernelSpec, LaunchConfig

ENTRY = KernelSpec.of("qwen3_5/stream_entry.cuh", "stream_entry", {"HIDDEN": 256})


def test_a_key_covers_source_headers_options_and_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    wider = KernelSpec.of(ENTRY.source, ENTRY.entry, {"HIDDEN": 512})
    keys = {cache_key(ENTRY, arch) for arch in ARCHITECTURES} | {cache_key(wider, "sm_90a")}
    assert len(keys) == len(ARCHITECTURES) + 1
    read = Path.read_text

    def changed(self: Path, *args: object, **kwargs: object) -> str:
        return read(self, *args, **kwargs) + ("// changed\n" if self.name == "reduce.cuh" else "")

    before = cache_key(ENTRY, "sm_90a")
    monkeypatch.setattr(sources.Path, "read_text", changed)
    assert cache_key(ENTRY, "sm_90a") != before


def test_parts_do_not_collide_by_concatenation() -> None:
    assert key_of(["ab", "c"]) != key_of(["a", "bc"])


def test_the_cache_is_private_whole_and_checked(tmp_path: Path) -> None:
    cache = CubinCache(tmp_path / "cubins")
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    assert cache.get_or_make("k", lambda: b"code") == b"code"
    assert cache.get_or_make("k", lambda: b"never") == b"code"
    path = cache.folder / "k.cubin"
    path.write_bytes(path.read_bytes()[:-1])
    assert cache.get("k") is None
    assert cache.get_or_make("k", lambda: b"again") == b"again"
    assert not list(cache.folder.glob(".writing-*"))


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="chmod 700"):
        CubinCache(tmp_path)


def test_compile_errors_carry_the_log_and_unknown_targets_the_list() -> None:
    with pytest.raises(CompileError, match="MEGA_HIDDEN"):
        compile_kernel(KernelSpec.of(ENTRY.source, ENTRY.entry, {}), "sm_90a")
    with pytest.raises(CompileError, match="defines no entry other"):
        compile_kernel(KernelSpec.of(ENTRY.source, "other", {"HIDDEN": 256}), "sm_90a")
    with pytest.raises(ValueError, match="sm_80 is not built for"):
        cache_key(ENTRY, "sm_80")


def test_every_architecture_builds_without_a_gpu(tmp_path: Path) -> None:
    cache = CubinCache(tmp_path / "cubins")
    records = build_cubins(ARCHITECTURES, [ENTRY], cache)
    assert [record["arch"] for record in records] == list(ARCHITECTURES)
    for record in records:
        assert (
            record["spill_bytes"] == 0 and record["sass"]["waits"] == 1 and record["sass"]["wide_loads"] >= 2
        )
        assert load_cubin(ENTRY, str(record["arch"]), cache)[:4] == b"\x7fELF"


def test_what_the_cache_holds_is_not_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CubinCache(tmp_path / "cubins")
    first = build_cubins(["sm_90a"], [ENTRY], cache)
    made = []

    def counting(spec: KernelSpec, arch: str) -> object:
        made.append(arch)
        return compile_kernel(spec, arch)

    monkeypatch.setitem(build_cubins.__globals__, "compile_kernel", counting)
    assert build_cubins(["sm_90a"], [ENTRY], cache) == first and made == []
    damaged = cache.folder / f"{cache_key(ENTRY, 'sm_90a')}.cubin"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    both = build_cubins(["sm_90a", "sm_100a"], [ENTRY], cache)
    assert made == ["sm_90a", "sm_100a"] and both[0] == first[0]


@pytest.mark.parametrize(
    "wrong",
    [{"grid": (0, 1, 1), "block": 32}, {"grid": (1, 1, 1), "block": 33}, {"grid": (3, 1, 1), "block": 32}],
)
def test_impossible_launches_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError):
        LaunchConfig(**wrong, cluster=2)
