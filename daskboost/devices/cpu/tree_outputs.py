"""Where trees of one output and trees whose leaves are vectors of all outputs differ, in compiled code: how gradients
are taken and added up, how a node is searched and valued, and how values become margins."""

from __future__ import annotations

import numpy as np

from daskboost.devices.cpu import njit, uncounted
from daskboost.devices.cpu.addressed import array_at, weight_at
from daskboost.devices.cpu.gradients import Gradients, OutputQuanta, Quanta, RowDraw, RowRange, take_rows, take_vectors
from daskboost.devices.cpu.growing import (
    LARGEST,
    LEARNING_RATE,
    Growing,
    by_column,
    by_row,
    chunk_rows,
    output_of,
    split_of,
)
from daskboost.devices.cpu.histogram import _add_rows
from daskboost.devices.cpu.partition import TreeArrays, add_value, goes_left, walk
from daskboost.devices.cpu.split import (
    BinGains,
    FeatureRange,
    FeatureSlots,
    VectorTotals,
    best_of_node,
    gain_of_weight,
    leaf_gain,
    leaf_weight,
)
from daskboost.devices.cpu.split_vectors import VectorGains, best_of_vectors, gain_of_vectors
from daskboost.devices.row_order import RowOrder
from daskboost.dtypes import Float32, Int64, Pairs


@njit(inline="always")
def quanta_of(state: Growing, scale_h: float) -> Quanta:
    """Return how the gradients of a tree of one output become integers."""
    return Quanta(state.tree.scales[0, 0], scale_h, state.rounds.rule.scale_w, state.tree.keys[1])


@njit(inline="always")
def gradients_of(state: Growing, chunk: int, searched: bool) -> Gradients:
    """Return the gradients of a chunk's rows, in the output of the tree; as splits are searched on them, or as they
    value leaves."""
    rounds, one, output, n_rows = state.rounds, state.step.one, output_of(state), chunk_rows(state.chunks, chunk)
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
    rounds, one, n_rows = state.rounds, state.step.one, chunk_rows(state.chunks, chunk)
    n_outputs = rounds.n_outputs
    return Gradients(
        array_at(rounds.g[chunk], one, n_rows * n_outputs).reshape(n_rows, n_outputs),
        array_at(rounds.h[chunk], one, n_rows * n_outputs).reshape(n_rows, n_outputs),
        weight_at(rounds.weight[chunk], n_rows, state.chunks.rows.pairs),
    )


@uncounted()
def take_range(state: Growing, chunk: int, rows: RowRange, pairs: Pairs, drawn: Int64) -> None:
    """Quantize the drawn rows of a range; `pairs` are those of all rows, `drawn` the numbers of the range."""
    chunks, draw = state.chunks, draw_of(state, chunk)
    begin, end = chunks.begins[chunk], chunks.begins[chunk + 1]
    into = RowOrder(chunks.rows.order[begin:end], pairs[begin:end])
    if pairs.ndim == 1:
        gradients, quanta = gradients_of(state, chunk, True), quanta_of(state, state.tree.scales[1, 0])
        drawn[3], drawn[4] = take_rows(gradients, quanta, draw, rows, into, drawn[1], drawn[2])
    else:
        scales = state.tree.scales
        of_outputs = OutputQuanta(scales[0], scales[1], state.rounds.rule.scale_w, state.tree.keys[1:])
        take_vectors(_vector_gradients(state, chunk), of_outputs, draw, rows, into, drawn[1], drawn[2], drawn[3:])


@uncounted()
def draw_of(state: Growing, chunk: int) -> RowDraw:
    """Return which rows of a chunk grow the tree."""
    rounds, keys, begins = state.rounds, state.tree.keys, state.chunks.begins
    n_codes = begins[chunk + 1] - begins[chunk] if rounds.codes[chunk] != 0 else 0
    return RowDraw(keys[0], rounds.below, array_at(rounds.codes[chunk], keys, n_codes))


@uncounted()
def gain_of_split(state: Growing, node: int, left: int, value: Float32) -> None:
    """Write the gain of a node's split, and bounds of its children's values; `value` is `Nodes.value`."""
    nodes, units, regular = state.nodes, state.tree.units, state.rules.regular
    if value.ndim == 1:
        _bound_children(state, node, left)
    else:
        nodes.gain[node] = gain_of_vectors(nodes.sums[node], nodes.sums[left], units, regular)


@uncounted()
def _bound_children(state: Growing, node: int, left: int) -> None:
    """Write the gain of a split of a tree of one output, and the bounds of its children's values."""
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
def add_to_histogram(state: Growing, thread: int, chunk: int, begin: int, end: int, into: Int64) -> None:
    """Add rows to a histogram, of either form."""
    _add_pairs(state, thread, chunk, begin, end, into, state.chunks.rows.pairs)


@uncounted()
def _add_pairs(
    state: Growing, thread: int, chunk: int, begin: int, end: int, into: Int64, pairs: Pairs
) -> None:  # fmt: skip
    """Add rows to a histogram, given the pairs of all rows: those of several outputs are in the order of chunks'
    rows."""
    bins, order, scratch = by_row(state.chunks, chunk), state.chunks.rows.order, state.step.scratch[thread]
    if pairs.ndim == 1:
        _add_rows(bins, RowOrder(order, pairs), begin, end, scratch, into)
    else:
        _add_rows(bins, RowOrder(order, pairs[state.chunks.begins[chunk] :]), begin, end, scratch, into)


