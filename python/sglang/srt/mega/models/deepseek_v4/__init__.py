# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4.1: hyper-connections, compressed sparse attention, Engram, MoE."""
