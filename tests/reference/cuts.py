"""Naive twins of loops over counted cells: one feature at a time, cells in lists."""

from __future__ import annotations

import math

Cell = tuple[int, int, int]
"""Least key, greatest key and count."""


def heavy(cells: list[Cell], parts: int) -> list[bool]:
    """Which cells of several values weigh more than one of `parts` of all."""
    allowed = sum(count for _, _, count in cells) // parts
    return [lower < upper and count > allowed for lower, upper, count in cells]


def refined(cells: list[Cell], is_heavy: list[bool], finer: list[Cell]) -> list[Cell]:
    """The cells in order, finer ones in the place of heavy ones."""
    return sorted([cell for cell, gone in zip(cells, is_heavy, strict=True) if not gone] + finer)


def equal_borders(weights: list[int], bins: int) -> list[int]:
    """Cells below each inner border of bins of about equal weight."""
    divisor = math.gcd(*weights)
    running = [sum(weights[:i]) // divisor for i in range(len(weights) + 1)]
    total, borders = running[-1], [0]
    for j in range(1, bins):
        target = j * (total // bins) + j * (total % bins) // bins
        nearest = min(range(len(running)), key=lambda i: (abs(running[i] - target), i))
        borders.append(max(nearest, borders[-1] + 1, j))
    return [min(border, len(weights) - bins + j) for j, border in enumerate(borders)][1:]
