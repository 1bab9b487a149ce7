# SPDX-License-Identifier: Apache-2.0
"""Rank slices have the shapes that one rank holds; routing is seeded, distinct and imposed by weights."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_fork import memory
from sglang_fork.bench import deepseek_v41_slice, routing, slices
from sglang_fork.errors import ForkError
from sglang_fork.paths import ROOT

QWEN = memory.config("qwen3_5_397b")["text_config"]
GLM = memory.config("glm_5_2")
KIMI = memory.config("kimi_k3")["text_config"]
V41 = memory.config("deepseek_v41_flash")["text_config"]


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


def test_glm_nvfp4_leaves_the_dense_layer_alone():
    config = slices.build("glm_moe_dsa", GLM, tp=8, layers=4, weights="nvfp4").config
    assert "*layers.0.mlp*" in config["quantization_config"]["ignore"]


def test_qwen_fp8_projections_halve_their_bytes():
    plain = slices.build("qwen3_5", QWEN, tp=8, layers=24, weights="nvfp4")
    mixed = slices.build("qwen3_5", QWEN, tp=8, layers=24, weights="nvfp4-fp8")
    assert mixed.expert_bytes == plain.expert_bytes
    # qkvz and out of 18 layers, qkv and o of 6, the shared experts of 24: a byte less a weight.
    saved = 4096 * (18 * (2560 + 1024) + 6 * (2560 + 1024) + 24 * 3 * 128)
    assert plain.dense_bytes - mixed.dense_bytes == saved
    formats = mixed.config["quantization_config"]["quantized_layers"]
    assert formats["model.layers.3.self_attn.qkv_proj"] == {"quant_algo": "FP8"}
    assert formats["model.layers.0.mlp.experts"] == {"quant_algo": "NVFP4", "group_size": 16}
    assert "model.layers.3.linear_attn.out_proj" not in formats


def test_fp8_slices_hold_a_byte_a_weight_and_a_scale_a_block():
    plain = slices.build("qwen3_5", QWEN, tp=8, layers=24, weights="bf16")
    rank = slices.build("qwen3_5", QWEN, tp=8, layers=24, weights="fp8")
    assert rank.expert_bytes == 3 * 128 * 4096 + 3 * 32 * 4
    blocks = 4096 * (18 * (2560 + 1024) + 6 * (2560 + 1024) + 24 * 3 * 128)
    assert plain.dense_bytes - rank.dense_bytes == blocks - 4 * blocks // 128**2
    config = rank.config["quantization_config"]
    assert config["weight_block_size"] == [128, 128]
    assert "model.layers.3.linear_attn.in_proj_ba" not in config["modules_to_not_convert"]
    assert {"model.layers.2.linear_attn.in_proj_ba", "model.layers.3.mlp.gate"} <= set(
        config["modules_to_not_convert"]
    )
    glm = [slices.build("glm_moe_dsa", GLM, tp=8, layers=24, weights=w) for w in ("bf16", "fp8")]
    # Routers of 23 layers and the index heads' weights of 6 stay at two bytes.
    stays = 2 * (23 * 6144 * 256 + 6 * 6144 * 32)
    ratio = (glm[1].dense_bytes - stays) / (glm[0].dense_bytes - stays)
    assert ratio == pytest.approx((1 + 4 / 128**2) / 2)
    assert glm[1].expert_bytes == 3 * 6144 * 256 + 3 * 6144 * 256 * 4 // 128**2


def test_kimi_slice_has_the_tp8_rank_shapes():
    rank = slices.build("kimi_k3", KIMI, tp=8, layers=24, weights="mxfp4")
    config = rank.config
    assert config["num_attention_heads"] == config["linear_attn_config"]["num_heads"] == 12
    assert (config["moe_intermediate_size"], config["routed_expert_hidden_size"]) == (384, 3584)
    assert len(config["linear_attn_config"]["full_attn_layers"]) == 6
    assert len(config["linear_attn_config"]["kda_layers"]) == 18
    assert rank.moe_layers == 23 and rank.expert_bytes == 3 * 3584 * 384 * 17 // 32
    # The front of a MoE layer: shared gate_up 1536, router 896 and latent 3584 rows; then up, shared down.
    moe = 7168 * (1536 + 896 + 3584) + 3584 * 7168 + 7168 * 768
    kda = 7168 * (6144 + 12 + 128) + 1536 * 128 + 7168 * 1536 + 2 * 4608 * 4
    mla = 7168 * (2112 + 1536 + 1536) + 2304 * 1536 + 12 * 512 * 256
    assert rank.dense_bytes == 2 * (18 * kda + 6 * mla + 3 * 7168 * 4224 + 23 * moe)


def test_deepseek_slice_keeps_whole_groups_and_renames_their_sources():
    rank = slices.build("deepseek_v41", V41, tp=4, layers=24, weights="mxfp4")
    config = rank.config
    assert config["compress_ratios"] == [0] * 2 + [2] * 12 + [1] * 10
    assert config["kv_source_layer_ids"] == [2, 8, 14]
    assert config["index_source_layer_ids"] == [2, 8, 14, 18, 22]
    assert (config["candidate_source_layer_id"], config["engram_layer_ids"]) == (14, [1])
    assert (config["num_attention_heads"], config["o_groups"], config["moe_intermediate_size"]) == (
        16,
        2,
        576,
    )
    assert rank.expert_bytes == 3 * 5120 * 576 * 17 // 32
    whole = slices.build("deepseek_v41", V41, tp=4, layers=40, weights="mxfp4")
    assert whole.config["compress_ratios"] == V41["compress_ratios"]
    assert whole.config["engram_layer_ids"] == [1, 14]


def test_engram_rows_follow_from_the_published_number_of_buckets():
    rows = deepseek_v41_slice.engram_rows(2, 4, 8, 16_000_000)
    assert rows == V41["engram_num_embeddings"]


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
        ("qwen3_5", QWEN, {"weights": "mxfp4"}, "bf16, fp8, nvfp4 or nvfp4-fp8"),
        ("glm_moe_dsa", GLM, {"layers": 1}, "at least 2 layers"),
        ("kimi_k3", KIMI, {"layers": 6}, "a multiple of 4 layers"),
        ("kimi_k3", KIMI, {"weights": "nvfp4"}, "bf16 or mxfp4"),
        ("deepseek_v41", V41, {"layers": 8, "weights": "mxfp4"}, "cannot have 8 layers"),
        ("deepseek_v41", V41, {}, "has mxfp4 experts"),
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

    class Routed:
        def __init__(self, ids):
            self.topk_ids = ids

    class Experts(torch.nn.Module):
        def forward(self, x, topk_output):
            return 0 * x

    class Block(torch.nn.Module):
        def __init__(self, hidden, experts):
            super().__init__()
            self.gate = torch.nn.Linear(hidden, experts, bias=False, dtype=torch.bfloat16)
            self.mix = torch.nn.Linear(hidden, hidden, bias=False, dtype=torch.bfloat16)
            self.experts = Experts()

        def forward(self, x):
            x = x + self.mix(x)
            normed = torch.nn.functional.rms_norm(x.float(), x.shape[-1:]).to(x.dtype)
            chosen = torch.topk(self.gate(normed).float(), 8).indices
            # A ninth choice beyond the experts, as a fused shared expert is.
            shared = torch.full_like(chosen[:, :1], self.gate.out_features)
            return x + self.experts(normed, topk_output=Routed(torch.cat([chosen, shared], 1)))

    class Toy(torch.nn.Module):
        def __init__(self, layers, hidden, experts):
            super().__init__()
            self.model = torch.nn.Module()
            self.model.embed_tokens = torch.nn.Embedding(97, hidden, dtype=torch.bfloat16)
            self.model.layers = torch.nn.ModuleList(Block(hidden, experts) for _ in range(layers))

        def forward(self, rows):
            x = self.model.embed_tokens(torch.arange(rows))
            for layer in self.model.layers:
                x = layer(x)

    torch.manual_seed(0)
    toy = Toy(layers=6, hidden=256, experts=64)
    for parameter in toy.parameters():
        parameter.data.uniform_(-1e-3, 1e-3)
    drawn = routing.draw("independent", layers=6, rows=16, experts=64, top_k=8)
    with pytest.raises(ForkError, match="the router chose"):
        engine.check_routing(engine.chosen_experts(toy, lambda: toy(16)), drawn, 64)
    engine.impose_routing(toy, drawn, experts=64)
    engine.check_routing(engine.chosen_experts(toy, lambda: toy(16)), drawn, 64)
    with pytest.raises(ForkError, match="6 routers found"):
        engine.impose_routing(toy, routing.draw("independent", layers=5, rows=2, experts=64, top_k=8), 64)
    ran = engine.chosen_experts(toy, lambda: toy(16))
    assert [engine.routing_of(ran, 64).distinct(i) for i in range(6)] == [drawn.distinct(i) for i in range(6)]
    # In place, as a captured step does: the same tensors hold the second step's choices.
    kept = []
    engine.chosen_experts(toy, lambda: toy(16), kept)
    again = routing.draw("correlated", layers=6, rows=16, experts=64, top_k=8)
    engine.impose_routing(toy, again, experts=64)
    engine.chosen_experts(toy, lambda: toy(16), kept)
    engine.check_routing(kept, again, 64)
    with pytest.raises(ForkError, match="5 MoE layers ran"):
        engine.check_routing(engine.chosen_experts(toy, lambda: toy(2))[:5], drawn, 64)


def test_quantised_dummy_weights_become_finite_and_small():
    torch = pytest.importorskip("torch")
    from sglang_fork.bench import engine

    dtypes = {
        "w13_weight": torch.uint8,
        "w13_weight_scale": torch.uint8,
        "experts.w2_weight": torch.int8,
        "block.w2_weight_scale": torch.float8_e4m3fn,
        "block.w2_weight_scale_2": torch.float32,
        "linear.weight": torch.float8_e4m3fn,
        "linear.weight_scale_inv": torch.float32,
        "linear.input_scale": torch.float32,
        "attn.k_scale": torch.float32,
        "embed.scale": torch.float8_e8m0fnu,
        "hc_attn_scale": torch.float32,
        "norm.weight": torch.bfloat16,
    }
    model = torch.nn.Module()
    tensors = {name: torch.full((4096,), 0.5).to(dtype) for name, dtype in dtypes.items()}
    model.state_dict = lambda: tensors
    engine.settle(model)
    values = {name: t.float() for name, t in tensors.items()}
    assert len(values["w13_weight"].unique()) > 200 and len(values["experts.w2_weight"].unique()) > 200
    assert values["w13_weight_scale"].unique().tolist() == [115.0]
    assert values["block.w2_weight_scale"].unique().tolist() == [1.0]
    assert values["block.w2_weight_scale_2"].unique().tolist() == [2.0**-12]
    assert values["linear.weight_scale_inv"].unique().tolist() == [2.0**-12]
    assert values["linear.input_scale"].unique().tolist() == values["attn.k_scale"].unique().tolist() == [1.0]
    assert values["embed.scale"].unique().tolist() == [2.0**-12]
    assert values["linear.weight"].isfinite().all() and 0.9 < values["linear.weight"].abs().max() <= 1
    assert values["hc_attn_scale"].unique().tolist() == values["norm.weight"].unique().tolist() == [0.5]


def test_a_slice_pads_its_heads_as_a_rank_does():
    torch = pytest.importorskip("torch")
    from sglang_fork.bench import engine

    class Attention(torch.nn.Module):
        def __init__(self, heads):
            super().__init__()
            self.n_local_heads = heads
            self.attn_sink = torch.nn.Parameter(torch.ones(heads))

        def _kernel_num_heads(self, rows):
            return self.n_local_heads

        def _local_attn_sink(self, heads=None):
            return self.attn_sink

    model = torch.nn.ModuleList([Attention(16), Attention(64)])
    engine.pad_heads(model)
    assert [layer._kernel_num_heads(8) for layer in model] == [64, 64]
    sink = model[0]._local_attn_sink(64)
    assert sink.shape == (64,) and sink.sum() == 16 and model[1]._local_attn_sink(64) is model[1].attn_sink


def test_a_kept_model_loses_the_megakernel_of_the_runner_before():
    torch = pytest.importorskip("torch")
    from sglang_fork.bench import engine

    class Model(torch.nn.Module):
        def forward(self):
            return "stock"

    model = Model()
    model.__dict__ |= {"_megakernel_dispatch": object(), "_megakernel": object(), "forward": lambda: "mega"}
    assert model.forward() == "mega"
    engine._without_megakernel(model)
    assert model.forward() == "stock" and set(engine.arms_of(model)) == {"stock"}
    # SGLang refuses an instance whose forward is replaced.
    assert "forward" not in model.__dict__
    engine._without_megakernel(model)


def test_the_worker_that_times_stops_the_others(tmp_path):
    from sglang_fork.bench import step

    lock = tmp_path / "lock"
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()

    def state():
        return Path(f"/proc/{other.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

    try:
        lock.write_text(f"{other.pid}\n{ended.pid}\n")
        step.register(lock)
        assert str(os.getpid()) in lock.read_text().split()
        with pytest.raises(KeyError), step.alone(lock):
            assert state() == "T", "stopped while another times"
            raise KeyError
        assert state() in "SR", "goes on afterwards, also after an error"
        with step.alone(None):
            assert state() in "SR"
    finally:
        other.kill()
        other.wait()


def test_a_slow_start_says_where_it_is():
    code = """
