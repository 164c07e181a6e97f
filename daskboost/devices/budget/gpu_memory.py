"""Bytes that a fit takes on a GPU: one function for each thing that is allocated; `gpu_plans.py` adds them up.

Whoever changes what `views.py`, `rows/row_state.py`, `growth.py`, `split.py` or an engine allocates changes it here;
`tests/training/test_plan_held.py` compares the plan with what engines take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from daskboost.devices.budget.gpu_streaming import loading_bytes, ring_bytes
from daskboost.devices.budget.plan import FitSize, Growth, QueryCounts
from daskboost.devices.budget.set_size import SetSize
from daskboost.devices.gpu.rows import ranked
from daskboost.devices.gpu.rows.feature_groups import room_bytes
from daskboost.devices.gpu.rows.given_pairs import list_shapes as pair_shapes
from daskboost.devices.gpu.rows.metrics import (
    SCORE_ROWS,
    STATE_BYTES,
    score_bytes,
    sum_shapes,
)
from daskboost.devices.gpu.rows.moved_rows import gradient_shapes, score_shapes
from daskboost.devices.gpu.rows.positions import position_shapes
from daskboost.devices.gpu.rows.queries import block_size, large_shapes, row_shapes
from daskboost.devices.gpu.rows.query_lists import large_parts, list_shapes
from daskboost.devices.gpu.rows.query_order import TILE, BlockSize, most_block_rows, padded, sort_shapes
from daskboost.devices.gpu.rows.rounds import round_shapes
from daskboost.devices.gpu.rows.row_state import USUAL_SPLITS, scratch_shapes
from daskboost.devices.gpu.rows.vector_rows import AT_ONCE
from daskboost.devices.gpu.rows.views import TAKEN_FEATURES
from daskboost.devices.gpu.rows.watched import watched_shapes
from daskboost.devices.gpu.runtime.launches import bytes_of
from daskboost.devices.gpu.trees.best_first import (
    best_first_bytes,
    kept_histograms,
    most_splits,
    step_width,
    usual_steps,
)
from daskboost.devices.gpu.trees.entry_search import entry_search_bytes, entry_tile_bytes
from daskboost.devices.gpu.trees.growth import START_BYTES, LevelSizes, frontier_bytes, tables_bytes
from daskboost.devices.gpu.trees.leaf_models import EQUATION_BYTES, fit_shapes, root_shapes
from daskboost.devices.gpu.trees.leaf_quantiles import quantile_shapes
from daskboost.devices.gpu.trees.node_features import feature_shapes, group_words
from daskboost.devices.gpu.trees.sorted_entries import MOST_ENTRIES, MOST_NODES, pays, sorted_bytes, sorting_bytes
from daskboost.devices.gpu.trees.sparse_columns import ENTRY_BYTES, SORTING_BYTES, is_copied, state_words
from daskboost.devices.gpu.trees.split import search_shapes, vector_shapes
from daskboost.devices.gpu.trees.split_sets import set_shapes
from daskboost.devices.gpu.trees.vector_sets import vector_set_shapes
from daskboost.devices.losses import AnyQueryLoss, GivenPairs, ListLoss, OwnLoss

LAYOUT_BYTES = 12
"""Bytes of a feature in `DeviceLayout`."""
PAIR_SLOT_BYTES = 16
"""Sums of g and h, int64."""
LEAF_SUM_BYTES = 20
"""Bytes of a leaf whose exact sums the host asks for: they and its number. Rows need nothing more: `known_tree.py`."""
SEGMENT_BYTES = 16
"""First and last row of a node."""
ID_BYTES = 8
"""Global id of a row that was chosen alone."""
CODE_BYTES = 8
"""Code of a row's query."""
LEAF_VECTOR_BYTES = 2 * 8 + 2 * 4
"""Bytes of a leaf and output: sums of g and h, and the values of two nodes."""
DRAW_BYTES = 16
"""States of a tree's keys, by which levels and nodes draw features."""
LEAST_MULTIPROCESSORS = 10
"""A GPU that is not there is taken to have so many, as no GPU has fewer: tiles are largest then."""
GRADIENT_TEMPORARIES = {"computed": 0, "stored": 0, "expressions": 7, "uploaded": 2}
"""float32 arrays of (rows, outputs) that making gradients takes at the same time, results among them."""
EVALUATION_TEMPORARIES = 4
"""The same of `Objective.evaluation`."""
SOFTMAX_TEMPORARIES = 6
"""Arrays that predictions of several outputs take at a time: the result, and a copy in another order, beside those of
`exp`."""
GRADIENT_ROWS = 2**24
"""`GpuDevice.gradient_rows`."""
ROUNDS_AT_ONCE = 128
"""Most rounds whose trees wait on the device until they are fetched together."""
WAITING_BYTES = 2**27
"""Enough bytes of such trees: to fetch them takes about as long as growing one of them."""


