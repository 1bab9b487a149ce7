# SPDX-License-Identifier: Apache-2.0
"""The CPU's attention: what the rows of each kind of step read, against float64, and the indexer's choice."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.e2e
HEADS, KV_HEADS, DIM, SLOTS, ROWS, WIDTH = 4, 2, 8, 64, 3, 24


@pytest.fixture
def draw():
    import torch

    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def table(draw):
    """A request table whose rows own different slots, in no order."""
    import torch

    return torch.randperm(ROWS * WIDTH, generator=draw).view(ROWS, WIDTH).to(torch.int32)


def step(kind: str, lengths: list[int], **more: Any) -> Any:
    """A step of requests 2 and 0 of the table; ``lengths`` as SGLang counts them for its kind."""
    import torch

    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    tensors = {name: torch.tensor(value) for name, value in more.items() if name.startswith("extend")}
    rest = {name: value for name, value in more.items() if name not in tensors}
    return SimpleNamespace(
        forward_mode=ForwardMode[kind],
        seq_lens=torch.tensor(lengths),
        req_pool_indices=torch.tensor([2, 0]),
        **tensors,
        **rest,
    )


def reads(spans: Any) -> list[list[int]]:
    """The slots that each row of a step reads, in order."""
    return [span.slots[row].tolist() for span in spans for row in span.visible]


def test_each_kind_of_step_reads_the_prefix_and_itself(table) -> None:
    from sglang.srt.hardware_backend.cpu.attention import step_spans

    two, zero = table[2].tolist(), table[0].tolist()
    assert reads(step_spans(step("DECODE", [5, 1]), table)) == [two[:5], zero[:1]]
    prefill = step("EXTEND", [4, 3], extend_prefix_lens=[2, 0], extend_seq_lens=[2, 3])
    assert reads(step_spans(prefill, table)) == [two[:3], two[:4], zero[:1], zero[:2], zero[:3]]
    draft = step("DRAFT_EXTEND_V2", [6, 5], extend_prefix_lens=[4, 3], extend_seq_lens=[2, 2])
    assert reads(step_spans(draft, table)) == [two[:5], two[:6], zero[:4], zero[:5]]
    chain = SimpleNamespace(draft_token_num=2, tree_topk=1)
    verify = step("TARGET_VERIFY", [4, 0], spec_info=chain)
    assert reads(step_spans(verify, table)) == [two[:5], two[:6], zero[:1], zero[:2]]


def test_a_verified_tree_reads_its_ancestors_alone(table) -> None:
    import torch

    from sglang.srt.hardware_backend.cpu.attention import step_spans

    # Request 2: root, two children. Request 0: root, child, grandchild.
    masks = torch.tensor([[[1, 0, 0], [1, 1, 0], [1, 0, 1]], [[1, 0, 0], [1, 1, 0], [1, 1, 1]]]).bool()
    tree = SimpleNamespace(draft_token_num=3, tree_topk=2, custom_mask=masks.flatten())
    two, zero = table[2].tolist(), table[0].tolist()
    assert reads(step_spans(step("TARGET_VERIFY", [4, 1], spec_info=tree), table)) == [
        two[:5],
        two[:6],
        [*two[:5], two[6]],
        zero[:2],
        zero[:3],
        zero[:4],
    ]


def test_each_branch_of_a_draft_reads_the_prefix_and_its_own_tokens(table) -> None:
    from sglang.srt.hardware_backend.cpu.attention import draft_spans

    two, zero = table[2].tolist(), table[0].tolist()
    spans = draft_spans(step("DECODE", [4, 2]), table, topk=2, steps=3, step=1)
    assert [(span.start, span.stop) for span in spans] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert reads(spans) == [two[:6], [*two[:4], *two[7:9]], zero[:4], [*zero[:2], *zero[5:7]]]


def test_a_span_whose_mask_does_not_fit_is_refused() -> None:
    import torch

    from sglang.srt.hardware_backend.cpu.attention import Span

    with pytest.raises(ValueError, match="not rows x keys"):
        Span(0, 2, torch.arange(3), torch.ones(1, 3, dtype=torch.bool))


def backend_of(keys: Any, values: Any, table: Any) -> Any:
    """The backend without a model runner, over given buffers."""
    from sglang.srt.hardware_backend.cpu.dsa import CpuDsaAttnBackend

    backend = CpuDsaAttnBackend.__new__(CpuDsaAttnBackend)
    backend.token_to_kv_pool = SimpleNamespace(
        get_key_buffer=lambda layer: keys, get_value_buffer=lambda layer: values
    )
    backend.req_to_token_pool = SimpleNamespace(req_to_token=table)
    return backend


def test_outputs_equal_float64_on_the_chosen_keys(draw, table) -> None:
    import torch

    from sglang.srt.hardware_backend.cpu.attention import step_spans

    keys = torch.randn(ROWS * WIDTH, KV_HEADS, DIM, generator=draw)
    values = torch.randn(ROWS * WIDTH, KV_HEADS, DIM, generator=draw)
    backend = backend_of(keys, values, table)
    prefill = step("EXTEND", [9, 12], extend_prefix_lens=[6, 8], extend_seq_lens=[3, 4])
    backend.spans = step_spans(prefill, table)
    layer = SimpleNamespace(
        layer_id=0, tp_q_head_num=HEADS, tp_k_head_num=KV_HEADS, qk_head_dim=DIM, v_head_dim=DIM, scaling=0.3
    )
    q = torch.randn(7, HEADS * DIM, generator=draw)
    picks = torch.full((7, 5), -1, dtype=torch.int32)
    for row, seen in enumerate((7, 8, 9, 9, 10, 11, 12)):
        chosen = torch.randperm(seen, generator=draw)[: 3 + row % 3]
        picks[row, : len(chosen)] = chosen.to(torch.int32)
    for selection in (None, picks):
        found = backend.attend(q, None, None, layer, prefill, False, topk_indices=selection)
        slots = [torch.tensor(row) for row in reads(backend.spans)]
        if selection is not None:
            slots = [every[pick[pick >= 0].long()] for every, pick in zip(slots, selection, strict=True)]
        for row, at in enumerate(slots):
            for head in range(HEADS):
                query = q[row].view(HEADS, DIM)[head].double()
                weights = (keys[at, head // 2].double() @ query * 0.3).softmax(0)
                wanted = weights @ values[at, head // 2].double()
                got = found[row].view(HEADS, DIM)[head].double()
                torch.testing.assert_close(got, wanted, rtol=0, atol=2e-6)


def test_the_indexer_chooses_the_best_visible_keys(draw, table) -> None:
    import torch

    from sglang.srt.hardware_backend.cpu.attention import step_spans
    from sglang.srt.hardware_backend.cpu.dsa import select_keys

    keys = torch.randn(ROWS * WIDTH, DIM, generator=draw)
    query = torch.randn(4, HEADS, DIM, generator=draw)
    weights = torch.randn(4, HEADS, generator=draw)
    chain = SimpleNamespace(draft_token_num=2, tree_topk=1)
    spans = step_spans(step("TARGET_VERIFY", [11, 2], spec_info=chain), table)
    chosen = select_keys(query, weights, keys, spans, top_k=5)
    for row, slots in enumerate(reads(spans)):
        scores = ((keys[slots].double() @ query[row].double().T).relu() * weights[row].double()).sum(1)
        wanted = scores.topk(min(5, len(slots))).values
        picked = chosen[row][chosen[row] >= 0].long()
        assert len(set(picked.tolist())) == len(wanted) and (chosen[row, len(wanted) :] == -1).all()
        torch.testing.assert_close(scores[picked], wanted, rtol=0, atol=1e-5)


def test_what_stays_a_gpus_is_refused_in_words() -> None:
    from sglang.srt.hardware_backend.cpu.attention import CpuDraftSteps

    def runner(**arguments: Any) -> Any:
        base = {"page_size": 1, "enable_linear_replayssm_spec": False}
        return SimpleNamespace(server_args=SimpleNamespace(**base | arguments))

    with pytest.raises(ValueError, match="needs --page-size 1"):
        CpuDraftSteps(runner(page_size=64), topk=2, steps=3)
    with pytest.raises(ValueError, match="enable-linear-replayssm-spec is a GPU's"):
        CpuDraftSteps(runner(enable_linear_replayssm_spec=True), topk=1, steps=3)
    with pytest.raises(NotImplementedError, match="capturing their graphs needs a GPU"):
        CpuDraftSteps(runner(), topk=1, steps=1).init_cuda_graph_state(1, 1)
