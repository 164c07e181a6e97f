"""Margins of rows by trees whose leaves have models: first the leaves that rows reach, then what these add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from daskboost.data.input.row_batch import Features
from daskboost.devices.leaf_models import NO_MODELS, NONE, LeafModels
from daskboost.dtypes import Float32, Int8
from daskboost.model.leaf_scale import LeafScale
from daskboost.model.predict_rows import TASK_ROWS, find_leaves, spread
from daskboost.tree.table import TreeTable

if TYPE_CHECKING:
    from daskboost.devices.cpu.predict import PackedForest
    from daskboost.devices.cpu.predict_models import PackedModels

TREES_AT_ONCE = 32
"""Trees whose leaves are found before these add: 2 MiB of leaves for each thread."""


def pack_models(trees: Sequence[TreeTable], outputs: Sequence[int], scale: LeafScale) -> PackedModels:
    """Lay out the models of trees for kernels; `outputs` : the one that each tree adds to."""
    from daskboost.devices.cpu.predict_models import PackedModels

    n_nodes = [tree.n_nodes for tree in trees]
    joined = LeafModels.joined([tree.models for tree in trees], n_nodes) or NO_MODELS
    column_of = np.full(int(scale.feature.max(initial=-1)) + 1, NONE, np.int32)
    column_of[scale.feature] = np.arange(len(scale.feature), dtype=np.int32)
    column = np.where(joined.feature == NONE, NONE, column_of[joined.feature]).astype(np.int32)
    table = scale.positions
    return PackedModels(
        node_start=(np.cumsum(n_nodes) - n_nodes).astype(np.int64), output=np.asarray(outputs, np.int32),
        value=np.concatenate([tree.value for tree in trees]), column=column, slope=joined.slope, column_of=column_of,
        cut_begin=scale.begin, cuts=scale.cuts, position_begin=table.begin, position=table.position,
    )  # fmt: skip


def add_modelled_margins(forest: PackedForest, models: PackedModels, rows: Features, trees: tuple[int, int],
                         margins: Float32, n_threads: int | None = None) -> None:  # fmt: skip
    """Add the leaves that rows reach, with their models, to margins; parameters as of `predict_rows.add_margins`."""
    from daskboost.devices.cpu.predict_models import add_models

    def work(start: int) -> None:
        stop = min(start + TASK_ROWS, rows.n_rows)
        own = rows.part(start, stop)
        positions: Int8 = np.empty((own.n_rows, len(models.cut_begin) - 1), np.int8)
        own.fill_positions(models, positions)
        for first in range(*trees, TREES_AT_ONCE):
            leaves = find_leaves(forest, own, (first, min(first + TREES_AT_ONCE, trees[1])), 1)
            add_models(models, positions, leaves, first, margins[start:stop])

    spread(work, range(0, rows.n_rows, TASK_ROWS), n_threads)
