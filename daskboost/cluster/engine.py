"""One shard on one device: a state machine that answers the coordinator's requests. It knows nothing of Dask.

An engine holds what loops over rows; every decision (splits, leaf values, stopping) comes from the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from daskboost.cluster import messages as m
from daskboost.cluster.links import Peers
from daskboost.cluster.reduce.shares import feature_shares, narrow, total
from daskboost.cluster.row_groups import RowGroup, row_groups
from daskboost.data.chunk import QuantizedChunk
from daskboost.data.cuts import Cuts
from daskboost.data.shard import Shard
from daskboost.devices.cpu.buffers import Buffers
from daskboost.devices.cpu.gradients import largest
from daskboost.devices.cpu.residuals import count_residuals
from daskboost.devices.cpu.rows import CpuRows, walk
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import DenseView, SlotLayout, SparseView, View, WalkArrays
from daskboost.dtypes import Bool, Float32
from daskboost.errors import DataError
from daskboost.exact_sum import ExactSum
from daskboost.metrics.base import Metric
from daskboost.objectives.base import Objective
from daskboost.tree.split import SplitRules, SplitSearch

GRADIENT_ROWS = 8_192
"""Rows whose gradients are computed at a time: the arrays of an objective's expressions then stay in the L2 cache and
below the 64 KB from which a Dask worker's allocator gives every array back to the system and fetches it anew (2.5 times
slower at 256 KB)."""
COLUMN_BYTES = 2**31
"""Most bytes of column-major copies of an engine's training chunks; what has no copy is split more slowly."""


def slot_layout(cuts: Cuts) -> SlotLayout:
    """Where features lie in histograms: their bins, and one slot for missing where the training data has any."""
    slots = cuts.n_bins.astype(np.int64) + cuts.has_missing
    return SlotLayout(np.concatenate([[0], np.cumsum(slots)]).astype(np.int64), cuts.n_bins)


class ShardMargins:
    """Views and margins of one shard's chunks."""

    def __init__(self, shard: Shard, layout: SlotLayout, has_missing: Bool, n_outputs: int, threads: Threads,
                 column_room: int = 0) -> None:  # fmt: skip
        self.shard, self._layout, self._threads = shard, layout, threads
        self._bin_to_slot = np.repeat(np.cumsum(has_missing) - has_missing, layout.n_bins).astype(np.int32)
        self._bin_to_slot += np.arange(len(self._bin_to_slot), dtype=np.int32)
        self._kept: dict[int, View] = {}
        self._column_room = column_room
        self.groups = row_groups(shard, column_room)
        self.margins = [np.zeros((group.n_rows, n_outputs), np.float32) for group in self.groups]

    def views(self) -> Iterator[tuple[int, View]]:
        """Each group's index and view; chunks on disk are read ahead."""
        if len(self._kept) == len(self.margins):  # all resident: no need to touch the store
            yield from self._kept.items()
            return
        group_of = {entries: index for index, group in enumerate(self.groups) for entries in group.entries}
        collected: list[QuantizedChunk] = []
        for place, chunk in self.shard.chunks():
            index = group_of[place]
            collected.append(chunk)
            del chunk
            if len(collected) < len(self.groups[index].entries):
                continue
            view = self._kept.get(index)
            if view is None:
                keep = self.shard.store.residency(self.shard.entries[place].handle) != "disk"
                view = self._open(collected, keep)
                if keep:
                    self._kept[index] = view
            collected = []
            yield index, view

    def _open(self, chunks: Sequence[QuantizedChunk], keep: bool) -> View:
        if chunks[0].is_dense:
            parts = [chunk.symbols(self._threads.count) for chunk in chunks]
            symbols: Any = parts[0] if len(parts) == 1 else np.concatenate(parts)
            copy_columns = keep and self._column_room >= symbols.nbytes  # for one pass, a copy does not pay
            self._column_room -= symbols.nbytes if copy_columns else 0
            return DenseView(symbols, self._layout, self._threads if copy_columns else None)
        rows = [chunk.global_bins(self._threads.count) for chunk in chunks]
        starts = np.cumsum([0, *(len(bins) for _, bins in rows)])
        indptr = np.concatenate([[0], *(own[1:] + start for (own, _), start in zip(rows, starts, strict=False))])
        bins = rows[0][1] if len(rows) == 1 else np.concatenate([bins for _, bins in rows])
        return SparseView(indptr.astype(np.int64), self._bin_to_slot[bins], self._layout)

    def set_base(self, margin: Any) -> None:
        for group, own in zip(self.groups, self.margins, strict=True):
            given = group.rows.base_margin
            if given is not None and given.shape != own.shape:
                raise DataError(
                    f"base_margin has {given.shape[1]} columns, but the objective has {own.shape[1]} outputs; give one "
                    "column per output"
                )
            own[:] = np.asarray(margin, np.float32) if given is None else given

    def add_tree(self, tree: WalkArrays, output: int) -> None:
        for index, view in self.views():
            column = self.margins[index][:, output]
            walk(view, tree, np.arange(len(column), dtype=np.uint32), column, self._threads)


