"""Every metric: scikit-learn's value on the whole data, from any partitioning, to the byte; clear errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives.losses import OF_ROWS
from scipy.stats import gamma as gamma_distribution
from scipy.stats import poisson as poisson_distribution
from strategies.metrics import evaluate

from daskboost.data.input.labels import LabelStats
from daskboost.errors import DataError, ParameterError
from daskboost.metrics.metric import Metric
from daskboost.metrics.metric_names import make_metric, metric_names
from daskboost.objectives.objective_names import make_objective

Score = Callable[[np.ndarray, np.ndarray, Any], float]
Rows = tuple[np.ndarray, np.ndarray, np.ndarray]


def mean(loss: np.ndarray, weight: np.ndarray | None) -> float:
    return float(np.average(loss, weights=weight))


def pinballs(y: np.ndarray, p: np.ndarray, w: Any) -> float:
    return float(
        np.mean([sk.mean_pinball_loss(y, p[:, i], sample_weight=w, alpha=a) for i, a in enumerate((0.2, 0.7))])
    )


def tweedie_nll(y: np.ndarray, p: np.ndarray, w: Any) -> float:
    return mean(-y * p**-0.3 / -0.3 + p**0.7 / 0.7, w)


REAL, POSITIVE, BINARY, CLASSES, QUANTILES = "real", "positive", "binary", "classes", "quantiles"
EXPECTED: dict[str, tuple[str, Score]] = {
    "rmse": (REAL, lambda y, p, w: sk.root_mean_squared_error(y, p, sample_weight=w)),
    "mae": (REAL, lambda y, p, w: sk.mean_absolute_error(y, p, sample_weight=w)),
    "mape": (REAL, lambda y, p, w: sk.mean_absolute_percentage_error(y, p, sample_weight=w)),
    "mphe": (REAL, lambda y, p, w: mean(np.sqrt(1 + (p - y) ** 2) - 1, w)),
    "quantile": (REAL, lambda y, p, w: sk.mean_pinball_loss(y, p, sample_weight=w)),
    "quantile@0.2,0.7": (QUANTILES, pinballs),
    "rmsle": (POSITIVE, lambda y, p, w: sk.root_mean_squared_log_error(y, p, sample_weight=w)),
    "poisson-nloglik": (POSITIVE, lambda y, p, w: mean(-poisson_distribution.logpmf(np.floor(y), p), w)),
    "gamma-nloglik": (POSITIVE, lambda y, p, w: mean(-gamma_distribution.logpdf(y, 1, scale=p), w)),
    "tweedie-nloglik@1.3": (POSITIVE, tweedie_nll),
    "poisson-deviance": (POSITIVE, lambda y, p, w: sk.mean_poisson_deviance(y, p, sample_weight=w)),
    "gamma-deviance": (POSITIVE, lambda y, p, w: sk.mean_gamma_deviance(y, p, sample_weight=w)),
    "tweedie-deviance@1": (POSITIVE, lambda y, p, w: sk.mean_tweedie_deviance(y, p, sample_weight=w, power=1)),
    "tweedie-deviance@1.3": (POSITIVE, lambda y, p, w: sk.mean_tweedie_deviance(y, p, sample_weight=w, power=1.3)),
    "tweedie-deviance@2": (POSITIVE, lambda y, p, w: sk.mean_tweedie_deviance(y, p, sample_weight=w, power=2)),
    "tweedie-deviance@2.5": (POSITIVE, lambda y, p, w: sk.mean_tweedie_deviance(y, p, sample_weight=w, power=2.5)),
    "logloss": (BINARY, lambda y, p, w: sk.log_loss(y, p, sample_weight=w, labels=[0, 1])),
    "error": (BINARY, lambda y, p, w: 1 - sk.accuracy_score(y, p > 0.5, sample_weight=w)),
    "error@0.25": (BINARY, lambda y, p, w: 1 - sk.accuracy_score(y, p > 0.25, sample_weight=w)),
    "auc": (BINARY, lambda y, p, w: sk.roc_auc_score(y, p, sample_weight=w)),
    "aucpr": (BINARY, lambda y, p, w: sk.average_precision_score(y, p, sample_weight=w)),
    "mlogloss": (CLASSES, lambda y, p, w: sk.log_loss(y, p, sample_weight=w, labels=[0, 1, 2, 3])),
    "merror": (CLASSES, lambda y, p, w: 1 - sk.accuracy_score(y, p.argmax(axis=1), sample_weight=w)),
}


def rows(kind: str, n: int, seed: int) -> Rows:
    """Labels, float32 predictions (some of them tied) and weights (some of them zero)."""
    rng = np.random.default_rng(seed)
    weight = (rng.gamma(1.0, 3.0, n) * (rng.random(n) > 0.1) + 1e-3 * (np.arange(n) < 2)).astype(np.float32)
    if kind == REAL:
        label, prediction = rng.normal(size=n), rng.normal(size=n)
    elif kind == POSITIVE:
        label, prediction = np.floor(rng.gamma(2, 3, n)) + 1, rng.gamma(2, 3, n) + 0.01
    elif kind == BINARY:
        prediction = np.where(rng.random(n) < 0.5, rng.uniform(0.01, 0.99, n), np.round(rng.uniform(0.1, 0.9, n), 1))
        label = (rng.random(n) < prediction).astype(float)
        label[:2] = 0, 1
    elif kind == CLASSES:
        prediction = rng.dirichlet(np.ones(4), n).clip(1e-5)
        label = rng.integers(0, 4, n).astype(float)
    else:
        label, prediction = rng.normal(size=n), rng.normal(size=(n, 2))
    return label.astype(np.float32), prediction.astype(np.float32), weight


def double(array: np.ndarray) -> np.ndarray:
    """scikit-learn clips float32 probabilities at 1.2e-7, float64 ones at 2e-16."""
    wide = array.astype(np.float64)
    return wide / wide.sum(axis=1, keepdims=True) if wide.ndim == 2 and (wide > 0).all() else wide


def merged(metric: Metric[Any], data: Rows, cuts: list[int], order: list[int], weighted: bool) -> float:
    label, prediction, weight = data
    stats = LabelStats(len(label), max_weight=float(weight.max()) if weighted else 1.0)
    prepared = metric.prepare(stats)
    bounds = [0, *cuts, len(label)]
    states = []
    for i in range(len(bounds) - 1):
        part = slice(bounds[i], bounds[i + 1])
        state = prepared.partial(label[part], prediction[part], weight[part] if weighted else None, first_row=bounds[i])
        arrays = {name: array.copy() for name, array in state.to_arrays().items()}
        states.append(prepared.state_from_arrays(arrays))
    total = states[order[0]]
    for i in order[1:]:
        total = total + states[i]
    return prepared.value(total)


def test_every_registered_metric_is_tested_here() -> None:
    by_query = {name for name in metric_names() if make_metric(name).by_query}  # test_ranking_metrics.py
    assert set(metric_names()) <= {name.partition("@")[0] for name in EXPECTED} | {"test-bias"} | by_query


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", EXPECTED)
def test_value_is_scikit_learns(name: str, weighted: bool) -> None:
    kind, expected = EXPECTED[name]
    for n, seed in ((2, 0), (37, 1), (5000, 2)):
        label, prediction, weight = rows(kind, n, seed)
        w = weight if weighted else None
        value = evaluate(make_metric(name), label, prediction, w)
        theirs = expected(double(label), double(prediction), None if w is None else w.astype(np.float64))
        assert value == pytest.approx(theirs, rel=1e-6, abs=1e-9), n


@pytest.mark.parametrize("name", EXPECTED)
@settings(max_examples=20, deadline=None)
@given(data=st.data(), n=st.integers(1, 120), seed=st.integers(0, 1000), weighted=st.booleans())
def test_any_partitioning_gives_the_same_bytes(
    name: str, data: st.DataObject, n: int, seed: int, weighted: bool
) -> None:
    metric, arrays = make_metric(name), rows(EXPECTED[name][0], max(n, 2), seed)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=6)))
    order = data.draw(st.permutations(range(len(cuts) + 1)))
    whole = evaluate(metric, arrays[0], arrays[1], arrays[2] if weighted else None)
    parts = merged(metric, arrays, cuts, list(order), weighted)
    assert np.float64(whole).tobytes() == np.float64(parts).tobytes()


@pytest.mark.parametrize("name", ["rmse", "logloss", "auc", "mlogloss", "quantile@0.2,0.7", "poisson-nloglik"])
def test_blocks_leave_no_trace(name: str) -> None:
    """More rows than a block, cut at odd places."""
    data = rows(EXPECTED[name][0], 150_001, 5)
    assert merged(make_metric(name), data, [1, 65_536, 70_003], [2, 0, 3, 1], True) == evaluate(
        make_metric(name), *data
    )


XGBOOST_NAMES = [n for n in EXPECTED if n.partition("@")[0] not in (
    "poisson-deviance", "tweedie-deviance", "aucpr", "quantile", "gamma-deviance")]  # fmt: skip


@pytest.mark.parametrize("name", XGBOOST_NAMES)
def test_value_is_xgboosts(name: str) -> None:
    import xgboost  # here, since tests on GPUs take data from this file and have no peers

    kind, _ = EXPECTED[name]
    label, prediction, weight = rows(kind, 300, 7)
    softprob = {"objective": "multi:softprob", "num_class": 4}
    params = softprob if kind == CLASSES else {"objective": "reg:squarederror"}
    margin = np.log(prediction) if kind == CLASSES else prediction
    data = xgboost.DMatrix(np.zeros((300, 1)), label=label, weight=weight, base_margin=margin)
    booster = xgboost.train({**params, "eta": 0.0, "eval_metric": name, "verbosity": 0}, data, 1)
    theirs = float(booster.eval(data).rsplit(":", 1)[1])
    assert evaluate(make_metric(name), label, prediction, weight) == pytest.approx(theirs, rel=2e-5)


def test_auc_beyond_capacity_stays_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daskboost.metrics.classification.CAPACITY", 4096)
    label, prediction, weight = rows(BINARY, 20_000, 3)
    prediction += np.random.default_rng(0).uniform(0, 1e-3, 20_000).astype(np.float32)  # without large groups of ties
    auc = make_metric("auc").prepare(LabelStats(20_000, max_weight=float(weight.max())))
    state = auc.partial(label, prediction, weight)
    negative, positive = state.counts.astype(float).T
    assert len(negative) <= 4096
    bound = (negative * positive).sum() / (2 * negative.sum() * positive.sum())
    off = abs(auc.value(state) - sk.roc_auc_score(label, prediction, sample_weight=weight))
    assert 0 < off <= bound < 0.005
    assert off < 1e-4  # order within cells is as good as random
    assert merged(make_metric("auc"), (label, prediction, weight), [100, 7000, 7001], [3, 1, 0, 2], True) == auc.value(
        state
    )


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_auc_takes_weights_of_any_size(scale: float) -> None:
    label, prediction, weight = rows(BINARY, 1000, 4)
    plain = evaluate(make_metric("auc"), label, prediction, weight)
    assert evaluate(make_metric("auc"), label, prediction, weight * np.float32(scale)) == pytest.approx(plain, rel=1e-6)


def test_weighted_auc_needs_the_largest_weight() -> None:
    label, prediction, weight = rows(BINARY, 10, 4)
    with pytest.raises(ParameterError, match=r"metric 'auc' needs the largest weight .*call prepare\(stats\) first"):
        make_metric("auc").partial(label, prediction, weight)


@pytest.mark.parametrize("name", EXPECTED)
def test_nothing_to_measure_is_nan(name: str) -> None:
    label, prediction, weight = rows(EXPECTED[name][0], 5, 0)
    assert math.isnan(evaluate(make_metric(name), label[:0], prediction[:0]))
    assert math.isnan(evaluate(make_metric(name), label, prediction, np.zeros_like(weight)))


@pytest.mark.parametrize("name", ["auc", "aucpr"])
def test_one_class_has_no_area(name: str) -> None:
    for only in (0, 1):
        assert math.isnan(evaluate(make_metric(name), np.full(4, only, np.float32), np.ones(4, np.float32)))


@pytest.mark.parametrize("name", ["rmse", "logloss", "mae"])
def test_nan_predictions_give_nan(name: str) -> None:
    prediction = np.array([0.5, np.nan], dtype=np.float32)
    assert math.isnan(evaluate(make_metric(name), np.ones(2, np.float32), prediction))


def test_extreme_predictions_are_clipped() -> None:
    label, certain = np.array([0, 1], np.float32), np.array([1, 0], np.float32)
    worst = -math.log(1e-16)
    assert evaluate(make_metric("logloss"), label, certain) == pytest.approx(worst)
    assert evaluate(make_metric("mlogloss"), label, np.stack([1 - certain, certain], axis=1)[:, ::-1].copy()) >= 0
    assert evaluate(make_metric("mlogloss"), label, np.array([[0, 1], [1, 0]], np.float32)) == pytest.approx(worst)
    for name in ("poisson-nloglik", "poisson-deviance", "gamma-deviance", "gamma-nloglik", "tweedie-nloglik@1.5"):
        assert math.isfinite(evaluate(make_metric(name), label, np.zeros(2, np.float32)))
    assert math.isfinite(evaluate(make_metric("rmsle"), label, np.full(2, -5, np.float32)))
    assert math.isfinite(evaluate(make_metric("mape"), label, certain))


def test_soft_labels_have_a_log_loss() -> None:
    label, prediction = np.array([0.25, 1, 0], np.float32), np.array([0.5, 0.75, 0.1], np.float32)
    expected = np.mean([-math.log(0.5), -math.log(0.75), -math.log(0.9)])
    assert evaluate(make_metric("logloss"), label, prediction) == pytest.approx(expected, rel=1e-6)


def test_direction_and_names() -> None:
    assert {name for name in EXPECTED if make_metric(name).maximize} == {"auc", "aucpr"}
    for name in ("error@0.25", "tweedie-nloglik@1.3", "tweedie-deviance@2", "rmse", "auc"):
        assert make_metric(name).name == name
    assert make_metric("error@0.5").name == "error"
    assert make_metric("tweedie-nloglik", {"tweedie_variance_power": 1.7}).name == "tweedie-nloglik@1.7"
    assert make_metric(make_metric("mae")) == make_metric("mae")


@pytest.mark.parametrize("name", OF_ROWS)
def test_default_metrics_exist_and_read_the_objectives_parameters(name: str) -> None:
    params = {"num_class": 3, "quantile_alpha": (0.2, 0.7), "huber_slope": 2.0}
    objective = make_objective(name, params)
    metric = make_metric(objective.default_metric, objective.parameters())
    label = np.array([1, 0, 1], np.float32)
    prediction = objective.evaluation(np.full((3, objective.n_outputs), 0.5, np.float32))
    assert math.isfinite(evaluate(metric, label + (0 if name.startswith(("multi", "binary")) else 1), prediction))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rsme", r"metric 'rsme' is unknown; did you mean 'rmse'\?"),
        ("zzzzzz", r"metric 'zzzzzz' is unknown; valid names are auc, aucpr"),
        ("rmse@2", r"metric 'rmse@2': 'rmse' takes no argument"),
        ("error@x", r"metric 'error@x': 'x' is not a number"),
        ("tweedie-nloglik@2", r"metric 'tweedie-nloglik@2': the variance power must lie in \[1, 2\)"),
        ("tweedie-deviance@0.5", r"metric 'tweedie-deviance@0.5': the variance power must lie in \[1, 3\]"),
        ("quantile@0.5,2", r"metric 'quantile@2': the argument must lie in \[0, 1\]"),
    ],
)
def test_unknown_names_and_arguments_are_refused(name: str, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        make_metric(name)


ONE = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("name", "label", "prediction", "message"),
    [
        (
            "rmse",
            ONE,
            np.ones((3, 2), np.float32),
            r"shape \(3, 2\) .*'rmse' needs one prediction per row; use mlogloss",
        ),
        ("auc", ONE, np.ones((3, 2), np.float32), r"shape \(3, 2\) .*'auc' needs one prediction per row"),
        ("mae", ONE, np.ones(4, np.float32), r"shape \(4,\) for labels of shape \(3,\)"),
        ("mlogloss", ONE, ONE, r"shape \(3,\) for metric 'mlogloss' .*use logloss or error"),
        ("merror", 5 * ONE, np.ones((3, 2), np.float32), r"labels from 5 to 5 .* must lie in 0 to 1"),
        ("quantile@0.1,0.9", ONE, ONE, r"shape must be \(3, 2\); give quantile_alpha"),
        ("auc", 0.5 * ONE, ONE, r"label 0.5 for metric 'auc': labels must be 0 or 1"),
        ("auc", ONE, np.nan * ONE, r"prediction holds NaN, which metric 'auc' cannot rank"),
    ],
)
def test_wrong_shapes_and_labels_are_refused(
    name: str, label: np.ndarray, prediction: np.ndarray, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        evaluate(make_metric(name), label, prediction)


@pytest.mark.parametrize("name", ["rmse", "auc"])
def test_misaligned_weights_are_refused(name: str) -> None:
    with pytest.raises(DataError, match=r"weight of shape \(2,\) for labels of shape \(3,\); give one per row"):
        evaluate(make_metric(name), ONE, ONE, ONE[:2])


def test_states_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(DataError, match=r"'numerator' is absent"):
        make_metric("rmse").state_from_arrays({})
    counts = make_metric("auc").partial(ONE, ONE).to_arrays()
    counts["counts"] = counts["counts"][:, :1]
    with pytest.raises(DataError, match=r"not a state of metric 'auc'"):
        make_metric("auc").state_from_arrays(counts)
