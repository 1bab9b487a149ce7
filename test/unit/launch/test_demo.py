# SPDX-License-Identifier: Apache-2.0
"""``demo`` against a fake server, with the real OpenAI client: what it says, and that nothing stays."""

from __future__ import annotations

import random
import re
from typing import Any


def test_it_answers_says_what_ran_and_stops(machine: Any) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    words = [f"w{random.Random(seed).randrange(1 << 30)}" for _ in range(3)]
    done = machine.run("demo", "--prompt", " ".join(words), "--tokens", "7", HOST="0.0.0.0")
    assert done.returncode == 0, done.stderr
    assert f"text    {' ' + ' '.join(reversed(words))!r}" in done.stdout
    assert re.search(r"^speed   7 tokens in \d", done.stdout, re.MULTILINE)
    assert "path    megakernel: stock, through SGLang's own scheduler" in done.stdout
    assert re.search(r"^note    .*weights are random", done.stdout, re.MULTILINE), done.stdout
    assert "serves http://127.0.0.1:" in done.stdout, "HOST of the shell is for real servers"
    assert f":{machine.port}/" not in done.stdout, "a free port, not the one that real servers use"
    assert machine.log("demo").rstrip().endswith("drained") and machine.record("demo") == {}


def test_a_server_that_dies_is_one_error_and_leaves_nothing(machine: Any) -> None:
    done = machine.run("demo", FAKE_SERVER="crash")
    assert done.returncode == 1 and done.stderr.count("sglang.sh: ") == 1
    assert "exit code 7" in done.stderr and machine.record("demo") == {}


def test_a_number_of_tokens_that_is_none(machine: Any) -> None:
    done = machine.run("demo", "--tokens", "0")
    assert done.returncode == 2 and "--tokens 0 is not a positive number" in done.stderr
    assert not (machine.state / "run").exists()
