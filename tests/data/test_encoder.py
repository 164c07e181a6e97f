"""Features of categorical columns: what they are, and that nothing but the rows decides it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.folds import fold_statistics

from daskboost import QuantizedDataset
from daskboost.data.categories import encode, level_rooms, levels
from daskboost.data.categories.encode import CategoryOptions, encoded, settled
from daskboost.data.categories.encoder import Encoder
from daskboost.data.categories.folds import Division, FoldCounts, folds_of
from daskboost.data.categories.read_column import CodedColumn, read_column
from daskboost.data.categories.statistics import Target
from daskboost.data.chunks.build import BuildOptions
from daskboost.data.input.source import Source, make_source
from daskboost.dtypes import Float32
from daskboost.errors import DataError, DataTypeError, ParameterError
from daskboost.local.in_process import LocalRunner

N = 200


@pytest.fixture
def frame(rng: np.random.Generator) -> pd.DataFrame:
    """Texts, integers and numbers, each missing now and then, with labels 0 and 1."""
    town = pd.Series(rng.choice(["Bonn", "Köln", "", "Ulm"], N), dtype=object)
    town[rng.random(N) < 0.1] = None
    zone = pd.Series(rng.integers(-3, 9, N)).astype("Int64")
    zone[rng.random(N) < 0.1] = pd.NA
    size = np.where(rng.random(N) < 0.1, np.nan, rng.standard_normal(N))
    label = (rng.random(N) < np.where(town == "Ulm", 0.8, 0.3)).astype(np.float32)
    return pd.DataFrame({"town": town, "size": size, "zone": zone, "y": label})


def features(source: Source, options: CategoryOptions | None = None) -> tuple[Float32, Encoder]:
    """Return the features of a source's rows, and what has made them."""
    made = encoded(source, options or CategoryOptions(), LocalRunner(1))
    encoder = made.schema.encoder
    assert isinstance(encoder, Encoder)
    return np.concatenate([batch.features.on_host().matrix() for batch in made.batches()]), encoder


FRAMES: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "pandas": lambda frame, path: frame,
    "pandas categories": lambda frame, path: frame.astype({"town": "category"}),
    "pandas strings": lambda frame, path: frame.astype({"town": "string"}),
    "pandas of Arrow": lambda frame, path: frame.convert_dtypes(dtype_backend="pyarrow"),
    "pyarrow": lambda frame, path: pa.Table.from_pandas(frame),
    "polars": lambda frame, path: pl.from_pandas(frame),
    "polars categories": lambda frame, path: pl.from_pandas(frame).with_columns(pl.col("town").cast(pl.Categorical)),
    "parquet": lambda frame, path: _written(frame, path),
    "Dask": lambda frame, path: dd.from_pandas(frame, npartitions=3, sort=False),
    "Dask categories": lambda frame, path: dd.from_pandas(frame, npartitions=3, sort=False).astype(
        {"town": "category"}
    ),
}


