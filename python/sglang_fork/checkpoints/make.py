# SPDX-License-Identifier: Apache-2.0
"""Making a family's random checkpoint: a Hugging Face folder, the same bytes on every machine."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from sglang_fork.checkpoints import deepseek_v41, glm_moe_dsa, kimi_k3, qwen3_5, tensorfile, tokenizer
from sglang_fork.checkpoints.tensorfile import Blob
from sglang_fork.checkpoints.weights import Spec, materialise
from sglang_fork.errors import ForkError
from sglang_fork.paths import state_dir


class FamilyModule(Protocol):
    """What a family's module offers: its tokens, its configuration, its tensors in file order."""

    TOKENS: tokenizer.Family
    CONTEXT: int

    def config(self) -> dict[str, Any]: ...

    def specs(self) -> Iterator[Spec] | Iterator[Spec | Blob]: ...


FAMILIES: dict[str, FamilyModule] = {
    "qwen3_5": qwen3_5,
    "glm_moe_dsa": glm_moe_dsa,
    "deepseek_v41": deepseek_v41,
    "kimi_k3": kimi_k3,
}


def family_module(family: str) -> FamilyModule:
    if family not in FAMILIES:
        raise ForkError(f"no tiny checkpoint of {family}", f"families: {', '.join(FAMILIES)}")
    return FAMILIES[family]


def default_path(family: str) -> Path:
    """Where ``make`` puts a family's checkpoint unless told otherwise."""
    return state_dir() / "checkpoints" / family


def write_tokenizer(folder: Path, module: FamilyModule) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` into ``folder``."""
    (folder / "tokenizer.json").write_text(tokenizer.dump(tokenizer.tokenizer_json(module.TOKENS)), "utf-8")
    settings = tokenizer.tokenizer_config(module.TOKENS, module.CONTEXT)
    (folder / "tokenizer_config.json").write_text(tokenizer.dump(settings), "utf-8")


def write_folder(folder: Path, family: str) -> None:
    module = family_module(family)
    (folder / "config.json").write_text(tokenizer.dump(module.config()), "utf-8")
    write_tokenizer(folder, module)
    made = (item if isinstance(item, Blob) else materialise(item, family) for item in module.specs())
    tensorfile.write(folder / "model.safetensors", made)


def make(family: str, out: Path) -> Path:
    """Make ``family``'s random checkpoint at ``out``, which must be absent or an earlier checkpoint; returns
    ``out``.
    """
    family_module(family)
    if out.exists() and not (out / "config.json").is_file():
        raise ForkError(f"{out} exists and is no checkpoint", "name another folder with --out")
    partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        write_folder(partial, family)
        if out.exists():
            shutil.rmtree(out)
        partial.rename(out)
    except OSError as error:
        raise ForkError(f"cannot write {out}: {error.strerror}", code=1) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out


def ensure(family: str) -> Path:
    """The family's random checkpoint in the state folder, made when absent: once, if many ask at once."""
    path = default_path(family)

    def there() -> bool:
        return (path / "model.safetensors").is_file()

    if there():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f".{path.name}.lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            return path if there() else make(family, path)
    except OSError as error:
        raise ForkError(f"cannot write {path}: {error.strerror}", code=1) from error
