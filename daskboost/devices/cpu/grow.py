"""Whole trees in compiled code, over rows that stay in memory: quantizing, levels, leaf values and margins.

The definition of a tree stays `tree/growing_tree.py` and the coordinator's loop over it, which serve all devices, any
number of engines and all rules. What is here grows the same trees, node by node. Between two nodes nothing returns to
Python; the work of a step is shared by the threads of a team (`team.py`), in regions:

    _quantize   ranges of rows: gradients become integers, all rows in the root
    _divide     pieces of large nodes: rows go to either side, into spare room
    _move       pieces of large nodes and whole small ones: rows come back in order, and the lighter child's are added
                to a histogram: its own, or one of the piece's task, to be added up later; of several engines, small
                nodes' histograms are built where the other engines read them
    _tell       ranges of slots x large nodes: where there are several engines, tasks' sums become what is told
    _search     features x pairs of siblings: histograms that are yet to be added up or subtracted, then the best splits
    _finish     stretches of rows: leaf values are added to margins
    _mark       the same, where leaves are linear, or splits were searched on something else than hessians: each row's
                leaf is written down, and `_finish_marked` takes the place of `_finish`
    _divide_last  nodes that were split last, where leaves are quantiles: rows go to either side
    _quantiles  leaves: each becomes the quantile of its rows' residuals
    _add_leaves ranges of rows: their g and h are added to those of their leaves, as h was not searched on
    _equations  ranges of rows: they are added to the normal equations of their leaves, of which one thread then finds
                the slopes. In the order of rows, whose bins are read one row after the other, that takes a third of the
                time that it takes in the order of leaves

Which node is split next is decided between regions by one thread (`_choose`). Sums are integers, so that a tree does
not depend on how its work was shared.

Several engines grow a tree together, each over its own rows, and decide alike. What they need of each other they tell
at the ends of stages, `HAS_RANGE` and so on, in memory that all of them see; where there is none, the call returns, and
is made again when all have been told (`Meeting`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from daskboost.devices.cpu import njit, uncounted
from daskboost.devices.cpu.addressed import array_at, weight_at
from daskboost.devices.cpu.compilers import addresses_of
from daskboost.devices.cpu.gradients import (
    DIGITS,
    Gradients,
    OutputQuanta,
    Quanta,
    Residuals,
    RowDraw,
    RowRange,
    add_to_leaves,
    count_drawn,
    count_residuals,
    next_digit,
    take_rows,
    take_vectors,
    tree_key,
    value_of_key,
)
from daskboost.devices.cpu.histogram import LOW_HALF, WORD_ROWS, _add_rows, bins_at
from daskboost.devices.cpu.leaf_models import (
    Equations,
    Models,
    Positions,
    Ridge,
    add_rows,
    fit_leaf,
    value_of,
    write_terms,
)
from daskboost.devices.cpu.partition import OneSplit, TreeArrays, add_value, divide, goes_left, put_back, walk
from daskboost.devices.cpu.scales import ScaleRule, least_gain, scales_by, units_of
from daskboost.devices.cpu.split import (
    BinGains,
    FeatureRange,
    FeatureSlots,
    NodeTotals,
    Regular,
    SplitTable,
    best_of_node,
    gain_of_weight,
    is_code,
    leaf_gain,
    leaf_weight,
    order_codes,
    split_value,
    subtract,
)
from daskboost.devices.cpu.split_level import add_codes, add_to_level, best_in_level, left_of_node
from daskboost.devices.cpu.split_sets import CodeOrder
from daskboost.devices.cpu.split_vectors import VectorGains, VectorTotals, best_of_vectors, gain_of_vectors
from daskboost.devices.cpu.team import (
    LINE,
    arrive,
    come_together,
    next_task,
    part,
    rows_of_task,
    run,
    threads_worth,
)
from daskboost.devices.row_order import BY_SET, RowOrder
from daskboost.dtypes import Bool, Float32, Float64, Int8, Int32, Int64, Pairs, UInt8, UInt32, UInt64

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

    bins: Any
    """What the bins of all chunks have in common, see `bins_at`."""
    places: Int64
    """Where bins lie as rows are added to histograms, and as splits read them; shape (chunks, 2, 4), see `bins_at`."""
    n_bins: Int32
    """Bins of each feature, without the missing slot."""
    begins: Int64
    """First position of each chunk in `rows`, shape (chunks + 1,)."""
    ranges: Int64
    """Ranges of rows of consecutive ids, for quantizing: chunk, first and last row in it, and the id that its row 0
    would have; shape (ranges, 4)."""
    rows: RowOrder
    spare: RowOrder
    """Room for as many."""


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
def _n_rows(chunks: Chunks, chunk: int) -> int:
    """Return the rows of a chunk."""
    begins = chunks.begins
    return int(begins[chunk + 1] - begins[chunk])


@njit(inline="always")
def _by_row(chunks: Chunks, chunk: int) -> Any:
    """Return a chunk's bins as rows are added to histograms, or walk trees."""
    return bins_at(chunks.bins, chunks.places[chunk, 0], _n_rows(chunks, chunk))


@njit(inline="always")
def _by_column(chunks: Chunks, chunk: int) -> Any:
    """Return a chunk's bins as splits read them."""
    return bins_at(chunks.bins, chunks.places[chunk, 1], _n_rows(chunks, chunk))


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


_writes_leaves: Callable[[Rules], bool] = uncounted()(writes_leaves)
_rows_of_task: Callable[[int, int], int] = uncounted()(rows_of_task)
_row_ns: Callable[[int], int] = uncounted()(row_ns)
_least_block: Callable[[int, int], int] = uncounted()(least_block)
_threads_worth: Callable[[int, int], int] = uncounted()(threads_worth)


@uncounted()
def _threads_for(rules: Rules, nanoseconds: int) -> int:
    """Return how many threads so much work is worth."""
    return _threads_worth(rules.n_threads, nanoseconds)


