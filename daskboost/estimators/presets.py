"""What estimators do where parameters are not given: named sets of defaults, and how each depends on the rows.

`docs/defaults.md` has the table, and what it was chosen by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from daskboost.params import TrainParams

LEAST_ROWS = 500
"""With fewer no rows are held out, as a fifth of them tells too little of when to stop."""
DEEPER_ROWS = 10_000
"""From here on trees are deeper, unless features are target statistics."""
DEEPER_ROWS_OF_STATISTICS = 2**17
"""From here on trees are deeper where features are target statistics."""
MEMBERS_ROWS = 2**19
"""From here on one model is trained unless `n_members` says otherwise: averages gain little there, and take long. So
many held-out rows have smooth losses: half as many rounds without improvement tell when to stop."""
TRIED_SIZE = 2**25
"""Up to so many rows times features times classes, held-out rows choose between kinds of models."""
ROUNDS_WITHOUT_STOPPING = 100
"""Rounds where `n_estimators` is not given and no rows tell when to stop: XGBoost's and scikit-learn's number."""


@dataclass(frozen=True)
class Facts:
    """What of a fit parameters that are not given go by."""

    n_rounds: int
    """Rounds, or the most of them."""
    n_rows: int = 0
    """Rows whose weight is not 0."""
    n_classes: int = 0
    """The number of classes; 0 where labels are numbers."""
    stops: bool = False
    """Whether rows tell when to stop."""
    holds_out: bool = False
    """Whether these rows are held out from models that are averaged."""
    by_levels: bool = True
    """Whether trees grow level by level, each node by a split of its own."""
    shares_trees: bool = False
    """Whether each tree serves all classes."""
    n_features: int = 0
    """The number of features; 0 where it is not known yet."""
    has_statistics: bool = False
    """Whether features are target statistics, which leave rows out by themselves."""
    is_wide: bool = False
    """Whether data have so many features that trees take longer to search than rows to add up."""
    has_queries: bool = False
    """Whether rows belong to queries, whose metrics tell little of the better of two models."""

    @property
    def may_split_off_few(self) -> bool:
        """Whether a few rows may be a leaf, as classes that are told apart well need it. Where data of several classes
        are wide, trees of rare classes find features that these rows have by chance."""
        return self.n_classes > 0 and not (self.is_wide and self.n_classes > 2)

    @property
    def may_choose(self) -> bool:
        """Whether held-out rows choose between models: data are small, and rows are held out to stop by anyway."""
        is_small = self.n_rows * self.n_features * max(self.n_classes, 1) <= TRIED_SIZE
        return is_small and self.holds_out and not self.has_queries


@dataclass(frozen=True)
class Members:
    """Models that stop by rows which are held out from them."""

    learning_rate: float
    subsample: float
    colsample_bylevel: float
    n_members: int
    """How many are averaged; 0 holds no rows out."""
    max_depth_of_many: int = TrainParams.max_depth
    """Depth from `DEEPER_ROWS` rows on, where trees grow level by level."""
    max_depth_of_most: int = TrainParams.max_depth
    """Depth from `MEMBERS_ROWS` rows on, where trees grow level by level and no features are target statistics."""
    min_child_weight_of_classes: float = TrainParams.min_child_weight
    multi_strategy: str = TrainParams.multi_strategy
    other_strategy: str | None = None
    """Another `multi_strategy` that is tried up to `TRIED_SIZE`."""

    def values(self, facts: Facts) -> dict[str, float | str]:
        """Return training parameters by name of models that rows are held out from."""
        deeper_rows = DEEPER_ROWS_OF_STATISTICS if facts.has_statistics else DEEPER_ROWS
        depth = TrainParams.max_depth
        if facts.by_levels and facts.n_rows >= deeper_rows:
            is_most = facts.n_rows >= MEMBERS_ROWS and not facts.has_statistics
            depth = self.max_depth_of_most if is_most else self.max_depth_of_many
        return {
            "learning_rate": max(self.learning_rate, learning_rate_of(facts.n_rounds)),
            "subsample": 1.0 if facts.has_statistics else self.subsample,
            "colsample_bylevel": self.colsample_bylevel,
            "max_depth": depth,
            "min_child_weight": (
                self.min_child_weight_of_classes if facts.may_split_off_few else TrainParams.min_child_weight
            ),
            "multi_strategy": self.multi_strategy,
        }


@dataclass(frozen=True)
class Preset:
    """Values of parameters that are not given."""

    numbers: Members
    """Where labels are numbers or two classes, or trees cannot serve several."""
    classes: Members
    """Where labels are three classes or more, all of which each tree serves: sampling costs it more than it gains, and
    each model takes longer."""
    validation_fraction: float
    early_stopping_rounds: int
    early_stopping_rounds_of_queries: int
    """Where rows have queries, whose metrics differ much from round to round."""
    n_estimators: int
    """Most rounds where rows tell when to stop."""

    def patience(self, n_rows: int, *, has_queries: bool) -> int:
        """Return the rounds without improvement on held-out rows, a share of so many, after which a model ends."""
        if has_queries:
            return self.early_stopping_rounds_of_queries
        return self.early_stopping_rounds // (2 if n_rows >= MEMBERS_ROWS else 1)

    @property
    def stops(self) -> bool:
        """Whether rows may tell when to stop where no parameter says so."""
        return self.numbers.n_members > 0

    def values(self, facts: Facts) -> dict[str, float | str]:
        """Return training parameters by name. All rows and features grow trees of depth 6 of a model that no rows are
        held out from."""
        own = self.classes if facts.shares_trees else self.numbers
        found = own.values(facts)
        if not self.stops:
            return found | {"learning_rate": own.learning_rate}
        if not facts.stops:
            found["learning_rate"] = learning_rate_of(facts.n_rounds)
        if facts.holds_out:
            return found
        plain = ("subsample", "colsample_bylevel", "max_depth", "min_child_weight")
        return found | {name: getattr(TrainParams, name) for name in plain}

    def also_tried(self, facts: Facts) -> dict[str, str]:
        """Return what differs from `values` in parameters that members are trained by too, to choose between both."""
        other = self.classes.other_strategy
        wanted = facts.may_choose and facts.shares_trees
        return {"multi_strategy": other} if wanted and other is not None else {}

    def n_members(self, n_rows: int, n_classes: int) -> int:
        """Return how many models are averaged; `n_classes` is 0 where labels are numbers."""
        most = (self.numbers if n_classes < 3 else self.classes).n_members
        return min(most, 1) if n_rows >= MEMBERS_ROWS else most


def learning_rate_of(n_rounds: int) -> float:
    """Return the learning rate of so many rounds, none of which is given up: 0.17 for 100, 0.03 for 1,000.

    Of ten shared sets' losses on held-out rows, those of the best of four or five rates by number of rounds fit this
    power law; 0.3 is best for 30 rounds and fewer (`docs/defaults.md`).
    """
    return round(min(0.3, 0.17 * math.pow(100 / max(n_rounds, 1), 0.75)), 4)


NUMBERS = Members(
    0.1, 0.8, 0.8, 5, max_depth_of_many=8, max_depth_of_most=7, min_child_weight_of_classes=0.01
)  # fmt: skip
CLASSES = Members(
    0.2, 1.0, 1.0, 3, min_child_weight_of_classes=0.01, multi_strategy="multi_output_tree",
    other_strategy="one_output_per_tree",
)  # fmt: skip
XGBOOST = Members(TrainParams.learning_rate, 1.0, 1.0, 0)
PRESETS: Mapping[str, Preset] = {
    "fast": Preset(replace(NUMBERS, n_members=1), replace(CLASSES, n_members=1), 0.2, 20, 40, 1000),
    "balanced": Preset(NUMBERS, CLASSES, 0.2, 30, 60, 2000),
    "best": Preset(
        replace(NUMBERS, learning_rate=0.05, n_members=10), replace(CLASSES, learning_rate=0.1, n_members=10),
        0.1, 50, 100, 5000,
    ),
    "xgboost": Preset(XGBOOST, XGBOOST, 0.2, 0, 0, ROUNDS_WITHOUT_STOPPING),
}  # fmt: skip
