"""Bytes that a fit takes in the memory of this process; `devices/budget/gpu_memory.py` has the twin for GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from daskboost.devices.budget.plan import FitSize, Plan, RowSource
from daskboost.devices.budget.set_size import SetSize
from daskboost.devices.cpu.histogram import WORD_ROWS
from daskboost.devices.leaf_models import n_sums
from daskboost.devices.losses import GivenPairs
from daskboost.devices.row_order import PairLayout
from daskboost.devices.sampling import most_candidates, most_drawn

GROUP_ROWS = 2**18
"""`CpuDevice.group_rows`."""
GRADIENT_ROWS = 8_192
"""`CpuDevice.gradient_rows`."""
BLOCK_VALUES = 2**17
"""`objectives.multiclass.BLOCK_ELEMENTS`: gradients of many classes are computed in blocks of so many."""
GRADIENT_TEMPORARIES = 7
"""float32 arrays that an objective's expressions have at the same time."""
HISTOGRAM_COPIES = 2
"""Buffers are kept for levels to come (`buffers.py`): twice what is in use, at most."""

TREES_A_THREAD = 4
"""Trees of a round that grow side by side, for each thread, at most."""
SIDE_BY_SIDE_BYTES = 2**27
"""Most bytes that these take for the order of rows and their histograms, but for those of a single tree."""


def cpu_plan(size: FitSize, free_bytes: int | None, column_bytes: int) -> Plan:
    """The plan of an engine on the CPU; `column_bytes` is its room for column-major copies."""
    size = size.reading_files()
    return replace(PLANS[size.rows](size, free_bytes, column_bytes), reads=size.reads, recipe=size.recipe)


PAIR_BYTES, PAIR_ROW_BYTES = 150, 24
"""Most that given pairs take, while each row's are put together, and what rows take that have some (measured by
`tracemalloc` on a million pairs of 200,000 rows, and 200,000 of a million)."""


def given_pairs_bytes(size: FitSize) -> int:
    """Return the bytes of `PairLists` and of the pairs that they are made of; any engine may have the rows of most."""
    if not isinstance(size.query_loss, GivenPairs):
        return 0
    return PAIR_BYTES * len(size.query_loss.weight) + PAIR_ROW_BYTES * size.train.n_rows


def exact_plan(size: FitSize, free_bytes: int | None, column_bytes: int) -> Plan:
    """`cpu_plan` of trees that are grown on all rows."""
    train, k, n_trees = size.train, size.n_outputs, _trees_at_once(size)
    return Plan(
        device="cpu", free_bytes=free_bytes,
        chunks_bytes=train.stored_bytes + view_bytes(train),
        columns_bytes=min(train.column_bytes(train.resident_rows), column_bytes),
        order_bytes=n_trees * order_bytes(train, size.small_data, size.width),
        gradients_bytes=8 * size.sketch_columns * train.n_rows
        + 8 * k * (train.n_rows if size.keep_gradients else min(train.n_rows, train.chunk_rows))
        + size.query_row_bytes * train.n_rows + given_pairs_bytes(size),
        margins_bytes=4 * k * train.n_rows,
        labels_bytes=4 * train.n_rows * (1 + size.has_weight),
        histograms_bytes=n_trees * histograms_bytes(size) + told_bytes(size),
        evaluation_bytes=evaluation_bytes(size),
        scratch_bytes=scratch_bytes(size),
    )  # fmt: skip