def _written(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_parquet(path / "rows.parquet", row_group_size=61)
    return path / "rows.parquet"


def test_features_are_the_naive_ones(frame: pd.DataFrame, rng: np.random.Generator) -> None:
    weight = rng.choice([0.0, 0.5, 3.0], N).astype(np.float32)
    found, encoder = features(make_source(frame, "y", weight=weight, categorical=["zone"]))
    folds = folds_of(0, 0, N)
    label = frame["y"].to_numpy()
    expected: list[Any] = []
    for column in ("town", "zone"):
        values = frame[column].astype(object).where(frame[column].notna(), None).tolist()
        rows = [sum(weight[i] > 0 for i in range(N) if values[i] == value) for value in values]
        expected += [fold_statistics(values, folds.tolist(), label.tolist(), weight.tolist(), [1.0])[:, 0], rows]
    expected.insert(2, frame["size"].to_numpy(np.float32))
    np.testing.assert_array_equal(found, np.stack(expected, axis=1).astype(np.float32))
    assert encoder.schema.names == ("town (target)", "town (rows)", "size", "zone (target)", "zone (rows)")
    assert encoder.schema.kinds == ("float", "int", "float", "float", "int")


@pytest.mark.parametrize("kind", FRAMES)
def test_features_do_not_depend_on_the_container(frame: pd.DataFrame, kind: str, tmp_path: Path) -> None:
    expected, encoder = features(make_source(frame, "y", categorical=["zone"]))
    found, other = features(make_source(FRAMES[kind](frame, tmp_path), "y", categorical=["zone"]))
    np.testing.assert_array_equal(found, expected)
    assert json.dumps(other.to_json()) == json.dumps(encoder.to_json())


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, N), max_size=4), st.integers(0, 3))
def test_features_do_not_depend_on_partitions(cuts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    own = pd.DataFrame({"a": rng.choice(list("xyz"), N), "y": rng.integers(0, 3, N).astype(np.float32)})
    edges = [0, *sorted(cuts), N]
    parts = [own.iloc[start:stop] for start, stop in pairwise(edges)]
    options = CategoryOptions(seed, encodings="target")
    expected, encoder = features(make_source(own, "y"), options)
    found, other = features(make_source(dd.from_delayed(_delayed(parts), meta=own.iloc[:0], verify_meta=False), "y"),
                            options)  # fmt: skip
    np.testing.assert_array_equal(found, expected)
    assert other.to_json() == encoder.to_json() and encoder.schema.names == (
        "a (target 0)", "a (target 1)", "a (target 2)", "a (rows)"
    )  # fmt: skip


def _delayed(parts: Sequence[pd.DataFrame]) -> list[Any]:
    return [dask.delayed(part) for part in parts]


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_a_rows_own_label_does_not_show(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 40))
    codes = np.array(data.draw(st.lists(st.integers(-2, 3), min_size=n, max_size=n)), np.int32)
    levels = np.array(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)), np.uint8)
    row = data.draw(st.integers(0, n - 1))
    target = Target(np.array([0.5, 1.5], np.float32), (1, 2))
    folds = folds_of(7, 5, n)

    def values(levels: Any) -> Float32:
        counts = FoldCounts.of([codes], [4], Division(7), folds, levels, target)
        return counts.values(0, codes, folds, target.statistics((0.25, 0.5)))

    changed = levels.copy()
    changed[row] = (changed[row] + 1) % 3
    before, after = values(levels), values(changed)
    same = (codes != codes[row]) | (folds == folds[row]) | (codes == -2)
    np.testing.assert_array_equal(before[same], after[same])
    assert same[row]
    assert (before[codes == -2] == np.array([0.25, 0.5], np.float32)).all()


def test_other_rows_have_the_statistics_of_all(frame: pd.DataFrame) -> None:
    """Nine tenths of them count, as they do for rows that are trained on."""
    _, encoder = features(make_source(frame, "y", categorical=["zone"]))
    rows = pd.DataFrame({"zone": [99, 2, None], "town": ["Ulm", "Rom", None], "size": [1.0, 2.0, np.nan]})
    (batch,) = make_source(rows, schema=encoder.schema).batches()
    prior = float(frame["y"].mean())

    def statistic(rows: Any) -> list[float]:
        return [(0.9 * frame["y"][rows].sum() + prior) / (0.9 * rows.sum() + 1), float(rows.sum())]

    town, zone = frame["town"], frame["zone"]
    two = (zone == 2).fillna(False).to_numpy(bool)
    expected = [
        [*statistic(town == "Ulm"), 1, prior, 0], [prior, 0, 2, *statistic(two)],
        [*statistic(town.isna()), np.nan, *statistic(zone.isna())],
    ]  # fmt: skip
    np.testing.assert_allclose(batch.features.on_host().matrix(), np.array(expected, np.float32), rtol=1e-6)


