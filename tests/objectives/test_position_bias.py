"""Pairs of clicked rows, divided by the chances of their positions, against pairs in float64 and against XGBoost."""

from __future__ import annotations

import json
import re
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st
from objectives.test_ranking import KEY, NAMES, make_rows
from reference.ranking import Positions, ranking_gradients
from strategies.pairs import pairs_of

from daskboost import Booster
from daskboost.devices.cpu import positions as cpu_positions
from daskboost.devices.cpu.positions import LEAST_CHANCE, add_cost, find_chances, find_ratios, no_ratios
from daskboost.devices.cpu.queries import Queries, QueryLoops
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.losses import QueryLoss
from daskboost.engine.query_rows import QueryRows
from daskboost.errors import ModelFormatError, ParameterError
from daskboost.objectives.objective_names import make_objective, objective_from_config
from daskboost.objectives.ranking import RankNdcg

CASES = pairs_of({
    "name": NAMES, "lambdarank_pair_method": ("topk", "mean"), "lambdarank_num_pair_per_sample": (None, 3, 20),
    "lambdarank_normalization": (True, False), "lambdarank_score_normalization": (True, False),
    "lambdarank_bias_norm": (0.0, 1.0, 2.5), "weighted": (True, False), "ties": ("none", "some", "all"),
})  # fmt: skip
ROUNDS = 3
STEP = np.float32(0.0625)
"""What rounds are multiplied by, so that margins stay small."""


def loss_of(name: str, params: dict[str, Any]) -> QueryLoss:
    """Return the loss that corrects for positions, of parameters."""
    loss = make_objective(name, {**params, "lambdarank_unbiased": True}).query_loss
    assert isinstance(loss, QueryLoss)
    return loss


def loops_of(loss: QueryLoss, qid: Any, label: Any, weight: Any, threads: Threads) -> QueryLoops:
    """Return what fills the gradients of rows as a fit does."""
    rows = QueryRows.of(qid, label, weight)
    ids = rows.order.astype(np.uint64) if loss.drawn else np.empty(0, np.uint64)
    return QueryLoops(loss, Queries(rows.order, rows.begins, rows.label, ids, rows.factors(by_weight=True)), threads)


def rounds(loss: QueryLoss, qid: Any, label: Any, margin: Any, weight: Any = None, threads: int = 1) -> list[Any]:
    """Return gradients and chances of rounds whose margins move as far as the gradients say."""
    pool, found = Threads(threads), []
    loops = loops_of(loss, qid, label, weight, pool)
    for number in range(ROUNDS):
        g, h = np.zeros((2, len(qid)), np.float32)
        loops.fill(np.uint64(KEY + number), margin, g, h)
        loops.learn(_alone)
        found.append((g, h, loops.chances.copy()))
        margin = margin - STEP * g / (h + 1)
    pool.close()
    return found


