"""Split search over reduced histograms, wherever they were reduced: all features beside the coordinator, or one
range of features on each peer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from daskboost.devices.cpu import split as kernels
from daskboost.devices.cpu import split_level as level_kernels
from daskboost.devices.cpu import split_vectors as vector_kernels
from daskboost.devices.cpu.buffers import Buffers
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import SlotLayout
from daskboost.dtypes import Float64, Int32, Int64, UInt8
from daskboost.tree.histograms import Searched, Stack, joined

SMALLEST_POSITIVE = 2.0**-1074
"""The smallest positive float64."""


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
    def regular(self) -> tuple[float, float, float, float]:
        """Penalties and limits of leaf values, as kernels take them: lambda, alpha, step, least h."""
        return self.reg_lambda, self.reg_alpha, self.max_delta_step, self.least_h

    @property
    def least_h(self) -> float:
        """The least sum of hessians of a node that has a value other than 0, and may be split off.

        It is `min_child_weight`. Where both that and `reg_lambda` are 0 it is the smallest positive number, as nothing
        is left to divide by where hessians round to 0; a positive lambda makes such children as good as any.
        """
        if self.min_child_weight > 0 or self.reg_lambda > 0:
            return self.min_child_weight
        return SMALLEST_POSITIVE

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
    """Integer sums of g and h; int64, shape (nodes, 2), or (nodes, 2 * outputs) for vectors: g, h of one output after
    the other."""
    bounds: Float64
    """Limits of the leaf value under monotone constraints; float64, shape (nodes, 2)."""
    allowed: UInt8
    """Whether a feature may be used; uint8, shape (nodes, features) or (1, features) when all nodes agree."""
    units: tuple[float, ...]
    """What one quantum of each of the sums is worth."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def one_unit(self) -> tuple[float, float]:
        """`units` of a single output."""
        g, h = self.units
        return g, h


@dataclass(frozen=True)
class Candidates:
    """The best split of each open node; arrays of shape (nodes, ...)."""

    gain: Float64
    """Loss reduction, -inf where no split is allowed; for symmetric trees that of the whole level."""
    feature: Int32
    split_bin: Int32
    default_left: UInt8
    left: Int64
    """Integer sums of the rows that go left; int64, shape as `OpenNodes.sums`."""


def combine(parts: Sequence[Candidates]) -> Candidates:
    """The best of several candidates per node; ties go to the earlier part, whose features come first."""
    if len(parts) == 1:
        return parts[0]
    best = np.argmax(np.stack([part.gain for part in parts]), axis=0)
    nodes = np.arange(len(best))

    def pick(name: str) -> np.ndarray:
        return np.ascontiguousarray(np.stack([getattr(part, name) for part in parts])[best, nodes])

    return Candidates(pick("gain"), pick("feature"), pick("split_bin"), pick("default_left"), pick("left"))