def evaluation_bytes(size: FitSize) -> int:
    """Return the bytes of bins, margins, labels and weights of evaluation sets, and of what metrics take in turn."""
    sums = bytes_of(sum_shapes(size.multiprocessors or LEAST_MULTIPROCESSORS)) if size.evals else 0
    most = max((each.n_rows for each in size.evals), default=0)
    scores = score_bytes(most, keeps_keys=not size.watched) if size.counts_scores and most else 0
    return sums + scores + watched_bytes(size) + sum(
        view_bytes(each) + _margin_bytes(size, each) + 4 * (1 + size.has_weight) * each.n_rows for each in size.evals
    )


def watched_bytes(size: FitSize) -> int:
    """Return the bytes of what metrics that are computed behind the trees take in turn, and of what they know."""
    if not size.watched:
        return 0
    n_rows = [each.n_rows for each in size.evals if each.n_rows]
    most = max(n_rows, default=0)
    copied = [each.n_rows for each in size.evals if each.n_rows and evaluated_together(size, each)[1]]
    shapes = watched_shapes(max(copied, default=0), 0 if size.evaluates_margins else most, size.n_outputs)
    of_queries = sum(ranked_bytes(size, counts) for counts in size.ranked)
    if size.n_engines > 1:
        of_queries += sum(moved_score_bytes(size, counts.n_rows) for counts in size.ranked)
    return bytes_of(shapes) + len(size.evals) * size.n_metrics * STATE_BYTES + of_queries


def ranked_bytes(size: FitSize, counts: QueryCounts) -> int:
    """Return the bytes of `RankedLabels` of an evaluation set, all of whose metrics may be of queries."""
    return _most_bytes(size, counts, partial(_ranked_bytes, size))


def _ranked_bytes(size: FitSize, counts: QueryCounts) -> int:
    n_rows, _, n_tiles = _large_queries(size, counts, ranked.BLOCKS)
    known = bytes_of(ranked.ranked_shapes(counts.n_rows, counts.n_queries, counts.most))
    return known + bytes_of(sort_shapes(n_rows, n_tiles)) + (4 + 8 * size.n_metrics) * counts.n_queries


def _margin_bytes(size: FitSize, rows: SetSize) -> int:
    """Return the bytes of the margins of an evaluation set, and of the numbers of those training rows that count."""
    of_all = 4 * size.n_outputs * (size.train if rows.of_training else rows).n_rows
    numbers = 4 * rows.n_rows if rows.of_training and rows.n_rows < size.train.n_rows else 0
    return numbers if size.shares_margins(rows) else of_all + numbers


def view_bytes(rows: SetSize) -> int:
    """Return the bytes of the rows of `DenseView` or `SparseView` that are kept; none of symbols that lie on the device
    as the view has them."""
    return 0 if rows.is_lent else rows.unpacked_bytes(rows.resident_rows, rows.resident_entries)


def training_view_bytes(size: FitSize, *, has_columns: bool) -> int:
    """Return the same of the training rows, whose view mixes widths where it has a column-major copy."""
    rows = size.train
    return size.mixed_row_bytes * rows.resident_rows if has_columns and size.mixed_row_bytes else view_bytes(rows)


def mixing_bytes(size: FitSize) -> int:
    """Return the bytes of features that are copied into such a view at a time, of rows on the device."""
    return 2 * TAKEN_FEATURES * size.train.part_rows if size.mixed_row_bytes else 0


def searches_entries(size: FitSize) -> bool:
    """Whether splits are found in `SortedEntries`, without histograms."""
    rows = size.train
    if size.n_engines > 1 or not size.may_sort_entries:
        return False
    most = _searched_nodes(size)
    has_room = most <= MOST_NODES and entry_tile_bytes(most, size.small_data) <= room_bytes(size.block_bytes)
    if not has_room or not 0 < rows.n_entries <= MOST_ENTRIES:
        return False
    if size.grow_policy == "lossguide":
        n_nodes, n_searches = 2 * size.max_leaves, usual_steps(size.max_leaves)
    else:
        n_nodes, n_searches = size.most_leaves, size.depth
    return size.prefers_entries or pays(size.n_slots, rows.n_entries, n_nodes, n_searches)


