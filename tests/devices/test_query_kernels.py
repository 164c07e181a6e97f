"""Gradients of ranking losses on CPUs and GPUs: the same bits, which are near those of pairs in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from devices.query_fills import KEY, check_bits, fill, make_rows, rounds
from kernels.runtimes import RUNTIMES
from reference.ranking import ranking_gradients
from strategies.pairs import pairs_of

from daskboost.devices.gpu.rows.queries import block_size
from daskboost.devices.gpu.rows.query_order import most_block_rows
from daskboost.devices.gpu.runtime.launches import Runtime
from daskboost.devices.losses import PairWeight, PositionStart, QueryLoss

WEIGHTS = (PairWeight.ONE, PairWeight.NDCG, PairWeight.MAP)
MakeRuntime = Callable[[], Runtime] | None
RULES = pairs_of({
    "weight": WEIGHTS, "pairs": ((32, 0), (1, 0), (70, 0), (0, 1), (0, 3)), "exponential": (True, False),
    "normalized": (True, False), "by_score": (True, False), "weighted": (True, False),
    "ties": ("none", "some", "all"),
})  # fmt: skip
SIZES = (1, 2, 33, 0, 120, 7, 128, 129, 300, 64)
"""Rows of queries: of a lane, of a warp's tiles, of several warps; and of one query whose rows weigh nothing."""


def make_loss(case: dict[str, Any]) -> QueryLoss:
    top, drawn = case["pairs"]
    return QueryLoss(case["weight"], top, drawn, case["exponential"], case["normalized"], case["by_score"])


@cache
def of_cpu(number: int) -> tuple[Any, Any]:
    """Return what a CPU computes of a case of `RULES`."""
    return fill(make_loss(RULES[number]), rows_of(number), None)


def rows_of(number: int) -> tuple[Any, ...]:
    case = RULES[number]
    return make_rows(make_loss(case), SIZES, case["ties"], case["weighted"])


@pytest.mark.parametrize("number", range(len(RULES)), ids=lambda n: "-".join(map(str, RULES[n].values())))
@pytest.mark.parametrize("make_runtime", [None, *RUNTIMES])
def test_rules(number: int, make_runtime: MakeRuntime) -> None:
    loss, (qid, label, margin, weight) = make_loss(RULES[number]), rows_of(number)
    if make_runtime is None:
        ids = np.arange(len(qid)) + 5
        expected = ranking_gradients(loss, qid, label, margin, weight, KEY, ids)
        for ours, theirs in zip(of_cpu(number), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())
        return
    check_bits(fill(loss, rows_of(number), make_runtime()), of_cpu(number))


LOSSES = [
    QueryLoss(weight, 0 if drawn else 70 if weight == PairWeight.MAP else 32, drawn, True, True, True)
    for weight in WEIGHTS for drawn in (0, 2)
]
ALL_PAIRS = QueryLoss(PairWeight.ONE, 2**16, 0, False, False, False, curvature=1.0)  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.weight.name}-{loss.drawn}")
@pytest.mark.parametrize("sizes", [(512,), (5000, 33, 2049, 4096)], ids=["block", "tiles"])
def test_large_queries(loss: QueryLoss, sizes: tuple[int, ...], runtime: Runtime) -> None:
    """As large as a block takes, and larger, sorted in two tiles and in three."""
    rows = make_rows(loss, sizes, "some", weighted=False)
    check_bits(fill(loss, rows, runtime), fill(loss, rows, None))


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.weight.name}-{loss.drawn}")
@pytest.mark.parametrize("by_score", [True, False])
def test_scores_far_apart(loss: QueryLoss, by_score: bool, runtime: Runtime) -> None:
    """A query whose scores are wide has exp computed for each pair, and its sums have room up to the largest scores."""
    loss = replace(loss, by_score=by_score)
    qid, label, margin, weight = make_rows(loss, (1, 2, 33, 129, 511, 512, 513), "some", weighted=False)
    largest = margin.copy()
    largest[::7], largest[3::7] = 3.4e38, -3.4e38
    edge = np.where(margin > 0, 32 + 1e-5 * (qid % 2), 0).astype(np.float32)  # just within `MOST_RANGE`, and beyond
    for scores in (margin * np.float32(20), largest, edge):
        rows = qid, label, scores, weight
        found = fill(loss, rows, runtime)
        check_bits(found, fill(loss, rows, None))
        assert all(np.isfinite(own).all() for own in found) and found[1].any()


