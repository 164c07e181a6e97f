"""Models whose splits are by sets of categories: prediction, files in XGBoost's form, explanations and pictures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from hypothesis import given, settings
from hypothesis import strategies as st
from model.random_models import random_booster, random_codes
from model.test_predict_kernel import as_sparse, kernel_margins
from reference.predict import leaves, margins

from daskboost import Booster
from daskboost.data.input.row_batch import CATEGORY_CODE, DenseRows, Features
from daskboost.dtypes import Float32
from daskboost.errors import DataTypeError, MissingDependencyError, ModelFormatError
from daskboost.model import predict_rows as predict
from daskboost.model.explain import ImportanceType
from daskboost.model.plotting import dot_source
from daskboost.model.serialize import Format
from daskboost.objectives.classification import Logistic, SoftProb
from daskboost.objectives.objective import Objective
from daskboost.objectives.regression import SquaredError
from daskboost.tree.category_sets import CategorySets

CODES = {
    "few": range(3), "words": range(70), "gaps": (0, 7, 31, 32, 64, 1000, 2**24 - 2),
    "many": range(0, 9000, 3),
}  # fmt: skip


@pytest.mark.parametrize("codes", CODES.values(), ids=CODES)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize(("n_splits", "chain"), [(1, False), (40, False), (12, True)], ids=["stump", "bushy", "chain"])
@pytest.mark.parametrize("vectors", [False, True], ids=["scalars", "vectors"])
def test_equals_the_plain_walk(
    rng: np.random.Generator, codes: range, sparse: bool, n_splits: int, chain: bool, vectors: bool
) -> None:
    booster = random_booster(
        rng, SoftProb(3), n_splits=n_splits, chain=chain, n_iterations=4, vectors=vectors, codes=codes
    )
    values = random_codes(rng, 301, codes)
    rows: Features = as_sparse(values) if sparse else DenseRows(values)
    start = rng.normal(size=(301, 3)).astype(np.float32)
    expected = margins(booster.trees, booster.tree_outputs, values, start)
    assert kernel_margins(booster, rows, start).tobytes() == expected.tobytes()
    found = predict.find_leaves(booster.forest, rows, (1, 4), 1)
    np.testing.assert_array_equal(found, leaves(booster.trees[1:4], values))


FORMATS: tuple[Format, ...] = ("ubj", "json")
N_CODES = 12


def matrix(rows: Float32, label: Any = None) -> xgb.DMatrix:
    """Rows of which the first two features are categories."""
    return xgb.DMatrix(rows, label, feature_types=["c", "c", "float"], enable_categorical=True)


def trained(rng: np.random.Generator, **params: Any) -> xgb.Booster:
    """A model of XGBoost that splits by sets and by thresholds; some categories are never seen."""
    rows = rng.choice([0, 1, 2, 4, 5, 7, 8, 10, 11], (800, 3)).astype(np.float32)
    rows[rng.random(rows.shape) < 0.1] = np.nan
    margin = np.sin(3 * np.nan_to_num(rows[:, 0], nan=1.5)) * np.nan_to_num(rows[:, 1] % 3) + rows[:, 2] % 5
    label = np.nan_to_num(margin)
    if str(params.get("objective")).startswith("multi"):
        label = label.clip(0, 2).round()
    return xgb.train({"max_depth": 5, "nthread": 1, **params}, matrix(rows, label), num_boost_round=6)


def any_rows(rng: np.random.Generator, n_rows: int) -> Float32:
    """Categories of training, others, none, and numbers that are no codes of XGBoost's."""
    rows = rng.integers(0, N_CODES + 3, (n_rows, 3)).astype(np.float32)
    odd = np.array([-1, -0.5, -0.0, 2.75, 40, 1000, 2**24, 1e30], np.float32)
    rows = np.where(rng.random(rows.shape) < 0.1, rng.choice(odd, rows.shape), rows)
    rows[rng.random(rows.shape) < 0.2] = np.nan
    return rows.astype(np.float32)


