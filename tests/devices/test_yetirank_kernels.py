"""Gradients of YetiRank on CPUs and GPUs: the same bits, which are near those of pairs in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from devices.query_fills import KEY, check_bits, fill, make_rows
from kernels.runtimes import RUNTIMES
from reference.ranking import ranking_gradients
from strategies.pairs import pairs_of

from daskboost.devices.gpu.rows.queries import block_size
from daskboost.devices.gpu.rows.query_order import most_block_rows
from daskboost.devices.gpu.runtime.launches import Runtime
from daskboost.devices.losses import QueryLoss
from daskboost.objectives.objective_names import make_objective

MakeRuntime = Callable[[], Runtime] | None
MODES = ("classic", "ndcg", "dcg", "mrr", "err", "map")
CASES = pairs_of({
    "mode": MODES, "neighbors": (1, 2, 40), "top": (None, 1, 5), "noise": ("logistic", "gumbel"),
    "power": (1.0, 0.0, 3.0), "permutations": (1, 3), "gains": ("exponential", "label", (0.0, 1.0, 1.0, 4.0, 20.0)),
    "weighted": (True, False), "ties": ("none", "some", "all"),
})  # fmt: skip
SIZES = (1, 2, 33, 0, 60, 7, 129)
"""Rows of queries: of a lane, of a warp and of two; one has one label, and one has rows of no weight alone."""


def make_loss(mode: str, **params: Any) -> QueryLoss:
    loss = make_objective("yetirank", {"yetirank_mode": mode, **params}).query_loss
    assert isinstance(loss, QueryLoss)
    return loss


def loss_of(case: dict[str, Any]) -> QueryLoss:
    gains = case["gains"]
    return make_loss(
        case["mode"], yetirank_neighbors=case["neighbors"], yetirank_noise=case["noise"],
        yetirank_top=None if case["mode"] == "classic" else case["top"], yetirank_noise_power=case["power"],
        yetirank_permutations=case["permutations"], ndcg_exp_gain=gains == "exponential",
        label_gain=gains if isinstance(gains, tuple) else (),
    )  # fmt: skip


def rows_of(number: int) -> tuple[Any, ...]:
    case = CASES[number]
    qid, label, margin, weight = make_rows(loss_of(case), SIZES, case["ties"], case["weighted"])
    if weight is not None:
        weight[qid == 2] = 0
    return qid, label, margin, weight


@cache
def of_cpu(number: int) -> tuple[Any, Any]:
    """Return what a CPU computes of a case."""
    return fill(loss_of(CASES[number]), rows_of(number), None)


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: "-".join(map(str, CASES[n].values())))
@pytest.mark.parametrize("make_runtime", [None, *RUNTIMES])
def test_rules(number: int, make_runtime: MakeRuntime) -> None:
    loss, (qid, label, margin, weight) = loss_of(CASES[number]), rows_of(number)
    if make_runtime is not None:
        check_bits(fill(loss, rows_of(number), make_runtime()), of_cpu(number))
        return
    expected = ranking_gradients(loss, qid, label, margin, weight, KEY, np.arange(len(qid)) + 5)
    for ours, theirs in zip(of_cpu(number), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())
    assert (of_cpu(number)[0] != 0).any()


@pytest.mark.parametrize("mode", ["ndcg", "mrr", "err", "map"])
@pytest.mark.parametrize("sizes", [(2048,), (2100, 33, 4200)], ids=["block", "tiles"])
def test_large_queries(mode: str, sizes: tuple[int, ...], runtime: Runtime) -> None:
    """As large as a block takes, and larger, sorted in two tiles and in three; relevant rows lie in some alone."""
    loss = make_loss(mode, yetirank_permutations=2, yetirank_neighbors=3)
    rows = make_rows(loss, sizes, "some", weighted=True)
    rows[1][np.random.default_rng(0).uniform(size=len(rows[1])) < 0.99] = 0
    check_bits(found := fill(loss, rows, runtime), fill(loss, rows, None))
    assert (found[0] != 0).any()


@pytest.mark.parametrize("n", [20, 2100])
def test_scores_that_are_not_finite_have_no_gradients(n: int, runtime: Runtime) -> None:
    loss = make_loss("classic", yetirank_permutations=2)
    for value in (np.inf, -np.inf, np.nan):
        rows = make_rows(loss, (n, n), "none", weighted=False)
        rows[2][np.flatnonzero(rows[0] == 1)[3]] = value
        check_bits(found := fill(loss, rows, runtime), fill(loss, rows, None))
        assert np.isnan(found[0][rows[0] == 1]).all() and np.isfinite(found[0][rows[0] == 0]).all()


def test_less_shared_memory_has_smaller_blocks() -> None:
    loss = make_loss("err")
    assert most_block_rows(block_size(loss), 227 << 10) == 2048
    assert most_block_rows(block_size(loss), 48 << 10) == 1024
    assert block_size(loss).bytes_of(1024) <= 48 << 10
