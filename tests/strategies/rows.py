"""Small data sets for tests of fits."""

from __future__ import annotations

import numpy as np

from daskboost.dtypes import Float32


def regression(n_rows: int = 600, n_features: int = 5, seed: int = 0) -> tuple[Float32, Float32]:
    """Normal features, some missing; labels linear in two of them, with noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, n_features)).astype(np.float32)
    y = (2 * X[:, 0] - X[:, 1] + 0.3 * rng.normal(size=n_rows)).astype(np.float32)
    X[rng.random(X.shape) < 0.05] = np.nan
    return X, y


def classes(n_rows: int = 600, n_classes: int = 3, seed: int = 0) -> tuple[Float32, Float32]:
    """Codes 0 to n_classes - 1, which a model can mostly tell from the features."""
    X, y = regression(n_rows, seed=seed)
    edges = np.quantile(y, np.linspace(0, 1, n_classes + 1)[1:-1])
    return X, np.searchsorted(edges, y).astype(np.float32)
