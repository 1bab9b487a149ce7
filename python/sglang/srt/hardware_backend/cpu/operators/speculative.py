# SPDX-License-Identifier: Apache-2.0
"""Draft trees, their greedy verification, and the cache slots of a speculative step.

A step of a request has ``draft_tokens`` verify tokens, the root (the last accepted token) first. Links are
indices within the request's tokens; a missing one is -1. ``retrieve_index`` holds a token's index in the
whole batch.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

FULL_MASK, QLEN_ONLY = 0, 1


def _tree_parents(parent_list: Tensor, selected: list[int], topk: int) -> list[int]:
    """Parent of each drafted token 1..n of one request, as an index within its verify tokens.

    ``selected`` are the scores' indices of the drafted tokens, sorted; ``parent_list`` maps a group of
    ``topk`` scores to the score index that expanded into it.
    """
    parents = []
    for index in selected:
        group = index // topk
        parents.append(0 if group == 0 else selected.index(int(parent_list[group])) + 1)
    return parents


def build_tree_kernel_efficient(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fills the mask, positions and links of each request's draft tree, in place.

    ``tree_mask`` is flat: with FULL_MASK each verify token has a row over prefix and window (prefix columns
    are left as they came), with QLEN_ONLY over the window alone.
    """
    if tree_mask_mode not in (FULL_MASK, QLEN_ONLY):
        raise ValueError(
            f"tree_mask_mode {tree_mask_mode}: the CPU builds full (0) and window-only (1) masks"
        )
    width = draft_token_num
    mask_start = 0
    for b, seq_len in enumerate(verified_seq_len.tolist()):
        chosen = selected_index[b, : width - 1].tolist()
        parents = [0, *_tree_parents(parent_list[b], chosen, topk)]
        retrive_index[b] = torch.arange(b * width, (b + 1) * width)
        for token in range(width - 1, 0, -1):
            parent = parents[token]
            retrive_next_sibling[b, token] = retrive_next_token[b, parent]
            retrive_next_token[b, parent] = token
        row_length = width + (seq_len if tree_mask_mode == FULL_MASK else 0)
        rows = tree_mask[mask_start : mask_start + row_length * width].view(width, row_length)
        mask_start += row_length * width
        window = rows[:, row_length - width :]
        window.fill_(False)
        for token in range(width):
            ancestor, distance = token, 0
            window[token, 0] = True
            while ancestor != 0:
                window[token, ancestor] = True
                ancestor, distance = parents[ancestor], distance + 1
            positions[b * width + token] = seq_len + distance


