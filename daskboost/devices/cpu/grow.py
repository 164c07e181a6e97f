"""Whole trees in compiled code, over rows that stay in memory: quantizing, levels, leaf values and margins.

The definition of a tree stays `tree/growing_tree.py` and the coordinator's loop over it, which serve all devices, any
number of engines and all rules. What is here grows the same trees, node by node. Between two nodes nothing returns to
Python; the work of a step is shared by the threads of a team (`team.py`), in regions:

    quantize_rows   ranges of rows: gradients become integers, all rows in the root
    divide_rows     pieces of large nodes: rows go to either side, into spare room
    move_rows       pieces of large nodes and whole small ones: rows come back in order, and the lighter child's are
                    added to a histogram: its own, or one of the piece's task, to be added up later; of several engines,
                    small nodes' histograms are built where the other engines read them
    tell            ranges of slots x large nodes: where there are several engines, tasks' sums become what is told
    search_nodes    features x pairs of siblings: histograms that are yet to be added up or subtracted, then the best
                    splits
    finish          stretches of rows: leaf values are added to margins
    mark            the same, where leaves are linear, or splits were searched on something else than hessians: each
                    row's leaf is written down, and `finish_marked` takes the place of `finish`
    divide_last     nodes that were split last, where leaves are quantiles: rows go to either side
    set_quantiles   leaves: each becomes the quantile of its rows' residuals
    add_leaves      ranges of rows: their g and h are added to those of their leaves, as h was not searched on
    add_equations   ranges of rows: they are added to the normal equations of their leaves, of which one thread then
                    finds the slopes. In the order of rows, whose bins are read one row after the other, that takes a
                    third of the time that it takes in the order of leaves

What they work on is in `growing.py`, regions over rows in `node_rows.py`, over histograms in `node_search.py`, over
leaves in `leaf_values.py`; `tree_outputs.py` tells trees of one output and of several apart, and `meetings.py` has what
several engines tell each other. Which node is split next is decided between regions by one thread (`_choose`). Sums are
integers, so that a tree does not depend on how its work was shared.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from daskboost.devices.cpu import uncounted
from daskboost.devices.cpu.compilers import addresses_of
from daskboost.devices.cpu.gradients import tree_key
from daskboost.devices.cpu.growing import (
    ASKS,
    BEGUN,
    CHOSEN,
    DEPTHWISE,
    DONE,
    ENDED,
    FILLED,
    FULL_NODES,
    FULL_PAIRS,
    FULL_WORDS,
    GROUPS,
    GROWS,
    HAS_BUILT,
    HAS_FOUND,
    HAS_LEAVES,
    HAS_OPENED,
    HAS_RANGE,
    HAS_SUMS,
    IS_ROOT,
    IS_TOLD,
    LARGEST,
    LEAF,
    LEAF_SCALE_H,
    LEAF_UNIT_H,
    LEARNING_RATE,
    LEAST_GAIN,
    LEAVES,
    LOGGED,
    LOSSGUIDE,
    MEETS,
    OPENED,
    RANGES,
    REFUSED,
    ROWS,
    SIZE,
    STAGE,
    STARTS,
    STATUS,
    SYMMETRIC,
    TASKS,
    TREE,
    WAITING,
    Growing,
    Nodes,
    Rounds,
    Rules,
    copy_set,
    meets,
    opens,
    output_of,
    threads_for,
    width_of,
    writes_leaves,
)
from daskboost.devices.cpu.histogram import WORD_ROWS
from daskboost.devices.cpu.leaf_values import (
    add_equations,
    add_leaves,
    divide_last,
    find_terms,
    finish,
    finish_absent,
    finish_marked,
    fit_leaves,
    mark,
    mark_absent,
    refit,
    set_quantiles,
    value_nodes,
)
from daskboost.devices.cpu.meetings import count_rows, hear, meet, plan_telling, say, share_of
from daskboost.devices.cpu.node_rows import (
    count_draws,
    divide_rows,
    move_rows,
    place_pieces,
    plan_rows,
    quantize_rows,
    tell,
)
from daskboost.devices.cpu.node_search import collect, collect_level, search_level, search_nodes
from daskboost.devices.cpu.scales import least_gain, scales_by, units_of
from daskboost.devices.cpu.team import arrive, part_without, run
from daskboost.devices.cpu.tree_outputs import gain_of_split, saturated, write_value
from daskboost.devices.row_order import BY_SET
from daskboost.dtypes import Int64

_writes_leaves: Callable[[Rules], bool] = uncounted()(writes_leaves)


@uncounted()
def _scale(state: Growing) -> bool:
    """Find by the range of all gradients how the tree's become integers; False where these are not finite."""
    rounds, tree, first, number = state.rounds, state.tree, output_of(state), state.step.counts[TREE]
    iteration, noise = rounds.counts[BEGUN] + number // rounds.n_trees, 0.0
    tree.keys[0] = tree_key(rounds.key_states[1], iteration, first)
    for k in range(width_of(state)):
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
        run(state.team, threads_for(state.rules, 2 * n_rows), state.parts[COUNT], state)
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
    run(state.team, threads_for(state.rules, 4 * n_rows * width_of(state)), state.parts[QUANTIZE], state)
    nodes.parent[0], nodes.depth[0] = -1, 0
    nodes.sums[0, :] = 0
    nodes.n_rows[0] = 0
    for r in range(len(ranges)):
        for k in range(nodes.sums.shape[1]):
            nodes.sums[0, k] += drawn[r, 3 + k]
        nodes.n_rows[0] += drawn[r, 0]
    nodes.n_total[0] = state.meeting.n_rows if meets(state) else nodes.n_rows[0]  # at most, until engines have met
    nodes.bounds[0, 0], nodes.bounds[0, 1] = -np.inf, np.inf
    _make_leaf(nodes, 0)


