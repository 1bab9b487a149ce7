# SPDX-License-Identifier: Apache-2.0
"""A server's native ``/generate``, asked with the standard library."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from sglang_fork.errors import ForkError
from sglang_fork.evaluation.divergence import Likeliest

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Server:
    """``url`` without a path. The key, where one is needed, is SGLANG_API_KEY's."""

    url: str
    parallel: int = 8
    timeout_s: float = 600

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON that answers a POST of ``body``."""
        answer = self._post(path, body)
        try:
            return json.loads(answer)
        except ValueError as error:
            raise ForkError(f"{self.url}{path} answered no JSON: {error}", code=1) from error

    def _post(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("SGLANG_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url.rstrip('/')}{path}", data, headers, method="POST")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=self.timeout_s) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")[:500]
            raise ForkError(f"{self.url}{path} answered {error.code}: {said}", code=1) from error
        except OSError as error:
            raise ForkError(
                f"{self.url}{path} does not answer: {error}", "is the server up?", code=1
            ) from error

    def complete(self, prompt: str, tokens: int, stop: str | None = None) -> str:
        sampling = {"temperature": 0.0, "max_new_tokens": tokens, **({"stop": [stop]} if stop else {})}
        return str(self.post("/generate", {"text": prompt, "sampling_params": sampling})["text"])

    def decode_likeliest(
        self, prompt: str, tokens: int, top: int
    ) -> tuple[list[int], list[int], list[Likeliest]]:
        """The prompt's and the reply's token ids, and each decode step's ``top`` likeliest tokens."""
        meta = self._with_logprobs({"text": prompt}, tokens, top, start=0)
        asked = [entry[1] for entry in meta["input_token_logprobs"]]
        said = [entry[1] for entry in meta["output_token_logprobs"]]
        return asked, said, [_likeliest(step) for step in meta["output_top_logprobs"]]

    def prefill_likeliest(self, asked: Sequence[int], said: Sequence[int], top: int) -> list[Likeliest]:
        """The likeliest tokens at the places of ``said``, as the prefill of both computes them."""
        meta = self._with_logprobs({"input_ids": [*asked, *said]}, 1, top, start=len(asked) - 1)
        return [_likeliest(step) for step in meta["input_top_logprobs"][-len(said) :]]

    def _with_logprobs(self, prompt: dict[str, Any], tokens: int, top: int, start: int) -> dict[str, Any]:
        sampling = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
        options = {"return_logprob": True, "logprob_start_len": start, "top_logprobs_num": top}
        return dict(self.post("/generate", {**prompt, **options, "sampling_params": sampling})["meta_info"])

    def flush(self) -> None:
        """Empty the prefix cache, so that a prefill computes everything itself."""
        self._post("/flush_cache?timeout=60")  # until the last request is put away

    def each(self, ask: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """``ask`` of every item, ``parallel`` at a time, in order."""
        with ThreadPoolExecutor(self.parallel) as pool:
            return list(pool.map(ask, items))


def _likeliest(step: Sequence[Sequence[Any]] | None) -> Likeliest:
    return {int(entry[1]): float(entry[0]) for entry in step or ()}
