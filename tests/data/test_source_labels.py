"""Labels of any type become codes; summaries of labels merge in any order."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies.frames import COLUMNS

from daskboost.data.input.blocks import DaskFrameBlocks
from daskboost.data.input.classes import class_codes, merge_classes, unique_labels
from daskboost.data.input.labels import LabelStats, column_labels, find_classes
from daskboost.data.input.row_batch import DenseRows
from daskboost.data.input.row_columns import RowBatch, RowColumns
from daskboost.data.input.source import Source, make_source
from daskboost.errors import DataError, DataTypeError

TYPES: dict[str, list[Any]] = {
    "text": ["dog", "cat", "cat", "emu", "dog", "cat"],
    "numbers": [30, 10, 10, 40, 30, 10],
    "booleans": [True, False, False, True, True, False],
    "floats": [0.5, -1.5, -1.5, 2.5, 0.5, -1.5],
}


def batches(source: Source) -> list[Any]:
    return list(source.batches())


def containers(labels: list[Any]) -> dict[str, Any]:
    series = pd.Series(labels)
    return {
        "list": labels,
        "numpy": np.array(labels),
        "object": np.array(labels, dtype=object),
        "pandas": series,
        "nullable": series.convert_dtypes(),
        "category": series.astype("category"),
        "arrow": pa.array(labels),
        "chunked": pa.chunked_array([labels[:2], labels[2:]]),
        "frame": series.to_frame(),
        **{kind: made(labels) for kind, made in COLUMNS.items()},
        **({"categorical": pl.Series(labels, dtype=pl.Categorical)} if isinstance(labels[0], str) else {}),
    }


@pytest.mark.parametrize("kind", TYPES)
def test_labels_of_any_type_and_container(kind: str) -> None:
    labels = TYPES[kind]
    for name, y in containers(labels).items():
        source = make_source(np.ones((6, 1)), y)
        classes = find_classes(source)
        assert classes.tolist() == sorted(set(labels)), name
        (batch,) = batches(source.with_classes(classes))
        assert batch.columns.label.dtype == np.float32
        assert classes[batch.columns.label.astype(int)].tolist() == labels


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("n_partitions", range(1, 8))
def test_classes_absent_from_partitions(kind: str, n_partitions: int) -> None:
    labels = TYPES[kind] * 2
    ddf = dd.from_pandas(pd.DataFrame({"x": 1.0, "y": labels}), npartitions=n_partitions)
    for source in (make_source(ddf, "y"), make_source(ddf[["x"]], ddf.y)):
        classes = find_classes(source)
        assert classes.tolist() == sorted(set(labels))
        batches = dask.compute(*source.with_classes(classes).delayed(), scheduler="synchronous")
        assert classes[np.concatenate([b.columns.label for b in batches]).astype(int)].tolist() == labels


def test_labels_are_found_without_reading_features(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": range(6), "y": TYPES["text"]})
    (tmp_path / "d").mkdir()
    for i in range(2):
        frame[3 * i : 3 * i + 3].to_parquet(tmp_path / "d" / f"{i}.parquet")
    for X in (frame, pa.table(frame), tmp_path / "d", dd.read_parquet(tmp_path / "d")):
        source = make_source(X, "y")
        labels = dask.compute(*column_labels(source))
        assert sorted(np.concatenate([np.asarray(block) for block in labels])) == sorted(TYPES["text"])
        assert find_classes(source).tolist() == ["cat", "dog", "emu"]
    blocks = make_source(dd.read_parquet(tmp_path / "d"), "y").x
    assert isinstance(blocks, DaskFrameBlocks) and blocks.data["y"].optimize().expr.columns == ["y"]
    with pytest.raises(DataError, match="y is missing"):
        column_labels(make_source(frame[["x"]]))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.one_of(st.integers(-5, 5), st.integers(2**62, 2**63 - 1)), max_size=5), min_size=1, max_size=6)
)
def test_merging_integers_is_exact(parts: list[list[int]]) -> None:
    if not any(parts):
        return
    arrays = [unique_labels(np.array(part, dtype=np.int64)) for part in parts]
    assert merge_classes(arrays).tolist() == sorted({n for part in parts for n in part})
    assert merge_classes(arrays[::-1]).tolist() == merge_classes(arrays).tolist()


KINDS = ("bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64")


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([0, 1], [0, 1]), ([0, 1, 2, 5], [0, 1, 2, 3, 4, 5]), ([1, 0], [1, 0]), ([0, 1], [False, True]),
        ([0, 1, 3], [0.0, 1.0, 2.0, 3.0]), ([-3, 7], [-3, 7]), ([0, 100], [0, 100]), ([-128, 127], [127, -128]),
        ([0, 2000], [0, 2000]), ([-30_000, 30_000], [-30_000, 30_000]), ([2**62, 2**62 + 1], [2**62, 2**62 + 1]),
        ([0.5, 1], [0.5, 1]), ([-0.0, 1], [0, 1]),
    ],
)  # fmt: skip
def test_codes_are_places_among_the_classes(dtype: str, values: list[Any], classes: list[Any]) -> None:
    """Also of labels that are codes themselves, and of integers that are counted instead of sorted."""
    with np.errstate(over="ignore"):
        labels = np.resize(np.array(values).astype(dtype), 40_000)
    if labels[: len(values)].tolist() != values:
        pytest.skip("the type does not have these labels")
    found = unique_labels(labels)
    assert found.dtype == labels.dtype and found.tolist() == sorted(set(labels.tolist()))
    assert not np.signbit(found[found == 0]).any()
    codes = class_codes(labels, classes)
    assert codes.dtype == np.float32 and not np.signbit(codes).any()
    np.testing.assert_array_equal(codes, [classes.index(value) for value in labels.tolist()])


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "float32", "float64"])
@pytest.mark.parametrize("strange", [-1, 3, 0.5, np.inf])
def test_labels_that_are_no_codes_are_refused(dtype: str, strange: float) -> None:
    if (np.dtype(dtype).kind != "f" and strange in (0.5, np.inf)) or (dtype == "uint8" and strange < 0):
        return
    labels = np.zeros(40_000, dtype)
    labels[-1] = strange
    with pytest.raises(DataError, match=rf"not among the 3 classes: {strange}.*The classes are 0, 1, 2\."):
        class_codes(labels, [0, 1, 2])


def test_unsigned_labels_beyond_int64_are_told_apart() -> None:
    labels = np.resize(np.array([2**64 - 1, 2**64 - 3], np.uint64), 1000)
    assert unique_labels(labels).tolist() == [2**64 - 3, 2**64 - 1]
    assert class_codes(labels, [2**64 - 3, 2**64 - 1]).tolist() == [1.0, 0.0] * 500


def test_signed_and_unsigned_integers_merge_exactly() -> None:
    big = 2**60 + 1
    merged = merge_classes([np.array([-1]), np.array([big], dtype=np.uint64)])
    assert merged.dtype == np.int64 and merged.tolist() == [-1, big]
    with pytest.raises(DataTypeError, match=f"signed integers with {2**64 - 1}"):
        merge_classes([np.array([-1]), np.array([2**64 - 1], dtype=np.uint64)])


def test_mixed_labels_are_refused() -> None:
    for mixed in ([1, "a"], [True, 2, 3], [True, "a"], [(1, 2), "a"]):
        labels = np.empty(len(mixed), dtype=object)
        labels[:] = mixed
        with pytest.raises(DataTypeError, match=r"y holds labels of the types .*all be strings"):
            unique_labels(labels)
    with pytest.raises(DataTypeError, match="y holds labels of the types int, str"):
        find_classes(make_source(np.ones((2, 1)), [1, "a"]))
    with pytest.raises(DataTypeError, match="y mixes numbers and strings in its partitions"):
        merge_classes([np.array([1]), np.array(["a"], dtype=object), np.array([], dtype=object)])
    with pytest.raises(DataTypeError, match="y mixes booleans and numbers"):
        merge_classes([np.array([1]), np.array([True])])
    with pytest.raises(DataTypeError, match="y is of type datetime64"):
        unique_labels(pd.Series(pd.date_range("2020", periods=2)))


@pytest.mark.parametrize(
    "labels",
    [[1.0, np.nan], np.array(["a", None], dtype=object), pd.Series(["a", None]), pd.Series([1, None], dtype="Int64"),
     pd.Series([True, None], dtype="boolean"), pa.array(["a", None]), pd.Series(["a", None], dtype="category")],
)  # fmt: skip
def test_missing_labels_are_refused(labels: Any) -> None:
    with pytest.raises(DataError, match=r"y has 1 missing labels.*Drop these rows"):
        unique_labels(labels)
    source = make_source(np.ones((2, 1)), labels).with_classes(np.array(["a", "b"]))
    with pytest.raises(DataError, match="y has 1 missing labels"):
        list(source.batches())


def test_no_labels_at_all() -> None:
    with pytest.raises(DataError, match="y has no rows"):
        merge_classes([np.array([]), np.array([], dtype=object)])


def test_unknown_labels_are_named() -> None:
    y = pd.Series(["cat", "cow", "dog", "ant"])
    ddf = dd.from_pandas(pd.DataFrame({"x": 1.0, "y": y}), npartitions=2, sort=False)
    source = make_source(ddf, "y").with_classes(np.array(["cat", "dog", "cow"]))
    with pytest.raises(
        DataError, match=r"partition 1: y has labels that are not among the 3 classes: 'ant'\. .*'cat', 'dog'"
    ):
        list(source.batches())
    numbers = make_source(np.ones((3, 1)), [0, 1, 7]).with_classes(np.array([0, 1]))
    with pytest.raises(DataError, match=r"not among the 2 classes: 7"):
        list(numbers.batches())
    text = make_source(np.ones((2, 1)), ["0", "1"]).with_classes(np.array([0, 1]))
    with pytest.raises(DataError, match=r"not among the 2 classes: '0', '1'"):
        list(text.batches())


def test_codes_follow_the_order_of_the_classes_and_match_by_value() -> None:
    source = make_source(np.ones((3, 1)), [0, 1, 1])
    assert [b.columns.label.tolist() for b in batches(source.with_classes(np.array([1, 0])))] == [[1, 0, 0]]
    assert [b.columns.label.tolist() for b in batches(source.with_classes(np.array([0.0, 1.0])))] == [[0, 1, 1]]
    assert [b.columns.label.tolist() for b in batches(source.with_classes(np.array([False, True])))] == [[0, 1, 1]]


@pytest.mark.parametrize("classes", [[], [1, 1], ["a", "a"]])
def test_classes_must_be_distinct(classes: list[Any]) -> None:
    with pytest.raises(DataError, match="classes must be distinct and at least one"):
        make_source(np.ones((2, 1)), [1, 1]).with_classes(np.array(classes))


def batch(label: list[float], weight: list[float] | None = None) -> RowBatch:
    rows = DenseRows(np.zeros((len(label), 1), dtype=np.float32))
    weights = None if weight is None else np.array(weight, np.float32)
    return RowBatch(rows, RowColumns(np.array(label, np.float32), weights))


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.floats(-9, 9, width=32), st.sampled_from([0.0, 0.5, 2.0])), max_size=5),
        min_size=1,
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_label_stats_do_not_depend_on_partitions(parts: list[list[tuple[float, float]]], random: Any) -> None:
    stats = [LabelStats.of(batch([y for y, _ in part], [w for _, w in part])) for part in parts]
    shuffled = list(stats)
    random.shuffle(shuffled)
    rows = [row for part in parts for row in part]
    whole = LabelStats.of(batch([y for y, _ in rows], [w for _, w in rows]))
    assert reduce(add, stats) == reduce(add, shuffled) == reduce(add, stats, LabelStats()) == whole
    assert whole.n_rows == len(rows) and whole.positive_weight_rows == sum(w > 0 for _, w in rows)
    if rows:
        assert (whole.minimum, whole.maximum) == (min(y for y, _ in rows), max(y for y, _ in rows))
        assert whole.all_integer == all(float(y).is_integer() for y, _ in rows)


def test_label_stats_without_weights() -> None:
    stats = LabelStats.of(batch([1.0, 3.0]))
    assert stats == LabelStats(2, 1.0, 3.0, True, 1.0, 2)
    stats.check_trainable()


def test_data_with_nothing_to_learn_from() -> None:
    with pytest.raises(DataError, match="X has no rows in any partition"):
        (LabelStats.of(batch([])) + LabelStats()).check_trainable()
    with pytest.raises(DataError, match=r"weight is 0 in all 2 rows. Give at least one row a positive weight"):
        LabelStats.of(batch([1, 2], [0, 0])).check_trainable()


def test_classes_of_arrays_with_unknown_chunks() -> None:
    y = da.from_array(np.array(TYPES["numbers"]), chunks=2)
    X = da.ones((6, 2), chunks=2)
    source = make_source(X[y > 10], y[y > 10])
    assert find_classes(source).tolist() == [30, 40]
