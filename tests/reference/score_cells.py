"""Naive twin of counting scores in cells, and of areas under curves."""

from __future__ import annotations

from fractions import Fraction

from daskboost.dtypes import Float32, Int64

Cells = list[tuple[int, int, int, int]]
"""Least and greatest key of each cell, and what negatives and positives count."""


def count(keys: list[int], label: Float32, units: Int64, capacity: int) -> tuple[int, Cells]:
    """Return the most leading bits of keys by which rows that count lie in at most `capacity` cells, and the cells."""
    rows = [(key, int(y), int(n)) for key, y, n in zip(keys, label, units, strict=True) if n]
    for bits in range(32, -1, -1):
        names = {key >> (32 - bits) for key, _, _ in rows}
        if len(names) <= capacity:
            break
    cells: Cells = []
    for name in sorted(names):
        own = [row for row in rows if row[0] >> (32 - bits) == name]
        found = [key for key, _, _ in own]
        negative, positive = (sum(n for _, y, n in own if y == of) for of in (0, 1))
        cells.append((min(found), max(found), negative, positive))
    return bits, cells


def areas(cells: Cells) -> dict[str, Fraction]:
    """Return the sums of float64 terms of either curve, exact."""
    roc, precision, below = Fraction(0), Fraction(0), 0
    for place, (_, _, negative, positive) in enumerate(cells):
        roc += Fraction(float(positive) * (float(below) + 0.5 * float(negative)))
        below += negative
        above = sum(n + p for _, _, n, p in cells[place:])
        hits = sum(p for _, _, _, p in cells[place:])
        precision += Fraction(float(positive) * (float(hits) / float(above)))
    return {"roc": roc, "precision": precision}
