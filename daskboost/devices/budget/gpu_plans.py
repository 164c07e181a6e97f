"""The plan of a fit on a GPU: what it takes in all, and what it does without where that is too much.

`memory.py` has the bytes of each thing; the docstring of `gpu_plan` says in which order fits do without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from daskboost.devices.budget.cpu_memory import sample_rows
from daskboost.devices.budget.gpu_memory import (
    ID_BYTES,
    PAIR_SLOT_BYTES,
    between_bytes,
    columns_bytes,
    evaluation_bytes,
    gradients_bytes,
    growth_of,
    histograms_bytes,
    label_bytes,
    order_bytes,
    passing_bytes,
    root_copy_bytes,
    scratch_bytes,
    search_bytes,
    searches_entries,
    split_bytes,
    training_view_bytes,
    upload_bytes,
    view_bytes,
)
from daskboost.devices.budget.gpu_streaming import (
    POOL_GROUP_BYTES,
    drawing_bytes,
    drawn_rooms,
    n_groups,
    room_bytes,
    sample_room,
    state_bytes,
    streaming_parts,
    taking_bytes,
)
from daskboost.devices.budget.leaf_order import ordered_bytes, why_in_given_order
from daskboost.devices.budget.plan import FitSize, Plan, RowSource
from daskboost.devices.budget.set_size import SetSize, group_sizes

# How many trees of a round grow together on a GPU: the one rule, which plans count and engines follow.
#
# Trees that share launches wait for them once. A tree's launches, some seven a level, take about as long as passing
# over two million rows does. So little is to be gained once `ROWS_TOGETHER` rows are in a launch: what their trees
# still wait is an eighth of what they work. Nor is there where histograms are large: passing over `HISTOGRAM_BYTES`
# takes ten times as long as a launch. Both also bound the memory, in which every tree has its own rows and histograms.

ROWS_TOGETHER = 1 << 24
"""Enough rows of all trees of a launch; at 16 bytes in the order of nodes, a quarter of a gigabyte."""
HISTOGRAM_BYTES = 1 << 28
"""Enough bytes of histograms, of two levels and all trees."""


def trees_together(of_round: int, n_rows: int, tree_bytes: int) -> int:
    """Trees of a round's `of_round` that grow together, over `n_rows` each with histograms of `tree_bytes` each.

    Groups are about equal: seven trees, of which five would do, are four and three.
    """
    enough = min(-(-ROWS_TOGETHER // max(n_rows, 1)), HISTOGRAM_BYTES // tree_bytes, of_round)
    return -(-of_round // tree_groups(of_round, max(enough, 1)))


def tree_groups(of_round: int, n_trees: int) -> int:
    """Groups of `n_trees`, of which the last may have fewer."""
    return -(-of_round // n_trees)


POOL_SHARE = 16
"""CuPy's pool loses about this part: it rounds up, and cuts what it had for larger arrays."""
POOL_STILL_SHARE = 32
"""The same part of fits whose trees grow without the host by built-in losses, which take no large arrays once they have
begun."""
POOL_SCRATCH_SHARE = 3
"""Part of the bytes of arrays that come and go that the pool loses: what a freed block leaves may be too small for the
next."""
POOL_LEVEL_SHARE = 8
"""Part of the bytes of histograms that the pool loses where the host grows trees, which makes new ones at each
level."""
POOL_SAMPLES_SHARE = 24
"""Part of all bytes that the pool loses where trees grow on samples: a pass frees what the next one takes in other
sizes."""
POOL_CANDIDATES_BYTES = 2**17
"""Bytes that the pool loses where samples are drawn from candidates: histograms are cut from what those had."""
POOL_ROUNDING_BYTES = 64 * 512
"""For each of so many small arrays."""
GROUPS_SHARE = 16
"""Groups of streamed chunks take at most the room of this part of the chunks, which might stay in it: 6 % of a pass,
while launches for one chunk at a time may take longer than the bus."""
DISK_PASSES = 8
"""Passes over the bus that take as long as one over the disk, at least: four readers check 2 GB/s each
(`array_file.py`), and the bus takes 55.5."""


def pool_bytes(n_bytes: int, *, takes_anew: bool) -> int:
    """Return what the pool loses of so many bytes of arrays that stay, by whether a round takes large arrays anew."""
    return n_bytes // (POOL_SHARE if takes_anew else POOL_STILL_SHARE)


