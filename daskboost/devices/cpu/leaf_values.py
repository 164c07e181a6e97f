"""What the leaves of a tree that has grown in compiled code are worth, and what that adds to the margins of all rows:
values, quantiles, and linear models."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from daskboost.devices.cpu import njit, uncounted
from daskboost.devices.cpu.addressed import array_at
from daskboost.devices.cpu.gradients import (
    DIGITS,
    Gradients,
    OutputQuanta,
    Residuals,
    add_to_leaves,
    count_residuals,
    next_digit,
    value_of_key,
)
from daskboost.devices.cpu.growing import (
    ABSENT,
    BINS,
    LEAF_SCALE_H,
    LEAF_UNIT_H,
    LEARNING_RATE,
    ROWS,
    SIZE,
    Growing,
    by_column,
    by_row,
    chunk_rows,
    output_of,
    range_of,
    split_of,
)
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
from daskboost.devices.cpu.node_rows import set_children
from daskboost.devices.cpu.partition import TreeArrays, goes_left
from daskboost.devices.cpu.split import split_value
from daskboost.devices.cpu.team import next_task, part, part_without, rows_of_task
from daskboost.devices.cpu.tree_outputs import (
    add_to_margins,
    flat_margin,
    gradients_of,
    margin_of,
    quanta_of,
    value_node,
    walk_rows,
)

_rows_of_task: Callable[[int, int], int] = uncounted()(rows_of_task)


@uncounted()
def value_nodes(state: Growing) -> None:
    """Write the values of all nodes."""
    nodes = state.nodes
    for node in range(state.step.counts[SIZE]):
        value_node(state, node, nodes.value)
        state.step.walked[node], state.step.defaults[node] = nodes.left[node] + 1, nodes.default_left[node] != 0


@part
def finish(state: Growing, thread: int) -> None:
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
def finish_absent(state: Growing, thread: int) -> None:
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
    walk_rows(state, chunk, tree, first, last, nodes.value, flat_margin(state, chunk))


@uncounted()
def _add_values(state: Growing, node: int, chunk: int, first: int, last: int) -> None:
    """Add a leaf's value to the margins of some of its rows; or the children's, where they are yet to be divided."""
    add_to_margins(state, node, chunk, first, last, state.nodes.value, flat_margin(state, chunk))


# Leaves that are written down for each row: to sum up what splits were not searched on, and to fit models.

@njit(inline="always")
def _positions(state: Growing) -> Positions:
    return Positions(state.models.begin, state.models.position)


@part
def mark(state: Growing, thread: int) -> None:
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
    bins, split = by_column(state.chunks, chunk), split_of(state.nodes, node)
    for i in range(first, last):
        row = order[i]
        leaf[row] = left if goes_left(bins, np.uint64(row), split) else left + 1


@part
def mark_absent(state: Growing, thread: int) -> None:
    """Write down the leaves of the rows that were not drawn."""
    _over_absent(state, MarksLeaves(thread))


@uncounted()
def _mark_absent_leaves(state: Growing, chunk: int, first: int, last: int) -> None:
    """Write down the leaves of some rows that were not drawn."""
    chunks, nodes = state.chunks, state.nodes
    bins, leaf = by_row(chunks, chunk), state.models.leaf[chunks.begins[chunk] :]
    for i in range(first, last):
        row, node = chunks.rows.order[i], 0
        while nodes.left[node] >= 0:
            is_left = goes_left(bins, np.uint64(row), split_of(nodes, node))
            node = nodes.left[node] + (0 if is_left else 1)
        leaf[row] = ABSENT - node


@part
def add_equations(state: Growing, thread: int) -> None:
    """Add the rows that grew the tree to the normal equations of their leaves."""
    chunks, models = state.chunks, state.models
    while True:
        r = next_task(state.team)
        if r >= len(chunks.ranges):
            return
        chunk, rows = range_of(state, r)
        leaf = models.leaf[chunks.begins[chunk] :]
        into = Equations(models.feature, leaf, models.x[thread], models.sums[thread])
        gradients, quanta = gradients_of(state, chunk, False), quanta_of(state, state.tree.numbers[LEAF_SCALE_H])
        add_rows(by_row(chunks, chunk), _positions(state), into, gradients, quanta, rows)


@part_without(*BINS)
def add_leaves(state: Growing, thread: int) -> None:
    """Add g and h of the rows that grew the tree to those of their leaves."""
    chunks, models, numbers, keys = state.chunks, state.models, state.tree.numbers, state.tree.keys
    quanta = OutputQuanta(
        state.tree.scales[0], numbers[LEAF_SCALE_H : LEAF_SCALE_H + 1], state.rounds.rule.scale_w, keys[1:]
    )  # fmt: skip
    while True:
        r = next_task(state.team)
        if r >= len(chunks.ranges):
            return
        chunk, rows = range_of(state, r)
        own, leaf = gradients_of(state, chunk, False), models.leaf[chunks.begins[chunk] :]
        columns = Gradients(own.g[:, np.newaxis], own.h[:, np.newaxis], own.weight)
        add_to_leaves(columns, quanta, rows, leaf, models.leaf_sums[thread])


@part_without(*ROWS)
def refit(state: Growing, thread: int) -> None:
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
def divide_last(state: Growing, thread: int) -> None:
    """Send the rows of nodes that were split last to their children, in any order."""
    chunks, nodes, order = state.chunks, state.nodes, state.chunks.rows.order
    while True:
        node = next_task(state.team)
        if node >= state.step.counts[SIZE]:
            return
        if nodes.left[node] < 0 or nodes.is_divided[node]:
            continue
        split, nodes.is_divided[node] = split_of(nodes, node), 1
        for chunk in range(len(chunks.begins) - 1):
            begin, end, bins = nodes.segments[node, chunk, 0], nodes.segments[node, chunk, 1], by_column(chunks, chunk)
            at = begin
            for i in range(begin, end):
                row = order[i]
                if goes_left(bins, np.uint64(row), split):
                    order[i] = order[at]
                    order[at] = row
                    at += 1
            set_children(state, node, chunk, at - begin)


@part_without(*BINS)
def set_quantiles(state: Growing, thread: int) -> None:
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
            target = max(np.int64(np.ceil(rounds.quantiles[output_of(state)] * total)), np.int64(1))
        digit, below = next_digit(counts, below, target)
        prefix = np.uint32((prefix << np.uint32(bits)) | np.uint32(digit))
        known += bits
    state.nodes.value[node] = value_of_key(prefix) * np.float32(state.tree.numbers[LEARNING_RATE])


@njit(inline="always")
def _residuals(state: Growing, chunk: int) -> Residuals:
    """Return what residuals of a chunk's rows are computed from."""
    rounds, one, n_rows = state.rounds, state.step.one, chunk_rows(state.chunks, chunk)
    n_weights = n_rows if rounds.residual_weight[chunk] != 0 else 0
    return Residuals(
        array_at(rounds.label[chunk], one, n_rows), margin_of(state, chunk),
        array_at(rounds.residual_weight[chunk], one, n_weights), rounds.weight_scale,
    )  # fmt: skip


@part_without(*ROWS)
def find_terms(state: Growing, thread: int) -> None:
    """Find the features of all nodes' models, and have sums of no rows."""
    models, nodes, size = state.models, state.nodes, state.step.counts[SIZE]
    write_terms(nodes.left[:size], state.step.walked[:size], nodes.feature[:size], models.usable, models.feature[:size])
    models.sums[:, :size] = 0
    models.x[:] = 1


@part_without(*ROWS)
def fit_leaves(state: Growing, thread: int) -> None:
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
def finish_marked(state: Growing, thread: int) -> None:
    """Add what leaves give, which are written down for each row, to the margins of all rows."""
    chunks, models = state.chunks, Models(state.models.feature, state.models.slope, state.nodes.value)
    while True:
        r = next_task(state.team)
        if r >= len(chunks.ranges):
            return
        chunk, rows = range_of(state, r)
        bins, margin, leaf = by_row(chunks, chunk), margin_of(state, chunk), state.models.leaf[chunks.begins[chunk] :]
        for row in range(rows.begin, rows.end):
            at = np.int64(leaf[row])
            node = at if at >= 0 else ABSENT - at
            margin[row] += value_of(bins, _positions(state), models, node, np.uint64(row))
