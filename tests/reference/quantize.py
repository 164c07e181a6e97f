"""Naive twins of quantizing and bit packing: one value, one bit at a time."""

from __future__ import annotations

import numpy as np

from daskboost.data.cuts.cut_points import Cuts
from daskboost.data.input.row_batch import DenseRows, Features
from daskboost.dtypes import Float32, Int32, Int64


def dense_values(features: Features) -> Float32:
    """The rows as a matrix with NaN for missing."""
    if isinstance(features, DenseRows):
        return features.values
    values = np.full((features.n_rows, features.n_features), np.nan, np.float32)
    for row in range(features.n_rows):
        entries = slice(features.indptr[row], features.indptr[row + 1])
        values[row, features.indices[entries]] = features.values[entries]
    return values


def symbols(features: Features, cuts: Cuts) -> Int64:
    """Bin of each value, `n_bins[f]` where missing; int64, shape (rows, features)."""
    values = dense_values(features)
    out = np.empty(values.shape, np.int64)
    for feature in range(cuts.n_features):
        x = values[:, feature]
        bins = np.searchsorted(cuts.of(feature), x, side="right")
        out[:, feature] = np.where(np.isnan(x), cuts.n_bins[feature], bins)
    return out


def global_bins(features: Features, cuts: Cuts) -> tuple[Int64, Int32]:
    """Row pointers and global bins of the present values."""
    local = symbols(features, cuts)
    present = local < cuts.n_bins
    indptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
    return indptr, (local + cuts.bin_offsets[:-1])[present].astype(np.int32)


def packed_bits(symbols_in_order: list[int], widths: list[int]) -> list[int]:
    """The bit stream, one list element per bit, lowest bit of the first symbol first."""
    return [(symbol >> bit) & 1 for symbol, width in zip(symbols_in_order, widths, strict=True) for bit in range(width)]
