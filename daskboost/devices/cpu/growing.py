"""What compiled code grows trees on (`grow.py`): rows, nodes, histograms, rules, what has grown; and how it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from daskboost.devices.cpu import njit, uncounted
from daskboost.devices.cpu.gradients import RowRange
from daskboost.devices.cpu.histogram import bins_at
from daskboost.devices.cpu.partition import OneSplit
from daskboost.devices.cpu.scales import ScaleRule
from daskboost.devices.cpu.split import Regular, SplitTable
from daskboost.devices.cpu.team import LINE, threads_worth
from daskboost.devices.row_order import RowOrder
from daskboost.dtypes import Bool, Float32, Float64, Int8, Int32, Int64, UInt8, UInt32, UInt64

DEPTHWISE, SYMMETRIC, LOSSGUIDE = 0, 1, 2
"""Numbers of the growth policies."""
DONE, FULL_NODES, FULL_WORDS, FULL_PAIRS, FULL_TOLD, MEETS, ASKS, REFUSED, GROWS = range(9)
"""What a call ends with: a tree; or nothing, for want of room for nodes, for histograms of words or of pairs, or for
what engines tell each other; or before it goes on, a meeting with these, or a question which features the nodes may use
that are opened; or nothing, as gradients are not finite. `GROWS` is where a tree has more to do."""
FILLED, HAS_RANGE, STARTS, HAS_SUMS, HAS_OPENED, HAS_BUILT, HAS_FOUND, HAS_LEAVES = range(8)
"""Stages of a tree's steps. Of the first tree of a round, gradients are computed, then their range is known; of others,
nothing is yet; of both, the sums of the root's rows are known, the nodes that are opened, their histograms, the best
splits of their features; and in the end, of trees that were not searched on hessians, the hessians of their leaves."""
FOUND_WORDS = 6
"""int64 words that tell a split, and one more for each word of a set: the gains of all are told before the rest, of
which only one engine's is read."""
SUMS, FOUND = LINE, 2 * LINE
"""Where in an engine's room the root's sums are told, twice half a line, and splits; first is the number of meetings
that it has come to."""
GROUP_NS = 6_000
"""Nanoseconds of work of a group of small nodes, which a thread takes together."""
LEAST_BLOCK = 256
"""Rows of the smallest piece of a node that is divided among threads."""
LEAF = -1
ABSENT = -2
"""What leaves of rows that were not drawn are subtracted from, which tells them from others."""
LARGEST = float(np.finfo(np.float32).max)
"""The largest value of a leaf."""


class Chunks(NamedTuple):
    """Rows of an engine's chunks, one chunk after the other."""

    places: Int64
    """Where bins lie as rows are added to histograms, and as splits read them; shape (chunks, 2, 4), see `bins_at`."""
    n_bins: Int32
    """Bins of each feature, without the missing slot."""
    offsets: Int64
    """First slot of each feature in a histogram, shape (features + 1,)."""
    begins: Int64
    """First position of each chunk in `rows`, shape (chunks + 1,)."""
    ranges: Int64
    """Ranges of rows of consecutive ids, for quantizing: chunk, first and last row in it, and the id that its row 0
    would have; shape (ranges, 4)."""
    rows: RowOrder
    spare: RowOrder
    """Room for as many."""
    bins: Any
    """What the bins of all chunks have in common, see `bins_at`."""


BINS = ("chunks.bins",)
ROWS = ("chunks.rows", "chunks.spare", *BINS)
"""Attributes of `Growing` whose types differ from data to data, last in their tuple, see `part_without`: bins, and with
them rows. What reads neither is compiled once for all data."""


