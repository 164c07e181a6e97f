"""Feature importance, summed over the splits of a model as XGBoost does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from daskboost.dtypes import Float64, Int64
from daskboost.errors import ParameterError

if TYPE_CHECKING:
    from daskboost.model.booster import Booster

ImportanceType = Literal["weight", "gain", "cover", "total_gain", "total_cover"]


def importance(booster: Booster, importance_type: str = "gain") -> Float64:
    """Importance of every feature; float64, shape (features,), 0 where no split uses it.

    Parameters
    ----------
    importance_type : {"weight", "gain", "cover", "total_gain", "total_cover"}
        Number of splits; or the loss reduction (gain) or sum of hessians (cover) of the splits, averaged or in total.
        Of symmetric trees, and where splits are scored by weights, single gains may be below 0.

    Raises
    ------
    ParameterError
        Another type.
    """
    if importance_type not in get_args(ImportanceType):
        valid = ", ".join(map(repr, get_args(ImportanceType)))
        raise ParameterError(f"importance_type={importance_type!r} is unknown; give one of {valid}")
    counts = np.zeros(booster.n_features, np.int64)
    totals = np.zeros(booster.n_features, np.float64)
    for tree in booster.trees:
        inner = ~tree.is_leaf
        features = tree.feature[inner]
        counts += np.bincount(features, minlength=booster.n_features)
        if importance_type != "weight":
            statistic = tree.gain if importance_type.endswith("gain") else tree.cover
            totals += np.bincount(features, statistic[inner].astype(np.float64), booster.n_features)
    if importance_type == "weight":
        return counts.astype(np.float64)
    return totals if importance_type.startswith("total_") else _mean(totals, counts)


def _mean(totals: Float64, counts: Int64) -> Float64:
    return np.divide(totals, counts, out=np.zeros_like(totals), where=counts > 0)


def get_score(booster: Booster, importance_type: str = "weight") -> dict[str, float]:
    """Importance by name of the features that some split uses: XGBoost's ``Booster.get_score``."""
    used = np.flatnonzero(importance(booster, "weight"))
    values = importance(booster, importance_type)
    return {booster.schema.label(int(i)): float(values[i]) for i in used}
