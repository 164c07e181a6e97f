"""Leaf values of a grown tree: from the sums it was searched on, from sums of their own, or quantiles of residuals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from daskboost.devices.cpu.leaf_models import Ridge, find_terms, fit_leaves
from daskboost.devices.cpu.rows import Rounding
from daskboost.devices.leaf_models import NONE, LeafModels
from daskboost.devices.row_order import RowSplits
from daskboost.dtypes import FLOAT32_MAX, Float64
from daskboost.errors import DataError
from daskboost.fit import messages as m
from daskboost.fit.base_score import residual_quantiles
from daskboost.fit.messages import Outbox
from daskboost.fit.scales import Scales
from daskboost.fit.spec import FitSpec
from daskboost.tree.growing_tree import GrowingTree
from daskboost.tree.table import LEAF, TreeTable


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
        if recipe.leaf_terms:
            return self._with_models(table, pending, outputs[0], scales, learning_rate), None
        return (table if recipe.quantiles is None else self._with_quantiles(table, outputs, learning_rate)), pending

    def _with_models(self, table: TreeTable, pending: RowSplits | None, output: int, scales: Scales,
                     learning_rate: float) -> TreeTable:  # fmt: skip
        """Fit models to the leaves, once the rows that grew the tree have taken the last splits."""
        spec = self._spec
        terms = find_terms(
            table.left_child, table.right_child, table.feature, spec.modelled_features, spec.recipe.leaf_terms
        )  # fmt: skip
        leaves, (rounding,) = np.flatnonzero(table.is_leaf).astype(np.int32), scales.exact((output,))
        of_leaves = terms[leaves]
        parts = self._outbox.ask(m.LeafEquations(pending, output, rounding, leaves, of_leaves))
        sums = np.sum([part.sums for part in parts], axis=0)
        rule = Ridge(*rounding.units, float(spec.params.linear_lambda), spec.leaf_rules.min_child_weight, learning_rate)
        value, slopes = table.value.copy(), np.zeros(terms.shape, np.float32)
        values, of_each = value[leaves], np.zeros(of_leaves.shape, np.float32)
        fit_leaves(sums, of_leaves, rule, values, of_each)
        terms[:] = NONE
        value[leaves], terms[leaves], slopes[leaves] = values, of_leaves, of_each
        return replace(table, value=value, models=LeafModels.of_nodes(terms, slopes))

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

    def start_with(self, trees: Sequence[TreeTable], outputs: Sequence[int], iteration: int) -> None:
        """Count the trees of rounds up to `iteration`, each of which adds to one output, or to all from `outputs` 0 on
        where leaves are vectors; raises as `checked`."""
        if trees:
            largest = largest_leaves(trees)
            np.add.at(self._largest, np.array(outputs)[:, None] + np.arange(largest.shape[1]), largest)
            self._check(self._largest, largest, iteration)

    def checked(self, batches: Iterable[Sequence[m.Round]], iteration: int) -> Iterator[m.Round]:
        """Give rounds from `iteration` on, whose trees are counted for all that come together.

        Raises
        ------
        DataError
            Some row's margin could exceed float32 from the next round on.
        """
        for rounds in batches:
            largest = largest_leaves([tree for each in rounds for tree in each.trees])
            largest = largest.reshape(len(rounds), -1)  # trees of a round are in the order of their outputs
            sums = np.add.accumulate(np.concatenate((self._largest[None], largest)))[1:]
            n_fine = len(rounds) if sums[-1].max() < FLOAT32_MAX else 0  # they do not fall
            for k, each in enumerate(rounds):
                if k >= n_fine:
                    self._check(sums[k], largest[k], iteration)
                yield each
                iteration += 1
            self._largest = sums[-1]

    def _check(self, sums: Float64, largest: Float64, iteration: int) -> None:
        if not sums.max() < FLOAT32_MAX:  # values beyond it are clipped to it
            raise DataError(
                f"objective {self._objective_name!r} gave leaf values up to {float(largest.max()):g} in iteration "
                f"{iteration}, with which margins exceed float32; check labels, weights and the objective's gradients "
                "for extreme values, or lower learning_rate or set max_delta_step"
            )


def largest_leaves(trees: Sequence[TreeTable]) -> Float64:
    """Return the largest |value| of each tree's leaves, by output where these are vectors; shape (trees, values)."""
    begins = np.cumsum([0, *(tree.n_nodes for tree in trees[:-1])])
    is_leaf = np.concatenate([tree.left_child for tree in trees]) == LEAF
    values = np.abs(np.concatenate([tree.value for tree in trees]).reshape(len(is_leaf), -1))
    if any(tree.models for tree in trees):
        values += np.concatenate([tree.models.reach(tree.n_nodes) for tree in trees])[:, None]
    return np.maximum.reduceat(np.where(is_leaf[:, None], values, 0), begins).astype(np.float64)


def units_of(roundings: tuple[Rounding, ...]) -> tuple[float, ...]:
    """Return what one quantum of g and of h of each column is worth."""
    return tuple(unit for rounding in roundings for unit in rounding.units)
