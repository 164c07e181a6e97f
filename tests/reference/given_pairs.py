"""Gradients of pairs that users name, pair by pair in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskboost.dtypes import Float64


def pair_gradients(
    pairs: Any, pair_weight: Any, qid: Any, margin: Any, weight: Any = None
) -> tuple[Float64, Float64]:
    """Return g and h of rows of any order; rows of weight 0 are of no query, and pairs with one are left out."""
    g, h = np.zeros(len(qid)), np.zeros(len(qid))
    own = np.ones(len(qid)) if weight is None else np.asarray(weight, np.float64)
    of_query = {query: own[(qid == query) & (own > 0)][0] for query in np.unique(qid[own > 0])}
    norm = len(of_query) / sum(of_query.values())
    for (winner, loser), worth in zip(pairs, np.asarray(pair_weight, np.float64), strict=True):
        if own[winner] == 0 or own[loser] == 0:
            continue
        worth = worth * of_query[qid[winner]] * norm
        chance = 1 / (1 + np.exp(np.float64(margin[winner]) - np.float64(margin[loser])))
        g[winner] -= worth * chance
        g[loser] += worth * chance
        h[winner] += worth * chance * (1 - chance)
        h[loser] += worth * chance * (1 - chance)
    return g, h
