"""Every objective: gradients against differences of the loss and against XGBoost, links, labels, configurations."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import xgboost
from hypothesis import given
from hypothesis import strategies as st

from daskboost.data.input.labels import LabelStats
from daskboost.errors import DataError, ModelFormatError, ParameterError
from daskboost.objectives.objective import Objective
from daskboost.objectives.objective_names import FOREIGN_NAMES, make_objective, objective_from_config, objective_names

Loss = Callable[[np.ndarray, np.ndarray], np.ndarray]


def log1pexp(m: np.ndarray) -> np.ndarray:
    return np.asarray(np.logaddexp(0.0, m))


def pinball(y: np.ndarray, m: np.ndarray, alphas: tuple[float, ...]) -> np.ndarray:
    r = y[:, None] - m
    return np.asarray(np.maximum(np.array(alphas) * r, (np.array(alphas) - 1) * r))


def cross_entropy(y: np.ndarray, m: np.ndarray) -> np.ndarray:
    """Per output, so that differences by one margin need no bookkeeping: every column is the row's whole loss."""
    row = np.log(np.exp(m).sum(axis=1)) - m[np.arange(len(y)), y.astype(int)]
    return np.asarray(row)


LOSSES: dict[str, tuple[dict[str, Any], Loss]] = {
    "reg:squarederror": ({}, lambda y, m: (m - y[:, None]) ** 2 / 2),
    "reg:absoluteerror": ({}, lambda y, m: np.abs(m - y[:, None])),
    "reg:pseudohubererror": (
        {"huber_slope": 2.0},
        lambda y, m: 4 * (np.sqrt(1 + ((m - y[:, None]) / 2) ** 2) - 1),
    ),
    "reg:quantileerror": ({"quantile_alpha": (0.1, 0.5, 0.8)}, lambda y, m: pinball(y, m, (0.1, 0.5, 0.8))),
    "count:poisson": ({}, lambda y, m: np.exp(m) - y[:, None] * m),
    "reg:gamma": ({}, lambda y, m: m + y[:, None] * np.exp(-m)),
    "reg:tweedie": (
        {"tweedie_variance_power": 1.3},
        lambda y, m: -y[:, None] * np.exp(-0.3 * m) / -0.3 + np.exp(0.7 * m) / 0.7,
    ),
    "binary:logistic": ({}, lambda y, m: log1pexp(m) - y[:, None] * m),
    "reg:logistic": ({}, lambda y, m: log1pexp(m) - y[:, None] * m),
    "binary:logitraw": ({}, lambda y, m: log1pexp(m) - y[:, None] * m),
    "multi:softprob": ({"num_class": 4}, cross_entropy),
    "multi:softmax": ({"num_class": 4}, cross_entropy),
}
PIECEWISE = ("reg:absoluteerror", "reg:quantileerror")
DIAGONAL_BOUND = ("multi:softprob", "multi:softmax")


def build(name: str) -> Objective:
    return make_objective(name, LOSSES[name][0])


