# SPDX-License-Identifier: Apache-2.0
"""The tool behind sglang.sh: patch stack, build, presets, launch, doctor, bench and bundle.

Everything reached by ``help``, ``list``, ``show``, ``--dry-run`` and ``--version`` uses the standard library alone.
"""
