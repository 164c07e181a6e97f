"""The best splits in histograms that lie on a GPU: launches of `kernels/split.cu` and `split_level.cu`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from daskboost.devices.cpu.split import Regular
from daskboost.devices.cpu.split_sets import SetRules
from daskboost.devices.gpu.rows.views import DeviceLayout
from daskboost.devices.gpu.runtime.collective import Collective
from daskboost.devices.gpu.runtime.launches import (
    DeviceArray,
    KernelArgument,
    Runtime,
    Shapes,
    make_arrays,
    to_device,
)
from daskboost.devices.gpu.trees.split_sets import LevelNodes, SetKernels, level_nodes, set_shapes
from daskboost.devices.gpu.trees.vector_sets import VectorNodes, VectorSetKernels, vector_set_shapes
from daskboost.dtypes import Float64, Int32, Int64, UInt8, UInt64

THREADS = 128
"""Threads of a block, as in the kernels."""
NODE_THREADS = 256
"""Threads of a block, as in `kernels/split.cu`."""
FEW_FEATURES, FEW_THREADS = 128, 256
"""A feature of a tree's level is a block of `kernels/split_level.cu`: of so few, larger ones, to be as many threads."""
LEVEL_BINS = 32
"""Bins of a block at a time, as there."""
LEVEL_BLOCKS = 256
"""Blocks from which a GPU is busy: of fewer features, several look at each."""
MOST_BLOCKS = 8
"""So many look at a feature, at most."""
WARP = 32
RESULTS = 6
"""Numbers of a result: gain (its bits), feature, bin, default left, sums of g and h on the left."""


