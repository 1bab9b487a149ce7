# SPDX-License-Identifier: Apache-2.0
"""The training model: the delta rule token by token, transformers' logits, drafts one step at a time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the built environment: ./sglang.sh build --profile cpu")

from torch.nn import functional  # noqa: E402

from sglang_fork.checkpoints import make  # noqa: E402
from sglang_fork.checkpoints.train import gated_delta, measure, save  # noqa: E402
from sglang_fork.checkpoints.train.model import Qwen35  # noqa: E402


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make.make("qwen3_5", tmp_path_factory.mktemp("made") / "qwen3_5")


@pytest.fixture
def seed() -> int:
    drawn = random.randrange(2**31)
    print(f"seed {drawn}")
    torch.manual_seed(drawn)
    return drawn


def test_delta_rule_equals_one_token_at_a_time(seed: int) -> None:
    batch, tokens, heads, width = 2, 150, 3, 16
    query, key, value = torch.randn(3, batch, tokens, heads, width)
    decay, beta = -torch.rand(batch, tokens, heads) * 0.5, torch.rand(batch, tokens, heads)
    q, k = gated_delta.unit(query) * width**-0.5, gated_delta.unit(key)
    state, wanted = torch.zeros(batch, heads, width, width), []
    for t in range(tokens):
        state = state * decay[:, t].exp()[..., None, None]
        held = torch.einsum("bhk,bhkv->bhv", k[:, t], state)
        change = (value[:, t] - held) * beta[:, t, :, None]
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], change)
        wanted.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    found = gated_delta.gated_delta(query, key, value, decay, beta)
    torch.testing.assert_close(found, torch.stack(wanted, 1), atol=2e-5, rtol=1e-4)


def test_inverse_is_one_where_powers_would_overflow() -> None:
    system = torch.ones(64, 64).tril(-1)
    inverse = gated_delta.inverse_of_unit_lower(system)
    torch.testing.assert_close(inverse @ (system + torch.eye(64)), torch.eye(64))


def test_logits_and_states_equal_transformers(seed: int, checkpoint: Path) -> None:
    from transformers.models.qwen3_5_moe import Qwen3_5MoeForCausalLM

    theirs = Qwen3_5MoeForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    tokens = torch.randint(0, 480, (2, 150))
    with torch.inference_mode():
        logits, hidden, _ = save.load(checkpoint)(tokens)
        reference = theirs.model(tokens, use_cache=False).last_hidden_state
        torch.testing.assert_close(hidden, reference, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(logits, theirs.lm_head(reference), atol=3e-4, rtol=1e-4)


def one_draft_at_a_time(model: Qwen35, hidden: torch.Tensor, tokens: torch.Tensor, place: int) -> list:
    """Logits of three drafts behind ``place``, with the keys that a server's draft worker would hold."""
    mtp, layer = model.mtp, model.mtp.layers[0]
    keys, values, logits = [], [], []
    states, following, first = hidden[:, : place + 1], tokens[:, 1 : place + 2], 0
    for step in range(3):
        embedded = mtp.pre_fc_norm_embedding(model.model.embed_tokens(following))
        x = mtp.fc(torch.cat((embedded, mtp.pre_fc_norm_hidden(states)), -1))
        query, key, value, gate = layer.self_attn.project(layer.input_layernorm(x), first)
        keys.append(key)
        values.append(value)
        mixed = functional.scaled_dot_product_attention(
            query, torch.cat(keys, 2), torch.cat(values, 2), is_causal=step == 0
        )
        x, _ = layer.feed(x, layer.self_attn.finish(mixed, gate))
        states = mtp.norm(x)[:, -1:]
        logits.append(model.lm_head(states)[:, 0])
        following, first = tokens[:, place + step + 2 : place + step + 3], place + step + 1
    return logits


def test_unrolled_drafts_equal_one_step_at_a_time(seed: int, checkpoint: Path) -> None:
    model, count = save.load(checkpoint), 20
    tokens = torch.randint(0, 480, (2, count + 3))
    with torch.inference_mode():
        hidden = model(tokens[:, :count])[1]
        unrolled = [logits for logits, _ in model.draft(hidden, tokens, 3)]
        for place in (0, 7, count - 2):
            single = one_draft_at_a_time(model, hidden, tokens, place)
            for step in range(3):
                torch.testing.assert_close(unrolled[step][:, place], single[step], atol=1e-4, rtol=1e-4)


def test_acceptance_equals_a_loop_of_verify_steps(seed: int, checkpoint: Path) -> None:
    """Drafts made one at a time, each from the drafts before it, against the target's own text."""
    model, tokens = save.load(checkpoint), 24
    with torch.no_grad():
        model.lm_head.weight[3:] *= 0.01  # nearly always one of three tokens, so that some drafts are right
    prompts = torch.randint(0, 480, (3, 9))
    found = measure.acceptance(model, "random", prompts, tokens=tokens)
    text = measure.greedy(model, prompts, tokens + 4)
    verified = accepted = 0
    with torch.inference_mode():
        hidden = model(text)[1]
        for row in range(len(text)):
            place = prompts.shape[1] - 1
            while place < text.shape[1] - 4:
                line = text[row : row + 1, : place + 2]
                for step in range(3):
                    logits = one_draft_at_a_time(
                        model, hidden[row : row + 1], functional.pad(line, (0, 3 - step)), place
                    )
                    line = torch.cat((line, logits[step].argmax(-1, keepdim=True)), 1)
                same = (line[0, place + 2 :] == text[row, place + 2 : place + 5]).int()
                right = int(same.cumprod(0).sum())
                verified, accepted, place = verified + 1, accepted + right, place + right + 1
    assert accepted > 0
    assert (found.verify_steps, found.accepted_per_step) == (verified, accepted / verified)
