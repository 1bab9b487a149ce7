# SPDX-License-Identifier: Apache-2.0
"""Command-line front end: finds the command's module, parses its arguments, turns errors into exit codes."""

from __future__ import annotations

import argparse
import errno
import importlib
import pkgutil
import sys
from types import ModuleType
from typing import NoReturn

from sglang_fork import commands, preset
from sglang_fork.errors import ForkError
from sglang_fork.paths import ROOT, state_dir
from sglang_fork.suggest import near

_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


def command_names() -> list[str]:
    """All command names, sorted; a module ``foo_bar`` is the command ``foo-bar``."""
    return sorted(m.name.replace("_", "-") for m in pkgutil.iter_modules(commands.__path__))


def load_command(name: str) -> ModuleType:
    """The module of a command that ``command_names`` lists."""
    return importlib.import_module(f"sglang_fork.commands.{name.replace('-', '_')}")


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ForkErrors with near matches, never a usage dump."""

    def error(self, message: str) -> NoReturn:
        raise ForkError(message, f"see {self.prog} --help")

    def parse(self, argv: list[str]) -> argparse.Namespace:
        args, rest = self.parse_known_args(argv)
        if rest:
            flags = [option for action in self._actions for option in action.option_strings]
            hint = near(rest[0], flags) if rest[0].startswith("-") else f"see {self.prog} --help"
            raise ForkError(f"{self.prog}: unknown argument {rest[0]}", hint)
        return args


def parser_of(name: str) -> Parser:
    """The parser of a command, or of a preset's launch."""
    module: ModuleType
    if name in command_names():
        module = load_command(name)
    else:
        from sglang_fork.launch import start as module
    parser = Parser(prog=f"sglang.sh {name}", description=module.HELP, allow_abbrev=False)
    module.add_arguments(parser)
    return parser


def options_of(name: str) -> list[str]:
    """The options of a command or of a preset's launch, those of its actions included."""
    parsers: list[argparse.ArgumentParser] = [parser_of(name)]
    options: list[str] = []
    for parser in parsers:
        for action in parser._actions:
            options += action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                options += action.choices
                parsers += action.choices.values()
    return sorted({option for option in options if not option.startswith("-") or option.startswith("--")})


def run_command(name: str, argv: list[str]) -> int:
    return int(load_command(name).run(parser_of(name).parse(argv)))


def run_preset(name: str, argv: list[str]) -> int:
    """Launch a preset. Words after ``--`` belong to the server."""
    from sglang_fork.launch import start

    cut = argv.index("--") if "--" in argv else len(argv)
    return start.run(name, parser_of(name).parse(argv[:cut]), argv[cut + 1 :])


def print_help() -> int:
    print("usage: ./sglang.sh COMMAND [ARGUMENTS] | --version\n\ncommands:")
    for name in command_names():
        print(f"  {name:16} {load_command(name).HELP}")
    print("\nor ./sglang.sh PRESET [--dry-run] [--tiny] [--on MACHINE] [-- SERVER ARGUMENTS] with one of:")
    for name in preset.names():
        print(f"  {name}")
    return 0


def print_version() -> int:
    """The fork's version, and what each built profile holds."""
    from sglang_fork.build.stamp import read_stamp
    from sglang_fork.env import PROFILES
    from sglang_fork.stack.series import read_series

    series = read_series(ROOT / "patches")
    print(f"sglang-mega {series.version}+mega.{len(series.names)}")
    for stamp in filter(None, map(read_stamp, PROFILES)):
        print(f"built: profile {stamp.profile}, sglang {stamp.fork}, {stamp.python} on {stamp.machine}")
    return 0


def dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("help", "-h", "--help"):
        return print_help()
    if argv[0] == "--version":
        return print_version()
    name, rest = argv[0], argv[1:]
    if name in command_names():
        return run_command(name, rest)
    if (found := preset.find(name)) is not None:
        return run_preset(found, rest)
    raise ForkError(f"unknown command or preset {name}", near(name, [*command_names(), *preset.names()]))


def main(argv: list[str]) -> int:
    try:
        return dispatch(argv)
    except ForkError as error:
        print(f"sglang.sh: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("sglang.sh: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 141
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        hint = f"make room in {state_dir()} (./sglang.sh clean), or name another folder in SGLANG_FORK_HOME"
        print(f"sglang.sh: {error}\n  {hint}", file=sys.stderr)
        return 1
