# SPDX-License-Identifier: Apache-2.0
"""Asks the built SGLang why the megakernel cannot serve a command. Run by the built environment's Python.

``python probe.py ARGUMENTS`` resolves the server arguments as the server would, without and then with
``--enable-nvidia-megakernel``, and prints one JSON line::

    {"isa": "sm_90" or null, "spec": name or null, "reasons": [...], "error": null or "why stock would fail"}

``reasons`` are those of ``megakernel_disable_reasons`` and of the dtype check, on the resolved settings;
where there are none, the arguments are resolved with the flag too, so that a refusal by any other rule is
a reason as well. Nothing is loaded and no server starts.
"""

from __future__ import annotations

import json
import sys
from typing import Any

FLAG = "--enable-nvidia-megakernel"


def resolved(argv: list[str]) -> Any:
    """SGLang's arguments, resolved; raises what the server would raise."""
    from sglang.srt.server_args import prepare_server_args

    server_args = prepare_server_args(argv)
    server_args.resolve_once()
    return server_args


def disable_reasons(server_args: Any) -> tuple[str | None, str | None, list[str]]:
    """The GPU, the spec's name and every reason against it, on arguments resolved without the flag."""
    from sglang.srt.arg_groups.model_override_base import model_config_of, resolving_view
    from sglang.srt.kernel_plugins.nvidia import binding

    isa = binding.device_isa()
    reasons = list(binding.plugin_reasons())
    if reasons:
        return isa, None, reasons
    model_config = model_config_of(server_args)
    spec, reasons = binding.megakernel_disable_reasons(
        cfg=resolving_view(server_args), hf_config=model_config.hf_config, isa=isa
    )
    reasons = list(reasons) + list(binding._dtype_reasons(spec, model_config))
    return isa, spec.name if spec else None, reasons


def report(argv: list[str]) -> dict[str, Any]:
    from sglang.srt.plugins import load_plugins

    load_plugins()
    plain = [word for word in argv if word != FLAG]
    try:
        server_args = resolved(plain)
    except BaseException as error:  # argparse leaves by SystemExit
        return {"isa": None, "spec": None, "reasons": [], "error": f"{type(error).__name__}: {error}"}
    isa, spec, reasons = disable_reasons(server_args)
    if not reasons:
        try:
            resolved([*plain, FLAG])
        except BaseException as error:
            reasons = [f"{type(error).__name__}: {error}"]
    return {"isa": isa, "spec": spec, "reasons": reasons, "error": None}


if __name__ == "__main__":
    print(json.dumps(report(sys.argv[1:])))
