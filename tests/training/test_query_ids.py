"""Query ids of rows, from every kind of input to the chunks of a data set, and what is refused of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from daskboost import QuantizedDataset
from daskboost.data.input.queries import LARGEST_BITS
from daskboost.errors import DataError, DataTypeError, ParameterError

X = np.arange(20.0).reshape(10, 2)
Y = np.arange(10) % 3
IDS = np.array([7, 7, -2, 7, 0, 0, -2, 2**60, 2**60 + 1, 0])
"""In any order; the last two large ones are the same float64."""


def codes(data: QuantizedDataset) -> Any:
    """Return the codes of all rows, in order."""
    entries = [entry for shard in data.shards.shards for entry in shard.entries]
    return np.concatenate([entry.rows.qid for entry in entries])


def same_groups(a: Any, b: Any) -> bool:
    """Whether two columns of ids divide the rows alike."""
    return bool(((a[:, None] == a) == (b[:, None] == b)).all())


@pytest.mark.parametrize("given", [
    IDS, IDS.tolist(), pd.Series(IDS), pd.Series(IDS).astype("Int64"), pa.chunked_array([IDS[:4], IDS[4:]]),
    IDS.astype(np.uint64), IDS.astype(object),
], ids=["array", "list", "pandas", "nullable", "arrow", "unsigned", "objects"])  # fmt: skip
def test_integers_are_their_own_codes(given: Any) -> None:
    assert np.array_equal(codes(QuantizedDataset(X, Y, qid=given)), IDS)


def test_integers_of_64_bits_without_a_sign_have_one_code_in_any_container() -> None:
    ids = (IDS + 2).astype(np.uint64) + np.uint64(2**63)
    assert np.array_equal(codes(QuantizedDataset(X, Y, qid=ids.astype(object))), codes(QuantizedDataset(X, Y, qid=ids)))


def test_whole_floats_have_the_codes_of_integers() -> None:
    small = IDS % 5
    assert np.array_equal(codes(QuantizedDataset(X, Y, qid=small.astype(np.float32))), small)


@pytest.mark.parametrize("make", [
    lambda texts: texts, lambda texts: np.array(texts), lambda texts: pd.Series(texts, dtype="category"),
    lambda texts: pa.array(texts), lambda texts: pa.array(texts).dictionary_encode(),
], ids=["list", "array", "category", "arrow", "dictionary"])  # fmt: skip
def test_texts_have_the_same_code_in_any_container(make: Any) -> None:
    texts = [f"query {number}" for number in IDS]
    found = codes(QuantizedDataset(X, Y, qid=make(texts)))
    assert same_groups(found, IDS)
    assert np.array_equal(found, codes(QuantizedDataset(X, Y, qid=texts)))


def test_a_named_column_is_no_feature(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": X[:, 0], "q": [f"q{number}" for number in IDS], "y": Y})
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=4)
    expected = codes(QuantizedDataset(frame, "y", qid="q"))
    for rows in (frame, dd.from_pandas(frame, npartitions=3), str(tmp_path / "rows.parquet")):
        data = QuantizedDataset(rows, "y", qid="q", chunk_rows=3)
        assert data.schema.names == ("a",)
        assert np.array_equal(codes(data), expected)


def test_saved_rows_keep_their_queries(tmp_path: Path) -> None:
    QuantizedDataset(X, Y, qid=IDS, chunk_rows=3).save(tmp_path / "data")
    opened = QuantizedDataset.open(tmp_path / "data")
    assert opened.info.has("qid")
    assert np.array_equal(codes(opened), IDS)


def test_groups_are_queries_of_neighbouring_rows() -> None:
    assert codes(QuantizedDataset(X, Y, group=[3, 0, 6, 1])).tolist() == [0] * 3 + [2] * 6 + [3]


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"qid": [1, 2]}, DataError, "qid has 2 rows, but X has 10"),
    ({"qid": [1.0, np.nan] * 5}, DataError, "qid has 5 missing values"),
    ({"qid": pd.Series([1, None] * 5, dtype="Int64")}, DataError, "qid has 5 missing values"),
    ({"qid": ["a", None] * 5}, DataError, "qid has 5 missing values"),
    ({"qid": [1.5] * 10}, DataError, "no whole numbers below 2**53, e.g. 1.5"),
    ({"qid": [2.0**LARGEST_BITS + 2] * 10}, DataError, "no whole numbers"),
    ({"qid": np.full(10, 2**24, np.float32)}, DataError, "no whole numbers below 2**24, e.g. 16777216.0"),
    ({"qid": [-np.inf] * 10}, DataError, "no whole numbers"),
    ({"qid": [2**70] * 10}, DataError, "do not fit 64 bits"),
    ({"qid": np.array([-1, 2**63] * 5, object)}, DataError, "do not fit 64 bits"),
    ({"qid": ["a", 1] * 5}, DataTypeError, "of the types int, str"),
    ({"qid": np.array(["2020-01-01"] * 10, "M8[D]")}, DataTypeError, "qid is of type datetime64[D]"),
    ({"qid": np.zeros((10, 2))}, DataError, "qid has 2 columns"),
    ({"qid": "query"}, DataError, "X has no column names"),
    ({"group": [3, 3]}, DataError, "group sums to 6 rows, but X has 10"),
    ({"group": [3.5, 6.5]}, ParameterError, "group=[3.5, 6.5]"),
    ({"group": [11, -1]}, ParameterError, "group=[11, -1]"),
    ({"group": [[3, 7], [0]]}, ParameterError, "group=[[3, 7], [0]]"),
    ({"group": [3, 7], "qid": IDS}, ParameterError, "qid and group both"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "error", "message"), BAD)
def test_bad_ids_are_refused(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        QuantizedDataset(X, Y, **given)


def test_groups_of_rows_that_are_not_counted_are_refused() -> None:
    frame = dd.from_pandas(pd.DataFrame(X, columns=["a", "b"]), npartitions=2)
    with pytest.raises(ParameterError, match="name the query of each row by qid"):
        QuantizedDataset(frame, group=[5, 5])


def test_partitions_of_numbers_and_of_texts_are_refused(tmp_path: Path) -> None:
    """The number 2 and the text "2" would be two queries, which crosses no border only by chance."""
    frames = [pd.DataFrame(X, columns=["a", "b"]).assign(y=Y, q=ids) for ids in (IDS, IDS.astype(str))]
    for number, frame in enumerate(frames):
        frame.to_parquet(tmp_path / f"{number}.parquet")
    with pytest.raises(DataTypeError, match="qid holds numbers in some partitions and texts in others"):
        QuantizedDataset(tmp_path, "y", qid="q")