import time
from sglang_fork.bench.step import telling_where

def compiling():
    time.sleep(0.5)

with telling_where(0.1):
    compiling()
with telling_where(0.1):
    pass
time.sleep(0.3)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
    )
    assert done.returncode == 0 and 1 <= done.stderr.count("in compiling") <= 6
    assert done.stderr.count("most recent call first") == done.stderr.count("in compiling")


def test_a_refused_megakernel_leaves_stocks_measurement(monkeypatch, tmp_path, capsys):
    pytest.importorskip("torch")
    from sglang_fork.bench import engine, step
    from sglang_fork.bench.job import Job

    asked = []

    def start(arguments):
        asked.append((arguments.get(step.MEGAKERNEL), os.environ.get(step.SLOTS)))
        if arguments.get(step.MEGAKERNEL):
            raise ValueError("verify steps have no kernel")
        return "runner"

    monkeypatch.setattr(engine, "start", start)
    monkeypatch.setenv(step.SLOTS, "gdn")
    job = Job("p", "qwen3_5", QWEN, 8, 4, "bf16", "bf16", "decode", 1, (1,), 64, slots="gdn,moe",
              server_args={step.MEGAKERNEL: True})  # fmt: skip
    assert step._runner(job, tmp_path) == "runner"
    assert asked == [(True, "gdn,moe"), (None, "gdn")], "the slot list is the job's while it starts"
    assert "stock alone, since with the megakernel: verify steps have no kernel" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no memory"):
        monkeypatch.setattr(engine, "start", lambda arguments: (_ for _ in ()).throw(ValueError("no memory")))
        step._runner(job, tmp_path)


