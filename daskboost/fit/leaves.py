"""Leaf values of a grown tree: from the sums it was searched on, from sums of their own, or quantiles of residuals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from daskboost.devices.cpu.rows import Rounding
from daskboost.devices.row_order import RowSplits
from daskboost.dtypes import FLOAT32_MAX, Float64
from daskboost.errors import DataError
from daskboost.fit import messages as m
from daskboost.fit.base_score import residual_quantiles
from daskboost.fit.messages import Outbox
from daskboost.fit.scales import Scales
from daskboost.fit.spec import FitSpec
from daskboost.tree.growing_tree import GrowingTree
from daskboost.tree.table import TreeTable


class LeafFitter:
    """Values the leaves of trees, by an outbox of the rows that have grown them."""

    def __init__(self, outbox: Outbox, spec: FitSpec) -> None:
        self._outbox, self._spec = outbox, spec

    def finished(self, tree: GrowingTree, pending: RowSplits | None, outputs: tuple[int, ...], scales: Scales,
                 learning_rate: float) -> tuple[TreeTable, RowSplits | None]:  # fmt: skip
        """Return the tree with its values, and the splits that its rows have not taken yet.

        `pending` : those that they had not taken before.
        """
        recipe = self._spec.recipe
        if pending is not None and (recipe.refits or recipe.quantiles is not None):  # rows must be in their leaves
            self._outbox.later(m.ApplySplits(pending))
            pending = None
        exact = None
        if recipe.refits:
            roundings = scales.exact(outputs)
            parts = self._outbox.ask(m.LeafSums(outputs, tree.leaves, roundings))
            sums = np.sum([part.sums for part in parts], axis=0)
            exact = (sums, units_of(roundings), self._spec.leaf_rules)
        table = tree.table(learning_rate, exact)
        return (table if recipe.quantiles is None else self._with_quantiles(table, outputs, learning_rate)), pending

    def _with_quantiles(self, table: TreeTable, outputs: tuple[int, ...], learning_rate: float) -> TreeTable:
        """Replace leaf values by quantiles of the residuals of the rows that grew the tree."""
        quantiles = self._spec.recipe.quantiles
        assert quantiles is not None
        leaves = np.flatnonzero(table.is_leaf).astype(np.int32)
        value = table.value.copy()
        columns = value.reshape(len(value), -1)
        for column, output in enumerate(outputs):
            found = residual_quantiles(self._outbox, output, leaves, quantiles[output], self._spec.largest_weight)
            known = ~np.isnan(found)
            columns[leaves[known], column] = found[known] * np.float32(learning_rate)
        return replace(table, value=value)


class MarginBounds:
    """Bounds of all rows' margins by the leaves of the trees so far, so that none becomes infinite unseen.

    Gradients within float32 can sum to leaf values beyond it, and finite values to infinite margins, which a custom
    objective need not show in its next gradients. The bound depends on trees alone, hence on no rows' order.
    `base_margins` are the margins without trees, shape (outputs,); those that rows bring instead are not counted.
    """

    def __init__(self, objective_name: str, base_margins: Float64) -> None:
        self._objective_name = objective_name
        self._largest = np.abs(np.array(base_margins, np.float64))

    def add(self, tree: TreeTable, output: int, iteration: int) -> None:
        """Count a tree, which adds to one output, or to all from `output` 0 on where its leaves are vectors.

        Raises
        ------
        DataError
            Some row's margin could exceed float32 from this tree on.
        """
        values, into = np.abs(tree.value[tree.is_leaf]).max(axis=0), tree.outputs(output)
        self._largest[into] += values
        if not self._largest[into].max() < FLOAT32_MAX:  # values beyond it are clipped to it
            raise DataError(
                f"objective {self._objective_name!r} gave leaf values up to {float(np.max(values)):g} in iteration "
                f"{iteration}, with which margins exceed float32; check labels, weights and the objective's gradients "
                "for extreme values, or lower learning_rate or set max_delta_step"
            )


def units_of(roundings: tuple[Rounding, ...]) -> tuple[float, ...]:
    """Return what one quantum of g and of h of each column is worth."""
    return tuple(unit for rounding in roundings for unit in rounding.units)
