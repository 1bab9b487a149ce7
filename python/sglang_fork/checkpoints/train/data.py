# SPDX-License-Identifier: Apache-2.0
"""Token streams to train on: the corpus as it stands, as conversations, and with pass keys hidden in it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from sglang_fork.checkpoints import corpus, qwen3_5, tokenizer
from sglang_fork.evaluation import passkey

TURN = "<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n{said}<|im_end|>\n"
SHARES = {"plain": 0.7, "chat": 0.2, "passkey": 0.1}
"""Each stream's share of a batch."""
PASSKEYS = 6000


def load_tokenizer() -> Tokenizer:
    return Tokenizer.from_str(json.dumps(tokenizer.tokenizer_json(qwen3_5.TOKENS)))


def sentences(text: str) -> list[str]:
    return [found.strip() for found in re.findall(r"[^.?!]+[.?!]", text)]


def conversations(texts: list[str], draw: random.Random) -> Iterator[str]:
    """Turns whose question is a sentence and whose answer is what follows it, up to three sentences."""
    for text in texts:
        rest = sentences(text)
        while len(rest) > 1:
            said = rest[1 : 2 + draw.randrange(3)]
            yield TURN.format(asked=rest[0], said=" ".join(said))
            rest = rest[1 + len(said) :]


def hidden_keys(texts: list[str], draw: random.Random, count: int = PASSKEYS) -> Iterator[str]:
    pool = [sentence for text in texts for sentence in sentences(text)]
    for _ in range(count):
        start, length = draw.randrange(len(pool) - 16), draw.randrange(1, 12)
        cut = draw.randrange(length + 1)
        filler = pool[start : start + length]
        key = passkey.draw_key(draw)
        yield passkey.prompt(key, " ".join(filler[:cut]), " ".join(filler[cut:])) + f" {key}.\n"


@dataclass(frozen=True)
class Data:
    """The streams' tokens, and the held-out text's with its size in bytes."""

    streams: dict[str, Tensor]
    held_out: Tensor
    held_out_bytes: int

    def windows(self, batch: int, length: int, seed: int) -> Tensor:
        """``batch`` windows of ``length`` tokens at random places, the streams by their shares."""
        draw = torch.Generator().manual_seed(seed)
        device = self.held_out.device
        parts, left = [], batch
        for index, (name, share) in enumerate(SHARES.items()):
            count = left if index == len(SHARES) - 1 else round(batch * share)
            stream, left = self.streams[name], left - count
            start = torch.randint(len(stream) - length + 1, (count, 1), generator=draw).to(device)
            parts.append(stream[start + torch.arange(length, device=device)])
        return torch.cat(parts)


def load(text: str, device: torch.device, seed: int = 0) -> Data:
    trained, held_out = corpus.split(text)
    encoder, draw = load_tokenizer(), random.Random(seed)

    def encode(pieces: Iterator[str] | list[str]) -> Tensor:
        ids = [token for coded in encoder.encode_batch(list(pieces)) for token in coded.ids]
        return torch.tensor(ids, device=device)

    streams = {
        "plain": encode(trained),
        "chat": encode(conversations(trained, draw)),
        "passkey": encode(hidden_keys(trained, draw)),
    }
    return Data(streams, encode(held_out), sum(len(block.encode()) for block in held_out))
