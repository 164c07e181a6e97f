"""Whole trees on a GPU: levels of known size, so that no launch waits for the host (`kernels/grow.cu`).

The definition of a tree stays `tree/growing_tree.py` and the coordinator's loop over it, which serve all devices, any
number of engines and all rules. What is here grows the same trees, node by node.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskboost.devices.cpu.split import Regular
from daskboost.devices.gpu.rows.row_state import ChunkRows
from daskboost.devices.gpu.rows.views import SetMasks, WalkColumns
from daskboost.devices.gpu.runtime.cuda import address_of
from daskboost.devices.gpu.runtime.launches import (
    DeviceArray,
    Kernel,
    Recorder,
    Runtime,
    Shapes,
    bytes_of,
    make_arrays,
)
from daskboost.devices.gpu.trees.entry_search import EntrySearch
from daskboost.devices.gpu.trees.node_features import LevelFeatures, NodeRules, TreeNodes, make_features
from daskboost.devices.gpu.trees.split import Level, SearchRoom, SplitKernels
from daskboost.devices.gpu.trees.split_sets import set_masks

THREADS = 256
"""Threads of a block, as in `kernels/grow.cu`."""
START_BYTES = 4
"""Bytes of a node in a map of tiles (`feature_groups.map_tiles`)."""
STEP_BYTES = 3 * 8
"""Bytes of a node in `Level.steps`."""
ROUNDING = 5
"""Numbers of a tree's rounding, as in `kernels/tree_table.cuh`."""


@dataclass(frozen=True)
class LevelSizes:
    """Nodes that trees have room for."""

    depth: int
    """Most splits from the root to a leaf, at least 1."""
    most_leaves: int
    """No level has more nodes than the tree may have leaves."""

    def at(self, depth: int) -> int:
        """Return the nodes that a level has room for: below the root an even number, as they come in pairs."""
        return min(1 << depth, self.most_leaves + self.most_leaves % 2)

    @property
    def searched(self) -> int:
        """Most nodes that are searched together."""
        return self.at(self.depth - 1)

    @property
    def capacity(self) -> int:
        """Most nodes of a tree."""
        return 2 * self.most_leaves - 1

    @property
    def histograms(self) -> tuple[int, int]:
        """Histograms of two levels, those of even and those of odd depth, while the deeper one is searched."""
        nodes = [self.at(depth) for depth in range(self.depth)]
        return max(nodes[0::2]), max(nodes[1::2], default=0)


@dataclass(frozen=True)
class GrowthRules:
    """How trees grow."""

    regular: Regular
    symmetric: bool
    """One split for all nodes of a level."""
    levels: LevelSizes
    max_leaves: int
    """0 for any number."""
    gamma: float
    """Least gain of a split."""
    of_nodes: NodeRules | None
    """What makes features of nodes others than their level's; None where nothing does."""
    leaf_terms: int = 0
    """Most features of a leaf's model; 0 where leaves are constant."""


