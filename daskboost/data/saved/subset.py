"""Some rows of a data set: how they are named, and what is known of their labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from daskboost.data.chunks.shard import Shard
from daskboost.data.input.labels import LabelStats
from daskboost.data.input.row_batch import DenseRows
from daskboost.data.input.row_columns import RowBatch, RowColumns
from daskboost.dtypes import Bool
from daskboost.errors import ParameterError


def row_mask(rows: Any, n_rows: int, name: str = "rows") -> Bool:
    """Which rows are meant; bool, shape (n_rows,).

    Parameters
    ----------
    rows : int array of positions, or bool array of shape (n_rows,)
    name : str
        What messages call them.

    Raises
    ------
    ParameterError
        No rows, rows that there are not, a row twice, or what is neither positions nor marks.
    """
    try:
        given = np.asarray(rows if hasattr(rows, "__array__") or not isinstance(rows, Iterable) else list(rows))
    except ValueError:  # of lists of different lengths
        given = np.empty((0, 0))
    if given.dtype == np.bool_:
        if given.shape != (n_rows,):
            raise ParameterError(f"{name} marks rows in an array of shape {given.shape}, and there are {n_rows} rows")
        mask = given.copy()
    else:
        if given.ndim != 1 or (len(given) and not np.issubdtype(given.dtype, np.integer)):
            raise ParameterError(
                f"{name} is an array of {given.dtype} of shape {given.shape}; give positions of rows as integers, or "
                f"one truth value for each of the {n_rows} rows"
            )
        mask = _marked(given, n_rows, name)
    if not mask.any():
        raise ParameterError(f"{name} has no rows; give at least one")
    return mask


def _marked(positions: Any, n_rows: int, name: str) -> Bool:
    mask: Bool = np.zeros(n_rows, np.bool_)
    if not len(positions):
        return mask
    low, high = int(positions.min()), int(positions.max())
    if low < 0 or high >= n_rows:
        raise ParameterError(
            f"{name} has position {low if low < 0 else high}; the {n_rows} rows are numbered 0 to {n_rows - 1}"
        )
    mask[positions] = True
    if np.count_nonzero(mask) < len(positions):
        twice = int(np.flatnonzero(np.bincount(positions, minlength=1) > 1)[0])
        raise ParameterError(
            f"{name} has row {twice} more than once; give each once, and a weight to rows that count more"
        )
    return mask


def selected_stats(shards: Iterable[Shard]) -> LabelStats:
    """The summary of the rows that count."""
    total = LabelStats()
    for shard in shards:
        for entry in shard.entries:
            rows = np.ones(entry.n_rows, np.bool_) if entry.selected is None else entry.selected
            nothing = DenseRows(np.empty((int(rows.sum()), 0), np.float32))
            total += LabelStats.of(RowBatch(nothing, RowColumns(entry.rows.label, entry.rows.weight).taken(rows)))
    return total