def assert_same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("params", [
    {}, {"max_cat_to_onehot": 50}, {"max_cat_to_onehot": 1, "grow_policy": "lossguide", "max_leaves": 9},
    {"objective": "multi:softprob", "num_class": 3}, {"gamma": 20.0, "booster": "dart", "rate_drop": 0.3},
], ids=["sets", "one-hot", "lossguide", "classes", "dart"])  # fmt: skip
@pytest.mark.parametrize("file_format", FORMATS)
def test_we_read_xgboost_and_it_reads_us(
    rng: np.random.Generator, params: dict[str, Any], file_format: Format
) -> None:
    model, rows = trained(rng, **params), any_rows(rng, 500)
    ours, data = Booster.from_bytes(model.save_raw(file_format)), matrix(rows)
    assert ours.schema.kinds == (CATEGORY_CODE, CATEGORY_CODE, "float")
    assert any(tree.sets for tree in ours.trees)
    for again in (model, xgb.Booster(model_file=bytearray(ours.to_bytes(file_format)))):
        assert again.feature_types == ["c", "c", "float"]
        assert_same(ours.predict(rows, output="margin"), again.predict(data, output_margin=True))
        np.testing.assert_array_equal(ours.predict(rows, output="leaf"), again.predict(data, pred_leaf=True))
    assert Booster.from_bytes(ours.to_bytes(file_format)) == ours
    assert replace(Booster.from_bytes(again.save_raw("ubj")), objective=ours.objective) == ours


@pytest.mark.parametrize("objective", [SquaredError(), Logistic(), SoftProb(3)], ids=lambda each: each.name)
@pytest.mark.parametrize("file_format", FORMATS)
def test_xgboost_and_treelite_read_us(
    rng: np.random.Generator, objective: Objective, file_format: Format, tmp_path: Path
) -> None:
    import treelite

    codes = (*range(20), 31, 32, 100)
    ours = random_booster(rng, objective, n_features=3, codes=codes, names=True)
    rows = random_codes(rng, 400, codes, 3)
    rows[np.isinf(rows)] = np.nan
    path = tmp_path / f"model.{file_format}"
    ours.save_model(path)
    expected = ours.predict(rows, output="margin").reshape(400, -1)
    data = xgb.DMatrix(rows, feature_names=list(ours.schema.names or ()), feature_types=["c", "float", "float"],
                       enable_categorical=True)  # fmt: skip
    theirs = xgb.Booster(model_file=path)
    assert_same(theirs.predict(data, output_margin=True).reshape(400, -1), expected)
    np.testing.assert_array_equal(theirs.predict(data, pred_leaf=True), ours.predict(rows, output="leaf"))
    assert replace(Booster.from_bytes(theirs.save_raw("json")), objective=ours.objective) == ours
    model = treelite.frontend.load_xgboost_model(
        path, format_choice={"json": "json", "ubj": "ubjson"}[file_format], allow_unknown_field=False
    )
    assert_same(treelite.gtil.predict(model, rows, pred_margin=True).reshape(400, -1), expected)


sets_of_codes = st.lists(st.sets(st.integers(0, 2**24 - 1) | st.integers(0, 40), min_size=2, max_size=9), min_size=1)


@settings(max_examples=40)
@given(sets_of_codes, st.integers(0, 2**32), st.sampled_from(FORMATS))
def test_files_keep_sets(sets: list[set[int]], seed: int, file_format: Format) -> None:
    rng = np.random.default_rng(seed)
    booster = random_booster(rng, SquaredError(), n_features=2, n_splits=5, codes=sorted(set().union(*sets)))
    again = Booster.from_bytes(booster.to_bytes(file_format))
    assert [tree.sets.lists for tree in again.trees] == [tree.sets.lists for tree in booster.trees]
    assert again == booster
    rows = random_codes(rng, 30, sorted(set().union(*sets)), 2)
    np.testing.assert_array_equal(predict.find_leaves(again.forest, DenseRows(rows), (0, 6), 1),
                                  leaves(booster.trees, rows))  # fmt: skip


def test_older_files_have_no_number_where_a_set_splits(rng: np.random.Generator) -> None:
    """Earlier versions of XGBoost wrote NaN as the condition; files may lack types of features."""
    ours = random_booster(rng, SquaredError(), codes=range(9))
    document = json.loads(ours.to_bytes("json"))
    for tree in document["learner"]["gradient_booster"]["model"]["trees"]:
        for node in tree["categories_nodes"]:
            tree["split_conditions"][node] = float("nan")
    document["learner"]["feature_types"] = []
    again = Booster.from_bytes(json.dumps(document).encode())
    used = {int(feature) for tree in ours.trees for feature in tree.feature[tree.has_set]}
    assert again.schema.kinds == tuple(CATEGORY_CODE if each in used else "float" for each in range(5))
    assert replace(again, schema=ours.schema) == ours


