"""Rows while trees grow over them: what an engine answers about the tree that is under construction.

The rows are all training rows of the engine, or a sample of them, which is another shard of one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from daskboost.devices.buffers import Buffers
from daskboost.devices.protocols import Device, Rows
from daskboost.devices.row_order import Following, Root, RowSplits
from daskboost.dtypes import Array, Float32, Int32
from daskboost.engine.query_rows import codes_to_draw
from daskboost.engine.row_gradients import Gradients, GrowingRows
from daskboost.engine.setup import Answers, EngineSetup
from daskboost.fit import messages as m
from daskboost.fit.peers import Peers, feature_shares, narrow, total
from daskboost.tree.device_trees import DeviceSearch
from daskboost.tree.split_search import Candidates, OpenNodes, SplitSearch


class HistogramSearch:
    """Where partial histograms of the engines meet: built histograms go in, best splits of nodes come out. Only engines
    with peers search among them."""

    def __init__(self, setup: EngineSetup, device: Device, peers: Peers | None) -> None:
        self._setup, self._device, self._peers = setup, device, peers
        self._search: SplitSearch | DeviceSearch | None = None
        self._buffers = Buffers()

    def forget(self) -> None:
        """Drop the histograms of the last search."""
        if self._search is not None:
            self._search.forget()

    def partial(self, built: Array, *, compact: bool) -> m.PartialHistograms:
        """Return this engine's own histograms, for the coordinator."""
        own = self._device.fetch_histograms(built)
        return m.PartialHistograms(narrow(own, self._buffers) if compact else own)

    def candidates(self, nodes: OpenNodes, built: Callable[[bool], Array]) -> Candidates:
        """Reduce histograms by feature among the engines and search this one's share. GPUs that are joined all have the
        sums, and each searches all features.

        `built(words)` builds them; with `words` as words, where they are nobody else's summands.
        """
        if self._peers is None:
            raise RuntimeError("this engine has no peers to reduce with")
        n_peers, joined = self._peers.n_peers, self._device.joined
        if n_peers == 1:
            return self._own(self._peers).search(nodes, built(True))
        if joined is not None:
            found = built(False)
            joined.add_up(found.transpose(2, 0, 1, 3))
            return self._own(self._peers).search(nodes, found)
        own = self._device.fetch_histograms(built(False))
        layout = self._setup.layout
        entries = layout.offsets * layout.width
        parts = [
            np.ascontiguousarray(own[:, entries[a] : entries[b]]) for a, b in feature_shares(layout, n_peers)
        ]
        received = self._peers.exchange([narrow(part, self._buffers) for part in parts])
        return self._own(self._peers).search(nodes, total(received, self._buffers))

    def _own(self, peers: Peers) -> SplitSearch | DeviceSearch:
        """Return the search of this engine's share of the features: on its device if those of all rows are there, else
        on the host."""
        if self._search is None:
            rules, kernels = self._setup.rules, self._device.split_kernels
            if kernels is not None and (peers.n_peers == 1 or self._device.joined is not None):
                self._search = DeviceSearch(kernels, rules)
            else:
                share = feature_shares(self._setup.layout, peers.n_peers)[peers.rank]
                self._search = SplitSearch(self._setup.layout, rules, self._device.threads, share)
        return self._search


