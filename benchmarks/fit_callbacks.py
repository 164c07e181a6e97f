"""What benchmarks see of a fit from round to round."""

from __future__ import annotations

import itertools
import statistics
import time

from daskboost.training.callbacks import Callback, RoundInfo


class UntilScore(Callback):
    """Ends a fit when the AUC on fresh rows has reached a goal, after some rounds at the least."""

    def __init__(self, goal: float, least_rounds: int = 0) -> None:
        self._goal, self._least_rounds = goal, least_rounds

    def after_round(self, info: RoundInfo) -> bool:
        auc = info.evals_result["fresh"]["auc"]
        return len(auc) >= self._least_rounds and max(auc) >= self._goal


class Clock(Callback):
    """When rounds end, from when this is made. What is made ready for all of them is the first one's."""

    def __init__(self) -> None:
        self._times = [time.perf_counter()]

    def after_round(self, info: RoundInfo) -> bool:
        self._times.append(time.perf_counter())
        return False

    @property
    def rounds_s(self) -> list[float]:
        """Seconds of each."""
        return [round(end - begin, 3) for begin, end in itertools.pairwise(self._times)]

    @property
    def per_round(self) -> float:
        """Mean of those after the first, or of that if there are no others."""
        return statistics.fmean(self.rounds_s[1:] or self.rounds_s)
