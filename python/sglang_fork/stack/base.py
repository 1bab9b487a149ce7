# SPDX-License-Identifier: Apache-2.0
"""The base commit: one release's wheel as a parentless commit whose id is the same wherever it is made.

Compiled extensions and metadata are left out and file modes are normalised: what remains is byte-identical in
every platform's wheel, so one set of patches serves them all.
"""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

from sglang_fork.errors import ForkError
from sglang_fork.stack.git import Git, isolated_env, way_out

PACKAGE = "sglang/"


def tag(version: str) -> str:
    """The tag of a release's base commit."""
    return f"upstream/{version}"


def source_members(wheel: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The wheel's members that belong to the base tree, sorted by name."""
    return sorted(
        (m for m in wheel.infolist() if m.filename.startswith(PACKAGE) and _is_source(m)),
        key=lambda m: m.filename,
    )


def _is_source(member: zipfile.ZipInfo) -> bool:
    return not member.is_dir() and not member.filename.endswith((".so", ".pyc"))


def vendor(git: Git, wheel: Path, version: str) -> str:
    """Commit the wheel's sources under ``upstream/VERSION`` and return the commit id. Idempotent."""
    commit = git.resolve(f"{tag(version)}^{{commit}}")
    return commit or _import(git, wheel, version)


def _import(git: Git, wheel: Path, version: str) -> str:
    message = f"upstream sglang {version} (wheel tree, compiled extensions left out)\n".encode()
    reference = f"refs/tags/{tag(version)}"
    process = subprocess.Popen(
        ["git", "-C", str(git.path), "fast-import", "--quiet", "--force", "--date-format=raw"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=isolated_env(),
    )
    assert process.stdin is not None
    try:
        with zipfile.ZipFile(wheel) as archive:
            send = process.stdin.write
            send(b"commit %s\n" % reference.encode())
            send(b"author upstream <upstream@example.invalid> 0 +0000\n")
            send(b"committer upstream <upstream@example.invalid> 0 +0000\n")
            send(b"data %d\n%s\n" % (len(message), message))
            for member in source_members(archive):
                blob = archive.read(member)
                send(b"M 100644 inline %s\n" % member.filename.encode())
                send(b"data %d\n%s\n" % (len(blob), blob))
        said = process.communicate()[1]
    except BrokenPipeError:
        said = process.communicate()[1]
    except zipfile.BadZipFile as error:
        process.kill()
        process.wait()
        raise ForkError(f"{wheel.name} cannot be read: {error}", f"delete {wheel} and try again") from None
    if process.returncode:
        complaint = said.decode(errors="replace").strip()
        raise ForkError(f"git fast-import failed:\n{complaint}", way_out(complaint), code=1)
    commit = git.resolve(reference)
    assert commit is not None
    return commit


def verify_tree(git: Git, commit: str, version: str, expected: str) -> None:
    """Refuse a base whose tree is not the pinned one."""
    tree = git.out("rev-parse", f"{commit}^{{tree}}")
    if tree != expected:
        git.run("tag", "--delete", tag(version), check=False)
        raise ForkError(
            f"the base tree of {version} is {tree}, patches/series pins {expected}",
            "the wheel or patches/series was changed; restore patches/ or rebase",
        )
