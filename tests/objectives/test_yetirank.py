"""YetiRank: what its parameters mean, what it refuses, and gradients that can be told by hand."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from devices.query_fills import KEY

from daskboost.data.input.labels import LabelStats
from daskboost.devices.cpu.queries import Queries, pair_rule
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.yetirank import OrderLoops
from daskboost.devices.losses import QueryLoss
from daskboost.engine.query_rows import QueryRows
from daskboost.errors import DataError, ModelFormatError, ParameterError
from daskboost.metrics.metric_names import make_metric
from daskboost.objectives.objective_names import make_objective, objective_from_config
from daskboost.params import TrainParams

MODES = ("classic", "ndcg", "dcg", "mrr", "err", "map")


def fill(params: dict[str, Any], qid: Any, label: Any, margin: Any, ids: Any = None, threads: int = 1) -> Any:
    """Return g and h, shape (2, rows); `ids` : global ids, by default the rows' places."""
    loss = make_objective("yetirank", params).query_loss
    assert isinstance(loss, QueryLoss)
    ids = np.arange(len(qid), dtype=np.uint64) if ids is None else ids
    rows = QueryRows.of(qid, np.asarray(label, np.float32), None)
    order = rows.order[np.lexsort((ids[rows.order], qid[rows.order]))]  # as rows of these ids would lie
    begins = np.array([*np.searchsorted(qid[order], np.unique(qid)), len(qid)])
    queries = Queries(order, begins, np.asarray(label, np.float32)[order], ids[order], np.ones(len(begins) - 1))
    pool, found = Threads(threads), np.full((2, len(qid)), np.nan, np.float32)
    OrderLoops(loss, queries, pool).fill(np.uint64(KEY), np.asarray(margin, np.float32), found[0], found[1])
    pool.close()
    return found


