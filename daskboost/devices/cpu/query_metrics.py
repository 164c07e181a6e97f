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
    RECALL = 4
    """Share of the relevant rows that are among the first rows."""
    EXPECTED_RECIPROCAL_RANK = 5
    """Mean of 1 / place of the row, of the first ones, that satisfies a user who reads from the first place on."""
    PFOUND = 6
    """Probability that the user is satisfied by one of the first rows, who gives up at each with a probability."""
    AUC = 7
    """Probability that a relevant row has a higher score than another, equal scores counting half."""


class Measure(NamedTuple):
    """What is computed of queries."""

    kind: int
    top: int
    """How many rows are the first ones."""
    otherwise: float
    """The value of queries without a relevant row, or whose rows have no area under a curve; NaN: they do not count."""
    gains: tuple[float, ...] = ()
    """Gain of each label; () where a label is its gain."""
    unit: float = 1.0
    """Times this, a gain is the probability that the row satisfies a user."""
    patience: float = 1.0
    """Probability that a user goes on behind a row that did not satisfy."""


_NDCG, _AVERAGE, _PRECISION = int(QueryValue.NDCG), int(QueryValue.AVERAGE_PRECISION), int(QueryValue.PRECISION)
_RECALL, _RECIPROCAL, _PFOUND = int(QueryValue.RECALL), int(QueryValue.RECIPROCAL_RANK), int(QueryValue.PFOUND)
_EXPECTED, _AUC = int(QueryValue.EXPECTED_RECIPROCAL_RANK), int(QueryValue.AUC)


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
    if kind == _RECIPROCAL:
        return 1.0 / first if first > 0 else 0.0
    relevant = 0
    for row in range(n):
        relevant += label[row] > 0
    return hits / relevant if kind == _RECALL else precision / min(relevant, top)


@njit(nogil=True, error_model="numpy")
def _of_reader(measure: Measure, label: Float32, order: Int64, gain: Float64) -> float:
    """Return a value of a user who reads from the first place on until a row satisfies."""
    found, looks = 0.0, 1.0
    for place in range(min(measure.top, len(order))):
        satisfies = gain_of(label[order[place]], gain) * measure.unit
        share = looks * satisfies
        found += share if measure.kind == _PFOUND else share / (place + 1.0)
        looks *= (1.0 - satisfies) * measure.patience
    return found


@njit(nogil=True, error_model="numpy")
def _area(label: Float32, score: Float32, order: Int64) -> float:
    """Return the area under the ROC curve; NaN where all rows are relevant, or none."""
    n, above, twice, begin = len(order), 0, 0, 0
    while begin < n:
        end, relevant = begin, 0
        while end < n and score[order[end]] == score[order[begin]]:
            relevant += label[order[end]] > 0
            end += 1
        twice += (end - begin - relevant) * (2 * above + relevant)
        above += relevant
        begin = end
    return twice / float(2 * above * (n - above))


@njit(cache=True, nogil=True, error_model="numpy")
def _fill_values(
    measure: Measure, gain: Float64, label: Float32, score: Float32, begins: Int64, discounts: Float64, out: Float64
) -> None:
    """Write the value of each query, see `query_values`; `gain` : the measure's gains, which itself has none."""
    for query in range(len(begins) - 1):
        rows = slice(begins[query], begins[query + 1])
        own = label[rows]
        if not own.max() > 0:
            out[query] = measure.otherwise
            continue
        order = np.argsort(-score[rows], kind="mergesort")
        if measure.kind == _NDCG:
            out[query] = _ndcg(own, order, measure.top, gain, discounts)
        elif measure.kind == _EXPECTED or measure.kind == _PFOUND:
            out[query] = _of_reader(measure, own, order, gain)
        elif measure.kind == _AUC:
            area = _area(own, score[rows], order)
            out[query] = area if area == area else measure.otherwise
        else:
            out[query] = _of_hits(measure.kind, own, order, measure.top)


def query_values(
    measure: Measure, label: Float32, score: Float32, begins: Int64, discounts: Float64, out: Float64
) -> None:
    """Write the value of each query into `out`, shape (queries,); `label`, `score` : of rows in the order of
    `Queries.order`, `discounts` : of as many places as the largest query has rows."""
    gain = np.array(measure.gains, np.float64)
    _fill_values(measure._replace(gains=()), gain, label, score, begins, discounts, out)