@pytest.mark.parametrize("weighted", [False, True])
def test_all_pairs(weighted: bool, runtime: Runtime) -> None:
    """Each pair of rows with different labels counts the same, once, in queries of a block and of tiles."""
    rows = make_rows(ALL_PAIRS, (*SIZES, 2100), "some", weighted)
    found = fill(ALL_PAIRS, rows, runtime)
    check_bits(found, fill(ALL_PAIRS, rows, None))
    qid, label, margin, weight = rows
    own = np.isin(qid, (2, 5, 6)) & (True if weight is None else weight > 0)
    counted = np.unique(qid if weight is None else qid[weight > 0])
    norm = 1.0 if weight is None else len(counted) / sum(weight[qid == query].max() for query in counted)
    for query in np.unique(qid[own]):
        at = np.flatnonzero(own & (qid == query))
        y, s = label[at], margin[at].astype(np.float64)
        chance = 1 / (1 + np.exp(s[:, None] - s))
        pull = np.where(y[:, None] > y, -chance, 0) + np.where(y[:, None] < y, 1 - chance, 0)
        bend = np.where(y[:, None] != y, chance * (1 - chance), 0)
        factor = norm * (1.0 if weight is None else weight[at[0]])
        np.testing.assert_allclose(found[0][at], factor * pull.sum(1), rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(found[1][at], factor * bend.sum(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("by_score", [True, False])
def test_no_pair_is_larger_than_its_bound(weight: PairWeight, by_score: bool, runtime: Runtime) -> None:
    """Of queries of two rows or three, the worst row first, some pairs come near the largest number that there is."""
    rng = np.random.default_rng(7)
    sizes = rng.integers(2, 4, 150)
    gains = np.cumsum(rng.uniform(0.1, 3, 20)) + 1e4 * (weight == PairWeight.NDCG)
    loss = QueryLoss(weight, 32, 0, True, False, by_score, label_gain=tuple(gains))
    qid = np.repeat(np.arange(len(sizes)), sizes)
    label = rng.integers(0, 2 if weight == PairWeight.MAP else 20, len(qid)).astype(np.float32)
    margin = (-label * rng.choice(np.array([1e-6, 1e-3, 0.1, 10, 100], np.float32), len(sizes))[qid]).astype(np.float32)
    found = fill(loss, (qid, label, margin, None), runtime)
    check_bits(found, fill(loss, (qid, label, margin, None), None))
    assert np.isfinite(found).all()


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_scores_that_differ_in_their_last_bits_are_sorted(offset: float, runtime: Runtime) -> None:
    """Keys of 32 bits lack bits of scores, by which neighbors are then put in order."""
    rng, sizes = np.random.default_rng(3), (20, 128, 200, 512)
    n = sum(sizes)
    margin = np.float32(offset + 1) + rng.integers(0, 300, n).astype(np.float32) * np.float32(2.0**-12)
    margin[rng.random(n) < 0.3] = offset + 1
    rows = np.repeat(np.arange(len(sizes)), sizes), rng.integers(0, 5, n).astype(np.float32), margin, None
    for loss in (LOSSES[2], LOSSES[3]):
        check_bits(fill(loss, rows, runtime), fill(loss, rows, None))


CLICKS = pairs_of({
    "weight": WEIGHTS, "pairs": ((32, 0), (8, 0), (200, 0), (0, 1), (0, 3)), "normalized": (True, False),
    "by_score": (True, False), "weighted": (True, False), "ties": ("none", "some", "all"), "power": (0.5, 1.0),
    "large": (False, True),
})  # fmt: skip


@pytest.mark.parametrize("case", CLICKS, ids=lambda case: "-".join(map(str, case.values())))
def test_chances_of_positions(case: dict[str, Any], runtime: Runtime) -> None:
    """Rounds have the bits of the CPU's, in queries of a block and of tiles."""
    loss = replace(
        make_loss({**case, "exponential": True}), positions=case["pairs"][0] or 32,
        start=PositionStart((1.0, 0.75), (1.0, 0.5), case["power"]),
    )  # fmt: skip
    rows = make_rows(loss, (*SIZES, 2100) if case["large"] else SIZES, case["ties"], case["weighted"])
    expected = rounds(loss, rows, None)
    for found, own in zip(rounds(loss, rows, runtime), expected, strict=True):
        check_bits(found, own)
    assert np.ptp(expected[-1][2]) > 0.1 and not np.array_equal(expected[0][2], expected[1][2])


@pytest.mark.parametrize("n", [20, 2100])
def test_scores_that_are_not_finite_have_no_gradients(n: int, runtime: Runtime) -> None:
    loss = LOSSES[2]
    for value in (np.inf, -np.inf, np.nan):
        rows = make_rows(loss, (n, n), "none", weighted=False)
        rows[2][np.flatnonzero(rows[0] == 1)[3]] = value
        check_bits(found := fill(loss, rows, runtime), fill(loss, rows, None))
        assert np.isnan(found[0][rows[0] == 1]).all() and np.isfinite(found[0][rows[0] == 0]).all()


def test_less_shared_memory_has_smaller_blocks() -> None:
    loss = LOSSES[-1]
    assert most_block_rows(block_size(loss), 227 << 10) == 512
    assert most_block_rows(block_size(loss), 24 << 10) == 256
    assert block_size(loss).bytes_of(256) <= 24 << 10
