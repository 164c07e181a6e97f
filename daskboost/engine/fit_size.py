"""What a fit's memory depends on, from the fit and its shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from daskboost.data.chunks.device_chunk import DeviceChunk, is_whole, joined_runs
from daskboost.data.chunks.packing import Layout
from daskboost.data.chunks.shard import Shard
from daskboost.devices.budget.plan import (
    NO_SETS,
    USUAL_QUERY_ROWS,
    FitSize,
    GpuGradients,
    QueryCounts,
    SetSizes,
)
from daskboost.devices.budget.set_size import ChunkSize, DenseSet, SetSize, kept_first
from daskboost.devices.cpu.gradients import DIGITS
from daskboost.devices.gpu.device import MOST_ROWS, kernel_gradients
from daskboost.devices.gpu.rows.feature_groups import mixed_row_bytes
from daskboost.devices.gpu.trees.split_sets import SetTables
from daskboost.engine.query_rows import by_query
from daskboost.fit.recipe import Recipe, evaluated_metrics
from daskboost.fit.spec import FitSpec
from daskboost.objectives.objective import Objective, kernel_of
from daskboost.objectives.own_objective import CustomObjective
from daskboost.params import TrainParams
from daskboost.tree.constraints import n_groups
from daskboost.tree.device_trees import drawn_sets, has_own_features, leaf_limit

WORD_ENDS = 8
"""Bytes that a chunk's words have behind its symbols, at most: of the last one, and its guard."""


def shard_size(shard: Shard, n_features: int, train: Shard | None = None) -> SetSize:
    """Return the size of the rows that an engine holds of one data set; an engine without rows has no layout.

    `train` : the training rows, where it is an evaluation set: if these are the same, their bins serve both, which is
    as if all rows were streamed in chunks of none.
    """
    if not shard.entries:
        return DenseSet(0, n_features)
    if train is not None and shard.has_chunks_of(train):
        n_rows = sum(
            entry.n_rows if entry.selected is None else int(np.count_nonzero(entry.selected)) for entry in shard.entries
        )
        return DenseSet(n_rows, n_features, streamed_rows=n_rows)
    tiers = [shard.store.residency(entry.handle) for entry in shard.entries]
    stored = [entry.handle.nbytes for entry in shard.entries]
    found = shard.layout.set_size(
        shard.n_rows, n_features, sum(stored), chunk_rows=max(entry.n_rows for entry in shard.entries),
        stored_bytes=sum(n_bytes for tier, n_bytes in zip(tiers, stored, strict=True) if tier != "disk"),
    )  # fmt: skip
    chunks = [
        chunk_size(shard.layout, entry.n_rows, entry.handle.nbytes, place, on_disk=tier == "disk")
        for place, (tier, entry) in enumerate(zip(tiers, shard.entries, strict=True)) if tier != "device"
    ]  # fmt: skip
    return _with_device_rows(replace(found, chunks=as_kept(chunks)), shard.store.of_gpus(shard.handles))


def as_kept(chunks: Sequence[ChunkSize]) -> tuple[ChunkSize, ...]:
    """In the order in which a GPU keeps them."""
    return tuple(sorted(chunks, key=lambda chunk: kept_first(chunk.place, chunk.on_disk)))


def chunk_size(layout: Layout, n_rows: int, n_bytes: int, place: int, *, on_disk: bool = False) -> ChunkSize:
    """Return the size of a chunk in a layout; `place` : among all chunks of its set."""
    return ChunkSize(n_rows, layout.most_entries(n_rows, n_bytes), n_bytes, on_disk, place)


