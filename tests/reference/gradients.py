"""Naive twin of quantizing gradients: one row at a time, in Python's unbounded integers."""

from __future__ import annotations

import math

from daskboost.devices.cpu.rows import Rounding
from daskboost.dtypes import Float32

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z: int) -> int:
    """SplitMix64's finaliser."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def key(seed: int, *parts: int) -> int:
    """One key from a seed and integers."""
    state = seed & MASK
    for part in parts:
        state = mix((state + GOLDEN + part) & MASK)
    return mix(state)


def bits(key_: int, id_: int) -> int:
    """64 random bits of a row or a feature."""
    return mix((key_ + id_ * GOLDEN) & MASK)


def scale(largest: float) -> float:
    """The largest power of two that keeps `largest` within 15 bits; 1 for 0."""
    found = 1.0
    while 0 < largest * found * 2 <= 32767:
        found *= 2
    while largest * found > 32767:
        found /= 2
    return found


def quantize(g: Float32, h: Float32, rounding: Rounding, first_row: int = 0) -> list[tuple[int, int, int]]:
    """(row, quantized g, quantized h) of every sampled row, in order."""
    kept = []
    for row in range(len(g)):
        if bits(rounding.sample_key, first_row + row) >> 32 >= rounding.sample_below:
            continue
        draw = bits(rounding.round_key, first_row + row)
        up_g, up_h = (draw >> 32) / 2**32, (draw & 0xFFFFFFFF) / 2**32
        kept.append((
            row,
            math.floor(float(g[row]) * rounding.scale_g + up_g),
            math.floor(float(h[row]) * rounding.scale_h + up_h),
        ))  # fmt: skip
    return kept
