"""Models whose leaves are vectors: exchange with other libraries, tables, pictures, and what is refused."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import xgboost as xgb
from model.random_models import random_booster, random_rows

from daskboost import QuantizedDataset
from daskboost import train as fit
from daskboost.dtypes import Float32
from daskboost.errors import ModelFormatError, ParameterError
from daskboost.model import plotting
from daskboost.model.booster import Booster
from daskboost.model.explain import ImportanceType
from daskboost.objectives.classification import SoftMax, SoftProb
from daskboost.objectives.objective import Objective
from daskboost.objectives.regression import QuantileError, SquaredError

FILE_FORMATS = ("ubj", "json")
OBJECTIVES: tuple[Objective, ...] = (SoftProb(4), SoftMax(3), QuantileError((0.1, 0.5, 0.9)))


def train(objective: str, rng: np.random.Generator, **params: Any) -> tuple[xgb.Booster, Float32]:
    """XGBoost's model, and rows to predict."""
    rows = random_rows(rng, 1_000)
    signal = np.nan_to_num(rows[:, 0]) + 0.3 * rng.normal(size=1_000)
    label: Any = signal
    if objective == "reg:squarederror":
        label = np.stack([signal, -2 * signal, signal**2], axis=1)
    elif objective.startswith("multi"):
        label = np.digitize(signal, [-0.5, 0, 0.5])
    given = {"objective": objective, "max_depth": 5, "nthread": 1, "multi_strategy": "multi_output_tree", **params}
    return xgb.train(given, xgb.DMatrix(rows, label), num_boost_round=6), random_rows(rng, 500)


def assert_same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-6, atol=1e-6)


TRAINED: list[tuple[str, dict[str, Any]]] = [
    ("multi:softprob", {"num_class": 4}),
    ("multi:softmax", {"num_class": 4, "grow_policy": "lossguide", "max_leaves": 9}),
    ("reg:squarederror", {"gamma": 0.5}),
    ("reg:squarederror", {"max_depth": 1, "min_child_weight": 1e9}),
]


@pytest.mark.parametrize(("objective", "params"), TRAINED)
@pytest.mark.parametrize("file_format", FILE_FORMATS)
def test_we_read_xgboost(rng: np.random.Generator, objective: str, params: dict[str, Any], file_format: str) -> None:
    model, rows = train(objective, rng, **params)
    ours = Booster.from_bytes(model.save_raw(file_format))
    assert ours.has_vectors and ours.n_outputs == (3 if objective == "reg:squarederror" else 4)
    assert len(ours.trees) == ours.n_iterations == 6 and set(ours.tree_outputs) == {0}
    data = xgb.DMatrix(rows)
    assert_same(ours.predict(rows, output="margin"), model.predict(data, output_margin=True))
    assert_same(ours.predict(rows), model.predict(data))
    np.testing.assert_array_equal(ours.predict(rows, output="leaf"), model.predict(data, pred_leaf=True))
    assert_same(ours.predict(rows, iteration_range=(2, 5)), model.predict(data, iteration_range=(2, 5)))


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.name)
@pytest.mark.parametrize("file_format", FILE_FORMATS)
@pytest.mark.parametrize("chain", [False, True])
def test_xgboost_reads_us(
    rng: np.random.Generator, tmp_path: Path, objective: Objective, file_format: str, chain: bool
) -> None:
    scores = tuple(np.linspace(0.3, 0.6, objective.n_outputs)) if chain else 0.4
    ours = random_booster(rng, objective, base_score=scores, vectors=True, chain=chain)
    ours.save_model(tmp_path / f"model.{file_format}")
    model, rows = xgb.Booster(model_file=tmp_path / f"model.{file_format}"), random_rows(rng, 500)
    data = xgb.DMatrix(rows)
    assert_same(model.predict(data, output_margin=True), ours.predict(rows, output="margin"))
    assert_same(model.predict(data), ours.predict(rows))
    np.testing.assert_array_equal(model.predict(data, pred_leaf=True), ours.predict(rows, output="leaf"))
    for kind in get_args(ImportanceType):
        assert ours.get_score(kind) == pytest.approx(model.get_score(importance_type=kind), rel=1e-5)
    again = Booster.from_bytes(model.save_raw("ubj"))
    assert replace(again, objective=ours.objective) == ours


