"""What engines tell each other while they grow a tree together, each over its own rows; all decide alike.

What they need of each other they tell at the ends of stages, `HAS_RANGE` and so on, in memory that all of them see;
where there is none, the call of `grow.py` returns, and is made again when all have been told (`Meeting`).
"""

from __future__ import annotations

import numpy as np

from daskboost.devices.cpu import njit, uncounted
from daskboost.devices.cpu.addressed import array_at
from daskboost.devices.cpu.growing import (
    AT,
    CHOSEN,
    FOUND,
    FOUND_WORDS,
    FULL_TOLD,
    GROWS,
    HAS_BUILT,
    HAS_FOUND,
    HAS_LEAVES,
    HAS_RANGE,
    IS_ROOT,
    IS_TOLD,
    OPENED,
    ROWS,
    SIZE,
    STAGE,
    STATUS,
    SUMS,
    WAITING,
    Growing,
)
from daskboost.devices.cpu.histogram import WORD_ROWS
from daskboost.devices.cpu.team import LINE, come_together, part_without
from daskboost.dtypes import Int64


@njit(inline="always")
def told_by(state: Growing, engine: int, size: int) -> Int64:
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
        told = told_by(state, engine, 2 * n).view(np.float64)
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
        told = told_by(state, engine, size)
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
    at = counts[AT] - meeting.begin if len(meeting.rooms) > 0 else told_size(state, counts[CHOSEN])
    nodes.sums[0, 0] = nodes.sums[0, 1] = nodes.n_total[0] = 0
    for engine in range(len(meeting.told)):
        told = array_at(meeting.told[engine] + 8 * at, meeting.room, 3)
        nodes.sums[0, 0] += told[0]
        nodes.sums[0, 1] += told[1]
        nodes.n_total[0] += told[2]


@uncounted()
def share_of(state: Growing, engine: int) -> tuple[int, int]:
    """Return the slots of the features that an engine searches."""
    shares, offsets = state.meeting.shares, state.chunks.offsets
    return offsets[shares[engine]], offsets[shares[engine + 1]]


@uncounted()
def told_slots(state: Growing) -> tuple[int, int]:
    """Return the slots of which engines have told this one: all in common memory, or those that it searches."""
    return (0, state.pool.words.shape[1]) if len(state.meeting.rooms) > 0 else share_of(state, state.meeting.rank)


@uncounted()
def told_size(state: Growing, place: int) -> int:
    """Return where the histogram of a node that is built begins in what an engine has told this one."""
    low, high = told_slots(state)
    return int(state.step.counts[CHOSEN] + state.meeting.units[place] * (high - low))


@uncounted()
def tells_words(state: Growing, place: int) -> bool:
    """Whether this engine's histogram of a node that is built is of words."""
    return bool(state.meeting.units[place + 1] - state.meeting.units[place] == 1)


@njit(inline="always")
def told_words(state: Growing, place: int) -> Int64:
    """Return where other engines read this one's histogram of a node that is built."""
    meeting, n_slots = state.meeting, state.pool.words.shape[1]
    begin = meeting.begin + state.step.counts[CHOSEN] + meeting.units[place] * n_slots
    words: Int64 = meeting.room[begin : begin + n_slots]
    return words


@njit(inline="always")
def told_pairs(state: Growing, place: int) -> Int64:
    """Return the same of a histogram of pairs."""
    meeting, n_slots = state.meeting, state.pool.words.shape[1]
    begin = meeting.begin + state.step.counts[CHOSEN] + meeting.units[place] * n_slots
    pairs: Int64 = meeting.room[begin : begin + 2 * n_slots].reshape(n_slots, 2)
    return pairs


@part_without(*ROWS)
def plan_telling(state: Growing, thread: int) -> None:
    """Find where the histograms go that engines tell each other; the status is `FULL_TOLD` where there is no room."""
    nodes, step, meeting = state.nodes, state.step, state.meeting
    n = step.counts[CHOSEN]
    meeting.units[0] = 0
    for i in range(n):
        most_rows = min(nodes.n_total[step.chosen[i]], meeting.most_rows)
        meeting.units[i + 1] = meeting.units[i] + (1 if most_rows <= WORD_ROWS else 2)
    size = n + meeting.units[n] * state.pool.words.shape[1]
    step.counts[STATUS] = FULL_TOLD if meeting.begin + size > len(meeting.room) else GROWS


@uncounted()
def count_rows(state: Growing) -> None:
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
                total += told_by(state, engine, n)[i]
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
            gain = told_by(state, engine, size).view(np.float64)[i]
            if gain > told_by(state, best, size).view(np.float64)[i]:
                best = engine
        told = told_by(state, best, size)
        found.gain[node] = told.view(np.float64)[i]
        found.feature[node], found.split_bin[node], found.default_left[node] = told[at], told[at + 1], told[at + 2]
        found.left[node, 0], found.left[node, 1] = told[at + 3], told[at + 4]
        for w in range(set_words):
            found.right_bins[node, w] = np.uint32(told[at + 5 + w])


@part_without(*ROWS)
def meet(state: Growing, thread: int) -> None:
    """Learn what the other engines have told at a stage, where they have memory in common and once they all have:
    `IS_TOLD` stays where they have not for some time, or where the caller has to bring it."""
    meeting, stage = state.meeting, state.step.counts[STAGE]
    if len(meeting.rooms) == 0 or not come_together(meeting.room, meeting.rooms):
        return
    at = meeting.begin if stage == HAS_BUILT else state.step.counts[AT]
    for engine in range(len(meeting.rooms)):
        meeting.told[engine] = meeting.rooms[engine] + 8 * at
    state.step.counts[IS_TOLD] = 0


@part_without(*ROWS)
def say(state: Growing, thread: int) -> None:
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


@part_without(*ROWS)
def hear(state: Growing, thread: int) -> None:
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
