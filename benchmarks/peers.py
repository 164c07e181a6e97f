"""The one place where benchmarks call the other libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def xgboost_predictor(model: bytes, device: str, output: str = "value") -> Callable[[Matrix], Any]:
    """What predicts rows in place, on a CUDA device CuPy's into CuPy's, by a model of XGBoost's format; `output` may be
    "margin"."""
    import xgboost

    booster = xgboost.Booster()
    booster.load_model(bytearray(model))
    booster.set_param({"device": device})
    return lambda x: booster.inplace_predict(x, predict_type=output)


def catboost_pool(x: Matrix, y: Vector, borders: int, device: str) -> Any:
    """CatBoost's quantized pool of rows in the host's memory, the only ones that it takes."""
    import catboost

    pool = catboost.Pool(x, y, thread_count=threads())
    pool.quantize(border_count=borders, task_type=_task_type(device))
    return pool


def catboost_train(pool: Any, depth: int, learning_rate: float, device: str, score: str, rounds: int) -> Any:
    """A model of symmetric trees whose work is like ours: one Newton step a tree, no samples, no noise on scores.

    The learning curve is computed in the first and the last round alone, and half of the GPU is left to others.
    """
    import catboost

    on_gpu = {"devices": "0", "gpu_ram_part": 0.5} if device == "cuda" else {"thread_count": threads()}
    return catboost.CatBoost({
        "loss_function": "Logloss", "iterations": rounds, "depth": depth, "learning_rate": learning_rate,
        "l2_leaf_reg": 1.0, "boosting_type": "Plain", "bootstrap_type": "No", "random_strength": 0,
        "score_function": score, "leaf_estimation_method": "Newton", "leaf_estimation_iterations": 1,
        "metric_period": rounds, "task_type": _task_type(device), "logging_level": "Silent",
        "allow_writing_files": False, **on_gpu,
    }).fit(pool)  # fmt: skip


def catboost_predict(model: Any, x: Matrix) -> npt.NDArray[np.float64]:
    """Probabilities of class 1."""
    return np.asarray(model.predict(x, prediction_type="Probability", thread_count=threads())[:, 1], np.float64)


def _task_type(device: str) -> str:
    return "GPU" if device == "cuda" else "CPU"