def test_rare_levels_are_pooled(frame: pd.DataFrame, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "daskboost")
    found, encoder = features(make_source(frame, "y"), CategoryOptions(most_levels=3))
    counts = frame["town"].value_counts()
    rare = frame["town"].isin(counts.index[3:])
    assert (found[rare, 0] == np.float32(frame["y"].mean())).all() and (found[rare, 1] == 0).all()
    assert f"column 'town' has {len(counts)} levels: the {len(counts) - 3} rarest, of {rare.sum()} rows" in caplog.text
    assert encoder.encoders[0] is not None and encoder.encoders[0].levels.n_levels == 3


def test_columns_of_a_matrix_are_named_by_position(rng: np.random.Generator) -> None:
    x = rng.integers(0, 5, (N, 3)).astype(np.float64)
    x[0, 1] = np.nan
    y = rng.integers(0, 2, N).astype(np.float32)
    found, encoder = features(make_source(x, y, categorical=[1]))
    as_frame = pd.DataFrame({"f0": x[:, 0], "f1": pd.Series(x[:, 1]).astype("Int64"), "f2": x[:, 2]})
    expected, _ = features(make_source(as_frame, y, categorical=["f1"]))
    np.testing.assert_array_equal(found, expected)
    assert encoder.columns.names is None and encoder.schema.names == ("f0", "f1 (target)", "f1 (rows)", "f2")


def test_two_levels_are_a_number(frame: pd.DataFrame) -> None:
    own = frame.assign(town=frame["town"].map({"Bonn": "a", "Ulm": "b"}))
    found, encoder = features(make_source(own, "y"))
    first = own["town"].value_counts().index[0]
    expected = np.where(own["town"].isna(), np.nan, (own["town"] != first).astype(float))
    np.testing.assert_array_equal(found[:, 0], expected)
    assert encoder.schema.names == ("town", "size", "zone")
    (batch,) = make_source(own.assign(town="c"), schema=encoder.schema).batches()
    assert (batch.features.on_host().matrix()[:, 0] == 2).all()


def test_names_of_features_differ_from_those_of_columns(frame: pd.DataFrame) -> None:
    _, encoder = features(make_source(frame.assign(**{"town (target)": 1.0}), "y"))
    assert encoder.schema.names is not None and len(set(encoder.schema.names)) == encoder.schema.n_features
    assert "town (target)'" in encoder.schema.names


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "mixed": ([3, "3", 3, "3"], DataTypeError, "column 'a' .*mix"),
    "objects": ([{}, {}, [], {}], DataTypeError, "column 'a' holds"),
    "floats": ([0.5, 1, 2, 3], DataTypeError, "column 'a' holds 0.5"),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("n_partitions", [0, 2])
def test_values_that_are_no_categories_are_named(bad: str, n_partitions: int) -> None:
    values, error, match = BAD[bad]
    rows = pd.DataFrame({"a": pd.Series(values, dtype=object), "b": 0.0})
    y = pd.Series([0, 1, 0, 1])
    given: tuple[Any, Any] = (rows, y)
    with dask.config.set({"dataframe.convert-string": False}):
        if n_partitions:
            given = dd.from_pandas(rows, npartitions=2), dd.from_pandas(y, npartitions=2)
        with pytest.raises(error, match=match):
            QuantizedDataset(*given, categorical_features=["a"])


def test_what_contradicts_categories_is_refused(frame: pd.DataFrame) -> None:
    import scipy.sparse as sp

    with pytest.raises(DataError, match="categorical columns, such as 'town', whose statistics need labels: pass y"):
        QuantizedDataset(frame.drop(columns="y"))
    with pytest.raises(ParameterError, match="categorical_features names 'tow', no feature of X"):
        make_source(frame, "y", categorical=["tow"])
    with pytest.raises(ParameterError, match=r"categorical_features names 3, .* columns 0 to 2"):
        make_source(np.zeros((4, 3)), categorical=[3])
    with pytest.raises(ParameterError, match="categorical_features names 1 columns, but X is a sparse matrix"):
        make_source(sp.csr_matrix(np.ones((4, 3))), categorical=[0])
    _, encoder = features(make_source(frame, "y"))
    with pytest.raises(DataTypeError, match=r"'size' is of type .*, but held numbers in training"):
        make_source(frame.assign(size="big"), schema=encoder.schema)
    with pytest.raises(DataTypeError, match=r"column 'town' holds .*, but .* in training"):
        list(make_source(frame.assign(town=1), schema=encoder.schema).batches())


