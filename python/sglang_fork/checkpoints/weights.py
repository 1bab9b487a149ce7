# SPDX-License-Identifier: Apache-2.0
"""Random weights that are the same bytes on every machine and Python.

A weight takes one of 256 values, the quantiles of its distribution, chosen by one random byte. The bytes come
from Python's Mersenne Twister, seeded by the tensor's own name, so that no tensor depends on another's order
or shape; the values are placed with ``bytes.translate``, which makes ten million weights in a fraction of a
second.
"""

from __future__ import annotations

import hashlib
import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

from sglang_fork.checkpoints.tensorfile import ITEM_BYTES, Blob

LEVELS = 256
E4M3_MAX = 448.0
E8M0_BIAS = 127
Quantile = Callable[[float], float]


@dataclass(frozen=True)
class Spec:
    """A tensor to be made: name and shape in the checkpoint, the values' quantile function, safetensors
    dtype.
    """

    name: str
    shape: tuple[int, ...]
    quantile: Quantile
    dtype: str = "BF16"


def normal(std: float, mean: float = 0.0) -> Quantile:
    return NormalDist(mean, std).inv_cdf


def uniform(low: float, high: float) -> Quantile:
    return lambda p: low + (high - low) * p


def scaled(fan_in: int, gain: float = 1.0) -> Quantile:
    """Normal, deviation ``gain / sqrt(fan_in)``: a unit-variance input gives variance ``gain ** 2``."""
    return normal(gain / math.sqrt(fan_in))


def matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> Spec:
    """A ``rows x columns`` BF16 projection (output x input), scaled by its input width."""
    return Spec(name, (rows, columns), scaled(columns, gain))


def bfloat16_bits(value: float) -> int:
    """The bits of ``value`` rounded to BF16, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return int((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def float8_bits(value: float) -> int:
    """The bits of ``value`` rounded to E4M3 (no infinities, largest 448), ties to even; larger values
    saturate.
    """
    magnitude = min(abs(value), E4M3_MAX)
    exponent = max(math.frexp(magnitude)[1] - 1, -6)
    steps = round(math.ldexp(magnitude, 3 - exponent))  # in units of the last mantissa bit; 8..16 when normal
    bits = ((exponent + 7) << 3) + steps - 8 if steps >= 8 else steps
    return bits | (0x80 if math.copysign(1.0, value) < 0 else 0)


def _encoded(value: float, dtype: str) -> bytes:
    if dtype == "BF16":
        return bfloat16_bits(value).to_bytes(2, "little")
    if dtype == "F32":
        return struct.pack("<f", value)
    if dtype == "F8_E4M3":
        return bytes([float8_bits(value)])
    if dtype == "F8_E8M0":
        return bytes([round(value) + E8M0_BIAS])
    raise ValueError(f"no random weights of type {dtype}")


def generator(*key: str) -> random.Random:
    """A generator that depends on ``key`` alone."""
    return random.Random(int.from_bytes(hashlib.sha256("\0".join(key).encode()).digest()))


def materialise(spec: Spec, family: str) -> Blob:
    """The tensor of ``spec``: the same bytes for the same family, name, shape and distribution."""
    count = math.prod(spec.shape)
    choice = generator(family, spec.name).randbytes(count)
    values = [_encoded(spec.quantile((level + 0.5) / LEVELS), spec.dtype) for level in range(LEVELS)]
    width = ITEM_BYTES[spec.dtype]
    data = bytearray(count * width)
    for byte in range(width):
        data[byte::width] = choice.translate(bytes(value[byte] for value in values))
    return Blob(spec.name, spec.dtype, spec.shape, bytes(data))
