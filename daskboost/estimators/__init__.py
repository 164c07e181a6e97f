"""scikit-learn's face of the library: `DaskBoostRegressor`, `DaskBoostClassifier` and `DaskBoostRanker`."""

from __future__ import annotations

from daskboost.estimators.classifier import DaskBoostClassifier
from daskboost.estimators.ranker import DaskBoostRanker
from daskboost.estimators.regressor import DaskBoostRegressor

__all__ = ["DaskBoostClassifier", "DaskBoostRanker", "DaskBoostRegressor"]
