"""Obvious twin of `data/categories/crosses.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def cross(operation: str, first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Return what a cross of two columns is in each row, computed with more digits and rounded once to float32."""
    found = []
    for a, b in zip(map(float, first), map(float, second), strict=True):
        exact = a - b if operation == "difference" else a * b
        with np.errstate(over="ignore"):
            rounded = float(np.float32(exact))
        found.append(rounded if math.isfinite(rounded) else math.nan)
    return found


def most(gains: Sequence[float], numerical: Sequence[int], n: int) -> list[tuple[int, int]]:
    """Return each two of the `n` numerical columns that gain most, where they gain anything."""
    left = [column for column in numerical if gains[column] > 0]
    top: list[int] = []
    while left and len(top) < n:
        best = max(left, key=lambda column: (gains[column], -column))
        left.remove(best)
        top.append(best)
    return [(a, b) for a in sorted(top) for b in sorted(top) if a < b]
