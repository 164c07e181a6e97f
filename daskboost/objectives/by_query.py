"""What losses share whose gradients need the rows of a query together."""

from __future__ import annotations

from typing import ClassVar, NoReturn

import numpy as np

from daskboost.dtypes import ArrayModule, Float32
from daskboost.errors import DataError, ParameterError
from daskboost.objectives.objective import BaseScoreRule, Objective
from daskboost.params import ON_SAMPLES, TrainParams


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

    def check_params(self, params: TrainParams) -> None:
        """See `Objective.check_params`.

        Raises
        ------
        ParameterError
            Trees that grow on samples, whose rows are not whole queries.
        """
        super().check_params(params)
        if params.out_of_core in ON_SAMPLES:
            raise ParameterError(
                f"out_of_core={params.out_of_core!r} does not go with objective={self.name!r}, whose gradients need "
                "whole queries, not samples of rows; use out_of_core='exact'"
            )
