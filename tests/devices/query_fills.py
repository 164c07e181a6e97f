"""Gradients of queries, as a fit computes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskboost.devices.cpu.queries import Queries, QueryLoops
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.yetirank import OrderLoops
from daskboost.devices.gpu.rows.queries import QueryKernels
from daskboost.devices.gpu.rows.yetirank import OrderKernels
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.losses import PairWeight, QueryLoss
from daskboost.engine.query_rows import QueryRows

KEY = 77


def make_rows(loss: QueryLoss, sizes: tuple[int, ...], ties: str, weighted: bool) -> tuple[Any, ...]:
    """Return queries, labels, margins and weights of rows in no order; one query has one label."""
    rng = np.random.default_rng(len(sizes))
    qid = np.repeat(np.arange(len(sizes)), sizes)
    n = len(qid)
    label = rng.integers(0, 2 if loss.weight == PairWeight.MAP else 5, n).astype(np.float32)
    label = label / np.float32(4) if loss.weight == PairWeight.ERR else label
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
        (QueryLoops if loss.orders is None else OrderLoops)(loss, queries, pool).fill(np.uint64(KEY), margin, g, h)
        pool.close()
        return g, h
    g, h = runtime.xp.zeros(len(qid), np.float32), runtime.xp.zeros(len(qid), np.float32)
    kernels = (QueryKernels if loss.orders is None else OrderKernels)(runtime, loss, queries, Threads(2))
    kernels.fill(np.uint64(KEY), runtime.xp.asarray(margin), g, h)
    return to_host(g), to_host(h)


def rounds(loss: QueryLoss, rows: tuple[Any, ...], runtime: Runtime | None, n: int = 3) -> list[tuple[Any, ...]]:
    """Return g, h and the chances of positions of rounds whose scores move as far as gradients say."""
    qid, label, margin, weight = rows
    found, told = QueryRows.of(qid, label, weight), []
    ids = found.order.astype(np.uint64) + 5 if loss.drawn else np.empty(0, np.uint64)
    queries, pool = Queries(found.order, found.begins, found.label, ids, found.factors(by_weight=True)), Threads(1)
    filling = QueryLoops(loss, queries, pool) if runtime is None else QueryKernels(runtime, loss, queries, pool)
    xp: Any = np if runtime is None else runtime.xp
    for number in range(n):
        g, h = xp.zeros(len(qid), np.float32), xp.zeros(len(qid), np.float32)
        filling.fill(np.uint64(KEY + number), xp.asarray(margin), g, h)
        filling.learn(_alone)
        told.append(tuple(map(to_host, (g, h, filling.chances))))
        margin = margin - np.float32(0.0625) * told[-1][0] / (told[-1][1] + 1)
    pool.close()
    return told


def _alone(costs: Any) -> None:
    """Add nothing: there is one engine."""


def check_bits(found: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))
