# SPDX-License-Identifier: Apache-2.0
"""Compiled kernels on disk: one file a key, written atomically, checked when read, private to the user.

A file is the SHA-256 of its payload followed by the payload, so that a damaged file reads as absent. The
key covers everything that the machine code depends on: the text of the source and its headers, the options,
the architecture and the compiler's version. Of several processes that want the same key, one compiles and
the others wait for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

DIGEST_BYTES = hashlib.sha256().digest_size


def default_folder() -> Path:
    """``$SGLANG_CACHE_DIR/mega``, by default ``~/.cache/sglang/mega``."""
    base = os.environ.get("SGLANG_CACHE_DIR") or "~/.cache/sglang"
    return Path(base).expanduser() / "mega"


def key_of(parts: Iterable[str]) -> str:
    """A file name for these parts; each is length-prefixed, so no two lists collide by concatenation."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:40]


class CubinCache:
    """A folder of compiled kernels, mode 0700; a folder that others can write to is refused."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_folder()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self.folder.stat()
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o022:
            raise PermissionError(
                f"{self.folder} holds machine code and must be yours alone: "
                "chmod 700 it, or set SGLANG_CACHE_DIR"
            )

    def get(self, key: str) -> bytes | None:
        """The payload, or ``None`` when it is absent or damaged."""
        try:
            data = self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        payload = data[DIGEST_BYTES:]
        return payload if hashlib.sha256(payload).digest() == data[:DIGEST_BYTES] and payload else None

    def put(self, key: str, payload: bytes) -> None:
        """Stores the payload; a reader sees the whole of it or nothing."""
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".writing-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(payload).digest() + payload)
            os.replace(name, self._path(key))
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def get_or_make(self, key: str, make: Callable[[], bytes]) -> bytes:
        """The stored payload; when absent, one process at a time runs ``make()`` and stores its result."""
        payload = self.get(key)
        if payload is not None:
            return payload
        with self._locked(key):
            payload = self.get(key)
            if payload is None:
                payload = make()
                self.put(key, payload)
        return payload

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.cubin"

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        with (self.folder / f"{key}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
