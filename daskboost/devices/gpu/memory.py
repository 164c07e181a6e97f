"""Bytes that a fit takes on a GPU: one function for each thing that is allocated, and the plan that adds them up.

Whoever changes what `views.py`, `rows.py`, `growth.py`, `split.py` or an engine allocates changes it here;
`tests/training/test_plan.py` compares the plan with what engines take.
"""

from __future__ import annotations

from dataclasses import replace

from daskboost.devices.gpu.best_first import STEPS, WIDTH, kept_histograms, most_splits
from daskboost.devices.gpu.feature_groups import CELL_BYTES, MOST_GROUP_BYTES, row_columns
from daskboost.devices.gpu.growth import histogram_nodes, tables_bytes
from daskboost.devices.gpu.metrics import LIMB_BYTES, SCORE_ROW_BYTES, SCORE_ROWS
from daskboost.devices.gpu.rows import USUAL_SPLITS
from daskboost.devices.gpu.sparse_columns import ENTRY_BYTES, SORT_BYTES, STATE_WORDS, pays
from daskboost.devices.gpu.split import RESULTS
from daskboost.devices.gpu.split_vectors import n_chunks
from daskboost.devices.gpu.tiles import LEAST_TILE_ROWS, MOST_TILE_ROWS
from daskboost.devices.gpu.vector_rows import AT_ONCE
from daskboost.devices.plan import FitSize, Plan, SetSize

PAIR_SLOT_BYTES = 16
"""Sums of g and h, int64."""
SEGMENT_BYTES = 16
"""First and last row of a node."""
LEVEL_SLOT_BYTES = 4 + 3 * 8 + 2 * 16 + 6 * 4 + 4
"""Of `_TreeLevel`."""
GROWN_BYTES = 8 * RESULTS + 3 * 4
"""Of `_Grown`."""
LEAF_VECTOR_BYTES = 2 * 8 + 2 * 4
"""Of a leaf and output: sums of g and h, and the values of two nodes."""
LEAST_TILES = 256
"""No GPU has so few multiprocessors that `rows_per_tile` would cut a chunk into fewer tiles."""
GRADIENT_TEMPORARIES = 7
"""float32 arrays of (rows, outputs) that an objective's expressions have at the same time, results among them."""
EVALUATION_TEMPORARIES = 4
"""The same of `Objective.evaluation`."""
GRADIENT_ROWS = 2**24
"""`GpuDevice.gradient_rows`."""
POOL_SHARE = 16
"""CuPy's pool loses about this part; fits on an H200 whose pool was bounded by their arrays alone lacked 1 and 2 %."""
ROUNDS_AT_ONCE = 128
"""Most rounds whose trees wait on the device until they are fetched together."""


def gpu_plan(size: FitSize, free_bytes: int | None) -> Plan:
    """The plan of an engine on a GPU with so many free bytes.

    What only makes a fit faster is left out where there is no room for it: column-major copies first, then trees
    that grow without the host, with room for nodes that are not there.
    """
    whole = _arrays(size, free_bytes)
    slower = replace(whole, columns_bytes=0)
    slowest = replace(_arrays(replace(size, without_host=False), free_bytes), columns_bytes=0)
    plans = [_with_pool(arrays) for arrays in (whole, slower, slowest)]
    return next((plan for plan in plans if plan.fits is not False), plans[-1])


