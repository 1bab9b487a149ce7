# SPDX-License-Identifier: Apache-2.0
"""``./sglang.sh completion``: a bash script that completes commands, presets, runs and options.

``source <(./sglang.sh completion)`` in ``~/.bashrc``. The words are written into the script when it is made,
so that completing starts no Python; only run names are looked up, in the state folder.
"""

from __future__ import annotations

import argparse
import shlex

from sglang_fork import preset
from sglang_fork.paths import state_dir

HELP = "print the bash completion script: source <(./sglang.sh completion)"

OF_RUNS = ("logs", "stop")
OF_PRESETS = ("show",)

SCRIPT = """\
# bash completion of sglang.sh; made by ./sglang.sh completion
_sglang_fork() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} first=${{COMP_WORDS[1]:-}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
  local words
  if [ "$COMP_CWORD" -eq 1 ]; then
    words={first_words}
  elif [ "$previous" = --on ]; then
    case $first in
{machines}
    esac
  else
    case $first in
{options}
    esac
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}}
complete -F _sglang_fork sglang.sh ./sglang.sh
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    return


def run(args: argparse.Namespace) -> int:
    print(script(), end="")
    return 0


def script() -> str:
    """The completion script of this checkout's commands and presets."""
    from sglang_fork import cli

    commands, presets = cli.command_names(), preset.names()
    options = {name: cli.options_of(name) for name in commands}
    runs = f"$(cd {shlex.quote(str(state_dir() / 'run'))} 2>/dev/null && ls)"
    cases = []
    for name in commands:
        words = " ".join(options[name])
        if name in OF_RUNS:
            words += f" {runs}"
        if name in OF_PRESETS:
            words += " " + " ".join(presets)
        cases.append(f'    {name}) words="{words}" ;;')
    launch = " ".join(cli.options_of(presets[0]))
    cases.append(f'    {"|".join(presets)}) words="{launch} --" ;;')
    machines: dict[str, list[str]] = {}
    for name in presets:
        machines.setdefault(" ".join(sorted(preset.load(name).machines)), []).append(name)
    of_machine = [f'    {"|".join(names)}) words="{words}" ;;' for words, names in machines.items()]
    return SCRIPT.format(
        first_words=shlex.quote(" ".join(["help", *commands, *presets])),
        options="\n".join(cases),
        machines="\n".join(of_machine),
    )
