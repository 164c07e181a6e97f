"""Naive twin of quantizing gradients: one row at a time, in Python's unbounded integers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from daskboost.devices.cpu.rows import Rounding
from daskboost.dtypes import Float32, UInt64

SMALL_ROWS = 4096
LIMIT = 32767
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


def scale(largest: float, limit: int = LIMIT) -> float:
    """The largest power of two that keeps `largest` within `limit`; 1 for 0."""
    found = 1.0
    while 0 < largest * found * 2 <= limit:
        found *= 2
    while largest * found > limit:
        found /= 2
    return found


def scales(g: Float32, h: Float32, weight: Float32 | None = None) -> tuple[float, float, float]:
    """Of g, of h and of the weights, which only small data give: the sums of all rows stay within 31 bits; of large
    data, each row's within `LIMIT`."""
    if weight is None:
        return scale(float(np.abs(g).max())), scale(float(h.max())), 1.0
    total = math.fsum(weight.tolist())
    scale_w = min(1.0, scale(total, SMALL_ROWS))
    tops = [max(float(abs(x)) for x, w in zip(values, weight, strict=True) if w > 0) for values in (g, h)]
    scale_g, scale_h = (scale(total * scale_w * top, 2**31 - 1 - SMALL_ROWS) for top in tops)
    return scale_g, scale_h, scale_w


def weighted(objective: Any, label: Any, margin: Any, weight: Any, small: bool) -> tuple[Any, Any]:
    """Gradients of some rows as they are rounded: weights multiply them, of small data only where there are none."""
    factor = np.ones(len(label), np.float32)
    if weight is not None:
        factor = (weight > 0).astype(np.float32) if small else weight
    with np.errstate(all="ignore"):
        g, h = objective.gradients(label, margin)
        return g * factor[:, None], h * factor[:, None]


def quantize(g: Float32, h: Float32, rounding: Rounding, first_row: int = 0, weight: Float32 | None = None,
             codes: UInt64 | None = None) -> list[tuple[int, int, int]]:  # fmt: skip
    """(row, quantized g, quantized h) of every sampled row, in order; `weight` for small data, `codes` of rows' queries
    where these are sampled whole."""
    kept = []
    for row in range(len(g)):
        unit = first_row + row if codes is None else int(codes[row])
        if bits(rounding.sample_key, unit) >> 32 >= rounding.sample_below:
            continue
        if weight is None:
            draw = bits(rounding.round_key, first_row + row)
            up_g, up_h = (draw >> 32) / 2**32, (draw & 0xFFFFFFFF) / 2**32
            pair = (
                math.floor(float(g[row]) * rounding.scale_g + up_g),
                math.floor(float(h[row]) * rounding.scale_h + up_h),
            )
        else:
            times = float(weight[row]) * rounding.scale_w
            pair = (
                round(round(float(g[row]) * rounding.scale_g) * times),
                round(round(float(h[row]) * rounding.scale_h) * times),
            )
        kept.append((row, *pair))
    return kept