def verify_tree_greedy(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Follows from the root the children that equal the target's argmax, in place.

    ``predicts`` [batch * tokens] receives the target's token at each accepted position and, at the last,
    the bonus token; ``accept_index`` [batch, steps + 1] the batch indices of the accepted positions;
    ``accept_token_num`` [batch] how many drafts were accepted. ``candidates`` and ``target_predict`` are
    [batch, tokens].
    """
    for b in range(candidates.shape[0]):
        here, accepted = 0, 0
        accept_index[b, 0] = retrive_index[b, 0]
        for _ in range(1, accept_index.shape[1]):
            wanted = int(target_predict[b, here])
            child = int(retrive_next_token[b, here])
            while child >= 0 and int(candidates[b, child]) != wanted:
                child = int(retrive_next_sibling[b, child])
            if child < 0:
                break
            predicts[retrive_index[b, here]] = wanted
            accepted += 1
            accept_index[b, accepted] = retrive_index[b, child]
            here = child
        accept_token_num[b] = accepted
        predicts[retrive_index[b, here]] = target_predict[b, here]


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Positions and links of draft trees from their window masks [batch, tokens, tokens], in place."""
    masks = tree_mask.view(batch_size, draft_token_num, draft_token_num).bool()
    width = draft_token_num
    for b in range(batch_size):
        retrive_index[b] = torch.arange(b * width, (b + 1) * width)
        retrive_next_token[b].fill_(-1)
        retrive_next_sibling[b].fill_(-1)
        depths = masks[b].sum(-1) - 1
        positions[b * width : (b + 1) * width] = verified_seq_len[b] + depths
        for token in range(width - 1, 0, -1):
            parent = max(i for i in masks[b, token].nonzero().flatten().tolist() if i != token)
            retrive_next_sibling[b, token] = retrive_next_token[b, parent]
            retrive_next_token[b, parent] = token


def assign_req_to_token_pool(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Writes the packed ``out_cache_loc`` to each request's row of the map at [start, end)."""
    taken = 0
    for row, start, end in zip(
        req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True
    ):
        req_to_token[row, start:end] = out_cache_loc[taken : taken + end - start].to(req_to_token.dtype)
        taken += end - start


def assign_extend_cache_locs(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """The inverse of ``assign_req_to_token_pool``: packs the map's [start, end) into ``out_cache_loc``."""
    taken = 0
    for row, start, end in zip(
        req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True
    ):
        out_cache_loc[taken : taken + end - start] = req_to_token[row, start:end]
        taken += end - start


def assign_draft_cache_locs_contiguous(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    speculative_num_steps: int,
) -> None:
    """Packs, a request, the ``topk * steps`` slots after its sequence into ``out_cache_loc``."""
    count = topk * speculative_num_steps
    columns = seq_lens.long()[:, None] + torch.arange(count)
    out_cache_loc.copy_(req_to_token[req_pool_indices.long()[:, None], columns].flatten())


def fill_bonus_tokens(
    accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int
) -> None:
    """``bonus_tokens[i]`` = the last accepted token of request i; ``accept_lens`` counts the bonus.

    ``accept_tokens`` holds ``accept_stride`` tokens a request, in any shape.
    """
    rows = torch.arange(accept_lens.shape[0])
    bonus_tokens.copy_(accept_tokens.flatten()[rows * accept_stride + accept_lens.long() - 1])


def fill_accept_out_cache_loc(
    accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor
) -> None:
    """Packs the slots of the accepted positions to the front of ``accept_out_cache_loc``."""
    taken = accept_index[accept_index >= 0].long()
    accept_out_cache_loc[: taken.numel()] = out_cache_loc[taken].to(accept_out_cache_loc.dtype)


def copy_all_layer_kv_cache(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copies slots ``src_loc`` to ``tgt_loc`` in every buffer, all read before any is written.

    ``data_ptrs`` [buffers] are their addresses, ``strides`` [buffers] the bytes of a slot.
    """
    sources, targets = src_loc.tolist(), tgt_loc.tolist()
    for base, size in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(base + slot * size, size) for slot in sources]
        for slot, row in zip(targets, rows, strict=True):
            ctypes.memmove(base + slot * size, row, size)


def rotate_input_ids(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None,
) -> None:
    """Shifts each request's tokens left by one and puts its next token last (or at ``select_index``)."""
    for b, (start, length) in enumerate(
        zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)
    ):
        if length == 0:
            continue
        input_ids[start : start + length - 1] = input_ids[start + 1 : start + length].clone()
        last = start + length - 1 if select_index is None else int(select_index[b])
        input_ids[last] = topk_index.flatten()[b]


_LINKS = "Tensor(c!) retrive_index, Tensor(d!) retrive_next_token, Tensor(e!) retrive_next_sibling"
_RANGES = "Tensor start_offset, Tensor end_offset"

OPERATORS = {
    "build_tree_kernel_efficient_cpu(Tensor parent_list, Tensor selected_index, Tensor verified_seq_len,"
    f" Tensor(a!) tree_mask, Tensor(b!) positions, {_LINKS}, int topk, int depth, int draft_token_num,"
    " int tree_mask_mode) -> ()": build_tree_kernel_efficient,
    "verify_tree_greedy_cpu(Tensor(a!) predicts, Tensor(b!) accept_index, Tensor(c!) accept_token_num,"
    " Tensor candidates, Tensor retrive_index, Tensor retrive_next_token, Tensor retrive_next_sibling,"
    " Tensor target_predict) -> ()": verify_tree_greedy,
    "reconstruct_indices_from_tree_mask_cpu(Tensor tree_mask, Tensor verified_seq_len, Tensor(a!) positions,"
    f" {_LINKS}, int batch_size, int draft_token_num) -> ()": reconstruct_indices_from_tree_mask,
    f"assign_req_to_token_pool_cpu(Tensor req_pool_indices, Tensor(a!) req_to_token, {_RANGES},"
    " Tensor out_cache_loc, int pool_len) -> ()": assign_req_to_token_pool,
    f"assign_extend_cache_locs_cpu(Tensor req_pool_indices, Tensor req_to_token, {_RANGES},"
    " Tensor(a!) out_cache_loc, int pool_len) -> ()": assign_extend_cache_locs,
    "assign_draft_cache_locs_contiguous_cpu(Tensor req_pool_indices, Tensor req_to_token, Tensor seq_lens,"
    " Tensor(a!) out_cache_loc, int pool_len, int topk, int speculative_num_steps) -> ()": (
        assign_draft_cache_locs_contiguous
    ),
    "fill_bonus_tokens_cpu(Tensor accept_tokens, Tensor accept_lens, Tensor(a!) bonus_tokens,"
    " int accept_stride) -> ()": fill_bonus_tokens,
    "fill_accept_out_cache_loc_cpu(Tensor accept_index, Tensor out_cache_loc,"
    " Tensor(a!) accept_out_cache_loc) -> ()": fill_accept_out_cache_loc,
    "copy_all_layer_kv_cache_cpu(Tensor data_ptrs, Tensor strides, Tensor tgt_loc, Tensor src_loc) -> ()": (
        copy_all_layer_kv_cache
    ),
    "rotate_input_ids_cpu(Tensor(a!) input_ids, Tensor extend_start_loc, Tensor extend_seq_lens,"
    " Tensor topk_index, Tensor? select_index) -> ()": rotate_input_ids,
}
