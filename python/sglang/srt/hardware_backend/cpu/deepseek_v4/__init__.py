# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4.1 on a CPU, in plain PyTorch: rotary embedding and norm, mHC, the KV pools, the attention.

SGLang's own metadata, allocator, compressors and indexers stay as they are. The caches hold plain rows of the
model's dtype in place of packed FP8 and FP4 pages; the values that upstream rounds to FP4 before it stores
them (compressed latents, index keys) arrive rounded and are kept exactly.
"""
