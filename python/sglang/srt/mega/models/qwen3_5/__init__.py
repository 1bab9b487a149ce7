# SPDX-License-Identifier: Apache-2.0
"""Qwen3.5-MoE: plain decode steps of 1 to 8 rows at one rank, BF16 weights.

``slots``      what can be replaced: the GatedDeltaNet, attention and MoE stages of a layer
``stages``     the residual stream and each stage's stock twin, made of SGLang's own modules
``step``       the covered step: the stages of every layer in order
``spec``       where it runs, and the build
``kernels``    one function a fused step, on CUDA or emulated on the CPU
``shape``      what specialises the kernels: one rank's sizes
``tactics``    shape and rows to compiled forms, launch sizes
``workspace``  the buffers that a step's kernels hand each other
"""