def _alone(costs: Any) -> None:
    """Add nothing: there is one engine."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_gradients_and_chances_are_those_of_pairs(case: dict[str, Any]) -> None:
    params = dict(case)
    name, weighted, ties = params.pop("name"), params.pop("weighted"), params.pop("ties")
    qid, label, margin = make_rows(name, ties)
    weight = np.random.default_rng(1).uniform(0.5, 3, 20)[qid].astype(np.float32) if weighted else None
    if weight is not None:
        weight[::9] = 0
    loss = loss_of(name, params)
    expected = Positions(loss.positions, params["lambdarank_bias_norm"])
    for number, (g, h, chances) in enumerate(rounds(loss, qid, label, margin, weight)):
        for ours, theirs in zip((g, h), ranking_gradients(
            loss, qid, label, margin, weight, KEY + number, positions=expected
        ), strict=True):  # fmt: skip
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())
        np.testing.assert_allclose(chances, [expected.relevant, expected.irrelevant], rtol=1e-5, atol=1e-9)
        margin = margin - STEP * g / (h + 1)
    assert (chances[:, 0] == 1).all() and np.ptp(chances) > 0.1


@pytest.mark.parametrize("method", ["topk", "mean"])
def test_neither_threads_nor_the_order_of_queries_show(method: str) -> None:
    qid, label, margin = make_rows("rank:ndcg", "none", 3000)
    loss = loss_of("rank:ndcg", {"lambdarank_pair_method": method})
    alone = rounds(loss, qid, label, margin)
    for found in (rounds(loss, qid, label, margin, threads=3), rounds(loss, -qid, label, margin)):
        assert all(np.array_equal(*pair) for one, other in zip(alone, found, strict=True)
                   for pair in zip(one, other, strict=True))  # fmt: skip


def test_labels_and_scores_that_are_turned_round_swap_the_chances() -> None:
    """Rows that are not clicked, by scores of the other sign, are what rows that are clicked have been."""
    qid, label, margin = make_rows("rank:pairwise", "none")
    label = (label > 2).astype(np.float32)
    loss = loss_of("rank:pairwise", {"lambdarank_num_pair_per_sample": 100})
    for (g, h, chances), turned in zip(
        rounds(loss, qid, label, margin), rounds(loss, qid, 1 - label, -margin), strict=True
    ):
        np.testing.assert_allclose(turned[0], -g, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(turned[1], h, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(turned[2], chances[::-1], rtol=1e-4)


def test_scores_far_apart_have_chances() -> None:
    """XGBoost has costs that are infinite, and chances that are NaN, where a right pair is more than 17 apart."""
    qid, label, margin = make_rows("rank:ndcg", "none")
    for score_normalization in (True, False):
        loss = loss_of("rank:ndcg", {"lambdarank_score_normalization": score_normalization})
        for g, h, chances in rounds(loss, qid, label, margin * np.float32(1e6)):
            assert np.isfinite(g).all() and np.isfinite(h).all() and np.isfinite(chances).all()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5), st.floats(0, 2.0**40)), max_size=60), st.randoms())
def test_costs_have_no_order(added: list[tuple[int, int, float]], rng: Any) -> None:
    add: Any = add_cost.py_func  # as compiled, it is called by compiled code alone
    costs, again = np.zeros((2, 6, 2), np.int64), np.zeros((2, 6, 2), np.int64)
    for one in added:
        add(costs, *one)
    rng.shuffle(added)
    for one in added:
        add(again, *one)
    assert np.array_equal(costs, again)
    sums = costs @ [2.0**-8, 2.0**-40]
    expected = np.zeros((2, 6))
    for side, position, cost in added:
        expected[side, position] += cost
    np.testing.assert_allclose(sums, expected, rtol=1e-12, atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.floats(0, 2.0**99, width=32)] * 2), max_size=9))
def test_sums_have_room_for_the_largest_ratios(chances: list[tuple[float, float]]) -> None:
    given_chances = np.array(chances, np.float32).reshape(-1, 2).T.copy()
    n = len(chances)
    ratios = no_ratios(n)
    find_ratios(given_chances, ratios)
    for size in range(n + 1):
        most = np.maximum(ratios.of_chances[:, :size].max(axis=1, initial=0), 1).astype(np.float64).prod()
        assert ratios.shrink[size] * most <= 1 and (most <= 1 or ratios.shrink[size] * most > 0.5)
    known = given_chances >= 1e-16
    assert ((ratios.of_chances > 0) == known).all()
    assert (ratios.of_chances <= 1 / LEAST_CHANCE).all() and (ratios.of_chances[known] >= LEAST_CHANCE).all()


def test_chances_stay_where_the_first_position_has_no_pairs() -> None:
    costs, chances = np.zeros((2, 3, 2), np.int64), np.array([[1, 0.5, 0.25], [1, 2, 3]], np.float32)
    costs[0, :, 0], costs[1, 1:, 0] = (4, 16, 0), 5
    find_chances(costs, 0.5, chances)
    assert chances.tolist() == [[1, 2, 0], [1, 2, 3]]
    assert cpu_positions.chances_at(None, 0).shape == (2, 0)


# XGBoost tells its gradients by trees that it refreshes, see `test_ranking.py`: here one after the other.

@cache
def leaves_of_rows(n: int) -> tuple[xgboost.Booster, Any]:
    """Return a model whose trees have a leaf for each of `n` rows, and these leaves, shape (rows, trees)."""
    rows = np.arange(n, dtype=np.float32)[:, None]
    matrix = xgboost.DMatrix(rows, np.random.default_rng(0).permutation(n) * 10.0)
    params = {"max_depth": 30, "lambda": 0, "min_child_weight": 0, "tree_method": "exact", "eta": 0.3, "base_score": 0}
    booster = xgboost.train(params, matrix, ROUNDS)
    leaves = booster.predict(matrix, pred_leaf=True).astype(int)
    assert all(len(np.unique(own)) == n for own in leaves.T)
    return booster, leaves


@pytest.mark.filterwarnings("ignore:.*updater")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("params", [
    {}, {"lambdarank_num_pair_per_sample": 6}, {"lambdarank_bias_norm": 0.5},
    {"lambdarank_normalization": False, "lambdarank_score_normalization": False},
], ids=str)  # fmt: skip
def test_rounds_are_those_of_xgboost(name: str, params: dict[str, Any]) -> None:
    qid, label, margin = make_rows(name, "none", 150)
    order = np.argsort(qid, kind="stable")
    qid, label, margin = np.unique(qid[order], return_inverse=True)[1], label[order], margin[order]
    booster, leaves = leaves_of_rows(len(qid))
    own = np.random.default_rng(3).uniform(0.5, 3, qid[-1] + 1).astype(np.float32)
    matrix = xgboost.DMatrix(
        np.arange(len(qid), dtype=np.float32)[:, None], label, qid=qid, base_margin=margin, weight=own
    )
    options = {key: str(float(value)) if "norm" in key and "bias" in key else str(int(value))
               for key, value in params.items()}  # fmt: skip
    theirs = xgboost.train({
        "objective": name, "process_type": "update", "updater": "refresh", "lambda": 1.0, "eta": float(STEP),
        "nthread": 1, "min_child_weight": 0, "lambdarank_unbiased": "1", **options,
    }, matrix, ROUNDS, xgb_model=booster)  # fmt: skip
    table = theirs.trees_to_dataframe()
    found = rounds(loss_of(name, params), qid, label, margin, own[qid])
    for number, (g, h, _) in enumerate(found):
        of_rows = table[table.Tree == number].set_index("Node").loc[leaves[:, number]]
        h_theirs = of_rows["Cover"].to_numpy()
        g_theirs = -of_rows["Gain"].to_numpy() / STEP * (h_theirs + 1)
        np.testing.assert_allclose(g, g_theirs, rtol=1e-4, atol=1e-5 * np.abs(g_theirs).max())
        np.testing.assert_allclose(h, h_theirs, rtol=1e-4, atol=1e-5 * np.abs(h_theirs).max())
    config = json.loads(theirs.save_config())["learner"]["objective"]
    np.testing.assert_allclose(found[-1][2], [config["ti+"], config["tj-"]], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_files_say_what_those_of_xgboost_say(name: str) -> None:
    """A model without rounds has estimated nothing."""
    params = {"lambdarank_unbiased": True, "lambdarank_bias_norm": 2}
    booster = xgboost.train({"objective": name, **params}, xgboost.DMatrix([[0.0], [1.0]], [0, 1], qid=[0, 0]), 0)
    theirs, objective = json.loads(booster.save_config())["learner"]["objective"], make_objective(name, params)
    ours = objective.config()
    assert {key: np.asarray(ours[key]).tolist() for key in ("ti+", "tj-")} == {"ti+": [], "tj-": []}
    assert {**ours, "ti+": [], "tj-": []} == theirs and objective_from_config(theirs) == objective
    changed = objective.with_chances(np.array([[1, 0.5], [1, 0.25]], np.float32))
    assert objective.going_on(changed) == changed and changed.going_on(objective) == objective
    assert changed.going_on(make_objective(name)) == changed and make_objective(name).going_on(changed) == (
        make_objective(name))  # fmt: skip
    with pytest.raises(NotImplementedError, match="no chances of positions"):
        make_objective("reg:squarederror").with_chances(np.ones((2, 1), np.float32))


def test_damaged_chances_are_refused() -> None:
    read = partial(objective_from_config)
    for bad in ({}, {"ti+": [1.0]}, {"ti+": ["x"], "tj-": [1.0]}, {"ti+": 3, "tj-": [1.0]},
                {"ti+": [1.0, 2.0], "tj-": [1.0]}, {"ti+": [-1.0], "tj-": [1.0]}, {"ti+": [10**400], "tj-": [1.0]}):
        with pytest.raises(ModelFormatError, match=r"objective.ti\+ and .tj- of the model are no numbers"):
            read({"name": "rank:map", "lambdarank_param": {"lambdarank_unbiased": "1"}, **bad})
    for name, value in (("lambdarank_bias_norm", "x"), ("lambdarank_bias_norm", 10**400), ("ndcg_exp_gain", np.inf)):
        with pytest.raises(ModelFormatError, match="no number"):
            read({"name": "rank:map", "lambdarank_param": {name: value}})


@pytest.mark.parametrize("form", ["json", "ubj"])
def test_models_whose_chances_xgboost_lost_are_read(form: str) -> None:
    """Costs of pairs far apart are infinite there, and chances NaN; scores are what they were."""
    rng = np.random.default_rng(0)
    features, qid = rng.normal(size=(600, 3)).astype(np.float32), np.repeat(np.arange(60), 10)
    matrix = xgboost.DMatrix(features, features[:, 0] > 0.3, qid=qid)
    params = {"objective": "rank:ndcg", "lambdarank_unbiased": True, "eta": 1, "min_child_weight": 0, "lambda": 0}
    theirs = xgboost.train(params, matrix, 60)
    assert np.isnan(json.loads(theirs.save_config())["learner"]["objective"]["ti+"]).any()
    model = Booster.from_bytes(bytes(theirs.save_raw(form)))
    np.testing.assert_array_equal(model.predict(features), theirs.predict(matrix))
    objective = model.objective
    assert isinstance(objective, RankNdcg) and objective.position_bias is not None
    assert objective.position_bias.relevant[:10] == objective.position_bias.irrelevant[:10] == (1.0,) * 10


@pytest.mark.parametrize(("params", "message"), [
    ({"lambdarank_unbiased": 1}, "lambdarank_unbiased=1 must be True or False"),
    ({"lambdarank_unbiased": True, "lambdarank_bias_norm": -0.5}, "lambdarank_bias_norm=-0.5 must lie in [0, "),
    ({"lambdarank_unbiased": True, "lambdarank_bias_norm": "x"}, "lambdarank_bias_norm='x' must be a number"),
    ({"lambdarank_bias_norm": 2}, "lambdarank_bias_norm=2 has no effect without lambdarank_unbiased=True"),
])  # fmt: skip
def test_bad_parameters_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=re.escape(message)):
        make_objective("rank:ndcg", params)
