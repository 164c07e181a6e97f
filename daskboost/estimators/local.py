"""What scikit-learn's users expect of input in memory beyond what every input gets: their wording, their leniency."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from daskboost.devices.gpu.input import is_device_array
from daskboost.errors import DataError, DataTypeError


def features_of(X: Any, owner: str, n_expected: int | None = None) -> Any:
    """X, arrays of objects turned into numbers; anything that has column names, and Dask collections, as they are.

    Parameters
    ----------
    X : any input of `fit` or `predict`
    owner : str
        The estimator, for messages.
    n_expected : int, optional
        Features of the training data.

    Raises
    ------
    DataError, DataTypeError
        No features, another number of them than in training; complex numbers, objects that are no numbers.
    """
    if _is_array_like(X):
        X = _numbers(X)
    shape: tuple[int, ...] = getattr(X, "shape", ())
    if hasattr(X, "columns") or len(shape) != 2:
        return X
    if shape[1] == 0:
        raise DataError(
            f"X has 0 feature(s) (shape=({shape[0]}, 0)) while a minimum of 1 is required. Pass at least one column."
        )
    if n_expected is not None and shape[1] != n_expected:
        raise DataError(
            f"X has {shape[1]} features, but {owner} is expecting {n_expected} features as input. Pass the columns of "
            "the training data, in its order."
        )
    return X


def column_of(values: Any) -> Any:
    """Weights or base margins; what only knows how to become an array becomes one."""
    if hasattr(values, "__array__") and not hasattr(values, "__len__") and not hasattr(values, "__dask_graph__"):
        return np.asarray(values)
    return values


def labels_of(y: Any) -> Any:
    """Like `column_of`; labels of shape (rows, 1) are accepted with scikit-learn's DataConversionWarning."""
    y = column_of(y)
    if isinstance(y, np.ndarray) and y.ndim == 2 and y.shape[1] == 1:
        from sklearn.exceptions import DataConversionWarning

        warnings.warn(
            "A column-vector y was passed when a 1d array was expected. Change its shape to (n_samples,), e.g. with "
            "y.ravel().",
            DataConversionWarning,
            stacklevel=4,
        )
        return y.ravel()
    return y


def _is_array_like(X: Any) -> bool:
    """NumPy arrays, and what can become one; not frames, sparse matrices, Arrow tables, Dask collections, nor what lies
    in a GPU's memory."""
    if isinstance(X, list | tuple):
        return True
    if is_device_array(X):
        return False
    return hasattr(X, "__array__") and not any(hasattr(X, name) for name in ("columns", "__dask_graph__", "tocsr"))


def _numbers(X: Any) -> Any:
    try:
        array = X if isinstance(X, np.ma.MaskedArray) else np.asarray(X)
    except ValueError:
        return X  # rows of different lengths: refused where all input is opened
    if array.dtype.kind == "c":
        raise DataTypeError(
            f"X is of type {array.dtype}. Complex data not supported: pass real and imaginary parts as two features."
        )
    if array.dtype.kind != "O" or array.ndim != 2:
        return array
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        message = f"X is an array of objects that are not all numbers: {error}. Encode them as numbers."
        raise DataTypeError(message) from error
