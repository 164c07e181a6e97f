"""Growing with `out_of_core="certified"`: trees grow on a sample of the rows, passes over all rows certify them.

    sample: gradients -> grow each tree to its last level but one
    pass over all rows: margins of the last round's trees -> gradients -> walk to the leaves -> histograms, range, and
                        the next sample
    exact best splits -> certified? leaves take their best splits : worst splits replaced, grown again below -> pass

All trees of a round go through the same passes. The scale of their gradients follows from the range over all rows, as
in every fit, but that is known after the first pass only, which is where margins are made. So the pass goes ahead
with a guess, and is made again in the rare case that the power of two was another: what comes out never depends on
the guess. It is the range of the sample, times what all rows exceeded it by at the margins of the last round. Trees
grow on the sample with its own scale.

Gradients of the sample stand for those of all rows: their units are divided by the sample's share f of the rows. As
(G/f)^2 / (H/f + lambda) = G^2 / (H + f lambda) / f, that is the same as scaling penalties, `gamma` and
`min_child_weight` by f, and gains on the sample estimate those on all rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from daskboost.devices.cpu.rows import Rounding
from daskboost.devices.cpu.scales import least_gain
from daskboost.dtypes import Int64
from daskboost.fit import messages as m
from daskboost.fit.messages import Outbox
from daskboost.fit.peers import Reduction
from daskboost.fit.samplers import CertifiedSample, RoundRows
from daskboost.fit.spec import FitSpec
from daskboost.tree.certify import Draft, Verdict, depth_rows
from daskboost.tree.constraints import FeatureRules
from daskboost.tree.growing_tree import GrowingTree, grow_nodes, make_policy, walk_arrays
from daskboost.tree.split_search import OpenNodes
from daskboost.tree.table import TreeTable

logger = logging.getLogger(__name__)


@dataclass
class DraftTree:
    """A tree of one output, on its way."""

    output: int
    features: FeatureRules
    draft: Draft
    rounding: Rounding
    """Rounding by the range of all rows, as it is guessed or known."""
    verdict: Verdict | None = None
    n_redone: int = 0

    @property
    def certified(self) -> bool:
        """Whether the last verdict has replaced nothing."""
        return self.verdict is not None and not len(self.verdict.replaced)


class SampleGrower:
    """Grows drafts of trees on a sample, each to its last level but one; `reduction` is of the sample's rows."""

    def __init__(self, sample: CertifiedSample, reduction: Reduction, spec: FitSpec) -> None:
        self._sample, self._reduction, self._spec = sample, reduction, spec

    def grow(self, rows: RoundRows, learning_rate: float) -> list[DraftTree]:
        """Return a draft of each output's tree."""
        spec, iteration = self._spec, rows.iteration
        guess = self._sample.scales(iteration, self._sample.guess)
        trees = [
            DraftTree(
                output, FeatureRules(spec.params, spec.cuts.n_features, None, iteration, output),
                Draft(spec.params, spec.rules), rounding,
            )
            for output, rounding in enumerate(guess.exact(range(spec.recipe.n_outputs)))
        ]  # fmt: skip
        for tree in trees:
            self.grow_targets(tree, iteration)
        return trees

    def grow_targets(self, tree: DraftTree, iteration: int) -> None:
        """Grow what is open of a draft."""
        spec, draft = self._spec, tree.draft
        if not len(draft.targets):
            return
        (rounding,) = self._sample.scales(iteration, self._sample.range_of_sample).exact([tree.output])
        start = m.StartBelow(tree.output, rounding, draft.walk_to(draft.targets), len(draft.targets))
        sums = np.sum([part.sums for part in self._sample.start_below(start)], axis=0)
        units = [unit / spec.recipe.share for unit in rounding.units]
        forest = GrowingTree(
            spec.params, spec.rules, spec.cuts, tree.features, sums[0], units, spec.params.depth_limit - 1
        )
        forest.plant(draft.nodes["depth"][draft.targets], sums)
        least = least_gain(spec.params.gamma, rounding.noise_gain / spec.recipe.share)
        grow_nodes(self._reduction.search, forest, make_policy(spec.params, least), range(len(sums)))
        self._reduction.end_tree()
        draft.graft(forest)


