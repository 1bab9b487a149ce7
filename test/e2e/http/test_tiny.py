# SPDX-License-Identifier: Apache-2.0
"""``./sglang.sh PRESET --tiny`` without a GPU: a chat with the draft and without, prompts at the limit.

A family's two servers start and answer at the same time.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from front_door import sglang

from sglang_fork.launch.port import unused
from sglang_fork.paths import state_dir

pytestmark = pytest.mark.e2e

# A preset, and the draft steps that it keeps on a CPU. DSpark drafts a block in one; Kimi K3 has no draft.
PRESETS = {"Qwen3.5-397B-NVFP4": 6, "GLM-5.3-NVFP4": 3, "DeepSeek-V4.1-Flash": 1, "Kimi-K3": None}
CONTEXT = 8192  # the tiny twins'
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "temperature": 0}


@dataclass(frozen=True)
class Server:
    """A running server: its address and what the launcher said."""

    name: str
    url: str
    said: str

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and JSON of an answer, errors included."""
        request = urllib.request.Request(
            f"{self.url}{path}",
            json.dumps({"model": "tiny", **body}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refusal:
            return refusal.code, json.loads(refusal.read() or b"{}")

    def about(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/server_info", timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


def start(preset: str, disabled: bool) -> Server:
    port = unused()
    name = f"e2e-tiny-{os.getpid()}-{preset}{'-plain' if disabled else ''}"
    shell = {"PORT": str(port), **({"DISABLE_MTP": "1"} if disabled else {})}
    done = sglang(preset, "--tiny", "--detach", "--name", name, "--timeout", "500", **shell)
    assert done.returncode == 0, done.stderr[-4000:]
    return Server(name, f"http://127.0.0.1:{port}", done.stdout + done.stderr)


@pytest.fixture(scope="module", params=PRESETS)
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[str, Server, Server]]:
    """A preset, its server with the draft and its server without: one server where there is no draft."""
    with ThreadPoolExecutor(2) as pool:
        drafts = (False,) if PRESETS[request.param] is None else (False, True)
        started_all = [pool.submit(start, request.param, disabled) for disabled in drafts]
        try:
            yield request.param, started_all[0].result(), started_all[-1].result()
        finally:
            for started in started_all:
                if started.exception() is None:
                    sglang("stop", started.result().name)


def test_a_chat_is_answered_with_the_draft_and_without(servers) -> None:
    preset, drafting, plain = servers
    for server in (drafting, plain):
        status, answer = server.post("/v1/chat/completions", HELLO)
        assert status == 200, answer
        assert 1 <= answer["usage"]["completion_tokens"] <= 12
        message = answer["choices"][0]["message"]
        assert message["content"] or message.get("reasoning_content")
    for server in (drafting, plain):
        log = (state_dir() / "run" / server.name / "log").read_text()
        assert "Ignore import error" not in log, "SGLang imported all of its model files"
    assert drafting.about()["speculative_num_steps"] == PRESETS[preset]
    assert plain.about()["speculative_algorithm"] is None


def test_a_prompt_as_long_as_the_context_or_longer_or_empty_is_refused_in_words(servers) -> None:
    _, server, _ = servers
    # With a draft, SGLang counts the slots that it keeps for a verify step.
    refusal = rf"The input \(\d+ tokens\) is longer than the model's context length \({CONTEXT} tokens\)"
    for length in (CONTEXT, CONTEXT + 1):
        status, answer = server.post("/v1/completions", {"prompt": [5] * length, "max_tokens": 1})
        assert status == 400 and re.search(refusal, answer["message"]), answer
    status, answer = server.post("/v1/completions", {"prompt": [], "max_tokens": 1})
    assert (status, answer["message"]) == (400, "Prompt cannot be empty")
    assert server.post("/v1/completions", {"prompt": [5, 6], "max_tokens": 2})[0] == 200, "it still serves"


def test_the_longest_prompt_that_is_admitted_is_answered_and_one_token_more_is_refused(servers) -> None:
    preset, server, _ = servers
    if preset != "Qwen3.5-397B-NVFP4":
        pytest.skip("one family is asked: thousands of tokens in plain torch take the others longer")
    longest = CONTEXT - 7 - 1  # the slots of a verify step come off the context, and one token more
    status, answer = server.post("/v1/completions", {"prompt": [5] * (longest + 1), "max_tokens": 1})
    assert status == 400 and "longer than the model's context length" in answer["message"], answer
    status, answer = server.post("/v1/completions", {"prompt": [5] * longest, "max_tokens": 1})
    assert status == 200, answer
    assert answer["usage"]["prompt_tokens"] == longest and answer["usage"]["completion_tokens"] == 1
