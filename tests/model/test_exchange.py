"""Models travel: XGBoost's files predict the same here, ours the same in xgboost, treelite and shap."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost as xgb
from model.random_models import OBJECTIVES, random_booster, random_rows

from daskboost.dtypes import Float32
from daskboost.model.booster import Booster
from daskboost.model.output import Output
from daskboost.objectives.objective import Objective
from daskboost.objectives.regression import QuantileError, SquaredError

TRAINED: dict[str, dict[str, Any]] = {
    "reg:squarederror": {},
    "reg:absoluteerror": {},
    "reg:pseudohubererror": {"huber_slope": 0.5},
    "reg:quantileerror": {"quantile_alpha": [0.1, 0.5, 0.9]},
    "count:poisson": {},
    "reg:gamma": {},
    "reg:tweedie": {"tweedie_variance_power": 1.3},
    "reg:logistic": {},
    "binary:logistic": {"scale_pos_weight": 2.0},
    "binary:logitraw": {},
    "multi:softprob": {"num_class": 4},
    "multi:softmax": {"num_class": 4},
}
FILE_FORMATS = ("ubj", "json")


def label(objective: str, rows: Float32, rng: np.random.Generator) -> Float32:
    """Positive numbers that depend on the features, made fit for the objective."""
    raw = np.exp(np.nan_to_num(rows[:, 0]) + 0.1 * rng.normal(size=len(rows)))
    if objective.startswith(("binary", "reg:logistic")):
        raw = raw > 1
    elif objective.startswith("multi"):
        raw = np.minimum(raw // 0.7, 3)
    return np.asarray(raw, np.float32)


def train(objective: str, rng: np.random.Generator, **params: Any) -> tuple[xgb.Booster, Float32]:
    rows = random_rows(rng, 1_000)
    data = xgb.DMatrix(rows, label(objective, rows, rng))
    settings = {"objective": objective, "max_depth": 5, "nthread": 1, **TRAINED.get(objective, {}), **params}
    return xgb.train(settings, data, num_boost_round=8), random_rows(rng, 500)


def assert_same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("objective", TRAINED)
@pytest.mark.parametrize("file_format", FILE_FORMATS)
def test_we_read_xgboost(rng: np.random.Generator, objective: str, file_format: str) -> None:
    model, rows = train(objective, rng)
    ours = Booster.from_bytes(model.save_raw(file_format))
    data = xgb.DMatrix(rows)
    assert_same(ours.predict(rows, output="margin"), model.predict(data, output_margin=True))
    assert_same(ours.predict(rows), model.predict(data))
    np.testing.assert_array_equal(ours.predict(rows, output="leaf"), model.predict(data, pred_leaf=True))
    assert_same(ours.predict(rows, iteration_range=(2, 5)), model.predict(data, iteration_range=(2, 5)))


@pytest.mark.parametrize("objective", ["reg:squarederror", "multi:softprob"])
@pytest.mark.parametrize("file_format", FILE_FORMATS)
def test_we_read_dart(rng: np.random.Generator, objective: str, file_format: str, tmp_path: Path) -> None:
    """Trees' weights become part of their values, and stay there when the model is saved again."""
    model, rows = train(objective, rng, booster="dart", rate_drop=0.5)
    ours, data = Booster.from_bytes(model.save_raw(file_format)), xgb.DMatrix(rows)
    plain = json.loads(model.save_raw("json"))["learner"]["gradient_booster"]
    assert len(set(plain["weight_drop"])) > 2
    for part in ((0, 0), (2, 5)):
        expected = model.predict(data, output_margin=True, iteration_range=part)
        ranged: Any = {} if part == (0, 0) else {"iteration_range": part}
        assert_same(ours.predict(rows, output="margin", **ranged), expected)
    ours.save_model(tmp_path / "m.ubj")
    again = xgb.Booster(model_file=tmp_path / "m.ubj")
    assert_same(again.predict(data, output_margin=True), model.predict(data, output_margin=True))