def _no_candidates(nodes: OpenNodes) -> Candidates:
    n = len(nodes)
    return Candidates(
        np.full(n, -np.inf), np.full(n, -1, np.int32), np.zeros(n, np.int32), np.zeros(n, np.uint8),
        np.zeros_like(nodes.sums),
    )  # fmt: skip


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
        self.first_slot = int(layout.offsets[features[0]])
        self.entries = (self.first_slot * layout.width, int(layout.offsets[features[1]]) * layout.width)
        self._searched = Searched()
        self._buffers = Buffers()

    def forget(self) -> None:
        """Drop all histograms: the tree is done."""
        self._searched.clear()

    def search(self, nodes: OpenNodes, built: Int64) -> Candidates:
        """Best splits of `nodes`.

        `built` : int64, shape (built nodes, entries of this range, 2), reduced over all engines, or words of shape
        (built nodes, entries). The other open nodes' histograms are their parents' less their siblings'.
        """
        stacks = self._stacks(nodes, built)
        found = self._level(stacks, nodes) if self._rules.symmetric else self._per_node(stacks, nodes)
        self._searched.drop(np.array(sorted(set(nodes.parents[nodes.parents >= 0].tolist())), np.int32))
        for stack in stacks:
            self._searched.put(nodes.ids[stack.rows], stack.histograms, stack.places)
        return found

    def _stacks(self, nodes: OpenNodes, built: Int64) -> list[Stack]:
        """The open nodes, by where their histograms come from: rows, or an array with their parents'."""
        place_of = np.full(int(max(nodes.ids.max(), nodes.built.max(initial=0))) + 2, -1, np.int64)
        place_of[nodes.built] = np.arange(len(nodes.built))
        places = place_of[nodes.ids]
        direct, rest = np.flatnonzero(places >= 0), np.flatnonzero(places < 0)
        stacks = []
        if len(direct):
            stacks.append(Stack(direct, built, places[direct], built[:0], direct, built, direct))
        if not len(rest):
            return stacks
        sibling_places = place_of[sibling(nodes.ids[rest])]
        sources = self._searched.by_array(nodes.parents[rest])
        for ndim in (2, 3):
            same = [source for source in sources if source[0].ndim == ndim]
            if not same:
                continue
            ends = np.cumsum([len(which) for _, which, _ in same]).tolist()
            own = self._buffers.empty((ends[-1], *same[0][0].shape[1:]))
            for end, (parents, which, parent_places) in zip(ends, same, strict=True):
                own_places = np.arange(end - len(which), end)
                stacks.append(
                    Stack(rest[which], own, own_places, parents, parent_places, built, sibling_places[which])
                )
        return stacks

    def _best(self, stack: Stack, nodes: OpenNodes, features: tuple[int, int], members: tuple[int, int],
              into: Candidates) -> None:  # fmt: skip
        """Find the best splits of some members of a stack among some features."""
        layout, rules = self._layout, self._rules
        histograms = (
            stack.histograms, stack.places, stack.parents, stack.parent_places, stack.siblings, stack.sibling_places,
            stack.rows, self.first_slot,
        )  # fmt: skip
        out = (into.gain, into.feature, into.split_bin, into.default_left, into.left)
        if layout.width > 1:
            vector_kernels.best_per_node(
                *histograms, nodes.sums, nodes.allowed, layout.offsets, layout.n_bins, features, members,
                np.array(nodes.units), rules.regular, rules.plain, *out,
            )  # fmt: skip
            return
        kernels.best_per_node(
            *histograms, nodes.sums, nodes.bounds, nodes.allowed, layout.offsets, layout.n_bins, rules.monotone,
            features, members, nodes.one_unit, rules.regular, rules.plain, *out,
        )  # fmt: skip

    def _per_node(self, stacks: list[Stack], nodes: OpenNodes) -> Candidates:

        if len(nodes) >= self._threads.count:
            found = _no_candidates(nodes)

            def best_of(low: int, high: int) -> None:
                start = 0
                for stack in stacks:
                    members = (max(low - start, 0), min(high - start, len(stack.rows)))
                    if members[0] < members[1]:
                        self._best(stack, nodes, self.features, members, found)
                    start += len(stack.rows)

            self._threads.run([partial(best_of, *r) for r in self._threads.ranges(len(nodes), least=1)])
            return found

        def best_among(features: tuple[int, int]) -> Candidates:
            own = _no_candidates(nodes)
            for stack in stacks:
                self._best(stack, nodes, features, (0, len(stack.rows)), own)
            return own

        return combine(self._threads.run([partial(best_among, r) for r in self._feature_ranges()]))

    def _level(self, stacks: list[Stack], nodes: OpenNodes) -> Candidates:
        histograms, layout = joined(stacks), self._layout
        parts = self._threads.run([
            partial(self._best_of_level, histograms, nodes, features) for features in self._feature_ranges()
        ])  # fmt: skip
        gain, feature, split_bin, default_left = max(parts, key=lambda part: part[0])  # the first of equals
        found = _no_candidates(nodes)
        if feature >= 0:
            found.gain[:], found.feature[:], found.split_bin[:] = gain, feature, split_bin
            found.default_left[:] = default_left
            for k in range(layout.width):
                level_kernels.left_sums(
                    histograms[:, k :: layout.width], self.first_slot, nodes.sums[:, 2 * k : 2 * k + 2], layout.offsets,
                    layout.n_bins, feature, split_bin, bool(default_left), found.left[:, 2 * k : 2 * k + 2],
                )  # fmt: skip
        return found

    def _best_of_level(self, histograms: Int64, nodes: OpenNodes, features: tuple[int, int]
                       ) -> tuple[float, int, int, int]:  # fmt: skip
        """(gain, feature, bin, default left) of the best split for all nodes among some features."""
        layout, rules = self._layout, self._rules
        allowed = np.ascontiguousarray(np.broadcast_to(nodes.allowed, (len(nodes), nodes.allowed.shape[1])))
        found: tuple[float, int, int, int]
        if layout.width > 1:
            found = vector_kernels.best_of_level(
                histograms, self.first_slot, nodes.sums, allowed, layout.offsets, layout.n_bins, features,
                np.array(nodes.units), rules.regular, rules.plain,
            )  # fmt: skip
        else:
            found = level_kernels.best_of_level(
                histograms, self.first_slot, nodes.sums, nodes.bounds, allowed, layout.offsets, layout.n_bins,
                rules.monotone, features, nodes.one_unit, rules.regular, rules.plain,
            )  # fmt: skip
        return found

    def _feature_ranges(self) -> list[tuple[int, int]]:
        first, last = self.features
        return [(first + a, first + b) for a, b in self._threads.ranges(last - first, least=1)]


def sibling(nodes: Int32) -> Int32:
    """The other children of the nodes' parents: children are numbered in pairs, left odd, right even."""
    return nodes - 1 + 2 * (nodes % 2)
