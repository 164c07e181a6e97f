"""What a fit decides by, and what it has built so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from daskboost.data.cuts.cut_points import Cuts
from daskboost.devices.budget.set_size import FeatureSizes
from daskboost.devices.cpu.views import SlotLayout
from daskboost.dtypes import Bool, Float32
from daskboost.fit.recipe import Recipe
from daskboost.metrics.metric import AnyMetric
from daskboost.objectives.objective import Objective
from daskboost.params import TrainParams
from daskboost.tree.split_search import SplitRules
from daskboost.tree.table import TreeTable


@dataclass(frozen=True)
class EarlyStopping:
    """When a fit ends before its last round."""

    rounds: int
    """Rounds without improvement of the last metric on the last evaluation set."""
    least_share: float = 0.0
    """A lesser change than this share of the metric's first value is no improvement."""
    limits: tuple[float, ...] = ()
    """What the best score after each round has to be better than, of a fit that others are ahead of otherwise: from the
    `rounds`-th on, the last one for all that follow. Without entries there is no such end."""


@dataclass(frozen=True)
class FitSpec:
    """Everything a fit decides by, apart from the engines."""

    params: TrainParams
    objective: Objective
    recipe: Recipe
    metrics: Sequence[Sequence[AnyMetric]]
    """Metrics of each evaluation set, prepared for it."""
    cuts: Cuts
    layout: SlotLayout
    rules: SplitRules
    interaction_groups: Bool | None
    learning_rates: Sequence[float]
    """One per round; its length is the number of rounds."""
    eval_names: Sequence[str] = ()
    feature_sizes: FeatureSizes | None = None
    """How many training values features have, where somebody counted them."""
    largest_weight: float = 1.0
    early_stopping: EarlyStopping | None = None
    earlier_trees: Sequence[TreeTable] = ()
    """Trees of a model that the fit continues, whose margins the engines already hold."""
    earlier_outputs: Sequence[int] = ()
    first_iteration: int = 0
    base_score: tuple[float, ...] | None = None
    """Known base score (a continued model's); otherwise the parameters' or the data's."""
    earlier_best: tuple[int, float] | None = None
    """Best iteration and score so far of a model that the fit resumes."""

    @property
    def modelled_features(self) -> Bool:
        """Whether models of leaves take a feature, whose bins must be in the order of its values; shape (features,)."""
        sets = self.rules.sets
        return np.ones(self.cuts.n_features, np.bool_) if sets is None else ~sets.is_code

    @property
    def rounds(self) -> Iterator[tuple[int, float]]:
        """The number of each round and its learning rate."""
        return enumerate(self.learning_rates, self.first_iteration)

    @property
    def search_rules(self) -> SplitRules:
        """The rules that splits are chosen by: steps are limited where they are Newton's."""
        return replace(self.rules, max_delta_step=0.0) if self.recipe.searched == "weights" else self.rules

    @property
    def leaf_rules(self) -> SplitRules:
        """The rules that leaves are valued by which take sums of their own: where splits are scored by weights,
        `min_child_weight` is the least weight of a child, and says nothing of hessians."""
        return replace(self.rules, min_child_weight=0.0) if self.recipe.searched == "weights" else self.rules

    @property
    def largest_searched(self) -> float:
        """Bound of the weights that trees are searched on (small data's are multiplied later); 0 for hessians."""
        if self.recipe.searched != "weights":
            return 0.0
        factor = np.float32(max(1.0, self.objective.positive_weight))
        return float(factor if self.recipe.small_data else factor * np.float32(self.largest_weight))


@dataclass
class Progress:
    """What has been built so far; a snapshot of it is a checkpoint."""

    base_score: tuple[float, ...]
    """In the label's space: one for all outputs, or one each."""
    trees: list[TreeTable] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    history: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    best_iteration: int | None = None
    best_score: float | None = None
    chances: Float32 | None = None
    """What the last round has estimated, see `messages.Round.chances`."""

    def add_round(self, spec: FitSpec, trees: Sequence[TreeTable], chances: Float32 | None) -> None:
        """Append a round's trees and their outputs; coordinators and clients add trees here alone."""
        self.chances = chances
        self.trees += trees
        self.outputs += [outputs[0] for outputs in spec.recipe.tree_outputs]


Report = Callable[[int, Progress], bool]
"""Called after every round with its number; returns whether to stop."""
