# SPDX-License-Identifier: Apache-2.0
"""The key: taken out of the environment, put on the server's arguments, and never logged."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_fork.launch import keyed_server

# A stand-in for the package that the built environment has.
SGLANG = {
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/plugins.py": "def load_plugins(): pass",
    "sglang/srt/utils.py": "def kill_process_tree(pid, include_parent): print('children ended')",
    "sglang/srt/server_args.py": """
class Arguments:
    api_key = None
def prepare_server_args(argv):
    args = Arguments()
    args.argv = argv
    return args
""",
    "sglang/launch_server.py": """
import json, logging, os, subprocess, sys
def run_server(args):
    logging.basicConfig(force=True, level=logging.INFO, stream=sys.stdout, format="%(message)s")
    logging.getLogger("engine").info("server_args=%s", {"api_key": args.api_key})
    logging.getLogger("engine").info(f"server_args={{'api_key': {args.api_key!r}}}")
    show = [sys.executable, "-c", "import os; print(dict(os.environ))"]
    child = subprocess.run(show, capture_output=True, text=True)
    with open(args.argv[0], "w") as out:
        json.dump({"key": args.api_key, "argv": args.argv, "child": child.stdout}, out)
""",
}


@pytest.mark.parametrize("way", ["environment", "file"])
def test_the_server_gets_the_key_and_nothing_else_does(way: str, tmp_path: Path) -> None:
    for name, text in SGLANG.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    key = tmp_path / "key"
    key.write_text("s3cr3t\n")
    shell = {"SGLANG_API_KEY": "s3cr3t"} if way == "environment" else {"SGLANG_API_KEY_FILE": str(key)}
    result = tmp_path / "result.json"
    done = subprocess.run(
        [sys.executable, keyed_server.__file__, str(result), "--port", "1"],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), **shell},
        capture_output=True,
        text=True,
        check=True,
    )
    got = json.loads(result.read_text())
    assert got["key"] == "s3cr3t" and got["argv"][1:] == ["--port", "1"]
    assert "SGLANG_API_KEY" not in got["child"]
    assert "s3cr3t" not in done.stdout + done.stderr
    assert done.stdout.count("'api_key': ") == 2 and done.stdout.count("***") == 2
    assert "children ended" in done.stdout


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({}, "no API key"),
        ({"SGLANG_API_KEY": " "}, "no API key"),
        ({"SGLANG_API_KEY_FILE": "/no/key"}, "cannot read"),
    ],
)
def test_without_a_key_it_does_not_start(environ: dict[str, str], says: str) -> None:
    with pytest.raises(SystemExit, match=says):
        keyed_server.take_key(dict(environ))


def test_a_record_that_cannot_be_formatted_is_left_to_the_handler() -> None:
    before = logging.getLogRecordFactory()
    try:
        keyed_server.hide("s3cr3t")
        record = logging.getLogRecordFactory()("n", logging.INFO, "f", 1, "%d %d", ("one",), None)
        assert record.args == ("one",)
    finally:
        logging.setLogRecordFactory(before)
