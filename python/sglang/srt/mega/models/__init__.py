# SPDX-License-Identifier: Apache-2.0
"""One package a model family: its slots, its step and their stock twins, its spec."""
