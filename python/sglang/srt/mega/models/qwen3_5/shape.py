# SPDX-License-Identifier: Apache-2.0
"""The sizes of one rank of a Qwen3.5 MoE model that its kernels are compiled for."""

from __future__ import annotations

from dataclasses import dataclass

GDN_DIM = 128  # channels of a gated-delta-net head
HEAD_DIM = 256  # channels of an attention head
CONV_TAPS = 4


@dataclass(frozen=True)
class Shape:
    """``hidden`` channels; ``key_heads`` and ``value_heads`` of the gated delta net, ``heads`` and
    ``kv_heads`` of attention and the experts' widths ``inter`` and ``shared_inter`` are this rank's;
    ``experts`` is global. ``rotary``: channels of an attention head that rotate. ``state_bf16``: the
    recurrent state's type (else fp32). ``mrope``: positions come as three axes.
    """

    hidden: int
    key_heads: int
    value_heads: int
    heads: int
    kv_heads: int
    experts: int
    top_k: int
    inter: int
    shared_inter: int
    rotary: int = 64
    epsilon: float = 1e-6
    state_bf16: bool = False
    mrope: bool = False

    def __post_init__(self) -> None:
        group = self.heads // self.kv_heads
        for fault, reason in (
            (self.hidden % 256, f"hidden {self.hidden} is no multiple of 256"),
            (self.value_heads % self.key_heads, "value heads do not divide by key heads"),
            (self.value_heads > 8 and self.value_heads % 8, "value heads do not divide by 8 warps"),
            (self.heads % self.kv_heads, "query heads do not divide by key-value heads"),
            (group > 8, f"{group} query heads share a key-value head, more than 8"),
            (self.inter != self.shared_inter, "the shared expert is not as wide as a routed one"),
            (self.inter % 32, f"expert width {self.inter} is no multiple of 32"),
            (not 0 < self.top_k <= min(self.experts, 24), f"top-{self.top_k} of {self.experts} experts"),
            (self.rotary % 16 or self.rotary > HEAD_DIM, f"{self.rotary} rotary channels"),
        ):
            if fault:
                raise ValueError(f"no Qwen3.5 kernels for this shape: {reason}")

    @property
    def qkv(self) -> int:
        """Convolved channels of the gated delta net: q, k and v."""
        return (2 * self.key_heads + self.value_heads) * GDN_DIM

    @property
    def gdn_inner(self) -> int:
        return self.value_heads * GDN_DIM

    @property
    def attention_inner(self) -> int:
        return self.heads * HEAD_DIM

    @property
    def attention_channels(self) -> int:
        """Projected channels of attention: q and its gate a head, k, v."""
        return 2 * (self.heads + self.kv_heads) * HEAD_DIM

    @property
    def logit_stride(self) -> int:
        return -(-self.experts // 16) * 16

    def weight_bytes(self, linear_attention: bool, distinct_experts: int) -> int:
        """BF16 weight bytes that a layer reads in one step, states and caches not counted."""
        if linear_attention:
            mixer = (self.qkv + 2 * self.gdn_inner + 2 * self.value_heads) * self.hidden
        else:
            mixer = (self.attention_channels + self.attention_inner) * self.hidden
        router = (self.experts + 1) * self.hidden
        experts = 3 * (distinct_experts + 1) * self.inter * self.hidden
        return 2 * (mixer + router + experts)

    def state_bytes(self) -> int:
        """Bytes of recurrent state that one row of a gated-delta-net layer reads and writes, both counted."""
        return 2 * self.value_heads * GDN_DIM * GDN_DIM * (2 if self.state_bf16 else 4)


QWEN35_397B_TP8 = Shape(
    hidden=4096,
    key_heads=2,
    value_heads=8,
    heads=4,
    kv_heads=1,
    experts=512,
    top_k=10,
    inter=128,
    shared_inter=128,
)
QWEN35_35B_A3B = Shape(
    hidden=2048,
    key_heads=16,
    value_heads=32,
    heads=16,
    kv_heads=2,
    experts=256,
    top_k=8,
    inter=512,
    shared_inter=512,
)
# The checkpoint that ./sglang.sh checkpoint makes.
TINY = Shape(
    hidden=256,
    key_heads=2,
    value_heads=4,
    heads=2,
    kv_heads=1,
    experts=4,
    top_k=2,
    inter=128,
    shared_inter=128,
)
