"""Rows of the nodes of a tree that grows in compiled code: they are drawn and quantized, they go to the children, and
they are added up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from daskboost.devices.cpu import uncounted
from daskboost.devices.cpu.gradients import count_drawn
from daskboost.devices.cpu.growing import (
    BINS,
    BLOCK,
    CHOSEN,
    GROUP_NS,
    GROUPS,
    IS_ROOT,
    PIECES,
    RANGES,
    ROWS,
    TASKS,
    Growing,
    by_column,
    least_block,
    meets,
    range_of,
    row_ns,
    split_of,
    threads_for,
    width_of,
)
from daskboost.devices.cpu.histogram import LOW_HALF, WORD_ROWS
from daskboost.devices.cpu.meetings import tells_words, told_pairs, told_words
from daskboost.devices.cpu.partition import divide, put_back
from daskboost.devices.cpu.team import next_task, part, part_without
from daskboost.devices.cpu.tree_outputs import add_to_histogram, draw_of, take_range
from daskboost.dtypes import Int64

_row_ns: Callable[[int], int] = uncounted()(row_ns)
_least_block: Callable[[int, int], int] = uncounted()(least_block)


@part_without(*ROWS)
def count_draws(state: Growing, thread: int) -> None:
    """Count the drawn rows of each range."""
    while True:
        r = next_task(state.team)
        if r >= len(state.chunks.ranges):
            return
        chunk, rows = range_of(state, r)
        state.step.drawn[r, 0] = count_drawn(draw_of(state, chunk), rows)


@part_without(*BINS)
def quantize_rows(state: Growing, thread: int) -> None:
    """Quantize the drawn rows of each range; rows that are not drawn go behind those of their chunk that are."""
    while True:
        r = next_task(state.team)
        if r >= len(state.chunks.ranges):
            return
        chunk, rows = range_of(state, r)
        take_range(state, chunk, rows, state.chunks.rows.pairs, state.step.drawn[r])


# Rows go to the children.

@uncounted()
def plan_rows(state: Growing) -> int:
    """Divide the rows of the chosen nodes into tasks; return how long they take, in nanoseconds."""
    chunks, nodes, step, counts = state.chunks, state.nodes, state.step, state.step.counts
    n_chosen, total, of_row = counts[CHOSEN], 0, _row_ns((len(chunks.offsets) - 1) * width_of(state))
    for i in range(n_chosen):
        total += nodes.n_rows[step.chosen[i]]
    nanoseconds = total * of_row
    n_threads = threads_for(state.rules, nanoseconds)
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
def divide_rows(state: Growing, thread: int) -> None:
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
                by_column(chunks, chunk), chunks.rows, chunks.spare, chunks.spare, (begin, end),
                split_of(nodes, node),
            )  # fmt: skip


@uncounted()
def set_children(state: Growing, node: int, chunk: int, n_left: int) -> None:
    """Record where a node's rows in a chunk are divided."""
    nodes = state.nodes
    left, begin, end = nodes.left[node], nodes.segments[node, chunk, 0], nodes.segments[node, chunk, 1]
    nodes.segments[left, chunk, 0], nodes.segments[left, chunk, 1] = begin, begin + n_left
    nodes.segments[left + 1, chunk, 0], nodes.segments[left + 1, chunk, 1] = begin + n_left, end
    nodes.n_rows[left] += n_left
    nodes.n_rows[left + 1] += end - begin - n_left


@uncounted()
def place_pieces(state: Growing) -> None:
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
            set_children(state, node, chunk, n_left)


@uncounted()
def _add_node(state: Growing, thread: int, node: int, into: Int64) -> None:
    """Have a node's rows, alone, in a histogram, of either form."""
    segments = state.nodes.segments
    into[:] = 0
    for chunk in range(len(state.chunks.begins) - 1):
        add_to_histogram(state, thread, chunk, segments[node, chunk, 0], segments[node, chunk, 1], into)


@part
def move_rows(state: Growing, thread: int) -> None:
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
            add_to_histogram(state, thread, chunk, begin, end, partial[:n_slots])
        else:
            add_to_histogram(state, thread, chunk, begin, end, partial[: 2 * n_slots].reshape(n_slots, 2))


@uncounted()
def _move_node(state: Growing, thread: int, place: int) -> None:
    """Do that for a whole node."""
    chunks, nodes, pool, step = state.chunks, state.nodes, state.pool, state.step
    node, built = step.chosen[place], step.built[place]
    if step.counts[IS_ROOT] == 0:
        for chunk in range(len(chunks.begins) - 1):
            begin, end = nodes.segments[node, chunk, 0], nodes.segments[node, chunk, 1]
            n_left = divide(
                by_column(chunks, chunk), chunks.rows, chunks.rows, chunks.spare, (begin, end), split_of(nodes, node),
            )  # fmt: skip
            put_back(chunks.spare, chunks.rows, begin + n_left, end, 0, begin, begin + n_left)
            set_children(state, node, chunk, n_left)
    if meets(state):
        if tells_words(state, place):
            _add_node(state, thread, built, told_words(state, place))
        else:
            _add_node(state, thread, built, told_pairs(state, place))
    elif nodes.in_words[built]:
        _add_node(state, thread, built, pool.words[nodes.place[built]])
    else:
        _add_node(state, thread, built, pool.pairs[nodes.place[built]])


@part_without(*ROWS)
def tell(state: Growing, thread: int) -> None:
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
        if tells_words(state, place):
            add_up_words(state, place, low, high, told_words(state, place)[low:high])
        else:
            add_up_pairs(state, place, low, high, told_pairs(state, place)[low:high])


# Partial sums of large nodes' tasks.

@uncounted()
def add_up_words(state: Growing, place: int, low: int, high: int, into: Int64) -> None:
    """Add up slots `[low, high)` of the partial sums of a large node's tasks."""
    step = state.step
    into[:] = 0
    for task in range(step.tasks_of[place, 0], step.tasks_of[place, 1]):
        partial = step.partials[task]
        for s in range(low, high):
            into[s - low] += partial[s]


@uncounted()
def add_up_pairs(state: Growing, place: int, low: int, high: int, into: Int64) -> None:
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