def test_an_encoder_reads_what_it_writes(frame: pd.DataFrame) -> None:
    _, encoder = features(make_source(frame, "y", categorical=["zone"]))
    text = json.dumps(encoder.to_json())
    again = Encoder.from_json(json.loads(text))
    assert json.dumps(again.to_json()) == text
    rows = frame.drop(columns="y")
    (first,), (second,) = (make_source(rows, schema=own.schema).batches() for own in (encoder, again))
    np.testing.assert_array_equal(first.features.on_host().matrix(), second.features.on_host().matrix())


def test_columns_become_what_encodings_say(frame: pd.DataFrame) -> None:
    """Also without labels, which only statistics need."""
    words = {"town": "native", "zone": "onehot"}
    found, encoder = features(
        make_source(frame.drop(columns="y"), categorical=["zone"]), CategoryOptions(encodings=words)
    )
    town, zone = frame["town"], frame["zone"]
    in_order = sorted(town.dropna().unique(), key=lambda level: (-(town == level).sum(), level))
    codes = town.map({level: code for code, level in enumerate(in_order)}).to_numpy(np.float32)
    levels = sorted(zone.dropna().unique(), key=lambda level: (-(zone == level).sum(), level))
    each = [np.where(zone.isna(), np.nan, (zone == level).fillna(False).astype(float)) for level in levels]
    expected = np.stack([codes, frame["size"].to_numpy(np.float32), *each], axis=1).astype(np.float32)
    np.testing.assert_array_equal(found, expected)
    assert encoder.schema.names == ("town", "size", *(f"zone ({level})" for level in levels))
    assert encoder.schema.kinds == ("code", "float", *["i"] * len(levels))
    assert encoder.codes == {0: len(in_order)}
    assert encoder.schema.is_code.tolist() == [True] + [False] * (1 + len(levels))
    rows = pd.DataFrame({"town": ["Rom", None], "zone": [99, None], "size": [1.0, 2.0]})
    (batch,) = make_source(rows, schema=encoder.schema).batches()
    unseen = [[len(in_order), 1.0, *[0.0] * len(levels)], [np.nan, 2.0, *[np.nan] * len(levels)]]
    np.testing.assert_array_equal(batch.features.on_host().matrix(), np.array(unseen, np.float32))


@pytest.mark.parametrize("word", ["target", "onehot", "native"])
def test_one_word_is_for_all_columns(frame: pd.DataFrame, word: str) -> None:
    sources = [make_source(frame, "y", categorical=["zone"]) for _ in range(2)]
    found, encoder = features(sources[0], CategoryOptions(encodings=word))
    each, other = features(sources[1], CategoryOptions(encodings={"town": word, 2: word}))
    np.testing.assert_array_equal(found, each)
    assert encoder.to_json() == other.to_json()
    assert [own.word for own in encoder.encoders if own is not None] == [word, word]
    again = Encoder.from_json(json.loads(json.dumps(encoder.to_json())))
    (first,), (second,) = (make_source(frame, schema=own.schema).batches() for own in (encoder, again))
    np.testing.assert_array_equal(first.features.on_host().matrix(), second.features.on_host().matrix())
    assert encoder.to_json().get("version", 1) == (5 if word == "target" else 2)


