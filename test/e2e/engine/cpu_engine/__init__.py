# SPDX-License-Identifier: Apache-2.0
"""Engines on the CPU for tests: start one, ask it, look into its scheduler."""