@uncounted()
def node_totals(state: Growing, node: int) -> VectorTotals:
    """Return the sums of a node, and the bounds of its value."""
    bounds = state.nodes.bounds[node]
    return VectorTotals(state.nodes.sums[node], state.tree.units, bounds[0], bounds[1])


@uncounted()
def room_of(state: Growing, thread: int) -> BinGains:
    """Return a thread's memory for the bins of a feature."""
    step = state.step
    return BinGains(step.prefix[thread], step.gains[thread], step.order[thread], step.outputs[thread])


@uncounted()
def slots_of(state: Growing) -> FeatureSlots:
    """Return where the bins of each feature lie in histograms."""
    return FeatureSlots(state.chunks.offsets, state.chunks.n_bins, 0)


@uncounted()
def search_node(
    state: Growing, thread: int, node: int, own: Int64, searched: FeatureRange, row: int, value: Float32
) -> None:  # fmt: skip
    """Write a node's best split among some features to a row of `results`; `own` is its histogram, `value` is
    `Nodes.value`."""
    step, slots, regular = state.step, slots_of(state), state.rules.regular
    room, totals = room_of(state, thread), node_totals(state, node)
    if value.ndim == 1:
        best_of_node(own, slots, searched, totals, regular, room, step.results, row)
    else:
        best_of_vectors(own, slots, searched, totals, regular, VectorGains(room, step.level[thread]), step.results, row)


@njit(inline="always")
def saturated(value: float) -> np.float32:
    """Return a value as models have it; what extreme weights or gradients carry beyond their type stays finite."""
    return np.float32(min(max(value, -LARGEST), LARGEST))


@uncounted()
def value_node(state: Growing, node: int, value: Float32) -> None:
    """Write what a node adds; `value` is `Nodes.value`."""
    sums, bounds, units = state.nodes.sums[node], state.nodes.bounds[node], state.tree.units
    regular, learning_rate = state.rules.leaves, state.tree.numbers[LEARNING_RATE]
    if value.ndim == 1:
        weight = leaf_weight(sums[0] * units[0], sums[1] * units[1], regular, bounds[0], bounds[1])
        value[node] = saturated(weight * learning_rate)
    else:
        for k in range(value.shape[1]):
            g, h = sums[2 * k] * units[2 * k], sums[2 * k + 1] * units[2 * k + 1]
            value[node, k] = saturated(leaf_weight(g, h, regular, -np.inf, np.inf) * learning_rate)


@uncounted()
def walk_rows(
    state: Growing, chunk: int, tree: TreeArrays, first: int, last: int, value: Float32, flat: Float32
) -> None:  # fmt: skip
    """Add the values of a tree's leaves to the margins of rows that walk it; `value` is `Nodes.value`, and `flat` has
    the margins of all outputs."""
    chunks, order, n_outputs = state.chunks, state.chunks.rows.order, state.rounds.n_outputs
    if value.ndim == 1:
        walk(by_row(chunks, chunk), tree, order, first, last, flat[output_of(state) :: n_outputs])
    else:
        margin = flat.reshape(len(flat) // n_outputs, n_outputs)
        walk(by_row(chunks, chunk), tree, order, first, last, margin)


@njit(inline="always")
def flat_margin(state: Growing, chunk: int) -> Float32:
    """Return the margins of a chunk's rows in all outputs, one row after the other."""
    rounds, n_rows = state.rounds, chunk_rows(state.chunks, chunk)
    flat: Float32 = array_at(rounds.margin[chunk], state.step.one, n_rows * rounds.n_outputs)
    return flat


@njit(inline="always")
def margin_of(state: Growing, chunk: int) -> Float32:
    """Return the margins of a chunk's rows, in the one output of the tree."""
    of_output: Float32 = flat_margin(state, chunk)[output_of(state) :: state.rounds.n_outputs]
    return of_output


@uncounted()
def add_to_margins(
    state: Growing, node: int, chunk: int, first: int, last: int, value: Float32, flat: Float32
) -> None:  # fmt: skip
    """Add a leaf's value to the margins of some of its rows; or the children's, where they are yet to be divided.
    `value` is `Nodes.value`, and `flat` has the margins of all outputs."""
    n_outputs = state.rounds.n_outputs
    if value.ndim == 1:
        _add_to(state, node, chunk, first, last, value, flat[output_of(state) :: n_outputs])
    else:
        _add_to(state, node, chunk, first, last, value, flat.reshape(len(flat) // n_outputs, n_outputs))


@uncounted()
def _add_to(state: Growing, node: int, chunk: int, first: int, last: int, value: Float32, margin: Float32) -> None:
    """Add values to margins, both of one output or of all."""
    order, left = state.chunks.rows.order, state.nodes.left[node]
    if left < 0:
        for i in range(first, last):
            add_value(margin, order[i], value, node)
        return
    bins, split = by_column(state.chunks, chunk), split_of(state.nodes, node)
    for i in range(first, last):
        row = order[i]
        add_value(margin, row, value, left if goes_left(bins, np.uint64(row), split) else left + 1)


@uncounted()
def write_value(value: Float32, node: int, into: Float32, at: int) -> None:
    """Append what a node adds to the log; `value` is `Nodes.value`."""
    if value.ndim == 1:
        into[at] = value[node]
    else:
        for k in range(value.shape[1]):
            into[at, k] = value[node, k]
