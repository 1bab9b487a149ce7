# SPDX-License-Identifier: Apache-2.0
"""The families that tiny CPU servers serve, as a model package of SGLang's.

Named by ``SGLANG_EXTERNAL_MODEL_PACKAGE``, it lets a server start without importing SGLang's other model
files; an architecture that is not here still makes it import them all.
"""
