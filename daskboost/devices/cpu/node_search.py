"""The best splits of the nodes of a tree that grows in compiled code, in histograms that are joined first."""

from __future__ import annotations

import numpy as np

from daskboost.devices.cpu import njit, uncounted
from daskboost.devices.cpu.growing import CHOSEN, OPENED, RANGES, ROWS, TREE, Growing, copy_set, meets, opens, width_of
from daskboost.devices.cpu.histogram import LOW_HALF
from daskboost.devices.cpu.meetings import tells_words, told_by, told_size, told_slots
from daskboost.devices.cpu.node_rows import add_up_pairs, add_up_words
from daskboost.devices.cpu.split import BinGains, FeatureRange, SplitTable, is_code, of_output, order_codes, subtract
from daskboost.devices.cpu.split_level import add_codes, add_to_level, best_in_level, left_of_node
from daskboost.devices.cpu.split_sets import CodeOrder
from daskboost.devices.cpu.team import next_task, part_without
from daskboost.devices.cpu.tree_outputs import node_totals, room_of, search_node, slots_of
from daskboost.dtypes import Float64, UInt8


@uncounted()
def _add_told(state: Growing, place: int, low: int, high: int) -> None:
    """Add up slots `[low, high)` of what all engines have of a node that was built."""
    nodes, pool, step, meeting = state.nodes, state.pool, state.step, state.meeting
    own, (first, _) = nodes.place[step.built[place]], told_slots(state)
    begin, size, n_engines = told_size(state, place), told_size(state, step.counts[CHOSEN]), len(meeting.told)
    for turn in range(n_engines):  # each begins with itself: else all read what the first has, then the second
        told = told_by(state, (meeting.rank + turn) % n_engines, size)[begin:]
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
        if tells_words(state, place):
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
    if meets(state):
        _add_told(state, place, low, high)
    elif step.tasks_of[place, 0] < step.tasks_of[place, 1]:
        if nodes.in_words[built]:
            add_up_words(state, place, low, high, pool.words[own, low:high])
        else:
            add_up_pairs(state, place, low, high, pool.pairs[own, low:high])
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
def _features(state: Growing, part: int) -> tuple[int, int]:
    """Return the features of one of the ranges that they are searched in."""
    shares, rank, parts = state.meeting.shares, state.meeting.rank, state.step.counts[RANGES]
    first, n = shares[rank], shares[rank + 1] - shares[rank]
    return first + part * n // parts, first + (part + 1) * n // parts


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


@part_without(*ROWS)
def search_nodes(state: Growing, thread: int) -> None:
    """Find the best split of each child that was opened, in ranges of features."""
    nodes, pool, step = state.nodes, state.pool, state.step
    parts, offsets, width = step.counts[RANGES], state.chunks.offsets, width_of(state)
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
            if child < 0 or not opens(state, child):
                continue
            searched = FeatureRange(_usable(state, child), features[0], features[1])
            if nodes.in_words[child]:
                search_node(state, thread, child, pool.words[nodes.place[child]], searched, row, nodes.value)
            else:
                search_node(state, thread, child, pool.pairs[nodes.place[child]], searched, row, nodes.value)


@uncounted()
def _copy_split(source: SplitTable, i: int, into: SplitTable, j: int) -> None:
    into.gain[j], into.feature[j], into.split_bin[j] = source.gain[i], source.feature[i], source.split_bin[i]
    into.default_left[j] = source.default_left[i]
    for k in range(source.left.shape[1]):
        into.left[j, k] = source.left[i, k]
    copy_set(source.right_bins, i, into.right_bins, j)


@uncounted()
def collect(state: Growing) -> None:
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


@part_without(*ROWS)
def search_level(state: Growing, thread: int) -> None:
    """Find the one split whose gain, summed over all nodes of a level, is largest, in ranges of features."""
    nodes, pool, step = state.nodes, state.pool, state.step
    slots, offsets = slots_of(state), state.chunks.offsets
    regular = state.rules.regular
    room, sums = room_of(state, thread), step.level[thread]
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
                totals, place = node_totals(state, node), nodes.place[node]
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
    begin, n = state.chunks.offsets[feature], state.chunks.n_bins[feature]
    sums[0, :n] = 0.0
    sums[1, :n] = 0.0
    for i in range(step.counts[OPENED]):
        node = step.opened[i]
        totals, place = node_totals(state, node), nodes.place[node]
        if nodes.in_words[node]:
            add_codes(pool.words[place, begin:], n, totals, room, sums)
        else:
            add_codes(pool.pairs[place, begin:], n, totals, room, sums)
    order: CodeOrder = order_codes(sums, n - 1, state.tree.units, state.rules.regular, room)
    return order


@part_without(*ROWS)
def collect_level(state: Growing, thread: int) -> None:
    """Take the best split of a level from those of ranges of features, for all of its nodes."""
    nodes, pool, step = state.nodes, state.pool, state.step
    found, results, best = nodes.found, step.results, 0
    for each in range(1, step.counts[RANGES]):
        if results.gain[each] > results.gain[best]:
            best = each
    feature, slots, room = results.feature[best], slots_of(state), step.prefix[0]
    for i in range(step.counts[OPENED]):
        node = step.opened[i]
        found.gain[node], found.feature[node] = results.gain[best], feature
        if feature < 0:
            continue
        begin, bins = slots.offsets[feature], slots.n_bins[feature]
        totals, place = node_totals(state, node), nodes.place[node]
        if nodes.in_words[node]:
            g, h = left_of_node(pool.words[place, begin:], bins, of_output(totals, 0), results, best, room)
        else:
            g, h = left_of_node(pool.pairs[place, begin:], bins, of_output(totals, 0), results, best, room)
        _copy_split(results, best, found, node)
        found.left[node, 0], found.left[node, 1] = np.int64(g), np.int64(h)
