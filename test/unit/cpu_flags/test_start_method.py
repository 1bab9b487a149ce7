# SPDX-License-Identifier: Apache-2.0
"""A server's processes are forked on a CPU alone, and only where it is asked for."""

from __future__ import annotations

import pytest

from sglang_fork import cpu_flags


@pytest.mark.parametrize(
    ("device", "asked", "method"),
    [("cpu", None, "spawn"), ("cpu", "fork", "fork"), ("cuda", "fork", "spawn"), ("cuda", None, "spawn")],
)
def test_the_method(overlay, monkeypatch, device: str, asked: str | None, method: str) -> None:
    module = overlay("srt/hardware_backend/cpu/start_method.py")
    monkeypatch.delenv(module.VARIABLE, raising=False)
    if asked is not None:
        monkeypatch.setenv(module.VARIABLE, asked)
    assert module.start_method(device) == method


def test_the_launcher_asks_for_a_method_that_there_is(overlay, monkeypatch) -> None:
    module = overlay("srt/hardware_backend/cpu/start_method.py")
    monkeypatch.setenv(module.VARIABLE, cpu_flags.SERVER[module.VARIABLE][0])
    assert module.start_method("cpu") in module.METHODS
    monkeypatch.setenv(module.VARIABLE, "thread")
    with pytest.raises(ValueError, match="spawn, fork"):
        module.start_method("cpu")