def test_nodes_that_became_leaves_lose_their_sets(rng: np.random.Generator) -> None:
    """As XGBoost leaves them behind when it prunes."""
    ours = random_booster(rng, SquaredError(), n_iterations=1, n_splits=2, codes=range(9))
    ours = replace(ours, trees=(replace(ours.trees[0], sets=CategorySets.of_nodes([[1], [2], [], [], []]),
                                        threshold=np.zeros(5, np.float32)),))  # fmt: skip
    document = json.loads(ours.to_bytes("json"))
    document["learner"]["feature_types"] = []
    tree = document["learner"]["gradient_booster"]["model"]["trees"][0]
    leaf = tree["left_children"].index(-1)
    tree["split_type"], tree["categories_nodes"] = [0] * 5, sorted({0, leaf})
    for node in tree["categories_nodes"]:
        tree["split_type"][node] = 1
    tree["categories_segments"], tree["categories_sizes"], tree["categories"] = [0, 1], [1, 1], [3, 4]
    again = Booster.from_bytes(json.dumps(document).encode())
    assert again.trees[0].sets.lists == [[3], [], [], [], []]


Tree = dict[str, Any]


def put(key: str, value: object) -> Callable[[Tree], None]:
    return lambda tree: tree.__setitem__(key, value)


DAMAGE: dict[str, tuple[Callable[[Tree], None], str]] = {
    "no nodes": (lambda tree: tree.pop("categories_nodes"), "tree 0: .*'categories_nodes' is missing"),
    "other nodes": (put("categories_nodes", [0, 1]), "'categories_nodes' are not the nodes.*whose 'split_type' is 1"),
    "a node too few": (put("categories_nodes", [0]), "'categories_nodes' are not the nodes"),
    "no such node": (put("categories_nodes", [0, 9]), "'categories_nodes' holds 0 to 9"),
    "a size too few": (put("categories_sizes", [3]), "2 nodes have sets, but there are 1 'categories_sizes'"),
    "an empty set": (
        lambda tree: tree.update(categories_sizes=[0, 5], categories_segments=[0, 0]), "a set that has no categories"
    ),
    "a negative size": (put("categories_sizes", [6, -1]), "'categories_sizes' holds -1 to 6"),
    "sets that overlap": (put("categories_segments", [0, 0]), "do not divide the 5 'categories' into sets"),
    "sizes beyond": (put("categories_sizes", [3, 3]), "do not divide the 5 'categories' into sets"),
    "a category less": (put("categories", [0, 1, 2, 3]), "do not divide the 4 'categories' into sets"),
    "out of order": (put("categories", [0, 2, 1, 3, 4]), "the 'categories' of a node do not increase"),
    "twice the same": (put("categories", [0, 2, 2, 3, 4]), "the 'categories' of a node do not increase"),
    "no code": (put("categories", [-1, 0, 1, 2, 3]), "'categories' holds -1 to 3"),
    "no code of a float": (put("categories", [0, 1, 2, 3, 2**24]), "'categories' holds 0 to 16777216"),
    "texts": (put("categories", list("abcde")), "'categories' is no list of integers"),
    "types": (put("split_type", [1, 0, 0, 0, 0]), "'categories_nodes' are not the nodes"),
}  # fmt: skip


def two_sets() -> dict[str, Any]:
    """The document of a tree whose two inner nodes have sets."""
    chain = random_booster(np.random.default_rng(0), SquaredError(), n_features=1, n_iterations=1, n_splits=2,
                           chain=True, codes=range(9))  # fmt: skip
    document: dict[str, Any] = json.loads(chain.to_bytes("json"))
    tree = document["learner"]["gradient_booster"]["model"]["trees"][0]
    tree.update(categories=[0, 1, 2, 3, 4], categories_sizes=[3, 2], categories_segments=[0, 3])
    assert tree["categories_nodes"] == [0, 2]
    return document


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_sets_are_refused(name: str) -> None:
    edit, message = DAMAGE[name]
    document = two_sets()
    assert Booster.from_bytes(json.dumps(document).encode()).trees[0].sets.categories.tolist() == [0, 1, 2, 3, 4]
    edit(document["learner"]["gradient_booster"]["model"]["trees"][0])
    with pytest.raises(ModelFormatError, match=message):
        Booster.from_bytes(json.dumps(document).encode())


