# SPDX-License-Identifier: Apache-2.0
"""A real SGLang server on the CPU, started and stopped by the launcher, asked by real clients.

One server for the whole file: the tiny Qwen3.5 in FP32, with an API key from a file.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from front_door import sglang

from sglang_fork.launch.port import unused
from sglang_fork.paths import ROOT, state_dir

pytestmark = pytest.mark.e2e

NAME = f"e2e-http-{os.getpid()}"
KEY = "k3y-of-the-e2e-test"
QUESTIONS = ROOT / "test" / "unit" / "evaluation" / "questions.jsonl"
PROMPTS = ["The quick brown fox", "1 2 3 4 5", "def main():", "Once upon a time there was", "a", "SGLang is"]


@dataclass(frozen=True)
class Server:
    url: str
    model: str
    key_file: str
    said: str

    @property
    def log(self) -> str:
        return (state_dir() / "run" / NAME / "log").read_text()

    def client(self) -> Any:
        from openai import OpenAI

        return OpenAI(base_url=f"{self.url}/v1", api_key=KEY, timeout=300, max_retries=0)

    def complete(self, prompt: str, tokens: int = 12, **settings: Any) -> Any:
        return self.client().completions.create(
            model=self.model, prompt=prompt, max_tokens=tokens, temperature=0, **settings
        )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    key = tmp_path_factory.mktemp("key") / "key"
    key.write_text(KEY)
    key.chmod(0o600)
    port = unused()
    words = ["Qwen3.5-35B-A3B", "--tiny", "--detach", "--name", NAME, "--timeout", "500", "--"]
    started = sglang(
        *words,
        "--dtype",
        "float32",
        "--served-model-name",
        "tiny",
        PORT=str(port),
        SGLANG_API_KEY_FILE=str(key),
    )
    assert started.returncode == 0, started.stderr[-4000:]
    try:
        yield Server(f"http://127.0.0.1:{port}", "tiny", str(key), started.stdout + started.stderr)
    finally:
        sglang("stop", NAME)


def test_a_completion_and_its_stream_agree(server: Server) -> None:
    whole = server.complete(PROMPTS[0])
    assert whole.usage.completion_tokens == 12 and whole.choices[0].finish_reason == "length"
    chunks = list(server.complete(PROMPTS[0], stream=True))
    assert len(chunks) > 2, "it came in pieces"
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text


def test_a_chat_and_its_stream_agree(server: Server) -> None:
    ask: dict[str, Any] = {
        "model": server.model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 10,
        "temperature": 0,
    }
    chat = server.client().chat.completions
    whole = chat.create(**ask)
    assert whole.usage.completion_tokens == 10
    pieces = [c.choices[0].delta.content or "" for c in chat.create(**ask, stream=True) if c.choices]
    assert "".join(pieces) == whole.choices[0].message.content


def test_requests_at_once_answer_as_alone(server: Server) -> None:
    alone = [server.complete(prompt).choices[0].text for prompt in PROMPTS]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        together = [answer.choices[0].text for answer in pool.map(server.complete, PROMPTS)]
    assert together == alone
    assert len(set(alone)) > 1, "the model must depend on its prompt, or this test says nothing"


def test_bad_requests_are_refused_and_the_server_lives(server: Server) -> None:
    from openai import BadRequestError

    with pytest.raises(BadRequestError):
        server.complete(PROMPTS[0], tokens=-1)
    with pytest.raises(BadRequestError):
        server.complete("word " * 20000)
    assert server.complete(PROMPTS[0]).choices[0].text


def test_bench_serving_runs_against_it(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "bench.jsonl"
    tokenizer = json.loads(sglang("status", "--json", SGLANG_API_KEY_FILE=server.key_file).stdout)[0]["model"]
    command = [sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang-oai"]
    command += ["--base-url", server.url, "--model", server.model, "--tokenizer", tokenizer]
    command += ["--dataset-name", "random-ids", "--num-prompts", "6", "--max-concurrency", "3"]
    command += ["--random-input-len", "24", "--random-output-len", "8", "--random-range-ratio", "1"]
    command += ["--warmup-requests", "0", "--output-file", str(out)]
    done = subprocess.run(
        command,
        env={**os.environ, "OPENAI_API_KEY": KEY},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    measured = json.loads(out.read_text().splitlines()[-1])
    assert measured["completed"] == 6 and measured["total_output_tokens"] == 48


def test_the_serving_benchmark_measures_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_fork.bench import load, traffic

    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    sessions = traffic.synthetic(count=2, input_len=8, output_len=4, vocab=400, seed=1)
    answers = asyncio.run(load.drive(server.url, sessions, 2))
    assert [answer.error for answer in answers] == ["", ""]
    for answer in answers:
        assert answer.tokens == 4 and answer.itl_s and 0 < answer.ttft_s < answer.latency_s


def test_eval_asks_it_and_its_decode_is_its_prefill(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server stands for the megakernel on and for off: in FP32 it answers a question twice alike."""
    from sglang_fork.cli import main

    monkeypatch.setenv("SGLANG_API_KEY", KEY)
    words = ["eval", "Qwen3.5-35B-A3B", "--url", server.url, "--off-url", server.url, "--out", str(tmp_path)]
    words += ["--gsm8k", str(QUESTIONS), "--questions", "1", "--tokens", "4"]
    words += ["--passkeys", "1", "--filler", "1", "--kl", "1", "--kl-tokens", "6"]
    assert main(words) == 0
    result = json.loads((tmp_path / "eval.json").read_text())
    for figures in result["servers"].values():
        assert (figures["gsm8k"]["of"], figures["passkey"]["of"]) == (1, 1)
        divergence = figures["kl_decode_from_prefill"]
        assert divergence["steps"] == 5 and divergence["max"] < 1e-6
    assert result["servers"].keys() == {"on", "off"}
    for task in ("gsm8k", "passkey"):
        paired = result["mcnemar"][task]
        assert paired["both"] + paired["neither"] == 1 and paired["p_value"] == 1.0
    assert "exact McNemar test" in capsys.readouterr().out


def test_the_key_is_asked_for_and_is_nowhere(server: Server) -> None:
    request = urllib.request.Request(f"{server.url}/v1/models")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=30)
    assert refused.value.code == 401
    assert "'api_key': " in server.log and "***" in server.log, "SGLang logs its arguments, the key hidden"
    assert KEY not in server.log and KEY not in server.said
    record = (state_dir() / "run" / NAME / "pid.json").read_text()
    assert KEY not in record
    pid = json.loads(record)["identity"]["pid"]
    assert KEY not in Path(f"/proc/{pid}/cmdline").read_text()


def test_status_and_what_the_launcher_said(server: Server) -> None:
    assert f"{NAME}  serving" in sglang("status", SGLANG_API_KEY_FILE=server.key_file).stdout
    assert re.search(r"megakernel: stock\n  - no GPU is visible", server.said)
    assert "tiny: --device cpu" in server.said


def test_stop_drains(server: Server) -> None:
    """Last in this file: a request in flight gets its whole answer, then the server ends."""
    with ThreadPoolExecutor(1) as pool:
        flight = pool.submit(server.complete, PROMPTS[3], 64, stream=True)
        chunks = flight.result()
        first = next(iter(chunks))
        stopping = pool.submit(sglang, "stop", NAME)
        text = "".join(c.choices[0].text for c in [first, *chunks] if c.choices)
        stopped = stopping.result()
    assert text and "drained and ended" in stopped.stdout, stopped.stdout + stopped.stderr
    assert "Draining requests" in server.log
    assert NAME not in sglang("status").stdout
