"""What estimators do where parameters are not given: named sets of defaults, and how each depends on the rows.

`docs/defaults.md` has the table, and what it was chosen by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

LEAST_ROWS = 500
"""With fewer no rows are held out, as a fifth of them tells too little of when to stop."""
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
    n_members_of_classes: int
    """The same of three classes or more, where each model takes as many times longer."""
    learning_rate_of_vectors: float
    """Of trees whose leaves have a value for each class."""
    early_stopping_rounds: int
    n_estimators: int
    """Most rounds where rows tell when to stop."""

    def values(self, n_rounds: int, stops: bool, holds_out: bool, has_vectors: bool) -> dict[str, float | str]:
        """Return training parameters by name.

        Parameters
        ----------
        n_rounds : int
            Rounds, or the most of them.
        stops, holds_out : bool
            Whether rows tell when to stop, and whether they are held out from models that are averaged. All rows and
            features grow the trees of other models, and those of vectors.
        has_vectors : bool
            Whether leaves have a value for each class.
        """
        rate = learning_rate_of(n_rounds)
        if self.n_members == 0:
            rate = self.learning_rate
        elif stops:
            rate = max(self.learning_rate_of_vectors if has_vectors else self.learning_rate, rate)
        sampled = holds_out and not has_vectors
        return {
            "learning_rate": rate,
            "subsample": self.subsample if sampled else 1.0,
            "colsample_bylevel": self.colsample_bylevel if sampled else 1.0,
            "multi_strategy": "multi_output_tree" if has_vectors else "one_output_per_tree",
        }

    def members(self, n_rows: int, n_classes: int) -> int:
        """Return how many models are averaged; `n_classes` is 0 where labels are numbers."""
        most = self.n_members if n_classes < 3 else self.n_members_of_classes
        return min(most, 1) if n_rows >= MEMBERS_ROWS else most


def learning_rate_of(n_rounds: int) -> float:
    """Return the learning rate of so many rounds, none of which is given up: 0.17 for 100, 0.03 for 1,000.

    Of ten shared sets' losses on held-out rows, those of the best of four or five rates by number of rounds fit this
    power law; 0.3 is best for 30 rounds and fewer (`docs/defaults.md`).
    """
    return round(min(0.3, 0.17 * math.pow(100 / max(n_rounds, 1), 0.75)), 4)


PRESETS: Mapping[str, Preset] = {
    "fast": Preset(0.1, 0.8, 0.8, 0.2, 1, 1, 0.2, 20, 1000),
    "balanced": Preset(0.1, 0.8, 0.8, 0.2, 5, 3, 0.2, 30, 2000),
    "best": Preset(0.05, 0.8, 0.8, 0.1, 10, 10, 0.1, 50, 5000),
    "xgboost": Preset(0.3, 1.0, 1.0, 0.2, 0, 0, 0.3, 0, ROUNDS_WITHOUT_STOPPING),
}
