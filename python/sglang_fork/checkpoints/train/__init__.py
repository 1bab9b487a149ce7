# SPDX-License-Identifier: Apache-2.0
"""Trains the tiny Qwen3.5 in plain torch. Needs torch and tokenizers; no SGLang, no transformers."""