def test_inner_nodes_of_dart_may_be_infinite_whatever_a_tree_weighs(rng: np.random.Generator) -> None:
    """Only leaves are predicted; times a weight of 0, infinity would be no number, which files refuse."""
    model, rows = train("reg:squarederror", rng, booster="dart", rate_drop=0.5)
    raw = json.loads(model.save_raw("json"))
    booster = raw["learner"]["gradient_booster"]
    booster["weight_drop"][0] = 0.0
    expected = Booster.from_bytes(json.dumps(raw).encode()).predict(rows)
    booster["gbtree"]["model"]["trees"][0]["base_weights"][0] = np.inf
    ours = Booster.from_bytes(json.dumps(raw).encode())
    assert_same(ours.predict(rows), expected)
    assert_same(Booster.from_bytes(ours.to_bytes()).predict(rows), expected)


SCORES = ["0", "[0E0]", "[1E-8]", "[1E-6]", "[1.5E-6]", "[3E-1]", "[9.9998E-1]", "[9.99999E-1]", "[1E0]"]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", ["binary:logistic", "reg:logistic", "binary:logitraw"])
def test_extreme_probabilities_have_xgboosts_margins(rng: np.random.Generator, name: str, score: str) -> None:
    """XGBoost writes 0 and 1 for data of one class, and computes margins in float32, .003 off at .99998."""
    rows = random_rows(rng, 300)
    labels = (rng.random(300) < 0.5).astype(np.float32)
    model = xgb.train({"objective": name, "max_depth": 2, "base_score": 0.5}, xgb.DMatrix(rows, labels), 2)
    raw = json.loads(model.save_raw("json"))
    raw["learner"]["learner_model_param"]["base_score"] = score
    file = json.dumps(raw).encode()
    model.load_model(bytearray(file))
    ours, data = Booster.from_bytes(file), xgb.DMatrix(rows)
    found, expected = ours.predict(rows, output="margin"), model.predict(data, output_margin=True)
    np.testing.assert_allclose(found, expected, rtol=3e-7, atol=1e-6)
    assert_same(ours.predict(rows), model.predict(data))
    again = xgb.Booster()
    again.load_model(bytearray(ours.to_bytes("json")))
    np.testing.assert_array_equal(again.predict(data, output_margin=True), expected)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_models_of_one_class(rng: np.random.Generator, label: float) -> None:
    rows = random_rows(rng, 100)
    data = xgb.DMatrix(rows, np.full(100, label))
    model = xgb.train({"objective": "binary:logistic"}, data, 3)
    ours = Booster.from_bytes(model.save_raw("ubj"))
    assert ours.base_score == (label,)
    assert_same(ours.predict(rows, output="margin"), model.predict(data, output_margin=True))


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.name)
@pytest.mark.parametrize("file_format", FILE_FORMATS)
@pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
def test_xgboost_reads_us(
    rng: np.random.Generator, tmp_path: Path, objective: Objective, file_format: str, vector: bool
) -> None:
    ours = replace(with_base_score(random_booster(rng, objective), vector), attributes={"note": "ä \"quoted\" 'text'"})
    ours.save_model(tmp_path / f"model.{file_format}")
    model = xgb.Booster(model_file=tmp_path / f"model.{file_format}")
    rows = random_rows(rng, 500)
    data = xgb.DMatrix(rows)
    assert_same(model.predict(data, output_margin=True), ours.predict(rows, output="margin"))
    assert_same(model.predict(data), ours.predict(rows))
    np.testing.assert_array_equal(model.predict(data, pred_leaf=True), ours.predict(rows, output="leaf"))
    assert model.attributes() == {"note": "ä \"quoted\" 'text'"}
    # There and back: what XGBoost makes of our file is our model; it rounds the objective's parameters to float32.
    again = Booster.from_bytes(model.save_raw("ubj"))
    assert replace(again, objective=ours.objective) == ours


