# SPDX-License-Identifier: Apache-2.0
"""SGLang's scheduler on the CPU in one process, without sockets, tokenizer or detokenizer processes.

A server starts three processes that each import SGLang. Tests of what the scheduler does need one of them,
and need to look into it: this runs ``Scheduler`` with its own event loops in a child of a fork server that
has the imports, and answers calls over a pipe. ``Local.call`` runs a function in the child.
"""

from __future__ import annotations

import os
import sys
import traceback
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sglang_fork import cpu_flags

GREEDY = {"temperature": 0.0, "ignore_eos": True}
PRELOAD = ("managers.scheduler", "speculative.eagle_worker_v2")
GRACE_S = 10
PATIENCE = 20_000  # event-loop iterations without an end that a test waits for


@dataclass(frozen=True)
class Reply:
    """One request's outcome: its new tokens, and the scheduler's account of it."""

    tokens: list[int]
    text: str
    finish: dict[str, Any]
    cached: int
    retractions: int
    verify_steps: int
    input_logprobs: list[float | None]
    output_logprobs: list[float]
    top_logprobs: list[list[float]]
    input_top: list[list[tuple[float, int]]]  # a prompt token: the likeliest and their log-probabilities


@dataclass
class Ask:
    """One request. ``after`` iterations of the event loop it arrives, ``abort_after`` more it is aborted."""

    prompt: Sequence[int]
    tokens: int
    sampling: Mapping[str, Any] = field(default_factory=dict)
    logprobs: bool = False
    top_logprobs: int = 0
    after: int = 0
    abort_after: int | None = None


class Shop:
    """The child's side: a scheduler and the requests that it serves."""

    def __init__(self, family: str, model: Path, overrides: Mapping[str, Any]) -> None:
        for name, value in cpu_flags.FAMILIES[family].environment.items():
            os.environ.setdefault(name, value)
        from sglang.srt.managers import schedule_batch
        from sglang.srt.managers.scheduler import Scheduler, configure_scheduler_process
        from sglang.srt.managers.scheduler_components.output_sender import SenderWrapper
        from sglang.srt.plugins import load_plugins
        from sglang.srt.runtime_context import SpawnRanks, publish, spawn_world_rank
        from sglang.srt.server_args import PortArgs, ServerArgs

        arguments = {
            "model_path": str(model),
            "dtype": "float32",
            "context_length": 512,
            "log_level": "error",
            "random_seed": 1,
            **overrides,
        }
        args = ServerArgs(**cpu_flags.engine_arguments(family, **arguments))
        args.resolve_once()
        load_plugins()
        rank = spawn_world_rank(args, tp_rank=0, pp_rank=0)
        publish(args, role="scheduler", ranks=SpawnRanks(world_rank=rank, gpu_id=0))
        configure_scheduler_process(args, 0)
        SenderWrapper.send_output = lambda sender, output, *_, **__: self.hear(output)
        self.requests: dict[str, Any] = {}
        self.done: dict[str, Reply] = {}
        first = schedule_batch.Req.__init__

        def remember(request: Any, rid: str, *args: Any, **kwargs: Any) -> None:
            first(request, rid, *args, **kwargs)
            self.requests[rid] = request

        schedule_batch.Req.__init__ = remember
        self.scheduler = Scheduler(args, PortArgs.init_new(args))
        self.scheduler.ingest_requests = self.ingest
        self.watch: Callable[[Any], None] | None = None
        self.iteration = 0
        self.arrivals: list[tuple[int, Any]] = []
        self.waiting_for: set[str] = set()
        self.count = 0

    def hear(self, output: Any) -> None:
        """Keep what the scheduler sends to a tokenizer or detokenizer."""
        from sglang.srt.managers.io_struct import AbortReq, BatchTokenIDOutput

        if isinstance(output, AbortReq):
            reason = output.finished_reason or {"type": "abort"}
            self.done[output.rid] = Reply([], "", dict(reason), 0, 0, 0, [], [], [], [])
        elif isinstance(output, BatchTokenIDOutput):
            for i, rid in enumerate(output.rids):
                if output.finished_reasons[i] is not None:
                    self.done[rid] = self._reply(rid, output, i)

    def _reply(self, rid: str, output: Any, i: int) -> Reply:
        def of(name: str, default: Any) -> Any:
            values = getattr(output, name, None)
            return default if not values or values[i] is None else values[i]

        tokens = list(self.requests[rid].output_ids_through_stop)  # a verify step may commit more
        return Reply(
            tokens,
            self.scheduler.tokenizer.decode(tokens, skip_special_tokens=True),
            dict(output.finished_reasons[i]),
            int(output.cached_tokens[i]),
            int(of("retraction_counts", 0)),
            int(of("spec_verify_ct", 0)),
            list(of("input_token_logprobs_val", [])),
            list(of("output_token_logprobs_val", [])),
            [list(row or []) for row in of("output_top_logprobs_val", [])],
            [
                list(zip(values or [], indices or [], strict=True))
                for values, indices in zip(
                    of("input_top_logprobs_val", []), of("input_top_logprobs_idx", []), strict=True
                )
            ],
        )

    def ingest(self) -> list[Any]:
        """What the event loop calls for new requests: those due now; ends the loop when none is left."""
        self.iteration += 1
        if self.watch is not None:
            self.watch(self.scheduler)
        due = [request for at, request in self.arrivals if at <= self.iteration]
        self.arrivals = [(at, request) for at, request in self.arrivals if at > self.iteration]
        self.scheduler.process_input_requests(due)
        if self.waiting_for <= self.done.keys() and self.scheduler.is_fully_idle():
            self.scheduler.gracefully_exit = True
        if self.iteration > PATIENCE:
            raise TimeoutError(f"requests without an end: {self.waiting_for - self.done.keys()}")
        return due

    def serve(self, asks: Sequence[Ask], watch: Callable[[Any], None] | None = None) -> list[Reply]:
        """Serve requests to their ends; ``watch`` sees the scheduler before each of its iterations."""
        from sglang.srt.managers.io_struct import AbortReq

        self.iteration, self.watch = 0, watch
        names = []
        for ask in asks:
            self.count += 1
            names.append(f"request-{self.count}")
            self.arrivals.append((ask.after, self._tokenized(names[-1], ask)))
            if ask.abort_after is not None:
                self.arrivals.append((ask.after + ask.abort_after, AbortReq(rid=names[-1])))
        self.waiting_for = set(names)
        self.scheduler.gracefully_exit = False
        self.scheduler.run_event_loop()
        self.scheduler.gracefully_exit = False
        return [self.done.pop(name) for name in names]

    def _tokenized(self, rid: str, ask: Ask) -> Any:
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
        from sglang.srt.sampling.sampling_params import SamplingParams

        sampling = SamplingParams(**{**GREEDY, "max_new_tokens": ask.tokens, **ask.sampling})
        sampling.normalize(self.scheduler.tokenizer)
        sampling.verify(self.scheduler.model_config.vocab_size)
        return TokenizedGenerateReqInput(
            rid=rid,
            input_text=None,
            input_ids=array("q", ask.prompt),
            input_embeds=None,
            mm_inputs=None,
            token_type_ids=None,
            sampling_params=sampling,
            return_logprob=ask.logprobs,
            logprob_start_len=0 if ask.logprobs else -1,
            top_logprobs_num=ask.top_logprobs,
            token_ids_logprob=None,
            stream=False,
        )

    def flush(self) -> None:
        assert self.scheduler.flush_cache(), "the cache is in use"

    def free_slots(self) -> tuple[int, int]:
        scheduler = self.scheduler
        return (
            scheduler.token_to_kv_pool_allocator.available_size(),
            scheduler.req_to_token_pool.available_size(),
        )


