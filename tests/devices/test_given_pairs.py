"""Gradients of given pairs on CPUs and GPUs: the same bits, which are near those of float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.given_pairs import pair_gradients

from daskboost.devices.cpu.given_pairs import PairLoops, pair_lists
from daskboost.devices.cpu.queries import Queries, query_tasks
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.gpu.rows.given_pairs import PairKernels
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.losses import GivenPairs, PlacedPairs
from daskboost.engine.placed_pairs import placed_pairs
from daskboost.engine.query_rows import QueryRows
from daskboost.objectives.pair_logit import pair_logit

SIZES = (1, 2, 33, 120, 7, 900)


def make_rows(*, weighted: bool, n_pairs: int = 3_000) -> tuple[Any, ...]:
    """Return pairs, their weights, queries, margins and weights of rows in no order; a row is in hundreds of pairs."""
    rng = np.random.default_rng(1)
    qid = rng.permutation(np.repeat(np.arange(len(SIZES)), SIZES))
    n = len(qid)
    members = [np.flatnonzero(qid == query) for query in range(len(SIZES))]
    pairs: list[Any] = []
    for _ in range(n_pairs):
        own = members[rng.choice(len(SIZES) - 1, p=(np.array(SIZES) / sum(SIZES))[1:] / (1 - SIZES[0] / n)) + 1]
        pairs.append(rng.choice(own, 2, replace=False))
    pairs += [(members[5][0], other) for other in members[5][1:400]]
    given = np.array(pairs)
    margin = (rng.normal(size=n) * 3).astype(np.float32)
    margin[::7] = 1.5
    pair_weight = rng.uniform(0, 2, len(given)).astype(np.float32)
    pair_weight[::11] = 0
    pair_weight[:5] = (1e-30, 1e30, 1e-3, 3e5, 1)
    if weighted:
        pair_weight[1] = 7
        weight = rng.uniform(0.5, 3, len(SIZES))[qid].astype(np.float32)
        weight[::9] = 0
        return given, pair_weight, qid, margin, weight
    return given, pair_weight, qid, margin, None


def placed(rows: tuple[Any, ...]) -> tuple[PlacedPairs, Queries]:
    pairs, pair_weight, qid, _, weight = rows
    found = QueryRows.of(qid, np.zeros(len(qid), np.float32), weight)
    loss = placed_pairs(pair_logit(pairs, pair_weight).pairs, found)
    empty = np.empty(0, np.uint64)
    return loss, Queries(found.order, found.begins, found.label, empty, found.factors(by_weight=True))


def fill(rows: tuple[Any, ...], runtime: Runtime | None = None, threads: int = 1) -> tuple[Any, Any]:
    """Return g and h of rows as a fit computes them, on a CPU where there is no GPU; rows without pairs have 0."""
    loss, queries = placed(rows)
    margin = rows[3]
    if runtime is None:
        g, h, pool = np.zeros(len(margin), np.float32), np.zeros(len(margin), np.float32), Threads(threads)
        PairLoops(loss, queries, pool).fill(np.uint64(0), margin, g, h)
        pool.close()
        return g, h
    g, h = runtime.xp.zeros(len(margin), np.float32), runtime.xp.zeros(len(margin), np.float32)
    PairKernels(runtime, loss, queries).fill(np.uint64(0), runtime.xp.asarray(margin), g, h)
    return to_host(g), to_host(h)


def check_bits(found: tuple[Any, Any], expected: tuple[Any, Any]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))


@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_are_those_of_float64(weighted: bool) -> None:
    rows = make_rows(weighted=weighted)
    for ours, theirs in zip(fill(rows), pair_gradients(*rows), strict=True):
        is_large = np.abs(theirs) > 1e20  # of the pair of weight 1e30, beside which all others of its rows are nothing
        for part in (is_large, ~is_large):
            most = np.abs(theirs[part]).max(initial=0)
            np.testing.assert_allclose(ours[part], theirs[part], rtol=1e-5, atol=1e-6 * most)
    assert np.isfinite(theirs).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_neither_threads_nor_order_nor_device_show(weighted: bool, runtime: Runtime) -> None:
    rows = make_rows(weighted=weighted)
    expected = fill(rows)
    check_bits(fill(rows, threads=3), expected)
    order = np.random.default_rng(2).permutation(len(rows[0]))
    check_bits(fill((rows[0][order], rows[1][order], *rows[2:])), expected)
    check_bits(fill(rows, runtime), expected)


def test_scores_that_are_not_finite_show_in_rows_of_their_pairs(runtime: Runtime) -> None:
    pairs, _, qid, margin, _ = make_rows(weighted=False)
    for bad in (np.nan, np.inf, -np.inf):
        broken = margin.copy()
        broken[pairs[7, 0]] = bad
        rows = pairs, np.ones(len(pairs)), qid, broken, None
        for g in (fill(rows)[0], fill(rows, runtime)[1]):
            touched = np.unique(pairs[(pairs == pairs[7, 0]).any(axis=1)])
            np.testing.assert_array_equal(np.flatnonzero(np.isnan(g)), touched)


def test_without_pairs_there_is_nothing_to_fill(runtime: Runtime) -> None:
    """An engine may have none, and pairs of weight 0 are none."""
    pairs, _, qid, margin, _ = make_rows(weighted=False)
    nothing = GivenPairs(pairs[:0, 0], pairs[:0, 1], np.empty(0, np.float32))
    found = QueryRows.of(qid, margin, None)
    queries = Queries(found.order, found.begins, found.label, np.empty(0, np.uint64), found.factors(by_weight=True))
    assert not len(pair_lists(placed_pairs(nothing, found), queries).rows)
    g, h = fill((pairs, np.zeros(len(pairs)), qid, margin, None), runtime)
    assert not g.any() and not h.any()
    assert len(placed_pairs(nothing, QueryRows.of(qid[:0], margin[:0], None)).winner) == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 9_000), min_size=1, max_size=30), st.integers(1, 8))
def test_tasks_have_each_row_once(counts: list[int], n_threads: int) -> None:
    begins = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    tasks = query_tasks(begins, 1, n_threads)
    assert [first for first, _ in tasks[1:]] == [last for _, last in tasks[:-1]]
    assert tasks[0][0] == 0 and tasks[-1][1] == len(counts)
