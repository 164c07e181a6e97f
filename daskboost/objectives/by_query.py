"""What losses share whose gradients need the rows of a query together."""

from __future__ import annotations

from typing import ClassVar, NoReturn

import numpy as np

from daskboost.dtypes import ArrayModule, Float32
from daskboost.errors import DataError
from daskboost.objectives.objective import BaseScoreRule, Objective


class QueryObjective(Objective):
    """A loss of the rows of a query together. Scores mean something beside those of the same query alone, so they start
    at 0."""

    needs: ClassVar[tuple[str, ...]] = ("label", "qid")
    base_score_rule: ClassVar[BaseScoreRule] = "constant"
    base_score_constant: ClassVar[float] = 0.0

    def gradients(self, label: Float32, margin: Float32, xp: ArrayModule = np) -> NoReturn:
        """Refuse rows without their queries.

        Raises
        ------
        DataError
        """
        raise DataError(f"gradients of objective {self.name!r} are those of queries: train it with qid")