class Nodes(NamedTuple):
    """The tree under construction; arrays of shape (nodes, ...)."""

    parent: Int32
    depth: Int32
    left: Int32
    """Left child; the right one is the next node. -1 in leaves."""
    feature: Int32
    split_bin: Int32
    default_left: UInt8
    gain: Float64
    sums: Int64
    """Integer sums of g and h, shape (nodes, 2), or of one output after the other, shape (nodes, 2 * outputs)."""
    bounds: Float64
    """Limits of leaf values, shape (nodes, 2)."""
    value: Float32
    """What leaves add, shape (nodes,); or where they are vectors, (nodes, outputs)."""
    segments: Int64
    """Positions of a node's rows in each chunk, shape (nodes, chunks, 2)."""
    n_rows: Int64
    """Rows of this engine."""
    n_total: Int64
    """Rows of all engines, known once the parent's histograms are."""
    is_divided: UInt8
    """Whether a split's rows have gone to the children."""
    place: Int32
    """Where the node's histogram lies in the pool; -1 where there is none."""
    in_words: UInt8
    """Whether that is among the histograms of words."""
    found: SplitTable
    """The best split of each node that was searched."""
    right_bins: UInt32
    """Bins that go right where `split_bin` is `BY_SET`, a bit for each, shape (nodes, words)."""


class Pool(NamedTuple):
    """Histograms of nodes, of either form (see `histogram.py`); of vectors, each slot has an entry for each output."""

    words: Int64
    """Shape (places, entries)."""
    pairs: Int64
    """Shape (places, entries, 2)."""
    free_words: Int32
    free_pairs: Int32
    """Places that are free: as many of the first as `n_free` says, of words and of pairs."""
    n_free: Int64


class TreeModels(NamedTuple):
    """What leaves are valued by beside the sums of nodes, and their models; arrays without entries where leaves are
    constant."""

    begin: Int64
    """Where the positions of each feature's bins begin, see `Positions`."""
    position: Int8
    usable: Bool
    """Whether a model may have a feature, shape (features,)."""
    ridge: float
    """Penalty of slopes, in hessians."""
    feature: Int32
    """Features of each node's model, -1 behind them; shape (nodes, terms)."""
    slope: Float32
    """Shape (nodes, terms)."""
    sums: Int64
    """Each thread's sums of the equations of each node's rows, shape (threads, nodes, `n_sums`)."""
    x: Int64
    """For each thread, 1 and a row's positions; shape (threads, terms + 1)."""
    room: Float64
    """Where a leaf's equations are solved, of `ROOM_SHAPE`."""
    leaf: Int32
    """The leaf of each row of all chunks, shape (rows,); `ABSENT` less it of rows that were not drawn. Without entries
    where leaves are not written down (`_writes_leaves`)."""
    leaf_sums: Int64
    """Each thread's sums of g and h of each leaf's rows, shape (threads, nodes, 2); without entries where splits are
    searched on hessians."""


class Step(NamedTuple):
    """What a step of a tree does; arrays that are used again from step to step."""

    opened: Int32
    """Nodes to search, then nodes that wait for their split if a tree grows best first."""
    chosen: Int32
    """Nodes that split and of whose children some are opened; of the first step, the root."""
    built: Int32
    """Child of each whose histogram rows build."""
    derived: Int32
    """Child of each whose histogram is the parent's less the sibling's; -1 for none."""
    tasks: Int64
    """Large nodes' tasks: place of the node among `chosen`, first and last piece; shape (tasks, 3)."""
    tasks_of: Int64
    """First and last task of each of `chosen`, shape (nodes, 2)."""
    pieces: Int64
    """Chunk, first and last position, number of left-goers, and where left- and right-goers go; shape (pieces, 6)."""
    groups: Int32
    """Bounds of groups of small nodes in `small`, one more than there are groups."""
    small: Int32
    """Places of small nodes among `chosen`."""
    partials: Int64
    """Sums of each task of large nodes, as words or as pairs, if tasks may have so many rows; shape (tasks, entries) or
    (tasks, 2 * entries)."""
    results: SplitTable
    """The best splits among ranges of features."""
    drawn: Int64
    """Numbers of each range of rows: drawn rows, where they and those that are not drawn go, and sums as in
    `Nodes.sums`; shape (ranges, 3 + sums)."""
    scratch: Int64
    """For each thread, sums of a block of features; shape (threads, entries)."""
    prefix: Float64
    """For each thread, `BinGains.prefix` of any feature; shape (threads, sums of a node, bins)."""
    gains: Float64
    """The same of `BinGains.gains`."""
    level: Float64
    """The same of the gains of a level's nodes together, or of the heaviest outputs of vectors."""
    order: Float64
    """The same of `BinGains.order`; shape (threads, bins)."""
    outputs: Float64
    """The same of `BinGains.outputs`; shape (threads, `OUTPUT_ROWS`, sums of a node)."""
    walked: Int32
    """Right child of each node, for rows that walk the tree; shape (nodes,)."""
    defaults: Bool
    """Whether missing values go left, shape (nodes,)."""
    one: Float32
    """An array of a number: addresses are those of arrays of its type."""
    digits: Int64
    """For each thread, counts of residuals by a digit; without entries where leaves are no quantiles."""
    counts: Int64
    """`OPENED` and so on."""