def test_statistics_stand_beside_codes(frame: pd.DataFrame) -> None:
    """A column's statistics do not depend on what others become."""
    expected, _ = features(make_source(frame, "y", categorical=["zone"]))
    found, encoder = features(make_source(frame, "y", categorical=["zone"]), CategoryOptions(encodings={0: "native"}))
    assert encoder.schema.names == ("town", "size", "zone (target)", "zone (rows)")
    np.testing.assert_array_equal(found[:, 2:], expected[:, 3:])


def test_positions_are_integers_of_any_type(frame: pd.DataFrame) -> None:
    """Positions that NumPy has found name columns as Python's own do."""
    given: list[dict[Any, str]] = [{np.int64(0): "native", np.uint8(2): "onehot"}, {0: "native", 2: "onehot"}]
    for encodings in given:
        _, encoder = features(make_source(frame, "y", categorical=["zone"]), CategoryOptions(encodings=encodings))
        assert [own.word for own in encoder.encoders if own is not None] == ["native", "onehot"]


@pytest.mark.parametrize(("n_labels", "words"), [(2, "target target target"), (3, "target onehot target")])
def test_few_levels_become_a_feature_each_where_there_are_several_classes(
    rng: np.random.Generator, n_labels: int, words: str
) -> None:
    """Three or four levels do; of two a number tells all, and what is named is as it is named."""
    x = pd.DataFrame({name: rng.choice(list("abcde"[:n]), N) for name, n in (("two", 2), ("four", 4), ("five", 5))})
    y = rng.integers(0, n_labels, N).astype(np.float32)
    found, encoder = features(make_source(x, y))
    assert [own.word for own in encoder.encoders if own is not None] == words.split()
    named = dict(zip(x.columns, words.split(), strict=True))
    expected, same = features(make_source(x, y), CategoryOptions(encodings=named))
    assert found.tobytes() == expected.tobytes() and json.dumps(same.to_json()) == json.dumps(encoder.to_json())
    _, other = features(make_source(x, y), CategoryOptions(encodings="target"))
    assert [own.word for own in other.encoders if own is not None] == ["target"] * 3
    few, alone = features(make_source(x[["four"]], y))
    np.testing.assert_array_equal(few, found[:, 1 : 1 + few.shape[1]])
    assert alone.has_statistics == (n_labels == 2)


@pytest.mark.parametrize(("n_levels", "n_statistics", "n_rows", "may", "expected"), [
    (5, 1, 2**17, True, "native"), (5, 1, 2**17, False, "target"), (5, 1, 2**17 - 1, True, "target"),
    (64, 1, 2**17, True, "native"), (65, 1, 2**17, True, "target"), (2, 1, 2**20, True, "target"),
    (4, 2, 2**20, True, "onehot"), (5, 2, 2**20, True, "native"), (65_534, 1, 2**40, True, "native"),
    (65_535, 1, 2**40, True, "target"),
])  # fmt: skip
def test_columns_of_thousands_of_rows_a_level_are_split_by_sets(
    n_levels: int, n_statistics: int, n_rows: int, may: bool, expected: str
) -> None:
    assert settled("auto", n_levels, n_statistics, n_rows, may) == expected
    for word in ("target", "onehot", "native"):
        assert settled(word, n_levels, n_statistics, n_rows, may) == word


def test_each_level_has_a_bin(rng: np.random.Generator) -> None:
    """A level has a bin whatever `max_bin` is, and levels that are pooled or were not seen share one more."""
    x = pd.DataFrame({"a": rng.integers(0, 300, 4000), "b": rng.normal(size=4000)})
    for most in (2**20, 100):
        options = CategoryOptions(encodings="native", most_levels=most)
        source = make_source(x, x["b"].to_numpy(), categorical=["a"])
        data = QuantizedDataset.from_source(source, BuildOptions(16, categories=options))
        with data, QuantizedDataset(x.assign(a=-1), x["b"], reference=data) as unseen:
            n_levels = min(most, x["a"].nunique())
            assert data.cuts.n_bins.tolist() == [n_levels + 1, 16]
            assert data.cuts.of(0).tolist() == list(range(1, n_levels + 1))
            assert unseen.cuts.n_bins[0] == n_levels + 1