class TreeTables:
    """The nodes of trees that grow together, as views of one piece of memory, so that a single copy fetches them.

    Parameters
    ----------
    memory : uint8 array of shape (..., tables_bytes(n_trees, capacity, width, set_width))
        Of the device or of the host; the views have the same first axes, those of rounds.
    n_trees, capacity : int
    width : int, default 1
        Outputs of a tree: several where leaves are vectors.
    set_width : int, default 0
        Numbers of a set of bins; 0 where no feature is split by sets.
    n_terms : int, default 0
        Features of a leaf's model; 0 where leaves are constant.
    """

    def __init__(self, memory: DeviceArray, n_trees: int, capacity: int, width: int = 1, set_width: int = 0,
                 n_terms: int = 0) -> None:  # fmt: skip
        self.memory, self.capacity, self.set_width, self.n_terms = memory, capacity, set_width, n_terms
        views = _cut(memory, _table_shapes(n_trees, capacity, width, set_width, n_terms))
        self.sums = views["sums"]
        """Sums of g and h of one output after the other; int64, shape (trees, capacity, 2 * width)."""
        self.limits = views["limits"]
        """Limits of the leaf value under monotone constraints; float64, shape (trees, capacity, 2)."""
        self.gains = views["gains"]
        """float64, shape (trees, capacity)."""
        self.rounding = views["rounding"]
        """What a quantum of g and of h is worth, the largest |g| and h, and the gain of noise; float64, shape
        (trees * width, ROUNDING)."""
        self.links = views["links"]
        """Parent, depth, left and right child, feature, bin; int32, shape (trees, 6, capacity)."""
        self.values = views["values"]
        """float32, shape (trees, capacity * width), all outputs of a node one after the other."""
        self.sizes = views["sizes"]
        """Nodes and leaves; int32, shape (trees, 2)."""
        self.default_left = views["default_left"]
        """uint8, shape (trees, capacity)."""
        self.sets = views["sets"]
        """Lists of the nodes that split by sets (`bin_lists.py`); int32, shape (trees, capacity, set_width)."""
        self.terms = views["terms"]
        """Features of the models of leaves, -1 behind them; int32, shape (trees, capacity, n_terms)."""
        self.slopes = views["slopes"]
        """What a row adds for each step of its position; float32, shape as of `terms`."""
        self.masks: SetMasks | None = None
        """Where a walk has room for the sets of a tree by slot."""

    @property
    def node_sets(self) -> DeviceArray | None:
        """Return the lists by node, counted over all trees; None where no feature is split by sets."""
        return self.sets.reshape(-1, self.set_width) if self.set_width else None

    def at(self, nodes: DeviceArray, per_tree: int) -> TreeNodes:
        """Return nodes of these trees, so many of each."""
        return TreeNodes(nodes, per_tree, self.capacity, self.links)

    @property
    def walk_columns(self) -> WalkColumns:
        """The trees as `views.walk_trees` takes them."""
        links = (self.links[:, column] for column in range(2, 6))
        columns = (*links, self.default_left, self.values)
        models = (self.terms, self.slopes) if self.n_terms else None
        return WalkColumns.of(columns, self.sets if self.set_width else None, models)._replace(masks=self.masks)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arrays as kernels take them (`TREES`)."""
        nodes = (self.links, self.sums, self.limits, self.gains, self.default_left)
        return (self.capacity, self.sizes, *nodes, self.rounding)


def _table_shapes(n: int, capacity: int, width: int, set_width: int, n_terms: int) -> Shapes:
    """Return the shapes of the arrays of `TreeTables`; the widest types come first, so that all are aligned."""
    return {
        "sums": ((n, capacity, 2 * width), np.int64), "limits": ((n, capacity, 2), np.float64),
        "gains": ((n, capacity), np.float64), "rounding": ((n * width, ROUNDING), np.float64),
        "links": ((n, 6, capacity), np.int32), "values": ((n, capacity * width), np.float32),
        "sizes": ((n, 2), np.int32), "sets": ((n, capacity, set_width), np.int32),
        "terms": ((n, capacity, n_terms), np.int32), "slopes": ((n, capacity, n_terms), np.float32),
        "default_left": ((n, capacity), np.uint8),
    }  # fmt: skip


def _cut(memory: DeviceArray, shapes: Shapes) -> dict[str, DeviceArray]:
    """Return arrays that lie one after the other."""
    views: dict[str, DeviceArray] = {}
    begin = 0
    for name, shape in shapes.items():
        end = begin + bytes_of({name: shape})
        views[name] = memory[..., begin:end].view(shape[1]).reshape(*memory.shape[:-1], *shape[0])
        begin = end
    return views


def tables_bytes(n_trees: int, capacity: int, width: int = 1, set_width: int = 0, n_terms: int = 0) -> int:
    """Size of the memory of `TreeTables`."""
    return bytes_of(_table_shapes(n_trees, capacity, width, set_width, n_terms))


def make_tables(runtime: Runtime, n_trees: int, capacity: int, width: int = 1, set_width: int = 0, n_terms: int = 0
                ) -> TreeTables:  # fmt: skip
    """On the device."""
    memory = runtime.xp.zeros(tables_bytes(n_trees, capacity, width, set_width, n_terms), np.uint8)
    return TreeTables(memory, n_trees, capacity, width, set_width, n_terms)


@dataclass(frozen=True)
class TreeInputs:
    """What differs from tree to tree, in device memory that others write; arrays of one row per tree, or per output of
    a tree whose leaves are vectors."""

    root_sums: DeviceArray
    """int64, shape (outputs, 2): sums of g and h over all rows."""
    rounding: DeviceArray
    """float64, shape (outputs, ROUNDING), of any row stride: see `TreeTables.rounding`."""
    learning_rate: DeviceArray
    """float64, shape (1,)."""
    features: LevelFeatures


@dataclass(frozen=True)
class Around:
    """What is launched around the growth of trees, with which it is recorded."""

    before: Callable[[], None]
    """Puts all rows into the roots and writes `TreeInputs`."""
    after: Callable[[], None]
    """Finds the finished trees in the grower's tables."""
    beside: Callable[[], None]
    """May run while the trees grow: it sees what there was before, and its end comes before `after`."""


