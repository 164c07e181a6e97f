"""Split search over reduced histograms, wherever they were reduced: all features beside the coordinator, or one
range of features on each peer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from daskboost.devices.cpu import split as kernels
from daskboost.devices.cpu.buffers import Buffers
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import SlotLayout
from daskboost.dtypes import Float64, Int32, Int64, UInt8

CACHE_BYTES = 2**19
"""Histograms that are subtracted and searched in one go: what a second-level cache holds."""


@dataclass(frozen=True)
class SplitRules:
    """What makes a split allowed and good; the same for all trees of a fit."""

    reg_lambda: float
    reg_alpha: float
    max_delta_step: float
    min_child_weight: float
    monotone: Int32
    """-1, 0 or 1 per feature; int32, shape (features,)."""
    symmetric: bool
    """One split for all nodes of a level."""

    @property
    def plain(self) -> bool:
        """Whether the closed-form gain holds: no limits on leaf values."""
        return self.max_delta_step == 0 and not self.monotone.any()


@dataclass(frozen=True)
class OpenNodes:
    """Nodes whose best splits are wanted; arrays of shape (nodes, ...)."""

    ids: Int32
    """Tree node of each entry."""
    parents: Int32
    """Its parent, or -1 for the root."""
    built: Int32
    """The nodes whose histograms are built from rows; may name siblings that are not open themselves."""
    sums: Int64
    """Integer sums of g and h; int64, shape (nodes, 2)."""
    bounds: Float64
    """Limits of the leaf value under monotone constraints; float64, shape (nodes, 2)."""
    allowed: UInt8
    """Whether a feature may be used; uint8, shape (nodes, features) or (1, features) when all nodes agree."""
    units: tuple[float, float]
    """What one quantum of g and of h is worth."""

    def __len__(self) -> int:
        return len(self.ids)

    def subset(self, rows: Int64) -> OpenNodes:
        """Some of the nodes, with nothing said of what was built."""
        allowed = self.allowed if len(self.allowed) == 1 else self.allowed[rows]
        return OpenNodes(
            self.ids[rows], self.parents[rows], self.built, self.sums[rows], self.bounds[rows], allowed, self.units
        )


def _nothing(low: int, high: int) -> None:
    """The histograms are there already."""


@dataclass(frozen=True)
class Stack:
    """Histograms of some open nodes."""

    rows: Int64
    """Their places among the open nodes."""
    histograms: Int64
    """int64, shape (at least nodes, slots, 2)."""
    places: Int64
    """Each node's place in `histograms`."""
    fill: Callable[[int, int], None] = _nothing
    """Computes the histograms of the nodes `[low, high)`: right before they are searched, while a cache holds them."""


@dataclass(frozen=True)
class Candidates:
    """The best split of each open node; arrays of shape (nodes, ...)."""

    gain: Float64
    """Loss reduction, -inf where no split is allowed; for symmetric trees that of the whole level."""
    feature: Int32
    split_bin: Int32
    default_left: UInt8
    left: Int64
    """Integer sums of the rows that go left; int64, shape (nodes, 2)."""


def combine(parts: Sequence[Candidates]) -> Candidates:
    """The best of several candidates per node; ties go to the earlier part, whose features come first."""
    best = np.argmax(np.stack([part.gain for part in parts]), axis=0)
    nodes = np.arange(len(best))

    def pick(name: str) -> np.ndarray:
        return np.ascontiguousarray(np.stack([getattr(part, name) for part in parts])[best, nodes])

    return Candidates(pick("gain"), pick("feature"), pick("split_bin"), pick("default_left"), pick("left"))


def _built(nodes: OpenNodes, built: Int64) -> Stack:
    """The open nodes among the built ones."""
    rows, places = np.nonzero(nodes.ids[:, None] == nodes.built[None, :])
    return Stack(rows, built, places)


def _joined(parts: Sequence[Stack]) -> Stack:
    """All open nodes in order, in one array."""
    for part in parts:
        part.fill(0, len(part.rows))
    order = np.argsort(np.concatenate([part.rows for part in parts]))
    histograms = np.concatenate([part.histograms[part.places] for part in parts])[order]
    return Stack(np.arange(len(order)), histograms, np.arange(len(order)))


def _in_order(rows: Sequence[Int64], parts: Sequence[Candidates]) -> Candidates:
    """Candidates of disjoint nodes, put together by their places."""
    if len(parts) == 1 and np.array_equal(rows[0], np.arange(len(rows[0]))):
        return parts[0]
    order = np.argsort(np.concatenate(rows))

    def join(name: str) -> np.ndarray:
        return np.ascontiguousarray(np.concatenate([getattr(part, name) for part in parts])[order])

    return Candidates(join("gain"), join("feature"), join("split_bin"), join("default_left"), join("left"))


