"""daskboost: gradient-boosted decision trees on Dask collections larger than one GPU.

The public names; each is imported on first use, so that `import daskboost` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daskboost.devices.budget.plan import Plan
    from daskboost.estimators import DaskBoostClassifier, DaskBoostRanker, DaskBoostRegressor
    from daskboost.model.booster import Booster
    from daskboost.model.plotting import plot_importance, plot_learning_curve, plot_tree, to_graphviz
    from daskboost.training.callbacks import Callback, Checkpoint, EvaluationLog, LearningRateSchedule, ProgressBar
    from daskboost.training.cross_validation import cv
    from daskboost.training.dataset import QuantizedDataset
    from daskboost.training.evaluate_features import FeatureTrial, evaluate_features
    from daskboost.training.plan_fit import plan
    from daskboost.training.train import train
    from daskboost.training.train_many import TrainedModel, train_many

__version__ = "0.1.0"

_HOMES = {
    "Booster": "model.booster",
    "Callback": "training.callbacks",
    "Checkpoint": "training.callbacks",
    "DaskBoostClassifier": "estimators",
    "DaskBoostRanker": "estimators",
    "DaskBoostRegressor": "estimators",
    "EvaluationLog": "training.callbacks",
    "FeatureTrial": "training.evaluate_features",
    "LearningRateSchedule": "training.callbacks",
    "Plan": "devices.budget.plan",
    "ProgressBar": "training.callbacks",
    "QuantizedDataset": "training.dataset",
    "TrainedModel": "training.train_many",
    "cv": "training.cross_validation",
    "evaluate_features": "training.evaluate_features",
    "plan": "training.plan_fit",
    "plot_importance": "model.plotting",
    "plot_learning_curve": "model.plotting",
    "plot_tree": "model.plotting",
    "to_graphviz": "model.plotting",
    "train": "training.train",
    "train_many": "training.train_many",
}

__all__ = [
    "Booster",
    "Callback",
    "Checkpoint",
    "DaskBoostClassifier",
    "DaskBoostRanker",
    "DaskBoostRegressor",
    "EvaluationLog",
    "FeatureTrial",
    "LearningRateSchedule",
    "Plan",
    "ProgressBar",
    "QuantizedDataset",
    "TrainedModel",
    "cv",
    "evaluate_features",
    "plan",
    "plot_importance",
    "plot_learning_curve",
    "plot_tree",
    "to_graphviz",
    "train",
    "train_many",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'daskboost' has no attribute {name!r}")
    value = getattr(import_module(f"daskboost.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
