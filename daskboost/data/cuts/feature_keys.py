"""Feature keys: a batch of rows, dense or sparse, as one run of order-preserving keys per feature.

Work is cut into blocks of rows and groups of columns: a block's column is sorted in the second-level cache, a thread
holds one group at a time, and however large a partition is, the memory beside it stays under 64 MB per thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from daskboost.dtypes import Csr, Float32, Int64

if TYPE_CHECKING:
    from daskboost.devices.cpu.sketch import KeyRuns

_BLOCK_ROWS = 1 << 19  # rows sorted at a time: a column's keys are 2 MB and sort in the second-level cache
_BLOCK_ENTRIES = 1 << 23  # entries of sparse rows sorted at a time: 32 MB of keys
_GROUP_KEYS = 1 << 22  # keys of dense columns that a thread holds at a time: 16 MB


Extract = Callable[[Int64], tuple["KeyRuns", Int64]]
"""Gives the keys of some columns in a block of rows, a run for each, and how many rows have no value of each."""


KeyBlocks = Iterator[tuple[list[Int64], Extract]]
"""Per block of rows the groups of columns, and how to get a group's keys."""


def dense_key_blocks(values: Float32, weights: Int64, columns: Int64, max_workers: int) -> KeyBlocks:
    """Divide a matrix, NaN missing, into pieces of work whose memory is bounded.

    Parameters
    ----------
    values : float32 array, shape (rows, features)
    weights : int64 array, shape (rows,) or (0,)
    columns : int64 array
        The features that are wanted, increasing.
    max_workers : int
        How many groups of columns to make at least, if there are as many columns.
    """
    for start in range(0, len(values), _BLOCK_ROWS):
        rows = slice(start, min(start + _BLOCK_ROWS, len(values)))
        width = max(1, _GROUP_KEYS // (rows.stop - rows.start))
        width = min(width, -(-len(columns) // max_workers) or 1)
        groups = [columns[at : at + width] for at in range(0, len(columns), width)]
        yield groups, _dense_extract(values[rows], weights[rows])


def sparse_key_blocks(matrix: Csr, n_features: int, weights: Int64, columns: Int64, max_workers: int) -> KeyBlocks:
    """Divide rows of CSR as `dense_key_blocks` divides a matrix."""
    indptr, words = matrix.indptr, matrix.values.view(np.uint32)
    start, n_rows = 0, len(indptr) - 1
    while start < n_rows:
        limit = indptr[start] + _BLOCK_ENTRIES
        stop = max(start + 1, int(np.searchsorted(indptr, limit, side="right")) - 1)
        entries = slice(indptr[start], indptr[stop])
        groups = [group for group in np.array_split(columns, max_workers) if len(group)]
        rows = Csr(indptr[start : stop + 1] - indptr[start], matrix.indices[entries], words[entries])
        yield groups, _sparse_extract(rows, n_features, weights[start:stop])
        start = stop


def _dense_extract(values: Float32, weights: Int64) -> Extract:
    from daskboost.devices.cpu.sketch import KeyRuns, column_keys

    words = np.ascontiguousarray(values).view(np.uint32)

    def extract(columns: Int64) -> tuple[KeyRuns, Int64]:
        n, width = len(words), len(columns)
        key_weights = np.empty(n * width if len(weights) else 0, np.int64)
        runs = KeyRuns(np.empty(n * width, np.uint32), key_weights, np.arange(width) * n, np.empty(width, np.int64))
        missing = np.zeros(width, np.int64)
        column_keys(words, weights, columns, runs, missing)
        return runs, missing

    return extract


def _sparse_extract(rows: Csr, n_features: int, weights: Int64) -> Extract:
    from daskboost.devices.cpu.sketch import KeyRuns, entry_keys

    n_rows, lengths = len(rows.indptr) - 1, np.bincount(rows.indices, minlength=n_features)

    def extract(columns: Int64) -> tuple[KeyRuns, Int64]:
        """Keys of the features from the first to the last of the columns; those between are passed over."""
        places = np.full(n_features, -1, np.int64)
        places[columns] = np.concatenate([[0], np.cumsum(lengths[columns][:-1])])
        n = int(lengths[columns].sum())
        keys, key_weights = np.empty(n, np.uint32), np.empty(n if len(weights) else 0, np.int64)
        ends, stored = np.empty(n_features, np.int64), np.zeros(n_features, np.int64)
        entry_keys(rows, weights, KeyRuns(keys, key_weights, places, ends), stored)
        return KeyRuns(keys, key_weights, places[columns], ends[columns]), n_rows - stored[columns]

    return extract
