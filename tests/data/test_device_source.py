"""Input in a GPU's memory, or a stand-in for it: the rows, refusals and words of the same input on the host."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from strategies.device_arrays import Place, place

from daskboost.data.input.row_batch import (
    DenseRows,
    DeviceColumn,
    DeviceDenseRows,
    DeviceRows,
    DeviceSparseRows,
    FeatureSchema,
)
from daskboost.data.input.source import make_source
from daskboost.errors import DataError

__all__ = ["place"]

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")

DTYPES = (
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
)  # fmt: skip


def numbers(dtype: str, rng: np.random.Generator, shape: tuple[int, int] = (70, 5)) -> Any:
    """The least, the greatest and the smallest numbers of a type, those that round, and plain ones."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    if kind.kind == "f":
        values = rng.standard_normal(shape).astype(kind)
        values.ravel()[:8] = [0.0, -0.0, np.nan, 1 / 3, 1e-7, -6e-8, 65504, -1e-5]
        if dtype != "float16":
            values.ravel()[8:12] = [1e-42, -1e-40, 3e38, 1e-46]
        return values
    info = np.iinfo(kind)
    values = rng.integers(info.min, info.max, shape, kind, endpoint=True)
    values.ravel()[:3] = [info.min, info.max, 0]
    return values


def assert_same(given: Any, host: Any, **arguments: Any) -> None:
    """The batches of both inputs are the same."""
    (found,), (expected,) = (list(make_source(X, **arguments).batches()) for X in (given, host))
    assert isinstance(found.features, DeviceRows)
    rows, wanted = found.features.on_host(), expected.features
    assert (rows.n_rows, rows.n_features) == (wanted.n_rows, wanted.n_features)
    if isinstance(rows, DenseRows):
        assert isinstance(wanted, DenseRows)
        np.testing.assert_array_equal(rows.values.view(np.uint32)[~np.isnan(rows.values)],
                                      wanted.values.view(np.uint32)[~np.isnan(wanted.values)])  # fmt: skip
        np.testing.assert_array_equal(np.isnan(rows.values), np.isnan(wanted.values))
        if isinstance(found.features, DeviceDenseRows):
            np.testing.assert_array_equal(found.features.n_missing, np.isnan(wanted.values).sum(axis=0))
    else:
        assert not isinstance(wanted, DenseRows)
        for name in ("indptr", "indices", "values"):
            assert getattr(rows, name).tobytes() == getattr(wanted, name).tobytes(), name
    for name in ("label", "weight", "base_margin"):
        np.testing.assert_array_equal(on_host(getattr(found.columns, name)), on_host(getattr(expected.columns, name)))


def on_host(column: Any) -> Any:
    return column.on_host if isinstance(column, DeviceColumn) else column


