"""What an engine needs to know of its fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daskboost.data.cuts.cut_points import Cuts
from daskboost.devices.cpu.views import SlotLayout
from daskboost.fit.messages import Request
from daskboost.fit.recipe import Recipe
from daskboost.fit.spec import FitSpec
from daskboost.metrics.metric import AnyMetric
from daskboost.objectives.objective import Objective
from daskboost.tree.split_search import SplitRules

# What answers the requests of the coordinator.

Answers = Mapping[type[Request[Any]], Callable[[Any], Any]]
"""The function that answers each kind of request."""


COLUMN_BYTES = 2**31
"""Most bytes of column-major copies of an engine's training chunks; what has no copy is split more slowly."""


@dataclass(frozen=True)
class EngineSetup:
    """What an engine needs to know of its fit."""

    cuts: Cuts
    layout: SlotLayout
    objective: Objective
    metrics: Sequence[Sequence[AnyMetric]]
    """Metrics of each evaluation set, prepared for it."""
    rules: SplitRules
    """Rules that splits are chosen by."""
    recipe: Recipe
    column_bytes: int = COLUMN_BYTES
    """Room for column-major copies of the training chunks."""
    keep_gradients: bool = True
    """Whether there is room to keep the gradients of all chunks between their range and their quantizing; otherwise
    those of a single output are computed twice, and 8 bytes per row are saved."""

    @property
    def keeps_round(self) -> bool:
        """Whether the gradients of a round's rows stay in memory."""
        return self.recipe.keeps_round(self.keep_gradients)


def engine_setup(spec: FitSpec) -> EngineSetup:
    """Return what every engine of a fit knows of it."""
    return EngineSetup(spec.cuts, spec.layout, spec.objective, spec.metrics, spec.search_rules, spec.recipe)
