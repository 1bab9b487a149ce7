# SPDX-License-Identifier: Apache-2.0
"""Tiny checkpoints of the four model families: random ones made in place, a trained Qwen3.5, and its
quantised copy.

Making a checkpoint needs the standard library alone and gives the same bytes everywhere. Training and
quantising run in the built virtual environment, for they need torch.
"""
