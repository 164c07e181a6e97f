"""Metrics of rankings, query by query: rows in the order of their scores, of equal ones the least global id first."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.devices.cpu.queries import gain_of
from daskboost.dtypes import Float32, Float64, Int64


class QueryValue(IntEnum):
    """What is computed of a query; a row is relevant if its label is above 0."""

    NDCG = 0
    """Discounted gains of the first rows, divided by those in the order of labels."""
    AVERAGE_PRECISION = 1
    """Share of relevant rows down to each relevant one of the first rows, averaged over as many as there could be."""
    PRECISION = 2
    """Share of relevant rows among the first rows."""
    RECIPROCAL_RANK = 3
    """1 / place of the first relevant row, the first place being 1; 0 if that is none of the first rows."""


class Measure(NamedTuple):
    """What is computed of queries."""

    kind: int
    top: int
    """How many rows are the first ones."""
    otherwise: float
    """The value of queries without a relevant row."""
    gains: tuple[float, ...]
    """Gain of each label; () where a label is its gain."""


class Valuing(NamedTuple):
    """`Measure` as compiled code takes it."""

    kind: int
    top: int
    otherwise: float
    gain: Float64


_NDCG, _AVERAGE, _PRECISION = int(QueryValue.NDCG), int(QueryValue.AVERAGE_PRECISION), int(QueryValue.PRECISION)


@njit(nogil=True, error_model="numpy")
def _ndcg(label: Float32, order: Int64, top: int, gain: Float64, discounts: Float64) -> float:
    """Return the NDCG of the first rows."""
    ordered = np.sort(label)
    n = len(order)
    gains = ideal = 0.0
    for place in range(min(top, n)):
        gains += discounts[place] * gain_of(label[order[place]], gain)
        ideal += discounts[place] * gain_of(ordered[n - 1 - place], gain)
    return gains / ideal


@njit(nogil=True, error_model="numpy")
def _of_hits(kind: int, label: Float32, order: Int64, top: int) -> float:
    """Return a value that asks which rows are relevant."""
    n, hits, first = len(order), 0, 0
    precision = 0.0
    for place in range(min(top, n)):
        if label[order[place]] > 0:
            hits += 1
            first = first if first > 0 else place + 1
            precision += hits / (place + 1.0)
    if kind == _PRECISION:
        return hits / min(top, n)
    if kind != _AVERAGE:
        return 1.0 / first if first > 0 else 0.0
    relevant = 0
    for row in range(n):
        relevant += label[row] > 0
    return precision / min(relevant, top)


@njit(cache=True, nogil=True, error_model="numpy")
def _fill_values(
    measure: Valuing, label: Float32, score: Float32, begins: Int64, discounts: Float64, out: Float64
) -> None:
    """Write the value of each query, see `query_values`."""
    for query in range(len(begins) - 1):
        rows = slice(begins[query], begins[query + 1])
        own = label[rows]
        if not own.max() > 0:
            out[query] = measure.otherwise
            continue
        order = np.argsort(-score[rows], kind="mergesort")
        if measure.kind == _NDCG:
            out[query] = _ndcg(own, order, measure.top, measure.gain, discounts)
        else:
            out[query] = _of_hits(measure.kind, own, order, measure.top)


def query_values(
    measure: Measure, label: Float32, score: Float32, begins: Int64, discounts: Float64, out: Float64
) -> None:
    """Write the value of each query into `out`, shape (queries,); `label`, `score` : of rows in the order of
    `Queries.order`, `discounts` : of as many places as the largest query has rows."""
    own = Valuing(measure.kind, measure.top, measure.otherwise, np.array(measure.gains, np.float64))
    _fill_values(own, label, score, begins, discounts, out)
