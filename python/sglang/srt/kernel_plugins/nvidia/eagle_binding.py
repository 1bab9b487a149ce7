# SPDX-License-Identifier: Apache-2.0
"""SGLang's binding to a megakernel's EAGLE entries (API version 2).

A draft model's built object may offer, each None for SGLang's own path:

``begin_draft_round(forward_batch)``
    Host-only, before each round's draft loop, in or out of a graph.
``draft_loop(worker, forward_batch) -> (parent_list, top_scores_index, draft_tokens, draft_probs) | None``
    The whole draft-decode loop, in place of ``EagleDraftWorker.draft_forward``'s, for a non-idle batch; it
    returns what that returns, and like it leaves ``forward_batch.positions`` advanced by the steps less one;
    or None for SGLang's loop. Decided from the mode and the batch size alone; capturable.
``draft_extend(original, input_ids, positions, forward_batch) -> LogitsProcessorOutput``
    The draft extend that the draft-extend graph captures, in place of ``original`` (the draft model's
    forward). Eager draft extends run the draft model's forward.

A version 1 object has none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.kernels.plugin_kernels.nvidia.spec import Step
from sglang.srt.mega import host
from sglang.srt.mega.coverage import capture_key

ENTRIES = ("draft_loop", "draft_extend", "begin_draft_round")


def entry(draft_model: Any, name: str) -> Callable | None:
    """The built draft object's entry ``name`` (one of ``ENTRIES``), or None."""
    if name not in ENTRIES:
        raise ValueError(f"{name!r} is not one of the EAGLE entries {', '.join(ENTRIES)}")
    return getattr(draft_model.__dict__.get("_megakernel"), name, None)


def begin_draft_round(draft_model: Any, forward_batch: Any) -> None:
    """Tell the built object that a draft round starts."""
    if (begin := entry(draft_model, "begin_draft_round")) is not None:
        begin(forward_batch)


def draft_loop(worker: Any, forward_batch: Any) -> tuple | None:
    """The draft loop's result from the built object, or None for SGLang's loop."""
    model = worker.draft_runner.model
    loop = entry(model, "draft_loop")
    if loop is None:
        return None
    result = loop(worker, forward_batch)
    if result is not None:
        _record(model, forward_batch)
    return result


def draft_extend(model: Any, forward_batch: Any) -> Any:
    """The draft extend that a graph captures: the built object's, or the draft model's forward."""
    args = (forward_batch.input_ids, forward_batch.positions, forward_batch)
    extend = entry(model, "draft_extend")
    if extend is None:
        return model.forward(*args)
    _record(model, forward_batch)
    return extend(model.forward, *args)


def run_capture_hooks(runner: Any, out: Any, forward_batch: Any, num_tokens: int) -> None:
    """The draft model's capture hooks, as the target's graph runner runs its own."""
    for hook in runner.model_runner.capture_tail_hooks:
        hook(runner, out, forward_batch, num_tokens)


def _record(model: Any, forward_batch: Any) -> None:
    """Note that the graph being captured runs an entry: the entry replaces the forward that would have noted
    it.
    """
    dispatch = model.__dict__.get("_megakernel_dispatch")
    if dispatch is not None and host.capturing():
        key = capture_key(forward_batch)
        dispatch.captured[key] = Step(mode=key[0], rows=key[1])
