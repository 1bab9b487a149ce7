# SPDX-License-Identifier: Apache-2.0
"""A server with the megakernel on, through the launcher: the kernels run in the CPU emulator."""

from __future__ import annotations

import json
import os
import urllib.request

import pytest
from front_door import sglang

from sglang_fork.launch.port import unused
from sglang_fork.paths import state_dir

pytestmark = pytest.mark.e2e

NAME = f"e2e-megakernel-{os.getpid()}"


def test_on_serves_and_every_rank_says_active() -> None:
    port = unused()
    words = ["Qwen3.5-35B-A3B", "--tiny", "--detach", "--name", NAME, "--timeout", "500"]
    shell = {"PORT": str(port), "MEGAKERNEL": "on", "SGLANG_MEGAKERNEL_EMULATE": "1"}
    started = sglang(*words, **shell)
    assert started.returncode == 0, started.stderr[-4000:]
    try:
        assert "megakernel: on (" in started.stdout
        body = json.dumps({"model": "m", "prompt": "Hello there", "max_tokens": 4, "temperature": 0}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 4
        assert "NVIDIA megakernel: active (" in (state_dir() / "run" / NAME / "log").read_text()
        assert "megakernel: on" in sglang("status").stdout
    finally:
        sglang("stop", NAME)


def test_on_is_refused_with_the_reasons_where_no_gpu_is() -> None:
    shell = {"MEGAKERNEL": "on", "PORT": str(unused())}
    done = sglang("Qwen3.5-35B-A3B", "--tiny", "--detach", "--name", NAME, **shell)
    assert done.returncode == 2
    assert "cannot be served" in done.stderr and "no GPU is visible" in done.stderr