def gpu_plan(size: FitSize, free_bytes: int | None) -> Plan:
    """The plan of an engine on a GPU with so many free bytes.

    What only makes a fit faster is left out where there is no room for it: the copy of rows in the order of leaves,
    then the copy that roots read, then trees that grow together, half of them at a time, then column-major copies, then
    metrics behind the trees, then histograms of wide sparse rows, whose sorted entries take less, then trees that grow
    without the host, with room for nodes that are not there. Where that is not enough, chunks are streamed, in groups
    as large as leave room.
    """
    free_bytes, limited = allowed_bytes(size, free_bytes)
    if size.resident is not None:
        return _told(size, _streaming(size, free_bytes, size.resident), limited)
    found = FASTEST[size.rows](size.streaming(_stream_bytes(size, free_bytes)), free_bytes)
    if found.fits is False and any(rows.chunks for rows in (size.train, *size.evals)):
        streaming = _streaming_plan(size, free_bytes)
        found = streaming if streaming.fits else min(found, streaming, key=lambda plan: plan.total_bytes)
    return _told(size, found, limited)


def _told(size: FitSize, found: Plan, limited: bool) -> Plan:
    """The plan with what people are told beside bytes."""
    return replace(
        found, limited=limited, recipe=size.recipe, growth=_told_growth(size, found),
        evaluation=_told_evaluation(size, found) if size.evals else "",
    )  # fmt: skip


NO_ROOM = "there is no room to do without it"
"""Why the host takes part where nothing else needs it."""


def _told_growth(size: FitSize, found: Plan) -> str:
    """Return in words what grows trees by a plan."""
    if not found.without_host:
        return f"trees grow with the host, which is slower: {size.host_reason or NO_ROOM}"
    together = f", {found.trees_together} of a round together" if found.trees_together > 1 else ""
    entries = ", in sorted entries" if found.by_entries else ""
    order = ", over rows in the order of the first one's leaves" if found.ordered_bytes else ""
    left_out = ordered_bytes(size) > found.ordered_bytes
    reason = "there is no room for their copy" if left_out else why_in_given_order(size)
    stay = f"; rows stay in their order: {reason}" if reason else ""
    return f"trees grow on the GPU alone{together}{entries}{order}{stay}"


def _told_evaluation(size: FitSize, found: Plan) -> str:
    """Return in words how metrics are computed by a plan."""
    if found.watched:
        return "metrics are computed behind the trees"
    return f"the host waits for metrics in each round, which is slower: {size.metrics_reason or NO_ROOM}"


def allowed_bytes(size: FitSize, free_bytes: int | None) -> tuple[int | None, bool]:
    """What the fit may take, of what is free, and whether its own limit says so."""
    limit = size.device_memory_limit
    if limit is None or (free_bytes is not None and free_bytes <= limit):
        return free_bytes, False
    return limit, True


