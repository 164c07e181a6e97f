"""What is measured of training on streamed rows, what is asked of it, and about how long each case takes on one H200.

A floor is what has to cross the bus, once for each level of an exact tree and once for a certified or sampled one, over
the bandwidth of copies from pinned memory, which is measured in the same run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Config:
    """Rows, trees and what of the rows may stay on the device."""

    name: str
    n_rows: int
    n_features: int = 200
    max_depth: int = 8
    resident: float = 0.0
    """Share of the bins that may stay on the device; the others are streamed from the host's memory."""
    trees: int = 5
    """Rounds of the longer of two fits; the shorter one has a fifth. Their difference counts."""
    repeats: int = 2
    rounds: int = 100
    """Trees after which scores are compared; of cases that follow scores round by round."""
    max_bin: int = 256
    workload: str = "higgs"
    test_rows: int = 4_000_000
    block_rows: int = 1_000_000
    """Rows that are made at a time: 800 MB of 200 features. No more are on the device as floats."""
    chunk_rows: int = 0
    """Of our chunks; 0 for the default, of which few rows make so few that no quarter of them can stay."""
    device: str = "cuda"
    quantize_on: str = "device"
    """Where ours quantizes large data, "device" or "host". Bins go to the host's memory either way."""
    host_gb: float = 0.0
    """Memory of a host that shows less, as virtual machines do whose memory grows with use; 0 for what it shows."""

    def params(self, **more: Any) -> dict[str, Any]:
        """Training parameters by the names that XGBoost and daskboost share, and `more`."""
        return {
            "objective": "binary:logistic", "max_depth": self.max_depth, "max_bin": self.max_bin,
            "learning_rate": 0.1, "base_score": 0.5, "device": self.device, **more,
        }  # fmt: skip


@dataclass(frozen=True)
class Goal:
    """What is asked of a figure."""

    what: str
    asked: float | None = None
    """None for figures that are only recorded."""
    stretch: float | None = None
    at_most: bool = True

    def holds(self, value: float) -> bool | None:
        """Whether it is met; None where nothing is asked."""
        if self.asked is None:
            return None
        return value <= self.asked if self.at_most else value >= self.asked


@dataclass(frozen=True)
class Case:
    """A config, the function of `out_of_core` that measures it, and what is asked of its figures."""

    config: Config
    kind: str
    goals: Mapping[str, Goal]
    estimate_s: float
    """About how long the case takes on an H200 with 16 cores, rows and repeats included."""


XGBOOST_TIMES = "XGBoost's time over ours"
_MEMORY = {"device_over_plan": Goal("what the fit takes of the device over its plan", 1.0)}
_SCORE = {"passes_of_exact": Goal("passes until exact's last AUC over exact's", 0.25, 1 / 7)}

CASES = {
    case.config.name: case
    for case in (
        Case(
            Config("80m_exact", 80_000_000), "exact",
            {"times_floor": Goal("time per tree over its floor", 1.15, 1.05), **_MEMORY}, 140,
        ),
        Case(
            Config("80m_xgboost", 80_000_000), "xgboost",
            {"speedup": Goal(XGBOOST_TIMES, 1.1, at_most=False)}, 190,
        ),
        Case(
            Config("in_core_overhead", 80_000_000, resident=1.0, trees=25), "in_core",
            {"times_in_core": Goal("time per tree over the in-core engine's", 1.02)}, 110,
        ),
        Case(
            Config("train_many_5_folds", 80_000_000, trees=3), "many",
            {"times_one": Goal("time of five folds over that of one", 1.6, 1.2)}, 170,
        ),
        Case(
            Config("sampled_10", 80_000_000, trees=10), "sampled",
            {"times_pass": Goal("time per tree over one pass", 1.2),
             "auc_below": Goal("AUC below XGBoost's gradient_based", 0.001)}, 230,
        ),
        Case(
            Config("80m_bits6", 80_000_000), "bits",
            {"times_256": Goal("time with 64 bins over that with 256", 0.8)}, 230,
        ),
        Case(
            Config("80m_certified", 80_000_000, resident=0.25, trees=60, repeats=1), "certified",
            {"speedup": Goal(XGBOOST_TIMES, 5, 8, at_most=False),
             "auc_below": Goal("AUC below exact's after as many trees", 0.0003),
             "passes": Goal("passes per tree", 1.5, 1.1), **_MEMORY}, 480,
        ),
        Case(Config("passes_to_score_80m", 80_000_000, resident=0.25), "score", _SCORE, 390),
        Case(
            Config("passes_to_score_4m", 4_000_000, 28, resident=0.25, test_rows=1_000_000, chunk_rows=1 << 17),
            "score", _SCORE, 30,
        ),
        Case(
            Config("passes_to_score_1m", 1_000_000, 28, resident=0.25, test_rows=1_000_000, chunk_rows=1 << 15),
            "score", _SCORE, 20,
        ),
        Case(
            Config("billion_rows", 1_000_000_000, resident=0.25, trees=10), "billion",
            {"seconds_per_tree": Goal("seconds per tree", stretch=3), "passes": Goal("passes per tree"),
             **_MEMORY}, 340,
        ),
    )
}  # fmt: skip
"""Every row that is asked of one GPU. Neighbours share their rows and, of scores, their fits: 80m_certified and
passes_to_score_80m in one call take little more than the first alone."""