def _with_pool(arrays: Plan) -> Plan:
    """With what CuPy's pool takes for these arrays."""
    return replace(arrays, pool_bytes=arrays.total_bytes // POOL_SHARE)


def _arrays(size: FitSize, free_bytes: int | None) -> Plan:
    train, k = size.train, size.n_outputs
    return Plan(
        device="cuda", free_bytes=free_bytes, without_host=size.without_host,
        chunks_bytes=view_bytes(train),
        columns_bytes=columns_bytes(train, size.n_slots),
        order_bytes=order_bytes(train.n_rows, size.small_data, size.width),
        gradients_bytes=gradients_bytes(size),
        margins_bytes=4 * k * train.n_rows,
        labels_bytes=label_bytes(size),
        histograms_bytes=histograms_bytes(size),
        evaluation_bytes=sum(
            view_bytes(each) + 4 * (k + 1 + size.has_weight) * each.n_rows for each in size.evals
        ),
        scratch_bytes=scratch_bytes(size),
    )  # fmt: skip


def view_bytes(rows: SetSize) -> int:
    """Of the rows of `DenseView` or `SparseView`: those that are kept, and two chunks of those that are streamed."""
    streamed = min(rows.streamed_rows, 2 * rows.chunk_rows)
    n = rows.resident_rows + streamed
    if rows.symbol_bytes:
        return n * rows.symbol_bytes * row_columns(rows.n_features, rows.symbol_bytes)
    return 8 * (n + 1) + int(4 * n * rows.entries_per_row)


def columns_bytes(rows: SetSize, n_slots: int) -> int:
    """Of the column-major copy of `DenseView`, or of `SparseColumns`."""
    if copied_entries(rows, n_slots):
        return ENTRY_BYTES * copied_entries(rows, n_slots) + 8 * STATE_WORDS * rows.resident_rows
    return rows.resident_rows * rows.n_features * rows.symbol_bytes


def copied_entries(rows: SetSize, n_slots: int) -> int:
    """Entries that `SparseColumns` sorts by feature, on a GPU of much shared memory."""
    n_entries = int(rows.resident_rows * rows.entries_per_row)
    is_many = CELL_BYTES * n_slots > MOST_GROUP_BYTES and pays(1, n_slots, n_entries)
    return n_entries if is_many and not rows.symbol_bytes else 0


def order_bytes(n_rows: int, small_data: bool, width: int = 1) -> int:
    """Of both halves of `DeviceOrder`; of several outputs, of one order, all pairs, and those that are gathered."""
    pair_bytes = 8 if small_data else 4
    n_pairs = 2 if width == 1 else width + 2 * min(AT_ONCE, width)
    return n_rows * (2 * 4 + n_pairs * pair_bytes)


def label_bytes(size: FitSize) -> int:
    """Labels and weights of training rows; those of evaluation sets count as theirs."""
    weights = size.has_weight + size.small_data
    return 4 * size.train.n_rows * (1 + weights)


def gradients_bytes(size: FitSize) -> int:
    """Of `SoftmaxChunk`, or of an engine whose objective has no kernel, and of a sketch of them."""
    n, k = size.train.n_rows, size.n_outputs + size.width * size.sketched
    if size.gpu_gradients == "computed":
        return 0
    by_chunk = size.gpu_gradients == "expressions" and not size.keep_gradients and k == 1
    return 8 * k * (min(n, size.train.chunk_rows) if by_chunk else n)


def histograms_bytes(size: FitSize) -> int:
    """Of `TreeGrower` or `BestFirstGrower`, or of the nodes that are there."""
    if not size.without_host:
        nodes = size.open_histograms
    elif size.grow_policy == "lossguide":
        nodes = kept_histograms(size.max_leaves)
    else:
        nodes = sum(histogram_nodes(1, size.depth))
    return PAIR_SLOT_BYTES * size.n_entries * nodes


def search_bytes(size: FitSize, n_nodes: int) -> int:
    """Of `SplitKernels`: a gain of each node and feature, for symmetric trees a level's running sums."""
    n_features = size.train.n_features
    if size.width > 1:
        sums_before = PAIR_SLOT_BYTES * n_chunks(size.n_slots, n_features) * size.width
        return n_nodes * (sums_before + 12 * n_features + 8 * (RESULTS + 2 * size.width))
    if size.grow_policy == "symmetric":
        return n_nodes * (PAIR_SLOT_BYTES * size.n_slots + 8 * RESULTS) + 12 * n_features
    return n_nodes * 8 * (n_features + RESULTS)


def split_bytes(size: FitSize) -> int:
    """Of `SplitScratch`: a bit for each row of a tile, and a count for each tile."""
    n_splits = max(USUAL_SPLITS, min(WIDTH, size.max_leaves) if size.grow_policy == "lossguide" else _deepest(size))
    tile_rows = min(max(1 << (size.train.n_rows // LEAST_TILES).bit_length(), LEAST_TILE_ROWS), MOST_TILE_ROWS)
    return size.train.n_rows // 8 + n_splits * tile_rows // 8 + 4 * (size.train.n_rows // LEAST_TILE_ROWS + n_splits)


def _deepest(size: FitSize) -> int:
    return 1 << (size.depth - 1) if size.without_host else size.deepest_nodes


def step_bytes(size: FitSize) -> int:
    """Of searching nodes: of the largest level, or of all that CUDA graphs of a tree recorded, one for each output,
    whose arrays live as long as they do."""
    if not size.without_host:
        return search_bytes(size, size.deepest_nodes)
    if size.grow_policy == "lossguide":
        return size.n_outputs * (STEPS + 1) * search_bytes(size, 2 * min(WIDTH, size.max_leaves))
    return size.n_outputs * sum(search_bytes(size, 1 << depth) for depth in range(size.depth))


def tree_bytes(size: FitSize) -> int:
    """Of nodes' segments; where trees grow without the host, of what growers keep of nodes beside histograms, and of
    the trees that wait to be fetched."""
    if not size.without_host:
        leaf_bytes = LEAF_VECTOR_BYTES * size.n_outputs * size.most_leaves if size.width > 1 or size.sketched else 0
        return SEGMENT_BYTES * 4 * size.open_histograms + leaf_bytes
    waiting = min(size.n_rounds, ROUNDS_AT_ONCE) * size.n_outputs
    if size.grow_policy == "lossguide":
        most, capacity = 2 * most_splits(size.max_leaves) + 1, 2 * size.max_leaves - 1
        grown = tables_bytes(1, most) + most * (SEGMENT_BYTES + GROWN_BYTES)
        return tables_bytes(1 + waiting, capacity) + grown
    capacity = (2 << size.depth) - 1
    return tables_bytes(1 + waiting, capacity) + capacity * (SEGMENT_BYTES + LEVEL_SLOT_BYTES)


def metric_bytes(size: FitSize, rows: SetSize) -> int:
    """Of predictions while they are made, or of them and what metrics take."""
    predictions = 4 * size.n_outputs * rows.n_rows
    scores = SCORE_ROW_BYTES * min(rows.n_rows, SCORE_ROWS) if size.counts_scores else 0
    return max(EVALUATION_TEMPORARIES * predictions, predictions + max(scores, LIMB_BYTES))


def scratch_bytes(size: FitSize) -> int:
    """Of trees and steps, and the largest of what is needed before and after them."""
    rows, k = size.train, size.n_outputs
    sets = (rows, *size.evals)
    upload = max(min(each.n_rows, each.chunk_rows) * each.n_features * each.symbol_bytes for each in sets)
    upload = max(upload, SORT_BYTES * copied_entries(rows, size.n_slots))
    made = size.gpu_gradients == "expressions"
    gradients = 4 * GRADIENT_TEMPORARIES * k * min(rows.n_rows, GRADIENT_ROWS) if made else 0
    evaluation = max((metric_bytes(size, each) for each in size.evals), default=0)
    passing, steps = max(upload, gradients, evaluation, size.leaf_count_bytes * size.most_leaves), step_bytes(size)
    return tree_bytes(size) + split_bytes(size) + (passing + steps if size.without_host else max(passing, steps))
