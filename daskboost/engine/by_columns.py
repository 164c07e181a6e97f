"""All rows of a fit on every GPU, each of which has a share of the features: what engines bring there from one another.

Every engine tells the others what its own rows have, by sums to which the others add zeros. What grows over these rows
is what grows over an engine's own (`device_grower.py`). Where GPUs have room, each has the symbols of all features by
columns, and moves rows by itself; else a split's sides come from the GPU that has its feature.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from daskboost.data.input.row_columns import RowColumns
from daskboost.devices.budget.gpu_plans import allowed_bytes, columns_plan, gpu_plan
from daskboost.devices.budget.partition import balanced_shares, feature_costs
from daskboost.devices.budget.plan import Plan
from daskboost.devices.gpu.rows.everywhere import BLOCK_BYTES, Everywhere
from daskboost.devices.gpu.rows.row_state import GpuRows
from daskboost.devices.gpu.rows.views import DenseView, SparseView
from daskboost.devices.gpu.runtime.collective import ALONE, Collective, Sharing
from daskboost.devices.gpu.runtime.launches import to_host
from daskboost.devices.gpu.trees.split import FeatureShare
from daskboost.dtypes import Int64
from daskboost.engine.device_grower import GrownOver, own_rows
from daskboost.engine.engine import Engine, TreesOnAllRows
from daskboost.engine.fit_size import engine_size
from daskboost.engine.row_gradients import GrowingRows, searched_gradients
from daskboost.engine.row_groups import RowGroup
from daskboost.engine.tree_rows import make_rows
from daskboost.fit.peers import Peers
from daskboost.fit.spec import FitSpec

logger = logging.getLogger(__name__)

BLOCKS = 3
"""Blocks of bins that are there at a time while engines tell each other theirs: a block, its parts, and temporary
arrays."""
SLOT_BYTES = 4
"""Bytes of an entry of CSR rows that an engine tells, at most all of its own at a time."""
COLUMN_COPIES = 2
"""Copies of the columns of all features that are there at a time while engines tell each other theirs, at most."""


def why_not_by_columns(engine: Engine, spec: FitSpec, n_engines: int) -> str:
    """Say why GPUs do not share the features of a fit; empty where they can."""
    recipe, params, groups = spec.recipe, spec.params, engine.sets.train.groups
    reasons = {
        "an engine has no rows, or several chunks": len(groups) != 1,
        "trees leave rows out": recipe.subsample < 1,
        "rows are ranked by query": recipe.by_query,
        "trees split by sets of categories": spec.rules.sets is not None,
        "leaves are linear models": spec.recipe.leaf_terms > 0,
        "trees grow best first": params.grow_policy == "lossguide",
        "leaves take exact sums beside": recipe.refits,
        "data are small": recipe.small_data,
        "there are fewer features than GPUs": spec.cuts.n_features < n_engines,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


@dataclass(frozen=True)
class FeatureDivision:
    """How GPUs divide the features of a fit."""

    view: DenseView | SparseView
    """The engine's own rows, with all features."""
    shares: Sequence[tuple[int, int]]
    """First feature of each GPU, and the one behind its last, in their order."""
    n_entries: Int64
    """Entries of all rows by feature; int64, shape (features,)."""


def divide_features(engine: Engine, spec: FitSpec, joined: Collective) -> FeatureDivision:
    """Divide the features so that trees take the GPUs about equally long; collective."""
    ((_, view),) = engine.sets.train.views()
    assert isinstance(view, DenseView | SparseView)
    counts = view.entries_of_features()
    joined.add_up(counts)
    n_entries: Int64 = to_host(counts)
    size = engine_size(spec, engine.sets.train.shard, ())
    costs = feature_costs(size, np.diff(engine.setup.layout.offsets), n_entries)
    return FeatureDivision(view, balanced_shares(costs, joined.n_members), n_entries)


