"""One shard on one device: a state machine that answers the coordinator's requests. It knows nothing of Dask.

An engine holds what loops over rows; every decision (splits, leaf values, stopping) comes from the coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from daskboost.cluster import messages as m
from daskboost.cluster.engine_gradients import EngineGradients
from daskboost.cluster.evaluated_rows import EvaluatedRows
from daskboost.cluster.evaluation import Evaluator
from daskboost.cluster.links import Peers
from daskboost.cluster.reduce.shares import feature_shares, narrow, total
from daskboost.cluster.shard_margins import ShardMargins
from daskboost.cluster.shared_views import EVALUATION, TRAINING, SharedViews, Views
from daskboost.data.cuts import Cuts
from daskboost.data.shard import Shard
from daskboost.devices.cpu.buffers import Buffers
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.device import Array, Device, LossRows, Rows, VectorRows
from daskboost.devices.following import Following, Root
from daskboost.errors import DeviceError
from daskboost.exact_sum import ExactSum
from daskboost.metrics.base import Metric
from daskboost.objectives.base import Objective, kernel_of
from daskboost.tree.device_split import DeviceSearch
from daskboost.tree.split import SplitRules, SplitSearch

COLUMN_BYTES = 2**31
"""Most bytes of column-major copies of an engine's training chunks; what has no copy is split more slowly."""
SUMMED_ROWS = 2**18
"""Rows whose labels one thread sums: a millisecond, of which what a sum costs beside its rows is a tenth."""


def slot_layout(cuts: Cuts, width: int = 1) -> SlotLayout:
    """Where features lie in histograms: their bins, and one slot for missing where the training data has any.

    `width` : outputs (or columns of a sketch) that trees of vector leaves search.
    """
    slots = cuts.n_bins.astype(np.int64) + cuts.has_missing
    return SlotLayout(np.concatenate([[0], np.cumsum(slots)]).astype(np.int64), cuts.n_bins, width)


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
    width: int = 1
    """Of the fit's histograms (see `SlotLayout`)."""
    vector_leaves: bool = False
    """Whether a round grows one tree of all outputs, though it may search a sketch of one column."""
    small_data: bool = False
    """Whether gradients are rounded before weights multiply them (see `devices/cpu/gradients.py`)."""
    packed: bool = False
    """Whether trees are searched on gradients of few levels."""
    by_weight: bool = False
    """Whether trees are searched on weights in place of hessians."""


