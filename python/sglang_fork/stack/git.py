# SPDX-License-Identifier: Apache-2.0
"""Git, cut off from the user's configuration, so that the same patches give the same commits on every
machine.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from sglang_fork.errors import ForkError

NAME, EMAIL = "SGLang Mega", "mega@example.invalid"
EPOCH = "@0 +0000"

# Settings that a user's or a machine's configuration could otherwise change.
_CONFIG = {
    "core.hooksPath": "/dev/null",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "core.quotePath": "false",
    "core.editor": "true",
    "core.autocrlf": "false",
    "core.safecrlf": "false",
    "core.fileMode": "false",
    "core.commentChar": "#",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "gc.auto": "0",
    "advice.detachedHead": "false",
    "merge.conflictStyle": "zdiff3",
    "rerere.enabled": "true",
    "rerere.autoUpdate": "false",
}

_LOCAL_CONFIG = {
    "core.autocrlf": "false",
    "core.safecrlf": "false",
    "core.fileMode": "false",
    "gc.auto": "0",
    "user.name": NAME,
    "user.email": EMAIL,
}

_ATTRIBUTES = "* -text -eol -ident -filter\n"
_EXCLUDE = "__pycache__/\n*.pyc\n*.so\n*.orig\n*.rej\n*~\n"


def isolated_env(extra: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of every git process: no user or system configuration, fixed identity, locale and time
    zone.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env |= {
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_EDITOR": "true",
        "GIT_AUTHOR_NAME": NAME,
        "GIT_AUTHOR_EMAIL": EMAIL,
        "GIT_COMMITTER_NAME": NAME,
        "GIT_COMMITTER_EMAIL": EMAIL,
        "LC_ALL": "C",
        "TZ": "UTC",
    }
    return env | (extra or {})


def way_out(said: str) -> str | None:
    """What to do about a failure of git's, where that is plain."""
    if re.search("no space left|out of disk ?space", said, re.IGNORECASE):
        return "the disk is full: ./sglang.sh clean, or name another folder in SGLANG_FORK_HOME"
    return None


class Git:
    """One repository or work tree. ``index`` names a private index file for plumbing that must not touch the
    real one.
    """

    def __init__(self, path: Path, index: Path | None = None) -> None:
        self.path = path
        self._env = {"GIT_INDEX_FILE": str(index)} if index else {}

    def run(
        self, *args: str, input: bytes | None = None, check: bool = True, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run ``git ARGS`` in the work tree; a failure is a ForkError that quotes git unless ``check`` is
        off.
        """
        config = [word for key, value in _CONFIG.items() for word in ("-c", f"{key}={value}")]
        try:
            done = subprocess.run(
                ["git", "-C", str(self.path), *config, *args],
                input=input,
                stdin=subprocess.DEVNULL if input is None else None,
                capture_output=True,
                env=isolated_env(self._env | (env or {})),
            )
        except FileNotFoundError:
            raise ForkError("git is not installed", "install git 2.30 or newer") from None
        if check and done.returncode:
            said = (done.stderr or done.stdout).decode(errors="replace").strip()
            raise ForkError(f"git {args[0]} failed in {self.path}:\n{said}", way_out(said), code=1)
        return done

    def out(self, *args: str, input: bytes | None = None, env: dict[str, str] | None = None) -> str:
        """Standard output of a git command that must succeed, without its last newline."""
        return self.run(*args, input=input, env=env).stdout.decode(errors="surrogateescape").rstrip("\n")

    def lines(self, *args: str) -> list[str]:
        """Standard output as lines; empty list for no output."""
        text = self.out(*args)
        return text.split("\n") if text else []

    def nul(self, *args: str) -> list[str]:
        """NUL-separated standard output (of a command given ``-z``)."""
        text = self.run(*args).stdout.decode(errors="surrogateescape")
        return [field for field in text.split("\0") if field]

    def fetch(self, url: str, ref: str) -> None:
        """Fetch one ref without history, the one command that runs with the user's configuration (proxy,
        credentials).
        """
        env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | {"GIT_TERMINAL_PROMPT": "0"}
        command = ["git", "-C", str(self.path), "fetch", "--quiet", "--no-tags", "--depth=1", url, ref]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=env)
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise ForkError(
                f"cannot fetch {ref} from {url}:\n{said}", "check the address, the ref and the network"
            )

    def resolve(self, name: str) -> str | None:
        """The object id that ``name`` stands for, or None."""
        done = self.run("rev-parse", "--quiet", "--verify", name, check=False)
        return done.stdout.decode().strip() if done.returncode == 0 else None

    def show(self, commit: str, path: str) -> bytes | None:
        """A file's bytes in a commit, None where it does not exist."""
        done = self.run("cat-file", "blob", f"{commit}:{path}", check=False)
        return done.stdout if done.returncode == 0 else None

    def commit_tree(
        self, tree: str, message: str, parent: str | None, who: tuple[str, str] = (NAME, EMAIL)
    ) -> str:
        """A commit of fixed identity and date: same tree, message and parent, same id everywhere."""
        fixed = {
            "GIT_AUTHOR_NAME": who[0],
            "GIT_AUTHOR_EMAIL": who[1],
            "GIT_AUTHOR_DATE": EPOCH,
            "GIT_COMMITTER_NAME": who[0],
            "GIT_COMMITTER_EMAIL": who[1],
            "GIT_COMMITTER_DATE": EPOCH,
        }
        parents = ["-p", parent] if parent else []
        return self.out("commit-tree", tree, *parents, "-F", "-", input=message.encode(), env=fixed)


def init(path: Path) -> Git:
    """The repository at ``path``, made when absent, with line endings, attributes and ignores pinned."""
    git, info = Git(path), path / ".git" / "info"
    if not (path / ".git").exists():
        path.mkdir(parents=True, exist_ok=True)
        git.run("init", "--quiet", "--initial-branch=mega")
    pinned = {"attributes": _ATTRIBUTES, "exclude": _EXCLUDE}
    local = _read(path / ".git" / "config")
    if any(f"{key.partition('.')[2]} = {value}\n" not in local for key, value in _LOCAL_CONFIG.items()):
        for key, value in _LOCAL_CONFIG.items():
            git.run("config", key, value)
    info.mkdir(exist_ok=True)
    for name, text in pinned.items():
        if _read(info / name) != text:
            (info / name).write_text(text)
    return git


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
