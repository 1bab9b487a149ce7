# SPDX-License-Identifier: Apache-2.0
"""Rank slices have the shapes that one rank holds; routing is seeded, distinct and imposed by weights."""

import pytest

from sglang_fork import memory
from sglang_fork.bench import routing, slices
from sglang_fork.errors import ForkError

QWEN = memory.config("qwen3_5_397b")["text_config"]
GLM = memory.config("glm_5_2")


def test_qwen_slice_has_the_tp8_rank_shapes():
    rank = slices.build("qwen3_5", QWEN, tp=8, layers=24, weights="bf16")
    config = rank.config
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (4, 1)
    assert (config["linear_num_key_heads"], config["linear_num_value_heads"]) == (2, 8)
    assert (config["moe_intermediate_size"], config["num_experts"], config["hidden_size"]) == (128, 512, 4096)
    assert config["layer_types"].count("full_attention") == 6 and len(config["layer_types"]) == 24
    # One expert: gate, up and down of 128 x 4096 in BF16.
    assert rank.expert_bytes == 3 * 128 * 4096 * 2
    # GDN: qkvz 2560 + ba 16 rows, out 1024 columns. Attention: qkv 2560 rows, o 1024 columns.
    # Each layer: router, shared expert, shared gate.
    gdn, attention = (2560 + 16 + 1024) * 4096, (2560 + 1024) * 4096
    every = (512 + 3 * 128 + 1) * 4096
    assert rank.dense_bytes == 2 * (18 * gdn + 6 * attention + 24 * every)
    assert rank.step_bytes(240) == (
        rank.dense_bytes + 240 * rank.expert_bytes + rank.head_bytes,
        rank.dense_bytes + 240 * rank.expert_bytes,
    )


def test_nvfp4_counts_half_a_byte_and_a_scale_a_group():
    rank = slices.build("qwen3_5", QWEN, tp=8, layers=4, weights="nvfp4")
    assert rank.expert_bytes == 3 * 128 * 4096 * 9 // 16
    assert rank.config["quantization_config"]["group_size"] == 16


def test_glm_slice_has_the_tp8_rank_shapes():
    rank = slices.build("glm_moe_dsa", GLM, tp=8, layers=24, weights="bf16")
    assert rank.config["num_attention_heads"] == 8 and rank.config["moe_intermediate_size"] == 256
    assert rank.config["indexer_types"][:5] == ["full", "shared", "shared", "shared", "full"]
    assert rank.moe_layers == 23 and rank.expert_bytes == 3 * 6144 * 256 * 2


def test_whole_is_the_whole_model():
    production = memory.config("qwen3_5_35b")["text_config"]
    rank = slices.build("qwen3_5", production, tp=1, layers=40, weights="bf16")
    assert rank.name == "whole" and rank.config["vocab_size"] == production["vocab_size"]
    # About 3 billion active weights: the dense part, 8 experts a layer and the head.
    assert 2.5e9 < rank.step_bytes(40 * 8)[0] / 2 < 3.6e9


@pytest.mark.parametrize(
    ("family", "production", "changes", "why"),
    [
        ("qwen3_5", QWEN, {"tp": 3}, "does not divide over 3 ranks"),
        ("qwen3_5", QWEN, {"layers": 10}, "a multiple of 4 layers"),
        ("qwen3_5", QWEN, {"weights": "mxfp4"}, "bf16 or nvfp4"),
        ("glm_moe_dsa", GLM, {"layers": 1}, "at least 2 layers"),
        ("nothing", QWEN, {}, "no rank slice is defined"),
    ],
)
def test_what_cannot_be_sliced_is_refused(family, production, changes, why):
    with pytest.raises(ForkError, match=why):
        slices.build(family, production, **{"tp": 8, "layers": 24, "weights": "bf16"} | changes)


def test_routing_is_seeded_distinct_and_of_the_stated_spread():
    first = routing.draw("independent", layers=24, rows=7, experts=512, top_k=10, seed=1)
    assert first == routing.draw("independent", layers=24, rows=7, experts=512, top_k=10, seed=1)
    assert first != routing.draw("independent", layers=24, rows=7, experts=512, top_k=10, seed=2)
    assert all(len(set(row)) == 10 for layer in first.experts for row in layer)
    mean = sum(first.distinct(i) for i in range(24)) / 24
    assert 63 < mean < 69, "7 rows touch about 66 of 512 experts"
    wide = routing.draw("independent", layers=24, rows=56, experts=512, top_k=10)
    assert 330 < sum(wide.distinct(i) for i in range(24)) / 24 < 352


def test_correlated_rows_share_experts():
    alone = routing.draw("independent", layers=8, rows=7, experts=512, top_k=10)
    shared = routing.draw("correlated", layers=8, rows=7, experts=512, top_k=10)
    assert sum(map(shared.distinct, range(8))) < 0.6 * sum(map(alone.distinct, range(8)))
    assert all(len(set(row)) == 10 for layer in shared.experts for row in layer)


def test_impossible_routing_is_refused():
    with pytest.raises(ValueError, match="not one of"):
        routing.draw("random", layers=1, rows=1, experts=4, top_k=2)
    with pytest.raises(ValueError, match="cannot be chosen"):
        routing.draw("independent", layers=1, rows=1, experts=4, top_k=5)


def test_weights_alone_impose_the_routing():
    torch = pytest.importorskip("torch")
    from sglang_fork.bench import engine

    class Block(torch.nn.Module):
        def __init__(self, hidden, experts):
            super().__init__()
            self.gate = torch.nn.Linear(hidden, experts, bias=False, dtype=torch.bfloat16)
            self.mix = torch.nn.Linear(hidden, hidden, bias=False, dtype=torch.bfloat16)

        def forward(self, x):
            x = x + self.mix(x)
            normed = torch.nn.functional.rms_norm(x.float(), x.shape[-1:]).to(x.dtype)
            return x, self.gate(normed)

    class Toy(torch.nn.Module):
        def __init__(self, layers, hidden, experts):
            super().__init__()
            self.model = torch.nn.Module()
            self.model.embed_tokens = torch.nn.Embedding(97, hidden, dtype=torch.bfloat16)
            self.model.layers = torch.nn.ModuleList(Block(hidden, experts) for _ in range(layers))

        def logits(self, rows):
            x, out = self.model.embed_tokens(torch.arange(rows)), []
            for layer in self.model.layers:
                x, logits = layer(x)
                out.append(logits)
            return out

    torch.manual_seed(0)
    toy = Toy(layers=6, hidden=256, experts=64)
    for parameter in toy.parameters():
        parameter.data.uniform_(-1e-3, 1e-3)
    drawn = routing.draw("independent", layers=6, rows=16, experts=64, top_k=8)
    with pytest.raises(ForkError, match="the router chose"):
        engine.check_routing(toy.logits(16), drawn)
    engine.impose_routing(toy, drawn, experts=64)
    engine.check_routing(toy.logits(16), drawn)
    with pytest.raises(ForkError, match="6 routers found"):
        engine.impose_routing(toy, routing.draw("independent", layers=5, rows=2, experts=64, top_k=8), 64)
