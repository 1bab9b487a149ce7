# SPDX-License-Identifier: Apache-2.0
"""GLM with five draft steps: the cases of ``test_requests`` that read its caches."""

from __future__ import annotations

from typing import Any

import pytest
from test_requests import (
    draw,  # noqa: F401
    test_a_continued_conversation_hits_the_radix_cache_and_changes_nothing,  # noqa: F401
    test_a_prompt_of_several_chunks_equals_the_same_prompt_in_parts,  # noqa: F401
    test_requests_of_different_lengths_do_not_disturb_each_other,  # noqa: F401
)

pytestmark = pytest.mark.e2e


@pytest.fixture
def engine(engines) -> Any:
    return engines("glm_moe_dsa", 5)
