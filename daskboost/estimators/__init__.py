"""scikit-learn's face of the library: `DaskBoostRegressor` and `DaskBoostClassifier`."""

from __future__ import annotations

from daskboost.estimators.classifier import DaskBoostClassifier
from daskboost.estimators.regressor import DaskBoostRegressor

__all__ = ["DaskBoostClassifier", "DaskBoostRegressor"]
