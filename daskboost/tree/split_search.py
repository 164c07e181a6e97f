"""Split search over reduced histograms, wherever they were reduced: all features beside the coordinator, or one
range of features on each peer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Protocol

import numpy as np

from daskboost.devices.buffers import Buffers
from daskboost.devices.cpu import split as kernels
from daskboost.devices.cpu import split_level as level_kernels
from daskboost.devices.cpu import split_vectors as vector_kernels
from daskboost.devices.cpu.histogram import LOW_HALF
from daskboost.devices.cpu.scales import SMALLEST_POSITIVE
from daskboost.devices.cpu.split import FeatureSlots, NodeBatch, Regular, SplitTable, Stack
from daskboost.devices.cpu.split_sets import NO_SET_RULES, SetRules
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.row_order import BITS, no_sets, sets_of_all
from daskboost.dtypes import Bool, Float64, Int32, Int64, UInt8, UInt32

# Histograms of the nodes that a tree's split search has open, and of their parents.

def _compute(stack: Stack) -> None:
    """Compute the histograms of a stack that are yet to be."""
    for n in range(len(stack.rows) if len(stack.parents) else 0):
        kernels.subtract(
            stack.parents[stack.parent_places[n]], stack.siblings[stack.sibling_places[n]],
            stack.histograms[stack.places[n]],
        )  # fmt: skip


def _pairs(histograms: Int64) -> Int64:
    """Histograms of words as pairs; those of pairs as they are."""
    if histograms.ndim == 3:
        return histograms
    return np.stack([histograms >> 32, histograms & LOW_HALF], axis=2)


def joined(stacks: Sequence[Stack]) -> Int64:
    """The histograms of all open nodes in their order, in one array."""
    for stack in stacks:
        _compute(stack)
    parts = [stack.histograms[stack.places] for stack in stacks]
    if len({part.ndim for part in parts}) > 1:
        parts = [_pairs(part) for part in parts]
    order = np.argsort(np.concatenate([stack.rows for stack in stacks]))
    return np.concatenate(parts)[order]


class Searched:
    """Histograms of searched nodes, until their children's are known."""

    def __init__(self) -> None:
        self._arrays: dict[int, Int64] = {}
        self._live: dict[int, int] = {}
        """Nodes that still need each array."""
        self._made = 0
        self._array_of: Int64 = np.full(64, -1, np.int64)
        self._place_of: Int64 = np.zeros(64, np.int64)

    def clear(self) -> None:
        self._arrays.clear()
        self._live.clear()

    def put(self, ids: Int32, histograms: Int64, places: Int64) -> None:
        """Keep `histograms[places]` for the nodes `ids`."""
        needed = int(ids.max()) + 1
        if needed > len(self._array_of):
            extra = np.full(max(needed, 2 * len(self._array_of)) - len(self._array_of), -1, np.int64)
            self._array_of, self._place_of = (np.concatenate([own, extra]) for own in (self._array_of, self._place_of))
        if self._arrays.get(self._made) is not histograms:  # stacks that share an array come one after the other
            self._made += 1
            self._arrays[self._made], self._live[self._made] = histograms, 0
        self._live[self._made] += len(ids)
        self._array_of[ids], self._place_of[ids] = self._made, places

    def by_form(self, ids: Int32) -> list[list[tuple[Int64, Int64, Int64]]]:
        """For each array that has some of the nodes: it, which of `ids` they are, and their places in it; arrays of
        words together, and arrays of pairs."""
        arrays = self._array_of[ids]
        found: dict[tuple[int, ...], list[tuple[Int64, Int64, Int64]]] = {}
        for key in sorted(set(arrays.tolist())):
            which, array = np.flatnonzero(arrays == key), self._arrays[key]
            found.setdefault(array.shape[1:], []).append((array, which, self._place_of[ids[which]]))
        return list(found.values())

    def drop(self, ids: Int32) -> None:
        """Forget nodes; an array goes with the last of its nodes."""
        for key, n in Counter(self._array_of[ids].tolist()).items():
            if key >= 0:
                self._live[key] -= n
                if self._live[key] == 0:
                    del self._arrays[key], self._live[key]
        self._array_of[ids] = -1