@uncounted()
def _width(state: Growing) -> int:
    """Return how many outputs the tree has."""
    return int(state.rounds.n_outputs // state.rounds.n_trees)


# Gradients become integers.

@uncounted()
def _copy_set(source: UInt32, i: int, into: UInt32, j: int) -> None:
    """Copy a set of bins."""
    for w in range(source.shape[1]):
        into[j, w] = source[i, w]


@njit(inline="always")
def _split_of(nodes: Nodes, node: int) -> OneSplit:
    """Return where a node's split sends rows."""
    return OneSplit(
        nodes.feature[node], nodes.split_bin[node], nodes.default_left[node] != 0, nodes.right_bins, node
    )


@uncounted()
def _range_of(state: Growing, r: int) -> tuple[int, RowRange]:
    ranges = state.chunks.ranges
    return ranges[r, 0], RowRange(ranges[r, 1], ranges[r, 2], ranges[r, 3])


@part
def _count(state: Growing, thread: int) -> None:
    """Count the drawn rows of each range."""
    while True:
        r = next_task(state.team)
        if r >= len(state.chunks.ranges):
            return
        chunk, rows = _range_of(state, r)
        state.step.drawn[r, 0] = count_drawn(_draw(state, chunk), rows)


@njit(inline="always")
def _quanta(state: Growing, scale_h: float) -> Quanta:
    """Return how the gradients of a tree of one output become integers."""
    return Quanta(state.tree.scales[0, 0], scale_h, state.rounds.rule.scale_w, state.tree.keys[1])


@njit(inline="always")
def _gradients(state: Growing, chunk: int, searched: bool) -> Gradients:
    """Return the gradients of a chunk's rows, in the output of the tree; as splits are searched on them, or as they
    value leaves."""
    rounds, one, output, n_rows = state.rounds, state.step.one, _output(state), _n_rows(state.chunks, chunk)
    n_outputs, h, first, step = rounds.n_outputs, rounds.h[chunk], output, rounds.n_outputs
    if searched and state.rules.refits:
        h, first, step = rounds.searched[chunk], 0, 1
    return Gradients(
        array_at(rounds.g[chunk], one, n_rows * n_outputs)[output::n_outputs],
        array_at(h, one, n_rows * step)[first::step],
        weight_at(rounds.weight[chunk], n_rows, state.chunks.rows.pairs),
    )


@njit(inline="always")
def _vector_gradients(state: Growing, chunk: int) -> Gradients:
    """Return the gradients of a chunk's rows in all outputs."""
    rounds, one, n_rows = state.rounds, state.step.one, _n_rows(state.chunks, chunk)
    n_outputs = rounds.n_outputs
    return Gradients(
        array_at(rounds.g[chunk], one, n_rows * n_outputs).reshape(n_rows, n_outputs),
        array_at(rounds.h[chunk], one, n_rows * n_outputs).reshape(n_rows, n_outputs),
        weight_at(rounds.weight[chunk], n_rows, state.chunks.rows.pairs),
    )


@uncounted()
def _take(state: Growing, chunk: int, rows: RowRange, pairs: Pairs, drawn: Int64) -> None:
    """Quantize the drawn rows of a range; `pairs` are those of all rows, `drawn` the numbers of the range."""
    chunks, draw = state.chunks, _draw(state, chunk)
    begin, end = chunks.begins[chunk], chunks.begins[chunk + 1]
    into = RowOrder(chunks.rows.order[begin:end], pairs[begin:end])
    if pairs.ndim == 1:
        gradients, quanta = _gradients(state, chunk, True), _quanta(state, state.tree.scales[1, 0])
        drawn[3], drawn[4] = take_rows(gradients, quanta, draw, rows, into, drawn[1], drawn[2])
    else:
        scales = state.tree.scales
        of_outputs = OutputQuanta(scales[0], scales[1], state.rounds.rule.scale_w, state.tree.keys[1:])
        take_vectors(_vector_gradients(state, chunk), of_outputs, draw, rows, into, drawn[1], drawn[2], drawn[3:])


@part
def _quantize(state: Growing, thread: int) -> None:
    """Quantize the drawn rows of each range; rows that are not drawn go behind those of their chunk that are."""
    while True:
        r = next_task(state.team)
        if r >= len(state.chunks.ranges):
            return
        chunk, rows = _range_of(state, r)
        _take(state, chunk, rows, state.chunks.rows.pairs, state.step.drawn[r])


@uncounted()
def _output(state: Growing) -> int:
    """Return the output whose gradients grow the tree, the first of several."""
    return int(state.step.counts[TREE] % state.rounds.n_trees * _width(state))


@uncounted()
def _draw(state: Growing, chunk: int) -> RowDraw:
    """Return which rows of a chunk grow the tree."""
    rounds, keys, begins = state.rounds, state.tree.keys, state.chunks.begins
    n_codes = begins[chunk + 1] - begins[chunk] if rounds.codes[chunk] != 0 else 0
    return RowDraw(keys[0], rounds.below, array_at(rounds.codes[chunk], keys, n_codes))


@uncounted()
def _scale(state: Growing) -> bool:
    """Find by the range of all gradients how the tree's become integers; False where these are not finite."""
    rounds, tree, first, number = state.rounds, state.tree, _output(state), state.step.counts[TREE]
    iteration, noise = rounds.counts[BEGUN] + number // rounds.n_trees, 0.0
    tree.keys[0] = tree_key(rounds.key_states[1], iteration, first)
    for k in range(_width(state)):
        largest_g, largest_h = rounds.largest[0, first + k], rounds.largest[1, first + k]
        if not (np.isfinite(largest_g) and np.isfinite(largest_h)):
            return False
        scale_g, scale_h, own_noise = scales_by(rounds.rule, largest_g, largest_h)
        tree.scales[0, k], tree.scales[1, k] = scale_g, scale_h
        tree.units[2 * k], tree.units[2 * k + 1] = units_of(scale_g, scale_h, rounds.rule.scale_w)
        noise += own_noise
        tree.keys[1 + k] = tree_key(rounds.key_states[0], iteration, first + k)
    tree.numbers[LEAST_GAIN] = least_gain(rounds.gamma, noise)
    _, leaf_scale, _ = scales_by(rounds.leaf_rule, rounds.largest[0, first], rounds.largest[1, first])
    _, leaf_unit = units_of(tree.scales[0, 0], leaf_scale, rounds.rule.scale_w)
    tree.numbers[LEAF_SCALE_H], tree.numbers[LEAF_UNIT_H] = leaf_scale, leaf_unit
    tree.numbers[LEARNING_RATE] = rounds.learning_rates[iteration - rounds.first]
    return True


@uncounted()
def _start(state: Growing) -> None:
    """Put all drawn rows into the root."""
    chunks, nodes, drawn = state.chunks, state.nodes, state.step.drawn
    ranges, n_rows = chunks.ranges, chunks.begins[-1]
    draws_all = state.rounds.below >= np.uint64(4294967296)
    if draws_all:
        for r in range(len(ranges)):
            drawn[r, 0] = ranges[r, 2] - ranges[r, 1]
    else:
        run(state.team, _threads_for(state.rules, 2 * n_rows), state.parts[COUNT], state)
    for chunk in range(len(chunks.begins) - 1):
        nodes.segments[0, chunk, 0] = nodes.segments[0, chunk, 1] = chunks.begins[chunk]
    for r in range(len(ranges)):
        drawn[r, 1] = nodes.segments[0, ranges[r, 0], 1] - chunks.begins[ranges[r, 0]]
        nodes.segments[0, ranges[r, 0], 1] += drawn[r, 0]
    at, absent = -1, 0
    for r in range(len(ranges)):  # ranges of a chunk follow each other
        if ranges[r, 0] != at:
            at = ranges[r, 0]
            absent = nodes.segments[0, at, 1] - chunks.begins[at]
        drawn[r, 2] = absent
        absent += ranges[r, 2] - ranges[r, 1] - drawn[r, 0]
    run(state.team, _threads_for(state.rules, 4 * n_rows * _width(state)), state.parts[QUANTIZE], state)
    nodes.parent[0], nodes.depth[0] = -1, 0
    nodes.sums[0, :] = 0
    nodes.n_rows[0] = 0
    for r in range(len(ranges)):
        for k in range(nodes.sums.shape[1]):
            nodes.sums[0, k] += drawn[r, 3 + k]
        nodes.n_rows[0] += drawn[r, 0]
    nodes.n_total[0] = state.meeting.n_rows if _meets(state) else nodes.n_rows[0]  # at most, until engines have met
    nodes.bounds[0, 0], nodes.bounds[0, 1] = -np.inf, np.inf
    _make_leaf(nodes, 0)


@uncounted()
def _make_leaf(nodes: Nodes, node: int) -> None:
    nodes.left[node], nodes.feature[node], nodes.split_bin[node], nodes.default_left[node] = LEAF, 0, -1, 0
    nodes.gain[node], nodes.is_divided[node], nodes.place[node] = 0.0, 0, -1


# Which nodes split, and what becomes of their children.

@uncounted()
def _opens(state: Growing, node: int) -> bool:
    """Whether a node's best split is worth finding, as far as its depth and weight tell."""
    nodes, rules, heavy = state.nodes, state.rules, False
    for k in range(1, nodes.sums.shape[1], 2):
        heavy = heavy or np.float64(nodes.sums[node, k]) * state.tree.units[k] >= rules.regular.least_h
    return bool(nodes.depth[node] < rules.depth and (heavy or rules.policy == SYMMETRIC))


@uncounted()
def _weight(state: Growing, node: int) -> float:
    """Return the hessians of a node, of all outputs together."""
    sums, total = state.nodes.sums, 0.0
    for k in range(1, sums.shape[1], 2):
        total += np.float64(sums[node, k]) * state.tree.units[k]
    return total


@uncounted()
def _stays_leaf(state: Growing) -> bool:
    """Whether the root is not to be split, whatever its histogram."""
    return bool(state.rules.max_leaves == 1 or not _opens(state, 0))


@uncounted()
def _take_place(state: Growing, node: int, words: bool) -> bool:
    """Give a node room for a histogram; False where there is none left."""
    nodes, pool = state.nodes, state.pool
    form = 0 if words else 1
    if pool.n_free[form] == 0:
        return False
    pool.n_free[form] -= 1
    nodes.place[node] = pool.free_words[pool.n_free[0]] if words else pool.free_pairs[pool.n_free[1]]
    nodes.in_words[node] = words
    return True


@uncounted()
def _give_back(state: Growing, node: int) -> None:
    """Free the room of a node's histogram, if it has any."""
    nodes, pool = state.nodes, state.pool
    if nodes.place[node] < 0:
        return
    if nodes.in_words[node]:
        pool.free_words[pool.n_free[0]] = nodes.place[node]
        pool.n_free[0] += 1
    else:
        pool.free_pairs[pool.n_free[1]] = nodes.place[node]
        pool.n_free[1] += 1
    nodes.place[node] = -1


@uncounted()
def _keep_best(state: Growing, n_chosen: int, room: int) -> int:
    """Keep the `room` best of the chosen nodes, the first among equals; return `room`.

    The least gain that is kept is found bit by bit: positive floats are in the order of their bits.
    """
    chosen, bits, least = state.step.chosen, state.nodes.found.gain.view(np.int64), np.int64(0)
    for shift in range(62, -1, -1):
        higher, count = least | (np.int64(1) << np.int64(shift)), 0
        for i in range(n_chosen):
            count += bits[chosen[i]] >= higher
        if count >= room:
            least = higher
    n_equal = room
    for i in range(n_chosen):
        n_equal -= bits[chosen[i]] > least
    n_kept = 0
    for i in range(n_chosen):
        node = chosen[i]
        keeps = bits[node] > least
        if bits[node] == least and n_equal > 0:
            keeps = True
            n_equal -= 1
        if keeps:
            chosen[n_kept] = node
            n_kept += 1
        else:
            _give_back(state, node)
    return n_kept


@uncounted()
def _choose(state: Growing) -> int:
    """Choose the nodes that split now, among those that were searched; write them to the front of `chosen`."""
    step, rules, counts = state.step, state.rules, state.step.counts
    gain, least = state.nodes.found.gain, state.tree.numbers[LEAST_GAIN]
    n_opened, n_chosen = counts[OPENED], np.int64(0)  # one type, so that what it is given to is compiled once
    if rules.policy == LOSSGUIDE:
        waiting = counts[WAITING]
        for i in range(n_opened):  # nodes that wait lie in front of those that were searched now
            node = step.opened[waiting + i]
            if gain[node] >= least:
                step.opened[counts[WAITING]] = node
                counts[WAITING] += 1
            else:
                _give_back(state, node)
        if counts[WAITING] == 0 or (rules.max_leaves > 0 and counts[LEAVES] >= rules.max_leaves):
            return 0
        best = 0
        for i in range(1, counts[WAITING]):
            node, other = step.opened[i], step.opened[best]
            if gain[node] > gain[other] or (gain[node] == gain[other] and node < other):
                best = i
        step.chosen[0] = step.opened[best]
        counts[WAITING] -= 1
        step.opened[best] = step.opened[counts[WAITING]]
        return 1
    for i in range(n_opened):
        node = step.opened[i]
        if gain[node] >= least:
            step.chosen[n_chosen] = node
            n_chosen += 1
        else:
            _give_back(state, node)
    room = rules.max_leaves - counts[LEAVES] if rules.max_leaves > 0 and rules.policy == DEPTHWISE else n_chosen
    if n_chosen > room:
        n_chosen = _keep_best(state, n_chosen, room)
    return int(n_chosen)


@uncounted()
def _split(state: Growing, node: int, left: int) -> None:
    """Make a node's children by the best split that was found."""
    nodes, found = state.nodes, state.nodes.found
    feature, split_bin = found.feature[node], found.split_bin[node]
    nodes.left[node], nodes.feature[node], nodes.split_bin[node] = left, feature, split_bin
    nodes.default_left[node] = found.default_left[node]
    _copy_set(found.right_bins, node, nodes.right_bins, node)
    for side in range(2):
        child = left + side
        _make_leaf(nodes, child)
        nodes.parent[child], nodes.depth[child], nodes.n_rows[child] = node, nodes.depth[node] + 1, 0
        nodes.bounds[child, 0], nodes.bounds[child, 1] = nodes.bounds[node, 0], nodes.bounds[node, 1]
        for s in range(nodes.sums.shape[1]):
            of_left = found.left[node, s]
            nodes.sums[child, s] = of_left if side == 0 else nodes.sums[node, s] - of_left
    _gain_of_split(state, node, left, nodes.value)


@uncounted()
def _gain_of_split(state: Growing, node: int, left: int, value: Float32) -> None:
    """Write the gain of a node's split, and bounds of its children's values; `value` is `Nodes.value`."""
    nodes, units, regular = state.nodes, state.tree.units, state.rules.regular
    if value.ndim == 1:
        _bound_children(state, node, left)
    else:
        nodes.gain[node] = gain_of_vectors(nodes.sums[node], nodes.sums[left], units, regular)


@uncounted()
def _bound_children(state: Growing, node: int, left: int) -> None:
    """Do that of a tree of one output."""
    nodes, regular, feature = state.nodes, state.rules.regular, state.nodes.feature[node]
    unit_g, unit_h = state.tree.units[0], state.tree.units[1]
    low, high = nodes.bounds[node, 0], nodes.bounds[node, 1]
    lg, lh = nodes.sums[left, 0] * unit_g, nodes.sums[left, 1] * unit_h
    rg, rh = nodes.sums[left + 1, 0] * unit_g, nodes.sums[left + 1, 1] * unit_h
    left_weight, right_weight = leaf_weight(lg, lh, regular, low, high), leaf_weight(rg, rh, regular, low, high)
    g, h = nodes.sums[node, 0] * unit_g, nodes.sums[node, 1] * unit_h
    nodes.gain[node] = (
        gain_of_weight(lg, lh, left_weight, regular) + gain_of_weight(rg, rh, right_weight, regular)
        - leaf_gain(g, h, regular, low, high)
    )  # fmt: skip
    direction = regular.monotone[feature]
    if direction == 0:
        return
    if nodes.split_bin[node] == state.chunks.n_bins[feature] - 1:  # present against missing: either may be the higher
        rise = right_weight - left_weight
        direction = 1 if rise > 0 else (-1 if rise < 0 else 0)
    middle = (left_weight + right_weight) / 2
    if direction > 0:
        nodes.bounds[left, 1] = nodes.bounds[left + 1, 0] = middle
    elif direction < 0:
        nodes.bounds[left, 0] = nodes.bounds[left + 1, 1] = middle


@uncounted()
def _split_chosen(state: Growing, n_chosen: int) -> int:
    """Split the chosen nodes and open their children; `DONE`, or what there is no room for.

    What stays in `chosen` are nodes of whose children some are opened; rows of others need not be divided.
    """
    nodes, step, rules, counts = state.nodes, state.step, state.rules, state.step.counts
    if counts[SIZE] + 2 * n_chosen > len(nodes.left):
        return FULL_NODES
    counts[LEAVES] += n_chosen
    may_open = rules.max_leaves == 0 or counts[LEAVES] < rules.max_leaves
    n_kept = n_opened = 0
    front = counts[WAITING]
    for i in range(n_chosen):
        node, left = step.chosen[i], counts[SIZE]
        counts[SIZE] += 2
        _split(state, node, left)
        opens_left, opens_right = may_open and _opens(state, left), may_open and _opens(state, left + 1)
        if not (opens_left or opens_right):
            _give_back(state, node)
            continue
        lighter = left if _weight(state, left) <= _weight(state, left + 1) else left + 1
        heavier = 2 * left + 1 - lighter
        derives = opens_left if heavier == left else opens_right
        words = nodes.n_total[node] <= WORD_ROWS
        nodes.is_divided[node] = 1
        step.chosen[n_kept], step.built[n_kept] = node, lighter
        step.derived[n_kept] = heavier if derives else -1
        n_kept += 1
        if not _take_place(state, lighter, words):
            return FULL_WORDS if words else FULL_PAIRS
        if derives and (words == (nodes.in_words[node] != 0)):  # it takes the place of its parent's
            nodes.place[heavier], nodes.in_words[heavier] = nodes.place[node], nodes.in_words[node]
        elif derives and not _take_place(state, heavier, words):
            return FULL_WORDS if words else FULL_PAIRS
        for side in range(2):
            if opens_left if side == 0 else opens_right:
                step.opened[front + n_opened] = left + side
                n_opened += 1
    counts[OPENED], counts[CHOSEN], counts[IS_ROOT] = n_opened, n_kept, 0
    return DONE


# Rows go to the children.

@uncounted()
def _plan_rows(state: Growing) -> int:
    """Divide the rows of the chosen nodes into tasks; return how long they take, in nanoseconds."""
    chunks, nodes, step, counts = state.chunks, state.nodes, state.step, state.step.counts
    n_chosen, total, of_row = counts[CHOSEN], 0, _row_ns((len(chunks.bins.offsets) - 1) * _width(state))
    for i in range(n_chosen):
        total += nodes.n_rows[step.chosen[i]]
    nanoseconds = total * of_row
    n_threads = _threads_for(state.rules, nanoseconds)
    block = max(_least_block(state.pool.words.shape[1], of_row), -(-total // (2 * n_threads)))
    counts[BLOCK] = block
    n_tasks = n_pieces = n_groups = n_small = in_group = 0
    least = max(1, GROUP_NS // of_row)  # rows of a group of small nodes
    step.groups[0] = 0
    for i in range(n_chosen):
        node = step.chosen[i]
        step.tasks_of[i, 0] = step.tasks_of[i, 1] = 0
        if n_threads == 1 or 2 * nodes.n_rows[node] <= 3 * block:
            if in_group >= least:
                n_groups += 1
                in_group = 0
            step.small[n_small] = i
            n_small += 1
            step.groups[n_groups + 1] = n_small
            in_group += nodes.n_rows[node] + 1
            continue
        step.tasks_of[i, 0] = n_tasks
        room = 0
        for chunk in range(len(chunks.begins) - 1):
            begin, end = nodes.segments[node, chunk, 0], nodes.segments[node, chunk, 1]
            while begin < end:
                if room == 0:
                    step.tasks[n_tasks, 0], step.tasks[n_tasks, 1] = i, n_pieces
                    n_tasks += 1
                    room = block
                size = min(room, end - begin)
                piece = step.pieces[n_pieces]
                piece[0], piece[1], piece[2] = chunk, begin, begin + size
                n_pieces += 1
                step.tasks[n_tasks - 1, 2] = n_pieces
                begin += size
                room -= size
        step.tasks_of[i, 1] = n_tasks
    counts[TASKS], counts[PIECES], counts[GROUPS] = n_tasks, n_pieces, n_groups + (in_group > 0)
    return int(nanoseconds)


@part
def _divide(state: Growing, thread: int) -> None:
    """Divide the pieces of large nodes."""
    chunks, nodes, step = state.chunks, state.nodes, state.step
    while True:
        task = next_task(state.team)
        if task >= step.counts[TASKS]:
            return
        node = step.chosen[step.tasks[task, 0]]
        for p in range(step.tasks[task, 1], step.tasks[task, 2]):
            chunk, begin, end = step.pieces[p, 0], step.pieces[p, 1], step.pieces[p, 2]
            step.pieces[p, 3] = divide(
                _by_column(chunks, chunk), chunks.rows, chunks.spare, chunks.spare, (begin, end),
                _split_of(nodes, node),
            )  # fmt: skip


@uncounted()
def _set_children(state: Growing, node: int, chunk: int, n_left: int) -> None:
    """Record where a node's rows in a chunk are divided."""
    nodes = state.nodes
    left, begin, end = nodes.left[node], nodes.segments[node, chunk, 0], nodes.segments[node, chunk, 1]
    nodes.segments[left, chunk, 0], nodes.segments[left, chunk, 1] = begin, begin + n_left
    nodes.segments[left + 1, chunk, 0], nodes.segments[left + 1, chunk, 1] = begin + n_left, end
    nodes.n_rows[left] += n_left
    nodes.n_rows[left + 1] += end - begin - n_left


@uncounted()
def _place_pieces(state: Growing) -> None:
    """Find where the pieces of large nodes go, once they are divided."""
    chunks, nodes, step = state.chunks, state.nodes, state.step
    for i in range(step.counts[CHOSEN]):
        node, first, last = step.chosen[i], step.tasks_of[i, 0], step.tasks_of[i, 1]
        if first == last:
            continue
        p, end = step.tasks[first, 1], step.tasks[last - 1, 2]
        for chunk in range(len(chunks.begins) - 1):
            n_left, q = 0, p
            while q < end and step.pieces[q, 0] == chunk:
                n_left += step.pieces[q, 3]
                q += 1
            to_left = nodes.segments[node, chunk, 0]
            to_right = to_left + n_left
            for k in range(p, q):
                step.pieces[k, 4], step.pieces[k, 5] = to_left, to_right
                to_left += step.pieces[k, 3]
                to_right += step.pieces[k, 2] - step.pieces[k, 1] - step.pieces[k, 3]
            p = q
            _set_children(state, node, chunk, n_left)


@uncounted()
def _add(state: Growing, thread: int, chunk: int, begin: int, end: int, into: Int64) -> None:
    """Add rows to a histogram, of either form."""
    _add_pairs(state, thread, chunk, begin, end, into, state.chunks.rows.pairs)


@uncounted()
def _add_pairs(
    state: Growing, thread: int, chunk: int, begin: int, end: int, into: Int64, pairs: Pairs
) -> None:  # fmt: skip
    """Do that, given the pairs of all rows: those of several outputs are in the order of a chunk's rows."""
    bins, order, scratch = _by_row(state.chunks, chunk), state.chunks.rows.order, state.step.scratch[thread]
    if pairs.ndim == 1:
        _add_rows(bins, RowOrder(order, pairs), begin, end, scratch, into)
    else:
        _add_rows(bins, RowOrder(order, pairs[state.chunks.begins[chunk] :]), begin, end, scratch, into)


@uncounted()
def _add_node(state: Growing, thread: int, node: int, into: Int64) -> None:
    """Have a node's rows, alone, in a histogram, of either form."""
    segments = state.nodes.segments
    into[:] = 0
    for chunk in range(len(state.chunks.begins) - 1):
        _add(state, thread, chunk, segments[node, chunk, 0], segments[node, chunk, 1], into)


@part
def _move(state: Growing, thread: int) -> None:
    """Bring the rows of large nodes' pieces and of small nodes to the children, and add the lighter ones' up."""
    step, counts = state.step, state.step.counts
    n_tasks = counts[TASKS]
    while True:
        task = next_task(state.team)
        if task < n_tasks:
            _move_pieces(state, thread, task)
            continue
        group = task - n_tasks
        if group >= counts[GROUPS]:
            return
        for s in range(step.groups[group], step.groups[group + 1]):
            _move_node(state, thread, step.small[s])


@uncounted()
def _move_pieces(state: Growing, thread: int, task: int) -> None:
    """Do that for a task of a large node: what is added up goes into the task's partial sums."""
    chunks, nodes, step = state.chunks, state.nodes, state.step
    place = step.tasks[task, 0]
    is_left = step.built[place] == nodes.left[step.chosen[place]]
    n_slots = state.pool.words.shape[1]
    words = step.counts[BLOCK] <= WORD_ROWS
    partial = step.partials[task]
    partial[: n_slots if words else 2 * n_slots] = 0
    for p in range(step.tasks[task, 1], step.tasks[task, 2]):
        chunk, begin, end, n_left = step.pieces[p, 0], step.pieces[p, 1], step.pieces[p, 2], step.pieces[p, 3]
        if step.counts[IS_ROOT] == 0:
            to_left, to_right = step.pieces[p, 4], step.pieces[p, 5]
            put_back(chunks.spare, chunks.rows, begin, end, n_left, to_left, to_right)
            if is_left:
                begin, end = to_left, to_left + n_left
            else:
                begin, end = to_right, to_right + (end - begin - n_left)
        if words:
            _add(state, thread, chunk, begin, end, partial[:n_slots])
        else:
            _add(state, thread, chunk, begin, end, partial[: 2 * n_slots].reshape(n_slots, 2))


@uncounted()
def _move_node(state: Growing, thread: int, place: int) -> None:
    """Do that for a whole node."""
    chunks, nodes, pool, step = state.chunks, state.nodes, state.pool, state.step
    node, built = step.chosen[place], step.built[place]
    if step.counts[IS_ROOT] == 0:
        for chunk in range(len(chunks.begins) - 1):
            begin, end = nodes.segments[node, chunk, 0], nodes.segments[node, chunk, 1]
            n_left = divide(
                _by_column(chunks, chunk), chunks.rows, chunks.rows, chunks.spare, (begin, end), _split_of(nodes, node),
            )  # fmt: skip
            put_back(chunks.spare, chunks.rows, begin + n_left, end, 0, begin, begin + n_left)
            _set_children(state, node, chunk, n_left)
    if _meets(state):
        if _tells_words(state, place):
            _add_node(state, thread, built, _told_words(state, place))
        else:
            _add_node(state, thread, built, _told_pairs(state, place))
    elif nodes.in_words[built]:
        _add_node(state, thread, built, pool.words[nodes.place[built]])
    else:
        _add_node(state, thread, built, pool.pairs[nodes.place[built]])


# What engines tell each other.

@uncounted()
def _meets(state: Growing) -> bool:
    """Whether there are other engines."""
    return len(state.meeting.told) > 1


@njit(inline="always")
def _told_by(state: Growing, engine: int, size: int) -> Int64:
    """Return what an engine has told this one."""
    found: Int64 = array_at(state.meeting.told[engine], state.meeting.room, size)
    return found


@uncounted()
def _tell_range(state: Growing) -> None:
    """Write the range of this engine's gradients."""
    meeting, largest, n = state.meeting, state.rounds.largest, state.rounds.n_outputs
    state.step.counts[AT] = meeting.begin - 2 * n
    words = meeting.room[state.step.counts[AT] :].view(np.float64)
    for output in range(n):
        words[output], words[n + output] = largest[0, output], largest[1, output]


@uncounted()
def _take_range(state: Growing) -> None:
    """Find the range of all engines' gradients; NaN wins, as it should."""
    largest, n = state.rounds.largest, state.rounds.n_outputs
    for engine in range(len(state.meeting.told)):
        told = _told_by(state, engine, 2 * n).view(np.float64)
        for output in range(n):
            for s in range(2):
                if not told[n * s + output] <= largest[s, output]:
                    largest[s, output] = told[n * s + output]


@uncounted()
def _tell_leaves(state: Growing) -> None:
    """Write the hessians of the rows that this engine has in each leaf."""
    meeting, counts, of_leaves = state.meeting, state.step.counts, state.models.leaf_sums[0]
    counts[AT] = meeting.begin - 2 * state.rounds.n_outputs - len(of_leaves)
    for node in range(counts[SIZE]):
        meeting.room[counts[AT] + node] = of_leaves[node, 1]


@uncounted()
def _take_leaves(state: Growing) -> None:
    """Add up the hessians of each leaf's rows of all engines."""
    size, of_leaves = state.step.counts[SIZE], state.models.leaf_sums[0]
    of_leaves[:size, 1] = 0
    for engine in range(len(state.meeting.told)):
        told = _told_by(state, engine, size)
        for node in range(size):
            of_leaves[node, 1] += told[node]


@uncounted()
def _tell_sums(state: Growing) -> None:
    """Write the root's sums; they change places from one meeting to the next, as a tree that stays a leaf comes to no
    other."""
    counts, nodes, room = state.step.counts, state.nodes, state.meeting.room
    counts[AT] = SUMS + LINE // 2 * (room[0] & 1)
    sums = room[counts[AT] :]
    sums[0], sums[1], sums[2] = nodes.sums[0, 0], nodes.sums[0, 1], nodes.n_rows[0]


@uncounted()
def _take_sums(state: Growing) -> None:
    """Add up the root's sums of all engines, which lie where they were written, or after what else was sent."""
    nodes, meeting, counts = state.nodes, state.meeting, state.step.counts
    at = counts[AT] - meeting.begin if len(meeting.rooms) > 0 else _told_size(state, counts[CHOSEN])
    nodes.sums[0, 0] = nodes.sums[0, 1] = nodes.n_total[0] = 0
    for engine in range(len(meeting.told)):
        told = array_at(meeting.told[engine] + 8 * at, meeting.room, 3)
        nodes.sums[0, 0] += told[0]
        nodes.sums[0, 1] += told[1]
        nodes.n_total[0] += told[2]


@uncounted()
def _share(state: Growing, engine: int) -> tuple[int, int]:
    """Return the slots of the features that an engine searches."""
    shares, offsets = state.meeting.shares, state.chunks.bins.offsets
    return offsets[shares[engine]], offsets[shares[engine + 1]]


@uncounted()
def _told_slots(state: Growing) -> tuple[int, int]:
    """Return the slots of which engines have told this one: all in common memory, or those that it searches."""
    return (0, state.pool.words.shape[1]) if len(state.meeting.rooms) > 0 else _share(state, state.meeting.rank)


@uncounted()
def _told_size(state: Growing, place: int) -> int:
    """Return where the histogram of a node that is built begins in what an engine has told this one."""
    low, high = _told_slots(state)
    return int(state.step.counts[CHOSEN] + state.meeting.units[place] * (high - low))


@uncounted()
def _tells_words(state: Growing, place: int) -> bool:
    """Whether this engine's histogram of a node that is built is of words."""
    return bool(state.meeting.units[place + 1] - state.meeting.units[place] == 1)


@njit(inline="always")
def _told_words(state: Growing, place: int) -> Int64:
    """Return where other engines read this one's histogram of a node that is built."""
    meeting, n_slots = state.meeting, state.pool.words.shape[1]
    begin = meeting.begin + state.step.counts[CHOSEN] + meeting.units[place] * n_slots
    words: Int64 = meeting.room[begin : begin + n_slots]
    return words


@njit(inline="always")
def _told_pairs(state: Growing, place: int) -> Int64:
    """Return the same of a histogram of pairs."""
    meeting, n_slots = state.meeting, state.pool.words.shape[1]
    begin = meeting.begin + state.step.counts[CHOSEN] + meeting.units[place] * n_slots
    pairs: Int64 = meeting.room[begin : begin + 2 * n_slots].reshape(n_slots, 2)
    return pairs


@part
def _plan_telling(state: Growing, thread: int) -> None:
    """Find where the histograms go that engines tell each other; the status is `FULL_TOLD` where there is no room."""
    nodes, step, meeting = state.nodes, state.step, state.meeting
    n = step.counts[CHOSEN]
    meeting.units[0] = 0
    for i in range(n):
        most_rows = min(nodes.n_total[step.chosen[i]], meeting.most_rows)
        meeting.units[i + 1] = meeting.units[i] + (1 if most_rows <= WORD_ROWS else 2)
    size = n + meeting.units[n] * state.pool.words.shape[1]
    step.counts[STATUS] = FULL_TOLD if meeting.begin + size > len(meeting.room) else GROWS


@part
def _tell(state: Growing, thread: int) -> None:
    """Add up the sums of large nodes' tasks, in ranges of slots, where other engines read them."""
    step, n_slots, parts = state.step, state.pool.words.shape[1], state.step.counts[RANGES]
    while True:
        task = next_task(state.team)
        place, part = task // parts, task % parts
        if place >= step.counts[CHOSEN]:
            return
        if step.tasks_of[place, 0] == step.tasks_of[place, 1]:
            continue
        low, high = part * n_slots // parts, (part + 1) * n_slots // parts
        if _tells_words(state, place):
            _add_up_words(state, place, low, high, _told_words(state, place)[low:high])
        else:
            _add_up_pairs(state, place, low, high, _told_pairs(state, place)[low:high])


@uncounted()
def _count_rows(state: Growing) -> None:
    """Count the rows that all engines have in the children."""
    nodes, step, meeting = state.nodes, state.step, state.meeting
    n = step.counts[CHOSEN]
    if step.counts[IS_ROOT]:
        return
    for i in range(n):
        built, node = step.built[i], step.chosen[i]
        total = nodes.n_rows[built]
        for engine in range(len(meeting.told)):
            if engine != meeting.rank:
                total += _told_by(state, engine, n)[i]
        other = 2 * nodes.left[node] + 1 - built
        nodes.n_total[built], nodes.n_total[other] = total, nodes.n_total[node] - total


@uncounted()
def _tell_found(state: Growing) -> None:
    """Write the best splits of opened nodes among this engine's features."""
    step, found, words = state.step, state.nodes.found, state.meeting.room[FOUND:]
    gain = found.gain.view(np.int64)
    set_words = found.right_bins.shape[1]
    step.counts[AT] = FOUND
    for i in range(step.counts[OPENED]):
        node, at = step.opened[step.counts[WAITING] + i], step.counts[OPENED] + (FOUND_WORDS + set_words - 1) * i
        words[i], words[at], words[at + 1] = gain[node], found.feature[node], found.split_bin[node]
        words[at + 2], words[at + 3], words[at + 4] = found.default_left[node], found.left[node, 0], found.left[node, 1]
        for w in range(set_words):
            words[at + 5 + w] = found.right_bins[node, w]


@uncounted()
def _take_found(state: Growing) -> None:
    """Take the best splits of opened nodes from those that all engines have found; the first among equals."""
    step, found, n_opened = state.step, state.nodes.found, state.step.counts[OPENED]
    set_words, n_engines = found.right_bins.shape[1], len(state.meeting.told)
    size = (FOUND_WORDS + set_words) * n_opened
    for i in range(n_opened):
        node, at, best = step.opened[step.counts[WAITING] + i], n_opened + (FOUND_WORDS + set_words - 1) * i, 0
        for engine in range(1, n_engines):
            gain = _told_by(state, engine, size).view(np.float64)[i]
            if gain > _told_by(state, best, size).view(np.float64)[i]:
                best = engine
        told = _told_by(state, best, size)
        found.gain[node] = told.view(np.float64)[i]
        found.feature[node], found.split_bin[node], found.default_left[node] = told[at], told[at + 1], told[at + 2]
        found.left[node, 0], found.left[node, 1] = told[at + 3], told[at + 4]
        for w in range(set_words):
            found.right_bins[node, w] = np.uint32(told[at + 5 + w])


@part
def _meet(state: Growing, thread: int) -> None:
    """Learn what the other engines have told at a stage, where they have memory in common and once they all have:
    `IS_TOLD` stays where they have not for some time, or where the caller has to bring it."""
    meeting, stage = state.meeting, state.step.counts[STAGE]
    if len(meeting.rooms) == 0 or not come_together(meeting.room, meeting.rooms):
        return
    at = meeting.begin if stage == HAS_BUILT else state.step.counts[AT]
    for engine in range(len(meeting.rooms)):
        meeting.told[engine] = meeting.rooms[engine] + 8 * at
    state.step.counts[IS_TOLD] = 0


@part
def _say(state: Growing, thread: int) -> None:
    """Write what the other engines are told at a stage; histograms are written where they are built."""
    stage = state.step.counts[STAGE]
    if stage == HAS_RANGE:
        _tell_range(state)
    elif stage == HAS_BUILT and state.step.counts[IS_ROOT]:
        _tell_sums(state)
    elif stage == HAS_FOUND:
        _tell_found(state)
    elif stage == HAS_LEAVES:
        _tell_leaves(state)


@part
def _hear(state: Growing, thread: int) -> None:
    """Join what the engines have told at a stage; histograms and rows are joined where splits are searched."""
    stage = state.step.counts[STAGE]
    if stage == HAS_RANGE:
        _take_range(state)
    elif stage == HAS_BUILT and state.step.counts[IS_ROOT]:
        _take_sums(state)
    elif stage == HAS_FOUND:
        _take_found(state)
    elif stage == HAS_LEAVES:
        _take_leaves(state)


# The best splits.

@uncounted()
def _add_up_words(state: Growing, place: int, low: int, high: int, into: Int64) -> None:
    """Add up slots `[low, high)` of the partial sums of a large node's tasks."""
    step = state.step
    into[:] = 0
    for task in range(step.tasks_of[place, 0], step.tasks_of[place, 1]):
        partial = step.partials[task]
        for s in range(low, high):
            into[s - low] += partial[s]


@uncounted()
def _add_up_pairs(state: Growing, place: int, low: int, high: int, into: Int64) -> None:
    """Do that in pairs."""
    step = state.step
    into[:] = 0
    for task in range(step.tasks_of[place, 0], step.tasks_of[place, 1]):
        partial = step.partials[task]
        if step.counts[BLOCK] <= WORD_ROWS:
            for s in range(low, high):
                into[s - low, 0] += partial[s] >> np.int64(32)
                into[s - low, 1] += partial[s] & LOW_HALF
        else:
            for s in range(low, high):
                into[s - low, 0] += partial[2 * s]
                into[s - low, 1] += partial[2 * s + 1]


@uncounted()
def _add_told(state: Growing, place: int, low: int, high: int) -> None:
    """Add up slots `[low, high)` of what all engines have of a node that was built."""
    nodes, pool, step, meeting = state.nodes, state.pool, state.step, state.meeting
    own, (first, _) = nodes.place[step.built[place]], _told_slots(state)
    begin, size, n_engines = _told_size(state, place), _told_size(state, step.counts[CHOSEN]), len(meeting.told)
    for turn in range(n_engines):  # each begins with itself: else all read what the first has, then the second
        told = _told_by(state, (meeting.rank + turn) % n_engines, size)[begin:]
        if nodes.in_words[step.built[place]]:
            words = pool.words[own]
            if turn == 0:
                words[low:high] = 0
            for s in range(low, high):
                words[s] += told[s - first]
            continue
        pairs = pool.pairs[own]
        if turn == 0:
            pairs[low:high] = 0
        if _tells_words(state, place):
            for s in range(low, high):
                pairs[s, 0] += told[s - first] >> np.int64(32)
                pairs[s, 1] += told[s - first] & LOW_HALF
        else:
            for s in range(low, high):
                pairs[s, 0] += told[2 * (s - first)]
                pairs[s, 1] += told[2 * (s - first) + 1]


@uncounted()
def _join(state: Growing, place: int, low: int, high: int) -> None:
    """Have slots `[low, high)` of the histograms of a chosen node's children: from partial sums, from what other
    engines have told, or by subtraction."""
    nodes, pool, step = state.nodes, state.pool, state.step
    node, built, derived = step.chosen[place], step.built[place], step.derived[place]
    own = nodes.place[built]
    if _meets(state):
        _add_told(state, place, low, high)
    elif step.tasks_of[place, 0] < step.tasks_of[place, 1]:
        if nodes.in_words[built]:
            _add_up_words(state, place, low, high, pool.words[own, low:high])
        else:
            _add_up_pairs(state, place, low, high, pool.pairs[own, low:high])
    if derived < 0:
        return
    parent, other = nodes.place[node], nodes.place[derived]
    if nodes.in_words[node]:
        subtract(pool.words[parent, low:high], pool.words[own, low:high], pool.words[other, low:high])
    elif nodes.in_words[derived]:
        subtract(pool.pairs[parent, low:high], pool.words[own, low:high], pool.words[other, low:high])
    else:
        subtract(pool.pairs[parent, low:high], pool.pairs[own, low:high], pool.pairs[other, low:high])


@uncounted()
def _totals(state: Growing, node: int) -> NodeTotals:
    nodes, units = state.nodes, state.tree.units
    return NodeTotals(
        np.float64(nodes.sums[node, 0]), np.float64(nodes.sums[node, 1]), units[0], units[1],
        nodes.bounds[node, 0], nodes.bounds[node, 1],
    )  # fmt: skip


@uncounted()
def _features(state: Growing, part: int) -> tuple[int, int]:
    """Return the features of one of the ranges that they are searched in."""
    shares, rank, parts = state.meeting.shares, state.meeting.rank, state.step.counts[RANGES]
    first, n = shares[rank], shares[rank + 1] - shares[rank]
    return first + part * n // parts, first + (part + 1) * n // parts


@uncounted()
def _slots(state: Growing) -> FeatureSlots:
    return FeatureSlots(state.chunks.bins.offsets, state.chunks.n_bins, 0)


@njit(inline="always")
def _usable(state: Growing, node: int) -> UInt8:
    """Return which features a node may use; uint8, shape (features,)."""
    if state.rules.asks:
        asked: UInt8 = state.tree.asked[node]
        return asked
    allowed = state.rounds.allowed
    of_tree = allowed[state.step.counts[TREE] if len(allowed) > 1 else 0]
    usable: UInt8 = of_tree[state.nodes.depth[node] if len(of_tree) > 1 else 0]
    return usable


@part
def _search(state: Growing, thread: int) -> None:
    """Find the best split of each child that was opened, in ranges of features."""
    nodes, pool, step = state.nodes, state.pool, state.step
    parts, offsets, width = step.counts[RANGES], state.chunks.bins.offsets, _width(state)
    while True:
        task = next_task(state.team)
        place, part = task // parts, task % parts
        if place >= step.counts[CHOSEN]:
            return
        features = _features(state, part)
        _join(state, place, offsets[features[0]] * width, offsets[features[1]] * width)
        for side in range(2):
            child = step.built[place] if side == 0 else step.derived[place]
            row = 2 * task + side
            step.results.gain[row], step.results.feature[row] = -np.inf, -1
            if child < 0 or not _opens(state, child):
                continue
            searched = FeatureRange(_usable(state, child), features[0], features[1])
            if nodes.in_words[child]:
                _search_node(state, thread, child, pool.words[nodes.place[child]], searched, row, nodes.value)
            else:
                _search_node(state, thread, child, pool.pairs[nodes.place[child]], searched, row, nodes.value)


@uncounted()
def _search_node(
    state: Growing, thread: int, node: int, own: Int64, searched: FeatureRange, row: int, value: Float32
) -> None:  # fmt: skip
    """Write a node's best split among some features to a row of `results`; `own` is its histogram, `value` is
    `Nodes.value`."""
    step, slots, regular = state.step, _slots(state), state.rules.regular
    room = BinGains(step.prefix[thread], step.gains[thread], step.order[thread])
    if value.ndim == 1:
        best_of_node(own, slots, searched, _totals(state, node), regular, room, step.results, row)
    else:
        totals = VectorTotals(state.nodes.sums[node], state.tree.units)
        best_of_vectors(own, slots, searched, totals, regular, VectorGains(room, step.level[thread]), step.results, row)


@uncounted()
def _copy_split(source: SplitTable, i: int, into: SplitTable, j: int) -> None:
    into.gain[j], into.feature[j], into.split_bin[j] = source.gain[i], source.feature[i], source.split_bin[i]
    into.default_left[j] = source.default_left[i]
    for k in range(source.left.shape[1]):
        into.left[j, k] = source.left[i, k]
    _copy_set(source.right_bins, i, into.right_bins, j)


@uncounted()
def _collect(state: Growing) -> None:
    """Take the best split of each child from those of ranges of features; the first among equals."""
    step, parts = state.step, state.step.counts[RANGES]
    found, results = state.nodes.found, step.results
    for place in range(step.counts[CHOSEN]):
        for side in range(2):
            child = step.built[place] if side == 0 else step.derived[place]
            if child < 0:
                continue
            found.gain[child], found.feature[child] = -np.inf, -1
            for each in range(parts):
                row = 2 * (place * parts + each) + side
                if results.gain[row] > found.gain[child]:
                    _copy_split(results, row, found, child)


@part
def _search_level(state: Growing, thread: int) -> None:
    """Find the one split whose gain, summed over all nodes of a level, is largest, in ranges of features."""
    nodes, pool, step = state.nodes, state.pool, state.step
    slots, offsets = _slots(state), state.chunks.bins.offsets
    regular = state.rules.regular
    room, sums = BinGains(step.prefix[thread], step.gains[thread], step.order[thread]), step.level[thread]
    usable = _usable(state, step.opened[0])
    while True:
        part = next_task(state.team)
        if part >= step.counts[RANGES]:
            return
        first, last = _features(state, part)
        for place in range(step.counts[CHOSEN]):
            _join(state, place, offsets[first], offsets[last])
        step.results.gain[part], step.results.feature[part], best = -np.inf, -1, 0.0
        for f in range(first, last):
            if usable[f] == 0:
                continue
            n, any_missing = slots.n_bins[f], False
            order = CodeOrder(room.order, 0, 0)
            if is_code(regular.sets, f):
                order = _order_level(state, f, room, sums)
            sums[0, :n] = 0.0
            sums[1, :n] = 0.0
            for i in range(step.counts[OPENED]):
                node = step.opened[i]
                totals, place = _totals(state, node), nodes.place[node]
                if nodes.in_words[node]:
                    missing = add_to_level(pool.words[place, offsets[f] :], n, totals, regular, f, order, room, sums)
                else:
                    missing = add_to_level(pool.pairs[place, offsets[f] :], n, totals, regular, f, order, room, sums)
                any_missing = any_missing or missing
            best = best_in_level(sums[:, :n], any_missing, regular, order, f, best, step.results, part)


@uncounted()
def _order_level(state: Growing, feature: int, room: BinGains, sums: Float64) -> CodeOrder:
    """Return the order of a feature's codes by the rows of all nodes of a level; `sums` is memory, shape (2, bins)."""
    nodes, pool, step = state.nodes, state.pool, state.step
    begin, n = state.chunks.bins.offsets[feature], state.chunks.n_bins[feature]
    sums[0, :n] = 0.0
    sums[1, :n] = 0.0
    for i in range(step.counts[OPENED]):
        node = step.opened[i]
        totals, place = _totals(state, node), nodes.place[node]
        if nodes.in_words[node]:
            add_codes(pool.words[place, begin:], n, totals, room, sums)
        else:
            add_codes(pool.pairs[place, begin:], n, totals, room, sums)
    units = (state.tree.units[0], state.tree.units[1])
    return order_codes(sums, n - 1, units, state.rules.regular, room.gains[0], room.order)


@part
def _collect_level(state: Growing, thread: int) -> None:
    """Take the best split of a level from those of ranges of features, for all of its nodes."""
    nodes, pool, step = state.nodes, state.pool, state.step
    found, results, best = nodes.found, step.results, 0
    for each in range(1, step.counts[RANGES]):
        if results.gain[each] > results.gain[best]:
            best = each
    feature, slots, room = results.feature[best], _slots(state), step.prefix[0]
    for i in range(step.counts[OPENED]):
        node = step.opened[i]
        found.gain[node], found.feature[node] = results.gain[best], feature
        if feature < 0:
            continue
        begin, bins = slots.offsets[feature], slots.n_bins[feature]
        totals, place = _totals(state, node), nodes.place[node]
        if nodes.in_words[node]:
            g, h = left_of_node(pool.words[place, begin:], bins, totals, results, best, room)
        else:
            g, h = left_of_node(pool.pairs[place, begin:], bins, totals, results, best, room)
        _copy_split(results, best, found, node)
        found.left[node, 0], found.left[node, 1] = np.int64(g), np.int64(h)


@part
def _build(state: Growing, thread: int) -> None:
    """Divide the chosen nodes' rows and build histograms; the status tells what there is no room for."""
    rules, counts, meeting = state.rules, state.step.counts, state.meeting
    if _meets(state):
        run(state.team, 1, state.parts[PLAN_TELLING], state)
        if counts[STATUS] != GROWS:
            return
    nanoseconds = _plan_rows(state)
    if counts[TASKS] > 0 and counts[IS_ROOT] == 0:
        run(state.team, _threads_for(rules, nanoseconds), state.parts[DIVIDE], state)
        _place_pieces(state)
    n_threads = min(_threads_for(rules, nanoseconds), counts[TASKS] + counts[GROUPS])
    run(state.team, n_threads, state.parts[MOVE], state)
    if not _meets(state):
        return
    for i in range(counts[CHOSEN]):
        meeting.room[meeting.begin + i] = state.nodes.n_rows[state.step.built[i]]
    if counts[TASKS] > 0:
        counts[RANGES] = 2 * rules.n_threads
        n_threads = _threads_for(rules, counts[TASKS] * state.pool.words.shape[1])
        run(state.team, n_threads, state.parts[TELL], state)


@part
def _find(state: Growing, thread: int) -> None:
    """Find the best splits of the children that were opened, among the features that this engine searches; the status
    is `DONE` where the root stays a leaf."""
    step, rules, counts, meeting = state.step, state.rules, state.step.counts, state.meeting
    if counts[IS_ROOT] and _stays_leaf(state):
        counts[STATUS] = DONE
        return
    _count_rows(state)
    low, high = _share(state, meeting.rank)
    n_features = max(1, meeting.shares[meeting.rank + 1] - meeting.shares[meeting.rank])
    n_threads = _threads_for(rules, counts[OPENED] * (high - low) * _width(state))
    if rules.policy == SYMMETRIC:
        counts[RANGES] = min(n_features, 3 * n_threads if n_threads > 1 else 1)
        run(state.team, n_threads, state.parts[SEARCH_LEVEL], state)
        run(state.team, 1, state.parts[COLLECT_LEVEL], state)
    else:
        wanted = 1 if n_threads == 1 else -(-3 * n_threads // counts[CHOSEN])
        counts[RANGES] = min(n_features, wanted)
        run(state.team, n_threads, state.parts[SEARCH], state)
        _collect(state)
    nodes = state.nodes
    for i in range(counts[CHOSEN]):  # histograms that nobody needs any more
        node, built, derived = step.chosen[i], step.built[i], step.derived[i]
        if counts[IS_ROOT]:
            break
        if derived >= 0 and nodes.place[derived] == nodes.place[node] and (
            nodes.in_words[derived] == nodes.in_words[node]
        ):
            nodes.place[node] = -1
        _give_back(state, node)
        if not _opens(state, built):
            _give_back(state, built)


# Leaf values, and margins.

@njit(inline="always")
def _saturated(value: float) -> np.float32:
    """Return a value as models have it; what extreme weights or gradients carry beyond their type stays finite."""
    return np.float32(min(max(value, -LARGEST), LARGEST))


@uncounted()
def _value_node(state: Growing, node: int, value: Float32) -> None:
    """Write what a node adds; `value` is `Nodes.value`."""
    sums, bounds, units = state.nodes.sums[node], state.nodes.bounds[node], state.tree.units
    regular, learning_rate = state.rules.leaves, state.tree.numbers[LEARNING_RATE]
    if value.ndim == 1:
        weight = leaf_weight(sums[0] * units[0], sums[1] * units[1], regular, bounds[0], bounds[1])
        value[node] = _saturated(weight * learning_rate)
    else:
        for k in range(value.shape[1]):
            g, h = sums[2 * k] * units[2 * k], sums[2 * k + 1] * units[2 * k + 1]
            value[node, k] = _saturated(leaf_weight(g, h, regular, -np.inf, np.inf) * learning_rate)


@uncounted()
def _value(state: Growing) -> None:
    """Write the values of all nodes."""
    nodes = state.nodes
    for node in range(state.step.counts[SIZE]):
        _value_node(state, node, nodes.value)
        state.step.walked[node], state.step.defaults[node] = nodes.left[node] + 1, nodes.default_left[node] != 0


@part
def _finish(state: Growing, thread: int) -> None:
    """Add the leaves' values to the margins of the rows that grew the tree."""
    _over_leaves(state, AddsValues(thread))


class AddsValues(NamedTuple):
    """Has `_over_leaves`, or `_over_absent`, add leaf values to margins."""

    thread: int


class MarksLeaves(NamedTuple):
    """Has it write down the leaf of each row."""

    thread: int


LeafWork = AddsValues | MarksLeaves


def _work_on(state: Growing, work: LeafWork, node: int, chunk: int, first: int, last: int) -> None:
    """Work on some rows of a leaf, or of a node whose rows are yet to be divided, at positions in a chunk."""
    raise NotImplementedError("for compiled code only")


@overload(_work_on, inline="always", strict=False)
def _typed_work_on(state: types.Type, work: types.NamedTuple, node: types.Type, chunk: types.Type, first: types.Type,
                   last: types.Type) -> Callable[..., None]:  # fmt: skip
    if work.instance_class is AddsValues:
        return lambda state, work, node, chunk, first, last: _add_values(state, node, chunk, first, last)
    return lambda state, work, node, chunk, first, last: _mark_leaves(state, node, chunk, first, last)


@njit(nogil=True)
def _over_leaves(state: Growing, work: LeafWork) -> None:
    """Work on the rows that grew the tree, in stretches of some."""
    chunks, nodes, n_rows = state.chunks, state.nodes, state.nodes.n_rows[0]
    size, n_chunks = state.step.counts[SIZE], len(chunks.begins) - 1
    stretch = _rows_of_task(n_rows, state.rules.n_threads)
    while True:
        low = next_task(state.team) * stretch
        if low >= n_rows:
            return
        high, position = min(low + stretch, n_rows), 0
        for node in range(size):
            is_split = nodes.left[node] >= 0
            if (is_split and nodes.is_divided[node]) or (node > 0 and not nodes.is_divided[nodes.parent[node]]):
                continue  # its rows are its children's, or still its parent's
            if position >= high:
                break
            if position + nodes.n_rows[node] <= low:
                position += nodes.n_rows[node]
                continue
            for chunk in range(n_chunks):
                begin, end = nodes.segments[node, chunk, 0], nodes.segments[node, chunk, 1]
                first, last = max(begin, begin + low - position), min(end, begin + high - position)
                position += end - begin
                if first < last:
                    _work_on(state, work, node, chunk, first, last)


@part
def _walk(state: Growing, thread: int) -> None:
    """Add the leaves' values to the margins of the rows that were not drawn, which lie behind those that were."""
    _over_absent(state, AddsValues(thread))


def _work_on_absent(state: Growing, work: LeafWork, chunk: int, first: int, last: int) -> None:
    """Work on some rows that were not drawn, at positions in a chunk."""
    raise NotImplementedError("for compiled code only")


@overload(_work_on_absent, inline="always", strict=False)
def _typed_work_on_absent(state: types.Type, work: types.NamedTuple, chunk: types.Type, first: types.Type,
                          last: types.Type) -> Callable[..., None]:  # fmt: skip
    if work.instance_class is AddsValues:
        return lambda state, work, chunk, first, last: _walk_absent(state, chunk, first, last)
    return lambda state, work, chunk, first, last: _mark_absent_leaves(state, chunk, first, last)


@njit(nogil=True)
def _over_absent(state: Growing, work: LeafWork) -> None:
    """Work on the rows that were not drawn, in stretches of some."""
    chunks, nodes = state.chunks, state.nodes
    n_rows = chunks.begins[-1] - nodes.n_rows[0]
    stretch = _rows_of_task(n_rows, state.rules.n_threads)
    while True:
        low = next_task(state.team) * stretch
        if low >= n_rows:
            return
        high, position = low + stretch, 0
        for chunk in range(len(chunks.begins) - 1):
            begin, end = nodes.segments[0, chunk, 1], chunks.begins[chunk + 1]
            first, last = max(begin, begin + low - position), min(end, begin + high - position)
            position += end - begin
            if first < last:
                _work_on_absent(state, work, chunk, first, last)


@uncounted()
def _walk_absent(state: Growing, chunk: int, first: int, last: int) -> None:
    """Add the leaves' values to the margins of some rows that were not drawn."""
    nodes, step, size = state.nodes, state.step, state.step.counts[SIZE]
    tree = TreeArrays(
        nodes.left[:size], step.walked[:size], nodes.feature[:size], nodes.split_bin[:size], step.defaults[:size],
        nodes.value[:size], nodes.right_bins[:size],
    )  # fmt: skip
    _walk_rows(state, chunk, tree, first, last, nodes.value, _flat_margin(state, chunk))


@uncounted()
def _walk_rows(
    state: Growing, chunk: int, tree: TreeArrays, first: int, last: int, value: Float32, flat: Float32
) -> None:  # fmt: skip
    """Do that with a tree; `value` is `Nodes.value`, and `flat` has the margins of all outputs."""
    chunks, order, n_outputs = state.chunks, state.chunks.rows.order, state.rounds.n_outputs
    if value.ndim == 1:
        walk(_by_row(chunks, chunk), tree, order, first, last, flat[_output(state) :: n_outputs])
    else:
        margin = flat.reshape(len(flat) // n_outputs, n_outputs)
        walk(_by_row(chunks, chunk), tree, order, first, last, margin)


@njit(inline="always")
def _flat_margin(state: Growing, chunk: int) -> Float32:
    """Return the margins of a chunk's rows in all outputs, one row after the other."""
    rounds, n_rows = state.rounds, _n_rows(state.chunks, chunk)
    flat: Float32 = array_at(rounds.margin[chunk], state.step.one, n_rows * rounds.n_outputs)
    return flat


@njit(inline="always")
def _margin(state: Growing, chunk: int) -> Float32:
    """Return the margins of a chunk's rows, in the one output of the tree."""
    of_output: Float32 = _flat_margin(state, chunk)[_output(state) :: state.rounds.n_outputs]
    return of_output


@uncounted()
def _add_values(state: Growing, node: int, chunk: int, first: int, last: int) -> None:
    """Add a leaf's value to the margins of some of its rows; or the children's, where they are yet to be divided."""
    _add_to_margins(state, node, chunk, first, last, state.nodes.value, _flat_margin(state, chunk))


@uncounted()
def _add_to_margins(
    state: Growing, node: int, chunk: int, first: int, last: int, value: Float32, flat: Float32
) -> None:  # fmt: skip
    """Do that; `value` is `Nodes.value`, and `flat` has the margins of all outputs."""
    n_outputs = state.rounds.n_outputs
    if value.ndim == 1:
        _add_to(state, node, chunk, first, last, value, flat[_output(state) :: n_outputs])
    else:
        _add_to(state, node, chunk, first, last, value, flat.reshape(len(flat) // n_outputs, n_outputs))


@uncounted()
def _add_to(state: Growing, node: int, chunk: int, first: int, last: int, value: Float32, margin: Float32) -> None:
    order, left = state.chunks.rows.order, state.nodes.left[node]
    if left < 0:
        for i in range(first, last):
            add_value(margin, order[i], value, node)
        return
    bins, split = _by_column(state.chunks, chunk), _split_of(state.nodes, node)
    for i in range(first, last):
        row = order[i]
        add_value(margin, row, value, left if goes_left(bins, np.uint64(row), split) else left + 1)


# Leaves that are written down for each row: to sum up what splits were not searched on, and to fit models.

@njit(inline="always")
def _positions(state: Growing) -> Positions:
    return Positions(state.models.begin, state.models.position)


@part
def _mark(state: Growing, thread: int) -> None:
    """Write down the leaves of the rows that grew the tree."""
    _over_leaves(state, MarksLeaves(thread))


@uncounted()
def _mark_leaves(state: Growing, node: int, chunk: int, first: int, last: int) -> None:
    """Write down a leaf as that of some of its rows; or the children, where they are yet to be divided."""
    order, left, begin = state.chunks.rows.order, state.nodes.left[node], state.chunks.begins[chunk]
    leaf = state.models.leaf[begin:]
    if left < 0:
        for i in range(first, last):
            leaf[order[i]] = node
        return
    bins, split = _by_column(state.chunks, chunk), _split_of(state.nodes, node)
    for i in range(first, last):
        row = order[i]
        leaf[row] = left if goes_left(bins, np.uint64(row), split) else left + 1


@part
def _mark_absent(state: Growing, thread: int) -> None:
    """Write down the leaves of the rows that were not drawn."""
    _over_absent(state, MarksLeaves(thread))


@uncounted()
def _mark_absent_leaves(state: Growing, chunk: int, first: int, last: int) -> None:
    """Write down the leaves of some rows that were not drawn."""
    chunks, nodes = state.chunks, state.nodes
    bins, leaf = _by_row(chunks, chunk), state.models.leaf[chunks.begins[chunk] :]
    for i in range(first, last):
        row, node = chunks.rows.order[i], 0
        while nodes.left[node] >= 0:
            is_left = goes_left(bins, np.uint64(row), _split_of(nodes, node))
            node = nodes.left[node] + (0 if is_left else 1)
        leaf[row] = ABSENT - node


@part
def _equations(state: Growing, thread: int) -> None:
    """Add the rows that grew the tree to the normal equations of their leaves."""
    chunks, models = state.chunks, state.models
    while True:
        r = next_task(state.team)
        if r >= len(chunks.ranges):
            return
        chunk, rows = _range_of(state, r)
        leaf = models.leaf[chunks.begins[chunk] :]
        into = Equations(models.feature, leaf, models.x[thread], models.sums[thread])
        gradients, quanta = _gradients(state, chunk, False), _quanta(state, state.tree.numbers[LEAF_SCALE_H])
        add_rows(_by_row(chunks, chunk), _positions(state), into, gradients, quanta, rows)


@part
def _add_leaves(state: Growing, thread: int) -> None:
    """Add g and h of the rows that grew the tree to those of their leaves."""
    chunks, models, numbers, keys = state.chunks, state.models, state.tree.numbers, state.tree.keys
    quanta = OutputQuanta(
        state.tree.scales[0], numbers[LEAF_SCALE_H : LEAF_SCALE_H + 1], state.rounds.rule.scale_w, keys[1:]
    )  # fmt: skip
    while True:
        r = next_task(state.team)
        if r >= len(chunks.ranges):
            return
        chunk, rows = _range_of(state, r)
        own, leaf = _gradients(state, chunk, False), models.leaf[chunks.begins[chunk] :]
        columns = Gradients(own.g[:, np.newaxis], own.h[:, np.newaxis], own.weight)
        add_to_leaves(columns, quanta, rows, leaf, models.leaf_sums[thread])


@part
def _refit(state: Growing, thread: int) -> None:
    """Give all nodes the sums of their rows' hessians, in place of those that splits were searched on, and the gains
    that these make of their splits."""
    nodes, numbers, regular, of_leaves = state.nodes, state.tree.numbers, state.rules.leaves, state.models.leaf_sums[0]
    state.tree.units[1] = numbers[LEAF_UNIT_H]
    units = state.tree.units[0], state.tree.units[1]
    for node in range(state.step.counts[SIZE] - 1, -1, -1):  # children come after their parents
        left = nodes.left[node]
        if left < 0:
            nodes.sums[node, 1] = of_leaves[node, 1]
            continue
        nodes.sums[node, 1] = nodes.sums[left, 1] + nodes.sums[left + 1, 1]
        low, high = nodes.bounds[node, 0], nodes.bounds[node, 1]
        nodes.gain[node], _, _ = split_value(nodes.sums[node], nodes.sums[left], units, regular, low, high)


@part
def _divide_last(state: Growing, thread: int) -> None:
    """Send the rows of nodes that were split last to their children, in any order."""
    chunks, nodes, order = state.chunks, state.nodes, state.chunks.rows.order
    while True:
        node = next_task(state.team)
        if node >= state.step.counts[SIZE]:
            return
        if nodes.left[node] < 0 or nodes.is_divided[node]:
            continue
        split, nodes.is_divided[node] = _split_of(nodes, node), 1
        for chunk in range(len(chunks.begins) - 1):
            begin, end, bins = nodes.segments[node, chunk, 0], nodes.segments[node, chunk, 1], _by_column(chunks, chunk)
            at = begin
            for i in range(begin, end):
                row = order[i]
                if goes_left(bins, np.uint64(row), split):
                    order[i] = order[at]
                    order[at] = row
                    at += 1
            _set_children(state, node, chunk, at - begin)


@part
def _quantiles(state: Growing, thread: int) -> None:
    """Value leaves by quantiles of their rows' residuals; those whose rows weigh nothing keep their values."""
    nodes = state.nodes
    while True:
        node = next_task(state.team)
        if node >= state.step.counts[SIZE]:
            return
        if nodes.left[node] < 0:
            _set_quantile(state, thread, node)


@uncounted()
def _set_quantile(state: Growing, thread: int, node: int) -> None:
    """Value a leaf by the smallest residual at which the quantile's share of the leaf's weight is reached."""
    rounds, order, segments = state.rounds, state.chunks.rows.order, state.nodes.segments[node]
    prefix, known, below, target = np.uint32(0), 0, np.int64(0), np.int64(0)
    for bits in DIGITS:
        counts = state.step.digits[thread, : 1 << bits]
        counts[:] = 0
        for chunk in range(len(segments)):
            rows = order[segments[chunk, 0] : segments[chunk, 1]]
            count_residuals(_residuals(state, chunk), rows, prefix, known, bits, counts)
        if known == 0:
            total = counts.sum()
            if total == 0:
                return
            target = max(np.int64(np.ceil(rounds.quantiles[_output(state)] * total)), np.int64(1))
        digit, below = next_digit(counts, below, target)
        prefix = np.uint32((prefix << np.uint32(bits)) | np.uint32(digit))
        known += bits
    state.nodes.value[node] = value_of_key(prefix) * np.float32(state.tree.numbers[LEARNING_RATE])


@njit(inline="always")
def _residuals(state: Growing, chunk: int) -> Residuals:
    """Return what residuals of a chunk's rows are computed from."""
    rounds, one, n_rows = state.rounds, state.step.one, _n_rows(state.chunks, chunk)
    n_weights = n_rows if rounds.residual_weight[chunk] != 0 else 0
    return Residuals(
        array_at(rounds.label[chunk], one, n_rows), _margin(state, chunk),
        array_at(rounds.residual_weight[chunk], one, n_weights), rounds.weight_scale,
    )  # fmt: skip


@part
def _find_terms(state: Growing, thread: int) -> None:
    """Find the features of all nodes' models, and have sums of no rows."""
    models, nodes, size = state.models, state.nodes, state.step.counts[SIZE]
    write_terms(nodes.left[:size], state.step.walked[:size], nodes.feature[:size], models.usable, models.feature[:size])
    models.sums[:, :size] = 0
    models.x[:] = 1


@part
def _fit_leaves(state: Growing, thread: int) -> None:
    """Find the slopes of all leaves, once their equations are summed up."""
    models, nodes, numbers, sums = state.models, state.nodes, state.tree.numbers, state.models.sums
    units = state.tree.units
    rule = Ridge(units[0], units[1], models.ridge, state.rules.leaves.least_h, numbers[LEARNING_RATE])
    for node in range(state.step.counts[SIZE]):
        if nodes.left[node] >= 0:
            models.feature[node] = -1
            models.slope[node] = 0
            continue
        for other in range(1, len(sums)):
            for s in range(sums.shape[2]):
                sums[0, node, s] += sums[other, node, s]
        value = nodes.value[node : node + 1]
        fit_leaf(sums[0, node], models.feature[node], rule, value, models.slope[node], models.room)


@part
def _finish_marked(state: Growing, thread: int) -> None:
    """Add what leaves give, which are written down for each row, to the margins of all rows."""
    chunks, models = state.chunks, Models(state.models.feature, state.models.slope, state.nodes.value)
    while True:
        r = next_task(state.team)
        if r >= len(chunks.ranges):
            return
        chunk, rows = _range_of(state, r)
        bins, margin, leaf = _by_row(chunks, chunk), _margin(state, chunk), state.models.leaf[chunks.begins[chunk] :]
        for row in range(rows.begin, rows.end):
            at = np.int64(leaf[row])
            node = at if at >= 0 else ABSENT - at
            margin[row] += value_of(bins, _positions(state), models, node, np.uint64(row))


@part
def _begin(state: Growing, thread: int) -> None:
    """Begin a tree: nothing is taken of the pool, and all rows are in the root; the status tells where there is no
    scale for gradients."""
    pool, counts = state.pool, state.step.counts
    number = counts[TREE]
    counts[:] = 0
    counts[TREE] = number
    counts[STATUS] = GROWS if _scale(state) else REFUSED
    if counts[STATUS] == REFUSED:
        return
    pool.n_free[0], pool.n_free[1] = len(pool.words), len(pool.pairs)
    for i in range(len(pool.words)):
        pool.free_words[i] = i
    for i in range(len(pool.pairs)):
        pool.free_pairs[i] = i
    _start(state)
    counts[SIZE] = counts[LEAVES] = 1


@uncounted()
def _open_root(state: Growing) -> int:
    """Open the root; `GROWS`, or `DONE` where it stays a leaf: of several engines that is known with its histogram."""
    if not _meets(state) and _stays_leaf(state):
        return DONE
    step, counts = state.step, state.step.counts
    step.opened[0] = step.chosen[0] = step.built[0] = 0
    step.derived[0] = -1
    counts[OPENED] = counts[CHOSEN] = counts[IS_ROOT] = 1
    _take_place(state, 0, state.nodes.n_total[0] <= WORD_ROWS)  # there is room for one
    return GROWS


@uncounted()
def _open_next(state: Growing) -> int:
    """Split the nodes that come next and open their children; `GROWS`, or `DONE`, or what there is no room for."""
    counts = state.step.counts
    while True:
        n_chosen = _choose(state)
        if n_chosen == 0:
            return DONE
        status = _split_chosen(state, n_chosen)
        if status != DONE:
            return int(status)
        if counts[CHOSEN] > 0:
            return GROWS
        if state.rules.policy != LOSSGUIDE:
            return DONE


@part
def _open(state: Growing, thread: int) -> None:
    """Open the root, or split the nodes that come next and open their children; the status tells what comes of it."""
    counts = state.step.counts
    counts[STATUS] = _open_root(state) if counts[STAGE] == HAS_SUMS else _open_next(state)


@uncounted()
def _write_leaves(state: Growing) -> None:
    """Write down the leaf of each row."""
    n_rows = state.chunks.begins[-1]
    n_threads = _threads_for(state.rules, 3 * n_rows)
    run(state.team, n_threads, state.parts[MARK], state)
    if state.nodes.n_rows[0] < n_rows:
        run(state.team, n_threads, state.parts[MARK_ABSENT], state)


@uncounted()
def _sum_leaves(state: Growing) -> None:
    """Add up the hessians of the rows that this engine has in each leaf."""
    of_threads, size = state.models.leaf_sums, state.step.counts[SIZE]
    of_threads[:, :size] = 0
    run(state.team, _threads_for(state.rules, 3 * state.chunks.begins[-1]), state.parts[ADD_LEAVES], state)
    for each in range(1, len(of_threads)):
        for node in range(size):
            of_threads[0, node, 1] += of_threads[each, node, 1]


@uncounted()
def _end(state: Growing) -> None:
    """Value the leaves of a tree that has grown, and add these to the margins of all rows."""
    rules, parts, n_rows = state.rules, state.parts, state.chunks.begins[-1]
    n_threads = _threads_for(rules, 3 * n_rows)
    if rules.refits:
        run(state.team, 1, parts[REFIT], state)
    _value(state)
    if rules.quantiles:
        run(state.team, _threads_for(rules, 4 * n_rows), parts[DIVIDE_LAST], state)
        run(state.team, _threads_for(rules, 10 * n_rows), parts[QUANTILES], state)
    if not _writes_leaves(rules):
        run(state.team, n_threads, parts[FINISH], state)
        if state.nodes.n_rows[0] < n_rows:
            run(state.team, n_threads, parts[WALK], state)
        return
    if rules.leaf_terms > 0:
        run(state.team, 1, parts[FIND_TERMS], state)
        run(state.team, _threads_for(rules, 20 * n_rows), parts[EQUATIONS], state)
        run(state.team, 1, parts[FIT_LEAVES], state)
    run(state.team, n_threads, parts[FINISH_MARKED], state)


@part
def _grow(state: Growing, thread: int) -> None:
    """Grow a tree and add it to the margins of all rows, as far as goes without the caller.

    The status (`Step.counts`) tells what comes of it: `DONE`, and `SIZE` nodes are in `nodes` in the order in which
    they were made; or what there was no room for; or `MEETS` at the end of a stage, where other engines have something
    to tell: if engines have memory in common, the next call looks again; if not, the caller brings what they tell, and
    has the next call go on by clearing `IS_TOLD`. With `Rules.asks`, `ASKS` comes back for nodes that are opened: the
    caller writes which features they may use into `Tree.asked`, and calls again. A tree begins where the stage is
    `FILLED` or `STARTS`.
    """
    counts, parts = state.step.counts, state.parts
    while True:
        if counts[IS_TOLD]:
            run(state.team, 1, parts[MEET], state)
            if counts[IS_TOLD]:
                counts[STATUS] = MEETS
                return
        counts[STATUS], stage = GROWS, counts[STAGE]
        if _meets(state):
            run(state.team, 1, parts[HEAR], state)
        if stage == FILLED:
            counts[STAGE] = HAS_RANGE
        elif stage == HAS_RANGE or stage == STARTS:
            run(state.team, 1, parts[BEGIN], state)
            counts[STAGE] = HAS_SUMS
        elif stage == HAS_OPENED:
            run(state.team, 1, parts[BUILD], state)
            counts[STAGE] = HAS_BUILT
        elif stage == HAS_BUILT:
            run(state.team, 1, parts[FIND], state)
            counts[STAGE] = HAS_FOUND
        elif stage == HAS_LEAVES:
            counts[STATUS] = DONE
        else:
            run(state.team, 1, parts[OPEN], state)
            counts[STAGE] = HAS_OPENED
            if counts[STATUS] == GROWS and state.rules.asks:
                counts[STATUS] = ASKS
                return
        if counts[STATUS] == DONE and stage != HAS_LEAVES and _writes_leaves(state.rules):
            _write_leaves(state)
            if state.rules.refits:
                _sum_leaves(state)
                if _meets(state):
                    counts[STATUS], counts[STAGE] = GROWS, HAS_LEAVES
        if counts[STATUS] == DONE:
            _end(state)
        if counts[STATUS] != GROWS:
            return
        if _meets(state) and counts[STAGE] != HAS_SUMS and counts[STAGE] != HAS_OPENED:
            run(state.team, 1, parts[SAY], state)
            arrive(state.meeting.room)
            counts[IS_TOLD] = 1


@uncounted()
def _threshold(rounds: Rounds, feature: int, split_bin: int) -> np.float32:
    """Return the value below which rows go left whose bin is at most `split_bin`, see `Cuts.thresholds`; 0 where a set
    of bins goes right."""
    if split_bin == BY_SET:
        return np.float32(0)
    place = rounds.cut_offsets[feature] + split_bin
    return rounds.cuts[place] if place < rounds.cut_offsets[feature + 1] else np.float32(LARGEST)


@uncounted()
def _write_value(value: Float32, node: int, into: Float32, at: int) -> None:
    """Append what a node adds to the log; `value` is `Nodes.value`."""
    if value.ndim == 1:
        into[at] = value[node]
    else:
        for k in range(value.shape[1]):
            into[at, k] = value[node, k]


@part
def _write_log(state: Growing, thread: int) -> None:
    """Append the tree to the log, which has room for it."""
    nodes, rounds, log = state.nodes, state.rounds, state.rounds.log
    counts, size = rounds.counts, state.step.counts[SIZE]
    for node in range(size):
        at, left = counts[LOGGED] + node, nodes.left[node]
        feature, split_bin = nodes.feature[node], nodes.split_bin[node]
        is_inner = left != LEAF
        log.left[at], log.right[at] = left, left + is_inner
        log.feature[at], log.split_bin[at], log.default_left[at] = feature, split_bin, nodes.default_left[node] != 0
        log.threshold[at] = _threshold(rounds, feature, split_bin) if is_inner else np.float32(0)
        log.gain[at] = _saturated(nodes.gain[node]) if is_inner else np.float32(0)
        _write_value(nodes.value, node, log.value, at)
        for k in range(log.hessian.shape[1]):
            log.hessian[at, k] = np.float64(nodes.sums[node, 2 * k + 1]) * state.tree.units[2 * k + 1]
        _copy_set(nodes.right_bins, node, log.right_bins, at)
        for k in range(log.term.shape[1]):
            log.term[at, k], log.slope[at, k] = state.models.feature[node, k], state.models.slope[node, k]
    counts[LOGGED] += size
    log.ends[counts[ENDED]] = counts[LOGGED]
    counts[ENDED] += 1


PARTS = (
    _search, _move, _open, _finish, _search_level, _find, _build, _grow, _begin, _quantize, _divide, _walk, _tell,
    _hear, _collect_level, _say, _meet, _plan_telling, _count, _write_log, _equations, _finish_marked, _mark,
    _mark_absent, _fit_leaves, _find_terms, _add_leaves, _refit, _quantiles,
    _divide_last,
)  # fmt: skip
(
    SEARCH, MOVE, OPEN, FINISH, SEARCH_LEVEL, FIND, BUILD, GROW, BEGIN, QUANTIZE, DIVIDE, WALK, TELL,
    HEAR, COLLECT_LEVEL, SAY, MEET, PLAN_TELLING, COUNT, WRITE_LOG, EQUATIONS, FINISH_MARKED, MARK,
    MARK_ABSENT, FIT_LEAVES, FIND_TERMS, ADD_LEAVES, REFIT, QUANTILES,
    DIVIDE_LAST,
) = range(len(PARTS))  # fmt: skip
"""Places of the parts, in the order in which they are compiled: those that take longest come first."""


def empty_parts() -> Int64:
    """Return room for the addresses of parts; int64, shape (parts,)."""
    return np.zeros(len(PARTS), np.int64)


def find_parts(state: Growing, n_processes: int) -> None:
    """Write the addresses of the parts that trees of this kind need into `state.parts`; up to `n_processes` processes
    compile them, as many as the fit and those beside it may use threads."""
    levels = state.rules.policy == SYMMETRIC
    marks, draws = writes_leaves(state.rules), state.rounds.below < 2**32
    needed = {GROW, BEGIN, OPEN, BUILD, FIND, QUANTIZE, MOVE, WRITE_LOG}
    needed |= {MARK, FINISH_MARKED} if marks else {FINISH}
    needed |= {ADD_LEAVES, REFIT} if state.rules.refits else set()
    needed |= {DIVIDE_LAST, QUANTILES} if state.rules.quantiles else set()
    needed |= {FIND_TERMS, EQUATIONS, FIT_LEAVES} if state.rules.leaf_terms else set()
    needed |= {SEARCH_LEVEL, COLLECT_LEVEL} if levels else {SEARCH}
    needed |= {DIVIDE} if state.rules.n_threads > 1 else set()
    needed |= {PLAN_TELLING, TELL, SAY, MEET, HEAR} if len(state.meeting.told) > 1 else set()
    needed |= {COUNT, MARK_ABSENT if marks else WALK} if draws else set()
    places = sorted(needed)
    state.parts[places] = addresses_of([PARTS[i] for i in places], state, n_processes)
