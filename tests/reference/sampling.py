"""Minimal-variance sampling, the slow and obvious way."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from daskboost.hashing import draws


def norm_of(g: Any, h: Any) -> float:
    """Of one row's gradients and hessians of all outputs."""
    square = 0.0
    for own_g, own_h in zip(g.tolist(), h.tolist(), strict=True):
        square += own_g * own_g + 0.1 * (own_h * own_h)
    norm = math.sqrt(square) if math.isfinite(square) else math.inf
    return norm


def cell_of(norm: float) -> int:
    """Exponent and six bits behind the first, from 2**-128 on."""
    if math.isinf(norm):
        return 256 * 64 - 1
    mantissa, exponent = math.frexp(norm)  # in [1/2, 1)
    cell = (exponent - 1 + 128) * 64 + math.floor((2 * mantissa - 1) * 64)
    return min(max(cell, 0), 256 * 64 - 1)


def drawn(g: Any, h: Any, ids: Any, key: int, threshold: float) -> tuple[list[int], list[float], list[float], Any]:
    """Rows that are kept, their norms and draws, and the counts of all norms."""
    rows: list[int] = []
    norms: list[float] = []
    kept_draws: list[float] = []
    counts = np.zeros(256 * 64, np.int64)
    for row, bits in enumerate(draws(np.uint64(key), np.asarray(ids, np.uint64)).tolist()):
        norm, draw = norm_of(g[row], h[row]), (bits >> 11) / 2**53
        if norm == 0:
            continue
        counts[cell_of(norm)] += 1
        if draw < (1.0 if math.isinf(norm) else norm / threshold):
            rows.append(row)
            norms.append(norm)
            kept_draws.append(draw)
    return rows, norms, kept_draws, counts


def threshold_of(norms: Any, rate: float) -> float:
    """The threshold at which shares add up to `rate` of the rows, by bisection."""
    low, high = 0.0, float(np.sum(norms)) / (rate * len(norms)) * 2
    for _ in range(200):
        middle = (low + high) / 2
        enough = sum(min(1.0, norm / middle) for norm in norms) >= rate * len(norms)
        low, high = (middle, high) if enough else (low, middle)
    return low


def of_share(ids: Any, key: int, share: float) -> list[int]:
    """Rows of a sample of which each is with the same probability."""
    bits = draws(np.uint64(key), np.asarray(ids, np.uint64)).tolist()
    return [row for row, own in enumerate(bits) if own // 2**32 < math.ceil(share * 2**32)]