class TreeGrower:
    """Grows trees over all rows of one chunk, several at a time if there are several outputs, or one at a time whose
    leaves are vectors of all outputs.

    Parameters
    ----------
    kernels : SplitKernels
    rules : GrowthRules
    n_trees : int
    larger : TreeGrower, optional
        One of more trees, whose memory of histograms and searches is used again.
    entries : EntrySearch, optional
        What finds splits of a single tree without histograms.
    """

    def __init__(self, kernels: SplitKernels, rules: GrowthRules, n_trees: int, larger: TreeGrower | None = None,
                 entries: EntrySearch | None = None) -> None:  # fmt: skip
        levels, capacity, self._width = rules.levels, rules.levels.capacity, kernels.layout.host.width
        self._kernels, self._runtime, self._rules, self._n_trees = kernels, kernels.runtime, rules, n_trees
        self._sizes = levels
        self._entries = entries
        self.tables = make_tables(
            self._runtime, n_trees, capacity, self._width, kernels.set_width, rules.leaf_terms
        )  # fmt: skip
        """The finished trees."""
        self._features = make_features(
            self._runtime, rules.of_nodes, n_trees, capacity, n_trees * levels.searched
        )
        self.leaves = make_arrays(self._runtime, _leaf_shapes(n_trees, levels))["leaves"]
        """The trees' leaves, by numbers of nodes over all trees, and -1 behind them; int32, shape (trees, leaves)."""
        n_nodes = [n_trees * n for n in levels.histograms]
        self._room: SearchRoom = {}
        """Arrays that the searches of all levels take in turn."""
        if entries is not None:
            self._histograms, self._room = [], entries.room
        elif larger is None:
            self._histograms = [self._runtime.xp.empty(n * kernels.node_words, np.int64) for n in n_nodes]
            self._room = kernels.room(n_trees * levels.searched, n_trees * rules.symmetric)
        else:
            self._histograms = larger._histograms
            self._room = larger._room
        self.tables.masks = set_masks(self._room, self.tables.sizes, capacity)
        shapes = [_level_shapes(n_trees, levels.at(depth), self._width) for depth in range(levels.depth + 1)]
        self._levels = [_TreeLevel(**make_arrays(self._runtime, each)) for each in shapes]
        self._steps = [self._make_steps(depth) for depth in range(levels.depth)]

    def grow(self, inputs: TreeInputs, rows: ChunkRows, queue: Recorder, name: Hashable, around: Around) -> None:
        """Queue up, under a name that says which arrays it works on, all launches from the roots to the leaves' values.

        Rows are not moved to the nodes of the last level, but to walk there, unless they are to reach the leaves.
        """
        queue.expect(rows.reserve(self._n_trees * self._sizes.capacity, self._n_trees * self._sizes.searched))

        def launch() -> None:
            with self._runtime.beside(around.beside):
                around.before()
                self._grow(inputs, rows)
            around.after()

        queue(name, launch)

    def _grow(self, inputs: TreeInputs, rows: ChunkRows) -> None:
        self._start(inputs)
        for depth in range(self._sizes.depth):
            self._choose(depth, self._search(depth, inputs.features, rows))
            if depth + 1 < self._sizes.depth or rows.reaches_leaves:
                rows.split(self._levels[depth].splits, self.tables.node_sets)
        self._finish(inputs.learning_rate)

    def _places(self, depth: int) -> tuple[DeviceArray, DeviceArray]:
        """Histograms of a level that rows build, and those that are parents' less siblings'."""
        half, memory, cut = len(self._levels[depth].built), self._histograms[depth % 2], self._kernels.histograms
        return cut(memory, 0, half), cut(memory, half, half if depth else 0)

    def _make_steps(self, depth: int) -> DeviceArray | None:
        """Return the `Level.steps` of a level; sorted entries have none."""
        if self._entries is not None:
            return None
        own, parents = (self._places(each)[0] for each in (depth, max(depth - 1, 0)))
        return self._kernels.steps(len(self._levels[depth].nodes), own, parents)

    def _addresses(self, depth: int) -> tuple[int, int, int]:
        """Return the addresses of the first histograms of either kind, and bytes from one to the next. Where there are
        none, and below the last level, any address but 0 says that a node is there."""
        if self._entries is not None or depth == self._sizes.depth:
            return 1, 1, 0
        built, derived = self._places(depth)
        return address_of(built), address_of(derived), node_bytes(built)

    def _start(self, inputs: TreeInputs) -> None:
        rules, root = self._rules, self._levels[0]
        address, _, n_bytes = self._addresses(0)
        self._launch("start_trees")(
            self._n_trees, THREADS, self._width, *self.tables.arguments, *root.arguments, inputs.root_sums,
            _row_stride(inputs.root_sums), inputs.rounding, _row_stride(inputs.rounding), int(rules.max_leaves != 1),
            rules.regular.least_h, int(rules.symmetric), address, n_bytes, root.built,
        )  # fmt: skip

    def _search(self, depth: int, features: LevelFeatures, rows: ChunkRows) -> DeviceArray:
        """The best split of each node of a level, or of all of them together, among the features that are searched
        here."""
        slots, per_tree = self._levels[depth], self._sizes.at(depth)
        lists = self._features.allowed(features, depth, self.tables.at(slots.nodes, per_tree))
        level = Level(
            slots.addresses[0], slots.addresses[1], slots.addresses[2], slots.sums, slots.bounds,
            *lists, self.tables.rounding, per_tree, units_stride=ROUNDING, steps=self._steps[depth],
            keeps=depth + 1 < self._sizes.depth,
        )  # fmt: skip
        regular, is_root = self._rules.regular, depth == 0
        if self._entries is not None:
            return self._entries.best_per_node(level, regular, slots.nodes, rows, is_root=is_root)
        built, _ = self._places(depth)
        divides = not (level.keeps or self._rules.symmetric)  # whose gains are of all nodes
        places = rows.build(slots.built, built, is_root=is_root, n_trees=self._n_trees, divides=divides)
        each = level.n_nodes // len(slots.built)
        nodes = slice(each * places.start, each * places.stop)
        search = self._kernels.best_of_level if self._rules.symmetric else self._kernels.best_per_node
        results = self._room["results"][: level.n_nodes]
        own = results[nodes]
        search(level.of(nodes), regular, {**self._room, **self._kernels.set_room(self._room, nodes), "results": own})
        if len(own) < len(results):
            rows.sharing.rows.gather(own, results.reshape(-1, *own.shape))
            self._kernels.gather_sets(rows.sharing.rows, self._room, nodes)
        return results

    def _choose(self, depth: int, results: DeviceArray) -> None:
        rules, regular = self._rules, self._rules.regular
        level, below = self._levels[depth], self._levels[depth + 1]
        is_last = depth + 1 == self._sizes.depth
        self._launch("choose_splits")(
            self._n_trees, THREADS, self._width, *self.tables.arguments, *level.arguments, self._sizes.at(depth),
            results, *self._kernels.found(results, self._room), *regular.numbers, rules.gamma, rules.max_leaves,
            int(not is_last), int(rules.symmetric), self._kernels.monotone_of(regular),
            self._kernels.all_bins, level.splits, self._sizes.at(depth + 1) // 2, *below.arguments, below.built,
            *self._addresses(depth + 1),
        )  # fmt: skip
        self._kernels.keep_sets(level.splits[0], results, self._room, self.tables.node_sets)

    def _finish(self, learning_rate: DeviceArray) -> None:
        regular = self._rules.regular
        self._launch("finish_trees")(
            self._n_trees, THREADS, self._width, *self.tables.arguments, *regular.numbers, learning_rate,
            self.tables.values, self._sizes.most_leaves, self.leaves,
        )  # fmt: skip

    def _launch(self, entry: str) -> Kernel:
        return self._runtime.kernel("grow", entry, VECTORS=int(self._width > 1))


