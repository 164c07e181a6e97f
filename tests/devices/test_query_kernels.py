"""Gradients of ranking losses on CPUs and GPUs: the same bits, which are near those of pairs in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from kernels.runtimes import RUNTIMES
from reference.ranking import ranking_gradients
from strategies.pairs import pairs_of

from daskboost.devices.cpu.queries import Queries, QueryLoops
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.gpu.rows.queries import QueryKernels, block_bytes
from daskboost.devices.gpu.rows.query_order import most_block_rows
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.losses import PairWeight, QueryLoss
from daskboost.engine.query_rows import QueryRows

KEY = 77
MakeRuntime = Callable[[], Runtime] | None
RULES = pairs_of({
    "weight": tuple(PairWeight), "pairs": ((32, 0), (1, 0), (70, 0), (0, 1), (0, 3)), "exponential": (True, False),
    "normalized": (True, False), "by_score": (True, False), "weighted": (True, False),
    "ties": ("none", "some", "all"),
})  # fmt: skip
SIZES = (1, 2, 33, 0, 120, 7, 128, 129, 300, 64)
"""Rows of queries: of a lane, of a warp's tiles, of several warps; and of one query whose rows weigh nothing."""


def make_loss(case: dict[str, Any]) -> QueryLoss:
    top, drawn = case["pairs"]
    return QueryLoss(case["weight"], top, drawn, case["exponential"], case["normalized"], case["by_score"])


def make_rows(loss: QueryLoss, sizes: tuple[int, ...], ties: str, weighted: bool) -> tuple[Any, ...]:
    """Return queries, labels, margins and weights of rows in no order; one query has one label."""
    rng = np.random.default_rng(len(sizes))
    qid = np.repeat(np.arange(len(sizes)), sizes)
    n = len(qid)
    label = rng.integers(0, 2 if loss.weight == PairWeight.MAP else 5, n).astype(np.float32)
    label[qid == 5] = 1
    margin = rng.normal(size=n).astype(np.float32) * 2
    margin = {"none": margin, "some": margin.round(1), "all": np.zeros_like(margin)}[ties]
    weight = rng.uniform(0.5, 3, len(sizes))[qid].astype(np.float32) if weighted else None
    if weight is not None:
        weight[::9] = 0
    order = rng.permutation(n)
    return qid[order], label[order], margin[order], None if weight is None else weight[order]


def fill(loss: QueryLoss, rows: tuple[Any, ...], runtime: Runtime | None) -> tuple[Any, Any]:
    """Return g and h of rows as a fit computes them, on a CPU where there is no GPU; rows of no query have 0."""
    qid, label, margin, weight = rows
    found = QueryRows.of(qid, label, weight)
    ids = found.order.astype(np.uint64) + 5 if loss.drawn else np.empty(0, np.uint64)
    queries = Queries(found.order, found.begins, found.label, ids, found.factors(by_weight=True))
    if runtime is None:
        g, h, pool = np.zeros(len(qid), np.float32), np.zeros(len(qid), np.float32), Threads(1)
        QueryLoops(loss, queries, pool).fill(np.uint64(KEY), margin, g, h)
        pool.close()
        return g, h
    g, h = runtime.xp.zeros(len(qid), np.float32), runtime.xp.zeros(len(qid), np.float32)
    QueryKernels(runtime, loss, queries).fill(np.uint64(KEY), runtime.xp.asarray(margin), g, h)
    return to_host(g), to_host(h)


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


def check_bits(found: tuple[Any, Any], expected: tuple[Any, Any]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))


LOSSES = [
    QueryLoss(weight, 0 if drawn else 70 if weight == PairWeight.MAP else 32, drawn, True, True, True)
    for weight in PairWeight for drawn in (0, 2)
]  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.weight.name}-{loss.drawn}")
@pytest.mark.parametrize("sizes", [(2048,), (5000, 33, 2049, 4096)], ids=["block", "tiles"])
def test_large_queries(loss: QueryLoss, sizes: tuple[int, ...], runtime: Runtime) -> None:
    """As large as a block takes, and larger, sorted in two tiles and in three."""
    rows = make_rows(loss, sizes, "some", weighted=False)
    check_bits(fill(loss, rows, runtime), fill(loss, rows, None))


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
    assert most_block_rows(partial(block_bytes, loss), 227 << 10) == 2048
    assert most_block_rows(partial(block_bytes, loss), 64 << 10) == 1024
    assert block_bytes(loss, 1024) <= 64 << 10
