"""Trees whose splits the host chooses: from the range of a round's gradients to leaf values and margins.

`tree/growing_tree.py: grow_nodes` is the tree loop, the only one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add

from daskboost.devices.cpu.scales import least_gain
from daskboost.fit import messages as m
from daskboost.fit.leaves import LeafFitter, units_of
from daskboost.fit.messages import Outbox
from daskboost.fit.peers import Reduction
from daskboost.fit.samplers import RoundRows
from daskboost.fit.scales import Scales
from daskboost.fit.spec import FitSpec
from daskboost.tree.constraints import FeatureRules
from daskboost.tree.growing_tree import GrowingTree, grow_nodes, make_policy, walk_arrays
from daskboost.tree.table import TreeTable


class HostGrower:
    """Grows the trees of a round one after the other; outbox and reduction are of the rows that grow them."""

    def __init__(self, outbox: Outbox, reduction: Reduction, spec: FitSpec) -> None:
        self._outbox, self._reduction, self._spec = outbox, reduction, spec
        self._leaves = LeafFitter(outbox, spec)
        self._last = spec.first_iteration + len(spec.learning_rates) - 1

    def grow(self, rows: RoundRows, learning_rate: float) -> Callable[[], tuple[TreeTable, ...]]:
        """Return what gives the finished trees of a round, which are in all margins by the next request."""
        trees = tuple(self._grow_tree(rows, outputs, learning_rate) for outputs in self._spec.recipe.tree_outputs)
        return lambda: trees

    def _following(self, rows: RoundRows, outputs: tuple[int, ...]) -> m.StartTree | None:
        """Return what the next round is expected to start with, after its last tree, of `outputs`: by this round's
        range, since powers of two rarely change."""
        of_round = self._spec.recipe.tree_outputs
        if not rows.stay or rows.iteration == self._last or outputs != of_round[-1]:
            return None
        return self._start_of(of_round[0], rows.scales.of_round(rows.iteration + 1))

    def _start_of(self, outputs: tuple[int, ...], scales: Scales) -> m.StartTree:
        """Return the request that a tree of some outputs begins with."""
        columns = self._spec.recipe.searched_columns(outputs)
        return m.StartTree(columns, scales.searched(columns))

    def _grow_tree(self, rows: RoundRows, outputs: tuple[int, ...], learning_rate: float) -> TreeTable:
        """Grow one tree and add it to all margins."""
        spec, start = self._spec, self._start_of(outputs, rows.scales)
        replies = self._reduction.start_tree(start)
        features = FeatureRules(spec.params, spec.cuts.n_features, spec.interaction_groups, rows.iteration, outputs[0])
        root = [sum(sums) for sums in zip(*(part.sums for part in replies), strict=True)]
        tree = GrowingTree(spec.params, spec.rules, spec.cuts, features, root, units_of(start.roundings))
        noise = reduce(add, (rounding.noise_gain for rounding in start.roundings))  # newer Pythons' `sum` rounds once
        least = least_gain(spec.params.gamma, noise)
        pending = grow_nodes(self._reduction.search, tree, make_policy(spec.params, least), [0])
        self._reduction.end_tree()
        table, pending = self._leaves.finished(tree, pending, outputs, rows.scales, learning_rate)
        self._outbox.later(m.FinishTree(pending, walk_arrays(table), outputs[0], self._following(rows, outputs)))
        return table