def searched_nodes(grow_policy: str, levels: LevelSizes, max_leaves: int) -> int:
    """Most nodes that are searched together where trees grow without the host, of each that grows."""
    return 2 * step_width(max_leaves) if grow_policy == "lossguide" else levels.searched


def _searched_nodes(size: FitSize) -> int:
    return searched_nodes(size.grow_policy, level_sizes(size), size.max_leaves)


def level_sizes(size: FitSize) -> LevelSizes:
    """Return the nodes that trees have room for which grow by levels without the host."""
    return LevelSizes(size.depth, size.most_leaves)


def columns_bytes(size: FitSize) -> int:
    """Return the bytes of the column-major copy of `DenseView`, or of `SparseColumns` or `SortedEntries`."""
    rows, of_states = size.train, 8 * state_words(size.train.resident_rows)
    if searches_entries(size):
        return sorted_bytes(rows.n_entries, rows.n_features) + of_states
    if copied_entries(size):
        return ENTRY_BYTES * copied_entries(size) + of_states
    return rows.column_bytes(rows.resident_rows)


def root_copy_bytes(size: FitSize) -> int:
    """Return the bytes of the copy that `DenseView` makes for roots, unless they are gathered."""
    if size.gathers_roots:
        return 0
    return size.train.turned_bytes(size.most_slots, size.block_bytes)


def copied_entries(size: FitSize) -> int:
    """Entries that `SparseColumns` sorts by feature, or `SortedEntries` by slot."""
    n_entries = size.train.resident_entries
    return n_entries if searches_entries(size) or is_copied(size.n_slots, n_entries, size.block_bytes) else 0


def order_bytes(n_rows: int, small_data: bool, width: int = 1) -> int:
    """Return the bytes of both halves of `DeviceOrder`; of several outputs, of one order, all pairs, and those that are
    gathered."""
    pair_bytes = 8 if small_data else 4
    n_pairs = 2 if width == 1 else width + 2 * min(AT_ONCE, width)
    return n_rows * (2 * 4 + n_pairs * pair_bytes)


def label_bytes(size: FitSize) -> int:
    """Labels and weights of training rows, and codes by which trees draw queries; what evaluation sets have counts as
    theirs."""
    weights = size.has_weight + size.small_data
    return (4 * (1 + weights) + CODE_BYTES * size.draws_queries) * size.train.n_rows


def gradients_bytes(size: FitSize) -> int:
    """Return the bytes of `SoftmaxChunk`, or of an engine whose objective has no kernel, and of a sketch of them; with
    what ranking losses know of queries."""
    n, k = size.train.n_rows, size.n_outputs + size.sketch_columns
    if size.gpu_gradients == "computed":
        return 0
    by_chunk = size.by_expressions and not size.keep_gradients
    most_rows = max([size.train.chunk_rows, *(group.n_rows for group in size.train.groups)])
    return 8 * k * (min(n, most_rows) if by_chunk else n) + query_bytes(size)


OWN_LOSS_ROW_BYTES = 16
"""Place of a row in the order of queries, and its gradients while they are uploaded."""


def query_bytes(size: FitSize) -> int:
    """Return the bytes of `QueryKernels`, with the keys of all rounds' draws, of `ListKernels`, of
    `PairKernels`, or of `OwnLossFilling`."""
    if size.queries is None or size.query_loss is None:
        return 0
    known = _most_bytes(size, size.queries, partial(_query_bytes, size, size.query_loss))
    if size.n_engines == 1:
        return known
    n_rows = size.train.n_rows
    return known + moved_score_bytes(size, n_rows) + bytes_of(gradient_shapes(n_rows, n_rows, size.n_engines))


def moved_score_bytes(size: FitSize, n_rows: int) -> int:
    """Return the bytes of `MovedScores`, if all of a GPU's rows are of queries that others rank, as may be where the
    rows of queries lie in no order."""
    return bytes_of(score_shapes(n_rows, n_rows, n_rows, size.n_engines))


def _most_bytes(size: FitSize, counts: QueryCounts, bytes_of_queries: Callable[[QueryCounts], int]) -> int:
    """Return what the queries of an engine take at most, of which others may have rows."""
    return max(bytes_of_queries(counts), bytes_of_queries(counts.joined(size.n_engines)))


