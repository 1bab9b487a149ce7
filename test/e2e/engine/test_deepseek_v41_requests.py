# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4.1 on the CPU, plain and with DSpark: grammars, aborts, retraction.

The cases of ``test_requests`` that do not depend on the page, and retraction with pages of 256 tokens.
"""

from __future__ import annotations

from typing import Any

import pytest
from test_requests import (
    draw,  # noqa: F401
    prompt,
    test_a_json_schema_is_obeyed_beside_a_free_request,  # noqa: F401
    test_a_regular_expression_is_obeyed,  # noqa: F401
    test_an_aborted_request_ends_and_the_others_go_on,  # noqa: F401
)

pytestmark = pytest.mark.e2e

PAGE, PAGES = 256, 5
DRAFTS = {
    "plain": {},
    "drafting": {"speculative_algorithm": "DSPARK", "speculative_dspark_block_size": 5},
}


@pytest.fixture(scope="module", params=DRAFTS)
def engine(request, tiny) -> Any:
    from cpu_engine.local import local_engine

    with local_engine(
        "deepseek_v41",
        tiny("deepseek_v41"),
        chunked_prefill_size=PAGE,
        max_total_tokens=PAGES * PAGE,
        max_running_requests=8,
        schedule_conservativeness=0.1,
        constrained_json_disable_any_whitespace=True,
        **DRAFTS[request.param],
    ) as running:
        yield running


def test_retracted_requests_are_resumed_and_lose_nothing(engine, draw) -> None:  # noqa: F811
    batch = [prompt(draw, PAGE - 16) for _ in range(PAGES)]  # a page each, and soon a second
    engine.flush()
    before = engine.free_slots()
    few = [engine.generate(batch[i : i + 2], 24, ignore_eos=False) for i in range(0, len(batch), 2)]
    assert not any(reply.retractions for replies in few for reply in replies)
    alone = [reply.tokens for replies in few for reply in replies]
    engine.flush()
    together = engine.generate(batch, 24, ignore_eos=False)
    assert sum(reply.retractions for reply in together) > 0, "the pool was large enough for all"
    assert [reply.tokens for reply in together] == alone
    engine.flush()
    assert engine.free_slots() == before
