# SPDX-License-Identifier: Apache-2.0
"""The tool behind sglang.sh: patch stack, build, presets, launch, doctor, bench and bundle.

What ``help``, ``list``, ``show``, ``--dry-run`` and ``--version`` reach uses the standard library alone.
"""
