# SPDX-License-Identifier: Apache-2.0
"""A bar on a terminal, counted lines elsewhere, each line once; without tqdm counted lines everywhere."""

import contextlib
import io
import os
import re
import subprocess
import sys
import termios

import pytest

from sglang_fork import cli
from sglang_fork.bench import progress, stats
from sglang_fork.commands import bench

SAID = ("stock: 12 us", "mega: 7 us")
COUNTED = [*SAID, "case 1 of 3 after some s", "case 3 of 3 after some s"]


def untimed(text):
    return re.sub(r"after \d+ s", "after some s", text).splitlines()


def measured(out):
    with progress.Progress(3, "case", out) as counted:
        for line in SAID:
            counted.say(line)
        counted.advance()
        counted.reach(3)
        counted.reach(2)


def on_terminal():
    """What the measurement writes to a terminal of 80 columns."""
    ours, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, 80))
    with open(terminal, "w") as out:
        assert out.isatty()
        measured(out)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed and all is read
        while more := os.read(ours, 65536):
            shown += more
    os.close(ours)
    return shown.decode()


def test_elsewhere_each_part_is_a_line_of_its_own():
    out = io.StringIO()
    measured(out)
    assert untimed(out.getvalue()) == COUNTED


@pytest.mark.skipif(progress.library() is None, reason="tqdm is neither here nor in a built environment")
def test_a_terminal_has_a_bar_and_each_line_once():
    shown = on_terminal()
    assert re.search(r"case: +0%\|.*\| 0/3", shown), "the bar is drawn"
    assert all(shown.count(line) == 1 for line in SAID) and "of 3 after" not in shown
    # Each line starts where the bar was cleared, and the last thing that is written clears it again.
    for line in SAID:
        assert shown[: shown.index(line)].endswith(("\r", "\x1b[K", "\x1b[A"))
    assert not shown.split("\r")[-1].strip()


def test_without_tqdm_a_terminal_gets_the_lines(monkeypatch):
    monkeypatch.setattr(progress, "library", lambda: None)
    assert untimed(on_terminal()) == COUNTED


def test_the_tool_runs_on_the_standard_library(tmp_path):
    """No site-packages and no built environment: tqdm is not found, which is no error, and sys.path stays."""
    code = "import sys; before = list(sys.path); from sglang_fork.bench import progress; "
    code += "assert progress.library() is None and sys.path == before"
    path = os.pathsep.join(p for p in sys.path if "site-packages" not in p and p)
    environ = {"PYTHONPATH": path, "SGLANG_FORK_HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-S", "-c", code], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_command_counts_its_cases(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "driver_present", lambda: False)
    monkeypatch.setattr(stats, "RESAMPLES", 50)
    words = ["bench", "step", "Kimi-K3", "--stock-only", "--out", str(tmp_path / "step.jsonl")]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    counted = re.findall(r"^case (\d+) of (\d+) after \d+ s$", shown, re.M)
    total = int(counted[-1][1])
    assert [int(n) for n, _ in counted] == list(range(1, total + 1)) and total > 1