def with_base_score(booster: Booster, vector: bool) -> Booster:
    if not vector:
        return booster
    return replace(booster, base_score=tuple(np.linspace(0.3, 0.6, booster.n_outputs)))


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.name)
@pytest.mark.parametrize("file_format", FILE_FORMATS)
@pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
def test_treelite_reads_us(
    rng: np.random.Generator, tmp_path: Path, objective: Objective, file_format: str, vector: bool
) -> None:
    import treelite

    ours = replace(
        with_base_score(random_booster(rng, objective, names=True), vector),
        attributes={"best_iteration": "3"},
        params={"max_depth": "4"},
    )
    path = tmp_path / f"model.{file_format}"
    ours.save_model(path)
    model = treelite.frontend.load_xgboost_model(
        path, format_choice={"json": "json", "ubj": "ubjson"}[file_format], allow_unknown_field=False
    )
    rows = random_rows(rng, 300)
    margins = treelite.gtil.predict(model, rows, pred_margin=True).reshape(300, -1)
    assert_same(margins, ours.predict(rows, output="margin", iteration_range=(0, 0)).reshape(300, -1))
    if objective.name != "multi:softmax":  # treelite gives its probabilities, XGBoost and we its class
        found = treelite.gtil.predict(model, rows).reshape(300, -1)
        assert_same(found, ours.predict(rows, iteration_range=(0, 0)).reshape(300, -1))


# shap colours its plots when it is imported, in a way that matplotlib is about to drop.
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.name)
@pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
def test_shap_reads_us(rng: np.random.Generator, objective: Objective, vector: bool) -> None:
    """Its values and expected value add up to our margins."""
    import shap

    ours = with_base_score(random_booster(rng, objective), vector)
    rows = random_rows(rng, 60)
    # With background rows shap reads the trees itself and sums in float64, but knows one base score only; without, it
    # has XGBoost sum in float32, whose rounding grows with what cancels out.
    background = None if vector and ours.n_outputs > 1 else rows[:20]
    explainer = shap.TreeExplainer(xgb.Booster(model_file=bytearray(ours.to_bytes())), background)
    values = explainer.shap_values(rows, check_additivity=False)
    margins = values.sum(axis=1) + np.asarray(explainer.expected_value)
    size = 1.0 if background is not None else np.maximum(np.abs(values).sum(axis=1), 1.0)
    assert_same(margins / size, ours.predict(rows, output="margin") / size)


def test_named_features_travel(rng: np.random.Generator) -> None:
    import pandas as pd

    ours = random_booster(rng, SquaredError(), names=True)
    frame = pd.DataFrame(random_rows(rng, 50), columns=ours.schema.names)
    model = xgb.Booster(model_file=bytearray(ours.to_bytes("json")))
    assert model.feature_names == list(ours.schema.names or ())
    assert_same(model.predict(xgb.DMatrix(frame)), ours.predict(frame))
    assert_same(ours.predict(frame[frame.columns[::-1]]), ours.predict(frame))


def test_forests_and_several_targets(rng: np.random.Generator) -> None:
    """Iterations of several trees per output, and one loss for several targets, which only XGBoost trains."""
    forest, rows = train("binary:logistic", rng, num_parallel_tree=3, subsample=0.5)
    ours = Booster.from_bytes(forest.save_raw("ubj"))
    assert ours.iteration_indptr == tuple(range(0, 25, 3))
    assert_same(ours.predict(rows, iteration_range=(1, 3)), forest.predict(xgb.DMatrix(rows), iteration_range=(1, 3)))

    inputs = random_rows(rng, 500)
    targets = np.nan_to_num(inputs[:, :3]) + np.arange(3)
    several = xgb.train({"max_depth": 3, "nthread": 1}, xgb.DMatrix(inputs, targets), num_boost_round=4)
    ours = Booster.from_bytes(several.save_raw("json"))
    assert ours.n_outputs == 3
    assert_same(ours.predict(rows), several.predict(xgb.DMatrix(rows)))
    again = xgb.Booster(model_file=bytearray(ours.to_bytes()))
    assert_same(again.predict(xgb.DMatrix(rows)), several.predict(xgb.DMatrix(rows)))


