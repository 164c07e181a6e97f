"""One tree of a round, from the range of its gradients to its leaf values.

`tree/growth.py: grow_nodes` is the tree loop, the only one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from daskboost.cluster import messages as m
from daskboost.cluster.gradient_sketch import make_projection
from daskboost.cluster.outbox import AsksEngines, Outbox
from daskboost.cluster.quantiles import residual_quantiles
from daskboost.cluster.reduce.strategies import Reduction
from daskboost.cluster.rounding import make_rounding
from daskboost.devices.cpu.rows import Rounding
from daskboost.dtypes import Int64
from daskboost.tree.constraints import FeatureRules
from daskboost.tree.growth import GrowingTree, grow_nodes, make_policy, walk_arrays
from daskboost.tree.table import TreeTable

if TYPE_CHECKING:
    from daskboost.cluster.coordinator import FitSpec


def round_columns(
    spec: FitSpec, iteration: int, ranges: Sequence[m.GradientRange], total_weight: float | None,
    largest_searched: float, columns: Sequence[int], is_search: bool,
) -> list[Rounding]:  # fmt: skip
    """The roundings of columns of a round's gradients, as they are searched or exact; `total_weight` of all rows where
    data are small, else None, and `largest_searched` as `make_rounding` takes them."""
    given = (ranges, total_weight, *((spec.packs_gradients, largest_searched) if is_search else ()))
    return [make_rounding(spec.params, spec.objective.name, iteration, column, *given) for column in columns]


def start_round(spec: FitSpec, iteration: int) -> m.StartRound:
    """The request that a round begins with."""
    n_outputs, n_columns = spec.objective.n_outputs, spec.params.sketch_outputs
    return m.StartRound(
        make_projection(spec.params.random_state, iteration, n_outputs, n_columns) if n_columns else None
    )


Roundings = Callable[[Sequence[int], bool], list[Rounding]]
"""Those of columns of a round's gradients, as they are searched or exact."""


def start_tree(spec: FitSpec, outputs: Sequence[int], roundings: Roundings) -> m.StartTree:
    """The request that a tree of some outputs begins with."""
    n_columns = spec.params.sketch_outputs
    columns = tuple(range(len(outputs), len(outputs) + n_columns)) if n_columns else tuple(outputs)
    return m.StartTree(columns, tuple(roundings(columns, True)))


def grow_tree(outbox: Outbox, reduction: Reduction, spec: FitSpec, iteration: int, outputs: Sequence[int],
              roundings: Roundings, learning_rate: float, following: Callable[[], m.StartTree] | None = None
              ) -> TreeTable:  # fmt: skip
    """Grow one tree of some outputs and add it to all margins; `following` makes what `FinishTree` has of the next."""
    start = start_tree(spec, outputs, roundings)
    searched, replies = start.roundings, reduction.start_tree(start)
    features = FeatureRules(spec.params, spec.cuts.n_features, spec.interaction_groups, iteration, outputs[0])
    root = [sum(sums) for sums in zip(*(part.sums for part in replies), strict=True)]
    tree = GrowingTree(spec.params, spec.rules, spec.cuts, features, root, _units(searched))
    pending = grow_nodes(reduction.search, tree, make_policy(spec.params), [0])
    reduction.end_tree()
    adaptive = spec.objective.adaptive_quantiles is not None
    if pending is not None and (adaptive or spec.refits):  # rows must be in their leaves for what comes next
        outbox.later(m.ApplySplits(pending))
        pending = None
    exact = _leaf_sums(outbox, tree, outputs, roundings(outputs, False)) if spec.refits else None
    table = tree.table(learning_rate, exact)
    if adaptive:
        table = _with_quantiles(outbox, spec, outputs, table, learning_rate)
    outbox.later(m.FinishTree(pending, walk_arrays(table), outputs[0], following and following()))
    return table


def _units(roundings: Sequence[Rounding]) -> tuple[float, ...]:
    """What one quantum of g and of h of each column is worth."""
    return tuple(unit for rounding in roundings for unit in rounding.units)


def _leaf_sums(outbox: Outbox, tree: GrowingTree, outputs: Sequence[int], roundings: Sequence[Rounding]
               ) -> tuple[Int64, tuple[float, ...]]:  # fmt: skip
    """Exact sums of outputs over the rows of each leaf, and their units."""
    parts = outbox.ask(m.LeafSums(tuple(outputs), tree.leaves, tuple(roundings)))
    return np.sum([part.sums for part in parts], axis=0), _units(roundings)


def _with_quantiles(engines: AsksEngines, spec: FitSpec, outputs: Sequence[int], table: TreeTable,
                    learning_rate: float) -> TreeTable:  # fmt: skip
    """Replace leaf values by quantiles of the residuals of the rows that grew the tree."""
    quantiles = spec.objective.adaptive_quantiles
    assert quantiles is not None
    leaves = np.flatnonzero(table.is_leaf).astype(np.int32)
    value = table.value.copy()
    columns = value.reshape(len(value), -1)
    for column, output in enumerate(outputs):
        found = residual_quantiles(engines, output, leaves, quantiles[output], spec.largest_weight)
        known = ~np.isnan(found)
        columns[leaves[known], column] = found[known] * np.float32(learning_rate)
    return replace(table, value=value)
