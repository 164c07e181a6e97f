"""Naive twins of the sketch: one value at a time, cells in dictionaries."""

from __future__ import annotations

import math
import struct

import numpy as np

from daskboost.data.input.row_batch import DenseRows, Features
from daskboost.dtypes import Float32, Int64

Cells = list[tuple[int, int, list[int]]]
"""Least key, greatest key and sums of each cell, in order."""


def key(value: float) -> int:
    """The rank of a float32 among all float32 values, zeros equal."""
    word = int.from_bytes(struct.pack("<f", 0.0 if value == 0 else value), "little")
    return word ^ 0xFFFFFFFF if word >> 31 else word | 1 << 31


def cells_at(rows: list[tuple[int, list[int]]], resolution: int) -> Cells:
    """Count keys in the cells of one resolution."""
    cells: dict[int, tuple[int, int, list[int]]] = {}
    for k, counts in rows:
        if not any(counts):
            continue
        low, high, sums = cells.get(k >> (32 - resolution), (k, k, [0] * len(counts)))
        cells[k >> (32 - resolution)] = (min(low, k), max(high, k), [a + b for a, b in zip(sums, counts, strict=True)])
    return [cells[cell] for cell in sorted(cells)]


def key_counts(values: list[float], counts: list[list[int]], capacity: int) -> tuple[int, Cells]:
    """The finest resolution whose cells number at most the capacity, and those cells."""
    rows = [(key(value), count) for value, count in zip(values, counts, strict=True)]
    for resolution in range(32, 0, -1):
        cells = cells_at(rows, resolution)
        if len(cells) <= capacity:
            return resolution, cells
    return 0, cells_at(rows, 0)


def columns(features: Features) -> list[list[tuple[int, float]]]:
    """Row and value of what each feature holds, missing left out."""
    out: list[list[tuple[int, float]]] = [[] for _ in range(features.n_features)]
    if isinstance(features, DenseRows):
        for row, feature in np.ndindex(features.values.shape):
            if not math.isnan(features.values[row, feature]):
                out[feature].append((row, float(features.values[row, feature])))
        return out
    for row in range(features.n_rows):
        for entry in range(features.indptr[row], features.indptr[row + 1]):
            out[features.indices[entry]].append((row, float(features.values[entry])))
    return out


def rank_errors(values: Float32, weights: Int64, cuts: Float32, max_bin: int) -> list[float]:
    """By how much of the total weight each cut misses its quantile, the quantile's own value not counted.

    Cut j is to divide the weight at (j + 1) / max_bin. The quantile there is a value; what lies strictly between it
    and the cut is the error.
    """
    order = np.argsort(values, kind="stable")
    ordered, total = values[order], int(weights.sum())
    running = np.cumsum(weights[order])
    errors = []
    for j, cut in enumerate(cuts):
        quantile = ordered[np.searchsorted(running, (j + 1) * (total / max_bin))]
        between = (values > quantile) & (values < cut) if quantile < cut else (values >= cut) & (values < quantile)
        errors.append(int(weights[between].sum()) / total)
    return errors