class PassCertifier:
    """Certifies drafts in passes over all rows, of which `reduction` is, and has grown again what loses too much."""

    def __init__(self, outbox: Outbox, sample: CertifiedSample, grower: SampleGrower, reduction: Reduction,
                 spec: FitSpec) -> None:  # fmt: skip
        self._outbox, self._sample, self._grower, self._reduction, self._spec = outbox, sample, grower, reduction, spec

    def settle(self, trees: list[DraftTree], rows: RoundRows, learning_rate: float
               ) -> tuple[Callable[[], tuple[TreeTable, ...]], m.PassReport]:  # fmt: skip
        """Return what gives the finished trees, and what they cost; margins of training rows have them in the next
        pass."""
        n_passes = self._certify(trees, rows.iteration)
        tables = tuple(self._finished(tree, learning_rate) for tree in trees)
        for tree, table in zip(trees, tables, strict=True):
            self._outbox.later(m.FinishTree(None, walk_arrays(table), tree.output))
        drawn = 0 if rows.report is None else rows.report.n_passes
        return lambda: tables, _report(rows.iteration, trees, drawn + n_passes)

    def _certify(self, trees: list[DraftTree], iteration: int) -> int:
        """Pass over all rows until every tree is certified; return how often."""
        n_passes = 0
        while unfinished := [tree for tree in trees if not tree.certified]:
            if n_passes:
                for tree in unfinished:
                    self._grower.grow_targets(tree, iteration)
            offsets = np.cumsum([0, *(len(tree.draft.nodes) for tree in unfinished)]).tolist()
            requests = tuple(_request(tree, first) for tree, first in zip(unfinished, offsets, strict=False))
            replies = self._sample.certify(iteration, requests, is_first=n_passes == 0)
            n_passes += 1
            roundings = self._sample.scales(iteration, self._sample.range).exact([tree.output for tree in trees])
            guessed = [tree.rounding for tree in trees]
            for tree, rounding in zip(trees, roundings, strict=True):
                tree.rounding = rounding
            if list(roundings) != guessed:
                logger.info("round %d passes again: its gradients have another scale than guessed", iteration)
                continue
            for k, (tree, first) in enumerate(zip(unfinished, offsets, strict=False)):
                tree.draft.set_sums(np.sum([reply.sums[k] for reply in replies], axis=0))
                self._judge(tree, first)
        return n_passes

    def _judge(self, tree: DraftTree, first_node: int) -> None:
        """Find the best splits of a draft's fresh nodes in exact histograms, and replace what loses too much."""
        draft = tree.draft
        found = self._reduction.search(None, self._open(tree, draft.fresh, first_node))
        self._reduction.end_tree()
        draft.least_gain = least_gain(self._spec.params.gamma, tree.rounding.noise_gain)
        draft.set_best(found, tree.rounding.units)
        tree.verdict = draft.judge(self._spec.params.certify_tolerance)
        if len(tree.verdict.replaced):
            tree.n_redone += len(tree.verdict.replaced)
            draft.replace(tree.verdict)

    def _open(self, tree: DraftTree, fresh: Int64, first_node: int) -> OpenNodes:
        nodes = tree.draft.nodes[fresh]
        ids = (fresh + first_node).astype(np.int32)
        depths, rows = depth_rows(nodes["depth"])
        allowed = np.concatenate([tree.features.allowed([0], [depth], [frozenset()]) for depth in depths])
        return OpenNodes(
            ids=ids, parents=np.full(len(ids), -1, np.int32), built=ids, sums=np.ascontiguousarray(nodes["sums"]),
            bounds=np.tile([-np.inf, np.inf], (len(ids), 1)), allowed=np.ascontiguousarray(allowed[rows]),
            units=tree.rounding.units,
        )  # fmt: skip

    def _finished(self, tree: DraftTree, learning_rate: float) -> TreeTable:
        """The tree as the exact loop would have built it from these splits."""
        spec = self._spec
        sums = tree.draft.nodes["sums"][0].tolist()
        grown = GrowingTree(spec.params, spec.rules, spec.cuts, tree.features, sums, tree.rounding.units)
        tree.draft.finish(grown)
        return grown.table(learning_rate)


def _report(iteration: int, trees: Sequence[DraftTree], n_passes: int) -> m.PassReport:
    """Return, and log, what the trees of a round cost."""
    verdicts = [tree.verdict for tree in trees if tree.verdict is not None]
    gain, lost = sum(verdict.gain for verdict in verdicts), sum(verdict.lost for verdict in verdicts)
    report = m.PassReport(n_passes, lost / (gain + lost) if gain > 0 else 0.0, sum(tree.n_redone for tree in trees))
    logger.info(
        "round %d: %d passes over all rows, %.2f %% of the gain lost, %d splits grown again",
        iteration, report.n_passes, 100 * report.gain_lost, report.n_redone,
    )  # fmt: skip
    return report


def _request(tree: DraftTree, first_node: int) -> m.CertifiedTree:
    frontier = tree.draft.frontier
    return m.CertifiedTree(
        tree.output, tree.rounding, tree.draft.walk_to(frontier), len(frontier), first_node
    )