class Engine(EngineGradients):
    """One worker's share of a fit.

    Parameters
    ----------
    setup : EngineSetup
    train : Shard or ShardMargins
        Training rows; may be empty.
    evals : sequence of Shard
        This engine's rows of each evaluation set; may be empty.
    device : Device
        Where the rows lie; closed by `close`.
    peers : Peers, optional
        The other engines; needed by `Grow` with `search`.
    shared : SharedViews, optional
        Where views come from, if other fits of this process train on the same data set.
    """

    def __init__(self, setup: EngineSetup, train: Shard | ShardMargins, evals: Sequence[Shard], device: Device,
                 peers: Peers | None = None, shared: SharedViews | None = None) -> None:  # fmt: skip
        self.setup, self.device, self._peers = setup, device, peers
        self._layout = slot_layout(setup.cuts, setup.width)
        with device.errors():
            self._open(train, evals, shared)
        self._init_gradients()
        self._begun: tuple[m.StartTree, Root] | None = None
        """The tree that was begun when the last one was finished, and its root."""
        self._root: Array | None = None
        """Histograms of the root of the tree that has started, if they are there."""
        self._search: SplitSearch | DeviceSearch | None = None
        self._buffers = Buffers()
        self._answers: dict[type, Callable[[Any], Any]] = {
            m.LabelSums: self._label_sums,
            m.ResidualCounts: self._residual_counts,
            m.SetBaseMargin: self._set_base_margin,
            m.AddTree: self._add_tree,
            m.StartRound: self._start_round,
            m.StartTree: self._start_tree,
            m.LeafSums: self._leaf_sums,
            m.Grow: self._grow,
            m.ApplySplits: self._apply_splits,
            m.FinishTree: self._finish_tree,
            m.Evaluate: self._evaluate,
            m.Several: self._several,
        }

    def _open(self, train: Shard | ShardMargins, evals: Sequence[Shard], shared: SharedViews | None) -> None:
        """Take memory for the state of all rows."""
        setup, device = self.setup, self.device
        common = (device, self._layout, setup.cuts.has_missing)

        resident = (device.resident or (None,) * (1 + len(evals)))[: 1 + len(evals)]  # a sample has no evaluation sets

        def margins(shard: Shard, room_bytes: int, rank: int, n_resident: int | None, views: Views | None = None
                    ) -> ShardMargins:  # fmt: skip
            if views is None and shared is not None:
                views = shared.of(shard, *common, room_bytes, rank, n_resident, device.stream_bytes)
            return ShardMargins(
                shard, *common, setup.objective.n_outputs, room_bytes, views, n_resident, device.stream_bytes
            )

        room_bytes = device.column_room(setup.column_bytes)
        if isinstance(train, Shard):
            train = margins(train, room_bytes, TRAINING, resident[0])
        self.train = train
        self.evals: list[ShardMargins] = []
        """Of rows that are evaluated and not trained on."""
        self._evaluators = []
        for metrics, shard, n_resident in zip(setup.metrics, evals, resident[1:], strict=True):
            kept = next((own for own in (*self._current, *self.evals) if shard.has_chunks_of(own.shard)), None)
            if kept is None:
                same = shard.has_chunks_of(train.shard)  # then only margins are others
                views, kept_chunks = (train.views, resident[0]) if same else (None, n_resident)
                kept = margins(shard, room_bytes if same else 0, EVALUATION, kept_chunks, views)
                self.evals.append(kept)
            self._evaluators.append(Evaluator(device, setup.objective, metrics, EvaluatedRows(shard, kept, device)))
        groups = self.train.groups
        self._labels = [device.put(group.label) for group in groups]
        self._weights = [None if group.rows.weight is None else device.put(group.rows.weight) for group in groups]
        self.rows = self._make_rows()
        self.losses = self._make_losses()

    @property
    def _current(self) -> Sequence[ShardMargins]:
        """Training rows whose margins have every tree as soon as it is finished."""
        return (self.train,)

    def _make_rows(self) -> Rows:
        """State of the training rows while trees grow over them."""
        groups = self.train.groups
        return self.device.rows(
            self.train.views, [group.n_rows for group in groups], [group.pieces for group in groups],
            [group.weight for group in groups] if self.setup.small_data else None, packed=self.setup.packed,
            room_rows=self.train.room_rows,
        )  # fmt: skip

    def _make_losses(self) -> LossRows | None:
        setup = self.setup
        return self.device.loss_rows(
            kernel_of(setup.objective), self._labels, self.train.margins, self._weights, setup.objective.n_outputs,
            small_data=setup.small_data, stored=setup.vector_leaves, room_rows=self.train.room_rows,
        )  # fmt: skip

    def handle(self, message: Any) -> Any:
        """Answer one request."""
        with self.device.errors():
            return self._answers[type(message)](message)

    def close(self) -> None:
        """Free the device's threads and the rows' memory; shards belong to whoever made them."""
        self._answers.clear()  # methods refer to the engine, whose arrays would wait for the garbage collector
        self.device.close()

    def _several(self, message: m.Several) -> m.Replies:
        return m.Replies(tuple(self.handle(request) for request in message.requests))

    def _label_sums(self, message: m.LabelSums) -> m.ExactParts:
        labels, weights = ExactSum(), ExactSum()
        jobs = [
            partial(part.label_sums, begin, min(begin + SUMMED_ROWS, part.n_rows))
            for part in self.train.groups for begin in range(0, part.n_rows, SUMMED_ROWS)
        ]  # fmt: skip
        for label, weight in self.device.threads.run(jobs):
            labels, weights = labels + label, weights + weight
        return m.ExactParts(labels.to_array(), weights.to_array())

    def _residual_counts(self, message: m.ResidualCounts) -> m.Counts:
        counts = np.zeros((len(message.leaves), 1 << message.next_bits), np.int64)
        for index, (label, weight) in enumerate(zip(self._labels, self._weights, strict=True)):
            counts += self.rows.count_residuals(
                index, message.leaves, label, self.train.margins[index][:, message.output], weight,
                message.weight_scale, message.prefixes, message.known_bits, message.next_bits,
            )  # fmt: skip
        return m.Counts(counts)

    def _set_base_margin(self, message: m.SetBaseMargin) -> m.Done:
        for margins in (self.train, *self.evals):
            margins.set_base(message.margin)
        return m.Done()

    def _add_tree(self, message: m.AddTree) -> m.Done:
        for margins in (self.train, *self.evals):
            margins.add_tree(message.tree, message.output)
        return m.Done()

    def _start_round(self, message: m.StartRound) -> m.GradientRange:
        self._projection = message.projection
        tops = [np.zeros((2, self.setup.objective.n_outputs + self._n_columns))]
        if self.losses is not None:
            tops.append(self._kernel_ranges(self.losses))
        else:
            for index in range(len(self.train.margins)):
                tops += self.compute_gradients(index)
        top = np.max(np.stack(tops), axis=0)  # NaN wins, as it should
        return m.GradientRange(top[0], top[1])

    def forget_search(self) -> None:
        """Drop the histograms of the last search."""
        if self._search is not None:
            self._search.forget()

    def _start_tree(self, message: m.StartTree) -> m.RootSums:
        self.forget_search()
        begun, self._begun, self._root = self._begun, None, None
        if begun is not None and begun[0] == message:
            self._root = begun[1].histograms
            return m.RootSums(begun[1].sums)
        first = message.columns[0]
        if len(message.columns) > 1:
            return m.RootSums(
                self._vector_rows.start_vector_tree(partial(self._columns_of, first), message.roundings)
            )
        column = partial(self._column, first, by_weight=self.setup.by_weight)
        return m.RootSums(self.rows.start_tree(column, message.roundings[0]))

    def _leaf_sums(self, message: m.LeafSums) -> m.SumsOfLeaves:
        leaves, outputs = message.leaves, message.outputs
        if len(outputs) == 1:
            column = partial(self._column, outputs[0])
            return m.SumsOfLeaves(self.rows.column_leaf_sums(column, message.roundings[0], leaves))
        return m.SumsOfLeaves(self._vector_rows.leaf_sums(self.gradients_of, message.roundings, leaves))

    @property
    def _vector_rows(self) -> VectorRows:
        if not isinstance(self.rows, VectorRows):
            raise DeviceError("this device does not grow trees of vector leaves; use device='cpu'")
        return self.rows

    def _grow(self, message: m.Grow) -> Any:
        peers, nodes = self._peers, message.search
        if nodes is not None and peers is not None and peers.n_peers == 1:
            return self._own_search(peers).search(nodes, self._histograms(message, words=True))
        alone = nodes is None and not message.compact  # then its histograms are nobody else's summands
        own = self.device.fetch(self._histograms(message, words=alone))
        if own.ndim == 4:  # a GPU's, of several outputs
            own = own.reshape(len(own), -1, 2)
        if nodes is None:
            return m.PartialHistograms(narrow(own, self._buffers) if message.compact else own)
        if peers is None:
            raise RuntimeError("this engine has no peers to reduce with")
        shares = feature_shares(self._layout, peers.n_peers)
        entries = self._layout.offsets * self._layout.width
        parts = [np.ascontiguousarray(own[:, entries[a] : entries[b]]) for a, b in shares]
        received = peers.exchange([narrow(part, self._buffers) for part in parts])
        return self._own_search(peers).search(nodes, total(received, self._buffers))

    def _histograms(self, message: m.Grow, *, words: bool) -> Array:
        """Those that are to be built; a root's may be there."""
        root, self._root = self._root, None
        return self.rows.grow(message.splits, message.built, words=words) if root is None else root

    def _own_search(self, peers: Peers) -> SplitSearch | DeviceSearch:
        """Of this engine's share of the features: where histograms lie if it is the only engine, else on the host."""
        if self._search is None:
            rules, kernels = self.setup.rules, self.device.split_kernels
            if peers.n_peers == 1 and kernels is not None:
                self._search = DeviceSearch(kernels, rules)
            else:
                share = feature_shares(self._layout, peers.n_peers)[peers.rank]
                self._search = SplitSearch(self._layout, rules, self.device.threads, share)
        return self._search

    def _apply_splits(self, message: m.ApplySplits) -> m.Done:
        self.rows.grow(message.splits, np.empty(0, np.int32))
        return m.Done()

    def _finish_tree(self, message: m.FinishTree) -> m.Done:
        margins = self.train.margins
        vectors = message.tree.value.ndim == 2
        root = self.rows.finish(
            message.splits, message.tree,
            lambda index: margins[index] if vectors else margins[index][:, message.output],
            self._following(message.following),
        )  # fmt: skip
        self._begun = None if root is None or message.following is None else (message.following, root)
        for evaluated in self.evals:
            evaluated.add_tree(message.tree, message.output)
        return m.Done()

    def _following(self, start: m.StartTree | None) -> Following | None:
        """The tree whose root the pass that finishes another one is to build; None where that would save no pass."""
        if start is None or self.train.is_resident or len(start.columns) > 1 or self._n_columns:
            return None
        return Following(partial(self._fresh_column, start.columns[0]), start.roundings[0])

    def _evaluate(self, message: m.Evaluate) -> m.MetricParts:
        return m.MetricParts([evaluator.states() for evaluator in self._evaluators])
