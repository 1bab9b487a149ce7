# SPDX-License-Identifier: Apache-2.0
"""Stands in for SGLang's server in launcher tests. ``FAKE_SERVER`` says how it behaves:

serve    log the stages, answer /health and /v1/models, drain and end on SIGTERM
follower answer /health alone, as the dummy health server of node 1 does
crash    log two lines and end with exit code 7
hang     start, never answer
stubborn serve, and ignore SIGTERM
busy     as stubborn, and log what SGLang does while requests are under way
orphans  serve, with a child process that ignores SIGTERM
keyed    serve, and ask for the key in ``FAKE_KEY`` at /v1/models
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODE = os.environ.get("FAKE_SERVER", "serve")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        allowed = MODE != "keyed" or self.headers.get("Authorization") == f"Bearer {os.environ['FAKE_KEY']}"
        if self.path == "/health":
            self.answer(200, {})
        elif self.path == "/v1/models" and MODE != "follower":
            self.answer(200 if allowed else 401, {"data": [{"id": "fake"}]})
        else:
            self.answer(404, {})

    def do_POST(self) -> None:
        """A completion as a stream: the prompt's words backwards, one a token."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/completions" and asked["stream"] and asked["model"] == "fake"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for word in reversed(asked["prompt"].split()):
            self.event({"choices": [{"index": 0, "text": f" {word}", "finish_reason": None}]})
        count = asked["max_tokens"]
        self.event(
            {"choices": [], "usage": {"completion_tokens": count, "prompt_tokens": 1, "total_tokens": 1}}
        )
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, body: dict) -> None:
        chunk = {"id": "x", "object": "text_completion", "created": 0, "model": "fake", **body}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        return


def value(flag: str, default: str) -> str:
    return sys.argv[sys.argv.index(flag) + 1] if flag in sys.argv else default


def main() -> None:
    print("arguments:", json.dumps(sys.argv[1:]), flush=True)
    print("Load weight begin. avail mem=1.00 GB", flush=True)
    if MODE == "crash":
        print("ValueError: this checkpoint is not for you", flush=True)
        sys.exit(7)
    if MODE == "hang":
        time.sleep(600)
    if MODE == "orphans":
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", code])
        print(f"child {child.pid}", flush=True)
    server = ThreadingHTTPServer((value("--host", "127.0.0.1"), int(value("--port", "30000"))), Handler)

    def on_term(number: int, frame: object) -> None:
        print("SIGTERM received: draining", flush=True)
        if MODE == "busy":
            for left in (3, 2):
                print(f"Gracefully exiting... Remaining number of requests {left}. Remaining", flush=True)
        elif MODE != "stubborn":
            threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, on_term)
    print("The server is fired up and ready to roll!", flush=True)
    server.serve_forever()
    print("drained", flush=True)


if __name__ == "__main__":
    main()
