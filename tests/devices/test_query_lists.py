"""Gradients of losses of lists on CPUs and GPUs: the same bits, which are near those of float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference.query_lists import list_gradients

from daskboost.devices.cpu.queries import Queries
from daskboost.devices.cpu.query_lists import ListLoops
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.gpu.rows.query_lists import ListKernels, large_parts
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.losses import ListKernel, ListLoss
from daskboost.engine.query_rows import QueryRows

LOSSES = [ListLoss(ListKernel.SOFTMAX, 1.0, 0.01), ListLoss(ListKernel.SOFTMAX, 2.5, 0.0), ListLoss(ListKernel.RMSE)]
SIZES = (1, 2, 33, 120, 7, 20, 1024, 1025, 5000)
"""Rows of queries: of a lane, of a warp, and of several blocks."""


def make_rows(ties: str = "none", *, weighted: bool = False) -> tuple[Any, ...]:
    """Return queries, labels, margins and weights of rows in no order; one query has one label, and one has zeros."""
    rng = np.random.default_rng(1)
    qid = np.repeat(np.arange(len(SIZES)), SIZES)
    n = len(qid)
    label = rng.integers(0, 5, n).astype(np.float32) * np.float32(0.7)
    label[qid == 4], label[qid == 5] = 1, 0
    margin = rng.normal(size=n).astype(np.float32) * 4
    margin = {"none": margin, "some": margin.round(1), "all": np.full_like(margin, 3)}[ties]
    weight = rng.uniform(0.5, 3, len(SIZES))[qid].astype(np.float32) if weighted else None
    if weight is not None:
        weight[::9] = 0
    order = rng.permutation(n)
    return qid[order], label[order], margin[order], None if weight is None else weight[order]


def fill(loss: ListLoss, rows: tuple[Any, ...], runtime: Runtime | None = None, threads: int = 1) -> tuple[Any, Any]:
    """Return g and h of rows as a fit computes them, on a CPU where there is no GPU; rows of no query have 0."""
    qid, label, margin, weight = rows
    found = QueryRows.of(qid, label, weight)
    empty = np.empty(0, np.uint64)
    queries = Queries(found.order, found.begins, found.label, empty, found.factors(by_weight=True))
    if runtime is None:
        g, h, pool = np.zeros(len(qid), np.float32), np.zeros(len(qid), np.float32), Threads(threads)
        ListLoops(loss, queries, pool).fill(np.uint64(0), margin, g, h)
        pool.close()
        return g, h
    g, h = runtime.xp.zeros(len(qid), np.float32), runtime.xp.zeros(len(qid), np.float32)
    kernels = ListKernels(runtime, loss, queries)
    for _ in range(2):  # what a round leaves behind does not show in the next one
        kernels.fill(np.uint64(0), runtime.xp.asarray(margin), g, h)
    return to_host(g), to_host(h)


def check_bits(found: tuple[Any, Any], expected: tuple[Any, Any]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ties", ["none", "some", "all"])
def test_gradients_are_those_of_float64(loss: ListLoss, ties: str, weighted: bool) -> None:
    rows = make_rows(ties, weighted=weighted)
    for ours, theirs in zip(fill(loss, rows), list_gradients(loss, *rows), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6 * np.abs(theirs).max())


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_gradients_are_slopes_of_the_loss(loss: ListLoss) -> None:
    """They are the derivatives of what the objectives say."""
    rng = np.random.default_rng(2)
    label, margin, qid = rng.integers(0, 4, 9).astype(np.float32), rng.normal(size=9), np.zeros(9, int)

    def value(scores: Any) -> Any:
        if loss.kernel == ListKernel.RMSE:
            return np.var(label - scores) * len(scores) / 2
        odds = np.exp(loss.beta * scores)
        return -np.sum(label * np.log(odds / odds.sum()))

    step = 1e-5 * np.eye(9)
    slopes = [(value(margin + own) - value(margin - own)) / 2e-5 for own in step]
    g, _ = fill(loss, (qid, label, margin.astype(np.float32), None))
    np.testing.assert_allclose(g, slopes, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_neither_threads_nor_order_nor_device_show(loss: ListLoss, runtime: Runtime) -> None:
    rows = make_rows(weighted=True)
    expected = fill(loss, rows)
    check_bits(fill(loss, rows, threads=3), expected)
    check_bits(fill(loss, rows, runtime), expected)
    order = np.random.default_rng(2).permutation(len(rows[0]))
    moved = fill(loss, tuple(own[order] for own in rows))
    check_bits(moved, (expected[0][order], expected[1][order]))


@pytest.mark.parametrize("loss", LOSSES[1:], ids=str)
def test_scores_that_are_far_apart_or_not_finite(loss: ListLoss, runtime: Runtime) -> None:
    for value in (1e30, -1e30, np.inf, -np.inf, np.nan):
        rows = make_rows()
        for query in (3, 8):
            rows[2][np.flatnonzero(rows[0] == query)[1]] = value
        check_bits(found := fill(loss, rows, runtime), fill(loss, rows))
        others = ~np.isin(rows[0], (3, 8))
        assert np.isfinite(found[0][others]).all()
        assert np.isfinite(found[0][~others]).all() == np.isfinite(found[1][~others]).all() == np.isfinite(value)


def test_blocks_have_all_rows_of_large_queries() -> None:
    assert [large_parts(n) for n in (1, 1024, 1025, 2048, 2049, 10**6)] == [0, 0, 1, 1, 2, 489]