@uncounted()
def _make_leaf(nodes: Nodes, node: int) -> None:
    nodes.left[node], nodes.feature[node], nodes.split_bin[node], nodes.default_left[node] = LEAF, 0, -1, 0
    nodes.gain[node], nodes.is_divided[node], nodes.place[node] = 0.0, 0, -1


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
    return bool(state.rules.max_leaves == 1 or not opens(state, 0))


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
    copy_set(found.right_bins, node, nodes.right_bins, node)
    for side in range(2):
        child = left + side
        _make_leaf(nodes, child)
        nodes.parent[child], nodes.depth[child], nodes.n_rows[child] = node, nodes.depth[node] + 1, 0
        nodes.bounds[child, 0], nodes.bounds[child, 1] = nodes.bounds[node, 0], nodes.bounds[node, 1]
        for s in range(nodes.sums.shape[1]):
            of_left = found.left[node, s]
            nodes.sums[child, s] = of_left if side == 0 else nodes.sums[node, s] - of_left
    gain_of_split(state, node, left, nodes.value)


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
        opens_left, opens_right = may_open and opens(state, left), may_open and opens(state, left + 1)
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


@part_without(*ROWS)
def _build(state: Growing, thread: int) -> None:
    """Divide the chosen nodes' rows and build histograms; the status tells what there is no room for."""
    rules, counts, meeting = state.rules, state.step.counts, state.meeting
    if meets(state):
        run(state.team, 1, state.parts[PLAN_TELLING], state)
        if counts[STATUS] != GROWS:
            return
    nanoseconds = plan_rows(state)
    if counts[TASKS] > 0 and counts[IS_ROOT] == 0:
        run(state.team, threads_for(rules, nanoseconds), state.parts[DIVIDE], state)
        place_pieces(state)
    n_threads = min(threads_for(rules, nanoseconds), counts[TASKS] + counts[GROUPS])
    run(state.team, n_threads, state.parts[MOVE], state)
    if not meets(state):
        return
    for i in range(counts[CHOSEN]):
        meeting.room[meeting.begin + i] = state.nodes.n_rows[state.step.built[i]]
    if counts[TASKS] > 0:
        counts[RANGES] = 2 * rules.n_threads
        n_threads = threads_for(rules, counts[TASKS] * state.pool.words.shape[1])
        run(state.team, n_threads, state.parts[TELL], state)


