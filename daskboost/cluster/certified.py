"""Rounds of `out_of_core="certified"`: trees grow on a sample of the rows and are certified in passes over all of them.

    sample: gradients -> grow each tree to its last level but one
    pass over all rows: margins of the last round's trees -> gradients -> walk to the leaves -> histograms, range, and
                        the next sample
    exact best splits -> certified? leaves take their best splits : worst splits replaced, grown again below -> pass

All trees of a round go through the same passes. The scale of their gradients follows from the range over all rows, as
in every fit, but that is known after the first pass only, which is where margins are made. So the pass goes ahead
with a guess, and is made again in the rare case that the power of two was another: what comes out never depends on
the guess. It is the range of the sample, times what all rows exceeded it by at the margins of the last round. Trees
grow on the sample with its own scale.

Every round draws another sample, in its first pass, for what is grown from then on. What chance makes look like a good
split on a sample is still there in the next round, as leaves are valued by all rows: of a sample that stayed, trees
would take it again and again. (Friedman, "Stochastic Gradient Boosting", Computational Statistics & Data Analysis 38,
2002, has each tree look at rows of its own for that reason.)

Gradients of the sample stand for those of all rows: their units are divided by the sample's share f of the rows. As
(G/f)^2 / (H/f + lambda) = G^2 / (H + f lambda) / f, that is the same as scaling penalties, `gamma` and
`min_child_weight` by f, and gains on the sample estimate those on all rows.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from daskboost.cluster import messages as m
from daskboost.cluster.outbox import Outbox, SampleOutbox
from daskboost.cluster.reduce.strategies import make_reduction
from daskboost.cluster.rounding import make_rounding
from daskboost.devices.cpu.rows import Rounding
from daskboost.devices.cpu.threads import Threads
from daskboost.dtypes import Float64, Int64
from daskboost.exact_sum import ExactSum
from daskboost.hashing import Purpose, key
from daskboost.tree.certify import Draft, Verdict, depth_rows
from daskboost.tree.constraints import FeatureRules
from daskboost.tree.growth import GrowingTree, grow_nodes, make_policy, walk_arrays
from daskboost.tree.split import OpenNodes
from daskboost.tree.table import TreeTable

if TYPE_CHECKING:
    from daskboost.cluster.coordinator import FitSpec

logger = logging.getLogger(__name__)


@dataclass
class _Tree:
    """A tree of one output, on its way."""

    output: int
    features: FeatureRules
    rounding: Rounding
    draft: Draft
    verdict: Verdict | None = None
    n_redone: int = 0

    @property
    def certified(self) -> bool:
        return self.verdict is not None and not len(self.verdict.replaced)


class CertifiedRounds:
    """Grows rounds, one after the other.

    Parameters
    ----------
    outbox : Outbox
        Of engines that are `CertifiedEngine`.
    spec : FitSpec
    threads : Threads
        For searches beside the coordinator.
    """

    def __init__(self, outbox: Outbox, spec: FitSpec, threads: Threads) -> None:
        self._outbox, self._spec = outbox, spec
        self._on_sample = SampleOutbox(outbox)
        common = (spec.layout, spec.rules, threads)
        self._exact = make_reduction(spec.params.reduction, outbox, *common)
        self._sampled = make_reduction(spec.params.reduction, self._on_sample, *common)
        weights, all_rows = self._outbox.ask_all(m.LabelSums(), m.StartRound())
        total = sum((ExactSum.from_array(part.weights) for part in weights), ExactSum()).value()
        self._total_weight = total if spec.small_data else None
        self._range = _joined(all_rows)
        """The last known range of all rows' gradients, (2, outputs)."""
        self._excess = np.ones_like(self._range)
        """What it was of the sample's."""
        self._of_sample: Float64 | None = None
        """Range of the sample's gradients in this round, as soon as there is a sample."""

    def _sample_key(self, iteration: int) -> int:
        """Hash key of the sample that a round begins with, whether the fit has grown the round before or not."""
        return int(key(self._spec.params.random_state, Purpose.CERTIFIED_SAMPLE, iteration))

    def grow(self, iteration: int, learning_rate: float) -> m.Round:
        """Grow the trees of a round and add them to all margins, those of the training rows in the next pass."""
        first_passes = int(self._of_sample is None)
        if self._of_sample is None:
            _, of_sample = self._outbox.ask_all(m.DrawShare(self._sample_key(iteration)), m.OnSample(m.StartRound()))
            self._excess = _ratio(self._range, _joined(of_sample))
        else:
            of_sample = self._on_sample.ask(m.StartRound())
        self._of_sample = _joined(of_sample)
        trees, n_passes = self._certified_trees(iteration)
        tables = [self._finished(tree, learning_rate) for tree in trees]
        for tree, table in zip(trees, tables, strict=True):
            self._outbox.later(m.FinishTree(None, walk_arrays(table), tree.output))
        metrics = tuple(self._outbox.ask(m.Evaluate())) if self._spec.eval_names else ()
        return m.Round(tuple(tables), metrics, self._report(iteration, trees, first_passes + n_passes))

    def _report(self, iteration: int, trees: Sequence[_Tree], n_passes: int) -> m.PassReport:
        verdicts = [tree.verdict for tree in trees if tree.verdict is not None]
        gain, lost = sum(verdict.gain for verdict in verdicts), sum(verdict.lost for verdict in verdicts)
        report = m.PassReport(n_passes, lost / (gain + lost) if gain > 0 else 0.0, sum(tree.n_redone for tree in trees))
        logger.info(
            "round %d: %d passes over all rows, %.2f %% of the gain lost, %d splits grown again",
            iteration, report.n_passes, 100 * report.gain_lost, report.n_redone,
        )  # fmt: skip
        return report

    def _certified_trees(self, iteration: int) -> tuple[list[_Tree], int]:
        """The trees of a round, certified, and the passes it took."""
        spec = self._spec
        guess = np.where(self._range_of_sample > 0, self._range_of_sample * self._excess, self._range)
        trees = [
            _Tree(
                output, FeatureRules(spec.params, spec.cuts.n_features, None, iteration, output),
                self._rounding(iteration, output, guess), Draft(spec.params, spec.rules),
            )
            for output in range(spec.objective.n_outputs)
        ]  # fmt: skip
        n_passes = 0
        while True:
            unfinished = [tree for tree in trees if not tree.certified]
            if not unfinished:
                return trees, n_passes
            for tree in unfinished:
                if len(tree.draft.targets):
                    self._grow_on_sample(tree, self._rounding(iteration, tree.output, self._range_of_sample))
            offsets = np.cumsum([0, *(len(tree.draft.nodes) for tree in unfinished)]).tolist()
            replies = self._pass(iteration, list(zip(unfinished, offsets, strict=False)), is_first=n_passes == 0)
            n_passes += 1
            roundings = [self._rounding(iteration, tree.output, self._range) for tree in trees]
            if roundings != [tree.rounding for tree in trees]:
                logger.info("round %d passes again: its gradients have another scale than guessed", iteration)
                for tree, rounding in zip(trees, roundings, strict=True):
                    tree.rounding = rounding
                continue
            for k, (tree, first) in enumerate(zip(unfinished, offsets, strict=False)):
                tree.draft.set_sums(np.sum([reply.sums[k] for reply in replies], axis=0))
                self._judge(tree, first)

    @property
    def _range_of_sample(self) -> Float64:
        assert self._of_sample is not None
        return self._of_sample

    def _pass(self, iteration: int, trees: Sequence[tuple[_Tree, int]], *, is_first: bool) -> list[m.Certified]:
        """Add up the histograms of trees, with the first node that each has in the pass. In the first pass of a round
        the next round's sample is drawn, and margins become what this round's gradients are of."""
        next_key = self._sample_key(iteration + 1) if is_first else None
        request = m.Certify(tuple(_request(*each) for each in trees), next_key)
        if not is_first:
            return self._outbox.ask(request)
        replies, of_sample = self._outbox.ask_all(request, m.OnSample(m.StartRound()))
        self._range, self._of_sample = _joined([reply.range for reply in replies]), _joined(of_sample)
        self._excess = _ratio(self._range, self._of_sample)
        return replies

    def _rounding(self, iteration: int, output: int, largest: Float64) -> Rounding:
        """For a range of gradients."""
        spec, ranges = self._spec, [m.GradientRange(*largest)]
        return make_rounding(spec.params, spec.objective.name, iteration, output, ranges, self._total_weight)

    def _grow_on_sample(self, tree: _Tree, rounding: Rounding) -> None:
        """Grow the targets of a draft on the sample, to the last level but one."""
        spec, draft = self._spec, tree.draft
        start = m.StartBelow(tree.output, rounding, draft.walk_to(draft.targets), len(draft.targets))
        sums = np.sum([part.sums for part in self._outbox.ask(start)], axis=0)
        units = [unit / spec.params.resident_share for unit in rounding.units]
        forest = GrowingTree(
            spec.params, spec.rules, spec.cuts, tree.features, sums[0], units, spec.params.depth_limit - 1
        )
        forest.plant(draft.nodes["depth"][draft.targets], sums)
        grow_nodes(self._sampled.search, forest, make_policy(spec.params), range(len(sums)))
        self._sampled.end_tree()
        draft.graft(forest)

    def _judge(self, tree: _Tree, first_node: int) -> None:
        """Find the best splits of a draft's fresh nodes in exact histograms, and replace what loses too much."""
        draft = tree.draft
        found = self._exact.search(None, self._open(tree, draft.fresh, first_node))
        self._exact.end_tree()
        draft.set_best(found, tree.rounding.units)
        tree.verdict = draft.judge(self._spec.params.certify_tolerance)
        if len(tree.verdict.replaced):
            tree.n_redone += len(tree.verdict.replaced)
            draft.replace(tree.verdict)

    def _open(self, tree: _Tree, fresh: Int64, first_node: int) -> OpenNodes:
        nodes = tree.draft.nodes[fresh]
        ids = (fresh + first_node).astype(np.int32)
        depths, rows = depth_rows(nodes["depth"])
        allowed = np.concatenate([tree.features.allowed([0], [depth], [frozenset()]) for depth in depths])
        return OpenNodes(
            ids=ids, parents=np.full(len(ids), -1, np.int32), built=ids, sums=np.ascontiguousarray(nodes["sums"]),
            bounds=np.tile([-np.inf, np.inf], (len(ids), 1)), allowed=np.ascontiguousarray(allowed[rows]),
            units=tree.rounding.units,
        )  # fmt: skip

    def _finished(self, tree: _Tree, learning_rate: float) -> TreeTable:
        """The tree as the exact loop would have built it from these splits."""
        spec = self._spec
        sums = tree.draft.nodes["sums"][0].tolist()
        grown = GrowingTree(spec.params, spec.rules, spec.cuts, tree.features, sums, tree.rounding.units)
        tree.draft.finish(grown)
        return grown.table(learning_rate)


def _joined(parts: Sequence[m.GradientRange]) -> Float64:
    """Largest |g| and h per output over all engines; (2, outputs)."""
    return np.asarray(np.max([[part.largest_g, part.largest_h] for part in parts], axis=0))


def _ratio(all_rows: Float64, sample: Float64) -> Float64:
    """What the range of all rows is of the sample's; 1 where the sample has none."""
    with np.errstate(invalid="ignore"):  # ranges that are not finite are refused when a scale is wanted for them
        return np.where(sample > 0, all_rows / np.where(sample > 0, sample, 1), 1)


def _request(tree: _Tree, first_node: int) -> m.CertifiedTree:
    frontier = tree.draft.frontier
    return m.CertifiedTree(
        tree.output, tree.rounding, tree.draft.walk_to(frontier), len(frontier), first_node
    )
