"""The one place where benchmarks call daskboost's training API on arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Matrix = Any
"""A NumPy array or a scipy.sparse CSR matrix; for training and its peers on a GPU, CuPy's too."""
Vector = npt.NDArray[np.float32]


def quantize(x: Matrix, y: Vector, *, max_bin: int = 256, base_margin: Vector | None = None) -> Any:
    """A QuantizedDataset of arrays in this process."""
    from daskboost import QuantizedDataset

    return QuantizedDataset.from_dask(x, y, max_bin=max_bin, base_margin=base_margin)


def train(params: Mapping[str, Any], dataset: Any, rounds: int) -> Any:
    """A Booster trained in this process, on `threads()` threads."""
    import daskboost

    return daskboost.train({"n_jobs": threads(), **params}, dataset, num_boost_round=rounds)


def predict(booster: Any, x: Matrix, base_margin: Vector | None = None) -> npt.NDArray[np.float64]:
    """Probabilities, means or values of each row, as `Booster.predict` gives them."""
    options = {} if base_margin is None else {"base_margin": base_margin}
    return np.asarray(booster.predict(x, **options), np.float64)


def as_bytes(booster: Any) -> bytes:
    """The model as XGBoost reads it."""
    found: bytes = booster.to_bytes()
    return found


def threads() -> int:
    """Threads that every contender gets: the cores of this machine unless BENCH_THREADS says otherwise."""
    return int(os.environ.get("BENCH_THREADS", os.cpu_count() or 1))
