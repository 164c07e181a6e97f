"""Bytes that a fit takes on a GPU: one function for each thing that is allocated, and the plan that adds them up.

Whoever changes what `views.py`, `rows.py`, `growth.py`, `split.py` or an engine allocates changes it here;
`tests/training/test_plan.py` compares the plan with what engines take.
"""

from __future__ import annotations

from dataclasses import replace

from daskboost.devices.gpu.feature_groups import padded_row_bytes
from daskboost.devices.gpu.growth import histogram_nodes, tables_bytes
from daskboost.devices.gpu.rows import TILE_ROWS, TILE_WORDS
from daskboost.devices.plan import FitSize, Plan, SetSize

PAIR_SLOT_BYTES = 16
"""Sums of g and h, int64."""
SEGMENT_BYTES = 16
"""First and last row of a node."""
LEVEL_SLOT_BYTES = 4 + 3 * 8 + 2 * 16 + 6 * 4 + 4 + 4
"""Of `_Slots`, and a leaf's number."""
GRADIENT_TEMPORARIES = 7
"""float32 arrays of (rows, outputs) that an objective's expressions have at the same time, results among them."""
EVALUATION_TEMPORARIES = 4
"""The same of `Objective.evaluation`."""
GRADIENT_ROWS = 2**24
"""`GpuDevice.gradient_rows`."""
ROUNDS_AT_ONCE = 128
"""Rounds whose trees wait on the device until they are fetched together: about as many as small data takes in
`coordinator.ASK_SECONDS`."""


def gpu_plan(size: FitSize, free_bytes: int | None) -> Plan:
    """The plan of an engine on a GPU with so many free bytes.

    What only makes a fit faster is left out where there is no room for it: column-major copies first, then levels with
    room for nodes that are not there.
    """
    whole = _plan(size, free_bytes)
    slower = replace(whole, columns_bytes=0)
    slowest = replace(_plan(replace(size, fixed_levels=False), free_bytes), columns_bytes=0)
    return next((plan for plan in (whole, slower) if plan.fits is not False), slowest)


def _plan(size: FitSize, free_bytes: int | None) -> Plan:
    train, k = size.train, size.n_outputs
    return Plan(
        device="cuda", free_bytes=free_bytes,
        chunks_bytes=view_bytes(train),
        columns_bytes=columns_bytes(train),
        order_bytes=order_bytes(train.n_rows, size.small_data),
        gradients_bytes=8 * k * (train.n_rows if size.keep_gradients or k > 1 else min(train.n_rows, train.chunk_rows)),
        margins_bytes=4 * k * train.n_rows,
        labels_bytes=label_bytes(size),
        histograms_bytes=histograms_bytes(size),
        evaluation_bytes=sum(view_bytes(each) + 4 * k * each.n_rows for each in size.evals),
        scratch_bytes=scratch_bytes(size),
    )  # fmt: skip


def view_bytes(rows: SetSize) -> int:
    """Of the rows of `DenseView` or `SparseView`: those that are kept, and two chunks of those that are streamed."""
    streamed = min(rows.streamed_rows, 2 * rows.chunk_rows)
    n = rows.resident_rows + streamed
    if rows.symbol_bytes:
        return n * padded_row_bytes(rows.n_features, rows.symbol_bytes)
    return 8 * (n + 1) + int(4 * n * rows.entries_per_row)


def columns_bytes(rows: SetSize) -> int:
    """Of the column-major copy of `DenseView`."""
    return rows.resident_rows * rows.n_features * rows.symbol_bytes


def order_bytes(n_rows: int, small_data: bool) -> int:
    """Of `DeviceOrder`'s rows and pairs, and as much again that `GpuRows` moves them through."""
    return 2 * n_rows * (4 + (8 if small_data else 4))


def label_bytes(size: FitSize) -> int:
    """Labels and weights of training rows; those of evaluation sets stay with the host."""
    weights = size.has_weight + size.small_data
    return 4 * size.train.n_rows * (1 + weights)


def histograms_bytes(size: FitSize) -> int:
    """Of `TreeGrower`'s two levels, or of the nodes that are there."""
    nodes = sum(histogram_nodes(1, size.depth)) if size.fixed_levels else size.open_histograms
    return PAIR_SLOT_BYTES * size.n_slots * nodes


def search_bytes(size: FitSize) -> int:
    """Of `SplitKernels`: candidates of each node and feature, for symmetric trees a level's running sums."""
    nodes, n_features = _searched_nodes(size), size.train.n_features
    if size.grow_policy == "symmetric":
        return nodes * (PAIR_SLOT_BYTES * size.n_slots + 48) + 12 * n_features
    return nodes * (28 * n_features + 48)


def _searched_nodes(size: FitSize) -> int:
    return 1 << (size.depth - 1) if size.fixed_levels else size.deepest_nodes


def tree_bytes(size: FitSize) -> int:
    """Of nodes' segments; where trees grow without the host, of their tables, also those that wait to be fetched, and
    of levels' slots."""
    if not size.fixed_levels:
        return SEGMENT_BYTES * 4 * size.open_histograms
    capacity = (2 << size.depth) - 1
    waiting = min(size.n_rounds, ROUNDS_AT_ONCE) * size.n_outputs
    return tables_bytes(1 + waiting, capacity) + capacity * (SEGMENT_BYTES + LEVEL_SLOT_BYTES)


def split_bytes(n_rows: int, n_splits: int) -> int:
    """Of flags and counts of `GpuRows.split_rows`."""
    return (n_rows // TILE_ROWS + n_splits) * (4 * TILE_WORDS + 8)


def scratch_bytes(size: FitSize) -> int:
    """The largest of what steps need one after the other, and tables of trees."""
    rows, k = size.train, size.n_outputs
    upload = max(min(each.n_rows, each.chunk_rows) * _given_row_bytes(each) for each in (rows, *size.evals))
    gradients = 4 * GRADIENT_TEMPORARIES * k * min(rows.n_rows, GRADIENT_ROWS)
    evaluation = max((4 * EVALUATION_TEMPORARIES * k * each.n_rows for each in size.evals), default=0)
    splitting = split_bytes(rows.n_rows, _searched_nodes(size)) + (9 * rows.n_rows if size.samples_rows else 0)
    return int(max(upload, gradients, evaluation, splitting, search_bytes(size)) + tree_bytes(size))


def _given_row_bytes(rows: SetSize) -> float:
    """Of a row of a chunk as it is uploaded, before it is laid out."""
    return rows.n_features * rows.symbol_bytes if rows.symbol_bytes else 0.0
