# SPDX-License-Identifier: Apache-2.0
"""Runs SGLang's server with an API key that is on no command line and in no log.

Started by the built environment's Python as a file, in place of ``-m sglang.launch_server``. The key comes
from the file that ``SGLANG_API_KEY_FILE`` names or from ``SGLANG_API_KEY``; both are taken out of the
environment, so the server's own processes do not inherit them. SGLang logs its resolved arguments at start:
a record that holds the key is written with ``***`` in its place.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

KEY, KEY_FILE = "SGLANG_API_KEY", "SGLANG_API_KEY_FILE"


def take_key(environ: MutableMapping[str, str]) -> str:
    """The key, removed from the environment. ``SystemExit`` names what is missing or empty."""
    path, key = environ.pop(KEY_FILE, None), environ.pop(KEY, None)
    if path:
        try:
            key = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise SystemExit(f"cannot read the API key from {path}: {error}") from None
    if not key or not key.strip():
        raise SystemExit(f"no API key: set {KEY_FILE} or {KEY}")
    return key.strip()


def hide(key: str) -> None:
    """Replace the key in every log record that this process makes from now on."""
    make = logging.getLogRecordFactory()

    def make_without_key(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            return record  # the handler reports a record whose arguments do not fit its text
        if key in text:
            record.msg, record.args = text.replace(key, "***"), ()
        return record

    logging.setLogRecordFactory(make_without_key)


def main(argv: list[str]) -> None:
    key = take_key(os.environ)
    hide(key)
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    server_args = prepare_server_args(argv)
    server_args.api_key = key
    try:
        run_server(server_args)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