@dataclass(frozen=True)
class Level:
    """Nodes to search, in the device's memory; arrays of shape (nodes, ...)."""

    own: DeviceArray
    """uint64: address of each node's histogram; 0 for a node that is not there."""
    parents: DeviceArray
    """uint64: address of its parent's histogram; 0 where rows have built its own."""
    siblings: DeviceArray
    """uint64: address of its sibling's histogram; 0 where `own` is to become a copy of what is at `parents`."""
    sums: DeviceArray
    """int64, shape (nodes, 2)."""
    bounds: DeviceArray
    """float64, shape (nodes, 2)."""
    allowed: DeviceArray
    """uint8, shape (lists, features)."""
    per_list: int
    """Nodes that share a list of allowed features."""
    units: DeviceArray
    """float64: first of each tree, what a quantum of g and of h is worth."""
    per_tree: int
    """Nodes of a tree; all trees have as many."""
    units_stride: int = 2
    """Numbers of a tree in `units`."""
    steps: DeviceArray | None = None
    """uint64, shape (3, nodes), where leaves are vectors: bytes from an output's histogram at `own`, at `parents` and
    at `siblings` to the next output's."""
    keeps: bool = True
    """Whether histograms that rows have not built are written to `own`: their nodes' children will need them."""

    def of(self, nodes: slice) -> Level:
        """Return some of the nodes: those of some trees, or some of a single tree; all of them, where leaves have
        several outputs."""
        if nodes == slice(0, self.n_nodes):
            return self
        trees, lists = (
            slice(nodes.start // each, -(-nodes.stop // each)) for each in (self.per_tree, self.per_list)
        )
        return replace(
            self, own=self.own[nodes], parents=self.parents[nodes], siblings=self.siblings[nodes],
            sums=self.sums[nodes], bounds=self.bounds[nodes], allowed=self.allowed[lists], units=self.units[trees],
        )  # fmt: skip

    @property
    def n_nodes(self) -> int:
        return len(self.own)

    @property
    def list_stride(self) -> int:
        """Features from a node's list to the next node's, of a single tree whose nodes share one or have one each."""
        return 0 if self.per_list >= self.n_nodes else self.allowed.shape[1]

    @property
    def n_trees(self) -> int:
        return self.n_nodes // self.per_tree


@dataclass(frozen=True)
class HostNodes:
    """Nodes to search, in the host's memory; arrays of shape (..., nodes)."""

    addresses: UInt64
    """Addresses of the first output's histogram of each node, of its parent, which is 0 where rows have built the
    node's own, and of its sibling; shape (3, nodes)."""
    steps: UInt64
    """Bytes from there to the next output's; shape (3, nodes)."""
    sums: Int64
    """Shape (nodes, 2 * outputs)."""
    bounds: Float64
    """Shape (nodes, 2), of trees of one output."""
    allowed: UInt8
    """Shape (nodes or 1, features)."""
    units: Float64
    """Shape (2 * outputs,)."""


SearchRoom = Mapping[str, DeviceArray]
"""Arrays of a search, of as many nodes as it has or more: `search_shapes`."""


@dataclass(frozen=True)
class FeatureShare:
    """The features that one of several GPUs searches, as neighbours of all."""

    all_features: DeviceLayout
    joined: Collective
    """Joins the GPUs."""
    firsts: Sequence[int]
    """First feature of each GPU's share, in their order."""


def search_shapes(n_nodes: int, n_features: int, n_slots: int, n_trees: int = 0) -> Shapes:
    """Return the shapes of a search's arrays.

    `n_trees` : of trees each level of which has one split, which takes more; 0 of others.
    """
    results: Shapes = {"results": ((n_nodes, RESULTS), np.int64)}
    if not n_trees:
        return {**results, "tops": ((n_nodes, n_features), np.float64)}
    n_found = max(n_trees * n_features, LEVEL_BLOCKS)  # of a block each
    return {
        **results, "prefix": ((n_nodes, n_slots, 2), np.int64),
        "gains": ((n_found,), np.float64), "places": ((n_found,), np.int32),
    }  # fmt: skip


def blocks_of_feature(n: int, most_bins: int) -> int:
    """Return how many blocks look at each of `n` features of a level."""
    return max(1, min(LEVEL_BLOCKS // n, MOST_BLOCKS, -(-most_bins // LEVEL_BINS)))


@dataclass
class SplitKernels:
    """Searches all features of histograms in one GPU's memory, or a share of them together with other GPUs, all of
    which learn what each of them has found."""

    layout: DeviceLayout
    """Where the features lie that are searched here."""
    share: FeatureShare | None = None
    """None where these are all."""
    sets: SetKernels | None = None
    """What splits features of codes; None where there are none, or this is not said yet (`with_sets`)."""
    set_kernels: ClassVar[type[SetKernels]] = SetKernels
    """What `with_sets` makes."""
    _monotone: tuple[Int32, DeviceArray] | None = field(default=None, init=False)
    _allowed: tuple[bytes, DeviceArray] | None = field(default=None, init=False)

    @property
    def runtime(self) -> Runtime:
        return self.layout.runtime

    def with_sets(self, rules: SetRules) -> SplitKernels:
        """Return kernels of the same layout that split some features by sets; the same ones where there are none."""
        if not len(rules.is_code):
            return self
        return replace(self, sets=self.set_kernels(self.layout.runtime, self.layout.host.n_bins, rules))

    def search(self, nodes: HostNodes, regular: Regular, *, symmetric: bool) -> tuple[DeviceArray, DeviceArray | None]:
        """Return each node's best split, or with `symmetric` the one that gains most over all, and the lists of those
        that split by sets.

        int64, shape (nodes, RESULTS - 2 + 2 * outputs), on the device: as `RESULTS`, with the sums of all outputs. See
        `set_shapes` for the lists.
        """
        search = self.best_of_level if symmetric else self.best_per_node
        room = self.room(len(nodes.sums), int(symmetric))
        return search(self.upload(nodes), regular, room), room.get("sets")

    def room(self, n_nodes: int, n_trees: int = 0) -> SearchRoom:
        """Return arrays for searches of up to so many nodes, one after the other; see `search_shapes`."""
        layout = self.layout.host
        of_sets = {} if self.sets is None else set_shapes(self.sets.sizes, n_nodes, layout.n_slots, n_trees)
        return self._made({**search_shapes(n_nodes, len(layout.n_bins), layout.n_slots, n_trees), **of_sets})

    def result_room(self, n_nodes: int) -> SearchRoom:
        """Return the part of such arrays that has what searches find, for those that have other arrays of their own."""
        return self._made({"results": ((n_nodes, RESULTS), np.int64)})

    def _made(self, shapes: Shapes) -> SearchRoom:
        """Make the arrays of a search, and what other GPUs find."""
        if self.share is not None:
            shape, dtype = shapes["results"]
            shapes = {**shapes, "found": ((len(self.share.firsts), *shape), dtype)}
        return make_arrays(self.runtime, shapes)

    @property
    def set_width(self) -> int:
        """Numbers of a set of bins (`bin_lists.py`); 0 where no feature is split by sets."""
        return 0 if self.sets is None else self.sets.sizes.width

    def set_room(self, room: SearchRoom, nodes: slice) -> SearchRoom:
        """Return where the lists of some of a search's nodes lie."""
        return {} if self.sets is None else {"sets": room["sets"][nodes]}

    def gather_sets(self, joined: Collective, room: SearchRoom, nodes: slice) -> None:
        """Enqueue: every GPU has the lists of all nodes, of which each has found those of an equal share."""
        if self.sets is not None:
            own = room["sets"][nodes].view(np.int64)
            joined.gather(own, room["sets"][: len(own) * joined.n_members].view(np.int64).reshape(-1, *own.shape))

    def keep_sets(self, nodes: DeviceArray, results: DeviceArray, room: SearchRoom, kept: DeviceArray | None) -> None:
        """Enqueue: nodes whose best splits are sets have these in `kept`, shape (nodes, set_width); `nodes` : int32, of
        each slot of a search, -1 of those that are left out."""
        if self.sets is not None and kept is not None:
            self.sets.keep(nodes, results, room["sets"], kept)

    @property
    def all_bins(self) -> DeviceArray:
        """Bins of every feature, of whichever GPU."""
        return (self.layout if self.share is None else self.share.all_features).n_bins

    def found(self, results: DeviceArray, room: SearchRoom) -> tuple[KernelArgument, ...]:
        """Enqueue: all GPUs learn the best splits that each has found. Return these as kernels take them that choose
        among them (`kernels/feature_shares.cuh`): null where one GPU searches all features."""
        if self.share is None:
            return None, None, 1
        n_shares = len(self.share.firsts)
        found = room["found"].reshape(-1)[: n_shares * results.size].reshape(n_shares, *results.shape)
        self.share.joined.gather(results, found)
        return found, self._firsts, n_shares

    @cached_property
    def _firsts(self) -> DeviceArray:
        assert self.share is not None
        return to_device(self.runtime, np.array(self.share.firsts, np.int32))

    def own_of(self, of_features: DeviceArray) -> DeviceArray:
        """Return the part of what each feature has, in a last axis, that is of those that are searched here."""
        if self.share is None:
            return of_features
        first, n = self.layout.features
        found: DeviceArray = self.runtime.xp.ascontiguousarray(of_features[..., first : first + n])
        return found

    def here(self, level: Level) -> Level:
        """Return a level as it is searched here."""
        return level if self.share is None else replace(level, allowed=self.own_of(level.allowed))

    @property
    def node_words(self) -> int:
        """Words of a node's histograms, of all outputs."""
        return 2 * self.layout.host.n_slots * self.layout.host.width

    def histograms(self, memory: DeviceArray, first: int, n_nodes: int) -> DeviceArray:
        """Return those of nodes from a place on, as `empty_histograms` gives them, in memory of int64."""
        own, layout = memory[first * self.node_words : (first + n_nodes) * self.node_words], self.layout.host
        found: DeviceArray = own.reshape(layout.width, n_nodes, layout.n_slots, 2).transpose(1, 2, 0, 3)
        return found

    def steps(self, n_nodes: int, own: DeviceArray, parents: DeviceArray) -> DeviceArray | None:
        """Return the `Level.steps` of a level of so many nodes, by histograms of its own nodes and of their parents."""
        return None

    def upload(self, nodes: HostNodes) -> Level:
        """The nodes of one tree, in one copy."""
        n, allowed = len(nodes.sums), nodes.allowed
        numbers = [*nodes.addresses, nodes.sums, np.ascontiguousarray(nodes.bounds), nodes.units]
        packed = to_device(self.runtime, np.concatenate([np.ravel(part).view(np.int64) for part in numbers]))
        own, parents, siblings = (packed[i * n : (i + 1) * n].view(np.uint64) for i in range(3))
        floats = packed[5 * n :].view(np.float64)
        per_list = n if len(allowed) == 1 else 1
        return Level(
            own, parents, siblings, packed[3 * n : 5 * n], floats[: 2 * n], self.allowed_of(allowed), per_list,
            floats[2 * n :], n,
        )  # fmt: skip

    def best_per_node(self, level: Level, regular: Regular, room: SearchRoom) -> DeviceArray:
        """Each node's best split; int64, shape (nodes, RESULTS), in `room`."""
        results, level = room["results"][: level.n_nodes], self.here(level)
        self.runtime.kernel("split", "best_of_nodes")(
            level.n_nodes, NODE_THREADS, *self._searched(level, regular), int(level.keeps),
            self.tops_of_features(level, regular, room), int(regular.is_rough), results,
        )  # fmt: skip
        if self.sets is not None:
            self.sets.search((*self._searched(level, regular), int(level.keeps)), level.own, room, results)
        return results

    def tops_of_features(self, level: Level, regular: Regular, room: SearchRoom) -> DeviceArray:
        """The largest gain of every feature, roughly where `regular.is_rough`; float64, shape (nodes, features)."""
        n, n_features = level.n_nodes, len(self.layout.host.n_bins)
        tops = room["tops"][:n]
        blocks = -(-n // 2) * -(-n_features * 2 * WARP // THREADS)  # of two nodes and as many features
        self.runtime.kernel("split", "rough_of_features" if regular.is_rough else "best_of_features")(
            blocks, THREADS, *self._searched(level, regular), int(level.keeps), tops
        )
        return tops

    def best_of_level(self, level: Level, regular: Regular, room: SearchRoom) -> DeviceArray:
        """For each tree the one split that gains most over all its nodes; int64, shape (nodes, RESULTS), in `room`."""
        n, n_trees, layout, level = level.n_nodes, level.n_trees, self.layout, self.here(level)
        n_features, prefix, results = len(layout.host.n_bins), room["prefix"][:n], room["results"][:n]
        shape = (layout.offsets, layout.n_bins, n_features)
        n_blocks = blocks_of_feature(n_trees * n_features, int(layout.host.n_bins.max()))
        threads = FEW_THREADS if n_trees * n_features <= FEW_FEATURES else THREADS

        def launch(entry: str, blocks: int, *arguments: KernelArgument) -> None:
            kernel = self.runtime.kernel("split_level", entry, THREADS=threads)
            kernel(blocks, threads, prefix, *arguments)

        launch(
            "sum_bins", -(-n * n_features * WARP // threads), level.own, level.parents, level.siblings, *shape,
            self._is_code, n, int(level.keeps),
        )  # fmt: skip
        found, searched = (n_blocks, room["gains"], room["places"]), self._searched(level, regular)
        launch("best_of_features", n_trees * n_features * n_blocks, *searched, *found)
        launch("best_of_level", n_trees, level.own, level.sums, *shape, level.per_tree, *found, results)
        if self.sets is not None:
            nodes = LevelNodes(
                level.own, level.allowed, level.per_list, level.per_tree, layout.n_bins, layout.host.n_slots
            )
            of_levels = self._searched(self._whole(level, room, self.sets), regular)
            self.sets.search_level(nodes, (*searched, int(level.keeps)), (*of_levels, 0), room, results)
        return results

    def _whole(self, level: Level, room: SearchRoom, sets: SetKernels) -> Level:
        """Return a node for each tree, which has the sums of all of the tree's; all features of codes are allowed."""
        own, nobody = level_nodes(room, level.n_trees)
        return replace(
            level, own=own, parents=nobody, siblings=nobody, allowed=sets.is_code[None], per_list=level.n_trees,
            per_tree=1,
        )  # fmt: skip

    @property
    def _is_code(self) -> DeviceArray | None:
        """Whether sets split each feature, as kernels take it; None where they split none."""
        return None if self.sets is None else self.sets.is_code

    def _searched(self, level: Level, regular: Regular) -> tuple[Any, ...]:
        """The arguments that the searching kernels share (`kernels/searched.cuh`)."""
        return (
            level.own, level.parents, level.siblings, level.sums, level.bounds, level.allowed, level.per_list,
            level.units, level.per_tree, level.units_stride, self.layout.offsets, self.layout.n_bins,
            self.own_of(self.monotone_of(regular)), self._is_code,
            len(self.layout.host.n_bins), level.n_nodes,
            *regular.numbers, int(regular.plain),
        )  # fmt: skip

    def allowed_of(self, allowed: UInt8) -> DeviceArray:
        """On the GPU; the last one is kept, since most trees allow every node the same features."""
        key = allowed.tobytes()
        if self._allowed is None or self._allowed[0] != key:
            self._allowed = (key, to_device(self.runtime, allowed))
        return self._allowed[1]

    def monotone_of(self, regular: Regular) -> DeviceArray:
        """Its directions on the device; those of the last fit are kept."""
        if self._monotone is None or self._monotone[0] is not regular.monotone:
            self._monotone = (regular.monotone, to_device(self.runtime, regular.monotone))
        return self._monotone[1]


def empty_histograms(runtime: Runtime, n_nodes: int, n_slots: int, width: int) -> DeviceArray:
    """Histograms of `width` outputs; int64, shape (nodes, slots, width, 2).

    They lie output by output in memory, so that each output's are those of a single one.
    """
    found: DeviceArray = runtime.xp.empty((width, n_nodes, n_slots, 2), np.int64).transpose(1, 2, 0, 3)
    return found


# The best splits for leaves that are vectors, in histograms on a GPU: launches of `kernels/split_vectors.cu`.

def n_chunks(n_slots: int, n_features: int) -> int:
    """Places of the sums before chunks of bins, of one node and output."""
    return n_slots // WARP + 2 * n_features


def vector_shapes(n_nodes: int, n_features: int, n_slots: int, width: int, *, symmetric: bool) -> Shapes:
    """Return the shapes of the arrays of a search for vectors of `width` outputs."""
    rows = 1 if symmetric else n_nodes
    return {
        "sums_before": ((n_nodes, n_chunks(n_slots, n_features), width, 2), np.int64),
        "gains": ((rows, n_features), np.float64), "places": ((rows, n_features), np.int32),
        "results": ((n_nodes, RESULTS - 2 + 2 * width), np.int64),
    }  # fmt: skip


class VectorKernels(SplitKernels):
    """Searches the histograms of several outputs."""

    sets: VectorSetKernels | None
    set_kernels = VectorSetKernels

    def room(self, n_nodes: int, n_trees: int = 0) -> SearchRoom:
        layout, symmetric = self.layout.host, n_trees > 0
        of_sets: Shapes = {}
        if self.sets is not None:
            of_sets = vector_set_shapes(self.sets.sizes, n_nodes, layout.n_slots, layout.width, symmetric=symmetric)
        shapes = vector_shapes(n_nodes, len(layout.n_bins), layout.n_slots, layout.width, symmetric=symmetric)
        return self._made({**shapes, **of_sets})

    def steps(self, n_nodes: int, own: DeviceArray, parents: DeviceArray) -> DeviceArray | None:
        of_all = np.array([[each.strides[2]] for each in (own, parents, own)], np.uint64)
        return to_device(self.runtime, np.repeat(of_all, n_nodes, axis=1))

    def upload(self, nodes: HostNodes) -> Level:
        numbers = [*nodes.addresses, nodes.steps, np.ascontiguousarray(nodes.sums), nodes.units]
        packed = to_device(self.runtime, np.concatenate([np.ravel(part).view(np.int64) for part in numbers]))
        n, ends, found = len(nodes.sums), np.cumsum([part.size for part in numbers]), []
        for end, part in zip(ends.tolist(), numbers, strict=True):
            found.append(packed[end - part.size : end].view(part.dtype))
        own, parents, siblings, steps, sums, units = found
        per_list, bounds = n if len(nodes.allowed) == 1 else 1, sums[:0].view(np.float64)  # vectors have none
        return Level(
            own, parents, siblings, sums, bounds, self.allowed_of(nodes.allowed), per_list, units, n,
            steps=steps.reshape(3, n),
        )  # fmt: skip

    def best_per_node(self, level: Level, regular: Regular, room: SearchRoom) -> DeviceArray:
        return self._best(level, regular, room, level.n_nodes * len(self.layout.host.n_bins), "best_of_features")

    def best_of_level(self, level: Level, regular: Regular, room: SearchRoom) -> DeviceArray:
        return self._best(level, regular, room, len(self.layout.host.n_bins), "best_of_level_features")

    def _best(self, level: Level, regular: Regular, room: SearchRoom, n_found: int, entry: str) -> DeviceArray:
        """Find the best splits of nodes, by the gains of all outputs; `entry` : what finds those of `n_found` features
        and nodes."""
        runtime, layout, steps, n, level = self.runtime, self.layout, level.steps, level.n_nodes, self.here(level)
        assert steps is not None
        width, n_features = layout.host.width, len(layout.host.n_bins)
        sums_before, gains, places = (room[name] for name in ("sums_before", "gains", "places"))
        results, shape = room["results"][:n], (layout.offsets, layout.n_bins, n_features)

        def launch(entry: str, grid: int, *arguments: KernelArgument) -> None:
            runtime.kernel("split_vectors", entry)(grid, THREADS, *arguments)

        launch(
            "sum_chunks", -(-n * n_features * width * WARP // THREADS), level.own, steps[0], level.parents, steps[1],
            level.siblings, steps[2], *shape, width, n, sums_before,
        )  # fmt: skip
        searched = (
            level.own, steps[0], level.sums, level.allowed, level.per_list, level.units, level.units_stride, width,
            layout.offsets, layout.n_bins, self._is_code, n_features, n, *regular.numbers, int(regular.plain),
            sums_before,
        )  # fmt: skip
        launch(entry, n_found, *searched, gains, places)
        is_level = entry == "best_of_level_features"
        launch(
            "best_of_nodes", n, level.own, steps[0], level.sums, *shape, width, sums_before, gains, places,
            int(is_level), results,
        )  # fmt: skip
        if self.sets is not None:
            nodes = VectorNodes(
                level.own, steps[0], level.allowed, level.per_list, n if is_level else 1, level.units,
                level.units_stride, layout, searched,
            )  # fmt: skip
            self.sets.search_vectors(nodes, regular, room, results)
        return results
