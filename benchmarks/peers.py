"""The one place where benchmarks call the other libraries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.ours import Matrix, Vector, threads


def xgboost_matrix(x: Matrix, y: Vector, *, max_bin: int = 256, base_margin: Vector | None = None) -> Any:
    """XGBoost's quantized matrix, the counterpart of a QuantizedDataset."""
    import xgboost

    return xgboost.QuantileDMatrix(x, y, base_margin=base_margin, max_bin=max_bin, nthread=threads())


def xgboost_train(params: Mapping[str, Any], matrix: Any, rounds: int) -> Any:
    """A Booster of XGBoost's histogram method on `threads()` threads."""
    import xgboost

    return xgboost.train({"tree_method": "hist", "nthread": threads(), **params}, matrix, num_boost_round=rounds)


def xgboost_predict(booster: Any, x: Matrix, base_margin: Vector | None = None) -> npt.NDArray[np.float64]:
    """Probabilities, means or values of each row."""
    import xgboost

    return np.asarray(booster.predict(xgboost.DMatrix(x, base_margin=base_margin)), np.float64)
