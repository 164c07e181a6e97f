"""A number gives the same float32 in every dtype and container that can hold it, and missing stays missing."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import hypothesis.extra.numpy as hnp
import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from daskboost.data.input import row_batch
from daskboost.data.input.source import Source, make_source
from daskboost.errors import DataError

F32_MAX = float(np.finfo(np.float32).max)
COUNTS = st.integers(0, 30)
FLOATS = st.floats(-1e38, 1e38, allow_nan=True)
INT64 = st.integers(-(2**63), 2**63 - 1)


def batches(source: Source) -> list[Any]:
    return list(source.batches())


def read(X: Any, **options: Any) -> np.ndarray:
    return np.concatenate(
        [batch.features.on_host().values for batch in make_source(X, schema=None, **options).batches()]
    )


def assert_bits_equal(got: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(np.signbit(got[~np.isnan(got)]), np.signbit(wanted[~np.isnan(wanted)]))


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.float16, np.float32, np.float64]),
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=6),
        elements=st.floats(-60_000, 60_000, width=16),
    )
)
def test_floats_are_cast(values: np.ndarray) -> None:
    expected = values.astype(np.float32)
    for X in (values, np.asfortranarray(values), values[::-1][::-1], pd.DataFrame(values)):
        assert_bits_equal(read(X), expected)
    if values.dtype != np.float16:
        assert_bits_equal(read(pa.table({str(i): values[:, i] for i in range(values.shape[1])})), expected)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), INT64), min_size=1, max_size=20))
def test_large_integers_round_once_with_and_without_nulls(numbers: list[int | None]) -> None:
    present = np.array([0 if n is None else n for n in numbers], dtype=np.int64)
    expected = np.where([n is None for n in numbers], np.float32(np.nan), present.astype(np.float32))
    nullable = pd.Series(numbers, dtype="Int64")
    for column in (nullable, nullable.astype(pd.ArrowDtype(pa.int64()))):
        assert_bits_equal(read(pd.DataFrame({"a": column}))[:, 0], expected)
    assert_bits_equal(read(pa.table({"a": pa.array(numbers, type=pa.int64())}))[:, 0], expected)
    assert_bits_equal(read(pd.DataFrame({"a": present}))[:, 0], present.astype(np.float32))
    assert_bits_equal(read(present.reshape(-1, 1))[:, 0], present.astype(np.float32))
    masked = np.ma.MaskedArray(present.reshape(-1, 1), mask=[[n is None] for n in numbers])
    assert_bits_equal(read(masked)[:, 0], expected)


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [(f"{sign}int{bits}", "int") for sign in ("", "u") for bits in (8, 16, 32, 64)]
    + [("bool", "i"), ("float16", "float"), ("float32", "float"), ("float64", "float"), ("longdouble", "float")],
)
def test_numpy_dtypes(dtype: str, kind: str) -> None:
    values = np.array([[0, 1], [1, 0], [1, 1]]).astype(dtype)
    for X in (values, pd.DataFrame(values), da.from_array(values, chunks=(2, 1)), dd.from_pandas(pd.DataFrame(values))):
        source = make_source(X)
        assert source.schema.kinds == (kind, kind)
        np.testing.assert_array_equal(
            np.concatenate([b.features.on_host().values for b in source.batches()]), values
        )


NULLABLE = [
    ("Int8", "int"), ("UInt64", "int"), ("Float32", "float"), ("Float64", "float"), ("boolean", "i"),
    *[(pd.ArrowDtype(t), "int") for t in (pa.int16(), pa.uint64())],
    *[(pd.ArrowDtype(t), "float") for t in (pa.float32(), pa.float64())], (pd.ArrowDtype(pa.bool_()), "i"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "kind"), NULLABLE, ids=lambda value: str(value))
@pytest.mark.parametrize("nulls", ["none", "some", "all"])
def test_nullable_dtypes(dtype: Any, kind: str, nulls: str) -> None:
    cells: Any = {"none": [1, 0, 1], "some": [1, None, 0], "all": [None, None, None]}[nulls]
    frame = pd.DataFrame({"a": pd.Series(cells, dtype=dtype), "b": [1.5, 2.5, 3.5]})
    expected = np.array([[np.nan if c is None else c, b] for c, b in zip(cells, frame.b, strict=True)], np.float32)
    for X in (frame, pa.table(frame), dd.from_pandas(frame, npartitions=2)):
        source = make_source(X)
        assert source.schema.kinds == (kind, "float")
        np.testing.assert_array_equal(
            np.concatenate([b.features.on_host().values for b in source.batches()]), expected
        )


POLARS: list[tuple[Any, list[Any], str, list[float]]] = [
    *[(dtype, [1, None, 3], "int", [1, np.nan, 3]) for dtype in (pl.Int8, pl.Int16, pl.Int32, pl.UInt8, pl.UInt32)],
    (pl.Int64, [2**62 + 2**38 + 1, None, -3], "int", [2**62 + 2**39, np.nan, -3]),  # rounded once
    (pl.UInt64, [2**64 - 1, None, 0], "int", [2**64, np.nan, 0]),
    (pl.Float32, [0.5, None, float("nan")], "float", [0.5, np.nan, np.nan]),
    (pl.Float64, [0.1, None, -0.0], "float", [0.1, np.nan, -0.0]),
    (pl.Boolean, [True, None, False], "i", [1, np.nan, 0]),
    (pl.Null, [None, None, None], "float", [np.nan, np.nan, np.nan]),
]


@pytest.mark.parametrize(("dtype", "cells", "kind", "expected"), POLARS, ids=lambda value: str(value))
def test_polars_dtypes(dtype: Any, cells: list[Any], kind: str, expected: list[float]) -> None:
    frame = pl.DataFrame({"a": pl.Series(cells, dtype=dtype), "b": [1.5, 2.5, 3.5]})
    for X in (frame, nw.from_native(frame), frame[:2].extend(frame[2:]), pl.concat([frame[:1], frame[1:]])):
        assert make_source(X).schema.kinds == (kind, "float")
        assert_bits_equal(read(X), np.array([expected, [1.5, 2.5, 3.5]], np.float32).T)


def test_pandas_sparse_columns_and_null_columns() -> None:
    frame = pd.DataFrame({"a": pd.arrays.SparseArray([0.0, 1.0, 0.0]), "b": [1, 2, 3]})
    np.testing.assert_array_equal(read(frame), [[0, 1], [1, 2], [0, 3]])
    nulls = pa.table({"a": pa.nulls(3), "b": pa.array([1, 2, 3])})
    np.testing.assert_array_equal(read(nulls), [[np.nan, 1], [np.nan, 2], [np.nan, 3]])


def test_chunked_arrow_columns() -> None:
    table = pa.table({"a": pa.chunked_array([[1, None], [], [3]], type=pa.int32())})
    np.testing.assert_array_equal(read(table)[:, 0], [1, np.nan, 3])


def test_a_partition_whose_column_is_all_null_may_lose_its_type() -> None:
    parts = [pd.DataFrame({"a": [1.0, 2.0]}), pd.DataFrame({"a": pd.Series([None, None], dtype=object)})]
    ddf = dd.from_delayed([dask.delayed(part) for part in parts], meta=parts[0], verify_meta=False)
    np.testing.assert_array_equal(read(ddf)[:, 0], [1, 2, np.nan, np.nan])


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(np.float32, (5, 3), elements=st.sampled_from([0.0, -0.0, 1.0, -999.0, 0.1, np.nan])),
    st.sampled_from([0, -999, 0.1, np.float32(0.1), np.nan, None]),
)
def test_users_missing_value(values: np.ndarray, missing: Any) -> None:
    code = np.float32(np.nan if missing is None else missing)
    expected = np.where(values == code, np.float32(np.nan), values)
    before = values.copy()
    for X in (values, values.astype(np.float64), pd.DataFrame(values), da.from_array(values, chunks=(2, 2))):
        np.testing.assert_array_equal(read(X, missing=missing), expected)
    np.testing.assert_array_equal(values, before)  # the user's array is as it was


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(np.float64, (6, 4), elements=st.sampled_from([0.0, 1.0, -999.0, np.nan])),
    st.sampled_from([0, -999, np.nan]),
    st.sampled_from([np.float32, np.float64]),
)
def test_missing_in_sparse_data(values: np.ndarray, missing: float, dtype: Any) -> None:
    rows, columns = np.nonzero(np.ones_like(values))  # all entries stored, zeros too
    X = sp.csr_array((values.ravel().astype(dtype), (rows, columns)), shape=values.shape)
    (batch,) = batches(make_source(X, missing=missing))
    dense = np.full(values.shape, np.nan, dtype=np.float32)
    row = np.repeat(np.arange(len(values)), np.diff(batch.features.indptr))
    dense[row, batch.features.indices] = batch.features.values
    np.testing.assert_array_equal(dense, np.where(values == missing, np.nan, values))
    assert not np.isnan(batch.features.values).any()
    assert X.nnz == values.size


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, np.bool_, np.float64])
def test_sparse_dtypes(dtype: Any) -> None:
    X = sp.csr_matrix(np.array([[0, 1], [1, 1]], dtype=dtype))
    (batch,) = batches(make_source(X))
    assert batch.features.values.tolist() == [1, 1, 1] and batch.features.values.dtype == np.float32


def test_an_infinite_missing_value_is_missing_before_it_is_refused() -> None:
    np.testing.assert_array_equal(read(np.array([[1.0, np.inf]]), missing=np.inf), [[1, np.nan]])


def test_the_largest_values_below_the_limit_are_kept() -> None:
    edge = np.nextafter(np.float32(F32_MAX), np.float32(0))
    np.testing.assert_array_equal(read(np.array([[edge, -edge]])), [[edge, -edge]])


def test_a_missing_value_beyond_float32_is_found_without_a_warning() -> None:
    np.testing.assert_array_equal(read(np.array([[1.0, 1e300]]), missing=1e300), [[1, np.nan]])


@pytest.mark.parametrize("kind", ["float32", "float64", "int16", "columns", "strided", "frame", "mixed frame", "arrow"])
def test_reading_does_not_depend_on_threads(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each converts and checks rows of its own, also values beyond float32 without a warning."""
    monkeypatch.setattr(row_batch, "VALUES_PER_THREAD", 1)
    values = np.random.default_rng(0).normal(scale=100, size=(203, 5))
    rows: Any = {
        "columns": np.asfortranarray(values), "strided": values[::2, ::-1], "frame": pd.DataFrame(values),
        "mixed frame": pd.DataFrame(values).astype({1: "float32", 2: "int32"}),
        "arrow": pa.table({f"f{i}": values[:, i] for i in range(5)}),
    }.get(kind)
    if rows is None:
        rows = values.astype(kind)
    read = [list(make_source(rows).batches(threads)) for threads in (1, 2, 7)]
    matrices = [np.concatenate([batch.features.on_host().matrix() for batch in batches]) for batches in read]
    assert all(matrix.dtype == np.float32 and matrix.flags.c_contiguous for matrix in matrices)
    assert len({matrix.tobytes() for matrix in matrices}) == 1


def test_missing_values_are_counted_on_any_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_batch, "VALUES_PER_THREAD", 1)
    monkeypatch.setattr(row_batch, "BLOCK_ROWS", 30)
    values = np.random.default_rng(0).normal(size=(203, 5)).astype(np.float32)
    values[60:90, 2] = np.nan
    values[202, 4] = np.nan
    for threads in (1, 2, 7):
        assert row_batch.DenseRows(values).missing_values(threads).tolist() == [0, 0, 30, 0, 1]
    assert row_batch.DenseRows(values[:0]).missing_values(7).tolist() == [0] * 5


def test_threads_say_what_is_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_batch, "VALUES_PER_THREAD", 1)
    values = np.random.default_rng(0).normal(scale=100, size=(203, 5))
    values[150, 3] = 1e39
    for threads in (1, 7):
        for large in (pd.DataFrame(values), np.asfortranarray(values)):
            with pytest.raises(DataError, match=r"too large for float32 \(3\.4e38\) in: '(f3|3)'"):
                list(make_source(large).batches(threads))
