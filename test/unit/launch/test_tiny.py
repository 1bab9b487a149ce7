# SPDX-License-Identifier: Apache-2.0
"""``--tiny``: what the hardware forces is changed and said, everything else stays."""

from __future__ import annotations

import pytest

from sglang_fork import cpu_flags, preset
from sglang_fork.errors import ForkError
from sglang_fork.launch import tiny
from sglang_fork.resolve import Resolution, resolve

WITH_TWIN = [n for n in preset.names() if preset.load(n).family]


def made(name: str, profile: str, extra: tuple[str, ...] = (), **shell: str) -> tuple[Resolution, list[str]]:
    changed, changes = tiny.apply(resolve(preset.load(name), shell, extra), profile)
    return changed, [str(change) for change in changes]


def servable(name: str) -> bool:
    return preset.load(name).family in cpu_flags.FAMILIES


@pytest.mark.parametrize("name", [n for n in WITH_TWIN if servable(n)])
def test_every_difference_from_the_preset_is_said(name: str) -> None:
    before = resolve(preset.load(name), {})
    after, changes = made(name, "cpu")
    told = "\n".join(changes)
    old, new = ({a.flag: a.words for a in r.arguments} for r in (before, after))
    for flag in old.keys() - new.keys():
        assert f"without {flag}" in told
    for flag in new.keys() - old.keys():
        assert f"{flag}" in told
    for flag in old.keys() & new.keys():
        assert old[flag] == new[flag] or f"{flag} {new[flag][0]}" in told
    assert all(change.endswith(")") for change in changes), "each with its reason"


@pytest.mark.parametrize("name", [n for n in WITH_TWIN if servable(n)])
def test_the_cpu_gets_what_its_engine_needs(name: str) -> None:
    after, _ = made(name, "cpu")
    for flag, value in cpu_flags.FAMILIES[after.preset.family].forced.items():
        assert after.has(flag) and (value is None or after.value(flag) == value)
    assert after.value("--tp-size", "1") == "1"
    assert after.model_path.endswith(after.preset.family)
    assert after.missing == (), "one machine needs no node rank"


def test_what_does_not_depend_on_the_hardware_stays() -> None:
    before, (after, _) = resolve(preset.load("Qwen3.5-35B-A3B"), {}), made("Qwen3.5-35B-A3B", "cpu")
    assert after.value("--mamba-ssm-dtype") == before.value("--mamba-ssm-dtype") == "bfloat16"
    assert after.value("--dtype") == "bfloat16"


@pytest.mark.parametrize(
    ("name", "steps"), (("Qwen3.5-397B-NVFP4", "6"), ("GLM-5.3-NVFP4", "3"), ("GLM-5.3-NVFP4-5steps", "5"))
)
def test_the_cpu_keeps_the_draft_unless_told_not_to(name: str, steps: str) -> None:
    after, changes = made(name, "cpu")
    assert after.value("--speculative-num-steps") == steps
    assert after.value("--speculative-num-draft-tokens") == str(int(steps) + 1)
    assert not any("speculative" in change for change in changes)
    plain, _ = made(name, "cpu", DISABLE_MTP="1")
    assert not plain.has("--speculative-algorithm")


def test_the_cpu_drafts_with_dspark_unless_told_not_to() -> None:
    after, _ = made("DeepSeek-V4.1-Flash", "cpu")
    assert after.value("--speculative-algorithm") == "DSPARK"
    assert after.value("--speculative-dspark-block-size") == "5"
    plain, _ = made("DeepSeek-V4.1-Flash", "cpu", DISABLE_MTP="1")
    assert not plain.has("--speculative-algorithm")


def test_one_gpu_keeps_the_draft_and_drops_the_other_ranks() -> None:
    after, changes = made("Qwen3.5-397B-NVFP4", "cuda")
    assert after.value("--speculative-num-steps") == "6" and not after.has("--device")
    assert not after.has("--tp-size") and "without --tp-size 8 (one GPU)" in changes


def test_what_the_user_sets_stays() -> None:
    after, changes = made(
        "Qwen3.5-35B-A3B",
        "cpu",
        ("--tp-size", "2", "--max-total-tokens", "64"),
        QWEN35_MODEL="/m",
        PORT="1234",
    )
    assert after.model_path == "/m" and after.port == 1234
    assert after.value("--tp-size") == "2" and after.value("--max-total-tokens") == "64"
    assert not any("--tp-size" in change or "--max-total-tokens" in change for change in changes)


def test_a_preset_without_a_twin_says_so() -> None:
    with pytest.raises(ForkError, match="has no tiny twin"):
        made("Nemotron-NVFP4", "cpu")


def test_every_rule_names_something_that_a_preset_has() -> None:
    """A rule for a flag that no preset with a twin sets would be dead."""
    used: set[str] = {"revision"}
    for name in WITH_TWIN:
        p = preset.load(name)
        for q in (p, *(p.on(m) for m in p.machines)):
            used |= {*q.flags, *q.draft, *q.env, "model-path", "nnodes", "node-rank", "dist-init-addr"}
    for profile in ("cpu", "cuda"):
        assert set(tiny.load_rules(profile)["drop"]) <= used
