# SPDX-License-Identifier: Apache-2.0
"""``eval`` against stand-in servers over HTTP: what is sent, what is judged, what is written and refused."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sglang_fork.cli import main
from sglang_fork.evaluation import serving

QUESTIONS = Path(__file__).with_name("questions.jsonl")
ANSWERS = {"crates": "42", "beads": "1,300", "pens": "7.50", "degrees": "-5"}


class Model:
    """A stand-in: knows answers and keys; its decode differs from its prefill by ``drift``."""

    def __init__(self, wrong: set[str] = frozenset(), drift: float = 0.0) -> None:
        self.wrong, self.drift = wrong, drift
        self.flushed, self.keys = 0, []

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("return_logprob"):
            return {"text": "", "meta_info": self.logprobs(body)}
        text = body["text"]
        if "pass key" in text:
            key = re.search(r"The pass key is (\d+)", text).group(1)
            return {"text": f" {key}.", "meta_info": {}}
        asked = text.rpartition("Question:")[2]
        word = next(word for word in ANSWERS if word in asked)
        return {"text": " 0" if word in self.wrong else f" so\n#### {ANSWERS[word]}", "meta_info": {}}

    def logprobs(self, body: dict[str, Any]) -> dict[str, Any]:
        tokens, start = body["sampling_params"]["max_new_tokens"], body["logprob_start_len"]
        if "input_ids" in body:
            steps = len(body["input_ids"]) - start
            return {
                "input_top_logprobs": [None, *([[-0.1, 7, None], [-2.5, 8, None]] for _ in range(steps - 1))]
            }
        step = [[-0.1 - self.drift, 7, None], [-2.5, 8, None]]
        return {
            "input_token_logprobs": [[None, 1, None], [-1.0, 2, None], [-1.0, 3, None]],
            "output_token_logprobs": [[-0.1, 7, None]] * tokens,
            "output_top_logprobs": [step] * tokens,
        }


@contextmanager
def served(model: Model) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            model.keys.append(self.headers.get("Authorization"))
            if self.path.startswith("/flush_cache?"):
                model.flushed += 1
                answer: dict[str, Any] = {}
            else:
                answer = model.generate(json.loads(body))
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (serving.URL, serving.LOGS, serving.MODEL_PATH, "SGLANG_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def evaluate(*words: str) -> int:
    return main(
        ["eval", "GLM-5.3-NVFP4", "--gsm8k", str(QUESTIONS), "--passkeys", "3", "--filler", "2", *words]
    )


def test_one_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Model(wrong={"pens"})
    with served(model) as url:
        assert evaluate("--url", url, "--kl", "2", "--kl-tokens", "5", "--out", str(tmp_path)) == 0
    result = json.loads((tmp_path / "eval.json").read_text())
    figures = result["servers"]["server"]
    assert (figures["gsm8k"]["right"], figures["gsm8k"]["of"]) == (3, 4)
    assert (figures["passkey"]["right"], figures["passkey"]["of"]) == (3, 3)
    assert figures["kl_decode_from_prefill"] == {"steps": 8, "mean": 0.0, "p99": 0.0, "max": 0.0}
    assert model.flushed == 2, "the prefill must not read the decode's cache"
    assert "mcnemar" not in result
    assert "3 of 4" in capsys.readouterr().out


def test_on_against_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(Model(wrong={"pens", "beads"}, drift=0.3)) as on, served(Model(wrong={"crates"})) as off:
        assert evaluate("--url", on, "--off-url", off, "--out", str(tmp_path)) == 0
    result = json.loads((tmp_path / "eval.json").read_text())
    gsm8k = result["mcnemar"]["gsm8k"]
    assert gsm8k == {"both": 1, "first_alone": 1, "second_alone": 2, "neither": 0, "p_value": 1.0}
    assert result["servers"]["on"]["kl_decode_from_prefill"]["mean"] > 0.01
    assert result["servers"]["off"]["kl_decode_from_prefill"]["mean"] == 0.0
    assert "on alone 1, off alone 2" in capsys.readouterr().out


def test_variables_name_server_logs_and_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    monkeypatch.setenv("SGLANG_API_KEY", "k")
    monkeypatch.setenv(serving.LOGS, str(tmp_path / "logs"))
    with served(model) as url:
        monkeypatch.setenv(serving.URL, url)
        assert evaluate("--kl", "0") == 0
    assert (tmp_path / "logs" / "eval.json").is_file()
    assert set(model.keys) == {"Bearer k"}


def test_the_megakernel_and_port_of_a_started_server_are_the_evaluations() -> None:
    shell = {"PORT": "1", "HOST": "0.0.0.0", "MEGAKERNEL": "auto", "SLOTS": "moe"}
    assert serving.shell_of(shell, "off") == {"MEGAKERNEL": "off", "SLOTS": "moe"}
    assert serving.shell_of(shell, None) == {"MEGAKERNEL": "auto", "SLOTS": "moe"}


def test_the_model_path_variable_reaches_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def launch(resolution: Any, *_: Any, **__: Any) -> int:
        seen["model"] = resolution.model_path
        raise KeyboardInterrupt

    monkeypatch.setenv(serving.MODEL_PATH, "/models/mine")
    monkeypatch.setattr(serving.start, "launch", launch)
    choice = serving.Choice("Qwen3.5-35B-A3B")
    with pytest.raises(KeyboardInterrupt), serving.started(choice, "on", tmp_path):
        pass
    assert seen == {"model": "/models/mine"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--off-url", "http://x"], "--off-url needs --url"),
        (["--url", "http://x", "--compare"], "--compare starts servers itself"),
        (["--questions", "some"], "neither a number nor all"),
        (["--url", "http://127.0.0.1:9"], "does not answer"),
    ],
)
def test_refusals(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(*words, "--out", str(tmp_path)) in (1, 2)
    assert message in capsys.readouterr().err