class TreeRows:
    """The state of rows while trees grow over them, one tree at a time, by the rows' gradients."""

    def __init__(self, setup: EngineSetup, device: Device, search: HistogramSearch, gradients: Gradients) -> None:
        self._setup, self._device, self.search, self.gradients = setup, device, search, gradients
        self._begun: tuple[m.StartTree, Root] | None = None
        """The tree that was begun when the last one was finished, and its root."""
        self._root: Array | None = None
        """Histograms of the root of the tree that has started, if they are there."""
        self.rows = make_rows(setup, device, gradients.rows)

    def hold(self, rows: GrowingRows, given: Sequence[tuple[Array, Array]] | None = None) -> None:
        """Take other rows, with their gradients if these are `given`."""
        self.gradients.hold(rows, given)
        self.rows = make_rows(self._setup, self._device, rows)

    @property
    def answers(self) -> Answers:
        """What answers each request about trees, but for the end of one (`finish_tree`)."""
        return {
            m.StartRound: self.gradients.start_round,
            m.StartTree: self.start_tree,
            m.StartBelow: self.start_below,
            m.Build: self._build,
            m.Search: self._search_nodes,
            m.LeafSums: self._leaf_sums,
            m.LeafEquations: self._leaf_equations,
            m.ResidualCounts: self._residual_counts,
            m.ApplySplits: self._apply_splits,
        }

    def start_tree(self, message: m.StartTree) -> m.RootSums:
        self.search.forget()
        begun, self._begun, self._root = self._begun, None, None
        if begun is not None and begun[0] == message:
            self._root = begun[1].histograms
            return m.RootSums(begun[1].sums)
        first, gradients = message.columns[0], self.gradients
        if len(message.columns) > 1:
            return m.RootSums(self.rows.start_vector_tree(gradients.all_searched, message.roundings))
        return m.RootSums(self.rows.start_tree(partial(gradients.searched, first), message.roundings[0]))

    def start_below(self, message: m.StartBelow) -> m.NodeSums:
        self.start_tree(m.StartTree((message.output,), (message.rounding,)))
        return m.NodeSums(self.rows.settle(message.tree, message.n_places))

    def _leaf_sums(self, message: m.LeafSums) -> m.NodeSums:
        leaves, outputs = message.leaves, message.outputs
        if len(outputs) == 1:
            column = partial(self.gradients.column, outputs[0])
            return m.NodeSums(self.rows.column_leaf_sums(column, message.roundings[0], leaves))
        return m.NodeSums(self.rows.leaf_sums(self.gradients.source.gradients, message.roundings, leaves))

    def _leaf_equations(self, message: m.LeafEquations) -> m.NodeSums:
        column = partial(self.gradients.column, message.output)
        return m.NodeSums(
            self.rows.equations(message.splits, column, message.rounding, message.leaves, message.terms)
        )

    def _build(self, message: m.Build) -> m.PartialHistograms:
        built = self._histograms(message.splits, message.built, not message.compact)
        return self.search.partial(built, compact=message.compact)

    def _search_nodes(self, message: m.Search) -> Candidates:
        nodes = message.nodes
        return self.search.candidates(nodes, partial(self._histograms, message.splits, nodes.built))

    def _residual_counts(self, message: m.ResidualCounts) -> m.Counts:
        return count_residuals(self.rows, self.gradients.rows, message)

    def _histograms(self, splits: RowSplits | None, nodes: Int32, words: bool) -> Array:
        """Return the histograms that are to be built; a root's may be there."""
        root, self._root = self._root, None
        return self.rows.grow(splits, nodes, words=words) if root is None else root

    def _apply_splits(self, message: m.ApplySplits) -> m.Done:
        self.rows.grow(message.splits, np.empty(0, np.int32))
        return m.Done()

    def finish_tree(self, message: m.FinishTree) -> None:
        """Take the rows to their leaves, and add these leaves' values to their margins."""
        margins = self.gradients.rows.train.margins
        root = self.rows.finish(
            message.splits, message.tree, lambda index: message.tree.own(margins[index], message.output),
            self._following(message.following),
        )  # fmt: skip
        self._begun = None if root is None or message.following is None else (message.following, root)

    def _following(self, start: m.StartTree | None) -> Following | None:
        """The tree whose root the pass that finishes another one is to build."""
        return None if start is None else self.gradients.following(start)


def make_rows(setup: EngineSetup, device: Device, rows: GrowingRows) -> Rows:
    """Return the state of rows while trees grow over them."""
    train = rows.train
    weights: list[Float32] | None = [group.weight for group in train.groups] if setup.recipe.small_data else None
    made = device.rows(
        train.views, [group.n_rows for group in train.groups], [group.pieces for group in train.groups], weights,
        room_rows=train.room_rows,
    )  # fmt: skip
    codes = codes_to_draw(setup.recipe, train.groups)
    if codes is not None:
        made.draw_by(codes)
    return made


def count_residuals(state: Rows, rows: GrowingRows, message: m.ResidualCounts) -> m.Counts:
    """Return how many residuals of rows have each next digit (`ResidualCounts`)."""
    query = message.query
    counts = np.zeros((len(query.leaves), 1 << query.next_bits), np.int64)
    for index, (label, weight) in enumerate(zip(rows.labels, rows.weights, strict=True)):
        margin = rows.train.margins[index][:, message.output]
        counts += state.count_residuals(index, query, label, margin, weight)
    return m.Counts(counts)
