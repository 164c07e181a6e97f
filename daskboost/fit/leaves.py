"""Leaf values of a grown tree: from the sums it was searched on, from sums of their own, or quantiles of residuals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from daskboost.devices.cpu.chunk_order import RowSplits
from daskboost.devices.cpu.rows import Rounding
from daskboost.fit import messages as m
from daskboost.fit.outbox import Outbox
from daskboost.fit.quantiles import residual_quantiles
from daskboost.fit.rounding import Scales
from daskboost.fit.spec import FitSpec
from daskboost.tree.growth import GrowingTree
from daskboost.tree.table import TreeTable


class LeafFitter:
    """Values the leaves of trees that rows have grown.

    Parameters
    ----------
    outbox : Outbox
        Of the rows that grow the trees.
    spec : FitSpec
    """

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
            exact = (np.sum([part.sums for part in parts], axis=0), units_of(roundings))
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


def units_of(roundings: tuple[Rounding, ...]) -> tuple[float, ...]:
    """Return what one quantum of g and of h of each column is worth."""
    return tuple(unit for rounding in roundings for unit in rounding.units)