@pytest.mark.parametrize(("mode", "change"), [
    ("classic", 0.15 * 3), ("dcg", 7 * (1 - 1 / math.log2(3))), ("ndcg", 1 - 1 / math.log2(3)), ("mrr", 0.5),
    ("map", 0.5),
])  # fmt: skip
def test_two_rows_pull_alike_in_any_order(mode: str, change: float) -> None:
    g, h = fill({"yetirank_mode": mode}, np.zeros(2, int), [0, 3], [0.5, -0.25])
    lost = 1 / (1 + math.exp(-0.75))
    np.testing.assert_allclose(g, [lost * change, -lost * change], rtol=1e-5)
    np.testing.assert_allclose(h, [lost * (1 - lost) * change] * 2, rtol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_queries_of_one_row_or_one_label_have_no_gradients(mode: str) -> None:
    assert not fill({"yetirank_mode": mode}, np.array([0, 1, 1, 1, 2, 2]), [1, 1, 1, 1, 0, 0], np.arange(6)).any()


@pytest.mark.parametrize("mode", MODES)
def test_neither_threads_nor_the_order_of_rows_shows(mode: str) -> None:
    rng = np.random.default_rng(0)
    qid, label, margin = rng.integers(0, 40, 2000), rng.integers(0, 3, 2000) / 2, rng.normal(size=2000).round(1)
    label = label if mode == "err" else label * 2
    expected = fill({"yetirank_mode": mode}, qid, label, margin)
    assert np.array_equal(fill({"yetirank_mode": mode}, qid, label, margin, threads=3), expected)
    order = rng.permutation(2000)
    moved = fill({"yetirank_mode": mode}, qid[order], label[order], margin[order], order.astype(np.uint64))
    assert np.array_equal(moved, expected[:, order]) and expected.any()


@pytest.mark.parametrize("decay", [0.3, 0.85, 0.999, 1.0])
def test_places_do_not_depend_on_the_largest_query(decay: float) -> None:
    """Which query is the largest of those that an engine ranks follows from where rows lie."""
    rng = np.random.default_rng(0)
    qid = np.repeat([0, 1], [40, 400])
    label, margin = rng.integers(0, 5, 440), rng.normal(size=440) * 0.1
    params = {"yetirank_decay": decay, "yetirank_neighbors": 3, "yetirank_permutations": 5}
    both, alone = fill(params, qid, label, margin), fill(params, qid[:40], label[:40], margin[:40])
    assert np.array_equal(both[:, :40], alone) and alone.any()
    loss = make_objective("yetirank", params).query_loss
    assert isinstance(loss, QueryLoss)
    pool = Threads(1)
    tables = [pair_rule(loss, np.zeros(n, np.float32), np.array([0, n]), pool).steps for n in (0, 1, 2, 300, 5_000)]
    pool.close()
    assert all(np.array_equal(own, tables[-1][: len(own)]) for own in tables)
    np.testing.assert_allclose(-np.diff(tables[-1][:60]), 0.15 * decay ** np.arange(59), rtol=1e-12, atol=1e-15)


def test_label_gains_are_those_that_are_given() -> None:
    rng = np.random.default_rng(0)
    rows = np.zeros(50, int), rng.integers(0, 4, 50), rng.normal(size=50)
    by_list = fill({"yetirank_mode": "ndcg", "label_gain": [0, 1, 3, 7]}, *rows)
    assert np.array_equal(by_list, fill({"yetirank_mode": "ndcg"}, *rows))
    assert not np.array_equal(by_list, fill({"yetirank_mode": "ndcg", "label_gain": [0, 1, 3, 8]}, *rows))
    given: Any = np.array([0, 1, 3])
    made = TrainParams(label_gain=given), TrainParams.from_mapping({"label_gain": [0, 1, 3]})
    assert all(own.label_gain == (0.0, 1.0, 3.0) and type(own.label_gain) is tuple for own in made)
    metric = make_metric("ndcg@3", {"label_gain": (0.0, 1.0, 5.0)})
    with pytest.raises(DataError, match="label_gain has the gains, not label 3; give a gain for each label"):
        metric.prepare(LabelStats(9, 0.0, 3.0, True, 1.0, 4))


def test_files_say_the_parameters() -> None:
    for params in ({}, {"yetirank_mode": "ndcg", "yetirank_top": 10, "label_gain": (0.0, 0.1), "ndcg_exp_gain": False}):
        objective = make_objective("yetirank", params)
        config = json.loads(json.dumps(objective.config()))
        assert config["name"] == "yetirank" and objective_from_config(config) == objective
    with pytest.raises(ModelFormatError, match="no JSON"):
        objective_from_config({"name": "yetirank", "yetirank_param": {"yetirank_mode": "classic"}})
    with pytest.raises(ModelFormatError, match="yetirank_permutations=0 must be"):
        objective_from_config({"name": "yetirank", "yetirank_param": {"yetirank_permutations": "0"}})
    ranking = make_objective("rank:ndcg", {"label_gain": [0, 1, 4]})
    assert objective_from_config(ranking.config()) == ranking
    with pytest.raises(ModelFormatError, match="no list of numbers"):
        objective_from_config({"name": "rank:ndcg", "lambdarank_param": {"label_gain": "0,"}})


@pytest.mark.parametrize(("params", "metric"), [
    ({}, "ndcg"), ({"yetirank_mode": "ndcg", "yetirank_top": 10}, "ndcg@10"), ({"yetirank_mode": "mrr"}, "mrr"),
    ({"yetirank_mode": "map", "yetirank_top": 3}, "map@3"), ({"yetirank_mode": "err"}, "ndcg"),
])  # fmt: skip
def test_modes_have_their_metrics(params: dict[str, Any], metric: str) -> None:
    assert make_objective("yetirank", params).default_metric == metric


@pytest.mark.parametrize(("params", "message"), [
    ({"yetirank_mode": "NDCG"}, "yetirank_mode='NDCG' must be one of"),
    ({"yetirank_noise": "gauss"}, "yetirank_noise='gauss' must be one of 'logistic', 'gumbel'"),
    ({"yetirank_permutations": 0}, "yetirank_permutations=0 must be an integer of at least 1"),
    ({"yetirank_neighbors": 1.5}, "yetirank_neighbors=1.5 must be an integer of at least 1"),
    ({"yetirank_decay": 0}, "yetirank_decay=0 must lie in (0, 1]"),
    ({"yetirank_noise_power": -1}, "yetirank_noise_power=-1 must lie in [0, 1e+06)"),
    ({"yetirank_top": 5}, "yetirank_top=5 has no effect with yetirank_mode='classic'"),
    ({"yetirank_mode": "ndcg", "yetirank_top": 0}, "yetirank_top=0 must be an integer of at least 1"),
    ({"yetirank_mode": "ndcg", "yetirank_decay": 0.9}, "yetirank_decay=0.9 has no effect with yetirank_mode='ndcg'"),
    ({"label_gain": [0, 3, 1]}, "label_gain=[0, 3, 1] must be a list of the gains of labels 0, 1, 2"),
    ({"label_gain": ["a"]}, "label_gain=['a'] must be a list"),
    ({"label_gain": [-1, 1]}, "numbers from 0 to 2**31, none below"),
    ({"label_gain": [0, 2**32]}, "numbers from 0 to 2**31, none below"),
    ({"label_gain": 3}, "label_gain=3 must be a list"),
    ({"label_gain": [False, True]}, "label_gain=[False, True] must be a list"),
    ({"yetirank_permutations": 10_001}, "of at least 1 and less than 10,001"),
])  # fmt: skip
def test_bad_parameters_are_refused(params: dict[str, Any], message: str) -> None:
    for make in (
        lambda: make_objective("yetirank", params), lambda: TrainParams.from_mapping(params),
        lambda: TrainParams(**params),
    ):  # fmt: skip
        with pytest.raises(ParameterError, match=re.escape(message)):
            make()


@pytest.mark.parametrize(("mode", "most", "whole", "message"), [
    ("err", 2, True, "takes labels from 0 to 1, chances that a row satisfies, not label 2"),
    ("ndcg", 1.5, False, "takes whole labels up to 31"), ("dcg", 32, True, "takes whole labels up to 31, not label 32"),
])  # fmt: skip
def test_labels_without_a_meaning_are_refused(mode: str, most: float, whole: bool, message: str) -> None:
    objective = make_objective("yetirank", {"yetirank_mode": mode})
    with pytest.raises(DataError, match=re.escape(message)):
        objective.check_labels(LabelStats(2, 0.0, most, whole, 1.0, 2))
    with pytest.raises(DataError, match="label -1 is out of range for objective 'yetirank'"):
        objective.check_labels(LabelStats(2, -1.0, 1.0, True, 1.0, 2))
    make_objective("yetirank").check_labels(LabelStats(2, 0.0, most, whole, 1.0, 2))


def test_catboosts_name_is_told() -> None:
    with pytest.raises(ParameterError, match="yetirank"):
        make_objective("YetiRank")
