"""Which rows grow the trees of a round: all of them, a uniform share, or rows that are drawn by their gradients.

Rows drawn by gradients (`out_of_core="sampled"`) take one pass over all rows per round:

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
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from daskboost.devices.sampling import MOST_CANDIDATES, NORM_LAMBDA, SLACK_ROWS, cell_norms
from daskboost.dtypes import Float32, Float64, Int64, UInt64
from daskboost.fit import messages as m
from daskboost.fit.messages import Answers, Outbox, SampleOutbox
from daskboost.fit.scales import Scales, joined_range
from daskboost.fit.spec import FitSpec
from daskboost.hashing import Purpose, key

logger = logging.getLogger(__name__)

GUESS = 0.9
"""What is taken of the threshold that the last rounds lead one to expect."""
FIRST_GUESS = 0.7
"""In the second round there is only one to go by, and losses fall fastest."""


class RoundRows(NamedTuple):
    """The rows that grow the trees of a round."""

    iteration: int
    found: Scales | None = None
    """How their gradients become integers; None where the device that grows the trees finds that by itself."""
    stay: bool = False
    """Whether the next round's trees grow on the same rows."""
    report: m.SampleReport | None = None
    """What it cost to draw them."""

    @property
    def scales(self) -> Scales:
        """How their gradients become integers, where the host knows."""
        assert self.found is not None
        return self.found


class Sampler(Protocol):
    """Has the rows of every round ready on all engines."""

    def rows(self, iteration: int) -> RoundRows:
        """Return the rows of a round, whose gradients are computed."""

    def expect(self, iteration: int) -> None:
        """Ask for what the next round begins with, if that may travel with other requests."""


def start_round(spec: FitSpec, iteration: int) -> m.StartRound:
    """Return the request that computes a round's gradients."""
    return m.StartRound(spec.recipe.projection(spec.params.random_state, iteration), int(pair_key(spec, iteration)))


def pair_key(spec: FitSpec, iteration: int) -> np.uint64:
    """Return the hash key of the pairs that a ranking loss draws in a round."""
    return key(spec.params.random_state, Purpose.RANKING_PAIRS, iteration)


def pair_keys(spec: FitSpec) -> UInt64:
    """Return the same of all rounds of a fit, shape (rounds,)."""
    first = spec.first_iteration
    return np.array([pair_key(spec, first + i) for i in range(len(spec.learning_rates))], np.uint64)


def scales_of(spec: FitSpec, iteration: int, largest: Float64, total_weight: float | None,
              largest_searched: float) -> Scales:  # fmt: skip
    """Return how gradients of that range become integers in a round of a fit."""
    rules = spec.search_rules
    return Scales(
        spec.objective.name, spec.params.random_state, spec.recipe.subsample, iteration, largest, total_weight,
        largest_searched, rules.reg_lambda, rules.max_delta_step,
    )  # fmt: skip


class AllRows:
    """All training rows, in every round; `total_weight` is theirs where data are small."""

    def __init__(self, outbox: Outbox, spec: FitSpec, total_weight: float | None) -> None:
        self._outbox, self._spec, self._total_weight = outbox, spec, total_weight
        self._expected: Answers[m.GradientRange] | None = None
        self._chances: Float32 | None = None

    def rows(self, iteration: int) -> RoundRows:
        if self._expected is None:
            self.expect(iteration)
        assert self._expected is not None
        replies, self._expected = self._outbox.get(self._expected), None
        largest, self._chances = joined_range(replies), replies[0].chances
        return RoundRows(iteration, self._scales(iteration, largest), stay=True)

    def estimated(self) -> Callable[[], Float32 | None]:
        """Return what gives what the last round's gradients have told beside, see `m.Round.chances`."""
        chances = self._chances
        return lambda: chances

    def _scales(self, iteration: int, largest: Float64) -> Scales:
        return scales_of(self._spec, iteration, largest, self._total_weight, self._spec.largest_searched)

    def expect(self, iteration: int) -> None:
        self._expected = self._outbox.later(start_round(self._spec, iteration))


class DrawnRows:
    """Rows that are drawn by their gradients, anew in each round; engines have drawn rows (`engine/drawing.py`)."""

    def __init__(self, outbox: Outbox, spec: FitSpec) -> None:
        self._outbox, self._spec = outbox, spec
        self._sample = SampleOutbox(outbox)
        self._thresholds: list[float] = []
        """Thresholds of the last two rounds at most."""
        self._n_norms = 0
        """Rows that had gradients in the last one."""

    def rows(self, iteration: int) -> RoundRows:
        report = self._draw(iteration)
        largest = joined_range(self._sample.ask(start_round(self._spec, iteration)))
        scales = scales_of(self._spec, iteration, largest, None, self._largest_searched)
        return RoundRows(iteration, scales, report=report)

    def expect(self, iteration: int) -> None:
        """Ask for nothing: the next round's rows depend on margins that a pass makes."""

    @property
    def _largest_searched(self) -> float:
        """Bound of the weights that a round's trees are searched on, if anything: norms contain these, so that a share
        is at least weight * sqrt(NORM_LAMBDA) / threshold, or 1."""
        largest = self._spec.largest_searched
        stretched = self._thresholds[-1] / math.sqrt(NORM_LAMBDA) * (1 + 2**-20)  # for what rounding adds
        return max(largest, stretched) if largest else 0.0

    def _draw(self, iteration: int) -> m.SampleReport:
        """Have every engine take its rows of a round's sample."""
        rate, seed = self._spec.recipe.share, self._spec.params.random_state
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
        rate = self._spec.recipe.share
        if not self._thresholds:
            counts = np.sum([reply.counts for reply in self._outbox.ask(m.CountNorms())], axis=0)
            return sample_threshold(counts, rate), int(counts.sum())
        last = self._thresholds[-1]
        factor = GUESS * min(1.0, last / self._thresholds[0]) if len(self._thresholds) > 1 else FIRST_GUESS
        return factor * last, math.ceil(MOST_CANDIDATES * rate * self._n_norms) + SLACK_ROWS


