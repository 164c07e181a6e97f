"""The same rows as a frame, or a column, of every library that is read by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import narwhals as nw
import narwhals.stable.v1 as stable
import pandas as pd
import polars as pl
import pyarrow as pa


class Stream:
    """An object of a library that nobody knows, which exports its rows as an Arrow C stream."""

    columns = ("not", "to be read")

    def __init__(self, data: Any) -> None:
        self.data = data

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.data.__arrow_c_stream__(requested_schema)


class Batch:
    """The same, exporting an Arrow C array."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self.data.__arrow_c_array__(requested_schema)


def _table(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False)


def _chunked(frame: pd.DataFrame) -> pl.DataFrame:
    half = len(frame) // 2
    return pl.concat([pl.from_pandas(frame[:half]), pl.from_pandas(frame[half:])], rechunk=False)


LOCAL_FRAMES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "pyarrow": pa.table,
    "record batch": lambda frame: pa.RecordBatch.from_pandas(frame, preserve_index=False),
    "reader": lambda frame: _table(frame).to_reader(),
    "polars": pl.from_pandas,
    "chunked polars": _chunked,
    "narwhals of polars": lambda frame: nw.from_native(pl.from_pandas(frame)),
    "stable narwhals": lambda frame: stable.from_native(pl.from_pandas(frame)),
    "narwhals of pandas": nw.from_native,
    "narwhals of pyarrow": lambda frame: nw.from_native(_table(frame)),
    "stream": lambda frame: Stream(_table(frame)),
    "batch": lambda frame: Batch(pa.RecordBatch.from_pandas(frame, preserve_index=False)),
}
"""Kinds of frames in memory, made of a pandas frame."""

COLUMNS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda values: pd.Series(values).to_numpy(),
    "list": list,
    "pandas": pd.Series,
    "arrow": pa.array,
    "chunked arrow": lambda values: pa.chunked_array([pa.array(values)[:2], pa.array(values)[2:]]),
    "polars": pl.Series,
    "polars frame": lambda values: pl.DataFrame({"v": values}),
    "narwhals": lambda values: nw.from_native(pl.Series(values), series_only=True),
    "narwhals of pandas": lambda values: nw.from_native(pd.Series(values), series_only=True),
    "stream": lambda values: Stream(pa.chunked_array([pa.array(values)])),
}
"""Kinds of columns in memory, made of a list or a NumPy array."""
