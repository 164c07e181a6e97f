"""Gradients of losses of all rows of a query together, query by query in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskboost.devices.losses import ListKernel, ListLoss
from daskboost.dtypes import Float64


def list_gradients(loss: ListLoss, qid: Any, label: Any, margin: Any, weight: Any = None) -> tuple[Float64, Float64]:
    """Return g and h of rows of any order; rows of weight 0 are of no query."""
    g, h = np.zeros(len(label)), np.zeros(len(label))
    own = np.ones(len(label)) if weight is None else np.asarray(weight, np.float64)
    queries = [np.flatnonzero((qid == query) & (own > 0)) for query in np.unique(qid[own > 0])]
    norm = len(queries) / sum(own[rows[0]] for rows in queries)
    for rows in queries:
        y, s = label[rows].astype(np.float64), margin[rows].astype(np.float64)
        if loss.kernel == ListKernel.RMSE:
            residual = y - s
            found = residual.mean() - residual, np.ones(len(rows))
        else:
            odds = np.exp(loss.beta * (s - s.max()))
            p = odds / odds.sum()
            found = loss.beta * (y.sum() * p - y), loss.beta * y.sum() * (loss.beta * p * (1 - p) + loss.penalty)
        g[rows], h[rows] = np.array(found) * own[rows[0]] * norm
    return g, h
