"""Data for a model that exists: frames are matched by name, matrices by position."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from strategies.frames import LOCAL_FRAMES

from daskboost.data.input.row_batch import FeatureSchema
from daskboost.data.input.source import make_source
from daskboost.errors import DataError, DataTypeError

FRAME = pd.DataFrame(np.arange(12.0).reshape(4, 3), columns=["a", "b", "c"])
SCHEMA = make_source(FRAME).schema


def values(X: Any, **options: Any) -> np.ndarray:
    source = make_source(X, schema=SCHEMA, **options)
    assert source.schema is SCHEMA
    return np.concatenate([batch.features.on_host().values for batch in source.batches()])


def test_reordered_and_further_columns_are_matched_by_name(tmp_path: Path) -> None:
    other = FRAME[["c", "a", "b"]].assign(text="x", y=1)
    other.to_parquet(tmp_path / "x.parquet")
    kinds: list[Callable[[pd.DataFrame], Any]] = [*LOCAL_FRAMES.values()]
    kinds += [lambda frame: dd.from_pandas(frame, npartitions=2), lambda _: tmp_path / "x.parquet"]
    for made in kinds:
        np.testing.assert_array_equal(values(made(other)), FRAME.to_numpy())
        np.testing.assert_array_equal(values(made(other), y="y"), FRAME.to_numpy())


def test_missing_columns_are_named() -> None:
    made = [each(FRAME[["b"]]) for each in LOCAL_FRAMES.values()]
    for X in (*made, dd.from_pandas(FRAME[["b"]], npartitions=2)):
        with pytest.raises(DataError, match=r"X lacks 2 of the 3 feature columns used in training: 'a', 'c'.*has: 'b'"):
            make_source(X, schema=SCHEMA)
    with pytest.raises(DataError, match="'A'"):
        make_source(FRAME, schema=FeatureSchema(("A", "b", "c"), ("float",) * 3))


def test_columns_of_another_type_are_named() -> None:
    X = FRAME.assign(b="x")
    for kind in (*(each(X) for each in LOCAL_FRAMES.values()), dd.from_pandas(X, npartitions=2)):
        with pytest.raises(DataTypeError, match=r"column 'b' is of type (large_)?str.*, but held numbers in training"):
            make_source(kind, schema=SCHEMA)


def test_other_numeric_types_are_accepted() -> None:
    np.testing.assert_array_equal(values(FRAME.astype({"a": "Int64", "b": "float16"})), FRAME.to_numpy())


def test_matrices_are_matched_by_position_and_count() -> None:
    X = FRAME.to_numpy()
    for kind in (X, X.tolist(), da.from_array(X, chunks=2)):
        np.testing.assert_array_equal(values(kind), X)
    for kind in (X[:, :2], np.hstack([X, X]), sp.csr_matrix(X[:, :2]), da.from_array(X[:, :2], chunks=2)):
        with pytest.raises(
            DataError, match=rf"X has {kind.shape[1]} features, but 3 were used in training \('a', 'b', 'c'"
        ):
            make_source(kind, schema=SCHEMA)


def test_named_matrices_are_matched_by_name() -> None:
    X = FRAME.to_numpy()[:, [2, 0, 1]]
    np.testing.assert_array_equal(values(X, feature_names=["c", "a", "b"]), FRAME.to_numpy())
    np.testing.assert_array_equal(values(da.from_array(X, chunks=2), feature_names=["c", "a", "b"]), FRAME.to_numpy())
    source = make_source(sp.csr_matrix(X + 1), schema=SCHEMA, feature_names=["c", "a", "b"])
    (batch,) = source.batches()
    np.testing.assert_array_equal(batch.features.on_host().values.reshape(4, 3), FRAME.to_numpy() + 1)
    with pytest.raises(DataError, match=r"X lacks 1 of the 3 feature columns.*'b'"):
        make_source(X, schema=SCHEMA, feature_names=["c", "a", "d"])


def test_a_frame_for_a_model_without_names_is_matched_by_position() -> None:
    unnamed = make_source(FRAME.to_numpy()).schema
    (batch,) = make_source(FRAME.assign(y=1), "y", schema=unnamed).batches()
    np.testing.assert_array_equal(batch.features.on_host().values, FRAME.to_numpy())
    with pytest.raises(DataError, match=r"X has 4 features, but 3 were used in training. Pass"):
        make_source(FRAME.assign(y=1), schema=unnamed)


def test_column_names_that_are_numbers_match_their_text() -> None:
    numbered = pd.DataFrame(FRAME.to_numpy(), columns=[10, 20, 30])
    source = make_source(numbered, 20)
    assert source.schema.names == ("10", "30")
    (batch,) = make_source(numbered[[30, 10]], schema=source.schema).batches()
    np.testing.assert_array_equal(batch.features.on_host().values, FRAME[["a", "c"]].to_numpy())
    (batch,) = make_source(dd.from_pandas(numbered, npartitions=1), "20", weight=30).batches()
    np.testing.assert_array_equal(batch.columns.label, FRAME.b)
    np.testing.assert_array_equal(batch.columns.weight, FRAME.c)


def test_feature_names_choose_and_order_a_frames_columns() -> None:
    source = make_source(dd.from_pandas(FRAME.assign(text="x"), npartitions=1), "a", feature_names=["c", "b"])
    assert source.schema.names == ("c", "b")
    (batch,) = source.batches()
    np.testing.assert_array_equal(batch.features.on_host().values, FRAME[["c", "b"]].to_numpy())
