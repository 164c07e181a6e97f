"""Fits whose memory is planned: parameters and data sets of many shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from daskboost import Plan


def squared(label: Any, margin: Any) -> tuple[Any, Any]:
    """A user's own loss."""
    return margin - label, margin * 0 + 1


LOGISTIC = {"objective": "binary:logistic", "min_child_weight": 0}
CLASSES = {"objective": "multi:softprob", "num_class": 6, "min_child_weight": 0}
VECTORS = {**CLASSES, "multi_strategy": "multi_output_tree"}
SAMPLED = {"out_of_core": "sampled", "subsample": 0.2}
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "depthwise": ({**LOGISTIC, "max_depth": 6}, {}),
    "histograms": ({**LOGISTIC, "max_depth": 8, "max_bin": 256}, {"n_rows": 4_500, "missing": 0.1}),
    "symmetric": ({**LOGISTIC, "max_depth": 6, "grow_policy": "symmetric"}, {}),
    "lossguide": ({**LOGISTIC, "max_depth": 0, "max_leaves": 31, "grow_policy": "lossguide"}, {}),
    "classes": ({**CLASSES, "max_depth": 3}, {}),
    "small classes": ({**CLASSES, "max_depth": 4}, {"n_rows": 4_000}),
    "symmetric classes": ({**CLASSES, "max_depth": 4, "grow_policy": "symmetric", "subsample": 0.5}, {}),
    "wide": ({**LOGISTIC, "max_depth": 3}, {"n_features": 70}),
    "two bytes a symbol": ({**LOGISTIC, "max_depth": 2, "max_bin": 500}, {}),
    "sparse": ({**LOGISTIC, "max_depth": 4}, {"n_features": 60, "density": 0.1}),
    "wide sparse": ({**LOGISTIC, "max_depth": 6}, {"n_features": 2_000, "density": 0.01, "n_rows": 8_000}),
    "wide sparse best first": (
        {**LOGISTIC, "max_depth": 0, "max_leaves": 40, "grow_policy": "lossguide"},
        {"n_features": 2_000, "density": 0.01, "n_rows": 3_000},
    ),
    "wide sparse classes": (
        {**CLASSES, "num_class": 3, "max_depth": 6}, {"n_features": 2_000, "density": 0.02, "n_rows": 2_000}
    ),
    "small data": ({**LOGISTIC, "max_depth": 4}, {"n_rows": 4_000}),
    "weights": ({**LOGISTIC, "max_depth": 4}, {"weight": True}),
    "samples": ({**LOGISTIC, "max_depth": 4, "subsample": 0.5}, {}),
    "by weight": ({**LOGISTIC, "max_depth": 5, "score_function": "l2"}, {"weight": True}),
    "small classes by weight": ({**CLASSES, "max_depth": 4, "score_function": "l2"}, {"n_rows": 4_000}),
    "linear leaves": ({**LOGISTIC, "max_depth": 5, "linear_leaves": True}, {}),
    "linear leaves best first": (
        {**LOGISTIC, "max_depth": 0, "max_leaves": 40, "grow_policy": "lossguide", "linear_leaves": True}, {}
    ),
    "quantiles": ({"objective": "reg:absoluteerror", "max_depth": 4}, {}),
    "no kernel": ({"objective": squared, "max_depth": 4, "min_child_weight": 0}, {}),
    "evaluation": ({**LOGISTIC, "max_depth": 4}, {"evaluated": True}),
    "vectors": ({**VECTORS, "max_depth": 5}, {}),
    "vectors of many": ({**VECTORS, "num_class": 21, "max_depth": 3, "grow_policy": "symmetric"}, {}),
    "sketched vectors": ({**VECTORS, "max_depth": 4, "sketch_outputs": 2}, {}),
    "small vectors": ({**VECTORS, "max_depth": 3}, {"n_rows": 4_000}),
    "scores": ({**LOGISTIC, "max_depth": 3, "eval_metric": ["auc", "logloss"]}, {"evaluated": True, "weight": True}),
    "certified": ({**LOGISTIC, "max_depth": 6, "out_of_core": "certified"}, {"evaluated": True}),
    "certified classes": (
        {"objective": "multi:softprob", "num_class": 6, "max_depth": 4, "out_of_core": "certified"}, {"density": 0.3}
    ),
    "small certified": ({**LOGISTIC, "max_depth": 4, "out_of_core": "certified"}, {"n_rows": 4_000}),
    "certified without a kernel": (
        {"objective": squared, "max_depth": 5, "min_child_weight": 0, "out_of_core": "certified"}, {}
    ),
    "sampled": ({**LOGISTIC, "max_depth": 6, **SAMPLED}, {"evaluated": True}),
    "sampled wide": ({**LOGISTIC, "max_depth": 4, **SAMPLED, "subsample": 0.5}, {"n_features": 70, "weight": True}),
    "sampled classes": ({**CLASSES, "max_depth": 4, **SAMPLED}, {"n_features": 60, "density": 0.1}),
    "sampled quantiles": ({"objective": "reg:absoluteerror", "max_depth": 4, **SAMPLED}, {}),
    "sampled without a kernel": ({"objective": squared, "max_depth": 5, "min_child_weight": 0, **SAMPLED}, {}),
    "sampled by weight": ({**LOGISTIC, "max_depth": 5, "score_function": "l2", **SAMPLED}, {"weight": True}),
    "sampled linear leaves": ({**LOGISTIC, "max_depth": 5, "linear_leaves": True, **SAMPLED}, {}),
    "sampled vectors": ({**VECTORS, "max_depth": 4, "sketch_outputs": 2, **SAMPLED}, {}),
}
SHAPES_OF_CPUS = SHAPES | {
    "symmetric trees of few rows": (
        {**LOGISTIC, "max_depth": 11, "grow_policy": "symmetric"}, {"n_rows": 60, "n_features": 20}
    ),
}


def within(peak_bytes: int, planned: Plan) -> None:
    """A fit took at most what was planned, and at least 0.7 of it."""
    assert 0.7 * planned.total_bytes <= peak_bytes <= planned.total_bytes, f"took {peak_bytes:,} bytes of\n{planned}"


def make_data(n_rows: int = 8_000, n_features: int = 10, missing: float = 0.0, density: float = 0.0,
              weight: bool = False, num_class: int = 2) -> dict[str, Any]:  # fmt: skip
    """Rows of random labels, which trees split to the end."""
    rng = np.random.default_rng(7)
    X: Any = rng.normal(size=(n_rows, n_features)).astype(np.float32)
    X[rng.random(X.shape) < missing] = np.nan
    if density:
        X = scipy.sparse.csr_matrix(np.where(rng.random(X.shape) < density, X, 0))
    y = rng.integers(0, num_class, n_rows).astype(np.float32)
    return {"X": X, "y": y, "weight": rng.uniform(0.5, 2, n_rows).astype(np.float32) if weight else None}


def data_of(name: str, **otherwise: Any) -> dict[str, Any]:
    """The data set of a shape."""
    params, given = SHAPES_OF_CPUS[name]
    sizes = {**otherwise, **{k: v for k, v in given.items() if k != "evaluated"}}
    return make_data(**sizes, num_class=params.get("num_class", 2))
