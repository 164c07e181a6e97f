"""The rows of one chunk in node order, and how the work on them is divided among threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from daskboost.devices.cpu.threads import Threads
from daskboost.dtypes import Array, Float32, Int32, Int64, Pairs, UInt8, UInt32

if TYPE_CHECKING:
    from daskboost.devices.cpu.rows import Rounding

# The root of the tree that follows, built in the pass over streamed chunks in which a tree is finished.
#
# A tree's last pass takes rows to their leaves, and with that margins are final and gradients known: all that the next
# root is made of, while the chunk is there. But for one thing: the scale that gradients are rounded by follows from
# the range over all rows. It is a power of two, though, and nearly always the one of the tree before; where it is not,
# the root is thrown away and built in a pass of its own.

@dataclass(frozen=True)
class Following:
    """The tree that is expected after the one that is finished."""

    gradient: Callable[[int], Any]
    """Gradients as `Rows.start_tree` takes them; asked for a chunk whose margins have the finished tree."""
    rounding: Rounding


@dataclass(frozen=True)
class Root:
    """The root of a tree that was started in another one's last pass; the rows are in it."""

    sums: tuple[int, int]
    histograms: Array
    """What `Rows.grow` would give."""


BY_SET = -1
"""Bin of splits that send a set of bins right."""
ALL_BUT = -2
"""The same where GPUs have a list of the bins that do not (`bin_lists.py`)."""
BITS = 32
"""Bins of a word of such a set."""


def no_sets(n: int = 0) -> UInt32:
    """Return the sets of nodes that have none; uint32, shape (nodes, 0)."""
    return np.zeros((n, 0), np.uint32)


def sets_of_all(given: UInt32, n: int) -> UInt32:
    """Return sets of `n` nodes: those given, or none for each."""
    return given if len(given) == n else no_sets(n)


UNEVEN = 1.15
"""Times the average that the largest share of the rows may be before threads rather divide the rows exactly: waiting
for one another twice costs about as much as a few percent of the rows of a small level."""
ANY_ROWS = 1 << 62
"""End of a stretch that has all rows of its segments, however many they are."""