def test_a_job_or_a_profile_that_fails_leaves_the_others(monkeypatch, tmp_path, capsys):
    torch = pytest.importorskip("torch")
    from sglang_fork.bench import engine, step, timing
    from sglang_fork.bench.job import Job

    jobs = [
        Job(name, "qwen3_5", QWEN, 8, 4, "bf16", "bf16", "decode", 1, (1,), 64)
        for name in ("a", "b", "c", "d")
    ]
    done = []

    def begin(job, facts):
        if job.preset == "a":
            raise RuntimeError("does not start")
        return step.Started(job, job.slice(), None, {}, None, {}, facts)

    def time_it(one, out, progress):
        done.append(one.job.preset)
        one.timed.append((1, "independent", []))

    def profile(one, out, progress):
        done.append(f"profile {one.job.preset}")
        if one.job.preset == "b":
            raise RuntimeError("profiler")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(step, "versions", dict)
    monkeypatch.setattr(step, "telling_where", contextlib.nullcontext)
    monkeypatch.setattr(engine.Weights, "install", lambda self: None)
    monkeypatch.setattr(timing, "bandwidth", lambda: (4.0, 4.1))
    for name, stand_in in (("_start", begin), ("_time", time_it), ("_profile", profile)):
        monkeypatch.setattr(step, name, stand_in)
    assert step.measure(jobs, tmp_path / "out.jsonl") == 2
    assert done == ["b", "c", "d", "profile b", "profile c", "profile d"]
    shown = capsys.readouterr().out
    assert "qwen3_5 bf16 decode x1: failed" in shown and "qwen3_5 bf16 decode x1: not profiled" in shown
    # Two cases a job, and one of the stand-in's to profile: those of a part that failed count as over.
    assert re.findall(r"case \d+ of \d+", shown) == [
        *(f"case {n} of 8" for n in (2, 4, 6, 8)),
        *(f"case {n} of 3" for n in (1, 2, 3)),
    ]
