"""Trees that grow on a uniform sample of the rows and are certified on all of them (`fit/certifier.py`).

A row is of the sample if its hash says so, of the round and its global id, so that samples are the same rows whatever
chunks, workers and tiers hold them. In a pass over all chunks (`passes.py`) gradients are computed and rounded, rows
walk to the nodes of the new trees and enter their histograms. Gradients so never leave the chunk's turn, and the range
that their scale follows from comes out of the same pass; so do the rows of the next sample, copied out of the chunks
while these have their turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from daskboost.devices.budget.cpu_memory import sample_rows
from daskboost.devices.protocols import Device, Frontier, View
from daskboost.devices.sampling import TurnRows, UniformSize
from daskboost.dtypes import Array, Int32
from daskboost.engine.passes import RowSets, WaitingTrees, taken_rows
from daskboost.engine.row_gradients import Gradients, range_of
from daskboost.engine.setup import Answers, EngineSetup
from daskboost.engine.shard_margins import has_room
from daskboost.engine.tree_rows import HistogramSearch, TreeRows
from daskboost.fit import messages as m
from daskboost.fit.peers import Peers
from daskboost.tree.split_search import Candidates


class CertifiedTrees:
    """What an engine answers about trees that are certified."""

    def __init__(self, setup: EngineSetup, device: Device, sets: RowSets, peers: Peers | None) -> None:
        self._setup, self._device, self._sets = setup, device, sets
        self._gradients = Gradients(setup, device, sets.rows, keep=False)
        self._waiting = WaitingTrees(sets)
        self._search = HistogramSearch(setup, device, peers)
        self._found: FoundHistograms | None = None
        train = sets.train
        n_rows = [len(margin) for margin in train.margins]
        expected, of_turn = (sample_rows(setup.recipe.share, n) for n in (sum(n_rows), max(n_rows, default=0)))
        has_weight = bool(n_rows) and all(weight is not None for weight in sets.rows.weights)
        size = UniformSize(setup.recipe.share, train.n_outputs, has_weight, expected, of_turn)
        copies_columns = has_room(device.column_room(setup.column_bytes), train.shard.layout, expected)
        self._drawn = device.uniform_sample(size, copies_columns=copies_columns)
        sample = Gradients(setup, device, taken_rows(train), keep=setup.keeps_round)
        self._sample = TreeRows(setup, device, HistogramSearch(setup, device, peers), sample)

    @property
    def answers(self) -> Answers:
        """What answers each request about trees."""
        return {
            m.StartRound: self._gradients.start_round,
            m.DrawShare: self._draw_share,
            m.Certify: self._certify,
            m.Build: self._build,
            m.Search: self._search_nodes,
            m.StartBelow: self._start_below,
            m.FinishTree: self._finish_tree,
            m.Evaluate: self._waiting.evaluate,
        }

    @property
    def sample_answers(self) -> Answers:
        """What answers requests to the sample, whose trees end in passes over all rows."""
        return self._sample.answers

    def _start_below(self, message: m.StartBelow) -> m.NodeSums:
        self._found = None
        self._search.forget()
        return self._sample.start_below(message)

    def _draw_share(self, message: m.DrawShare) -> m.Done:
        for _ in self._drawing(message.key):
            pass
        return m.Done()

    def _drawing(self, key: int | None) -> Iterator[tuple[int, View]]:
        """Pass over all rows and draw the sample of this key, in place of the one that is there; None keeps that."""
        if key is None:
            yield from self._waiting.pass_over_rows()
            return
        train, rows = self._sets.train, self._sets.rows
        self._sample.hold(taken_rows(train))
        self._drawn.start(key)
        for index, view in self._waiting.pass_over_rows():
            yield index, view
            own = train.margins[index], rows.labels[index], rows.weights[index]
            self._drawn.add(view, TurnRows(index, *own, train.groups[index].pieces))
        self._sample.hold(taken_rows(train, self._drawn.taken()))

    def _finish_tree(self, message: m.FinishTree) -> m.Done:
        self._sample.gradients.rows.train.add_trees([(message.tree, message.output)])
        self._waiting.add(message.tree, message.output)
        return m.Done()

    def _build(self, message: m.Build) -> m.PartialHistograms:
        self._search.forget()  # every search of a pass brings all histograms of its own
        return self._search.partial(self._of_nodes(message.built), compact=message.compact)

    def _search_nodes(self, message: m.Search) -> Candidates:
        self._search.forget()
        return self._search.candidates(message.nodes, partial(self._of_nodes, message.nodes.built))

    def _of_nodes(self, nodes: Int32, words: bool = False) -> Array:
        """Histograms that the last pass has found; never words."""
        assert self._found is not None
        return self._found.of_nodes(nodes)

    def _certify(self, message: m.Certify) -> m.Certified:
        self._search.forget()
        self._sample.search.forget()
        recipe, source = self._setup.recipe, self._gradients.source
        ends = np.cumsum([tree.n_places for tree in message.trees]).tolist()
        spans = [(end - tree.n_places, end) for end, tree in zip(ends, message.trees, strict=True)]
        train = self._sets.train
        frontier = self._device.frontier(ends[-1], max(map(len, train.margins), default=0))
        for index, view in self._drawing(message.next_key):
            source.find_range(index)
            weight = self._sets.rows.weights[index] if recipe.small_data else None
            if recipe.small_data and weight is None:
                weight = self._device.xp.ones(len(train.margins[index]), np.float32)
            for span, each in zip(spans, message.trees, strict=True):
                column = source.columns(index, each.output)
                frontier.add(view, each.tree, span, column, train.groups[index].pieces, weight, each.rounding)
        self._found = FoundHistograms(frontier, message.trees, spans)
        sums = frontier.end_pass()
        return m.Certified(range_of(source.found_ranges()), tuple(sums[a:b] for a, b in spans))

    def stop(self) -> None:
        """Do nothing: it waits for others by their peers."""

    def close(self) -> None:
        """Free the histograms of the last pass."""
        self._found = None


class FoundHistograms:
    """The histograms that a pass has found, of the nodes where trees end and of those above."""

    def __init__(self, frontier: Frontier, trees: Sequence[m.CertifiedTree], spans: Sequence[tuple[int, int]]) -> None:
        self._frontier, self._trees, self._spans = frontier, trees, spans

    def of_nodes(self, nodes: Int32) -> Array:
        """Return the histograms of nodes of one tree of the pass; see `CertifiedTree.first_node`."""
        which = max(k for k, tree in enumerate(self._trees) if tree.first_node <= nodes[0])
        tree, (first, _) = self._trees[which], self._spans[which]
        value = tree.tree.value.astype(np.int32)
        place = np.where((tree.tree.left_child < 0) & (value >= 0), value + first, -1).astype(np.int32)
        own = nodes - np.int32(tree.first_node)
        return self._frontier.of_nodes(own, place, tree.tree.left_child, tree.tree.right_child)
