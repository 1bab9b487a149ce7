# SPDX-License-Identifier: Apache-2.0
"""Asks one completion through the OpenAI client. Run by the built environment's Python::

    python demo_client.py BASE_URL PROMPT TOKENS

prints ``{"text": ..., "tokens": n, "seconds": s, "first": s}`` as its last line: the time of the whole
request and of its first token.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def complete(base_url: str, prompt: str, tokens: int) -> dict[str, Any]:
    from openai import OpenAI

    client = OpenAI(base_url=base_url, api_key="none", timeout=300, max_retries=0)
    model = client.models.list().data[0].id
    text, first, count = "", 0.0, 0
    began = time.monotonic()
    stream = client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    for chunk in stream:
        first = first or time.monotonic() - began
        text += "".join(choice.text for choice in chunk.choices)
        count = chunk.usage.completion_tokens if chunk.usage else count
    return {"text": text, "tokens": count, "seconds": time.monotonic() - began, "first": first}


if __name__ == "__main__":
    print(json.dumps(complete(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