@pytest.mark.parametrize("order", ["C", "F", "strided"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_any_type(dtype: str, order: str, place: Place, rng: np.random.Generator) -> None:
    values = numbers(dtype, rng)
    if order == "strided":
        wide = numbers(dtype, rng, (140, 10))
        given, values = place.array(wide)[3::2, ::-3], wide[3::2, ::-3]
    else:
        given = place.array(np.asfortranarray(values) if order == "F" else values)
    assert_same(given, values)
    assert make_source(given).schema == make_source(values).schema


def test_float32_is_not_copied(place: Place, rng: np.random.Generator) -> None:
    values = rng.standard_normal((40, 3)).astype(np.float32)
    given = place.array(values)
    (batch,) = make_source(given).batches()
    assert isinstance(batch.features, DeviceDenseRows)
    if hasattr(given, "host"):
        assert np.shares_memory(batch.features.values, given.host)
    else:
        lent: Any = batch.features.values
        assert lent.data.ptr == given.data.ptr


@pytest.mark.parametrize("missing", [math.nan, 0.0, -1.0])
def test_missing_values_labels_weights_and_margins(missing: float, place: Place, rng: np.random.Generator) -> None:
    values = rng.integers(-2, 3, (80, 4)).astype(np.float32)
    values[rng.random(values.shape) < 0.1] = np.nan
    y, weight, margin = rng.integers(0, 9, 80), rng.random(80), rng.normal(size=(80, 2))
    found = make_source(place.array(values), place.array(y), weight=place.array(weight),
                        base_margin=place.array(margin), missing=missing)  # fmt: skip
    expected = make_source(values, y, weight=weight, base_margin=margin, missing=missing)
    (a,), (b,) = found.batches(), expected.batches()
    np.testing.assert_array_equal(a.features.on_host().values, b.features.on_host().values)
    for name in ("label", "weight", "base_margin"):
        assert on_host(getattr(a.columns, name)).tobytes() == getattr(b.columns, name).tobytes()
    assert isinstance(a.columns.label, DeviceColumn)
    assert_same(place.array(values), values, y=y, missing=missing)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("missing", [math.nan, 0.0])
def test_sparse_matrices(missing: float, dtype: str, place: Place, rng: np.random.Generator) -> None:
    matrix = scipy.sparse.random(60, 9, 0.3, "csr", dtype, rng)
    matrix.data[:6] = [0.0, np.nan, -0.0, 1e-42, 3e38, 1.5]
    matrix.sort_indices()
    assert_same(place.csr(matrix), matrix, missing=missing)
    (batch,) = make_source(place.csr(matrix), missing=missing).batches()
    assert isinstance(batch.features, DeviceSparseRows)


def frame(rng: np.random.Generator) -> pd.DataFrame:
    """Every kind of column, with nulls where the type has them."""
    n = 50
    columns: dict[str, Any] = {
        "f": pd.array(np.where(rng.random(n) < 0.2, np.nan, rng.random(n)), "float64"),
        "i": pd.array(rng.integers(-(2**60), 2**60, n), "Int64"),
        "u": pd.array(rng.integers(0, 200, n), "UInt8"),
        "b": pd.array(rng.random(n) < 0.5, "boolean"),
        "y": pd.array(rng.integers(0, 3, n), "int64"),
    }
    table = pd.DataFrame(columns)
    for name in ("i", "b"):
        table.loc[rng.random(n) < 0.2, name] = pd.NA
    return table


def test_frames(place: Place, rng: np.random.Generator) -> None:
    table = frame(rng)
    assert_same(place.frame(table), table, y="y")
    assert_same(place.frame(table), table, y="y", weight="u", base_margin=["u", "y"], feature_names=["b", "i"])
    y = table.pop("y")
    assert_same(place.frame(table), table, y=place.frame(y))
    assert_same(place.frame(table), table, y=y)
    found, expected = make_source(place.frame(table)), make_source(table)
    assert found.schema.names == expected.schema.names
    assert found.schema.kinds == expected.schema.kinds


def test_features_of_frames_do_not_go_to_the_host(
    place: Place, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever their types and nulls; margins do."""
    table = frame(rng)
    given = place.frame(table)

    def go_to_the_host(*_: Any, **__: Any) -> None:
        raise AssertionError("a column goes to the host")

    with monkeypatch.context() as patch:
        for kind in (type(given), type(given["f"])):
            for name in {"to_arrow", "to_pandas", "to_numpy"} & set(dir(kind)):
                patch.setattr(kind, name, go_to_the_host)
        (batch,) = make_source(given).batches()
        with pytest.raises(AssertionError, match="goes to the host"):
            list(make_source(given, base_margin=place.frame(table["y"])).batches())
    assert isinstance(batch.features, DeviceDenseRows)
    expected = next(iter(make_source(table).batches())).features.on_host()
    np.testing.assert_array_equal(batch.features.on_host().values, expected.values)


def refusal(**arguments: Any) -> str:
    with pytest.raises(DataError) as caught:
        list(make_source(**arguments).batches())
    return f"{type(caught.value).__name__}: {caught.value}"


BAD: dict[str, Any] = {
    "infinite": np.array([[1, np.inf, 2], [np.nan, 1, -np.inf]], np.float32),
    "too large": np.array([[1e39, 1.0]]),
    "the largest": np.array([[np.finfo(np.float32).max, 1.0]], np.float32),
    "one dimension": np.zeros(3, np.float32),
    "three dimensions": np.zeros((3, 2, 1), np.float32),
    "complex": np.zeros((3, 2), np.complex64),
    "no rows": np.zeros((0, 2), np.float32),
    "no columns": np.zeros((2, 0), np.float32),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arrays_are_refused_in_the_same_words(name: str, place: Place) -> None:
    assert refusal(X=place.array(BAD[name])) == refusal(X=BAD[name])


def test_other_bad_input_is_refused_in_the_same_words(place: Place, rng: np.random.Generator) -> None:
    X = rng.standard_normal((6, 2)).astype(np.float32)
    there = place.array(X)
    for y in (np.zeros(5), np.full(6, np.nan), np.zeros((6, 2)), np.full(6, np.inf), np.zeros((6, 1, 1))):
        assert refusal(X=there, y=place.array(y)) == refusal(X=X, y=y)
    for weight in (-np.ones(6), np.full(6, np.nan)):
        assert refusal(X=there, y=np.zeros(6), weight=place.array(weight)) == refusal(X=X, y=np.zeros(6), weight=weight)
    matrix = scipy.sparse.csr_matrix(X)
    matrix.data[3] = np.inf
    assert refusal(X=place.csr(matrix)) == refusal(X=matrix)
    assert "Pass a dense one-dimensional collection" in refusal(X=there, y=place.csr(matrix))
    assert refusal(X=there, y="label") == refusal(X=X, y="label")
    names = ["a", "b", "c"]
    assert refusal(X=there, feature_names=names) == refusal(X=X, feature_names=names)


def test_bad_frames_are_refused_in_the_same_words(place: Place) -> None:
    text = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}, dtype=object).astype({"a": "float64"})
    assert "column 'b' is of type object, but held numbers" in refusal(
        X=place.frame(text), schema=FeatureSchema(("a", "b"), ("float", "float"))
    )
    dates = pd.DataFrame({"a": pd.to_datetime(["2020-01-01", "2021-01-01"])})
    assert refusal(X=place.frame(dates)) == refusal(X=dates)
    large = pd.DataFrame({"a": [1.0, 1e300]})
    assert refusal(X=place.frame(large)) == refusal(X=large)
    assert refusal(X=place.frame(large), y="z") == refusal(X=large, y="z")
    with pytest.raises(DataError, match=r"X has 1 dimension\(s\)"):
        make_source(place.frame(large["a"]))


@pytest.mark.gpu
def test_batches_travel_between_processes(rng: np.random.Generator) -> None:
    """Dask may move a partition's rows to another worker."""
    import pickle

    import cupy

    values = rng.standard_normal((40, 3)).astype(np.float32)
    (batch,) = make_source(cupy.asarray(values), cupy.arange(40)).batches()
    assert isinstance(batch.features, DeviceDenseRows)
    found = pickle.loads(pickle.dumps(batch))
    assert isinstance(found.features, DeviceDenseRows)
    assert found.features.runtime is batch.features.runtime
    np.testing.assert_array_equal(found.features.on_host().values, values)
    np.testing.assert_array_equal(found.columns.label.on_host, np.arange(40))


@pytest.mark.emulated
def test_rows_are_read_on_the_gpu_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from kernels.emulation import EmulatedRuntime

    from daskboost.devices.gpu.runtime import cuda
    from daskboost.devices.gpu.runtime.user_arrays import runtime_of

    runtimes = {number: EmulatedRuntime() for number in (None, 0, 1)}
    monkeypatch.setattr(cuda, "get_runtime", lambda number=None: runtimes[number])
    on_second = SimpleNamespace(device=SimpleNamespace(id=1))
    assert runtime_of(on_second) is runtimes[1]
    assert runtime_of(SimpleNamespace(data=on_second, tocsr=None)) is runtimes[1], "a matrix of cupyx"
    assert runtime_of(SimpleNamespace()) is runtimes[None], "a frame of cuDF lies on the current one"
