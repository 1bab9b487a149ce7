# SPDX-License-Identifier: Apache-2.0
"""Draft trees: building, rebuilding from the mask, greedy verification, cache slots."""

from __future__ import annotations

import pytest
import torch

# topk 2, three steps. Scores are numbered a group of two at a time: 0-1 the root's children, then two for
# each token that was expanded. Chosen: 0, 1 (root's), 2 and 3 (children of score 0), 6 (child of score 2).
#        0
#      1   2
#     3 4
#     5
SELECTED = [0, 1, 2, 3, 6]
PARENT_LIST = [-1, 0, 1, 2, 4]
PARENTS = [0, 0, 0, 1, 1, 3]
DEPTHS = [0, 1, 1, 2, 2, 3]


def build(speculative, mode: int, seq_lens=(4, 2)):
    batch, width = len(seq_lens), 6
    lens = torch.tensor(seq_lens)
    size = sum((width + (n if mode == 0 else 0)) * width for n in seq_lens)
    out = {
        "tree_mask": torch.ones(size, dtype=torch.bool),
        "positions": torch.zeros(batch * width, dtype=torch.long),
        "retrive_index": torch.full((batch, width), -1),
        "retrive_next_token": torch.full((batch, width), -1),
        "retrive_next_sibling": torch.full((batch, width), -1),
    }
    speculative.build_tree_kernel_efficient(
        torch.tensor([PARENT_LIST] * batch),
        torch.tensor([SELECTED] * batch),
        lens,
        *out.values(),
        2,
        3,
        width,
        mode,
    )
    return lens, out


@pytest.mark.parametrize("mode", [0, 1])
def test_tree_mask_positions_and_links(speculative, mode: int) -> None:
    lens, out = build(speculative, mode)
    start = 0
    for b, n in enumerate(lens.tolist()):
        columns = 6 + (n if mode == 0 else 0)
        rows = out["tree_mask"][start : start + 6 * columns].view(6, columns)
        start += 6 * columns
        assert rows[:, : columns - 6].all(), "prefix columns stay visible"
        for token in range(6):
            seen, walk = {0}, token
            while walk != 0:
                seen.add(walk)
                walk = PARENTS[walk]
            assert set(rows[token, columns - 6 :].nonzero().flatten().tolist()) == seen
        assert out["positions"][6 * b : 6 * b + 6].tolist() == [n + d for d in DEPTHS]
    assert out["retrive_index"].tolist() == [list(range(6)), list(range(6, 12))]
    assert out["retrive_next_token"][1].tolist() == [1, 3, -1, 5, -1, -1]
    assert out["retrive_next_sibling"][1].tolist() == [-1, 2, -1, 4, -1, -1]


def test_the_window_mask_rebuilds_the_tree(speculative) -> None:
    lens, out = build(speculative, 1)
    again = {name: torch.full_like(out[name], -7) for name in list(out)[1:]}
    speculative.reconstruct_indices_from_tree_mask(out["tree_mask"], lens, *again.values(), 2, 6)
    for name, tensor in again.items():
        assert torch.equal(tensor, out[name]), name


def test_a_bitpacked_mask_is_refused(speculative) -> None:
    with pytest.raises(ValueError, match="tree_mask_mode 2"):
        build(speculative, 2)


@pytest.mark.parametrize("accepted", range(7))
def test_greedy_verification_of_a_chain_accepts_the_matching_prefix(speculative, accepted: int) -> None:
    width = 7
    target = torch.arange(100, 100 + width)[None]
    drafts = torch.cat([torch.tensor([50]), target[0, :-1]])
    if accepted < width - 1:
        drafts[accepted + 1] = 7  # a planted error
    predicts = torch.full((width,), -1)
    accept_index = torch.full((1, width), -1)
    count = torch.zeros(1, dtype=torch.long)
    links = torch.tensor([[*range(1, width), -1]])
    speculative.verify_tree_greedy(
        predicts, accept_index, count, drafts[None], torch.arange(width)[None], links,
        torch.full((1, width), -1), target,
    )  # fmt: skip
    assert count.item() == accepted
    assert accept_index[0].tolist() == [*range(accepted + 1), *[-1] * (width - 1 - accepted)]
    assert predicts[: accepted + 1].tolist() == target[0, : accepted + 1].tolist(), "accepted and bonus"
    assert (predicts[accepted + 1 :] == -1).all()


