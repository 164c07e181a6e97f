"""Fits at the edges of what data can be, and users' own losses and metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from invariants import check_model
from strategies.trees import Data, fit, make_data, quantized

from daskboost import QuantizedDataset, train
from daskboost.devices.budget.plan import SMALL_ROWS
from daskboost.errors import DataError, ParameterError
from daskboost.params import TrainParams

POLICIES = ["depthwise", "lossguide", "symmetric"]
ENCODINGS = ["dense", "csr"]


def dataset(X: Any, y: Any, **options: Any) -> QuantizedDataset:
    return QuantizedDataset.from_dask(X, np.asarray(y, np.float32), n_jobs=1, **options)


def constant(model: Any, X: Any) -> float:
    """The one value that a model without splits predicts."""
    assert all(tree.n_nodes == 1 for tree in model.trees)
    values = np.unique(model.predict(X))
    assert len(values) == 1
    return float(values[0])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_nothing_to_split_on(encoding: str, policy: str) -> None:
    X, y = np.full((50, 3), 7, np.float32), np.arange(50)
    model = train({"grow_policy": policy}, dataset(X, y, encoding=encoding), 3)
    assert constant(model, X) == pytest.approx(24.5, abs=1e-3)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("objective, label", [
    ("reg:squarederror", 3.25), ("binary:logistic", 1.0), ("reg:absoluteerror", -8.5), ("count:poisson", 4.0),
])  # fmt: skip
def test_equal_labels(objective: str, label: float, policy: str, rng: np.random.Generator) -> None:
    X = rng.normal(size=(60, 4)).astype(np.float32)
    model = train({"objective": objective, "grow_policy": policy}, dataset(X, np.full(60, label)), 3)
    assert constant(model, X) == pytest.approx(label, abs=1e-4)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_feature_that_is_missing_everywhere(encoding: str, policy: str, rng: np.random.Generator) -> None:
    X = rng.normal(size=(200, 3)).astype(np.float32)
    X[:, 1] = np.nan
    model = train({"grow_policy": policy, "max_depth": 4}, dataset(X, X[:, 0] + X[:, 2], encoding=encoding), 3)
    used = {int(f) for tree in model.trees for f in tree.feature[~tree.is_leaf]}
    assert used == {0, 2}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_value_is_missing(encoding: str) -> None:
    X = np.full((20, 2), np.nan, np.float32)
    assert constant(train({}, dataset(X, np.arange(20), encoding=encoding), 2), X) == pytest.approx(9.5, abs=1e-3)


@pytest.mark.parametrize("objective", ["reg:squarederror", "binary:logistic", "reg:absoluteerror"])
@pytest.mark.parametrize("policy", POLICIES)
def test_one_row(policy: str, objective: str) -> None:
    X = np.array([[1, np.nan, 3]], np.float32)
    params = {"objective": objective, "grow_policy": policy, "min_child_weight": 0}
    assert constant(train(params, dataset(X, [1.0]), 2), X) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("policy", POLICIES)
def test_two_rows_split(policy: str) -> None:
    X = np.array([[0], [1]], np.float32)
    params = {"grow_policy": policy, "reg_lambda": 0, "learning_rate": 1.0, "max_depth": 3}
    model = train(params, dataset(X, [-2.0, 5.0]), 1)
    assert model.trees[0].n_leaves == 2 if policy != "symmetric" else model.trees[0].n_leaves >= 2
    assert model.predict(X) == pytest.approx([-2.0, 5.0], abs=1e-3)


@pytest.mark.parametrize("policy", POLICIES)
def test_huge_weights(policy: str, rng: np.random.Generator) -> None:
    """Rows of weight one vanish beside one of 1e12, which the model must fit."""
    X, y = rng.normal(size=(100, 2)).astype(np.float32), rng.normal(size=100).astype(np.float32)
    weight = np.ones(100, np.float32)
    weight[3] = 1e12
    model = fit(Data(X, y, weight), {"grow_policy": policy, "max_depth": 3}, 5)
    check_model(model, TrainParams.from_mapping({"grow_policy": policy, "max_depth": 3}))
    assert model.predict(X[3:4]) == pytest.approx(y[3:4], abs=1e-3)


def test_weights_of_zero_leave_rows_out(rng: np.random.Generator) -> None:
    data = make_data(rng, n_rows=400, missing=0)
    weight = np.ones(400, np.float32)
    weight[200:] = 0
    wild = data.y.copy()
    wild[200:] = 1e6
    models = [fit(Data(data.X, y, weight), {"base_score": 0.0}, 3) for y in (data.y, wild)]
    assert models[0].to_bytes() == models[1].to_bytes()


def test_no_rounds(rng: np.random.Generator) -> None:
    data = make_data(rng)
    model = fit(data, {}, 0)
    assert model.trees == () and model.n_iterations == 0
    mean = np.average(data.y.astype(np.float64), weights=data.weight)
    assert np.unique(model.predict(data.X)) == pytest.approx([mean])


def test_empty_rows_of_sparse_input(rng: np.random.Generator) -> None:
    X = scipy.sparse.random_array((300, 20), density=0.05, rng=rng, dtype=np.float32, format="csr")
    empty = np.diff(X.indptr) == 0
    assert empty.sum() > 50
    y = np.where(empty, 3.0, np.asarray(X.sum(axis=1)).reshape(-1)).astype(np.float32)
    dense = np.full(X.shape, np.nan, np.float32)
    dense[X.tocoo().row, X.tocoo().col] = X.tocoo().data
    params = {"max_depth": 4, "learning_rate": 0.5}
    models = [train(params, dataset(given, y, encoding=encoding), 10) for given in (X, dense) for encoding in ENCODINGS]
    assert len({model.to_bytes() for model in models}) == 1
    assert len(np.unique(models[0].predict(dense[empty]))) == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_gradients_of_zero(policy: str, rng: np.random.Generator) -> None:
    data = make_data(rng)

    def nothing(label: Any, margin: Any) -> tuple[Any, Any]:
        return np.zeros_like(margin), np.ones_like(margin)

    def flat(label: Any, margin: Any) -> tuple[Any, Any]:
        return np.zeros_like(margin), np.zeros_like(margin)

    for function in (nothing, flat):
        model = fit(data, {"objective": function, "grow_policy": policy}, 2)
        assert constant(model, data.X) == 0.5  # XGBoost's base score of custom losses


def squared(label: Any, margin: Any) -> tuple[Any, Any]:
    return margin - label, np.ones_like(margin)


@pytest.mark.parametrize("policy", POLICIES)
def test_own_loss_gives_the_trees_of_the_built_in_one(policy: str, rng: np.random.Generator) -> None:
    data = make_data(rng)
    params = {"grow_policy": policy, "max_depth": 4, "base_score": 0.5, "subsample": 0.7}
    with quantized(data) as rows:
        built_in = train(params, rows, 3)
        for own in (train({**params, "objective": squared}, rows, 3), train(params, rows, 3, objective=squared)):
            for ours, theirs in zip(own.trees, built_in.trees, strict=True):
                assert ours.value.tobytes() == theirs.value.tobytes()
                assert ours.gain.tobytes() == theirs.gain.tobytes()


def test_own_loss_of_several_outputs(rng: np.random.Generator) -> None:
    data = make_data(rng, "multi:softprob", weighted=False)

    def softmax(label: Any, margin: Any) -> tuple[Any, Any]:
        p = np.exp(margin - margin.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        return p - (label[:, None] == np.arange(5)), 2 * p * (1 - p)

    params = {"num_class": 5, "base_score": 0.5, "max_depth": 3}
    own, built_in = (fit(data, {**params, "objective": loss}, 4) for loss in (softmax, "multi:softprob"))
    assert len(own.trees) == 20 and own.tree_outputs == built_in.tree_outputs
    assert np.asarray(own.predict(data.X)) == pytest.approx(
        np.asarray(built_in.predict(data.X, output="margin")), abs=1e-2
    )


@pytest.mark.parametrize("result, message", [
    (lambda y, m: m - y, r"must return \(gradient, hessian\)"),
    (lambda y, m: (m - y, -np.ones_like(m)), "negative hessian"),
    (lambda y, m: (m * np.nan, np.ones_like(m)), "NaN, infinity or values beyond float32 in its gradient"),
    (lambda y, m: ((m - y)[:3], np.ones_like(m)), "must have the margin's shape"),
])  # fmt: skip
@pytest.mark.parametrize("engines", [1, 2])
def test_bad_losses_are_named(result: Any, message: str, engines: int, rng: np.random.Generator) -> None:
    with pytest.raises(ParameterError, match=message):
        fit(make_data(rng), {"objective": result}, 2, engines=engines, partitions=2)


def test_exploding_gradients_are_named(rng: np.random.Generator) -> None:
    data = make_data(rng, n_rows=SMALL_ROWS + 1, weighted=False)
    weight = np.full(len(data.y), 1e38, np.float32)
    with pytest.raises(DataError, match=r"gave a gradient of inf in iteration 0; check labels and weights"):
        fit(Data(data.X, data.y * 100, weight), {"base_score": 0.0}, 1)


def test_heavy_weights_of_small_data_do_not_explode(rng: np.random.Generator) -> None:
    data = make_data(rng, weighted=False)
    for weight in (1e38, 1e-2):
        heavy = Data(data.X, data.y * 100, np.full(len(data.y), weight, np.float32))
        common = {"base_score": 0.0, "reg_lambda": 0, "min_child_weight": 0}
        ours, plain = (fit(each, common, 1) for each in (heavy, Data(data.X, heavy.y)))
        np.testing.assert_array_equal(ours.trees[0].split_bin, plain.trees[0].split_bin)
        assert ours.trees[0].value == pytest.approx(plain.trees[0].value, rel=1e-4)


def test_own_metric_sees_all_rows_in_order(rng: np.random.Generator) -> None:
    data = make_data(rng, n_rows=500, weighted=False)

    def mean_error(y_true: Any, y_pred: Any) -> tuple[str, float]:
        np.testing.assert_array_equal(y_true, data.y)
        return "mean_error", float(np.abs(y_true - y_pred).mean())

    seen: list[dict[str, dict[str, list[float]]]] = []
    for engines, partitions in ((1, 1), (3, 7)):
        history: dict[str, dict[str, list[float]]] = {}
        with quantized(data, engines=engines, partitions=partitions) as rows:
            given: dict[str, Any] = {"evals": [(rows, "train")], "evals_result": history, "custom_metric": mean_error}
            train({"eval_metric": "mae"}, rows, 4, **given)
        seen.append(history)
    assert seen[0] == seen[1]
    assert list(seen[0]["train"]) == ["mae", "mean_error"]
    assert seen[0]["train"]["mean_error"] == pytest.approx(seen[0]["train"]["mae"], rel=1e-6)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_training_on_rows_quantized_by_another_set(encoding: str, rng: np.random.Generator) -> None:
    """The other set has no missing values, these rows do: their histograms need places for them."""
    whole, holes = make_data(rng, missing=0.0, n_rows=500), make_data(rng, missing=0.6, n_rows=500)
    with quantized(whole) as reference, quantized(holes, reference=reference, encoding=encoding) as rows:
        assert rows.cuts.has_missing.tolist() == [False, True, True, True, True]
        model = train({"max_depth": 3}, rows, 2)
    check_model(model, TrainParams.from_mapping({"max_depth": 3}))
    with quantized(holes) as own:  # the same values, hence the same cuts
        assert train({"max_depth": 3}, own, 2).to_bytes() == model.to_bytes()


@pytest.mark.parametrize("place", [{}, {"engines": 3, "partitions": 5, "chunk_rows": 64, "encoding": "csr"}])
def test_margins_in_training_are_those_of_prediction(place: dict[str, Any], rng: np.random.Generator) -> None:
    """Rows move through trees by bins in training, by values in prediction: metrics show any disagreement."""
    data, other = make_data(rng, n_rows=400), make_data(rng, n_rows=300, n_values=14)
    history: dict[str, dict[str, list[float]]] = {}
    with quantized(data, **place) as rows, quantized(other, reference=rows, **place) as valid:
        model = train({"subsample": 0.6}, rows, 5, evals=[(rows, "train"), (valid, "valid")], evals_result=history)
    for name, each in (("train", data), ("valid", other)):
        error = (np.asarray(model.predict(each.X), np.float64) - each.y) ** 2
        assert history[name]["rmse"][-1] == pytest.approx(np.sqrt(np.average(error, weights=each.weight)), rel=1e-5)


@pytest.mark.parametrize("place", [{}, {"engines": 3, "partitions": 5, "encoding": "csr"}])
def test_continuing_a_model_gives_the_longer_one(place: dict[str, Any], rng: np.random.Generator) -> None:
    data = make_data(rng, n_rows=400)
    params = {"subsample": 0.7, "max_depth": 4}
    with quantized(data, **place) as rows:
        whole = train(params, rows, 6)
        assert train(params, rows, 4, init_model=train(params, rows, 2)).to_bytes() == whole.to_bytes()


def test_extreme_weights_leave_the_model_finite(rng: np.random.Generator) -> None:
    """Sums of weights and gains beyond float32, models' type, end at its largest value."""
    data = make_data(rng, weighted=False, missing=0)
    model = fit(Data(data.X, data.y, np.full(len(data.y), 2e37, np.float32)), {"base_score": 0.0, "max_depth": 2}, 2)
    limit = np.finfo(np.float32).max
    assert model.trees[0].cover[0] == model.trees[0].gain[0] == limit
    plain = fit(Data(data.X, data.y), {"base_score": 0.0, "max_depth": 2, "reg_lambda": 0}, 2)
    np.testing.assert_array_equal(model.trees[0].split_bin, plain.trees[0].split_bin)
    assert model.trees[0].value == pytest.approx(plain.trees[0].value, rel=1e-3)