def share_plan(engine: Engine, spec: FitSpec, division: FeatureDivision, rank: int) -> Plan:
    """Return the plan of the engine's share of the features of all rows, beside what it has already."""
    kernels, train, offsets = engine.device.split_kernels, engine.sets.train, engine.setup.layout.offsets
    assert kernels is not None
    size, (first, last) = engine_size(spec, train.shard, ()).on_gpu(kernels.runtime), division.shares[rank]
    size = replace(size, trees_together=own_rows(engine, ALONE).n_trees)
    taken = 0 if size.device_memory_limit is None else gpu_plan(size, None).total_bytes
    free_bytes, _ = allowed_bytes(size, kernels.runtime.free_bytes + taken)
    assert free_bytes is not None
    n_slots, n_entries = int(offsets[last] - offsets[first]), int(division.n_entries[first:last].sum())
    told_bytes = BLOCKS * BLOCK_BYTES + SLOT_BYTES * size.train.n_entries
    return columns_plan(size, last - first, n_slots, n_entries, free_bytes - taken - told_bytes)


def has_room_for_all(division: FeatureDivision, plan: Plan, n_rows: int) -> bool:
    """Whether a GPU has room for the columns of all features of so many rows beside its plan, if there are such."""
    n_bytes = division.view.bytes_of_all(n_rows, len(division.n_entries))
    if n_bytes is None:
        return False
    assert plan.free_bytes is not None
    return plan.total_bytes + COLUMN_COPIES * n_bytes <= plan.free_bytes


def rows_by_columns(engine: Engine, division: FeatureDivision, plan: Plan, peers: Peers, joined: Collective
                    ) -> GrownOver:  # fmt: skip
    """Bring all rows to every GPU, with a share of the features each, by the engine's plan of its own; collective."""
    trees, setup, device, kernels = engine.trees, engine.setup, engine.device, engine.device.split_kernels
    assert isinstance(trees, TreesOnAllRows) and kernels is not None
    runtime, own = kernels.runtime, engine.sets.rows
    (group,) = own.train.groups
    told = peers.share((group.n_rows, np.array(group.pieces, np.int64), own.weights[0] is not None))
    begins = np.cumsum([0, *(n for n, _, _ in told)]).tolist()
    place = Everywhere(runtime, joined, begins[peers.rank], begins[-1])
    weight = None
    if any(has_weight for _, _, has_weight in told):
        mine = runtime.xp.ones(group.n_rows, np.float32) if own.weights[0] is None else own.weights[0]
        weight = place.spread(mine)
    label, margin = place.spread(own.labels[0]), place.spread(own.train.margins[0])
    layout = kernels.layout
    shares = [layout.part(*share, place.n_rows) for share in division.shares]
    has_all = all(peers.share(has_room_for_all(division, plan, place.n_rows)))
    logger.info("each GPU has the symbols of %s", "all features" if has_all else "its own features alone")
    view = division.view.of_all_rows(
        place, shares, sort_entries=plan.by_entries, all_features=layout if has_all else None
    )
    pieces = tuple(
        (begin + at, row) for begin, (_, part, _) in zip(begins, told, strict=False) for at, row in part.tolist()
    )
    all_rows = RowGroup(range(0), begins[-1], pieces, RowColumns(label, weight))
    train = replace(
        own.train, groups=(all_rows,), margins=(margin,), views=lambda: iter(((0, view),)), is_resident=True
    )
    growing = GrowingRows(train, (label,), (weight,))
    gradients = searched_gradients(setup, device, growing, keep=setup.keeps_round)
    rows = make_rows(setup, device, growing)
    assert isinstance(rows, GpuRows)
    share = FeatureShare(layout, joined, [first for first, _ in division.shares])
    return GrownOver(
        rows, gradients, train, type(kernels)(shares[peers.rank], share),
        Sharing(features=joined, sides=ALONE if has_all else joined),
        slice(place.begin, place.begin + group.n_rows), min(plan.trees_together, rows.chunks[0].n_trees),
        all(peers.share(device.orders_rows)),
    )  # fmt: skip
