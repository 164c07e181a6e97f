"""Rounds of `out_of_core="sampled"`: trees grow on rows that are drawn by their gradients, one pass over all per round.

    pass over all rows: margins of the last round's trees -> gradients -> norms -> candidates, copied out of the chunks
    counts of all norms -> threshold -> sample -> the round's trees, as on any rows

A row's share, min(1, norm / threshold), wants the threshold for which the shares of all rows add up to `subsample` of
them. It follows from the counts of the norms (`devices/sampling.py`), which are known after the pass. So the pass draws
with a guess that is lower: as draws are hashes of row ids, the sample is among these candidates, and what comes out
never depends on the guess. Where it was too high, or so low that there are more than twice as many candidates as
wanted, the pass is made once more with the threshold, which is known by then, at no cost but its time. The first round
knows its norms, for which no bins are wanted.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from daskboost.cluster import messages as m
from daskboost.cluster.grow_tree import grow_tree, round_columns, start_round
from daskboost.cluster.outbox import Outbox, SampleOutbox
from daskboost.cluster.reduce.strategies import make_reduction
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.sampling import MOST_CANDIDATES, NORM_LAMBDA, SLACK_ROWS, cell_norms
from daskboost.dtypes import Int64
from daskboost.hashing import Purpose, key

if TYPE_CHECKING:
    from daskboost.cluster.coordinator import FitSpec

logger = logging.getLogger(__name__)

GUESS = 0.9
"""What is taken of the threshold that the last rounds lead one to expect."""
FIRST_GUESS = 0.7
"""In the second round there is only one to go by, and losses fall fastest."""


class SampledRounds:
    """Grows rounds, one after the other.

    Parameters
    ----------
    outbox : Outbox
        Of engines that are `SampledEngine`.
    spec : FitSpec
    threads : Threads
        For searches beside the coordinator.
    """

    def __init__(self, outbox: Outbox, spec: FitSpec, threads: Threads) -> None:
        self._outbox, self._spec = outbox, spec
        self._sample = SampleOutbox(outbox)
        self._reduction = make_reduction(spec.params.reduction, self._sample, spec.layout, spec.search_rules, threads)
        self._thresholds: list[float] = []
        """Of the last two rounds at most."""
        self._n_norms = 0
        """Rows that had gradients in the last one."""

    def grow(self, iteration: int, learning_rate: float) -> m.Round:
        """Draw the rows of a round, grow its trees and add them to all margins, the training rows' in the next pass."""
        spec = self._spec
        report = self._draw(iteration)
        ranges = self._sample.ask(start_round(spec, iteration))
        roundings = partial(round_columns, spec, iteration, ranges, None, self._largest_searched)
        trees = [
            grow_tree(self._sample, self._reduction, spec, iteration, outputs, roundings, learning_rate)
            for outputs in spec.tree_outputs
        ]
        metrics = tuple(self._outbox.ask(m.Evaluate())) if spec.eval_names else ()
        return m.Round(tuple(trees), metrics, report)

    @property
    def _largest_searched(self) -> float:
        """Bound of the weights that a round's trees are searched on, if anything: norms contain these, so that a share
        is at least weight * sqrt(NORM_LAMBDA) / threshold, or 1."""
        largest = self._spec.largest_searched
        stretched = self._thresholds[-1] / math.sqrt(NORM_LAMBDA) * (1 + 2**-20)  # for what rounding adds
        return max(largest, stretched) if largest else 0.0

    def _draw(self, iteration: int) -> m.SampleReport:
        """Have every engine take its rows of a round's sample."""
        rate, seed = self._spec.params.subsample, self._spec.params.random_state
        draw_key = int(key(seed, Purpose.GRADIENT_SAMPLE, iteration))
        guess, most_rows = self._guess()
        counts, n_drawn = self._pass(draw_key, guess, most_rows)
        threshold = sample_threshold(counts, rate)
        again = guess > threshold or n_drawn > most_rows
        if again:
            logger.info("round %d draws again: its threshold is %g, the guess was %g", iteration, threshold, guess)
            self._pass(draw_key, threshold, int(counts.sum()))
        self._thresholds = [*self._thresholds[-1:], threshold]
        self._n_norms = int(counts.sum())
        n_rows = sum(reply.n_rows for reply in self._outbox.ask(m.TakeSample(threshold)))
        logger.info("round %d: %d rows in the sample, %d passes over all", iteration, n_rows, 1 + again)
        return m.SampleReport(1 + again, n_rows)

    def _pass(self, draw_key: int, threshold: float, most_rows: int) -> tuple[Int64, int]:
        """Have candidates drawn; counts of all norms, and how many candidates there are."""
        replies = self._outbox.ask(m.DrawRows(draw_key, threshold, most_rows))
        return np.sum([reply.counts for reply in replies], axis=0), sum(reply.n_drawn for reply in replies)

    def _guess(self) -> tuple[float, int]:
        """A threshold that is probably not above the round's, and the most candidates that it may leave."""
        rate = self._spec.params.subsample
        if not self._thresholds:
            counts = np.sum([reply.counts for reply in self._outbox.ask(m.CountNorms())], axis=0)
            return sample_threshold(counts, rate), int(counts.sum())
        last = self._thresholds[-1]
        factor = GUESS * min(1.0, last / self._thresholds[0]) if len(self._thresholds) > 1 else FIRST_GUESS
        return factor * last, math.ceil(MOST_CANDIDATES * rate * self._n_norms) + SLACK_ROWS


def sample_threshold(counts: Int64, rate: float) -> float:
    """The threshold for which the shares of rows add up to `rate` of the rows that are counted.

    counts : int64, shape (N_CELLS,), of norms by cell, each taken to lie in the middle of its own; 1 for no rows.
    """
    cells = np.flatnonzero(counts)
    if not len(cells):
        return 1.0
    norms, own = cell_norms()[cells], counts[cells]
    target = rate * int(own.sum())
    up_to, above = np.cumsum(norms * own), int(own.sum()) - np.cumsum(own)
    place = max(int(np.count_nonzero(up_to / norms + above >= target)) - 1, 0)  # norms beyond it have shares of 1
    return float(up_to[place] / (target - above[place]))