def test_our_document_has_xgboosts_fields(rng: np.random.Generator) -> None:
    """Field by field as XGBoost writes them."""

    def first_tree(model: Any) -> Any:
        return json.loads(model)["learner"]["gradient_booster"]["model"]["trees"][0]

    theirs, _ = train("multi:softprob", rng, num_class=4)
    ours = first_tree(Booster.from_bytes(theirs.save_raw("ubj")).to_bytes("json"))
    expected = first_tree(bytes(theirs.save_raw("json")))
    assert ours.keys() == expected.keys()
    for name, values in expected.items():
        if isinstance(values, dict):
            assert ours[name] == values
        else:
            np.testing.assert_allclose(np.array(ours[name]), np.array(values), rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("file_format", FILE_FORMATS)
def test_treelite_reads_us(rng: np.random.Generator, tmp_path: Path, file_format: str) -> None:
    import treelite

    ours, rows = random_booster(rng, SoftProb(4), vectors=True, names=True), random_rows(rng, 300)
    path = tmp_path / f"model.{file_format}"
    ours.save_model(path)
    model = treelite.frontend.load_xgboost_model(
        path, format_choice={"json": "json", "ubj": "ubjson"}[file_format], allow_unknown_field=False
    )
    assert_same(treelite.gtil.predict(model, rows).reshape(300, -1), ours.predict(rows))


def test_trained_models_travel(rng: np.random.Generator) -> None:
    """What training leaves in a model: bins, early stopping, parameters."""
    rows = random_rows(rng, 800)
    label = np.digitize(np.nan_to_num(rows[:, 0]), [-0.5, 0, 0.5]).astype(np.float32)
    params = {"objective": "multi:softprob", "num_class": 4, "multi_strategy": "multi_output_tree", "max_depth": 4}
    for sketch in (0, 2):
        with (
            QuantizedDataset.from_dask(rows[:600], label[:600]) as data,
            QuantizedDataset.from_dask(rows[600:], label[600:], reference=data) as valid,
        ):
            given = {**params, "sketch_outputs": sketch}
            model = fit(given, data, 40, evals=[(valid, "valid")], early_stopping_rounds=3)
            more = fit(given, data, 2, init_model=model)
        assert more.n_iterations == model.n_iterations + 2
        assert more.trees[0].value.tobytes() == model.trees[0].value.tobytes()
        assert model.best_iteration is not None and model == pickle.loads(pickle.dumps(model))
        there = xgb.Booster(model_file=bytearray(model.to_bytes()))
        best = (0, model.best_iteration + 1)
        assert_same(there.predict(xgb.DMatrix(rows), iteration_range=best), model.predict(rows))


def test_the_table_has_a_column_per_output(rng: np.random.Generator) -> None:
    booster = random_booster(rng, SoftProb(3), vectors=True)
    table = booster.trees_to_dataframe()
    leaf = (table["Feature"] == "Leaf").to_numpy()
    values = np.concatenate([tree.value for tree in booster.trees])
    np.testing.assert_array_equal(table[["Value 0", "Value 1", "Value 2"]].to_numpy()[leaf], values[leaf])
    assert table.loc[leaf, "Gain"].isna().all() and table.loc[~leaf, "Gain"].notna().all()
    assert table.loc[~leaf, ["Value 0", "Value 1", "Value 2"]].isna().all(axis=None)


def test_pictures_show_all_values(rng: np.random.Generator) -> None:
    booster = random_booster(rng, SoftProb(3), vectors=True)
    tree = booster.trees[0]
    text = plotting.to_graphviz(booster).source
    for node in np.flatnonzero(tree.is_leaf):
        assert '"leaf\\n' + r"\n".join(f"{value:.6g}" for value in tree.value[node]) + '"' in text


# shap colours its plots when it is imported, in a way that matplotlib is about to drop.
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_contributions_are_those_of_a_tree_per_output(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    booster = random_booster(rng, SoftProb(3), vectors=True, n_iterations=3)
    apart = replace(
        booster, trees=tuple(replace(tree, value=np.ascontiguousarray(tree.value[:, k])) for tree in booster.trees
                             for k in range(3)),
        tree_outputs=(0, 1, 2) * 3, iteration_indptr=(0, 3, 6, 9),
    )  # fmt: skip
    rows = random_rows(rng, 40)
    found = booster.predict(rows, output="contributions")
    np.testing.assert_allclose(found, apart.predict(rows, output="contributions"), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.sum(axis=-1), booster.predict(rows, output="margin"), rtol=1e-5, atol=1e-5)
    monkeypatch.setattr("daskboost.model.explain.find_spec", lambda name: None if name == "xgboost" else object())
    by_shap = booster.predict(rows, output="contributions")
    np.testing.assert_allclose(found, by_shap, rtol=1e-4, atol=1e-5)


def test_trees_of_one_kind_only(rng: np.random.Generator) -> None:
    vectors, scalars = (random_booster(rng, SoftProb(3), vectors=each, n_iterations=1) for each in (True, False))
    with pytest.raises(ParameterError, match=r"leaves of \[1, 3\] values for 3 outputs"):
        replace(vectors, trees=(*vectors.trees, *scalars.trees), tree_outputs=(0, 0, 1, 2), iteration_indptr=(0, 1, 4))
    with pytest.raises(ParameterError, match=r"leaves of \[3\] values for 4 outputs"):
        replace(vectors, objective=SoftProb(4))


def edited(booster: Booster, **changes: Any) -> bytes:
    """A file whose second tree has other fields; None removes one."""
    document = json.loads(booster.to_bytes("json"))
    tree = document["learner"]["gradient_booster"]["model"]["trees"][1]
    for name, change in changes.items():
        if change is None:
            del tree[name]
        else:
            tree[name] = change(tree[name])
    return json.dumps(document).encode()


def swapped(values: list[Any]) -> list[Any]:
    """The places of the last two leaves, exchanged."""
    return [*values[:-2], values[-1], values[-2]]


@pytest.mark.parametrize(("changes", "message"), [
    ({"leaf_weights": None}, "tree 1: its leaves are vectors as XGBoost before 3.2 wrote them"),
    ({"leaf_weights": lambda values: values[:-1]}, "tree 1: .*'leaf_weights' has 38 entries"),
    ({"leaf_weights": lambda values: [*values[:-1], float("nan")]}, "tree 1: .*'leaf_weights' holds NaN"),
    ({"leaf_weights": lambda values: [*values[:-1], float("inf")]}, "tree 1: .*a leaf's value is infinite"),
    ({"leaf_weights": lambda values: "x"}, "tree 1: .*'leaf_weights' is no list of numbers"),
    ({"base_weights": lambda values: values[:-1]}, "tree 1: .*'base_weights' has 74 entries"),
    ({"right_children": lambda values: [*values[:-1], 0]}, "tree 1: .*are not the places of their values"),
    ({"right_children": lambda values: [*values[:-1], -1]}, "tree 1: .*are not the places of their values"),
    ({"right_children": lambda values: [*values[:-1], 13]}, "tree 1: .*are not the places of their values"),
    ({"right_children": lambda values: [-1, *values[1:]]}, "tree 1: .*only one child"),
    ({"tree_param": lambda param: {**param, "size_leaf_vector": "2"}}, "its leaves have 2 values, .* has 3 outputs"),
    ({"tree_param": lambda param: {**param, "size_leaf_vector": "1"}}, "tree 1: .*only one child|two parents"),
])  # fmt: skip
def test_edited_vectors_are_refused(rng: np.random.Generator, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        Booster.from_bytes(edited(random_booster(rng, SoftProb(3), vectors=True), **changes))


def test_a_mixture_in_a_file_is_refused(rng: np.random.Generator) -> None:
    documents = [json.loads(random_booster(rng, SoftProb(3), vectors=each).to_bytes("json")) for each in (True, False)]
    models = [each["learner"]["gradient_booster"]["model"] for each in documents]
    models[0]["trees"][1] = models[1]["trees"][1]
    with pytest.raises(ModelFormatError, match="some of the model's trees have vectors as leaves and others have not"):
        Booster.from_bytes(json.dumps(documents[0]).encode())


def test_leaves_lie_at_their_places(rng: np.random.Generator) -> None:
    """Whatever the order of leaf_weights, a leaf's values are where its right child points."""
    booster = random_booster(rng, SoftProb(3), vectors=True, n_splits=12)
    tree = booster.trees[1]
    last = np.flatnonzero(tree.is_leaf)[-2:]
    assert last.tolist() == [23, 24]
    read = Booster.from_bytes(edited(booster, right_children=swapped)).trees[1]
    np.testing.assert_array_equal(read.value[last], tree.value[last[::-1]])
    np.testing.assert_array_equal(read.value[:23], tree.value[:23])


def test_scalars_of_several_targets_are_no_vectors(rng: np.random.Generator) -> None:
    assert not random_booster(rng, SquaredError(), vectors=True).has_vectors