class SplitSearch:
    """Reduced histograms of a range of features, and the best splits in them.

    Parameters
    ----------
    layout : SlotLayout
        Of all features.
    rules : SplitRules
    threads : Threads
    features : (int, int)
        The range of features searched here.
    """

    def __init__(self, layout: SlotLayout, rules: SplitRules, threads: Threads, features: tuple[int, int]) -> None:
        self._layout, self._rules, self._threads, self.features = layout, rules, threads, features
        self.slots = (int(layout.offsets[features[0]]), int(layout.offsets[features[1]]))
        self._histograms: dict[int, Int64] = {}
        self._buffers = Buffers()

    def forget(self) -> None:
        """Drop all histograms: the tree is done."""
        self._histograms.clear()

    def search(self, nodes: OpenNodes, built: Int64) -> Candidates:
        """Best splits of `nodes`.

        `built` : int64, shape (built nodes, slots of this range, 2), reduced over all engines. The other open nodes'
        histograms are their parents' less their siblings'.
        """
        parts = [part for part in (_built(nodes, built), self._rest(nodes, built)) if len(part.rows)]
        if self._rules.symmetric:  # a level is searched as a whole
            parts = [_joined(parts)]
        found = [self._search(part, nodes.subset(part.rows)) for part in parts]
        for parent in set(nodes.parents.tolist()):
            self._histograms.pop(parent, None)
        for part in parts:
            for node, place in zip(nodes.ids[part.rows].tolist(), part.places.tolist(), strict=True):
                self._histograms[node] = part.histograms[place]
        return _in_order([part.rows for part in parts], found)

    def _search(self, stack: Stack, nodes: OpenNodes) -> Candidates:
        allowed = np.ascontiguousarray(np.broadcast_to(nodes.allowed, (len(nodes), nodes.allowed.shape[1])))
        rules = self._rules
        regular = (rules.reg_lambda, rules.reg_alpha, rules.max_delta_step, rules.min_child_weight)
        search = self._level if rules.symmetric else self._per_node
        gain, feature, split_bin, default_left = search(stack, nodes, allowed, regular)
        left = np.zeros((len(nodes), 2), np.int64)
        kernels.left_sums(
            stack.histograms, stack.places, self.slots[0], nodes.sums, self._layout.offsets, self._layout.n_bins,
            feature, split_bin, default_left, left,
        )  # fmt: skip
        return Candidates(gain, feature, split_bin, default_left, left)

    def _rest(self, nodes: OpenNodes, built: Int64) -> Stack:
        """The open nodes that were not built: their parents' histograms less their siblings', once they are filled."""
        position = {node: i for i, node in enumerate(nodes.built.tolist())}
        ids, parents = nodes.ids.tolist(), nodes.parents.tolist()
        rows = [row for row, node in enumerate(ids) if node not in position]
        stack = self._buffers.empty((len(rows), *built.shape[1:]))

        def fill(low: int, high: int) -> None:
            for i in range(low, high):
                row = rows[i]
                np.subtract(self._histograms[parents[row]], built[position[sibling(ids[row])]], out=stack[i])

        return Stack(np.array(rows, np.int64), stack, np.arange(len(rows)), fill)

    def _per_node(self, stack: Stack, nodes: OpenNodes, allowed: UInt8, regular: tuple[float, float, float, float]
                  ) -> tuple[Float64, Int32, Int32, UInt8]:  # fmt: skip
        n = len(nodes)
        gain, feature, split_bin = np.full(n, -np.inf), np.full(n, -1, np.int32), np.zeros(n, np.int32)
        default_left = np.zeros(n, np.uint8)

        def best(features: tuple[int, int], rows: tuple[int, int], into: Candidates) -> None:
            kernels.best_per_node(
                stack.histograms, stack.places, self.slots[0], nodes.sums, nodes.bounds, allowed, self._layout.offsets,
                self._layout.n_bins, self._rules.monotone, features, rows, nodes.units, regular, self._rules.plain,
                into.gain, into.feature, into.split_bin, into.default_left,
            )  # fmt: skip

        if n >= self._threads.count:
            into = Candidates(gain, feature, split_bin, default_left, np.empty((0, 2), np.int64))
            group = max(1, CACHE_BYTES // max(stack.histograms[:1].nbytes, 1))

            def best_of_groups(low: int, high: int) -> None:
                for start in range(low, high, group):
                    rows = (start, min(start + group, high))
                    stack.fill(*rows)
                    best(self.features, rows, into)

            self._threads.run([partial(best_of_groups, *r) for r in self._threads.ranges(n, least=1)])
            return gain, feature, split_bin, default_left
        stack.fill(0, n)
        parts = [
            Candidates(gain.copy(), feature.copy(), split_bin.copy(), default_left.copy(), np.zeros((n, 2), np.int64))
            for _ in self._feature_ranges()
        ]
        self._threads.run([partial(best, r, (0, n), p) for r, p in zip(self._feature_ranges(), parts, strict=True)])
        winner = combine(parts)
        return winner.gain, winner.feature, winner.split_bin, winner.default_left

    def _level(self, stack: Stack, nodes: OpenNodes, allowed: UInt8, regular: tuple[float, float, float, float]
               ) -> tuple[Float64, Int32, Int32, UInt8]:  # fmt: skip
        found = self._threads.run([
            partial(
                kernels.best_of_level, stack.histograms, self.slots[0], nodes.sums, nodes.bounds, allowed,
                self._layout.offsets, self._layout.n_bins, self._rules.monotone, features, nodes.units, regular,
                self._rules.plain,
            )
            for features in self._feature_ranges()
        ])  # fmt: skip
        gain, feature, split_bin, default_left = max(found, key=lambda part: part[0])  # the first of equals
        n = len(nodes)
        return (
            np.full(n, gain), np.full(n, feature, np.int32), np.full(n, split_bin, np.int32),
            np.full(n, default_left, np.uint8),
        )  # fmt: skip

    def _feature_ranges(self) -> list[tuple[int, int]]:
        first, last = self.features
        return [(first + a, first + b) for a, b in self._threads.ranges(last - first, least=1)]


def sibling(node: int) -> int:
    """The other child of a node's parent: children are numbered in pairs, left odd, right even."""
    return node + 1 if node % 2 else node - 1