@dataclass(frozen=True)
class SetSearch:
    """How features of codes are split by sets."""

    is_code: Bool
    """Whether each feature is of codes, shape (features,)."""
    most_codes: int
    """Codes of the feature that has the most."""
    max_onehot: int
    max_threshold: int
    smooth: float = 0.0
    l2: float = 0.0
    least_group: float = 0.0

    @property
    def rules(self) -> SetRules:
        """Return the rules as kernels take them."""
        numbers = float(self.smooth), float(self.l2), float(self.least_group)
        return SetRules(self.is_code.astype(np.uint8), self.max_onehot, self.max_threshold, *numbers)

    @property
    def words(self) -> int:
        """Return the words of a set."""
        return -(-self.most_codes // BITS)


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
    sets: SetSearch | None = None
    """How features of codes are split by sets; None where there are none."""

    @cached_property
    def regular(self) -> Regular:
        """Return the penalties and limits of leaf values as kernels take them."""
        plain = self.max_delta_step == 0 and not bool(self.monotone.any())
        return Regular(
            float(self.reg_lambda), float(self.reg_alpha), float(self.max_delta_step), float(self.least_h), plain,
            self.monotone, NO_SET_RULES if self.sets is None else self.sets.rules,
        )  # fmt: skip

    @property
    def set_words(self) -> int:
        """Return the words of a set of bins; 0 where no feature is split by sets."""
        return 0 if self.sets is None else self.sets.words

    @property
    def least_h(self) -> float:
        """The least sum of hessians of a node that has a value other than 0, and may be split off.

        It is `min_child_weight`. Where both that and `reg_lambda` are 0 it is the smallest positive number, as nothing
        is left to divide by where hessians round to 0; a positive lambda makes such children as good as any.
        """
        if self.min_child_weight > 0 or self.reg_lambda > 0:
            return self.min_child_weight
        return SMALLEST_POSITIVE


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
    def batch(self) -> NodeBatch:
        """Return what kernels need of the nodes."""
        return NodeBatch(self.sums, self.bounds, self.allowed)

    @property
    def level(self) -> NodeBatch:
        """Return `batch` with a line of `allowed` for each node."""
        allowed = np.broadcast_to(self.allowed, (len(self), self.allowed.shape[1]))
        return NodeBatch(self.sums, self.bounds, np.ascontiguousarray(allowed))


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
    right_bins: UInt32 = field(default_factory=no_sets)
    """Bins that go right where `split_bin` is `BY_SET`, a bit for each; uint32, shape (nodes, words)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "right_bins", sets_of_all(self.right_bins, len(self.gain)))

    @property
    def table(self) -> SplitTable:
        """Return the arrays as kernels write them."""
        return SplitTable(self.gain, self.feature, self.split_bin, self.default_left, self.left, self.right_bins)


def combine(parts: Sequence[Candidates]) -> Candidates:
    """The best of several candidates per node; ties go to the earlier part, whose features come first."""
    if len(parts) == 1:
        return parts[0]
    best = np.argmax(np.stack([part.gain for part in parts]), axis=0)
    nodes = np.arange(len(best))

    def pick(name: str) -> np.ndarray:
        return np.ascontiguousarray(np.stack([getattr(part, name) for part in parts])[best, nodes])

    return Candidates(*(pick(each.name) for each in fields(Candidates)))


def _no_candidates(shape: tuple[int, ...], set_words: int) -> Candidates:
    """Return what nodes have before they are searched; `shape` : of their sums."""
    n = shape[0]
    return Candidates(
        np.full(n, -np.inf), np.full(n, -1, np.int32), np.zeros(n, np.int32), np.zeros(n, np.uint8),
        np.zeros(shape, np.int64), np.zeros((n, set_words), np.uint32),
    )  # fmt: skip


class Scores(Protocol):
    """What splits gain and what leaves are worth, by the sums of their rows."""

    @property
    def least_h(self) -> float:
        """Least sum of hessians, in some output, of a node that can be split."""

    def leaf_values(self, sums: Int64, bounds: Float64) -> Float64:
        """Leaf values before the learning rate; float64, shape (nodes,), or (nodes, outputs) of several outputs.

        Parameters
        ----------
        sums : int64, shape (nodes, 2 * outputs)
        bounds : float64, shape (nodes, 2)
            Limits of the values of one output; vectors have none.
        """

    def split_values(self, sums: Int64, left: Int64, bounds: Float64) -> tuple[Float64, Float64, Float64]:
        """Gains of splits, and the values of their left and of their right children; `left` are the left ones' sums."""

    def best_per_node(self, stack: Stack, nodes: NodeBatch, slots: FeatureSlots, features: tuple[int, int],
                      members: tuple[int, int], into: SplitTable) -> None:  # fmt: skip
        """Find the best splits of some members of a stack among some features."""

    def best_of_level(self, histograms: Int64, nodes: NodeBatch, slots: FeatureSlots, features: tuple[int, int],
                      into: SplitTable) -> None:  # fmt: skip
        """Find the best split for all nodes among some features; its sums aside, it goes to the first row."""


@dataclass(frozen=True)
class ScalarScores:
    """`Scores` of trees of one output."""

    regular: Regular
    units: tuple[float, float]

    @property
    def least_h(self) -> float:
        return 2 * self.regular.least_h

    def leaf_values(self, sums: Int64, bounds: Float64) -> Float64:
        return kernels.leaf_weights(sums, self.units, self.regular, bounds)

    def split_values(self, sums: Int64, left: Int64, bounds: Float64) -> tuple[Float64, Float64, Float64]:
        return kernels.split_values(sums, left, self.units, self.regular, bounds)

    def best_per_node(self, stack: Stack, nodes: NodeBatch, slots: FeatureSlots, features: tuple[int, int],
                      members: tuple[int, int], into: SplitTable) -> None:  # fmt: skip
        kernels.best_per_node(stack, nodes, slots, features, members, np.array(self.units), self.regular, into)

    def best_of_level(self, histograms: Int64, nodes: NodeBatch, slots: FeatureSlots, features: tuple[int, int],
                      into: SplitTable) -> None:  # fmt: skip
        level_kernels.best_of_level(histograms, nodes, slots, features, np.array(self.units), self.regular, into)


@dataclass(frozen=True)
class VectorScores:
    """`Scores` of trees of several outputs, each child of which needs one that weighs enough, not both the same."""

    regular: Regular
    units: Float64

    @property
    def least_h(self) -> float:
        return self.regular.least_h

    def leaf_values(self, sums: Int64, bounds: Float64) -> Float64:
        return vector_kernels.vector_weights(sums, self.units, self.regular)

    def split_values(self, sums: Int64, left: Int64, bounds: Float64) -> tuple[Float64, Float64, Float64]:
        gain = vector_kernels.vector_gains(sums, left, self.units, self.regular)
        return gain, self.leaf_values(left, bounds), self.leaf_values(sums - left, bounds)

    def best_per_node(self, stack: Stack, nodes: NodeBatch, slots: FeatureSlots, features: tuple[int, int],
                      members: tuple[int, int], into: SplitTable) -> None:  # fmt: skip
        vector_kernels.best_per_node(stack, nodes, slots, features, members, self.units, self.regular, into)

    def best_of_level(self, histograms: Int64, nodes: NodeBatch, slots: FeatureSlots, features: tuple[int, int],
                      into: SplitTable) -> None:  # fmt: skip
        vector_kernels.best_of_level(histograms, nodes, slots, features, self.units, self.regular, into)


def scores_of(rules: SplitRules, units: Sequence[float]) -> Scores:
    """Return the scores of trees whose sums are worth `units`: of g and of h of one output after the other."""
    if len(units) > 2:
        return VectorScores(rules.regular, np.array(units))
    g, h = units
    return ScalarScores(rules.regular, (g, h))


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
        first_slot = int(layout.offsets[features[0]])
        self.entries = (first_slot * layout.width, int(layout.offsets[features[1]]) * layout.width)
        self._slots = FeatureSlots(layout.offsets, layout.n_bins, first_slot)
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
        best = self._level if self._rules.symmetric else self._per_node
        found = best(stacks, nodes, scores_of(self._rules, nodes.units))
        self._searched.drop(np.array(sorted(set(nodes.parents[nodes.parents >= 0].tolist())), np.int32))
        for stack in stacks:
            self._searched.put(nodes.ids[stack.rows], stack.histograms, stack.places)
        return found

    def _stacks(self, nodes: OpenNodes, built: Int64) -> list[Stack]:
        """The open nodes, by where their histograms come from: rows, or an array with their parents'."""
        place_of = np.full(int(nodes.ids.max()) + 2, -1, np.int64)  # what is built is open, or the sibling of such
        place_of[nodes.built] = np.arange(len(nodes.built))
        places = place_of[nodes.ids]
        direct, rest = np.flatnonzero(places >= 0), np.flatnonzero(places < 0)
        stacks = []
        if len(direct):
            stacks.append(Stack(direct, built, places[direct], built[:0], direct, built, direct))
        if not len(rest):
            return stacks
        sibling_places = place_of[sibling(nodes.ids[rest])]
        for same in self._searched.by_form(nodes.parents[rest]):
            ends = np.cumsum([len(which) for _, which, _ in same]).tolist()
            own = self._buffers.empty((ends[-1], *same[0][0].shape[1:]))
            for end, (parents, which, parent_places) in zip(ends, same, strict=True):
                own_places = np.arange(end - len(which), end)
                stacks.append(
                    Stack(rest[which], own, own_places, parents, parent_places, built, sibling_places[which])
                )
        return stacks

    def _per_node(self, stacks: list[Stack], nodes: OpenNodes, scores: Scores) -> Candidates:
        batch = nodes.batch

        def search(stack: Stack, features: tuple[int, int], members: tuple[int, int], into: SplitTable) -> None:
            scores.best_per_node(stack, batch, self._slots, features, members, into)

        if len(nodes) >= self._threads.count:
            found = _no_candidates(nodes.sums.shape, self._rules.set_words)
            table = found.table

            def best_of(low: int, high: int) -> None:
                start = 0
                for stack in stacks:
                    members = (max(low - start, 0), min(high - start, len(stack.rows)))
                    if members[0] < members[1]:
                        search(stack, self.features, members, table)
                    start += len(stack.rows)

            self._threads.run([partial(best_of, *r) for r in self._threads.ranges(len(nodes), least=1)])
            return found

        def best_among(features: tuple[int, int]) -> Candidates:
            own = _no_candidates(nodes.sums.shape, self._rules.set_words)
            for stack in stacks:
                search(stack, features, (0, len(stack.rows)), own.table)
            return own

        return combine(self._threads.run([partial(best_among, r) for r in self._feature_ranges()]))

    def _level(self, stacks: list[Stack], nodes: OpenNodes, scores: Scores) -> Candidates:
        histograms, level, (n_nodes, n_sums) = joined(stacks), nodes.level, nodes.sums.shape

        def best_among(features: tuple[int, int]) -> Candidates:
            own = _no_candidates((1, n_sums), self._rules.set_words)
            scores.best_of_level(histograms, level, self._slots, features, own.table)
            return own

        best = combine(self._threads.run([partial(best_among, r) for r in self._feature_ranges()]))
        found = Candidates(*(np.repeat(getattr(best, each.name), n_nodes, axis=0) for each in fields(Candidates)))
        if best.feature[0] >= 0:
            width = self._layout.width
            for k in range(width):
                of_output = slice(2 * k, 2 * k + 2)
                level_kernels.left_sums(
                    histograms[:, k::width], self._slots, nodes.sums[:, of_output], best.table, found.left[:, of_output]
                )
        return found

    def _feature_ranges(self) -> list[tuple[int, int]]:
        first, last = self.features
        return [(first + a, first + b) for a, b in self._threads.ranges(last - first, least=1)]


def sibling(nodes: Int32) -> Int32:
    """The other children of the nodes' parents: children are numbered in pairs, left odd, right even."""
    return nodes - 1 + 2 * (nodes % 2)