def test_greedy_verification_takes_the_matching_sibling(speculative) -> None:
    _, out = build(speculative, 1)
    candidates = torch.tensor([[1, 10, 20, 30, 40, 50]] * 2)
    target = torch.tensor([[10, 40, 0, 0, 99, 0], [20, 0, 88, 0, 0, 0]])
    predicts = torch.full((12,), -1)
    accept_index, count = torch.full((2, 4), -1), torch.zeros(2, dtype=torch.long)
    speculative.verify_tree_greedy(
        predicts, accept_index, count, candidates, out["retrive_index"], out["retrive_next_token"],
        out["retrive_next_sibling"], target,
    )  # fmt: skip
    assert count.tolist() == [2, 1]
    assert accept_index.tolist() == [[0, 1, 4, -1], [6, 8, -1, -1]]
    assert predicts[[0, 1, 4, 6, 8]].tolist() == [10, 40, 99, 20, 88]


def test_cache_slots_go_in_and_out_of_the_map(speculative) -> None:
    table = torch.zeros(4, 10, dtype=torch.int32)
    rows, start, end = torch.tensor([2, 0]), torch.tensor([3, 0]), torch.tensor([5, 4])
    slots = torch.arange(11, 17)
    speculative.assign_req_to_token_pool(rows, table, start, end, slots, 10)
    assert table[2].tolist() == [0, 0, 0, 11, 12, 0, 0, 0, 0, 0]
    assert table[0].tolist() == [13, 14, 15, 16, 0, 0, 0, 0, 0, 0]
    back = torch.zeros(6, dtype=torch.long)
    speculative.assign_extend_cache_locs(rows, table, start, end, back, 10)
    assert torch.equal(back, slots)
    drafts = torch.zeros(4, dtype=torch.long)
    speculative.assign_draft_cache_locs_contiguous(rows, table, torch.tensor([3, 2]), drafts, 10, 1, 2)
    assert drafts.tolist() == [11, 12, 15, 16]


def test_bonus_tokens_slots_and_rotation(speculative) -> None:
    bonus = torch.zeros(2, dtype=torch.long)
    speculative.fill_bonus_tokens(torch.tensor([5, 6, 7, 8, 9, 10]), torch.tensor([2, 3]), bonus, 3)
    assert bonus.tolist() == [6, 10]
    packed = torch.zeros(4, dtype=torch.long)
    speculative.fill_accept_out_cache_loc(torch.tensor([0, 2, -1, 3]), torch.tensor([40, 41, 42, 43]), packed)
    assert packed.tolist() == [40, 42, 43, 0]
    ids = torch.tensor([1, 2, 3, 4, 5])
    speculative.rotate_input_ids(
        ids, torch.tensor([0, 3]), torch.tensor([3, 2]), torch.tensor([[70], [80]]), None
    )
    assert ids.tolist() == [2, 3, 70, 5, 80]
    ids = torch.tensor([1, 2, 3, 4, 5])
    speculative.rotate_input_ids(
        ids, torch.tensor([0, 3]), torch.tensor([3, 2]), torch.tensor([[70], [80]]), torch.tensor([1, 3])
    )
    assert ids.tolist() == [2, 70, 3, 80, 5]


def test_bonus_tokens_come_from_a_row_a_request(speculative) -> None:
    bonus = torch.zeros(2, dtype=torch.int32)
    speculative.fill_bonus_tokens(torch.tensor([[5, 6, 7], [8, 9, 10]]), torch.tensor([1, 3]), bonus, 3)
    assert bonus.tolist() == [5, 10]


def test_cache_slots_move_in_every_buffer_and_all_are_read_first(speculative) -> None:
    keys, values = torch.randn(6, 2, 4), torch.randint(0, 100, (6, 3), dtype=torch.int16)
    wanted = [buffer.clone() for buffer in (keys, values)]
    source, target = torch.tensor([1, 2, 5]), torch.tensor([2, 3, 0])
    for buffer in wanted:
        buffer[target] = buffer[source].clone()
    pointers = torch.tensor([keys.data_ptr(), values.data_ptr()], dtype=torch.uint64)
    strides = torch.tensor([keys[0].nbytes, values[0].nbytes])
    speculative.copy_all_layer_kv_cache(pointers, strides, target, source)
    assert torch.equal(keys, wanted[0]) and torch.equal(values, wanted[1])
