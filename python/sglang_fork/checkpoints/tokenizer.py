# SPDX-License-Identifier: Apache-2.0
"""The tiny checkpoints' tokenizer: byte-level BPE of 480 tokens, then 32 special tokens of the family.

Token ids 0-255 are the bytes themselves, 256-479 the merges of ``data/merges.txt`` (learnt from the King
James Bible), 480-511 the family's own special tokens, padded with reserved ones. The result is a Hugging Face
``tokenizer.json`` with its ``tokenizer_config.json``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MERGES = Path(__file__).parent / "data" / "merges.txt"
BASE_SIZE = 480
VOCAB_SIZE = 512


@dataclass(frozen=True)
class Family:
    """What a model family adds to the base vocabulary: special tokens in id order, a Jinja chat template."""

    special: tuple[str, ...]
    bos: str | None
    eos: str
    pad: str
    chat_template: str

    def __post_init__(self) -> None:
        if len(self.special) > VOCAB_SIZE - BASE_SIZE:
            raise ValueError(f"{len(self.special)} special tokens, room for {VOCAB_SIZE - BASE_SIZE}")

    def token_id(self, token: str) -> int:
        return BASE_SIZE + self.special.index(token)

    def all_special(self) -> list[str]:
        reserved = VOCAB_SIZE - BASE_SIZE - len(self.special)
        return [*self.special, *(f"<|reserved_{i}|>" for i in range(reserved))]


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-in for each byte value: printable Latin-1 maps to itself, the rest to U+0100
    and up.
    """
    kept = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = (chr(0x100 + i) for i in range(256))
    return [chr(byte) if byte in kept else next(moved) for byte in range(256)]


def read_merges() -> list[tuple[str, str]]:
    lines = MERGES.read_text(encoding="utf-8").splitlines()
    return [(left, right) for left, right in (line.split(" ") for line in lines)]


def tokenizer_json(family: Family) -> dict[str, Any]:
    merges = read_merges()
    pieces = [*byte_alphabet(), *(left + right for left, right in merges)]
    if len(pieces) != BASE_SIZE or len(set(pieces)) != BASE_SIZE:
        raise ValueError(f"{MERGES} gives {len(set(pieces))} distinct tokens, not {BASE_SIZE}")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": BASE_SIZE + index,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index, token in enumerate(family.all_special())
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {piece: index for index, piece in enumerate(pieces)},
            "merges": [list(pair) for pair in merges],
        },
    }


def tokenizer_config(family: Family, max_length: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": family.bos,
        "eos_token": family.eos,
        "pad_token": family.pad,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
        "chat_template": family.chat_template,
    }


def dump(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"
