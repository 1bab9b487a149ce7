# SPDX-License-Identifier: Apache-2.0
"""What training is judged by: held-out bits per byte, drafts accepted in a verify step, pass keys found.

All in FP32 with the weights as they are saved, greedy.
"""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn import functional

from sglang_fork.checkpoints import corpus
from sglang_fork.checkpoints.train import data as streams
from sglang_fork.checkpoints.train.data import Data
from sglang_fork.checkpoints.train.model import Qwen35
from sglang_fork.evaluation import passkey

PROMPT, REPLY = 64, 128


@dataclass(frozen=True)
class Acceptance:
    """Verify steps of ``steps`` draft tokens: drafts accepted in each, the target's own token not counted."""

    prompts: str
    draft_steps: int
    verify_steps: int
    accepted_per_step: float

    @property
    def length(self) -> float:
        """Tokens that a verify step yields: the accepted drafts and the target's own."""
        return self.accepted_per_step + 1


@torch.no_grad()
def bits_per_byte(model: Qwen35, data: Data, window: int = 512, batch: int = 32) -> float:
    """Over the held-out text in windows that share no token; a window's first tokens see little."""
    tokens = data.held_out
    count = (len(tokens) - 1) // window
    inputs = tokens[: count * window].view(count, window)
    wanted = tokens[1 : count * window + 1].view(count, window)
    nats = 0.0
    for part, goal in zip(inputs.split(batch), wanted.split(batch), strict=True):
        logits = model(part)[0]
        nats += float(functional.cross_entropy(logits.flatten(0, 1), goal.flatten(), reduction="sum"))
    share = count * window / len(tokens)
    return nats / math.log(2) / (data.held_out_bytes * share)


@torch.no_grad()
def greedy(model: Qwen35, prompts: Tensor, tokens: int) -> Tensor:
    """``prompts`` with ``tokens`` greedy tokens behind each, every one from a whole forward."""
    for _ in range(tokens):
        prompts = torch.cat((prompts, model(prompts)[0][:, -1:].argmax(-1)), 1)
    return prompts


@torch.no_grad()
def acceptance(model: Qwen35, name: str, prompts: Tensor, steps: int = 3, tokens: int = REPLY) -> Acceptance:
    """Greedy decoding with ``steps`` drafts a verify step, played over the target's own greedy text.

    While every draft before it was right, a draft step's input is that text, so one unrolled pass gives each
    draft at each place; the verify steps then follow from which of them are right.
    """
    text = greedy(model, prompts, tokens + steps + 1)
    hidden = model(text)[1][:, : -steps - 1]
    right = [
        logits.argmax(-1) == text[:, k : k + hidden.shape[1]]
        for k, (logits, _) in enumerate(model.draft(hidden, text, steps), 2)
    ]
    run = torch.stack(right, -1).int().cumprod(-1).sum(-1).tolist()
    verified, accepted = 0, 0
    for row in run:
        place = prompts.shape[1] - 1
        while place < len(row):
            verified, accepted = verified + 1, accepted + row[place]
            place += row[place] + 1
    return Acceptance(name, steps, verified, accepted / verified)


def plain_prompts(data: Data, count: int) -> Tensor:
    gap = (len(data.held_out) - PROMPT) // count
    start = torch.arange(count, device=data.held_out.device)[:, None] * gap
    return data.held_out[start + torch.arange(PROMPT, device=data.held_out.device)]


@torch.no_grad()
def passkeys(model: Qwen35, text: str, count: int, seed: int = 1) -> float:
    """The share of pass keys that the model gives back, hidden in held-out text."""
    encoder, draw, device = streams.load_tokenizer(), random.Random(seed), model.lm_head.weight.device
    found = 0
    for line in streams.hidden_keys(corpus.split(text)[1], draw, count):
        asked, _, key = line.rstrip(".\n").rpartition(" ")
        ids = torch.tensor([encoder.encode(asked).ids], device=device)
        said = greedy(model, ids, passkey.DIGITS + 2)[0, ids.shape[1] :].tolist()
        found += passkey.is_right(key, encoder.decode(said))
    return found / count


def everything(model: Qwen35, data: Data, text: str, prompts: int) -> dict[str, object]:
    model.eval()
    figures: dict[str, object] = {"held_out_bits_per_byte": round(bits_per_byte(model, data), 4)}
    drafts = acceptance(model, "held-out text", plain_prompts(data, prompts))
    figures["acceptance"] = asdict(drafts) | {"accept_length": round(drafts.length, 4)}
    figures["passkeys_found"] = round(passkeys(model, text, prompts), 4)
    figures["sample"] = streams.load_tokenizer().decode(greedy(model, plain_prompts(data, 3), 64)[1].tolist())
    return figures