def test_a_feature_of_numbers_has_no_sets() -> None:
    document = two_sets()
    document["learner"]["feature_types"] = ["float"]
    with pytest.raises(ModelFormatError, match="feature 0 is split by a set of categories, but is 'float'"):
        Booster.from_bytes(json.dumps(document).encode())


@pytest.mark.parametrize("objective", [SquaredError(), SoftProb(3)], ids=lambda each: each.name)
def test_contributions_are_xgboosts(rng: np.random.Generator, objective: Objective) -> None:
    ours, rows = random_booster(rng, objective, codes=range(9)), random_codes(rng, 50, range(9))
    rows[np.isinf(rows)] = np.nan
    found = ours.predict(rows, output="contributions")
    data = xgb.DMatrix(rows, feature_types=["c", "c", "float", "float", "float"], enable_categorical=True)
    expected = xgb.Booster(model_file=bytearray(ours.to_bytes())).predict(data, pred_contribs=True)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.sum(axis=-1), ours.predict(rows, output="margin"), rtol=1e-5, atol=1e-5)


def test_contributions_of_vectors_add_up(rng: np.random.Generator) -> None:
    ours, rows = random_booster(rng, SoftProb(3), codes=range(9), vectors=True), random_codes(rng, 50, range(9))
    rows[np.isinf(rows)] = np.nan
    found = ours.predict(rows, output="contributions")
    np.testing.assert_allclose(found.sum(axis=-1), ours.predict(rows, output="margin"), rtol=1e-5, atol=1e-5)


def test_contributions_that_no_library_has(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_codes(rng, 5, range(9))
    rows[np.isinf(rows)] = np.nan
    monkeypatch.setattr("daskboost.model.explain.find_spec", lambda name: None if name == "xgboost" else name)
    with pytest.raises(MissingDependencyError, match="splits by sets of categories need xgboost; install it"):
        random_booster(rng, SoftProb(3), codes=range(9)).predict(rows, output="contributions")


@pytest.mark.parametrize("params", [{}, {"max_cat_to_onehot": 50}], ids=["sets", "one-hot"])
def test_tables_and_importance_are_xgboosts(rng: np.random.Generator, params: dict[str, Any]) -> None:
    theirs = trained(rng, **params)
    ours = Booster.from_bytes(theirs.save_raw("ubj"))
    found, expected = ours.trees_to_dataframe(), theirs.trees_to_dataframe()
    assert list(found.columns) == list(expected.columns)
    texts = ["Tree", "Node", "ID", "Feature", "Yes", "No", "Missing"]
    pd.testing.assert_frame_equal(found[texts], expected[texts], check_dtype=False)
    np.testing.assert_allclose(found[["Split", "Gain", "Cover"]], expected[["Split", "Gain", "Cover"]], rtol=1e-5)
    pd.testing.assert_series_equal(found["Category"], expected["Category"])
    for kind in get_args(ImportanceType):
        assert ours.get_score(kind) == pytest.approx(theirs.get_score(importance_type=kind), rel=1e-5)


def test_pictures_say_which_categories(rng: np.random.Generator) -> None:
    """As XGBoost's: yes leads to the categories that are named."""
    tree = random_booster(rng, SquaredError(), n_features=1, n_iterations=1, n_splits=1, codes=range(9)).trees[0]
    for default_left in (False, True):
        asked = replace(tree, default_left=np.full(3, default_left), sets=CategorySets.of_nodes([[0, 5], [], []]))
        booster = replace(random_booster(rng, SquaredError(), n_features=1, n_iterations=1), trees=(asked,))
        source = dot_source(booster, asked)
        assert '0 [label="f0\\nin {0, 5}"]' in source
        assert f'0 -> 2 [label="yes{"" if default_left else ", missing"}"]' in source
        assert f'0 -> 1 [label="no{", missing" if default_left else ""}"]' in source


def test_frames_of_categories_are_asked_for_their_codes(rng: np.random.Generator) -> None:
    ours = random_booster(rng, SquaredError(), names=True, codes=range(9))
    frame = pd.DataFrame(random_codes(rng, 20, range(3)), columns=ours.schema.names).replace([np.inf, -np.inf], np.nan)
    expected = ours.predict(frame.to_numpy())
    np.testing.assert_array_equal(ours.predict(frame), expected)
    with pytest.raises(DataTypeError, match="'feature 0' is of type category, but held codes of categories"):
        ours.predict(frame.assign(**{"feature 0": pd.Categorical(["a"] * 20)}))