def test_pruned_trees_lose_their_deleted_nodes(rng: np.random.Generator) -> None:
    """The exact updater leaves pruned nodes in its arrays and reuses their numbers."""
    model, rows = train("reg:squarederror", rng, tree_method="exact", gamma=2.0, max_depth=7)
    trees = json.loads(model.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
    assert any(int(tree["tree_param"]["num_deleted"]) for tree in trees)
    ours = Booster.from_bytes(model.save_raw("json"))
    assert_same(ours.predict(rows), model.predict(xgb.DMatrix(rows)))
    again = xgb.Booster(model_file=bytearray(ours.to_bytes()))
    assert_same(again.predict(xgb.DMatrix(rows)), model.predict(xgb.DMatrix(rows)))


def test_early_stopping_of_xgboost_is_kept(rng: np.random.Generator) -> None:
    inputs = random_rows(rng, 400)
    noise = rng.normal(size=400)
    model = xgb.train(
        {"max_depth": 6, "nthread": 1, "learning_rate": 0.9},
        xgb.DMatrix(inputs[:200], noise[:200]),
        num_boost_round=30,
        evals=[(xgb.DMatrix(inputs[200:], noise[200:]), "valid")],
        early_stopping_rounds=5,
        verbose_eval=False,
    )
    ours = Booster.from_bytes(model.save_raw("ubj"))
    assert ours.best_iteration == model.best_iteration < ours.n_iterations - 1
    assert ours.best_score == pytest.approx(model.best_score)
    best = (0, model.best_iteration + 1)
    assert_same(ours.predict(inputs), model.predict(xgb.DMatrix(inputs), iteration_range=best))
    assert_same(ours.predict(inputs, iteration_range=(0, 0)), model.predict(xgb.DMatrix(inputs)))


def test_a_base_margin_replaces_the_base_score(rng: np.random.Generator) -> None:
    model, rows = train("multi:softprob", rng)
    margin = rng.normal(size=(500, 4)).astype(np.float32)
    expected = model.predict(xgb.DMatrix(rows, base_margin=margin))
    assert_same(Booster.from_bytes(model.save_raw("ubj")).predict(rows, base_margin=margin), expected)


@pytest.mark.parametrize("text", ["5E-1", "0.5", "[5E-1]", "[5E-1,5E-1,5E-1]"])
def test_base_scores_of_all_versions(rng: np.random.Generator, text: str) -> None:
    """XGBoost wrote a number until 3.0 and a list since."""
    booster = random_booster(rng, QuantileError((0.1, 0.5, 0.9)), base_score=0.5)
    document = json.loads(booster.to_bytes("json"))
    document["learner"]["learner_model_param"]["base_score"] = text
    read = Booster.from_bytes(json.dumps(document).encode())
    np.testing.assert_array_equal(read.base_margin, booster.base_margin)


def test_older_files(rng: np.random.Generator) -> None:
    """XGBoost 1.7 wrote neither iteration_indptr nor num_target, and default directions as booleans."""
    booster = random_booster(rng, OBJECTIVES[8])
    document = json.loads(booster.to_bytes("json"))
    learner = document["learner"]
    model = learner["gradient_booster"]["model"]
    del model["iteration_indptr"], learner["learner_model_param"]["num_target"]
    del learner["learner_model_param"]["boost_from_average"]
    for tree in model["trees"]:
        tree["default_left"] = [bool(left) for left in tree["default_left"]]
        tree["tree_param"]["size_leaf_vector"] = "0"
    document["version"] = [1, 7, 6]
    assert Booster.from_bytes(json.dumps(document, indent=1).encode()) == booster


OUTPUTS: tuple[Output, ...] = ("prediction", "margin", "leaf")


@pytest.mark.parametrize("output", OUTPUTS)
def test_sparse_rows_of_xgboost(rng: np.random.Generator, output: Output) -> None:
    from scipy.sparse import csr_matrix

    model, rows = train("binary:logistic", rng)
    present = ~np.isnan(rows)
    sparse = csr_matrix((rows[present], np.nonzero(present)), rows.shape)
    ours = Booster.from_bytes(model.save_raw("ubj"))
    options = {"margin": {"output_margin": True}, "leaf": {"pred_leaf": True}}.get(output, {})
    assert_same(ours.predict(sparse, output=output), model.predict(xgb.DMatrix(sparse), **options))