def equal_chunks(layout: Layout, n_rows: int, n_entries: int, chunk_rows: int, ram_rows: int) -> tuple[ChunkSize, ...]:
    """Divide rows into equal chunks, the first `ram_rows` in chunks in memory, the others in chunks on disk; in the
    order of `SetSize.chunks`."""
    made: list[ChunkSize] = []
    for begin in range(0, n_rows, max(chunk_rows, 1)):
        n, on_disk = min(chunk_rows, n_rows - begin), begin >= ram_rows
        n_bytes = layout.nbytes(n, -(-n_entries * n // n_rows)) + WORD_ENDS
        made.append(chunk_size(layout, n, n_bytes, len(made), on_disk=on_disk))
    return as_kept(made)


def _with_device_rows(size: SetSize, chunks: Sequence[DeviceChunk]) -> SetSize:
    """With what is known of chunks that lie on the device."""
    parts = joined_runs(chunks)
    rows = [sum(chunk.n_rows for chunk in part) for part in parts]
    is_lent = len(parts) == 1 and rows[0] == size.n_rows and is_whole(parts[0])
    return replace(
        size, device_rows=sum(rows), n_parts=len(chunks), part_rows=max(rows, default=0), is_lent=is_lent,
        gpus=frozenset(part[0].gpu for part in parts),
    )  # fmt: skip


@dataclass(frozen=True)
class FitOutline:
    """What the memory of a fit depends on, apart from its rows and the place where an engine runs."""

    params: TrainParams
    objective: Objective
    recipe: Recipe
    n_slots: int
    """Slots of a histogram."""
    most_slots: int
    """Most slots of a feature."""
    n_rounds: int
    sets: SetSizes = NO_SETS
    mixed_row_bytes: int = 0
    """Bytes of a row on a GPU that has symbols of one and of two bytes, where features are of codes."""

    @classmethod
    def of(cls, spec: FitSpec) -> FitOutline:
        """The outline of a specified fit."""
        layout, sets = spec.layout, spec.rules.sets
        sizes = NO_SETS if sets is None else SetTables.of(layout.n_bins, sets.rules).sizes
        row_bytes = sizes.splits_codes * mixed_row_bytes(np.diff(layout.offsets))
        return cls(
            spec.params, spec.objective, spec.recipe, layout.n_slots, layout.most_slots, len(spec.learning_rates),
            sizes, row_bytes,
        )  # fmt: skip


QUERY_ROW_BYTES = 32
"""Place, label and id of a row in the order of queries, and, where there are several chunks, its margin and gradients
once more, float32."""
RANKED_ROW_BYTES = 24
"""Place and label of a row in the order of queries, its prediction, and that in this order, with what joins them."""
MOVED_ROW_BYTES, MOVED_SCORE_BYTES = 44, 20
"""The same where other engines have rows of the same queries: place of a row that they rank, what is told of it, and
scores and gradients, or scores alone, of the engine's rows with as many rows of others."""


@dataclass(frozen=True)
class EnginePlace:
    """Where an engine runs, and what is decided for it beforehand."""

    keep_gradients: bool = True
    n_threads: int = 1
    n_resident: int | None = None
    """Chunks of the training set that a GPU keeps, where that is decided; then it keeps none of evaluation sets."""
    stream_bytes: int | None = None
    """Bytes of groups of streamed chunks, where that is decided."""
    shares_views: bool = False
    """Whether other fits share the views, which may have histograms, so that none has sorted entries; their rows stay
    in their order."""


def engine_size(spec: FitSpec, train: Shard, evals: Sequence[Shard], place: EnginePlace = EnginePlace()
                ) -> FitSize:  # fmt: skip
    """Return what the memory of an engine's fit over these shards depends on."""
    n_features = spec.cuts.n_features
    found = fit_size(
        FitOutline.of(spec), replace(shard_size(train, n_features), feature_sizes=spec.feature_sizes),
        [shard_size(shard, n_features, train) for shard in evals],
        has_weight=any(
            entry.rows.weight is not None or entry.selected is not None
            for shard in (train, *evals) for entry in shard.entries
        ),
        place=place,
    )  # fmt: skip
    if spec.objective.query_loss is not None:
        found = replace(found, queries=query_counts(train))
    if found.ranked_row_bytes:
        found = replace(found, ranked=tuple(query_counts(shard) for shard in evals))
    if place.shares_views:
        found = replace(found, may_sort_entries=False, shares_views=True)
    return found.streaming(place.stream_bytes).keeping(place.n_resident)


def query_counts(shard: Shard) -> QueryCounts:
    """Return the queries of a shard's rows, of which those without weight are of none.

    Raises
    ------
    DataError
        Rows of a query with different weights: said here, before an engine takes memory.
    """
    ids, weights = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    for entry in shard.entries:
        qid, weight, selected = entry.rows.qid, entry.rows.weight, entry.selected
        assert qid is not None  # checked before (`check_evaluated_queries`)
        own = np.ones(len(qid), np.float32) if weight is None else weight
        ids.append(qid)
        weights.append(own if selected is None else np.where(selected > 0, own, np.float32(0)))
    _, begins, _ = by_query(np.concatenate(ids), np.concatenate(weights))
    sizes, counts = np.unique(np.diff(begins), return_counts=True)
    return QueryCounts(tuple(zip(sizes.tolist(), counts.tolist(), strict=True)))


def usual_queries(rows: SetSize) -> QueryCounts:
    """Return queries of a usual size, where these are not known."""
    return QueryCounts(((USUAL_QUERY_ROWS, -(-rows.n_rows // USUAL_QUERY_ROWS)),))


def fit_size(outline: FitOutline, train: SetSize, evals: Sequence[SetSize], *, has_weight: bool,
             place: EnginePlace) -> FitSize:  # fmt: skip
    """Put together what is known of one engine's fit."""
    params, objective, recipe = outline.params, outline.objective, outline.recipe
    metrics = evaluated_metrics(params, objective)
    moves = recipe.n_engines > 1
    margins = np.zeros((2, objective.n_outputs), np.float32)  # of one row, a copy might be a view
    found = FitSize(
        train=train, evals=tuple(evals), n_engines=recipe.n_engines, all_rows=recipe.n_rows,
        n_slots=outline.n_slots, most_slots=outline.most_slots,
        n_outputs=recipe.n_outputs, grow_policy=params.grow_policy, depth=params.depth_limit,
        max_leaves=leaf_limit(params), n_rounds=outline.n_rounds, small_data=recipe.small_data, has_weight=has_weight,
        keep_gradients=recipe.keeps_round(place.keep_gradients), n_threads=place.n_threads,
        gpu_gradients=_gpu_gradients(objective, stored=recipe.vector_leaves),
        query_row_bytes=recipe.by_query * (QUERY_ROW_BYTES + moves * MOVED_ROW_BYTES),
        ranked_row_bytes=any(metric.by_query for metric in metrics)
        * (RANKED_ROW_BYTES + moves * MOVED_SCORE_BYTES),
        leaf_count_bytes=0 if recipe.quantiles is None else 8 << max(DIGITS),
        device_memory_limit=None if params.device_memory_limit is None else int(params.device_memory_limit),
        evaluates_margins=bool(np.may_share_memory(objective.evaluation(margins), margins)),
        counts_scores=any(made.device_loss == "scores" for made in metrics),
        n_metrics=len(metrics), watched=len(evals) > 0 and not recipe.metrics_reason,
        metrics_reason=recipe.metrics_reason, growth=recipe.growth,
        query_loss=objective.query_loss, queries=usual_queries(train) if recipe.by_query else None,
        ranked=tuple(map(usual_queries, evals)) if any(metric.by_query for metric in metrics) else (),
        samples_rows=recipe.subsample < 1, draws_queries=recipe.draws_queries, drawn_sets=drawn_sets(params),
        own_features=has_own_features(params), n_groups=n_groups(params.interaction_constraints),
        may_sort_entries=recipe.splits_one_by_one and not outline.sets.splits_codes, sets=outline.sets,
        mixed_row_bytes=train.mixed_row_bytes(outline.mixed_row_bytes),
        width=recipe.columns, sketch_columns=len(recipe.sketch), refits=recipe.searched == "weights",
        leaf_vector=recipe.vector_leaves * recipe.n_outputs, leaf_terms=recipe.leaf_terms,
        summed_outputs=recipe.refits * len(recipe.tree_outputs[0]), rows=recipe.rows, share=recipe.share,
        recipe=str(recipe), host_reason=recipe.host_reason,
    )  # fmt: skip
    return found if 0 < train.n_rows <= MOST_ROWS else found.with_host()


def _gpu_gradients(objective: Objective, *, stored: bool) -> GpuGradients:
    """`stored` : whether those of all outputs must be there for a round (see `Device.loss_rows`)."""
    if isinstance(objective, CustomObjective):
        return "uploaded"
    if objective.query_loss is not None:
        return "stored"
    return kernel_gradients(kernel_of(objective), objective.n_outputs, stored=stored)