def _query_bytes(size: FitSize, loss: AnyQueryLoss, counts: QueryCounts) -> int:
    if isinstance(loss, OwnLoss):
        return OWN_LOSS_ROW_BYTES * counts.n_rows
    if isinstance(loss, GivenPairs):  # of all engines, as any may have the rows of most
        n_entries = 2 * len(loss.weight)
        return bytes_of(pair_shapes(min(counts.n_rows, n_entries), n_entries))
    if isinstance(loss, ListLoss):
        n_parts = [(large_parts(own), n) for own, n in counts.of_sizes]
        n_large = sum(n for own, n in n_parts if own)
        shapes = list_shapes(loss, counts.n_rows, counts.n_queries, n_large, sum(own * n for own, n in n_parts))
        return bytes_of(shapes) + 8 * size.n_rounds
    n_rows, n_queries, n_tiles = _large_queries(size, counts, block_size(loss))
    known = bytes_of(row_shapes(loss, counts.n_rows, counts.n_queries, counts.most)) + 4 * counts.n_queries
    large = bytes_of(large_shapes(loss, n_rows, n_queries, n_tiles, size.train.n_rows))
    positions = bytes_of(position_shapes(_n_positions(loss, counts)))
    return known + large + bytes_of(sort_shapes(n_rows, n_tiles)) + 8 * size.n_rounds + positions


def _n_positions(loss: AnyQueryLoss | None, counts: QueryCounts) -> int:
    """Return the positions whose chances a loss estimates, of which the largest query has so many."""
    return 0 if loss is None else min(loss.positions, counts.most)


