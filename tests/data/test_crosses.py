"""Differences and products of columns: their values, which columns they are of, and what files may say of them."""

from __future__ import annotations

import json
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from reference import crosses as reference

from daskboost.data.categories.crosses import OPERATIONS, Cross, crosses_of
from daskboost.data.categories.encode import CategoryOptions, encoded
from daskboost.data.categories.encoder import Encoder
from daskboost.data.input.source import Source, make_source
from daskboost.dtypes import Float32
from daskboost.local.in_process import LocalRunner

CROSSES = (Cross((0, 2), "difference"), Cross((0, 1), "product"), Cross((1, 2), "product"))


def features(source: Source, crosses: tuple[Cross, ...] = CROSSES) -> tuple[Float32, Encoder]:
    """Return the features of a source's rows, and what has made them."""
    made = encoded(source, CategoryOptions(crosses=crosses), LocalRunner(1))
    assert isinstance(made.schema.encoder, Encoder)
    return np.concatenate([batch.features.on_host().matrix() for batch in made.batches()]), made.schema.encoder


def expected(x: Float32) -> Float32:
    columns = [x[:, column].tolist() for column in range(x.shape[1])]
    made = [reference.cross(own.operation, *(columns[column] for column in own.columns)) for own in CROSSES]
    return np.column_stack([x, np.array(made, np.float32).T])


@given(st.lists(st.lists(st.floats(width=32, allow_infinity=False), min_size=3, max_size=3), min_size=1, max_size=9))
def test_crosses_are_differences_and_products_and_missing_where_a_column_is(rows: list[list[float]]) -> None:
    x = np.array(rows, np.float32)
    x[np.abs(x) > 1e38] = np.nan
    found, _ = features(make_source(x))
    np.testing.assert_array_equal(found, expected(x))


def test_what_is_beyond_float32_is_missing() -> None:
    x = np.array([[3e38, 2.0, -3e38], [1.0, 2.0, 4.0]], np.float32)
    found, encoder = features(make_source(x))
    np.testing.assert_array_equal(found[:, 3:], [[np.nan, np.nan, np.nan], [-3, 2, 8]])
    assert encoder.schema.names == ("f0", "f1", "f2", "f0 - f2", "f0 * f1", "f1 * f2")
    assert encoder.schema.kinds[3:] == ("float",) * 3 and encoder.shared == ((0, 2), (0, 1), (1, 2))


@pytest.mark.parametrize("kind", ["frame", "sparse", "cluster"])
def test_kinds_of_rows_have_the_same_crosses(kind: str, rng: np.random.Generator) -> None:
    x = rng.integers(1, 9, (60, 3)).astype(np.float32)
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    cluster = dd.from_pandas(frame, npartitions=4)
    sources: dict[str, Any] = {"frame": frame, "sparse": scipy.sparse.csr_matrix(x), "cluster": cluster}
    found, encoder = features(make_source(sources[kind]))
    np.testing.assert_array_equal(found, expected(x))
    again = make_source(frame[["c", "a", "b"]] if kind == "frame" else sources[kind], schema=encoder.schema)
    np.testing.assert_array_equal(features(again)[0], expected(x))


class OnDevice(scipy.sparse.csr_matrix):  # type: ignore[misc]
    """Stands for CuPy's, whose rows `get` copies to the host."""

    def get(self) -> scipy.sparse.csr_matrix:
        return scipy.sparse.csr_matrix(self)


OnDevice.__module__ = "cupyx.scipy.sparse"


def test_sparse_rows_of_a_gpu_are_copied_to_the_host() -> None:
    x = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    _, encoder = features(make_source(x))
    spec = make_source(x, schema=encoder.schema).spec
    np.testing.assert_array_equal(encoder.derive(OnDevice(x), spec, {}), expected(x))


@pytest.mark.gpu
def test_sparse_rows_of_a_real_gpu_have_the_same_crosses() -> None:
    cupyx = pytest.importorskip("cupyx.scipy.sparse")
    x = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    _, encoder = features(make_source(x))
    spec = make_source(x, schema=encoder.schema).spec
    rows = cupyx.csr_matrix(scipy.sparse.csr_matrix(x))
    np.testing.assert_array_equal(encoder.derive(rows, spec, {}), expected(x))


def test_crosses_lie_behind_the_features_of_categories(rng: np.random.Generator) -> None:
    frame = pd.DataFrame({"size": rng.normal(size=80), "town": pd.Categorical(rng.choice(list("abc"), 80)),
                          "zone": rng.integers(0, 5, 80), "y": rng.normal(size=80)})  # fmt: skip
    plain, _ = features(make_source(frame, "y"), ())
    found, encoder = features(make_source(frame, "y"), (Cross((0, 2), "difference"),))
    np.testing.assert_array_equal(found[:, :-1], plain)
    np.testing.assert_array_equal(found[:, -1], (frame["size"].astype(np.float32) - frame["zone"]).astype(np.float32))
    assert encoder.schema.names is not None and encoder.schema.names[-1] == "size - zone"
    shares = encoder.schema.by_column(np.eye(found.shape[1]))
    assert shares[-1].tolist() == [0.5, 0.0, 0.5]


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.0]), min_size=1, max_size=14), st.data())
def test_columns_of_most_gain_are_crossed(gains: list[float], data: st.DataObject) -> None:
    numerical = [column for column in range(len(gains)) if data.draw(st.booleans())]
    found = crosses_of(np.array(gains), numerical)
    for name, operation in OPERATIONS.items():
        own = [cross.columns for cross in found if cross.operation == name]
        assert own == reference.most(gains, numerical, operation.most_columns)


def test_files_say_what_is_crossed() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    _, encoder = features(make_source(x))
    values = json.loads(json.dumps(encoder.to_json()))
    assert values["version"] == 3
    again = Encoder.from_json(values)
    assert again.crosses == CROSSES and again.to_json() == encoder.to_json()
    assert (again.schema.names, again.schema.kinds) == (encoder.schema.names, encoder.schema.kinds)
    assert "crosses" not in features(make_source(pd.DataFrame({"a": pd.Categorical(["b", "c"])}), [0, 1]), ())[1].parts


@pytest.mark.parametrize(("own", "message"), [
    ([0, 3, "product"], "cannot be crossed"), ([2, 1, "product"], "cannot be crossed"),
    ([1, 1, "product"], "cannot be crossed"), ([-1, 1, "product"], "cannot be crossed"),
    ([0, 1, "ratio"], "'ratio', which is none of difference, product"), ([0, 1], "not enough values"),
])  # fmt: skip
def test_files_that_cross_what_cannot_be_are_refused(own: list[Any], message: str) -> None:
    _, encoder = features(make_source(np.zeros((2, 3), np.float32)))
    with pytest.raises(ValueError, match=message):
        Encoder.from_json(json.loads(json.dumps(encoder.to_json())) | {"crosses": [own]})


def test_categories_are_not_crossed() -> None:
    frame = pd.DataFrame({"a": pd.Categorical(["b", "c"]), "b": [1.0, 2.0]})
    _, encoder = features(make_source(frame, [0, 1]), ())
    with pytest.raises(ValueError, match="columns 0 and 1 cannot be crossed"):
        Encoder.from_json(json.loads(json.dumps(encoder.to_json())) | {"crosses": [[0, 1, "product"]]})
