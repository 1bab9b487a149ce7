# SPDX-License-Identifier: Apache-2.0
"""``./sglang.sh demo``: build, serve the tiny Qwen3.5 here, ask it one completion, stop."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from sglang_fork import env, preset
from sglang_fork.build.run import Options, build
from sglang_fork.errors import ForkError
from sglang_fork.launch import port, process, record, serve, start, tiny
from sglang_fork.resolve import resolve

HELP = "build if needed, serve the tiny Qwen3.5 here, answer one completion, stop"
PRESET = "Qwen3.5-35B-A3B"
NAME = "demo"
CLIENT = Path(__file__).parents[1] / "launch" / "demo_client.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", default="The quick brown fox", help="what to complete")
    parser.add_argument("--tokens", type=int, default=32, help="how many tokens to generate")


def run(args: argparse.Namespace) -> int:
    if args.tokens < 1:
        raise ForkError(f"--tokens {args.tokens} is not a positive number")
    began = time.monotonic()
    profile = env.built_profile() or build(Options()).profile
    shell = {name: value for name, value in os.environ.items() if name not in ("HOST", "PORT")}
    resolution = resolve(preset.load(PRESET), shell, ["--port", str(port.unused())])
    resolution, _ = tiny.apply(resolution, profile)
    start.launch(resolution, profile, NAME, is_tiny=True, timeout_s=900, detach=True)
    known = record.find(NAME)
    if known is None:
        raise ForkError("the demo's server was stopped before it was ready")
    try:
        answer = ask(known, profile, args.prompt, args.tokens)
    finally:
        process.end(known.identity, serve.DRAIN_S)
        known.forget()
    print("\n".join(report(known, args.prompt, answer)))
    print(f"{time.monotonic() - began:.0f} s in all")
    return 0


def ask(known: record.Record, profile: str, prompt: str, tokens: int) -> dict[str, Any]:
    """One completion by the built environment's OpenAI client."""
    done = subprocess.run(
        [str(env.venv_python(profile)), str(CLIENT), f"{known.url}/v1", prompt, str(tokens)],
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode != 0:
        raise ForkError(f"the completion failed:\n{done.stderr[-2000:]}", f"server log: {known.log}", code=1)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def report(known: record.Record, prompt: str, answer: dict[str, Any]) -> list[str]:
    """What the user reads: the text, its speed, and which path produced it."""
    tokens, seconds, first = int(answer["tokens"]), float(answer["seconds"]), float(answer["first"])
    decode = (tokens - 1) / (seconds - first) if tokens > 1 and seconds > first else 0.0
    lines = [
        "",
        f"prompt  {prompt}",
        f"text    {answer['text']!r}",
        f"speed   {tokens} tokens in {seconds:.2f} s, first after {first:.2f} s"
        + (f", then {decode:.1f} tokens/s" if decode else ""),
        f"path    {known.megakernel}, through SGLang's own scheduler and OpenAI server",
    ]
    lines.append(f"note    {tiny.about(Path(known.model))}")
    return lines
