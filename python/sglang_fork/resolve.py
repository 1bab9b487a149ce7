# SPDX-License-Identifier: Apache-2.0
"""From a preset, the shell and the command line to one server command, with where every value comes from.

The command line beats the shell, the shell beats the preset. Nothing here looks at the machine: that is
``launch.preflight``.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sglang_fork.errors import ForkError
from sglang_fork.preset import MODES, Preset, Setting

FLAG = "--enable-nvidia-megakernel"
SLOTS = "SGLANG_NVIDIA_MEGAKERNEL_SLOTS"
KEY, KEY_FILE = "SGLANG_API_KEY", "SGLANG_API_KEY_FILE"
COMMAND_LINE = "command line"

# Every spelling that 0.5.23 accepts for the flags that presets and the shell set.
ALIASES = {
    "--tp": "--tp-size",
    "--tensor-parallel-size": "--tp-size",
    "--dp": "--dp-size",
    "--data-parallel-size": "--dp-size",
    "--attention-data-parallel-size": "--attn-dp-size",
    "--ep": "--ep-size",
    "--expert-parallel-size": "--ep-size",
    "--model": "--model-path",
    "--nccl-init-addr": "--dist-init-addr",
    "--speculative-draft-model": "--speculative-draft-model-path",
}
SECRET_FLAGS = ("--api-key", "--admin-api-key", "--ssl-keyfile-password")

# A shell expression in the printed command stands for what only the caller's node knows.
PER_NODE = {
    "--node-rank": ("NODE_RANK", "0 on the first node, 1 on the second"),
    "--dist-init-addr": ("DIST_INIT_ADDR", "HOST:PORT of the first node"),
}


@dataclass(frozen=True)
class Argument:
    """One flag of the server command: its words after the flag, and where they come from."""

    flag: str
    words: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Variable:
    """One environment variable of the server process."""

    name: str
    value: str
    source: str


@dataclass(frozen=True)
class ApiKey:
    """Where the key comes from; the key itself is never part of a resolution."""

    name: str
    path: str = ""


@dataclass(frozen=True)
class Resolution:
    """A server command. ``missing`` are shell variables that this node must still name."""

    preset: Preset
    arguments: tuple[Argument, ...]
    variables: tuple[Variable, ...]
    mode: str
    mode_source: str
    slots: Variable | None
    key: ApiKey | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = field(default=())

    def argv(self) -> list[str]:
        """The server's arguments, without the Python and the module that run them."""
        return [word for argument in self.arguments for word in (argument.flag, *argument.words)]

    def value(self, flag: str, default: str = "") -> str:
        """The first word of a flag, or the default where the command does not have it."""
        return next((a.words[0] for a in self.arguments if a.flag == flag and a.words), default)

    def has(self, flag: str) -> bool:
        return any(a.flag == flag for a in self.arguments)

    @property
    def host(self) -> str:
        return self.value("--host", "127.0.0.1")

    @property
    def port(self) -> int:
        return int(self.value("--port", "30000"))

    @property
    def model_path(self) -> str:
        return self.value("--model-path")

    @property
    def node_rank(self) -> int:
        return int(self.value("--node-rank", "0"))

    def with_megakernel(self, on: bool) -> Resolution:
        """This command with the megakernel switched on (flag and slot list) or left out."""
        if not on:
            kept = tuple(a for a in self.arguments if a.flag != FLAG)
            return replace(self, arguments=kept, variables=self.variables)
        variables = self.variables + ((self.slots,) if self.slots else ())
        return replace(
            self.with_megakernel(False),
            arguments=(*self.with_megakernel(False).arguments, Argument(FLAG, (), self.mode_source)),
            variables=variables,
        )


def resolve(preset: Preset, environ: Mapping[str, str], extra: Sequence[str] = ()) -> Resolution:
    """Resolve one launch. ``extra`` are the words after ``--``. Bad input raises a ForkError."""
    arguments = _preset_arguments(preset, environ)
    _apply_shell(arguments, preset, environ)
    warnings = _apply_command_line(arguments, extra)
    mode, mode_source = _mode(preset, environ, arguments)
    slots = _slots(preset, environ)
    key = _api_key(environ)
    missing = tuple(PER_NODE[flag][0] for flag, a in arguments.items() if a.words == ("",))
    resolution = Resolution(
        preset=preset,
        arguments=tuple(a for a in arguments.values() if a.flag != FLAG),
        variables=tuple(_variables(preset, environ)),
        mode=mode,
        mode_source=mode_source,
        slots=slots,
        key=key,
        warnings=tuple(warnings),
        notes=(preset.model.note,) if preset.model.note else (),
        missing=missing,
    )
    _check_port(resolution.value("--port", "30000"))
    if not is_loopback(resolution.host) and key is None:
        raise ForkError(
            f"refusing to listen on {resolution.host} without an API key",
            f"name a file that holds one in {KEY_FILE}, or set {KEY}; or leave HOST at 127.0.0.1",
        )
    return resolution


