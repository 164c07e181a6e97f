"""Rows for fits on test clusters, and what to fit."""

from __future__ import annotations

from typing import Any

import numpy as np

import daskboost as db

ROWS, FEATURES = 3_000, 6


def table(kind: str = "logistic") -> tuple[Any, Any, Any]:
    """Rows with missing values, labels and weights."""
    rng = np.random.default_rng(7)
    features = rng.standard_normal((ROWS, FEATURES)).astype(np.float32)
    score = features[:, 0] + features[:, 1] * features[:, 2]
    features[rng.random(features.shape) < 0.1] = np.nan
    labels = {
        "regression": score,
        "logistic": (score > 0).astype(np.float32),
        "classes": np.clip(np.floor(score + 2), 0, 4),
        "vectors": np.clip(np.floor(score + 2), 0, 4),
    }[kind]
    return features, labels.astype(np.float32), rng.uniform(0.5, 2, ROWS).astype(np.float32)


PARAMS: dict[str, dict[str, Any]] = {
    "regression": {"objective": "reg:squarederror"},
    "logistic": {"objective": "binary:logistic"},
    "classes": {"objective": "multi:softprob", "num_class": 5},
    "vectors": {"objective": "multi:softprob", "num_class": 5, "multi_strategy": "multi_output_tree"},
}


def frame(features: Any, labels: Any, weights: Any, n_partitions: int) -> Any:
    import dask.dataframe as dd
    import pandas as pd

    columns = pd.DataFrame(features, columns=[f"x{i}" for i in range(FEATURES)])
    return dd.from_pandas(columns.assign(label=labels, weight=weights), npartitions=n_partitions)


def fit_bytes(data: db.QuantizedDataset, kind: str, **more: Any) -> bytes:
    samples = {"subsample": 0.7, "colsample_bytree": 0.8, "colsample_bynode": 0.7}
    params = {**PARAMS[kind], **samples, "max_depth": 4, **more}
    return db.train(params, data, 4).to_bytes()
