"""`DaskBoostRegressor`."""

from __future__ import annotations

from typing import Any

from sklearn.base import RegressorMixin

from daskboost.errors import ParameterError
from daskboost.estimators.class_labels import ATTRIBUTE, ClassLabels, has_classes
from daskboost.estimators.estimator import BoostedTrees, client_for
from daskboost.estimators.eval_sets import RowSet
from daskboost.estimators.parameters import estimator
from daskboost.estimators.scoring import r2
from daskboost.model.booster import Booster
from daskboost.objectives.objective_names import make_objective
from daskboost.params import TrainParams
from daskboost.training.dataset import run_or_await


@estimator
class DaskBoostRegressor(RegressorMixin, BoostedTrees):  # type: ignore[misc]
    """Gradient-boosted trees for numbers: means, medians, quantiles, counts.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {attributes}

    Notes
    -----
    Gradients share one scale, so that labels or weights which exceed the others some thousand times take precision from
    all other rows (`train` says how much). Use ``objective="reg:pseudohubererror"`` or ``"reg:absoluteerror"`` then, or
    clip them.

    Examples
    --------
    >>> import numpy as np
    >>> from daskboost import DaskBoostRegressor
    >>> x = np.arange(100.0).reshape(-1, 1)
    >>> model = DaskBoostRegressor(n_estimators=20).fit(x, 3 * x[:, 0])
    >>> bool(model.score(x, 3 * x[:, 0]) > 0.99)
    True
    """

    objective: Any = "reg:squarederror"

    def score(self, X: object, y: object, sample_weight: object = None) -> float:
        """Coefficient of determination R2 of the predictions; 1 is perfect, 0 is as good as the mean.

        Parameters
        ----------
        X, y, sample_weight : as in `fit`, local or Dask
        """
        request = self._request("prediction")
        source = self._source(RowSet(X, y, {"weight": sample_weight}), self.booster_.schema)
        return run_or_await(client_for(source), lambda: r2(source, request))

    def _loaded(self, booster: Booster) -> None:
        """Keep a model of numbers; one of classes only where the parameter `objective` says that its scores are meant,
        else a ParameterError, as for one of rankings."""
        name = booster.objective.name
        if has_classes(booster) and (name != self.objective or ATTRIBUTE in booster.attributes):
            named = " with classes" if ATTRIBUTE in booster.attributes else ""
            raise ParameterError(
                f"DaskBoostRegressor cannot be a model of objective {name!r}{named}, whose predictions are classes; "
                "use DaskBoostClassifier, or Booster.load_model for any model"
            )
        if booster.objective.query_loss is not None:
            raise ParameterError(
                f"DaskBoostRegressor cannot be a model of objective {name!r}, whose predictions rank the rows of "
                "queries; use DaskBoostRanker, or Booster.load_model for any model"
            )
        super()._loaded(booster)

    def _params_for(self, labels: ClassLabels | None) -> TrainParams:
        if isinstance(self.objective, str) and self.objective.startswith("multi:"):
            raise ParameterError(f"objective={self.objective!r} is for classes; use DaskBoostClassifier")
        params = super()._params_for(labels)
        if make_objective(params.objective, vars(params)).query_loss is not None:
            raise ParameterError(f"objective={self.objective!r} is for rankings; use DaskBoostRanker")
        return params
