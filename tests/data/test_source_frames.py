"""Frames that cannot be read by name are refused in words, never read as bare arrays."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from daskboost import QuantizedDataset, train
from daskboost.data.input.source import make_source
from daskboost.errors import DataError, DataTypeError

X = np.arange(12, dtype=np.float64).reshape(6, 2)
FRAME = pd.DataFrame(X, columns=["a", "b"])
Y = np.arange(6)


POLARS_COLUMNS: dict[str, tuple[pl.Series, str]] = {
    "decimal": (pl.Series([Decimal("1.5")] * 6), "make them numbers or texts"),
    "date": (pl.Series([date(2020, 1, 1)] * 6), "total_seconds"),
    "datetime": (pl.Series([datetime(2020, 1, 1)] * 6), "total_seconds"),
    "duration": (pl.Series([timedelta(1)] * 6), "dt.total_seconds"),
    "list": (pl.Series([[1]] * 6), "make them numbers or texts"),
    "object": (pl.Series([{1}] * 6, dtype=pl.Object), "make them numbers or texts"),
}


@pytest.mark.parametrize("bad", POLARS_COLUMNS)
def test_polars_columns_that_cannot_be_features_are_named(bad: str) -> None:
    column, remedy = POLARS_COLUMNS[bad]
    frame = pl.from_pandas(FRAME).with_columns(strange=column, odd=column)
    for X in (frame, nw.from_native(frame)):
        with pytest.raises(DataTypeError, match=r"X has 2 column\(s\).*'strange' \(.*'odd' \(") as error:
            make_source(X, "a")
        assert remedy in str(error.value)
    assert make_source(frame, feature_names=["a", "b"]).schema.names == ("a", "b")


def test_types_that_arrow_lacks_are_refused_in_words() -> None:
    frame = pl.DataFrame({"a": pl.Series([1, 2], dtype=pl.Int128)})
    for name, value in (("X", frame), ("y", frame["a"]), ("weight", frame["a"])):
        args: dict[str, Any] = {"X": np.ones((2, 1)), name: value}
        with pytest.raises(DataTypeError, match=rf"{name} is of type polars.*cannot be read through Arrow.*Cast"):
            make_source(**args)


LAZY: dict[str, Callable[[], Any]] = {
    "polars": lambda: pl.from_pandas(FRAME).lazy(),
    "narwhals": lambda: nw.from_native(pl.from_pandas(FRAME).lazy()),
}


@pytest.mark.parametrize("name", ["X", "y", "weight", "base_margin"])
@pytest.mark.parametrize("kind", LAZY)
def test_lazy_frames_are_refused_in_words(kind: str, name: str) -> None:
    args: dict[str, Any] = {"X": X, name: LAZY[kind]()}
    with pytest.raises(DataTypeError, match=rf"{name} is of type .*LazyFrame, a lazy frame.*pass {name}\.collect\(\)"):
        make_source(**args)


class Named:
    """A frame of a library that nobody knows, which would become a bare array."""

    def __init__(self, mark: str) -> None:
        setattr(self, mark, ["a", "b"])

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return X

    def __len__(self) -> int:
        return len(X)


@pytest.mark.parametrize("mark", ["columns", "column_names", "__dataframe__"])
@pytest.mark.parametrize("name", ["X", "y", "weight", "base_margin"])
def test_what_has_column_names_is_never_read_as_a_bare_array(mark: str, name: str) -> None:
    args: dict[str, Any] = {"X": X, name: Named(mark)}
    with pytest.raises(DataTypeError, match=rf"{name} is of type .*Named, .* but has column names"):
        make_source(**args)


@pytest.mark.parametrize("made", [pd.Series, pl.Series, pa.array, lambda v: pa.chunked_array([v])])
def test_lists_of_columns_are_not_read_as_rows(made: Callable[[Any], Any]) -> None:
    with pytest.raises(DataTypeError, match=r"X is a list of .*rows without names\. Join them to one frame"):
        make_source([made(X[:, 0]), made(X[:, 1])])


@pytest.mark.parametrize("made", [pd.Series, pl.Series, pa.array])
def test_single_columns_are_no_features(made: Callable[[Any], Any]) -> None:
    with pytest.raises(DataError, match=r"X has 1 dimension\(s\), but must have 2.*Reshape"):
        make_source(made(X[:, 0]))


def test_a_column_named_none() -> None:
    """Which pandas takes for NaN in a list of names."""
    frame, y = pd.DataFrame(np.arange(12.0).reshape(6, 2)), np.arange(6.0)
    frame.columns = pd.Index(["x", None], dtype=object)
    found = QuantizedDataset(frame[frame.columns[::-1]], y)
    expected = QuantizedDataset(frame.set_axis(["x", "None"], axis=1).iloc[:, ::-1], y)
    assert found.cuts.values.tobytes() == expected.cuts.values.tobytes()
    with pytest.raises(DataError, match="columns used in training: 'None'"):
        train({"device": "cpu"}, found, 1).predict(frame[["x"]])