def rows(name: str, n: int = 64, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Valid labels and moderate margins of an objective."""
    rng = np.random.default_rng(seed)
    objective = build(name)
    if name.startswith("multi:"):
        label = rng.integers(0, 4, n).astype(np.float32)
    elif name.startswith("binary:"):
        label = rng.integers(0, 2, n).astype(np.float32)
    elif name == "reg:logistic":
        label = rng.uniform(size=n).astype(np.float32)
    else:
        label = (rng.gamma(2.0, 1.0, n) + 0.01).astype(np.float32)
    return label, rng.normal(scale=1.5, size=(n, objective.n_outputs)).astype(np.float32)


def test_every_registered_objective_is_tested_here() -> None:
    assert set(objective_names()) >= set(LOSSES)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_derivatives_of_the_loss(name: str) -> None:
    objective, loss = build(name), LOSSES[name][1]
    label, margin = rows(name)
    g, h = objective.gradients(label, margin)
    m, y, step = margin.astype(np.float64), label.astype(np.float64), 1e-4
    for output in range(objective.n_outputs):
        offset = np.zeros_like(m)
        offset[:, output] = step
        after, here, before = (values if values.ndim == 1 else values[:, output]
                               for values in (loss(y, m + offset), loss(y, m), loss(y, m - offset)))  # fmt: skip
        np.testing.assert_allclose(g[:, output], (after - before) / (2 * step), rtol=2e-4, atol=2e-5)
        if name in PIECEWISE:
            continue  # their second derivative is zero; 1 stands in for it
        second = (after - 2 * here + before) / step**2
        if name in DIAGONAL_BOUND:
            second = 2 * second
        if name == "count:poisson":
            second = second * math.exp(0.7)
        np.testing.assert_allclose(h[:, output], second, rtol=2e-3, atol=2e-5)


def xgboost_pair(
    name: str, label: float, margin: np.ndarray, params: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """XGBoost's gradient and hessian of one row, from the values of single leaves with two penalties."""
    leaves = []
    for penalty in (0.0, 1.0):
        data = xgboost.DMatrix(np.zeros((1, 1)), label=[label], base_margin=margin.reshape(1, -1))
        fixed = {"objective": name, "eta": 1.0, "lambda": penalty, "min_child_weight": 0.0, "max_delta_step": 0.0,
                 "nthread": 1, "verbosity": 0}  # fmt: skip
        if name == "count:poisson":
            del fixed["max_delta_step"]
        model = json.loads(xgboost.train({**fixed, **params}, data, 1).save_raw("json"))
        trees = model["learner"]["gradient_booster"]["model"]["trees"]
        leaves.append([float(tree["split_conditions"][0]) for tree in trees])
    plain, shrunk = np.array(leaves)
    h = shrunk / (plain - shrunk)
    return -plain * h, h


@pytest.mark.parametrize("name", [n for n in LOSSES if n not in PIECEWISE])
def test_gradients_are_xgboosts(name: str) -> None:
    objective, params = build(name), LOSSES[name][0]
    label, margin = rows(name, 5, seed=3)
    if name == "count:poisson":
        margin = np.clip(margin, 0.2, 0.6)  # beyond, XGBoost limits the leaf, which is what is compared here
        label = np.full_like(label, 1.5)
    g, h = objective.gradients(label, margin)
    for row in range(len(label)):
        their_g, their_h = xgboost_pair(name, float(label[row]), margin[row], params)
        np.testing.assert_allclose(g[row], their_g, rtol=2e-4, atol=1e-6)
        np.testing.assert_allclose(h[row], their_h, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("size", [0.0, 1.0, 50.0, 88.0, 1e3, 1e18])
def test_gradients_are_finite_float32_at_extreme_margins(name: str, size: float) -> None:
    objective = build(name)
    label, margin = rows(name)
    for array in objective.gradients(label, np.float32(size) * np.sign(margin)):
        assert array.dtype == np.float32 and array.shape == margin.shape and array.flags.c_contiguous
        assert np.isfinite(array).all()
    assert (objective.gradients(label, margin)[1] >= 0).all()
    prediction = objective.prediction(np.float32(size) * np.sign(margin))
    assert prediction.dtype == np.float32 and np.isfinite(prediction).all()


@pytest.mark.parametrize("name", LOSSES)
def test_a_row_does_not_see_its_neighbours(name: str) -> None:
    objective = build(name)
    label, margin = rows(name, 37)
    g, h = objective.gradients(label, margin)
    for begin, end in ((0, 1), (1, 18), (18, 37)):
        part = objective.gradients(label[begin:end].copy(), margin[begin:end].copy())
        assert part[0].tobytes() == g[begin:end].tobytes() and part[1].tobytes() == h[begin:end].tobytes()


def test_blocks_leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, (label, margin) = build("multi:softprob"), rows("multi:softprob", 37)
    whole = [array.tobytes() for array in (*objective.gradients(label, margin), objective.prediction(margin))]
    monkeypatch.setattr("daskboost.objectives.classification.BLOCK_ELEMENTS", 20)
    assert whole == [array.tobytes() for array in (*objective.gradients(label, margin), objective.prediction(margin))]


@pytest.mark.parametrize("name", LOSSES)
def test_constant_hessian_says_the_truth(name: str) -> None:
    objective = build(name)
    h = objective.gradients(*rows(name))[1]
    assert objective.constant_hessian == bool((h == 1).all())


@pytest.mark.parametrize("name", LOSSES)
def test_predictions_are_xgboosts(name: str) -> None:
    objective, params = build(name), LOSSES[name][0]
    label, margin = rows(name, 20)
    # Labels only have to be valid: the base margin alone makes the prediction of a model of zero trees.
    data = xgboost.DMatrix(np.zeros((20, 1)), label=label, base_margin=margin)
    booster = xgboost.train({"objective": name, "eta": 0.0, "verbosity": 0, **params}, data, 1)
    if name not in PIECEWISE:
        np.testing.assert_allclose(objective.prediction(margin), booster.predict(data), rtol=1e-6, atol=1e-7)
    mine = objective.prediction(margin)
    assert mine.shape == booster.predict(data).shape


@pytest.mark.parametrize("name", LOSSES)
def test_configuration_is_xgboosts_and_reads_back(name: str) -> None:
    objective, params = build(name), LOSSES[name][0]
    label, margin = rows(name, 20)
    booster = xgboost.train({"objective": name, "verbosity": 0, **params}, xgboost.DMatrix(margin, label=label), 1)
    theirs = json.loads(booster.save_raw("json"))["learner"]["objective"]
    mine = objective.config()
    assert mine.keys() == theirs.keys()
    assert [mine[k].keys() for k in mine if k != "name"] == [theirs[k].keys() for k in theirs if k != "name"]
    assert objective_from_config(json.loads(json.dumps(mine))) == objective
    loaded = objective_from_config(theirs)
    assert type(loaded) is type(objective) and loaded.n_outputs == objective.n_outputs
    for key, value in objective.parameters().items():
        np.testing.assert_allclose(loaded.parameters()[key], value, rtol=1e-7)


@given(st.floats(1e-5, 1 - 1e-5), st.sampled_from(["binary:logistic", "count:poisson", "reg:squarederror"]))
def test_links_are_inverse(score: float, name: str) -> None:
    objective = make_objective(name)
    margin = objective.to_margin(score)
    predicted = objective.prediction(np.full((1, 1), margin, dtype=np.float32))
    assert float(predicted[0]) == pytest.approx(score, rel=2e-6)


def test_base_score_stays_inside_the_link() -> None:
    for mean in (0.0, 1.0):
        objective = make_objective("binary:logistic")
        assert 0 < objective.base_score_of(mean) < 1  # what readers of models that take the logarithm can bear
        assert np.isfinite(objective.to_margin(objective.base_score_of(mean)))
    poisson = make_objective("count:poisson")
    assert np.isfinite(poisson.to_margin(poisson.base_score_of(0.0)))
    weighted = make_objective("binary:logistic", {"scale_pos_weight": 3})
    assert weighted.base_score_of(0.25) == 0.5


@pytest.mark.parametrize("score", [-1e-9, 1.001, -1.0, math.nan])
def test_base_score_outside_the_link_is_refused(score: float) -> None:
    with pytest.raises(ParameterError, match=r"base_score=.* must lie in \[0, 1\].*give a probability"):
        make_objective("binary:logistic").to_margin(score)
    if not score > 0:
        with pytest.raises(ParameterError, match=r"base_score=.* must be above 0 .*positive base_score"):
            make_objective("count:poisson").to_margin(score)


def test_scale_pos_weight_scales_rows_of_label_one() -> None:
    label, margin = rows("binary:logistic")
    g, h = make_objective("binary:logistic").gradients(label, margin)
    g3, h3 = make_objective("binary:logistic", {"scale_pos_weight": 3}).gradients(label, margin)
    factor = np.where(label == 1, np.float32(3), np.float32(1))[:, None]
    np.testing.assert_array_equal(g3, g * factor)
    np.testing.assert_array_equal(h3, h * factor)
    assert g3.dtype == h3.dtype == np.float32


def test_raw_objectives_predict_raw_and_evaluate_probabilities() -> None:
    _, margin = rows("multi:softprob")
    raw, softmax = build("binary:logitraw"), build("multi:softmax")
    np.testing.assert_array_equal(raw.prediction(margin[:, :1]), margin[:, 0])
    np.testing.assert_array_equal(raw.evaluation(margin[:, :1]), build("binary:logistic").prediction(margin[:, :1]))
    np.testing.assert_array_equal(softmax.prediction(margin), margin.argmax(axis=1))
    np.testing.assert_array_equal(softmax.evaluation(margin), build("multi:softprob").prediction(margin))


def test_adaptive_quantiles() -> None:
    assert build("reg:absoluteerror").adaptive_quantiles == (0.5,)
    assert build("reg:quantileerror").adaptive_quantiles == (0.1, 0.5, 0.8)
    assert all(build(n).adaptive_quantiles is None for n in LOSSES if n not in PIECEWISE)
    assert all(build(n).base_score_rule == "quantile" for n in PIECEWISE)


def stats(*values: float) -> LabelStats:
    whole = all(value == round(value) for value in values)
    return LabelStats(len(values), min(values), max(values), whole, max_weight=1.0, positive_weight_rows=len(values))


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("binary:logistic", (0, 2), r"label 2 is out of range .*'binary:logitraw|'binary:logistic'.*\[0, 1\].*encode"),
        ("binary:logitraw", (-1, 1), r"label -1 is out of range .*\[0, 1\].*encode"),
        ("reg:logistic", (0, 1.5), r"label 1.5 is out of range .*\[0, 1\]"),
        ("count:poisson", (-2, 3), r"label -2 is out of range .*at least 0.*remove or correct"),
        ("reg:tweedie", (-2, 3), r"label -2 is out of range .*at least 0"),
        ("reg:gamma", (0, 3), r"label 0 is out of range .*above 0"),
        ("multi:softprob", (0, 4), r"label 4 is out of range .*classes 0 to 3 \(num_class=4\).*raise num_class"),
        ("multi:softmax", (-1, 3), r"label -1 is out of range .*classes 0 to 3"),
        ("multi:softprob", (0.5, 3), r"labels of objective 'multi:softprob' must be the classes 0 to 3.*encode"),
        ("reg:squarederror", (1e30, 3), r"label 1e\+30 is too large .*rescale the labels"),
        ("reg:absoluteerror", (-1e30, 3), r"label -1e\+30 is too large .*rescale the labels"),
    ],
)
def test_labels_out_of_range_are_refused(name: str, values: tuple[float, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        build(name).check_labels(stats(*values))


@pytest.mark.parametrize("name", LOSSES)
def test_valid_labels_pass(name: str) -> None:
    label, _ = rows(name)
    build(name).check_labels(stats(*label.tolist()))
    build(name).check_labels(LabelStats())


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("reg:sqarederror", {}, r"objective 'reg:sqarederror' is unknown; did you mean 'reg:squarederror'\?"),
        ("reg:linear", {}, r"objective 'reg:linear' is unknown; did you mean 'reg:squarederror'\?"),
        ("regression_l1", {}, r"did you mean 'reg:absoluteerror'\?"),
        ("zzz", {}, r"objective 'zzz' is unknown; valid names are binary:logistic"),
        ("multi:softprob", {}, r"num_class=None: objective 'multi:softprob' needs .*one more than the largest label"),
        ("multi:softprob", {"num_class": 1}, r"num_class=1: .*2 to 65536"),
        ("multi:softprob", {"num_class": 2.5}, r"num_class=2.5"),
        ("multi:softprob", {"num_class": "many"}, r"num_class='many'"),
        ("reg:tweedie", {"tweedie_variance_power": 2}, r"tweedie_variance_power=2 is out of range; .*\[1, 2\)"),
        ("reg:tweedie", {"tweedie_variance_power": "x"}, r"tweedie_variance_power='x' is not a number"),
        ("reg:pseudohubererror", {"huber_slope": 0}, r"huber_slope=0 is out of range"),
        ("reg:quantileerror", {"quantile_alpha": 1.0}, r"quantile_alpha=1.0 is out of range; .*\(0, 1\)"),
        ("reg:quantileerror", {"quantile_alpha": []}, r"quantile_alpha is empty; give at least one"),
        ("binary:logistic", {"scale_pos_weight": -1}, r"scale_pos_weight=-1 is out of range"),
        ("binary:logistic", {"scale_pos_weight": math.nan}, r"scale_pos_weight=nan is out of range"),
        ("binary:logistic", {"scale_pos_weight": 1e308}, r"scale_pos_weight=1e\+308 is out of range: float32"),
        ("binary:logistic", {"scale_pos_weight": 10**400}, r"scale_pos_weight=1000+\.\.\. is not a number"),
        ("count:poisson", {"max_delta_step": 1e-320}, r"max_delta_step=1e-320 is out of range: float32"),
    ],
)
def test_bad_parameters_are_refused(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        make_objective(name, params)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "not an object with a 'name'"),
        ({"name": 3}, "not an object with a 'name'"),
        ({"name": "rank:ndgc"}, "objective 'rank:ndgc' is unknown"),
        ({"name": "multi:softprob"}, "num_class"),
        ({"name": "multi:softprob", "softmax_multiclass_param": {"num_class": "1e9"}}, "num_class='1e9'"),
        ({"name": "reg:tweedie", "tweedie_regression_param": []}, "tweedie_regression_param of the model is list"),
        ({"name": "reg:tweedie", "tweedie_regression_param": {"tweedie_variance_power": "9"}}, "out of range"),
        ({"name": "binary:logistic", "reg_loss_param": {"scale_pos_weight": "1e308"}}, "out of range: float32"),
        ({"name": "binary:logitraw", "reg_loss_param": {"scale_pos_weight": "1e-39"}}, "out of range: float32"),
        ({"name": "reg:logistic", "reg_loss_param": {"scale_pos_weight": "inf"}}, "out of range"),
        ({"name": "count:poisson", "poisson_regression_param": {"max_delta_step": "1e-40"}}, "out of range: float32"),
        ({"name": "reg:quantileerror", "quantile_loss_param": {"quantile_alpha": "[1e-40]"}}, "out of range: float32"),
        ({"name": "reg:quantileerror", "quantile_loss_param": {"quantile_alpha": "[0.5"}}, "no list of numbers"),
        ({"name": "reg:quantileerror", "quantile_loss_param": {"quantile_alpha": "[" * 100_000}}, "no list of numbers"),
        ({"name": "reg:quantileerror", "quantile_loss_param": {"quantile_alpha": 3}}, "no list of numbers"),
        ({"name": "reg:quantileerror", "quantile_loss_param": {"quantile_alpha": "{}"}}, "no list of numbers"),
    ],
)
def test_damaged_configurations_are_refused(config: Any, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        objective_from_config(config)


def test_names_of_other_libraries_lead_to_objectives_of_ours() -> None:
    assert set(FOREIGN_NAMES.values()) <= set(objective_names())
    assert not set(FOREIGN_NAMES) & set(objective_names())
