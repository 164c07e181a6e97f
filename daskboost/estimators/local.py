"""What scikit-learn's users expect of input in memory beyond what every input gets: their wording, their leniency."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from daskboost.data.kinds import NAMED_KINDS, as_array, kind_of
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
    kind = kind_of(X)
    if kind == "numpy":
        X = _numbers(X)
    shape: tuple[int, ...] = getattr(X, "shape", ())
    if kind in NAMED_KINDS or len(shape) != 2:
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


def labels_of(y: object) -> object:
    """Return labels; arrays of shape (rows, 1) as vectors, with scikit-learn's DataConversionWarning."""
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


def _numbers(X: object) -> npt.NDArray[Any]:
    array = as_array(X)
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
