"""Metrics of one evaluation set on an engine: computed where its margins lie, or on the host from copies of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from operator import add
from typing import Any

import numpy as np

from daskboost.data.chunks.shard import Shard, ShardChunk
from daskboost.data.input.row_columns import joined
from daskboost.devices.gpu.rows.metrics import MetricKernels
from daskboost.devices.protocols import Device
from daskboost.dtypes import Array, Bool, Float32, Int32
from daskboost.engine.query_owners import OwnedQueries
from daskboost.engine.row_groups import RowGroup
from daskboost.engine.shard_margins import ShardMargins
from daskboost.fit.peers import ONLY, Peers
from daskboost.metrics.metric import Arrays, Metric
from daskboost.objectives.objective import Objective

# Evaluation sets that are some rows of a data set, or rows that trees grow over anyway.
#
# A fold's held-out rows have weight 0 in the trees of its fit and stay in them, so the margins that training keeps are
# theirs as well: no second copy, and no second pass over bins that may have to be read from disk.

class EvaluatedRows:
    """The rows of a shard that count, an evaluation set's, with margins that are `kept` for all rows of its chunks:
    those of the training rows where these are the same."""

    def __init__(self, shard: Shard, kept: ShardMargins, device: Device) -> None:
        self._kept, self._xp = kept, device.xp
        self.groups: list[RowGroup] = []
        """Groups of the rows that count alone."""
        self._places: list[tuple[int, Array | None]] = []
        """Place of each group among the kept margins', and its rows among theirs, None for all."""
        for index, group in enumerate(kept.groups):
            entries = shard.entries[group.entries.start : group.entries.stop]
            rows = _selected(entries)
            if rows is not None and not len(rows):
                continue
            same = rows is None and all(
                entry.rows is other.rows
                for entry, other in zip(entries, kept.shard.entries[group.entries.start :], strict=False)
            )
            self.groups.append(group if same else _compact(group, entries, rows))
            self._places.append((index, None if rows is None else self._xp.asarray(rows)))

    @property
    def sources(self) -> list[tuple[Array, Array | None]]:
        """The kept margins of each group, and which of them count; None for all."""
        return [(self._kept.margins[index], rows) for index, rows in self._places]

    @property
    def is_copied(self) -> bool:
        """Whether margins of all rows that count are others than those of one group."""
        return len(self._places) > 1 or any(rows is not None for _, rows in self._places)

    def margins(self, places: range) -> Array:
        """Return the margins of neighbouring groups, one after the other, as they are now: a copy, but of one group all
        of whose rows count."""
        every = self._kept.margins
        pieces = [
            every[index] if rows is None else every[index][rows]
            for index, rows in self._places[places.start : places.stop]
        ]
        found: Array = pieces[0] if len(pieces) == 1 else self._xp.concatenate(pieces)
        return found


def _selected(entries: Sequence[ShardChunk]) -> Int32 | None:
    """Places of the rows that count among those of all entries; None for all."""
    if all(entry.selected is None for entry in entries):
        return None
    return np.flatnonzero(np.concatenate([_mask(entry) for entry in entries])).astype(np.int32)


def _mask(entry: ShardChunk) -> Bool:
    return np.ones(entry.n_rows, np.bool_) if entry.selected is None else entry.selected


def _compact(group: RowGroup, entries: Sequence[ShardChunk], rows: Int32 | None) -> RowGroup:
    """A group of the rows that count alone. The ids of rows behind the first of a chunk are not theirs any more, but in
    their order, which is all that metrics ask for."""
    begins = np.cumsum([0, *(np.count_nonzero(_mask(entry)) for entry in entries)]).tolist()
    pieces = tuple((begin, entry.first_row) for begin, entry in zip(begins, entries, strict=False))
    seen = joined([replace(entry.rows, base_margin=None) for entry in entries])  # margins are kept with all rows
    return RowGroup(group.entries, begins[-1], pieces, seen if rows is None else seen.taken(rows))


@dataclass(frozen=True)
class _Batch:
    """Neighbouring groups whose rows are evaluated together, on the host."""

    places: range
    groups: Sequence[RowGroup]

    def states(self, metrics: Sequence[Metric[Any]], prediction: Array, fetch: Callable[[Array], Any]) -> list[Any]:
        """Return the state of each metric; `fetch` brings predictions to the host."""
        fetched = fetch(prediction)
        return [_state_on_host(metric, self.groups, fetched) for metric in metrics]


@dataclass(frozen=True)
class _DeviceBatch(_Batch):
    """The same where labels and weights lie on a device that has kernels for some metrics."""

    kernels: MetricKernels
    label: Array
    weight: Array | None

    def states(self, metrics: Sequence[Metric[Any]], prediction: Array, fetch: Callable[[Array], Any]) -> list[Any]:
        found = [metric.partial_on_device(self.kernels, self.label, prediction, self.weight) for metric in metrics]
        others = [metric for metric, state in zip(metrics, found, strict=True) if state is None]
        on_host = iter(super().states(others, prediction, fetch) if others else ())
        return [next(on_host) if state is None else state for state in found]