N_COUNTS = 16
(
    OPENED, WAITING, CHOSEN, TASKS, PIECES, GROUPS, IS_ROOT, RANGES, LEAVES, SIZE, BLOCK, STAGE, IS_TOLD, STATUS, AT,
    TREE,
) = range(N_COUNTS)  # fmt: skip
"""Places in `Step.counts`: how many nodes are opened, wait, split; tasks, pieces and groups; whether the step is the
root's; ranges of features; leaves and nodes of the tree; rows of a task of large nodes; the stage, whether engines are
yet to meet at its end, and what the call ends with; where in rooms begins what is told to all; the tree's number among
those of the call."""


class Rules(NamedTuple):
    """How the trees of a fit grow."""

    regular: Regular
    """What splits are searched by."""
    leaves: Regular
    """What leaves are valued by."""
    policy: int
    depth: int
    max_leaves: int
    """0 for any number."""
    n_threads: int
    is_small: bool
    """Whether rows have weights that multiply rounded gradients (`Gradients`)."""
    asks: bool
    """Whether the caller says which features each node may use, when it is opened."""
    leaf_terms: int
    """Most features of a leaf's model; 0 where leaves are constant."""
    refits: bool
    """Whether splits are searched on something else than hessians (`Rounds.searched`)."""
    quantiles: bool
    """Whether leaves are quantiles of their rows' residuals."""


class Log(NamedTuple):
    """Nodes of the trees that a call has grown, as models have them (`TreeTable`), one tree after the other; arrays of
    shape (nodes,)."""

    left: Int32
    right: Int32
    feature: Int32
    split_bin: Int32
    threshold: Float32
    default_left: Bool
    gain: Float32
    value: Float32
    """Shape as `Nodes.value`."""
    hessian: Float64
    """Sums of hessians of each output, of which the host makes `TreeTable.cover`; shape (nodes, outputs)."""
    right_bins: UInt32
    """Bins that go right where `split_bin` is `BY_SET`, a bit for each, shape (nodes, words)."""
    term: Int32
    """Features of models of leaves, -1 behind them; shape (nodes, terms)."""
    slope: Float32
    """What a row adds for each step of its position, shape (nodes, terms)."""
    ends: Int64
    """One past the last node of each tree, shape (trees,)."""