class CertifiedSample:
    """A uniform share of the rows, another in each round; engines certify trees (`engine/certifying.py`).

    Every round's sample is drawn in the first pass of the round before, for what is grown from then on. What chance
    makes look like a good split on a sample is still there in the next round, as leaves are valued by all rows: of a
    sample that stayed, trees would take it again and again. (Friedman, "Stochastic Gradient Boosting", Computational
    Statistics & Data Analysis 38, 2002, has each tree look at rows of its own for that reason.) `total_weight` is that
    of all rows, where data are small.
    """

    def __init__(self, outbox: Outbox, spec: FitSpec, total_weight: float | None) -> None:
        self._outbox, self._spec, self._total_weight = outbox, spec, total_weight
        self.outbox = SampleOutbox(outbox)
        """Asks engines about the sample."""
        self.range = joined_range(outbox.ask(m.StartRound()))
        """The last known range of all rows' gradients; float64, shape (2, outputs)."""
        self._excess = np.ones_like(self.range)
        """What it was of the sample's."""
        self._of_sample: Float64 | None = None
        """Range of the sample's gradients in this round, as soon as there is a sample."""

    def rows(self, iteration: int) -> RoundRows:
        n_passes = int(self._of_sample is None)
        if self._of_sample is None:
            self._outbox.later(m.DrawShare(self._key(iteration)))
            self._take_ranges(self.range, self.outbox.ask(m.StartRound()))
        else:
            self._of_sample = joined_range(self.outbox.ask(m.StartRound()))
        scales = self.scales(iteration, self.range_of_sample)
        return RoundRows(iteration, scales, report=m.SampleReport(n_passes, 0))

    def expect(self, iteration: int) -> None:
        """Ask for nothing: the sample's margins change with the trees that are finished now."""

    @property
    def range_of_sample(self) -> Float64:
        """Range of the sample's gradients; float64, shape (2, outputs)."""
        assert self._of_sample is not None
        return self._of_sample

    @property
    def guess(self) -> Float64:
        """What the range of all rows probably is: the sample's, times what all rows exceeded it by before."""
        of_sample = self.range_of_sample
        return np.where(of_sample > 0, of_sample * self._excess, self.range)

    def scales(self, iteration: int, largest: Float64) -> Scales:
        """Return how gradients of that range become integers."""
        return scales_of(self._spec, iteration, largest, self._total_weight, 0.0)

    def start_below(self, start: m.StartBelow) -> list[m.NodeSums]:
        """Move the sample's rows to the nodes that trees go on growing from; the sums of these on every engine."""
        return self._outbox.ask(start)

    def certify(self, iteration: int, trees: tuple[m.CertifiedTree, ...], *, is_first: bool) -> list[m.Certified]:
        """Pass over all rows, adding up the histograms of trees. In the first pass of a round the next round's sample
        is drawn, and margins become what this round's gradients are of."""
        if not is_first:
            return self._outbox.ask(m.Certify(trees, None))
        answers = self._outbox.later(m.Certify(trees, self._key(iteration + 1)))
        of_sample = self.outbox.ask(m.StartRound())
        found = self._outbox.get(answers)
        self._take_ranges(joined_range([reply.range for reply in found]), of_sample)
        return found

    def _take_ranges(self, of_all: Float64, of_sample: list[m.GradientRange]) -> None:
        self.range, self._of_sample = of_all, joined_range(of_sample)
        self._excess = range_ratio(of_all, self._of_sample)

    def _key(self, iteration: int) -> int:
        """Hash key of the sample that a round begins with, whether the fit has grown the round before or not."""
        return int(key(self._spec.params.random_state, Purpose.CERTIFIED_SAMPLE, iteration))


def range_ratio(of_all: Float64, of_sample: Float64) -> Float64:
    """Return what the range of all rows is of the sample's; 1 where the sample has none."""
    with np.errstate(invalid="ignore"):  # ranges that are not finite are refused when a scale is wanted for them
        return np.where(of_sample > 0, of_all / np.where(of_sample > 0, of_sample, 1), 1)


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