@part_without(*ROWS)
def _find(state: Growing, thread: int) -> None:
    """Find the best splits of the children that were opened, among the features that this engine searches; the status
    is `DONE` where the root stays a leaf."""
    step, rules, counts, meeting = state.step, state.rules, state.step.counts, state.meeting
    if counts[IS_ROOT] and _stays_leaf(state):
        counts[STATUS] = DONE
        return
    count_rows(state)
    low, high = share_of(state, meeting.rank)
    n_features = max(1, meeting.shares[meeting.rank + 1] - meeting.shares[meeting.rank])
    n_threads = threads_for(rules, counts[OPENED] * (high - low) * width_of(state))
    if rules.policy == SYMMETRIC:
        counts[RANGES] = min(n_features, 3 * n_threads if n_threads > 1 else 1)
        run(state.team, n_threads, state.parts[SEARCH_LEVEL], state)
        run(state.team, 1, state.parts[COLLECT_LEVEL], state)
    else:
        wanted = 1 if n_threads == 1 else -(-3 * n_threads // counts[CHOSEN])
        counts[RANGES] = min(n_features, wanted)
        run(state.team, n_threads, state.parts[SEARCH], state)
        collect(state)
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
        if not opens(state, built):
            _give_back(state, built)


@part_without(*ROWS)
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
    if not meets(state) and _stays_leaf(state):
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


@part_without(*ROWS)
def _open(state: Growing, thread: int) -> None:
    """Open the root, or split the nodes that come next and open their children; the status tells what comes of it."""
    counts = state.step.counts
    counts[STATUS] = _open_root(state) if counts[STAGE] == HAS_SUMS else _open_next(state)


@uncounted()
def _write_leaves(state: Growing) -> None:
    """Write down the leaf of each row."""
    n_rows = state.chunks.begins[-1]
    n_threads = threads_for(state.rules, 3 * n_rows)
    run(state.team, n_threads, state.parts[MARK], state)
    if state.nodes.n_rows[0] < n_rows:
        run(state.team, n_threads, state.parts[MARK_ABSENT], state)


@uncounted()
def _sum_leaves(state: Growing) -> None:
    """Add up the hessians of the rows that this engine has in each leaf."""
    of_threads, size = state.models.leaf_sums, state.step.counts[SIZE]
    of_threads[:, :size] = 0
    run(state.team, threads_for(state.rules, 3 * state.chunks.begins[-1]), state.parts[ADD_LEAVES], state)
    for each in range(1, len(of_threads)):
        for node in range(size):
            of_threads[0, node, 1] += of_threads[each, node, 1]


@uncounted()
def _end(state: Growing) -> None:
    """Value the leaves of a tree that has grown, and add these to the margins of all rows."""
    rules, parts, n_rows = state.rules, state.parts, state.chunks.begins[-1]
    n_threads = threads_for(rules, 3 * n_rows)
    if rules.refits:
        run(state.team, 1, parts[REFIT], state)
    value_nodes(state)
    if rules.quantiles:
        run(state.team, threads_for(rules, 4 * n_rows), parts[DIVIDE_LAST], state)
        run(state.team, threads_for(rules, 10 * n_rows), parts[QUANTILES], state)
    if not _writes_leaves(rules):
        run(state.team, n_threads, parts[FINISH], state)
        if state.nodes.n_rows[0] < n_rows:
            run(state.team, n_threads, parts[FINISH_ABSENT], state)
        return
    if rules.leaf_terms > 0:
        run(state.team, 1, parts[FIND_TERMS], state)
        run(state.team, threads_for(rules, 20 * n_rows), parts[EQUATIONS], state)
        run(state.team, 1, parts[FIT_LEAVES], state)
    run(state.team, n_threads, parts[FINISH_MARKED], state)


@part_without(*ROWS)
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
        if meets(state):
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
                if meets(state):
                    counts[STATUS], counts[STAGE] = GROWS, HAS_LEAVES
        if counts[STATUS] == DONE:
            _end(state)
        if counts[STATUS] != GROWS:
            return
        if meets(state) and counts[STAGE] != HAS_SUMS and counts[STAGE] != HAS_OPENED:
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


@part_without(*ROWS)
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
        log.gain[at] = saturated(nodes.gain[node]) if is_inner else np.float32(0)
        write_value(nodes.value, node, log.value, at)
        for k in range(log.hessian.shape[1]):
            log.hessian[at, k] = np.float64(nodes.sums[node, 2 * k + 1]) * state.tree.units[2 * k + 1]
        copy_set(nodes.right_bins, node, log.right_bins, at)
        for k in range(log.term.shape[1]):
            log.term[at, k], log.slope[at, k] = state.models.feature[node, k], state.models.slope[node, k]
    counts[LOGGED] += size
    log.ends[counts[ENDED]] = counts[LOGGED]
    counts[ENDED] += 1


PARTS = (
    search_nodes, move_rows, _open, finish, search_level, _find, _build, _grow, _begin, quantize_rows, divide_rows,
    finish_absent, tell, hear, collect_level, say, meet, plan_telling, count_draws, _write_log, add_equations,
    finish_marked, mark, mark_absent, fit_leaves, find_terms, add_leaves, refit, set_quantiles, divide_last,
)  # fmt: skip
(
    SEARCH, MOVE, OPEN, FINISH, SEARCH_LEVEL, FIND, BUILD, GROW, BEGIN, QUANTIZE, DIVIDE,
    FINISH_ABSENT, TELL, HEAR, COLLECT_LEVEL, SAY, MEET, PLAN_TELLING, COUNT, WRITE_LOG, EQUATIONS,
    FINISH_MARKED, MARK, MARK_ABSENT, FIT_LEAVES, FIND_TERMS, ADD_LEAVES, REFIT, QUANTILES, DIVIDE_LAST,
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
    needed |= {COUNT, MARK_ABSENT if marks else FINISH_ABSENT} if draws else set()
    places = sorted(needed)
    state.parts[places] = addresses_of([PARTS[i] for i in places], state, n_processes)
