"""What estimators do where parameters are not given: named sets of defaults, and how each depends on the rows.

`docs/defaults.md` has the table, and what it was chosen by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SMALL_DATA_ROWS = 500
"""Below it no rows are held out, as a fifth of them tells too little of when to stop, and all rows grow each tree."""
MEMBERS_ROWS = 2**20
"""From here on one model is trained unless `n_members` says otherwise: averages gain little there, and take long."""
ROUNDS_WITHOUT_STOPPING = 100
"""Rounds where `n_estimators` is not given and no rows tell when to stop: XGBoost's and scikit-learn's number."""


@dataclass(frozen=True)
class Preset:
    """Values of parameters that are not given."""

    learning_rate: float
    subsample: float
    colsample_bylevel: float
    validation_fraction: float
    n_members: int
    """Models that are averaged; 0 holds no rows out."""
    early_stopping_rounds: int
    n_estimators: int
    """Most rounds where rows tell when to stop."""

    def values(self, n_rows: int) -> dict[str, float]:
        """Return training parameters by name for so many rows whose weight is not 0."""
        sampled = self.n_members > 0 and n_rows >= SMALL_DATA_ROWS
        return {
            "learning_rate": self.learning_rate,
            "subsample": self.subsample if sampled else 1.0,
            "colsample_bylevel": self.colsample_bylevel if sampled else 1.0,
        }

    def members(self, n_rows: int) -> int:
        """Return how many models are averaged."""
        return min(self.n_members, 1) if n_rows >= MEMBERS_ROWS else self.n_members


PRESETS: Mapping[str, Preset] = {
    "fast": Preset(0.1, 0.8, 0.8, 0.2, 1, 20, 1000),
    "balanced": Preset(0.1, 0.8, 0.8, 0.2, 5, 30, 2000),
    "best": Preset(0.05, 0.8, 0.8, 0.1, 10, 50, 5000),
    "xgboost": Preset(0.3, 1.0, 1.0, 0.2, 0, 0, ROUNDS_WITHOUT_STOPPING),
}