def fastest_plan(size: FitSize, free_bytes: int | None) -> Plan:
    """Return the plan of trees that are grown on all rows, with what makes them fast as far as there is room."""
    alone = replace(size, trees_together=1)
    n_trees, turned, ordered, plans = most_together(size), root_copy_bytes(size), ordered_bytes(size), []
    for own in dict.fromkeys((ordered, 0)):
        if own or turned:
            together = replace(size, trees_together=n_trees)
            plans.append(_arrays(together, free_bytes, has_columns=True, turned=turned, ordered=own))
    while n_trees > 1:
        plans.append(_arrays(replace(size, trees_together=n_trees), free_bytes, has_columns=True))
        n_trees = -(-n_trees // 2)
    plans += [_arrays(alone, free_bytes, has_columns=has_columns) for has_columns in (True, False)]
    waiting = replace(alone, watched=False)
    plans.append(_arrays(waiting, free_bytes, has_columns=False))
    by_entries = replace(waiting, prefers_entries=True)
    if searches_entries(by_entries):
        plans.append(_arrays(by_entries, free_bytes, has_columns=True))
    plans.append(_least(alone, free_bytes))
    return next((plan for plan in plans if plan.fits is not False), plans[-1])


def _streaming_plan(size: FitSize, free_bytes: int | None) -> Plan:
    """The plan that keeps most chunks, in the order of `_kept_of_sets`. None stay before groups of those that stream
    are as large as they may be. If it has no room, it is the least that there is."""
    none = (0,) * (1 + len(size.evals))
    none_kept = _keeping(size, none)
    size = size.streaming(_stream_bytes(none_kept, free_bytes))
    if size.train.stream_bytes != _stream_bytes(none_kept, None):
        return _streaming(size, free_bytes, none)

    def planned(n_kept: int) -> Plan:
        return _streaming(size, free_bytes, _kept_of_sets(size, n_kept))

    n_chunks = sum(len(rows.chunks) for rows in (size.train, *size.evals))
    low, high = 0, n_chunks  # the first fits, or nothing does; the last does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if planned(middle).fits is not False else (low, middle)
    return planned(low)


def _kept_of_sets(size: FitSize, n_kept: int) -> tuple[int, ...]:
    """Chunks of each set if so many stay: first those that would take longest to stream. Training rows are read once a
    level, or once a tree that is grown on a sample, and evaluation sets once a tree."""
    sets = (size.train, *size.evals)
    n_passes = [size.passes or size.depth, *(1 for _ in size.evals)]
    times = {(k, on_disk): n * (DISK_PASSES if on_disk else 1) for k, n in enumerate(n_passes) for on_disk in (1, 0)}
    kept = [0] * len(sets)
    for k, on_disk in sorted(times, key=lambda part: -times[part]):
        n = min(n_kept, sum(chunk.on_disk == on_disk for chunk in sets[k].chunks))
        kept[k] += n
        n_kept -= n
    return tuple(kept)


def _streaming(size: FitSize, free_bytes: int | None, resident: tuple[int, ...]) -> Plan:
    """The plan that keeps so many chunks of each set, without what makes passes over resident rows faster."""
    kept = _keeping(size, resident)
    kept = kept.streaming(_stream_bytes(kept, free_bytes))
    plans = [_least(kept, free_bytes)]
    if size.without_host and not kept.train.streamed_rows:
        plans = [_arrays(replace(kept, watched=each), free_bytes, has_columns=False) for each in (kept.watched, False)]
        plans.append(_least(kept, free_bytes))
    found = next((plan for plan in plans if plan.fits is not False), plans[-1])
    return replace(found, resident=resident, reads=kept.reads)


def _keeping(size: FitSize, resident: Sequence[int]) -> FitSize:
    """The fit that keeps so many chunks of each set."""
    train, *evals = (rows.keeping(n) for rows, n in zip((size.train, *size.evals), resident, strict=True))
    return replace(size, train=train, evals=tuple(evals), trees_together=1)


def _least(size: FitSize, free_bytes: int | None) -> Plan:
    """The plan without all that only makes a fit faster."""
    return LEAST[size.rows](size, free_bytes)


def exact_plan(size: FitSize, free_bytes: int | None) -> Plan:
    """The least plan of trees that are grown on all rows: with the host, one at a time."""
    return _arrays(size.with_host(), free_bytes, has_columns=False)


def columns_plan(size: FitSize, n_features: int, n_slots: int, n_entries: int, free_bytes: int | None) -> Plan:
    """Return the plan of trees that grow over all rows of all engines with some of the features, which have so many
    slots and, where rows are sparse, entries: beside what an engine on its own rows takes, whose evaluation sets are
    there already. Histograms are left out where they have no room and sorted entries do. Rows lie in the order of as
    many trees as the engine's own do."""
    rows = replace(size.train.of_rows(size.most_rows, n_entries), n_features=n_features)
    own = replace(size, train=rows, evals=(), watched=False, n_slots=n_slots, n_engines=1)  # no other one has these
    orders, plans = order_bytes(size.trees_together * rows.n_rows, size.small_data, size.width), []
    for each in (own, replace(own, prefers_entries=True)):
        grown = replace(each, trees_together=1) if searches_entries(each) else each
        plans.append(replace(_arrays(grown, free_bytes, has_columns=True), order_bytes=orders))
    return next((plan for plan in plans if plan.fits is not False), plans[0])


def _stream_bytes(size: FitSize, free_bytes: int | None) -> int:
    """Return the bytes of the largest groups of streamed chunks that leave room, if that is not decided: those with
    which the least plan fits, and takes little more than with one chunk at a time."""
    if size.train.stream_bytes is not None:
        return size.train.stream_bytes
    chunks = [chunk.n_bytes for rows in (size.train, *size.evals) for chunk in (*rows.streamed, *rows.chunks)]
    alone = _least(size.streaming(0), free_bytes).total_bytes
    for stream_bytes in group_sizes(chunks):
        plan = _least(size.streaming(stream_bytes), free_bytes)
        more = plan.total_bytes - alone
        if more <= 0 or (plan.fits is not False and more <= sum(chunks) // GROUPS_SHARE):
            return stream_bytes
    return 0


def most_together(size: FitSize) -> int:
    """Trees of a round that grow together where there is room. Those that grow best first do not, as each ends when it
    does, nor those that search sorted entries, which look up their row's only node."""
    if size.growth != "levels" or searches_entries(size):
        return 1
    return trees_together(size.n_trees, size.train.n_rows, histograms_bytes(replace(size, trees_together=1)))


def _arrays(size: FitSize, free_bytes: int | None, *, has_columns: bool, turned: int = 0, ordered: int = 0) -> Plan:
    size = size if has_columns else replace(size, may_sort_entries=False)  # sorted entries are a copy
    train, k = size.train, size.n_outputs
    passing, growth = passing_bytes(size, has_columns=has_columns), growth_of(size)
    arrays = Plan(
        device="cuda", free_bytes=free_bytes, without_host=size.without_host, watched=size.watched,
        by_entries=searches_entries(size),
        trees_together=size.trees_together,
        chunks_bytes=training_view_bytes(size, has_columns=has_columns),
        mixes_widths=has_columns and size.mixed_row_bytes > 0,
        columns_bytes=columns_bytes(size) if has_columns else 0,
        order_bytes=order_bytes(size.trees_together * train.n_rows, size.small_data, size.width),
        gradients_bytes=gradients_bytes(size),
        margins_bytes=4 * k * train.n_rows,
        labels_bytes=label_bytes(size),
        histograms_bytes=histograms_bytes(size),
        evaluation_bytes=evaluation_bytes(size),
        scratch_bytes=scratch_bytes(size, passing), **streaming_parts(size),
        turned_bytes=turned, ordered_bytes=ordered,
    )  # fmt: skip
    lost = (passing + growth.step_bytes) // POOL_SCRATCH_SHARE
    lost += pool_bytes(arrays.total_bytes, takes_anew=size.by_expressions or not size.without_host)
    lost += 0 if size.without_host else arrays.histograms_bytes // POOL_LEVEL_SHARE
    return replace(arrays, pool_bytes=lost + POOL_ROUNDING_BYTES + POOL_GROUP_BYTES * n_groups(size))


def certified_plan(size: FitSize, free_bytes: int | None) -> Plan:
    """Return the plan of trees that are grown on a sample, another set of rows on the device; all rows have margins and
    labels."""
    train, k = size.train, size.n_outputs
    sample, room = sample_set(size), sample_room(size)
    own = replace(size, train=sample, evals=(), depth=max(1, size.depth - 1))
    turn = train.turn_rows
    places = max(1, min(1 << (size.depth - 1), train.n_rows))
    of_turn = order_bytes(turn, size.small_data) + split_bytes(replace(size, train=replace(train, n_rows=turn)))
    numbers_bytes, drawing = drawing_bytes(size, sample_rows(size.share, turn))
    passing, steps = passing_bytes(size, has_columns=False), search_bytes(size, 2 * places - 1)
    by_turn = size.by_expressions
    of_sample = histograms_bytes(own)
    arrays = Plan(
        device="cuda", free_bytes=free_bytes, frontier=(k * places, 2 * places - 1),
        drawn=((0, 0), (room.n_rows, room.n_entries)),
        chunks_bytes=view_bytes(train), samples_bytes=room_bytes(train, room),
        columns_bytes=0,
        order_bytes=order_bytes(sample.n_rows, size.small_data) + ID_BYTES * sample.n_rows,
        gradients_bytes=gradients_bytes(replace(own, keep_gradients=True))
        + (8 * k * turn if by_turn else gradients_bytes(size)),
        margins_bytes=4 * k * (train.n_rows + sample.n_rows),
        labels_bytes=label_bytes(size) + label_bytes(own),
        histograms_bytes=PAIR_SLOT_BYTES * size.n_entries * (k * places + 2 * places - 1) + of_sample,
        evaluation_bytes=evaluation_bytes(size),
        scratch_bytes=growth_of(own).tree_bytes + split_bytes(own) + numbers_bytes
        + max(passing, steps, drawing + of_turn - of_sample),
        **streaming_parts(size),
    )  # fmt: skip
    between = max(passing, drawing + of_turn) + (gradients_bytes(size) if by_turn else 0)
    lost = arrays.total_bytes // POOL_SHARE + (between + steps) // POOL_SCRATCH_SHARE
    lost += of_sample + POOL_GROUP_BYTES * n_groups(size)  # what is grown again has levels of other sizes
    lost += arrays.total_bytes // POOL_SAMPLES_SHARE
    return replace(arrays, pool_bytes=lost + POOL_ROUNDING_BYTES)


def sampled_plan(size: FitSize, free_bytes: int | None) -> Plan:
    """Return the plan of trees that are grown on rows drawn by their gradients: candidates and sample have bins of
    their own on the device, all rows have margins and labels, and one group's turn in a pass takes what it does."""
    train, k = size.train, size.n_outputs
    candidates, sample = drawn_rooms(size)
    own = replace(size, evals=(), keep_gradients=True, train=train.of_rows(sample.n_rows, sample.n_entries))
    turn = train.turn_rows
    rooms = room_bytes(train, candidates) + room_bytes(train, sample)
    order, splitting = order_bytes(sample.n_rows, False, size.width), split_bytes(own)
    if size.leaf_count_bytes:  # for a base score that is a quantile, before there are others
        of_all = order_bytes(train.n_rows, False, size.width) + split_bytes(size)
        order = max(order, of_all - rooms - state_bytes(size) - splitting)
    by_turn = size.by_expressions
    held = rooms + order + state_bytes(size) + histograms_bytes(own)
    opening = max(0, upload_bytes(train, size.n_slots) - held)  # before all these
    passing = max(
        between_bytes(size), taking_bytes(size, turn), *(upload_bytes(each, size.n_slots) for each in size.evals)
    )
    growth = growth_of(own)
    arrays = Plan(
        device="cuda", free_bytes=free_bytes,
        drawn=((candidates.n_rows, candidates.n_entries), (sample.n_rows, sample.n_entries)),
        chunks_bytes=view_bytes(train), samples_bytes=rooms,
        columns_bytes=0,
        order_bytes=order,
        gradients_bytes=state_bytes(size) + 8 * size.sketch_columns * sample.n_rows
        + (8 * k * turn if by_turn else gradients_bytes(replace(size, sketch_columns=0))),
        margins_bytes=4 * k * train.n_rows,
        labels_bytes=label_bytes(size),
        histograms_bytes=histograms_bytes(own),
        evaluation_bytes=evaluation_bytes(size),
        scratch_bytes=growth.tree_bytes + splitting + max(opening, passing, growth.step_bytes),
        **streaming_parts(size),
    )  # fmt: skip
    # A round's levels have other numbers of nodes than those of the rounds before, whose pieces are too small for some.
    lost = arrays.total_bytes // POOL_SHARE + arrays.histograms_bytes + (passing + growth.step_bytes) // 2
    lost += arrays.total_bytes // POOL_SAMPLES_SHARE + POOL_CANDIDATES_BYTES + POOL_GROUP_BYTES * n_groups(size)
    return replace(arrays, pool_bytes=lost + POOL_ROUNDING_BYTES)


LEAST: Mapping[RowSource, Callable[[FitSize, int | None], Plan]] = {
    "all": exact_plan, "certified": certified_plan, "drawn": sampled_plan,
}  # fmt: skip
"""The plan without all that only makes a fit faster, by the rows that its trees grow on."""
FASTEST: Mapping[RowSource, Callable[[FitSize, int | None], Plan]] = {**LEAST, "all": fastest_plan}
"""The fastest plan that has room, of a fit all of whose chunks become resident."""


def sample_set(size: FitSize) -> SetSize:
    """The rows that certified trees are grown on, as a data set."""
    n_rows = sample_rows(size.share, size.train.n_rows)
    return size.train.of_rows(n_rows, int(n_rows * size.train.entries_per_row))