class Local:
    """The test's side of a scheduler in a child process."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """``function(shop, *args)`` in the child; its result, or its failure raised here.

        ``function`` belongs to a module of ``cpu_engine``: the child cannot import test files.
        """
        self.pipe.send((function, args))
        good, value = self.pipe.recv()
        if not good:
            raise AssertionError(f"in the scheduler's process:\n{value}")
        return value

    def serve(self, asks: Sequence[Ask]) -> list[Reply]:
        return self.call(Shop.serve, asks)

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int, **sampling: Any) -> list[Reply]:
        """Greedy continuations of ``prompts`` (token ids), ``tokens`` each unless a stop intervenes."""
        return self.serve([Ask(list(prompt), tokens, sampling) for prompt in prompts])

    def continuations(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        return [reply.tokens for reply in self.generate(prompts, tokens)]

    def prompt_logprobs(self, prompt: Sequence[int]) -> list[float]:
        """Log-probability of each prompt token after the first, as the prefill computes it."""
        reply = self.serve([Ask(list(prompt), 1, logprobs=True)])[0]
        return [value for value in reply.input_logprobs[1:] if value is not None]

    def flush(self) -> None:
        self.call(Shop.flush)

    def free_slots(self) -> tuple[int, int]:
        """Cache slots that no request and no cached prefix holds, and rows of the request table."""
        return self.call(Shop.free_slots)


def context() -> Any:
    """A fork server that has SGLang's imports: children start at once and inherit no threads.

    A fork of the test process itself would hang in its first parallel operator once a test has used torch
    there: OpenMP's threads do not survive a fork.
    """
    server = get_context("forkserver")
    server.set_forkserver_preload([f"sglang.srt.{name}" for name in PRELOAD])
    return server


@contextmanager
def local_engine(family: str, model: Path, **overrides: Any) -> Iterator[Local]:
    """A scheduler of ``family`` serving ``model`` in FP32 in a child process; ended at the end."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1":
        raise RuntimeError("engine tests need the CPU build's process environment; run ./sglang.sh test")
    server = context()
    ours, theirs = server.Pipe()
    child = server.Process(
        target=_child, args=(theirs, dict(os.environ), family, model, overrides), daemon=True
    )
    child.start()
    theirs.close()
    try:
        good, value = ours.recv()
        if not good:
            raise AssertionError(f"the scheduler did not start:\n{value}")
        yield Local(ours)
    finally:
        ours.close()
        child.join(GRACE_S)
        if child.is_alive():
            child.kill()
            child.join()


def _child(
    pipe: Connection, environ: Mapping[str, str], family: str, model: Path, overrides: Mapping[str, Any]
) -> None:
    """Build the scheduler, answer calls until the other end closes, and leave without any clean-up."""
    os.environ.clear()
    os.environ.update(environ)
    try:
        try:
            shop = Shop(family, model, overrides)
        except BaseException:
            pipe.send((False, traceback.format_exc()))
            return
        pipe.send((True, None))
        while True:
            try:
                function, args = pipe.recv()
                pipe.send((True, function(shop, *args)))
            except EOFError:
                break
            except BaseException:
                pipe.send((False, traceback.format_exc()))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