class Evaluator:
    """States of metrics, prepared for an evaluation set, over an engine's rows of it."""

    def __init__(
        self, device: Device, objective: Objective, metrics: Sequence[Metric[Any]], evaluated: EvaluatedRows,
        peers: Peers = ONLY,
    ) -> None:  # fmt: skip
        self._peers = peers
        self._queries: OwnedQueries | None = None
        self._device, self.objective, self.metrics, self.evaluated = device, objective, metrics, evaluated
        self.n_rows = sum(group.n_rows for group in evaluated.groups)
        kernels = device.metric_kernels
        if kernels is not None:
            kernels.most_rows = max(kernels.most_rows, self.n_rows)

    def columns(self) -> tuple[Float32, Float32 | None]:
        """Return labels and weights of all rows that count, on the host; float32, shape (rows,)."""
        return _columns(self.evaluated.groups)

    @cached_property
    def _batches(self) -> list[_Batch]:
        together = _together(self.evaluated.groups, self._device.metric_rows // self.objective.n_outputs)
        return [self._batch(places) for places in together]

    def _batch(self, places: range) -> _Batch:
        groups, kernels = self.evaluated.groups[places.start : places.stop], self._device.metric_kernels
        if kernels is None or all(metric.device_loss is None for metric in self._of_rows):
            return _Batch(places, groups)
        (label, weight), put = _columns(groups), self._device.put
        return _DeviceBatch(places, groups, kernels, put(label), None if weight is None else put(weight))

    def states(self) -> list[Arrays]:
        """Return the state of each metric, for the wire, with the margins as they are."""
        by_rows, by_query = iter(self._states_of_rows()), iter(self._states_of_queries())
        return [next(by_query if metric.by_query else by_rows).to_arrays() for metric in self.metrics]

    def states_of_nothing(self) -> list[Arrays]:
        """Return the states of no rows, for the wire."""
        return [state.to_arrays() for state in self._empty(self.metrics)]

    def _empty(self, metrics: Sequence[Metric[Any]]) -> list[Any]:
        no_rows = self.objective.evaluation(np.empty((0, self.objective.n_outputs), np.float32))
        return [metric.partial(np.empty(0, np.float32), no_rows) for metric in metrics]

    def _states_of_rows(self) -> list[Any]:
        found = [self._states_of(batch) for batch in self._batches if self._of_rows]
        return [reduce(add, states) for states in zip(*(found or [self._empty(self._of_rows)]), strict=True)]

    def _states_of_queries(self) -> list[Any]:
        metrics = [metric for metric in self.metrics if metric.by_query]
        if not metrics:
            return []
        prediction = np.concatenate([np.empty(0, np.float32)] + [  # on the host: all rows need no memory of a device
            self._device.fetch(self.objective.evaluation(self.evaluated.margins(batch.places), self._device.xp))
            for batch in self._batches
        ])  # fmt: skip
        queries = self.queries
        scores = queries.scores(prediction.astype(np.float32, copy=False))
        return [metric.of_queries(queries.rows, scores) for metric in metrics]

    @cached_property
    def _of_rows(self) -> list[Metric[Any]]:
        """The metrics whose states add up over rows."""
        return [metric for metric in self.metrics if not metric.by_query]

    @property
    def queries(self) -> OwnedQueries:
        """The rows that count by their queries, and the rows that move for these; collective when they are first asked
        for."""
        if self._queries is None:  # `cached_property` has one lock for all engines of a process
            found = OwnedQueries.of(self.evaluated.groups, self._peers)
            self._queries = replace(found, rows=replace(found.rows, ids=np.empty(0, np.uint64)))  # metrics draw nothing
        return self._queries

    def _states_of(self, batch: _Batch) -> list[Any]:
        prediction = self.objective.evaluation(self.evaluated.margins(batch.places), self._device.xp)
        return batch.states(self._of_rows, prediction, self._device.fetch)


def _columns(groups: Sequence[RowGroup]) -> tuple[Float32, Float32 | None]:
    """Labels and weights of groups, one after the other."""
    rows = joined([replace(group.rows, base_margin=None) for group in groups])
    assert rows.label is not None  # refused when the fit is specified
    return rows.label, rows.weight


def _together(groups: Sequence[RowGroup], most_rows: int) -> list[range]:
    """Places of neighbouring groups that have at most so many rows together, or of one that has more alone."""
    found: list[range] = []
    n_rows = 0
    for place, group in enumerate(groups):
        n_rows += group.n_rows
        if found and n_rows <= most_rows:
            found[-1] = range(found[-1].start, place + 1)
        else:
            found.append(range(place, place + 1))
            n_rows = group.n_rows
    return found


def _state_on_host(metric: Metric[Any], groups: Sequence[RowGroup], prediction: Any) -> Any:
    """Return the state of the rows of groups, whose predictions lie one after the other."""
    ends = np.cumsum([group.n_rows for group in groups]).tolist()
    return reduce(add, (
        _state_of_group(metric, group, prediction[end - group.n_rows : end])
        for group, end in zip(groups, ends, strict=True)
    ))  # fmt: skip


def _state_of_group(metric: Metric[Any], group: RowGroup, prediction: Any) -> Any:
    """Chunk by chunk where states hold rows, since their global ids follow each other only there; they hold copies, as
    margins change before a state is read where rounds are asked for together."""
    return reduce(add, (
        metric.partial(
            group.label[rows], np.copy(prediction[rows]) if metric.needs_rows else prediction[rows],
            None if group.rows.weight is None else group.rows.weight[rows], first_row=first_row,
        )
        for rows, first_row in (group.parts() if metric.needs_rows else [(slice(None), 0)])
    ))  # fmt: skip