@dataclass(frozen=True)
class Slots:
    """Nodes to search, as kernels fill them in (`LEVEL`); arrays of shape (slots, ...)."""

    nodes: DeviceArray
    addresses: DeviceArray
    sums: DeviceArray
    bounds: DeviceArray

    @property
    def arguments(self) -> tuple[Any, ...]:
        return (self.nodes, *self.addresses, self.sums, self.bounds)


def slot_shapes(n: int, width: int = 1) -> Shapes:
    """Return the shapes of `Slots` of `n` nodes."""
    return {
        "nodes": ((n,), np.int32), "addresses": ((3, n), np.uint64), "sums": ((n, 2 * width), np.int64),
        "bounds": ((n, 2), np.float64),
    }  # fmt: skip


@dataclass(frozen=True)
class _TreeLevel(Slots):
    """A level; slots of one tree after the other."""

    splits: DeviceArray
    """Splits as `kernels/partition.cu` takes them; int32, shape (6, slots)."""
    built: DeviceArray
    """Nodes whose histograms rows build, the root or one per pair of siblings; int32."""


def _level_shapes(n_trees: int, n: int, width: int) -> Shapes:
    """Return the shapes of `_TreeLevel` of `n` nodes of each tree."""
    slots, built = n_trees * n, n_trees * -(-n // 2)
    return {**slot_shapes(slots, width), "splits": ((6, slots), np.int32), "built": ((built,), np.int32)}


def _leaf_shapes(n_trees: int, levels: LevelSizes) -> Shapes:
    """Return the shapes of what a grower keeps of finished trees beside their tables."""
    return {"leaves": ((n_trees, levels.most_leaves), np.int32)}


def frontier_bytes(n_trees: int, levels: LevelSizes, width: int = 1, set_width: int = 0, n_terms: int = 0) -> int:
    """Return the bytes of what `TreeGrower` keeps of nodes, beside histograms and the arrays of searches, and of what
    its graph keeps: maps of tiles of the nodes that are built and of those that are split, at each level."""
    shapes = [_level_shapes(n_trees, levels.at(depth), width) for depth in range(levels.depth + 1)]
    of_tiles = sum(START_BYTES * (shape["nodes"][0][0] + shape["built"][0][0]) for shape in shapes[:-1])
    of_steps = STEP_BYTES * (width > 1) * sum(shape["nodes"][0][0] for shape in shapes[:-1])
    of_levels = sum(map(bytes_of, shapes)) + of_tiles + of_steps
    of_leaves = bytes_of(_leaf_shapes(n_trees, levels))
    return tables_bytes(n_trees, levels.capacity, width, set_width, n_terms) + of_leaves + of_levels


def _row_stride(array: DeviceArray) -> int:
    return int(array.strides[0]) // int(array.itemsize)


def node_bytes(histograms: DeviceArray) -> int:
    """Bytes from one node's histogram to the next one's."""
    return int(histograms.strides[0])