@pytest.mark.parametrize("columns", [1, 2, 6])
def test_base_margins_need_a_column_per_output(columns: int, rng: np.random.Generator) -> None:
    data = make_data(rng, "multi:softprob")
    rows = dataset(data.X, data.y, base_margin=np.zeros((len(data.y), columns), np.float32))
    with pytest.raises(DataError, match=f"base_margin has {columns} columns, but the objective has 5 outputs; give"):
        train({"objective": "multi:softprob", "num_class": 5}, rows, 1)


@pytest.mark.parametrize("place", [{}, {"encoding": "csr", "chunk_rows": 30}])
def test_base_margins_are_where_rows_start(place: dict[str, Any], rng: np.random.Generator) -> None:
    """A margin that is the label leaves nothing to learn; one that is off by two leaves two."""
    data = make_data(rng, weighted=False)
    for shift in (0.0, 2.0):
        rows = dataset(data.X, data.y, base_margin=data.y - np.float32(shift), **place)
        model = train({"learning_rate": 1.0, "reg_lambda": 0}, rows, 1)
        assert [tree.n_nodes for tree in model.trees] == [1]
        assert model.trees[0].value[0] == pytest.approx(shift, abs=1e-3)


def test_margins_of_several_outputs_are_those_of_prediction(rng: np.random.Generator) -> None:
    data, other = (make_data(rng, "multi:softprob", n_rows=n, weighted=False) for n in (400, 300))
    history: dict[str, dict[str, list[float]]] = {}
    with quantized(data) as rows, quantized(other, reference=rows) as valid:
        evals = [(rows, "train"), (valid, "valid")]
        model = train({"objective": "multi:softprob", "num_class": 5}, rows, 3, evals=evals, evals_result=history)
    for name, each in (("train", data), ("valid", other)):
        p = np.asarray(model.predict(each.X), np.float64)[np.arange(len(each.y)), each.y.astype(int)]
        assert history[name]["mlogloss"][-1] == pytest.approx(-np.log(p).mean(), rel=1e-5)
