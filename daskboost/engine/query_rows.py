"""Rows of a set by their queries: made once for a fit, as queries may lie in any order and cross chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from daskboost.dtypes import Float32, Float64, Int64, UInt64
from daskboost.engine.row_groups import RowGroup
from daskboost.errors import DataError
from daskboost.exact_sum import ExactSum
from daskboost.fit.recipe import Recipe

T = TypeVar("T", bound=np.generic)


class RowFacts(NamedTuple):
    """What queries need to know of rows; arrays of shape (rows,)."""

    qid: Int64
    ids: UInt64
    """Global ids."""
    label: Float32
    weight: Float32 | None
    """None for ones."""

    @classmethod
    def of_groups(cls, groups: Sequence[RowGroup]) -> RowFacts:
        """Return what is known of the rows of chunks, one after the other; DataError where rows have no queries."""
        if not groups:
            return cls(np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.float32), None)
        qid = [group.rows.qid for group in groups if group.rows.qid is not None]
        weights = [group.rows.weight for group in groups if group.rows.weight is not None]
        if len(qid) < len(groups):
            raise DataError("rows have no queries; make the data set with qid")
        labels = _joined([group.label for group in groups])
        return cls(_joined(qid), global_ids(groups), labels, _joined(weights) if weights else None)

    @property
    def counted(self) -> Int64:
        """Places of the rows that count: those of weight 0 do not."""
        return np.arange(len(self.qid)) if self.weight is None else np.flatnonzero(self.weight > 0)

    def taken(self, places: Int64) -> RowFacts:
        """Return what is known of the rows at these places."""
        weight = None if self.weight is None else self.weight[places]
        return RowFacts(self.qid[places], self.ids[places], self.label[places], weight)

    def with_others(self, others: Sequence[RowFacts]) -> RowFacts:
        """Return what is known of these rows, then of others."""
        every = [self, *others]
        weight = None
        if any(each.weight is not None for each in every):
            weight = _joined([np.ones(len(one.qid), np.float32) if one.weight is None else one.weight for one in every])
        return RowFacts(
            _joined([each.qid for each in every]), _joined([each.ids for each in every]),
            _joined([each.label for each in every]), weight,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class QueryRows:
    """Rows that count, in the order of (query, global id); rows of weight 0 do not, as if there were none."""

    order: Int64
    """Places among the rows of all chunks, one after the other."""
    begins: Int64
    """Where each query begins in `order`, and where the last one ends; shape (queries + 1,)."""
    label: Float32
    """Labels in that order."""
    weights: Float64
    """Weight of each query, shape (queries,)."""
    ids: UInt64
    """Global ids of the rows in that order."""
    codes: UInt64
    """Code of each query, shape (queries,)."""
    n_everywhere: int
    """Queries of all engines of the fit."""
    total_weight: float
    """Weights of all of these queries, added up."""

    @classmethod
    def of(cls, qid: Int64, label: Float32, weight: Float32 | None, ids: UInt64 | None = None) -> QueryRows:
        """Return the rows of chunks that lie one after the other, the queries being those of all engines; arrays of
        shape (rows,).

        `ids` : global ids; None for the rows' places.

        Raises
        ------
        DataError
            Rows of a query with different weights above 0.
        """
        ids = np.arange(len(qid), dtype=np.uint64) if ids is None else ids
        order, begins, own = by_query(qid, weight, ids)
        codes = qid[order[begins[:-1]]].view(np.uint64)
        return cls(order, begins, label[order], own, ids[order], codes, len(own), ExactSum.of(own).value())

    @property
    def n_queries(self) -> int:
        return len(self.weights)

    def factors(self, *, by_weight: bool) -> Float64:
        """Return what the gradients of each query are multiplied by: 1 on average over the queries of all engines, by
        their weights; with `by_weight` false what is left of that without the query's own weight."""
        norm = self.n_everywhere / self.total_weight if self.total_weight > 0 else 1.0
        return self.weights * norm if by_weight else np.full(self.n_queries, norm)


def by_query(qid: Int64, weight: Float32 | None, ids: UInt64 | None = None) -> tuple[Int64, Int64, Float64]:
    """Return what `QueryRows` has of queries: the order of rows, where queries begin, and their weights.

    `ids` : global ids; None for the rows' places.

    Raises
    ------
    DataError
        Rows of a query with different weights above 0.
    """
    counted = np.arange(len(qid)) if weight is None else np.flatnonzero(weight > 0)
    if ids is not None and np.any(ids[1:] < ids[:-1]):
        counted = counted[np.argsort(ids[counted], kind="stable")]
    order, ordered = counted, qid[counted]
    if np.any(ordered[1:] < ordered[:-1]):
        order = counted[np.argsort(ordered, kind="stable")]
        ordered = qid[order]
    inner = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    begins = np.array([0, *inner.tolist(), len(order)] if len(order) else [0], np.int64)
    if weight is None:
        return order, begins, np.ones(len(begins) - 1)
    own = weight[order[begins[:-1]]].astype(np.float64)
    differing = np.flatnonzero(weight[order] != np.repeat(own, np.diff(begins)))
    if len(differing):
        at = int(differing[0])
        first = int(begins[np.searchsorted(begins, at, side="right") - 1])
        places = order[[first, at]]
        (one, other), (mine, its) = places if ids is None else ids[places], weight[places]
        raise DataError(
            f"weight differs within a query: its row {one} weighs {mine:g}, its row {other} {its:g}. Ranking weighs "
            "queries: give all rows of one the same weight, or 0 to rows that shall not count."
        )
    return order, begins, own


def global_ids(groups: Sequence[RowGroup]) -> UInt64:
    """Return the global ids of the rows of chunks, one after the other; uint64, shape (rows,)."""
    ids = [np.empty(0, np.uint64)]
    for group in groups:
        for rows, first_row in group.parts():
            ids.append(np.arange(first_row, first_row + rows.stop - rows.start, dtype=np.uint64))
    return np.concatenate(ids)


def codes_to_draw(recipe: Recipe, groups: Sequence[RowGroup]) -> list[UInt64] | None:
    """Return the codes of queries by which trees draw the rows of each chunk, as compiled code takes them: of one type,
    though files cannot be written to. None where trees draw each row by its global id."""
    if not recipe.draws_queries:
        return None
    qid = [group.rows.qid for group in groups if group.rows.qid is not None]
    assert len(qid) == len(groups)  # refused when the fit is specified (`check_drawn_queries`)
    return [np.require(own, requirements=["C", "W"]).view(np.uint64) for own in qid]


def _joined(parts: Sequence[npt.NDArray[T]]) -> npt.NDArray[T]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