@dataclass(frozen=True)
class EngineSetup:
    """What an engine needs to know of its fit."""

    cuts: Cuts
    objective: Objective
    metrics: Sequence[Sequence[Metric[Any]]]
    """Of each evaluation set, prepared for it."""
    rules: SplitRules
    column_bytes: int = COLUMN_BYTES
    """Room for column-major copies of the training chunks."""
    keep_gradients: bool = True
    """Whether the gradients of all chunks stay in memory between their range and their quantizing; otherwise those of a
    single output are computed twice, and 8 bytes per row are saved."""
    small_data: bool = False
    """Whether gradients are rounded before weights multiply them (see `devices/cpu/gradients.py`)."""


class Engine:
    """One worker's share of a fit.

    Parameters
    ----------
    setup : EngineSetup
    train : Shard
        Training rows; may be empty.
    evals : sequence of Shard
        This engine's rows of each evaluation set; may be empty.
    threads : Threads
        Closed by `close`.
    peers : Peers, optional
        The other engines; needed by `Grow` with `search`.
    """

    def __init__(self, setup: EngineSetup, train: Shard, evals: Sequence[Shard], threads: Threads,
                 peers: Peers | None = None) -> None:  # fmt: skip
        self._setup, self._threads, self._peers = setup, threads, peers
        self._layout = slot_layout(setup.cuts)
        common = (self._layout, setup.cuts.has_missing, setup.objective.n_outputs, threads)
        self._train = ShardMargins(train, *common, column_room=setup.column_bytes)
        self._evals = [ShardMargins(shard, *common) for shard in evals]
        groups = self._train.groups
        self._rows = CpuRows(
            self._train.views, [group.n_rows for group in groups], [group.pieces for group in groups], self._layout,
            threads, [_weight_of(group) for group in groups] if setup.small_data else None,
        )  # fmt: skip
        self._gradients: list[tuple[Float32, Float32]] = []
        # All outputs of a round start from the same margins, which the first one's tree already changes.
        self._keep_gradients = setup.keep_gradients or setup.objective.n_outputs > 1
        self._search: SplitSearch | None = None
        self._buffers = Buffers()
        self._answers: dict[type, Callable[[Any], Any]] = {
            m.LabelSums: self._label_sums,
            m.ResidualCounts: self._residual_counts,
            m.SetBaseMargin: self._set_base_margin,
            m.AddTree: self._add_tree,
            m.StartRound: self._start_round,
            m.StartTree: self._start_tree,
            m.Grow: self._grow,
            m.ApplySplits: self._apply_splits,
            m.FinishTree: self._finish_tree,
            m.Evaluate: self._evaluate,
            m.Several: self._several,
        }

    def handle(self, message: Any) -> Any:
        """Answer one request."""
        return self._answers[type(message)](message)

    def close(self) -> None:
        """Free the threads; shards belong to whoever made them."""
        self._threads.close()

    def _several(self, message: m.Several) -> m.Replies:
        return m.Replies(tuple(self.handle(request) for request in message.requests))

    def _label_sums(self, message: m.LabelSums) -> m.ExactParts:
        labels, weights = ExactSum(), ExactSum()
        for part in self._train.groups:
            label = part.label.astype(np.float64)
            weight = _weight_of(part).astype(np.float64)
            labels, weights = labels + ExactSum.of(label * weight), weights + ExactSum.of(weight)
        return m.ExactParts(labels.to_array(), weights.to_array())

    def _residual_counts(self, message: m.ResidualCounts) -> m.Counts:
        counts = np.zeros((len(message.leaves), 1 << message.next_bits), np.int64)

        def count(leaf: int) -> None:
            for index, part in enumerate(self._train.groups):
                weight = np.empty(0, np.float32) if part.rows.weight is None else part.rows.weight
                count_residuals(
                    part.label, self._train.margins[index][:, message.output], weight, message.weight_scale,
                    self._rows_of(index, int(message.leaves[leaf])), message.prefixes[leaf], message.known_bits,
                    message.next_bits, counts[leaf],
                )  # fmt: skip

        self._threads.run([
            partial(_each, count, range(a, b)) for a, b in self._threads.ranges(len(message.leaves), least=1)
        ])  # fmt: skip
        return m.Counts(counts)

    def _rows_of(self, index: int, node: int) -> Any:
        """Rows of a chunk in a node; node -1 has them all."""
        chunk = self._rows.chunks[index]
        if node < 0:
            return np.arange(chunk.n_rows, dtype=np.uint32)
        begin, end = chunk.bounds[node] if node < len(chunk.bounds) else (0, 0)
        return chunk.order[begin:end]

    def _set_base_margin(self, message: m.SetBaseMargin) -> m.Done:
        for margins in (self._train, *self._evals):
            margins.set_base(message.margin)
        return m.Done()

    def _add_tree(self, message: m.AddTree) -> m.Done:
        for margins in (self._train, *self._evals):
            margins.add_tree(message.tree, message.output)
        return m.Done()

    def _start_round(self, message: m.StartRound) -> m.GradientRange:
        tops = [np.zeros((2, self._setup.objective.n_outputs))]
        for index in range(len(self._train.margins)):
            tops += self._compute_gradients(index)
        top = np.max(np.stack(tops), axis=0)  # NaN wins, as it should
        return m.GradientRange(top[0], top[1])

    def _start_tree(self, message: m.StartTree) -> m.RootSums:
        if self._search is not None:
            self._search.forget()
        k = message.output

        def columns(index: int) -> tuple[Float32, Float32]:
            if not self._keep_gradients:
                self._compute_gradients(index)
            g, h = self._gradients_of(index)
            return g[:, k], h[:, k]

        g, h = self._rows.start_tree(columns, message.rounding)
        return m.RootSums(g, h)

    def _gradients_of(self, index: int) -> tuple[Float32, Float32]:
        """Where a chunk's gradients go: float32, shape (rows, outputs); shared by all chunks unless they are kept."""
        margins = self._train.margins
        if not self._gradients:
            sizes = [len(own) for own in margins] if self._keep_gradients else [max(map(len, margins), default=0)]
            shapes = [(size, self._setup.objective.n_outputs) for size in sizes]
            self._gradients = [(np.empty(shape, np.float32), np.empty(shape, np.float32)) for shape in shapes]
        g, h = self._gradients[index if self._keep_gradients else 0]
        return g[: len(margins[index])], h[: len(margins[index])]

    def _compute_gradients(self, index: int) -> list[Any]:
        """Fill a chunk's gradients; the largest |g| and h of ranges of its rows, float64 of shape (2, outputs)."""
        g, h = self._gradients_of(index)
        ranges = self._threads.ranges(self._train.groups[index].n_rows)
        return self._threads.run([partial(self._range_gradients, index, g, h, a, b) for a, b in ranges])

    def _range_gradients(self, index: int, all_g: Float32, all_h: Float32, begin: int, end: int) -> Any:
        part, margin = self._train.groups[index], self._train.margins[index]
        label, weight = part.label, part.rows.weight
        if weight is not None and self._setup.small_data:
            weight = (weight > 0).astype(np.float32)  # rows without weight must not widen the range
        for start in range(begin, end, GRADIENT_ROWS):
            rows = slice(start, min(start + GRADIENT_ROWS, end))
            g, h = self._setup.objective.gradients(label[rows], margin[rows])
            if weight is None:
                all_g[rows], all_h[rows] = g, h
            else:
                with np.errstate(over="ignore"):  # the coordinator refuses infinite gradients and says why
                    np.multiply(g, weight[rows, None], out=all_g[rows])
                    np.multiply(h, weight[rows, None], out=all_h[rows])
        return np.array([
            [largest(column, begin, end) for column in values.T] for values in (all_g, all_h)
        ], np.float64)  # fmt: skip

    def _grow(self, message: m.Grow) -> Any:
        alone = message.search is None and not message.compact  # then its histograms are nobody else's summands
        own = self._rows.grow(message.splits, message.built, words=alone)
        if message.search is None:
            return m.PartialHistograms(narrow(own, self._buffers) if message.compact else own)
        peers, search = self._peer_search()
        shares = feature_shares(self._layout, peers.n_peers)
        slots = [(int(self._layout.offsets[a]), int(self._layout.offsets[b])) for a, b in shares]
        parts = [np.ascontiguousarray(own[:, low:high]) for low, high in slots]
        received = peers.exchange([narrow(part, self._buffers) for part in parts])
        return search.search(message.search, total(received, self._buffers))

    def _peer_search(self) -> tuple[Peers, SplitSearch]:
        if self._peers is None:
            raise RuntimeError("this engine has no peers to reduce with")
        if self._search is None:
            share = feature_shares(self._layout, self._peers.n_peers)[self._peers.rank]
            self._search = SplitSearch(self._layout, self._setup.rules, self._threads, share)
        return self._peers, self._search

    def _apply_splits(self, message: m.ApplySplits) -> m.Done:
        self._rows.grow(message.splits, np.empty(0, np.int32))
        return m.Done()

    def _finish_tree(self, message: m.FinishTree) -> m.Done:
        margins = self._train.margins
        self._rows.finish(message.splits, message.tree, lambda index: margins[index][:, message.output])
        for evaluated in self._evals:
            evaluated.add_tree(message.tree, message.output)
        return m.Done()

    def _evaluate(self, message: m.Evaluate) -> m.MetricParts:
        return m.MetricParts([
            [self._state(metric, evaluated).to_arrays() for metric in metrics]
            for metrics, evaluated in zip(self._setup.metrics, self._evals, strict=True)
        ])  # fmt: skip

    def _state(self, metric: Metric[Any], evaluated: ShardMargins) -> Any:
        objective = self._setup.objective
        no_rows = objective.evaluation(np.empty((0, objective.n_outputs), np.float32))
        state = metric.partial(np.empty(0, np.float32), no_rows)
        for group, margin in zip(evaluated.groups, evaluated.margins, strict=True):
            prediction = objective.evaluation(margin)
            for rows, first_row in group.parts() if metric.needs_rows else [(slice(None), 0)]:
                weight = None if group.rows.weight is None else group.rows.weight[rows]
                state = state + metric.partial(group.label[rows], prediction[rows], weight, first_row=first_row)
        return state


def _weight_of(group: RowGroup) -> Float32:
    """Weights of a group's rows, ones where it has none."""
    return np.ones(group.n_rows, np.float32) if group.rows.weight is None else group.rows.weight


def _each(function: Callable[[int], None], items: range) -> None:
    for item in items:
        function(item)