@dataclass(frozen=True)
class RowSplits:
    """Splits as row loops need them; arrays of shape (splits,)."""

    node: Int32
    left: Int32
    right: Int32
    feature: Int32
    split_bin: Int32
    default_left: UInt8
    right_bins: UInt32 = field(default_factory=no_sets)
    """Bins that go right of splits whose `split_bin` is `BY_SET`, a bit for each; shape (splits, words)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "right_bins", sets_of_all(self.right_bins, len(self.node)))

    def __len__(self) -> int:
        return len(self.node)

    @property
    def predicates(self) -> Predicates:
        return Predicates(self.feature, self.split_bin, self.default_left, self.right_bins)

    @property
    def columns(self) -> Int32:
        """Return the splits as GPUs take them (`kernels/partition.cu`): int32, shape (6, splits)."""
        own = (self.node, self.left, self.right, self.feature, self.split_bin, self.default_left)
        return np.stack([np.asarray(column, np.int32) for column in own])

    def followed_by(self, other: RowSplits) -> RowSplits:
        """Return these splits and those of other nodes, which are applied after them."""
        names = [each.name for each in fields(RowSplits)]
        return RowSplits(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in names))


class Predicates(NamedTuple):
    """Where splits send rows: left by a bin of at most `split_bin`, or where that is `BY_SET`, by one that is not among
    `right_bins`; or by `default_left` for want of a bin."""

    feature: Int32
    split_bin: Int32
    default_left: UInt8
    right_bins: UInt32

    def of(self, splits: Int64) -> Predicates:
        """Return the predicates of some splits."""
        return Predicates(
            self.feature[splits], self.split_bin[splits], self.default_left[splits], self.right_bins[splits]
        )


class RowOrder(NamedTuple):
    """Rows in the order of their nodes."""

    order: UInt32
    """The row at each position, shape (rows,)."""
    pairs: Pairs
    """Quantized gradients: at each position, shape (rows,); or of several outputs by row, shape (rows, outputs)."""


class Stretch(NamedTuple):
    """Positions `[first, last)` of the rows of some segments, one after the other: what one thread works on."""

    segments: Int64
    """Positions `[begin, end)` of each in a `RowOrder`, shape (segments, 2)."""
    first: int
    last: int

    @classmethod
    def of(cls, segments: Int64) -> Stretch:
        """All rows of the segments."""
        return cls(segments, 0, ANY_ROWS)


def n_rows_of(segments: Int64) -> int:
    """Return how many rows segments have together."""
    ends: Int64 = segments.sum(axis=0)
    return int(ends[1] - ends[0])


@dataclass(frozen=True)
class Share:
    """What one thread splits and builds."""

    splits: Int64
    """Indices of splits, increasing."""
    nodes: Int64
    """Indices of the nodes to build that come from them."""
    origins: Int64
    """For each of these nodes, the place of its split among `splits`."""


@dataclass(frozen=True)
class PairLayout:
    """How the rows' quantized gradients lie: those of one output in the order of nodes, as rows do; those of several
    (`width`) in the order of rows, since to move them all would take longer than to gather them (`quantize_vectors`).
    """

    width: int
    small_data: bool

    @property
    def moves(self) -> bool:
        """Whether pairs move with the rows."""
        return self.width == 1

    def empty(self, n_rows: int) -> Pairs:
        """Return room for pairs (see `gradients.py`), shape (rows,) or (rows, width)."""
        shape = (n_rows, self.width)
        pairs: Pairs = np.empty(shape, np.int64) if self.small_data else np.empty(shape, np.int32)
        return pairs[:, 0] if self.moves else pairs

    def spare(self, n_rows: int) -> Pairs:
        """Return room for the pairs of rows that move through it: none where pairs stay."""
        return self.empty(n_rows if self.moves else 0)

    def nbytes(self, n_rows: int, n_spare: int) -> int:
        """Return the bytes of `empty(n_rows)` and `spare(n_spare)`."""
        return (n_rows * self.width + self.moves * n_spare) * (8 if self.small_data else 4)


class ChunkOrder:
    """Rows of one chunk in node order, and their pairs; `weight` of the rows where data are small."""

    def __init__(self, n_rows: int, weight: Float32 | None = None, width: int = 1) -> None:
        self.n_rows, self.weight = n_rows, weight
        self._layout = PairLayout(width, weight is not None)
        self.order: UInt32 = np.empty(n_rows, np.uint32)
        self.pairs: Pairs = self._layout.empty(n_rows)
        self.kept = 0
        self.bounds: Int64 = np.zeros((1, 2), np.int64)
        """Segment of each tree node; int64, shape (nodes, 2)."""

    @property
    def moved(self) -> Sequence[UInt32 | Pairs]:
        """What lies in node order."""
        return (self.order, self.pairs) if self._layout.moves else (self.order,)

    def start(self, begins: Sequence[int], kept: Sequence[int]) -> None:
        """Put the rows that a thread each kept, from `begins` on, side by side, all in the root."""
        self.kept = 0
        for begin, n in zip(begins, kept, strict=True):
            for array in self.moved if self.kept != begin else ():  # close the gaps that sampled-out rows left
                array[self.kept : self.kept + n] = array[begin : begin + n]
            self.kept += n
        self.bounds[:] = 0
        self.bounds[0, 1] = self.kept

    @property
    def rows(self) -> RowOrder:
        return RowOrder(self.order, self.pairs)

    def segments(self, nodes: Int32) -> Int64:
        """Segments of `nodes`; int64, shape (nodes, 2)."""
        return np.ascontiguousarray(self.bounds[nodes])

    def set_children(self, splits: RowSplits, middle: Int64) -> None:
        """Record where each split node's rows now divide."""
        needed = int(splits.right.max()) + 1
        if needed > len(self.bounds):
            grown = np.zeros((max(needed, 2 * len(self.bounds)), 2), np.int64)
            grown[: len(self.bounds)] = self.bounds
            self.bounds = grown
        parents = self.bounds[splits.node]
        self.bounds[splits.left, 0], self.bounds[splits.left, 1] = parents[:, 0], middle
        self.bounds[splits.right, 0], self.bounds[splits.right, 1] = middle, parents[:, 1]


def whole_splits(chunk: ChunkOrder, splits: RowSplits, nodes: Int32, threads: Threads) -> list[Share] | None:
    """Whole splits for each thread, with the nodes that are built from them, if that divides the rows about evenly.

    One thread then splits and builds without waiting for others in between, and what it builds from is still in its
    cache.
    """
    segments = chunk.segments(splits.node)
    sizes = segments[:, 1] - segments[:, 0]
    total = int(sizes.sum())
    n_parts = len(threads.ranges(total))
    part_of = np.zeros(len(splits), np.int64)
    if n_parts > 1:
        deal = np.arange(len(splits)) % (2 * n_parts)  # by size, to and fro: 0 1 2 2 1 0 0 1 2 ...
        part_of[np.argsort(-sizes, kind="stable")] = np.minimum(deal, 2 * n_parts - 1 - deal)
        if np.bincount(part_of, sizes, n_parts).max() * n_parts > UNEVEN * total:
            return None
    split_of = np.full(int(max(splits.right.max(), nodes.max(initial=0))) + 1, -1, np.int64)
    split_of[splits.left] = split_of[splits.right] = np.arange(len(splits))
    origins = split_of[nodes]
    if (origins < 0).any():
        return None
    if n_parts == 1:
        return [Share(np.arange(len(splits)), np.arange(len(nodes)), origins)]
    shares = []
    for part in range(n_parts):
        own, built = np.flatnonzero(part_of == part), np.flatnonzero(part_of[origins] == part)
        shares.append(Share(own, built, np.searchsorted(own, origins[built])))
    return shares