class Rounds(NamedTuple):
    """What the trees of a call's rounds have in common; arrays of addresses have shape (chunks,)."""

    g: Int64
    """Addresses of gradients, float32 of shape (rows, outputs)."""
    h: Int64
    searched: Int64
    """Addresses of what splits are searched on in place of hessians, float32 of shape (rows,); 0 where on these."""
    weight: Int64
    """Addresses of weights of small data, float32 of shape (rows,)."""
    margin: Int64
    """Addresses of margins, float32 of shape (rows, outputs)."""
    label: Int64
    """Addresses of labels, float32 of shape (rows,), where leaves are quantiles; else 0."""
    residual_weight: Int64
    """Addresses of the weights of residuals, float32 of shape (rows,); 0 for ones."""
    weight_scale: float
    """See `Residuals`."""
    quantiles: Float64
    """The quantile of each output's residuals; without entries where leaves are none."""
    n_outputs: int
    n_trees: int
    """Trees of a round: one of each output, or one whose leaves are vectors of all."""
    largest: Float64
    """The largest |g| and h of each output in the round, first of this engine's rows, then of all; shape (2, outputs).
    """
    rule: ScaleRule
    """What the scales of searched gradients go by."""
    leaf_rule: ScaleRule
    """The same of those that value leaves."""
    gamma: float
    """The least gain of a split that is made, if it is more than noise."""
    below: np.uint64
    """See `RowDraw.below`."""
    codes: Int64
    """Addresses of `RowDraw.codes`, uint64 of shape (rows,); 0 where each row is drawn by itself."""
    key_states: UInt64
    """What keys of trees' roundings and of their draws of rows come from, see `tree_key`; shape (2,)."""
    first: int
    """The number of the fit's first round."""
    learning_rates: Float64
    """The learning rate of each round of the fit, shape (rounds,)."""
    allowed: UInt8
    """Features that each level of each tree may use, shape (trees, levels, features); of all trees, or of all levels,
    where these are the same, once."""
    cuts: Float32
    """Cut points of all features, shape (cut points,)."""
    cut_offsets: Int32
    """Where those of each feature begin, shape (features + 1,)."""
    log: Log
    counts: Int64
    """`ROUND` and so on."""


N_ROUND_COUNTS = 8
ROUND, WANTED, FIRST, GROWING, LOGGED, ENDED, MOST, BEGUN = range(N_ROUND_COUNTS)
"""Places in `Rounds.counts`: rounds that are over, and that are wanted; the first output whose trees grow now, -1
before a round begins, and how many grow; nodes and trees in the log; the most nodes of a round, by the room that its
trees have; the number of the call's first round."""


class Tree(NamedTuple):
    """What differs from tree to tree."""

    numbers: Float64
    """`LEAST_GAIN` and so on."""
    scales: Float64
    """Powers of two that gradients, and hessians, of each output are multiplied by; shape (2, outputs)."""
    units: Float64
    """What a quantum of g and of h is worth, of one output after the other; shape (2 * outputs,)."""
    keys: UInt64
    """The keys of its draw of rows and of the rounding of each output, shape (1 + outputs,)."""
    asked: UInt8
    """Features that each opened node may use, shape (nodes, features), where the caller is asked; otherwise without
    entries."""


N_NUMBERS = 4
LEAST_GAIN, LEARNING_RATE, LEAF_SCALE_H, LEAF_UNIT_H = range(N_NUMBERS)
"""Places in `Tree.numbers`: the least gain of a split that is made, what values are multiplied by; the power of two and
the quantum's worth of hessians that value leaves, where these are those of one output."""


class Meeting(NamedTuple):
    """What engines tell each other while they grow a tree together, each in a room of its own. What one tells stays as
    it is until all have come to another meeting."""

    shares: Int64
    """First feature that each engine searches, and their number; shape (engines + 1,)."""
    rank: int
    """Which of the engines this one is."""
    room: Int64
    """This engine's room: how many meetings it has come to; from `SUMS` on, told with the root's histogram, its sums of
    g and h and its rows; from `FOUND` on, told at `HAS_FOUND`, the best splits of opened nodes; before `begin`, told at
    `HAS_RANGE`, the largest |g| and h of each output, and before these, told at `HAS_LEAVES`, the hessians of leaves;
    from `begin` on, told at `HAS_BUILT`, rows of the nodes that were built, then their histograms, of which each engine
    adds up the slots of the features that it searches."""
    begin: int
    n_rows: int
    """Rows of all engines."""
    most_rows: int
    """Rows of the engine that has the most: if words can count them, it is words that are told."""
    rooms: Int64
    """Addresses of the rooms of all engines, where they have memory in common; otherwise none. shape (engines,)"""
    units: Int64
    """How many words each slot takes of the nodes that were built before each; shape (nodes + 1,)."""
    told: Int64
    """Addresses of what each engine has told at the stage, shape (engines,): of histograms all slots in common memory,
    otherwise those of the features that this engine searches."""


