# SPDX-License-Identifier: Apache-2.0
"""``./sglang.sh checkpoint``: make, train and measure the tiny checkpoints that CI and ``--tiny`` serve."""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path

from sglang_fork import env
from sglang_fork.checkpoints import corpus, make
from sglang_fork.errors import ForkError
from sglang_fork.paths import ROOT, state_dir

HELP = "make or train the tiny checkpoints that --tiny and CI serve"
TRAINED = state_dir() / "checkpoints" / "qwen3_5-trained"
COMMITTED = ROOT / "test" / "checkpoints" / "qwen3_5"
MEASURED_ON = ROOT / "test" / "checkpoints" / "held_out.txt"
QUANTISED = state_dir() / "checkpoints" / "qwen3_5-nvfp4"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    maker = actions.add_parser("make", help="write a family's random checkpoint, the same bytes everywhere")
    maker.add_argument("family", help=f"{', '.join(make.FAMILIES)}, or all")
    maker.add_argument("--out", type=Path, help="the folder to write (default: in the state folder)")
    actions.add_parser("corpus", help="fetch the text that Qwen3.5 is trained on, and check its hash")
    trainer = actions.add_parser("train", help="train the tiny Qwen3.5 with its MTP layer, best on a GPU")
    trainer.add_argument("--out", type=Path, help=f"the folder to write (default: {TRAINED})")
    trainer.add_argument("--seconds", type=float, help="for both stages, measuring aside")
    trainer.add_argument("--steps", type=int, nargs=2, metavar=("WHOLE", "MTP"), help="in place of seconds")
    trainer.add_argument("--batch", type=int, help="windows a step")
    trainer.add_argument("--window", type=int, help="tokens a window")
    trainer.add_argument("--seed", type=int)
    trainer.add_argument("--state", type=Path, help="a file to continue from, kept up to date")
    quantiser = actions.add_parser("quantise", help="write an NVFP4 and FP8 copy of the tiny Qwen3.5")
    quantiser.add_argument("--source", type=Path, help=f"the BF16 checkpoint (default: {COMMITTED})")
    quantiser.add_argument("--out", type=Path, help=f"the folder to write (default: {QUANTISED})")


def run(args: argparse.Namespace) -> int:
    if args.action is None:
        raise ForkError("checkpoint needs an action", "make, corpus, train, quantise")
    actions = {"make": run_make, "corpus": run_corpus, "train": run_train, "quantise": run_quantise}
    return actions[args.action](args)


def run_make(args: argparse.Namespace) -> int:
    if args.family == "all" and args.out is not None:
        raise ForkError("--out takes one family", "leave --out away, or name the family")
    for family in make.FAMILIES if args.family == "all" else [args.family]:
        make.family_module(family)
        print(make.make(family, args.out or make.default_path(family)))
    return 0


def run_corpus(_: argparse.Namespace) -> int:
    print(corpus.fetch())
    return 0


def run_train(args: argparse.Namespace) -> int:
    out = args.out or TRAINED
    words = ["--corpus", str(corpus.fetch()), "--out", str(out)]
    for name in ("seconds", "batch", "window", "seed", "state"):
        if (value := getattr(args, name)) is not None:
            words += [f"--{name}", str(value)]
    if args.steps is not None:
        words += ["--steps", *map(str, args.steps)]
    code = run_module("sglang_fork.checkpoints.train", words)
    if code == 0:
        print(out)
    return code


def run_quantise(args: argparse.Namespace) -> int:
    source, out = args.source or COMMITTED, args.out or QUANTISED
    if not (source / "model.safetensors").is_file():
        raise ForkError(f"{source} is no checkpoint", "name one with --source")
    code = run_module("sglang_fork.checkpoints.train.quantise", [str(source), str(out), str(MEASURED_ON)])
    if code == 0:
        print(out)
    return code


def run_module(module: str, words: list[str]) -> int:
    """Run one of this tool's modules in the built environment, which has torch."""
    profile = env.built_profile()
    python = env.venv_python(profile)
    assert profile is not None, "venv_python refuses where nothing is built"
    variables = os.environ | env.process_env(profile) | {"PYTHONPATH": str(ROOT / "python")}
    return subprocess.run([str(python), "-m", module, *words], env=variables, check=False).returncode
