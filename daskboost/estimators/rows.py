"""Functions of rows, applied to what `Booster.predict` returns: at once to arrays, lazily to Dask collections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from daskboost.data.kinds import DEVICE_KINDS, kind_of
from daskboost.model.route import frame_of

if TYPE_CHECKING:
    import cudf
    import pandas as pd

RowFunction = Callable[[Any], Any]
_IN, _OUT = "xy", "op"
"""Names of an array's axes behind its rows, before and after."""


def map_rows(result: Any, function: RowFunction, names: str | Sequence[Any]) -> Any:
    """Apply a function to every row.

    Parameters
    ----------
    result : numpy or CuPy array, Dask Array, Dask Series or DataFrame
    function : callable
        Arrays of shape (rows, ...) to arrays of as many rows; picklable; also called with no rows, for the dtype.
    names : str or sequence
        Of the resulting Series, or of the resulting DataFrame's columns.
    """
    kind = kind_of(result)
    if kind == "numpy" or kind in DEVICE_KINDS:
        return function(result)
    if kind == "dask_dataframe":
        return result.map_partitions(
            _map_frame, function, names, meta=_map_frame(result._meta, function, names), enforce_metadata=False
        )
    import dask.array as da

    empty = function(np.empty_like(result._meta, shape=(0, *result.shape[1:]), dtype=result.dtype))
    return da.blockwise(
        function,
        "r" + _OUT[: empty.ndim - 1],
        result,
        "r" + _IN[: result.ndim - 1],
        new_axes=dict(zip(_OUT, empty.shape[1:], strict=False)),
        concatenate=True,
        dtype=empty.dtype,
        meta=empty,
    )


def _map_frame(
    frame: pd.DataFrame | pd.Series | cudf.DataFrame, function: RowFunction, names: str | Sequence[Any]
) -> pd.DataFrame | pd.Series | cudf.DataFrame:
    if kind_of(frame) == "cudf":
        return frame_of(function(frame.to_cupy()), frame.index, names if isinstance(names, str) else list(names))
    import pandas as pd

    values = function(np.asarray(frame))
    if not isinstance(names, str):
        return pd.DataFrame(values, index=frame.index, columns=list(names))
    # a Series of strings takes pandas' string type, also when it is empty and has nothing to infer it from
    dtype = pd.Series(["a"]).dtype if values.dtype == object else values.dtype
    return pd.Series(values, index=frame.index, name=names, dtype=dtype)