def certified_plan(size: FitSize, free_bytes: int | None, column_bytes: int) -> Plan:
    """`cpu_plan` of trees that are grown on a sample, which is another set of rows in memory; all rows have margins and
    labels, and what one chunk's turn in a pass takes."""
    train, k = size.train, size.n_outputs
    sampled = sample_rows(size.share, train.n_rows)
    chunk = min(train.n_rows, max(train.chunk_rows, GROUP_ROWS))
    columns = train.column_bytes(sampled)
    pair = 8 if size.small_data else 4
    places = max(1, min(1 << (size.depth - 1), train.n_rows))
    of_pass = 16 * size.n_entries * (k * places + 2 * places - 1)
    of_sample = slot_bytes(size) * size.n_entries * HISTOGRAM_COPIES * max(1, places // 2 + places // 4)
    settled = 4 + 4 + pair  # rows and pairs in the order of nodes, and each row's node
    return replace(
        exact_plan(size, free_bytes, column_bytes), samples_bytes=train.taken_bytes(sampled),
        columns_bytes=columns if columns <= column_bytes else 0,
        order_bytes=(8 + 2 * (4 + pair)) * sampled + max(settled * sampled, (2 * (4 + pair) + settled) * chunk),
        gradients_bytes=8 * k * (sampled + chunk),
        margins_bytes=4 * k * (train.n_rows + sampled),
        labels_bytes=4 * (train.n_rows + sampled) * (1 + size.has_weight),
        histograms_bytes=max(of_pass, of_sample),
    )  # fmt: skip


def sampled_plan(size: FitSize, free_bytes: int | None, column_bytes: int) -> Plan:
    """`cpu_plan` of trees that grow on rows drawn by their gradients: those, the candidates that they are taken from,
    and what one chunk's turn in a pass takes. Of several engines, that with larger gradients than others takes more."""
    train, k = size.train, size.n_outputs
    sampled = most_drawn(size.share, train.n_rows)
    candidates = most_candidates(size.share, train.n_rows)
    chunk = min(train.n_rows, max(train.chunk_rows, GROUP_ROWS))
    columns = train.column_bytes(sampled)
    order = order_bytes(replace(train, n_rows=sampled, chunk_rows=sampled), False, size.width)
    if size.leaf_count_bytes:  # for a base score that is a quantile
        order = max(order, order_bytes(train, False, size.width))
    per_row = 32 + 12 * k  # id, norm, draw, label, weight; gradients and margins
    return replace(
        exact_plan(size, free_bytes, column_bytes),
        samples_bytes=train.taken_bytes(candidates) + train.taken_bytes(sampled),
        columns_bytes=columns if columns <= column_bytes else 0,
        order_bytes=order,
        gradients_bytes=(24 + 8 * k) * chunk + per_row * (candidates + sampled) + 24 * k * sampled
        + 8 * size.sketch_columns * sampled,
    )  # fmt: skip


PLANS: Mapping[RowSource, Callable[[FitSize, int | None, int], Plan]] = {
    "all": exact_plan, "certified": certified_plan, "drawn": sampled_plan,
}  # fmt: skip
"""The plan of a fit, by the rows that its trees grow on."""


def _trees_at_once(size: FitSize) -> int:
    """Return how many trees of a round grow at the same time, if they grow in compiled calls."""
    n_open = size.n_slots * size.open_histograms
    return trees_at_once(size.n_trees, size.n_threads, size.n_engines, size.train.n_rows, n_open)


def sample_rows(share: float, n_rows: int) -> int:
    """Most rows that a sample has; hashes choose more only once in a million passes."""
    return min(n_rows, math.ceil(share * n_rows + 5 * math.sqrt(share * (1 - share) * n_rows)))


def evaluation_bytes(size: FitSize) -> int:
    """Return the bytes of evaluation sets."""
    return sum(
        each.stored_bytes + view_bytes(each)
        + (4 * (size.n_outputs + 1 + size.has_weight) + size.ranked_row_bytes) * each.n_rows
        for each in size.evals
    )


def view_bytes(rows: SetSize) -> int:
    """Return the bytes of what chunks are unpacked or joined into, where they are not read in place; two chunks of
    those on disk."""
    joined = rows.chunk_rows < rows.n_rows and 2 * rows.chunk_rows <= GROUP_ROWS
    copied = rows.resident_rows if joined or not rows.read_in_place else 0
    return rows.host_bytes(min(rows.streamed_rows, 2 * rows.chunk_rows) + copied)


def order_bytes(rows: SetSize, small_data: bool, width: int = 1) -> int:
    """Return the bytes of rows and pairs in the order of nodes, and as much again, which they move through; pairs of
    several outputs do not move."""
    return 2 * rows.n_rows * 4 + PairLayout(width, small_data).nbytes(rows.n_rows, rows.n_rows)


def slot_bytes(size: FitSize) -> int:
    """Sums of g and h: a word for small nodes (`histogram.py`), of which small data has no others."""
    return 8 if size.most_rows <= WORD_ROWS else 16


def histograms_bytes(size: FitSize) -> int:
    """Return the bytes of the nodes that are there, and of buffers that are kept."""
    return slot_bytes(size) * size.n_entries * HISTOGRAM_COPIES * size.open_histograms


def told_bytes(size: FitSize) -> int:
    """Return the bytes of what engines tell each other of a level's histograms: those of one of two children, in a room
    that is up to twice as large as is needed."""
    return slot_bytes(size) * size.n_entries * size.deepest_nodes if size.n_engines > 1 else 0


def shared_tasks(n_threads: int) -> int:
    """Return the most tasks that large nodes are divided into at a time, each with sums of its own: two for a thread,
    and what nodes have more than whole blocks."""
    return 4 * n_threads + 4 if n_threads > 1 else 1


def trees_at_once(n_trees: int, n_threads: int, n_engines: int, n_rows: int, n_open: int) -> int:
    """Return how many trees of a round grow at the same time: some for each thread, as they take unlike long, and as
    many as take little memory; one where engines grow it together, or rows are work enough for all threads.

    `n_open` : slots of the histograms that a tree has at the same time.
    """
    if n_engines > 1:
        return 1
    return max(1, min(n_trees, TREES_A_THREAD * n_threads, SIDE_BY_SIDE_BYTES // (24 * n_rows + 16 * n_open + 1)))


def scratch_bytes(size: FitSize) -> int:
    """Sums of nodes that several threads build together, each thread's temporary arrays of gradients, candidates of the
    split search, predictions of metrics, counts of residuals."""
    gradients = GRADIENT_TEMPORARIES * 4 * (BLOCK_VALUES if size.n_outputs > 1 else GRADIENT_ROWS)
    edges = shared_tasks(size.n_threads) * slot_bytes(size) * size.n_entries + size.n_threads * gradients
    candidates = size.deepest_nodes * (size.train.n_features * 40 + 64 * size.width)
    if size.summed_outputs:  # over the rows of leaves, and the leaf of each row
        edges += 16 * size.summed_outputs * size.most_leaves * (size.n_threads + 1)
        edges += 4 * size.train.n_rows * _trees_at_once(size)
    if size.leaf_terms:  # equations of leaves; the leaf of each row, or of a chunk's where they end, and numbers
        edges += 8 * n_sums(size.leaf_terms) * size.most_leaves * (size.n_threads + 1)
        of_chunk = 12 * min(size.train.n_rows, max(size.train.chunk_rows, GROUP_ROWS))
        edges += max(of_chunk, 4 * size.train.n_rows * _trees_at_once(size))
    evaluation = max((4 * 4 * size.n_outputs * each.n_rows for each in size.evals), default=0)
    counts = 2 * size.leaf_count_bytes * size.most_leaves
    return edges + candidates + evaluation + counts
