# SPDX-License-Identifier: Apache-2.0
"""What upstream derives from a checkpoint at start-up, computed with upstream's own code."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang_fork.checkpoints import deepseek_v41, make

pytest.importorskip(
    "sglang.srt.layers.engram", reason="needs the built environment: ./sglang.sh build --profile cpu"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make.make("deepseek_v41", tmp_path_factory.mktemp("made") / "deepseek_v41")


def test_engram_table_holds_upstreams_primes() -> None:
    from sglang.srt.layers.engram import EngramLayout

    layout = EngramLayout.from_config(SimpleNamespace(**deepseek_v41.config()))
    rows = [sum(prime for ngram in layer for prime in ngram) for layer in layout.primes]
    assert rows == deepseek_v41.config()["engram_num_embeddings"]


def test_engram_vocabulary_is_the_tokenizers(made: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    from sglang.srt.layers.engram import build_compressed_token_map

    tokens = PreTrainedTokenizerFast(tokenizer_file=str(made / "tokenizer.json"))
    assert build_compressed_token_map(tokens)[1] == deepseek_v41.ENGRAM_VOCABULARY
