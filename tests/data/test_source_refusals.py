"""Bad input: refused before any work where metadata tells, else when read, with a message that names the fault."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse as sp

from daskboost import QuantizedDataset, train
from daskboost.data.input.source import Source, make_source
from daskboost.errors import DataError, DataTypeError, ParameterError

X = np.arange(12, dtype=np.float64).reshape(6, 2)
FRAME = pd.DataFrame(X, columns=["a", "b"])
Y = np.arange(6)


def never(block: Any) -> Any:
    raise AssertionError("computed although the metadata was enough")


def uncomputable(frame: pd.DataFrame) -> Any:
    return dd.from_pandas(frame, npartitions=2).map_partitions(never, meta=frame.iloc[:0])


def batches(source: Source) -> list[Any]:
    return list(source.batches())


def given(name: str, value: Any) -> dict[str, Any]:
    return {name: value}


def read_all(*args: Any, **kwargs: Any) -> None:
    batches(make_source(*args, **kwargs))


BAD_COLUMNS = {
    "datetime": (pd.Series(pd.date_range("2020", periods=6)), "total_seconds"),
    "timezone": (pd.Series(pd.date_range("2020", periods=6, tz="UTC")), "total_seconds"),
    "timedelta": (pd.Series(pd.timedelta_range("1s", periods=6)), "dt.total_seconds"),
    "complex": (pd.Series([1j] * 6), "real and imaginary"),
    "arrow decimal": (pd.Series([1] * 6, dtype=pd.ArrowDtype(pa.decimal128(5, 1))), "make them numbers or texts"),
    "interval": (pd.Series(pd.interval_range(0, 6)), "make them numbers or texts"),
    "period": (pd.Series(pd.period_range("2020", periods=6)), "make them numbers or texts"),
}


@pytest.mark.parametrize("bad", BAD_COLUMNS)
def test_columns_that_cannot_be_features_are_named_before_anything_is_computed(bad: str) -> None:
    column, remedy = BAD_COLUMNS[bad]
    frame = FRAME.assign(strange=column, odd=column)
    for kind in (frame, uncomputable(frame)):
        with pytest.raises(DataTypeError, match=r"X has 2 column\(s\).*'strange' \(.*'odd' \(") as error:
            make_source(kind, "a")
        assert remedy in str(error.value)


def test_parquet_and_arrow_columns_that_cannot_be_features_are_named(tmp_path: Path) -> None:
    table = pa.table({"a": [1], "s": ["x"], "b": pa.array([b"x"]), "t": pa.array([0], pa.date32())})
    pa.parquet.write_table(table, tmp_path / "x.parquet")
    for kind in (table, tmp_path / "x.parquet"):
        with pytest.raises(DataTypeError, match=r"2 column\(s\).*'b' \(binary\), 't' \(date32"):
            make_source(kind)


def test_a_column_that_is_text_in_one_of_many_files_is_named(tmp_path: Path) -> None:
    for i, values in enumerate(([1], [5], ["x"])):
        pa.parquet.write_table(pa.table({"a": values, "y": [0]}), tmp_path / f"{i}.parquet")
    with pytest.raises(DataTypeError, match="column 'a' mixes"):
        QuantizedDataset(tmp_path, "y")
    pa.parquet.write_table(pa.table({"a": [0.5], "y": [0]}), tmp_path / "1.parquet")
    (tmp_path / "2.parquet").unlink()
    assert make_source(tmp_path, "y").schema.kinds == ("float",)


@pytest.mark.parametrize("dtype", [object, "U3", "datetime64[s]", "timedelta64[s]", complex])
def test_arrays_that_are_not_numbers(dtype: Any) -> None:
    for kind in (X.astype(dtype), da.from_array(X.astype(dtype), chunks=3)):
        with pytest.raises(DataTypeError, match=r"X is an array of type .* not a number.*astype"):
            make_source(kind)


def test_sparse_matrix_of_complex_numbers() -> None:
    with pytest.raises(DataTypeError, match="complex128"):
        make_source(sp.csr_matrix(X.astype(complex)))


def test_a_partition_of_another_type_than_its_metadata_is_named() -> None:
    parts = [FRAME, FRAME.assign(b="text")]
    ddf = dd.from_delayed([dask.delayed(part) for part in parts], meta=FRAME, verify_meta=False)
    with pytest.raises(DataTypeError, match=r"partition 1: column 'b' is of type str.*not a number"):
        read_all(ddf)


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e39, -1e39, float(np.finfo(np.float32).max)])
def test_infinities_name_the_column(value: float) -> None:
    bad = X.copy()
    bad[4, 1] = value
    message = r"infinite or too large for float32.*in: '{}'\. Replace"
    with pytest.raises(DataError, match=message.format("f1")):
        read_all(bad)
    with pytest.raises(DataError, match=message.format("b")):
        read_all(pd.DataFrame(bad, columns=["a", "b"]))
    with pytest.raises(DataError, match=message.format("f1")):
        read_all(sp.csr_matrix(bad))
    ddf = dd.from_pandas(pd.DataFrame(bad, columns=["a", "b"]), npartitions=3)
    source = make_source(ddf)
    with pytest.raises(DataError, match="partition 2: X has values that are infinite"):
        batches(source)
    with pytest.raises(DataError, match="partition 2: X has values that are infinite"):
        dask.compute(*source.delayed(), scheduler="synchronous")
    with pytest.raises(DataError, match="partition 2: X has values that are infinite"):
        dask.compute(*make_source(ddf.to_dask_array(), None).delayed(), scheduler="synchronous")


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf, -np.inf, 1e39])
def test_bad_weights(value: float) -> None:
    weight = np.ones(6)
    weight[2] = value
    with pytest.raises(DataError, match=r"weight has 1 values that are negative, missing or infinite.*at least 0"):
        read_all(X, Y, weight=weight)
    with pytest.raises(DataError, match="partition 1: weight has 1 values"):
        read_all(dd.from_pandas(FRAME.assign(w=weight), npartitions=3), "a", weight="w")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, "y has 1 missing values.*Drop these rows"),
        (np.inf, "y has 1 values that are infinite"),
        (1e39, "y has 1 val"),
    ],
)
def test_bad_labels(value: float, message: str) -> None:
    y = Y.astype(float)
    y[5] = value
    with pytest.raises(DataError, match=message):
        read_all(X, y)
    nullable = pd.Series(y, dtype="Float64")
    with pytest.raises(DataError, match=message):
        read_all(FRAME, nullable)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_bad_base_margins(value: float) -> None:
    margin = np.zeros((6, 2))
    margin[1, 1] = value
    with pytest.raises(DataError, match=r"base_margin has 1 .*Replace them by finite raw scores"):
        read_all(X, Y, base_margin=margin)


def test_text_labels_without_classes_are_refused_before_anything_is_computed() -> None:
    for y in (np.array(list("xyzxyz")), pd.Series(list("xyzxyz")), list("xyzxyz"), pa.array(list("xyzxyz")),
              pl.Series(list("xyzxyz"))):  # fmt: skip
        source = make_source(X, y)
        for read in (source.batches, source.delayed):
            with pytest.raises(DataTypeError, match=r"y is of type .*needs numbers.*DaskBoostClassifier"):
                read()
    source = make_source(uncomputable(FRAME.assign(t="text")), "t")
    with pytest.raises(DataTypeError, match=r"y is of type str.*DaskBoostClassifier"):
        source.delayed()
    with pytest.raises(DataTypeError, match=r"y holds 'x' of type str, which is not a number"):
        read_all(X, np.array(["x"] * 6, dtype=object))


def test_labels_weights_and_margins_of_other_types() -> None:
    dates = pd.Series(pd.date_range("2020", periods=6))
    with pytest.raises(DataTypeError, match=r"y is of type datetime64.*numbers, booleans or strings"):
        make_source(FRAME, dates)
    with pytest.raises(DataTypeError, match=r"y is of type datetime64"):
        make_source(uncomputable(FRAME.assign(d=dates)), "d")
    for name in ("weight", "base_margin"):
        with pytest.raises(DataTypeError, match=rf"{name} is of type str.*must be a number"):
            make_source(uncomputable(FRAME.assign(t="text")), "a", **given(name, "t"))
        with pytest.raises(DataTypeError, match=rf"{name} is of type object"):
            make_source(X, Y, **given(name, [None, *"abcde"]))
        with pytest.raises(DataTypeError, match=rf"{name} is of type csr_matrix"):
            make_source(X, Y, **given(name, sp.csr_matrix(X)))


@pytest.mark.parametrize("name", ["y", "weight", "base_margin"])
def test_other_lengths(name: str) -> None:
    for kind in (X, FRAME, pa.table(FRAME), sp.csr_matrix(X), da.from_array(X, chunks=2)):
        with pytest.raises(DataError, match=rf"{name} has 5 rows, but X has 6"):
            make_source(kind, **given(name, np.ones(5)))


@pytest.mark.parametrize("name", ["y", "weight", "base_margin"])
def test_other_lengths_inside_a_dask_partition(name: str) -> None:
    ddf = dd.from_pandas(FRAME, npartitions=3)
    other = dd.from_delayed([dask.delayed(pd.Series)([1.0] * n) for n in (2, 3, 2)], meta=pd.Series([1.0]))
    source = make_source(ddf, **given(name, other))
    for read in (lambda: batches(source), lambda: dask.compute(*source.delayed(), scheduler="synchronous")):
        with pytest.raises(DataError, match=rf"partition 1: {name} has 3 rows where X has 2"):
            read()


@pytest.mark.parametrize("name", ["y", "weight", "base_margin"])
def test_other_numbers_of_partitions(name: str) -> None:
    ddf = dd.from_pandas(FRAME, npartitions=3)
    with pytest.raises(DataError, match=rf"{name} has 2 partitions, but X has 3\. Cut both"):
        make_source(ddf, **given(name, dd.from_pandas(FRAME.a, npartitions=2)))
    with pytest.raises(DataError, match=rf"{name} has 2 partitions, but X has 3"):
        make_source(da.from_array(X, chunks=2), **given(name, da.ones(6, chunks=3)))
    with pytest.raises(DataError, match=rf"{name} has partitions of 1, 3, 2 rows, but X of 2, 2, 2\. Cut.*rechunk"):
        make_source(da.from_array(X, chunks=2), **given(name, da.ones(6, chunks=((1, 3, 2),))))


@pytest.mark.parametrize("name", ["y", "weight", "base_margin"])
def test_local_and_dask_collections_that_cannot_be_aligned(name: str) -> None:
    with pytest.raises(
        DataError, match=rf"{name} is a ndarray, but X is a Dask collection whose.*lengths are not known"
    ):
        make_source(dd.from_pandas(FRAME, npartitions=2), **given(name, Y))
    array = da.from_array(X, chunks=2)
    with pytest.raises(DataError, match=rf"{name} is a Series, but X is a Dask.*not known"):
        make_source(array[array[:, 0] > 0], **given(name, pd.Series(Y)))
    with pytest.raises(DataError, match=rf"{name} is a Dask collection, but X is not\. Pass {name}\.compute"):
        make_source(X, **given(name, da.ones(6, chunks=2)))
    with pytest.raises(DataTypeError, match=rf"{name} is of type .*Bag, which is not supported"):
        make_source(array, **given(name, db.from_sequence(range(6))))


def test_more_than_one_label_column() -> None:
    for y in (np.ones((6, 2)), FRAME, pa.table(FRAME)):
        with pytest.raises(DataError, match="y has 2 columns, but must have one"):
            make_source(X, y)
    assert [b.columns.label.shape for b in batches(make_source(X, np.ones((6, 1))))] == [(6,)]
    assert [b.columns.label.shape for b in batches(make_source(X, pa.table(FRAME[["a"]])))] == [(6,)]


def test_margins_of_different_width() -> None:
    blocks = [dask.delayed(np.ones)((3, n)) for n in (2, 1)]
    margin = da.concatenate([da.from_delayed(block, shape=(3, 2), dtype=float) for block in blocks])
    with pytest.raises(DataError, match="partition 1: base_margin has 1 columns here, but 2 elsewhere"):
        read_all(da.from_array(X, chunks=(3, 2)), base_margin=margin)


def test_zero_rows() -> None:
    for kind in (X[:0], FRAME[:0], pa.table(FRAME[:0]), sp.csr_matrix(X)[:0], da.from_array(X, chunks=2)[:0]):
        with pytest.raises(DataError, match=r"X has 0 rows. Pass at least one row"):
            make_source(kind)
    schema = make_source(X).schema
    assert [batch.n_rows for batch in make_source(X[:0], schema=schema).batches()] == [0]  # nothing to predict is fine
    with pytest.raises(DataError, match="X has 0 rows"):
        make_source(X[:0], Y[:0], schema=schema)


def test_zero_columns() -> None:
    for kind in (X[:, :0], sp.csr_matrix(X)[:, :0], da.from_array(X[:, :0], chunks=(2, 0))):
        with pytest.raises(DataError, match=r"X has 0 columns. Pass at least one feature"):
            make_source(kind)
    for frame in (FRAME[["a"]], dd.from_pandas(FRAME[["a"]], npartitions=2)):
        with pytest.raises(DataError, match=r"X has no feature columns; it has 'a'"):
            make_source(frame, "a")


@pytest.mark.parametrize("names", [["a", "a"], [1, "1"]])
def test_duplicate_column_names(names: list[Any], tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=names)
    with pytest.raises(DataError, match=rf"X has duplicate column names: '{names[0]}'\. Rename"):
        make_source(frame)
    with pytest.raises(DataError, match="feature_names has duplicate column names: 'a'"):
        make_source(X, feature_names=["a", "a"])
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["z", "z"])
    pa.parquet.write_table(table, tmp_path / "z.parquet")
    for kind in (table, tmp_path / "z.parquet"):
        with pytest.raises(DataError, match="duplicate column names: 'z'"):
            make_source(kind)


def test_names_of_columns_that_are_not_there() -> None:
    for name in ("y", "weight", "base_margin"):
        with pytest.raises(DataError, match=rf"{name} is 'labl', but X has no such column\. Did you mean 'label'\?"):
            make_source(FRAME.assign(label=1), **given(name, "labl"))
        with pytest.raises(DataError, match=rf"{name} is 'label', but X has no column names"):
            make_source(X, **given(name, "label"))
    with pytest.raises(DataError, match=r"feature_names has names that are no columns of X: 'c'\. X has 'a', 'b'"):
        make_source(FRAME, feature_names=["a", "c"])
    with pytest.raises(DataError, match="feature_names has 'a', which is the label"):
        make_source(FRAME, "a", feature_names=["a", "b"])
    with pytest.raises(DataError, match="feature_names has 3 names, but X has 2 columns"):
        make_source(X, feature_names=list("abc"))


@pytest.mark.parametrize("kind", [X[:, 0], da.ones(6, chunks=2), np.ones((2, 2, 2))])
def test_other_dimensions(kind: Any) -> None:
    with pytest.raises(DataError, match=rf"X has {kind.ndim} dimension\(s\), but must have 2.*[Rr]eshape your data"):
        make_source(kind)


@pytest.mark.parametrize("kind", [{"a": [1]}, 5, None, dask.delayed(X), iter([1])])
def test_unsupported_containers(kind: Any) -> None:
    with pytest.raises(
        DataTypeError, match=rf"X is of type .*{type(kind).__name__}, which is not supported\. Pass a Dask"
    ):
        make_source(kind)


def test_ragged_lists() -> None:
    with pytest.raises(DataError, match=r"X cannot be turned into an array.*same length"):
        make_source([[1, 2], [3]])


@pytest.mark.parametrize("missing", ["NA", True, [0]])
def test_missing_value_that_is_no_number(missing: Any) -> None:
    with pytest.raises(ParameterError, match=rf"missing is {re.escape(repr(missing))}, but must be a number"):
        make_source(X, missing=missing)


def test_parquet_paths_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere', where there is no file or directory"):
        make_source(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"has no files named \*\.parquet"):
        make_source(tmp_path)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(DataError, match=r"broken\.parquet cannot be read as Parquet"):
        make_source(tmp_path)
    (tmp_path / "broken.parquet").unlink()
    FRAME.to_parquet(tmp_path / "0.parquet")
    FRAME.rename(columns={"b": "c"}).to_parquet(tmp_path / "1.parquet")
    with pytest.raises(DataError, match=r"1\.parquet has other columns than the files before it: \['b', 'c'\]"):
        make_source(tmp_path)
    FRAME.assign(c=1).to_parquet(tmp_path / "hive", partition_cols=["c"])
    with pytest.raises(DataError, match=r"holds columns in directory names \(c=1.*read_parquet"):
        make_source(tmp_path / "hive")


def test_what_is_no_column_of_rows() -> None:
    with pytest.raises(TypeError, match="'weights' is no column of rows: y, weight, base_margin"):
        make_source(X, Y, weights=Y)


@pytest.mark.parametrize("kind", ["pandas", "categories", "pyarrow"])
def test_a_partition_that_lacks_a_column_is_named(kind: str) -> None:
    frame = pd.DataFrame({"a": np.arange(6.0), "b": list("xyxyxy") if kind == "categories" else np.arange(6.0)})
    if kind == "pyarrow":
        frame = frame.convert_dtypes(dtype_backend="pyarrow")
    parts = [frame, frame[["a"]]]
    lazy = dd.from_delayed([dask.delayed(part) for part in parts], meta=frame.iloc[:0], verify_meta=False)
    model = train({"device": "cpu"}, QuantizedDataset(frame, np.arange(6.0)), 1)
    for call in (
        lambda: QuantizedDataset.from_dask(lazy, dd.from_pandas(pd.Series(np.arange(12.0)), npartitions=2)),
        lambda: model.predict(lazy).compute(),
    ):
        with pytest.raises(DataError, match=r"partition 1: X lacks column 'b', which its other partitions"):
            call()


def parts_of(kind: str) -> Any:
    """A sparse matrix that says 2 columns and has an index of 5, as SciPy lets be made."""
    made = sp.csr_matrix(np.ones((6, 2)))
    if kind == "csr":
        made.indices[3] = 5
    elif kind == "negative":
        made.indices[3] = -1
    elif kind == "ends":
        made.indptr[2] = 11
    elif kind == "csc":
        made = made.tocsc()
        made.indices[3] = 6
    else:
        made = made.tocoo()
        made.col[3] = 5
    return made


@pytest.mark.parametrize("kind", ["csr", "negative", "ends", "csc", "coo"])
def test_indices_that_a_sparse_matrix_has_no_room_for(kind: str) -> None:
    """Which compiled loops would take for places in memory."""
    model = train({"device": "cpu"}, QuantizedDataset(sp.csr_matrix(X), Y), 1)
    for call in (lambda: QuantizedDataset(parts_of(kind), Y), lambda: model.predict(parts_of(kind))):
        with pytest.raises(DataError, match=r"X is a sparse matrix (with an index of|whose `indptr`)"):
            call()