def is_loopback(host: str) -> bool:
    """Whether a listening address is reachable from this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _preset_arguments(preset: Preset, environ: Mapping[str, str]) -> dict[str, Argument]:
    settings: dict[str, Setting] = {"model-path": Setting(preset.model.path, preset.model.source)}
    if preset.model.revision and preset.model.variable not in environ:
        settings["revision"] = Setting(preset.model.revision, preset.model.source)
    settings |= preset.flags
    disabled = environ.get("DISABLE_MTP", "0")
    if disabled not in ("0", "1", ""):
        raise ForkError(f"DISABLE_MTP is {disabled!r}", "set it to 1, or leave it unset")
    if disabled != "1":
        settings |= preset.draft
    if (hardware := preset.hardware).nodes > 1:
        settings["nnodes"] = Setting(hardware.nodes, hardware.source)
        settings["node-rank"] = settings["dist-init-addr"] = Setting("", hardware.source)
    arguments = {}
    for name, setting in settings.items():
        if setting.value is False:
            continue
        arguments[f"--{name}"] = Argument(f"--{name}", tuple(setting.words()), setting.source)
    return arguments


def _apply_shell(arguments: dict[str, Argument], preset: Preset, environ: Mapping[str, str]) -> None:
    names = {
        preset.model.variable: "--model-path",
        "CONTEXT_LENGTH": "--context-length",
        "HOST": "--host",
        "PORT": "--port",
    }
    if preset.hardware.nodes > 1:
        names |= {"NODE_RANK": "--node-rank", "DIST_INIT_ADDR": "--dist-init-addr"}
    for name, flag in names.items():
        value = environ.get(name)
        if value:
            arguments[flag] = Argument(flag, (_checked(name, value, preset),), f"shell: {name}")


def _checked(name: str, value: str, preset: Preset) -> str:
    if name == "CONTEXT_LENGTH":
        number = int(value[:-1]) * 1024 if value[:-1].isdigit() and value[-1] in "kK" else value
        if not str(number).isdigit() or int(number) < 1:
            raise ForkError(f"CONTEXT_LENGTH is {value!r}", "a number of tokens, such as 32768 or 32k")
        return str(number)
    if name == "PORT":
        _check_port(value)
    if name == "NODE_RANK" and value not in map(str, range(preset.hardware.nodes)):
        raise ForkError(f"NODE_RANK is {value!r}", f"0 to {preset.hardware.nodes - 1} for {preset.name}")
    if name == "DIST_INIT_ADDR" and not value.rpartition(":")[2].isdigit():
        raise ForkError(f"DIST_INIT_ADDR is {value!r}", "HOST:PORT of the first node")
    return value


def _check_port(value: str) -> None:
    if not value.isdigit() or not 1 <= int(value) <= 65535:
        raise ForkError(f"port {value!r} is not a port", "1 to 65535, in PORT or after -- as --port")


def _apply_command_line(arguments: dict[str, Argument], extra: Sequence[str]) -> list[str]:
    warnings = []
    given: set[str] = set()
    for flag, words in split_arguments(extra):
        if flag in SECRET_FLAGS:
            raise ForkError(
                f"{flag} would show in the process list and in logs",
                f"name a file that holds the key in {KEY_FILE}, or set {KEY}",
            )
        old = arguments.get(flag)
        if flag in given:
            warnings.append(f"{flag} is given twice; the last one, {shlex.join(words) or 'on'}, counts")
        elif old is not None and old.words != words:
            was = shlex.join(old.words) or "on"
            warnings.append(f"{flag} {shlex.join(words)} replaces {was} ({old.source})")
        elif old is not None:
            warnings.append(f"{flag} is already set by the preset ({old.source})")
        given.add(flag)
        arguments[flag] = Argument(flag, words, COMMAND_LINE)
    return warnings


def split_arguments(words: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Group words into (flag, values), with ``--flag=value`` split and aliases spelled canonically."""
    groups: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            flag, equals, value = word.partition("=")
            groups.append((ALIASES.get(flag, flag), [value] if equals else []))
        elif groups:
            groups[-1][1].append(word)
        else:
            raise ForkError(f"unexpected argument {word}", "server arguments after -- start with --flag")
    return [(flag, tuple(values)) for flag, values in groups]


def _mode(preset: Preset, environ: Mapping[str, str], arguments: Mapping[str, Argument]) -> tuple[str, str]:
    if FLAG in arguments:
        return "on", arguments[FLAG].source
    mode = environ.get("MEGAKERNEL", "")
    if not mode:
        return preset.megakernel.mode, preset.megakernel.source
    if mode not in MODES:
        raise ForkError(f"MEGAKERNEL is {mode!r}", f"one of {', '.join(MODES)}")
    return mode, "shell: MEGAKERNEL"


def _slots(preset: Preset, environ: Mapping[str, str]) -> Variable | None:
    """The slot list. An empty one is a list too: every step function then runs its stock code."""
    for name in ("SLOTS", SLOTS):
        if name in environ:
            return Variable(SLOTS, environ[name], f"shell: {name}")
    if preset.megakernel.slots is None:
        return None
    return Variable(SLOTS, preset.megakernel.slots, preset.megakernel.source)


def _variables(preset: Preset, environ: Mapping[str, str]) -> list[Variable]:
    return [
        Variable(name, environ[name], f"shell: {name}")
        if name in environ
        else Variable(name, str(setting.value), setting.source)
        for name, setting in preset.env.items()
    ]


def _api_key(environ: Mapping[str, str]) -> ApiKey | None:
    if path := environ.get(KEY_FILE):
        return ApiKey(KEY_FILE, path)
    if KEY in environ:
        if not environ[KEY].strip():
            raise ForkError(f"{KEY} is empty", "put a key in it, or unset it")
        return ApiKey(KEY)
    return None
