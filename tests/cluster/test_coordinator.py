"""Decisions of a fit: base scores, learning rates, early stopping, evaluation; the same for any engines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from strategies.trees import Data, fit, make_data, quantized

from daskboost import train
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import SlotLayout
from daskboost.fit.messages import Outbox
from daskboost.fit.peers import AmongPeers, AtCoordinator, make_reduction
from daskboost.training.callbacks import Callback, LearningRateSchedule, RoundInfo
from daskboost.tree.split_search import SplitRules

PLACES: list[dict[str, Any]] = [
    {}, {"engines": 2, "partitions": 7}, {"engines": 3, "partitions": 50, "encoding": "csr"},
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES[1:])
def test_base_score_is_an_exact_mean(place: dict[str, Any], rng: np.random.Generator) -> None:
    """Labels that cancel but for their last bits: any order of adding floats would show."""
    big = rng.normal(size=150).astype(np.float32) * 1e15
    label = rng.permutation(np.concatenate([big, -big, np.full(10, 3, np.float32)])).astype(np.float32)
    X = rng.normal(size=(len(label), 2)).astype(np.float32)
    for each in ({}, place):
        assert fit(Data(X, label), {}, 0, **each).base_score == (float(np.float32(30 / len(label))),)


@pytest.mark.parametrize("place", PLACES)
def test_base_score_of_quantiles(place: dict[str, Any], rng: np.random.Generator) -> None:
    y = rng.permutation(np.arange(1000)).astype(np.float32)
    X = rng.normal(size=(1000, 2)).astype(np.float32)
    given = {"objective": "reg:quantileerror", "quantile_alpha": [0.1, 0.5, 0.975]}
    assert fit(Data(X, y), given, 0, **place).base_score == (99.0, 499.0, 974.0)
    weight = np.where(y < 500, 3, 1).astype(np.float32)  # 1500 and 500: the median is the 1000th of them
    assert fit(Data(X, y, weight), {"objective": "reg:absoluteerror"}, 0, **place).base_score == (333.0,)


def test_base_score_given(rng: np.random.Generator) -> None:
    data = make_data(rng, "binary:logistic")
    model = fit(data, {"objective": "binary:logistic", "base_score": 0.2}, 0)
    assert model.base_score == (float(np.float32(0.2)),)
    assert np.asarray(model.predict(data.X, output="margin")) == pytest.approx(math.log(0.25))


def test_learning_rates_scale_each_round(rng: np.random.Generator) -> None:
    data = make_data(rng)
    with quantized(data) as rows:
        full = train({"learning_rate": 1.0, "max_depth": 3}, rows, 1)
        model = train({"max_depth": 3}, rows, 2, callbacks=[LearningRateSchedule([0.25, 0.5])])
    np.testing.assert_array_equal(model.trees[0].value, full.trees[0].value / 4)
    np.testing.assert_array_equal(model.trees[0].gain, full.trees[0].gain)


def history_of(data: Data, valid: Data, place: dict[str, Any], **options: Any) -> tuple[Any, Any]:
    history: dict[str, dict[str, list[float]]] = {}
    with quantized(data, **place) as rows, quantized(valid, reference=rows, **place) as other:
        given = {"objective": "binary:logistic", "eval_metric": ["logloss", "auc"], "max_depth": 4, "subsample": 0.7}
        evals = [(rows, "train"), (other, "valid")]
        model = train(given, rows, 12, evals=evals, evals_result=history, **options)
    return model, history


def test_evaluation_does_not_depend_on_places(rng: np.random.Generator) -> None:
    data, valid = (make_data(rng, "binary:logistic", n_rows=n) for n in (700, 450))
    (first, expected), *others = [history_of(data, valid, place, early_stopping_rounds=3) for place in PLACES]
    assert set(expected) == {"train", "valid"} and list(expected["valid"]) == ["logloss", "auc"]
    for model, history in others:
        assert history == expected  # to the last bit
        assert model.to_bytes() == first.to_bytes()


@pytest.mark.parametrize("patience", [1, 3])
def test_early_stopping_waits_for_the_last_metric_of_the_last_set(patience: int, rng: np.random.Generator) -> None:
    data, valid = (make_data(rng, "binary:logistic", n_rows=n) for n in (300, 200))
    model, history = history_of(data, valid, {}, early_stopping_rounds=patience)
    scores = history["valid"]["auc"]
    best = int(np.argmax(scores))  # the first of equals
    assert model.best_iteration == best and model.best_score == scores[best]
    assert len(scores) == min(best + patience + 1, 12) == len(model.trees)


class StopAfter(Callback):
    """Stops a fit; keeps the models it was shown."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.seen: list[bytes] = []

    def after_round(self, info: RoundInfo) -> bool:
        self.seen.append(info.snapshot().to_bytes())
        return len(self.seen) == self.rounds


def test_a_callback_may_stop_and_sees_each_model(rng: np.random.Generator) -> None:
    data = make_data(rng)
    stop = StopAfter(3)
    with quantized(data) as rows:
        model = train({}, rows, 10, callbacks=[stop])
        assert stop.seen == [train({}, rows, n).to_bytes() for n in (1, 2, 3)]
    assert model.to_bytes() == stop.seen[-1]


def test_fits_of_one_data_set_do_not_disturb_each_other(rng: np.random.Generator) -> None:
    from concurrent.futures import ThreadPoolExecutor

    data = make_data(rng, n_rows=3000, n_values=100)
    params = [{"max_depth": depth, "subsample": share, "n_jobs": 2} for depth in (2, 5) for share in (0.5, 1.0)]
    with quantized(data, chunk_rows=500) as rows, ThreadPoolExecutor(4) as pool:
        alone = [train(each, rows, 4).to_bytes() for each in params]
        assert list(pool.map(lambda each: train(each, rows, 4).to_bytes(), params * 2)) == alone * 2


class Engines:
    """Only counts itself."""

    def __init__(self, n_engines: int) -> None:
        self.n_engines = n_engines

    def ask(self, message: Any, /) -> list[Any]:
        return [message] * self.n_engines


@pytest.mark.parametrize("name, n_engines, n_slots, expected", [
    ("coordinator", 3, 10**6, AtCoordinator),
    ("peers", 1, 10, AmongPeers),
    ("auto", 1, 10, AmongPeers),
    ("auto", 1, 10**6, AmongPeers),
    ("auto", 2, 1000, AtCoordinator),
    ("auto", 2, 10**6, AmongPeers),
])  # fmt: skip
def test_reduction_by_name(name: str, n_engines: int, n_slots: int, expected: type) -> None:
    layout = SlotLayout(np.array([0, n_slots], np.int64), np.array([n_slots], np.int32))
    rules = SplitRules(1.0, 0.0, 0.0, 1.0, np.zeros(1, np.int32), False)
    assert type(make_reduction(name, Outbox(Engines(n_engines)), layout, rules, Threads(1))) is expected