ENCODINGS: dict[str, tuple[Any, str]] = {
    "no word": (5, "has 5, which is no encoding; encodings are auto, native, onehot, target"),
    "another word": ({"town": "one-hot"}, "has 'one-hot' for column 'town', .* did you mean 'onehot'"),
    "another column": ({"twon": "native"}, "names 'twon', no column of X; it has 'town', 'size', 'zone', 'y'"),
    "a position too far": ({9: "native"}, "names 9, no column of X"),
    "a column twice": ({"town": "native", 0: "target"}, "names 'town' twice, for 'native' and 'target'"),
    "numbers": ({"size": "native"}, "names 'size', a column of numbers: name it in categorical_features too"),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_encodings_that_cannot_be_are_refused(frame: pd.DataFrame, name: str) -> None:
    encodings, match = ENCODINGS[name]
    with pytest.raises(ParameterError, match=f"encodings.*{match}"):
        QuantizedDataset(frame, frame["y"], encodings=encodings)


def test_too_many_levels_for_a_feature_each_are_refused(frame: pd.DataFrame) -> None:
    rows = frame.assign(number=np.resize([str(i) for i in range(300)], N))
    with pytest.raises(DataError, match="column 'number' has 200 levels"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "MOST_ONEHOT", 199)
        QuantizedDataset(rows, "y", encodings="onehot")


@pytest.mark.parametrize("has_room", [True, False])
def test_columns_are_read_once_where_there_is_room(
    frame: pd.DataFrame, has_room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, encoder = features(make_source(frame, "y", categorical=["zone"]))
    monkeypatch.setattr(encode, "KEPT_SHARE", 4 if has_room else 10**6)
    monkeypatch.setattr(level_rooms, "MOST_BYTES", level_rooms.LEAST_BYTES)
    reads = []

    def read(column: object, name: str) -> CodedColumn:
        reads.append(name)
        return read_column(column, name)

    monkeypatch.setattr(encode, "read_column", read)
    monkeypatch.setattr(levels, "read_column", read)
    edges = [0, len(frame) // 3, len(frame)]
    parts = [dask.delayed(frame.iloc[start:stop]) for start, stop in pairwise(edges)]
    lazy = dd.from_delayed(parts, meta=frame.iloc[:0], verify_meta=False)
    found, other = features(make_source(lazy, "y", categorical=["zone"]))
    np.testing.assert_array_equal(found, expected)
    assert other.to_json() == encoder.to_json()
    assert sorted(reads) == sorted(["town", "zone"] * 2 * (1 if has_room else 3)), "each column of two partitions"


@pytest.mark.parametrize("word", ["target", "onehot", "native"])
def test_a_number_that_stands_for_missing_is_no_level(word: str, rng: np.random.Generator) -> None:
    codes = rng.integers(0, 5, 200)
    frame = pd.DataFrame({"k": codes, "n": codes % 3, "y": rng.integers(0, 2, 200).astype(np.float32)})
    lacking = frame.assign(k=frame["k"].where(codes != 3, -9), n=frame["n"].where(codes != 3, -9))
    absent = frame.astype({"k": float, "n": float})
    absent.loc[codes == 3, ["k", "n"]] = np.nan
    options = CategoryOptions(encodings=word)
    found, encoder = features(make_source(lacking, "y", categorical=["k"], missing=-9), options)
    expected, other = features(make_source(absent, "y", categorical=["k"]), options)
    np.testing.assert_array_equal(found, expected)
    assert encoder.to_json() | {"kinds": ""} == other.to_json() | {"kinds": ""}  # integers, and floats that have NaN
    rows = (own[["k", "n"]] for own in (lacking, absent))
    (first,), (second,) = (make_source(own, schema=encoder.schema, missing=-9).batches() for own in rows)
    np.testing.assert_array_equal(first.features.on_host().matrix(), second.features.on_host().matrix())
