"""Arrays of one value per row, which people give and get as vectors or as matrices of one column."""

from __future__ import annotations

from daskboost.dtypes import Array


def flat(values: Array) -> Array:
    """Return a view of a matrix of one column as a vector, shape (rows,); any other array as it is."""
    return values[:, 0] if values.shape[1:] == (1,) else values


def in_columns(values: Array) -> Array:
    """Return a view of a vector as a matrix of one column, shape (rows, 1); any other array in its own shape."""
    return values.reshape(len(values), *(values.shape[1:] or (1,)))