def _large_queries(size: FitSize, counts: QueryCounts, of_blocks: BlockSize) -> tuple[int, int, int]:
    """Return the rows of queries that have no block, each query's padded, how many these are, and their tiles."""
    most = most_block_rows(of_blocks, room_bytes(size.block_bytes))
    large = [(own, n) for own, n in counts.of_sizes if own > most]
    return (
        sum(n * padded(own) for own, n in large), sum(n for _, n in large),
        sum(n * -(-own // TILE) for own, n in large),
    )  # fmt: skip


def joining_bytes(size: FitSize) -> int:
    """Return the bytes of margins and gradients of all rows while those of several groups are put together for a
    ranking loss, which needs whole queries; with as many rows of other engines, and places of those that go there,
    where these have rows of the same queries."""
    groups = [n for n in (size.train.resident_rows, *(group.n_rows for group in size.train.groups)) if n]
    if size.queries is None:
        return 0
    return (3 * 4 * (len(groups) > 1) + (2 * 3 * 4 + 8) * (size.n_engines > 1)) * size.train.n_rows


def histograms_bytes(size: FitSize) -> int:
    """Return the bytes of histograms that are there at a time, or of `EntrySearch`, which needs none."""
    if searches_entries(size):
        return entry_search_bytes(size.train, _searched_nodes(size), size.multiprocessors)
    return PAIR_SLOT_BYTES * size.n_entries * growth_of(size).n_histograms


def search_bytes(size: FitSize, n_nodes: int) -> int:
    """Return the bytes of a search's arrays; `EntrySearch` has its own."""
    if searches_entries(size):
        return 0
    shape, symmetric = (n_nodes, size.train.n_features, size.n_slots), size.grow_policy == "symmetric"
    if size.width > 1:
        of_sets = vector_set_shapes(size.sets, n_nodes, size.n_slots, size.width, symmetric=symmetric)
        return bytes_of(vector_shapes(*shape, size.width, symmetric=symmetric)) + bytes_of(of_sets)
    n_trees = size.trees_together * symmetric
    return bytes_of(search_shapes(*shape, n_trees)) + bytes_of(set_shapes(size.sets, n_nodes, size.n_slots, n_trees))


def split_bytes(size: FitSize) -> int:
    """Return the bytes of `SplitScratch`."""
    n_splits = max(USUAL_SPLITS, growth_of(size).n_splits)
    n_rows = size.trees_together * size.train.n_rows
    return bytes_of(scratch_shapes(size.multiprocessors or LEAST_MULTIPROCESSORS, n_rows, n_splits))


class GrowthSize(NamedTuple):
    """What trees take, by what grows them."""

    n_histograms: int
    """Histograms that are there at a time."""
    n_splits: int
    """Nodes that are split at a time."""
    tree_bytes: int
    """Bytes of what is kept of nodes beside histograms."""
    step_bytes: int = 0
    """Bytes of searching nodes, where these come and go with every step."""
    n_counted: int = 1
    """Leaves whose residuals are counted between trees; 1 where only the base score's are, and those of leaves stay."""


def growth_of(size: FitSize) -> GrowthSize:
    """Return what the trees of a fit take."""
    return GROWTHS[size.growth](size)


def _host_growth(size: FitSize) -> GrowthSize:
    """Return what trees take that grow with the host: the nodes that are there, and vectors of leaves."""
    leaf_bytes = LEAF_VECTOR_BYTES * size.leaf_vector * size.most_leaves
    if size.leaf_terms:  # equations; features of leaves, then features and slopes of nodes
        leaf_bytes += (EQUATION_BYTES + 20 * size.leaf_terms) * size.most_leaves
    segments_bytes = SEGMENT_BYTES * 4 * size.open_histograms * (1 + len(size.train.groups))
    n_splits = max(size.deepest_nodes, step_width(size.max_leaves) if size.grow_policy == "lossguide" else 0)
    return GrowthSize(
        size.open_histograms, n_splits, segments_bytes + leaf_bytes, search_bytes(size, size.deepest_nodes),
        n_counted=size.most_leaves,
    )  # fmt: skip


def _level_growth(size: FitSize) -> GrowthSize:
    """Return what `TreeGrower` takes, with the trees that wait to be fetched; the last trees of a round may have one of
    their own."""
    levels, together, rest = level_sizes(size), size.trees_together, size.n_trees % size.trees_together
    growers, most = [n for n in (together, rest) if n], together * levels.searched
    of_growers = (
        frontier_bytes(n, levels, size.width, size.sets.width, size.leaf_terms)
        + _feature_bytes(size, n * levels.capacity, n * levels.searched)
        for n in growers
    )
    return GrowthSize(
        together * sum(levels.histograms), most,
        sum(of_growers) + search_bytes(size, most) + _kept_bytes(size, levels.capacity)
        + SEGMENT_BYTES * together * levels.capacity + sum(_quantile_bytes(size, n) for n in growers)
        + _model_bytes(size, growers),
    )  # fmt: skip


def _model_bytes(size: FitSize, growers: Sequence[int]) -> int:
    """Return the bytes of what fits models to the leaves of trees that grow together, where they have some, and of maps
    of these leaves' tiles; `growers` : trees of each."""
    if not size.leaf_terms:
        return 0
    most = size.most_leaves
    kept = bytes_of({**root_shapes(size.trees_together), **fit_shapes(size.trees_together, most)})
    return kept + size.train.n_features + sum(START_BYTES * (n * most + 1) for n in growers)


def _quantile_bytes(size: FitSize, n_trees: int) -> int:
    """Return the bytes of what finds the quantiles of the leaves of trees that grow together, where they are that, and
    of the map of these leaves' tiles."""
    if not size.leaf_count_bytes:
        return 0
    state = bytes_of(quantile_shapes(n_trees, size.most_leaves)) if n_trees == size.trees_together else 0
    return state + START_BYTES * (n_trees * size.most_leaves + 1) + 8 * size.n_outputs


def _best_first_growth(size: FitSize) -> GrowthSize:
    """Return the same of `BestFirstGrower`."""
    grown = 2 * most_splits(size.max_leaves) + 1
    return GrowthSize(
        kept_histograms(size.max_leaves), step_width(size.max_leaves),
        best_first_bytes(size.max_leaves, size.sets.width) + _feature_bytes(size, grown, _searched_nodes(size))
        + search_bytes(size, _searched_nodes(size))
        + _kept_bytes(size, 2 * size.max_leaves - 1) + SEGMENT_BYTES * grown,
    )  # fmt: skip


GROWTHS: Mapping[Growth, Callable[[FitSize], GrowthSize]] = {
    "host": _host_growth, "levels": _level_growth, "best first": _best_first_growth,
}  # fmt: skip
"""What trees take, by what grows them."""


def _kept_bytes(size: FitSize, capacity: int) -> int:
    """Return the bytes of trees of so many nodes that wait to be fetched, of metrics and estimates beside them, of what
    rounds differ in, and of the features that trees may use."""
    metrics = len(size.evals) * size.n_metrics * STATE_BYTES * size.watched
    estimates = 8 * _n_positions(size.query_loss, size.queries.joined(size.n_engines)) if size.queries else 0
    of_tree = tables_bytes(1, capacity, size.width, size.sets.width, size.leaf_terms)
    of_round = size.n_trees * of_tree + metrics + estimates
    of_features = size.drawn_sets * size.train.n_features + DRAW_BYTES
    waiting = rounds_that_wait(size.n_rounds, of_round) * of_round
    return waiting + bytes_of(round_shapes(size.n_rounds)) + size.n_trees * of_features


def rounds_that_wait(n_rounds: int, round_bytes: int) -> int:
    """Return the most rounds whose trees wait on the device, of so many bytes each, until they are fetched together."""
    return max(1, min(n_rounds, ROUNDS_AT_ONCE, WAITING_BYTES // round_bytes))


def _feature_bytes(size: FitSize, n_grown: int, n_nodes: int) -> int:
    """Return the bytes of what tells the features of nodes where these have their own."""
    if not size.own_features:
        return 0
    return bytes_of(feature_shapes(n_grown, n_nodes, size.train.n_features, group_words(size.n_groups)))


def metric_bytes(size: FitSize, rows: SetSize) -> int:
    """Return the bytes of margins that are put together and predictions while these are made; none where metrics keep
    what they take (`watched_bytes`)."""
    if size.watched:
        return 0
    n_rows, is_copied = evaluated_together(size, rows)
    predictions = 4 * size.n_outputs * n_rows
    temporaries = EVALUATION_TEMPORARIES if size.n_outputs == 1 else SOFTMAX_TEMPORARIES
    n_arrays = (0 if size.evaluates_margins else temporaries) + is_copied
    return n_arrays * predictions


def evaluated_together(size: FitSize, rows: SetSize) -> tuple[int, bool]:
    """Most rows of an evaluation set whose metrics are computed at a time (`engine/evaluation.py`), and whether their
    margins are copied for that: of several groups, or of some of their rows."""
    grouped = size.train if rows.of_training else rows  # margins of rows trained on are theirs
    groups = [n for n in (grouped.resident_rows, *(group.n_rows for group in grouped.groups)) if n]
    is_copied = len(groups) > 1 or rows.n_rows < grouped.n_rows
    return min(rows.n_rows, max([SCORE_ROWS // size.n_outputs, *groups])), is_copied


def upload_bytes(rows: SetSize, n_slots: int) -> int:
    """Return the bytes of rows on their way into a view; of rows some of which lie on disk, what packed chunks take."""
    return max(loading_bytes(rows, n_slots), rows.uploading_bytes())


def opening_bytes(size: FitSize, *, has_columns: bool) -> int:
    """Return the bytes of what views take while they are made, beside what they keep. The training rows' is free again
    before their column-major copy is made, or memory is taken for those of them that stream."""
    rows = size.train
    own = upload_bytes(rows, size.n_slots) - ring_bytes([rows]) - rows.planes_bytes(size.n_slots)
    if has_columns:  # of rows that all stay
        own = max(own, mixing_bytes(size)) - columns_bytes(size)
        n = copied_entries(size)
        sorting = SORTING_BYTES * n
        if searches_entries(size):
            growth = growth_of(size)
            later = histograms_bytes(size) + growth.tree_bytes + growth.step_bytes
            sorting = sorting_bytes(n, rows.n_features) - later
        own = max(own, sorting)
    return max(0, own, *(upload_bytes(each, size.n_slots) for each in size.evals))


def scratch_bytes(size: FitSize, passing: int) -> int:
    """Return the bytes of trees and steps, and what is needed before and after them."""
    growth, of_layout = growth_of(size), LAYOUT_BYTES * size.train.n_features
    return of_layout + growth.tree_bytes + split_bytes(size) + max(passing, growth.step_bytes)


def passing_bytes(size: FitSize, *, has_columns: bool) -> int:
    """The largest of what is needed before and after trees, and freed each time."""
    return max(opening_bytes(size, has_columns=has_columns), between_bytes(size))


def between_bytes(size: FitSize) -> int:
    """The same once views are there."""
    rows, k = size.train, size.n_outputs
    gradients = 4 * GRADIENT_TEMPORARIES[size.gpu_gradients] * k * min(rows.n_rows, GRADIENT_ROWS)
    evaluation = max((metric_bytes(size, each) for each in size.evals), default=0)
    leaves = max(size.leaf_count_bytes * growth_of(size).n_counted, LEAF_SUM_BYTES * size.refits * size.most_leaves)
    return max(gradients, joining_bytes(size), evaluation, leaves)