class Growing(NamedTuple):
    """All that regions work on; tuples of arrays and what they are in are `by_reference`."""

    team: Int64
    parts: Int64
    """Addresses of `PARTS`, shape (parts,)."""
    chunks: Chunks
    nodes: Nodes
    pool: Pool
    step: Step
    rules: Rules
    rounds: Rounds
    tree: Tree
    meeting: Meeting
    models: TreeModels


@uncounted()
def chunk_rows(chunks: Chunks, chunk: int) -> int:
    """Return the rows of a chunk."""
    begins = chunks.begins
    return int(begins[chunk + 1] - begins[chunk])


@njit(inline="always")
def by_row(chunks: Chunks, chunk: int) -> Any:
    """Return a chunk's bins as rows are added to histograms, or walk trees."""
    return bins_at(chunks.bins, chunks.places[chunk, 0], chunk_rows(chunks, chunk))


@njit(inline="always")
def by_column(chunks: Chunks, chunk: int) -> Any:
    """Return a chunk's bins as splits read them."""
    return bins_at(chunks.bins, chunks.places[chunk, 1], chunk_rows(chunks, chunk))


def row_ns(n_sums: int) -> int:
    """Return about how many nanoseconds it takes to divide a row and to add it to so many sums of a histogram, one for
    each feature and output."""
    return 4 + n_sums // 2


def least_block(n_entries: int, nanoseconds: int) -> int:
    """Return the rows, of so many nanoseconds each, of the smallest piece of a node that is worth a histogram of its
    own: to clear it and to add it to the others takes about a nanosecond for each entry, at most half of the rows'."""
    return int(max(LEAST_BLOCK, 2 * n_entries // nanoseconds))


def writes_leaves(rules: Rules) -> bool:
    """Return whether the leaf of each row is written down."""
    return rules.refits or rules.leaf_terms > 0


_threads_worth: Callable[[int, int], int] = uncounted()(threads_worth)


@uncounted()
def threads_for(rules: Rules, nanoseconds: int) -> int:
    """Return how many threads so much work is worth."""
    return _threads_worth(rules.n_threads, nanoseconds)


@uncounted()
def width_of(state: Growing) -> int:
    """Return how many outputs the tree has."""
    return int(state.rounds.n_outputs // state.rounds.n_trees)


@uncounted()
def copy_set(source: UInt32, i: int, into: UInt32, j: int) -> None:
    """Copy a set of bins."""
    for w in range(source.shape[1]):
        into[j, w] = source[i, w]


@njit(inline="always")
def split_of(nodes: Nodes, node: int) -> OneSplit:
    """Return where a node's split sends rows."""
    return OneSplit(
        nodes.feature[node], nodes.split_bin[node], nodes.default_left[node] != 0, nodes.right_bins, node
    )


@uncounted()
def range_of(state: Growing, r: int) -> tuple[int, RowRange]:
    """Return the chunk of a range of rows, and the range."""
    ranges = state.chunks.ranges
    return ranges[r, 0], RowRange(ranges[r, 1], ranges[r, 2], ranges[r, 3])


@uncounted()
def output_of(state: Growing) -> int:
    """Return the output whose gradients grow the tree, the first of several."""
    return int(state.step.counts[TREE] % state.rounds.n_trees * width_of(state))


@uncounted()
def opens(state: Growing, node: int) -> bool:
    """Whether a node's best split is worth finding, as far as its depth and weight tell."""
    nodes, rules, heavy = state.nodes, state.rules, False
    for k in range(1, nodes.sums.shape[1], 2):
        heavy = heavy or np.float64(nodes.sums[node, k]) * state.tree.units[k] >= rules.regular.least_h
    return bool(nodes.depth[node] < rules.depth and (heavy or rules.policy == SYMMETRIC))


@uncounted()
def meets(state: Growing) -> bool:
    """Whether there are other engines."""
    return len(state.meeting.told) > 1
