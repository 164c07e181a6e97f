"""What making a data set and continuing a model refuse before rows are read: options out of range, other columns."""

from __future__ import annotations

import numpy as np

from daskboost.data.cuts import MAX_BIN_LIMIT
from daskboost.data.rows import FeatureSchema
from daskboost.errors import DataError, ParameterError
from daskboost.model.booster import Booster


def check_options(max_bin: object, encoding: object, packing: object, chunk_rows: object, n_jobs: object) -> None:
    """Refuse options of quantizing that are out of range."""
    for name, value, low, high in (
        ("max_bin", max_bin, 2, MAX_BIN_LIMIT), ("chunk_rows", chunk_rows, 0, 2**31 - 1), ("n_jobs", n_jobs, -1, 4096),
    ):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
            raise ParameterError(f"{name}={value!r} must be an integer from {low} to {high}")
    for name, value, valid in (
        ("encoding", encoding, ("auto", "dense", "csr")), ("packing", packing, ("aligned", "tight", "common")),
    ):  # fmt: skip
        if value not in valid:
            raise ParameterError(f"{name}={value!r} must be one of {', '.join(map(repr, valid))}")


def check_same_features(model: Booster, schema: FeatureSchema, what: str) -> None:
    """Refuse rows whose columns are not those a model was trained on, in its order.

    Raises
    ------
    DataError
        Naming both numbers of features, or the first column that differs.
    """
    if model.n_features != schema.n_features:
        raise DataError(
            f"init_model has {model.n_features} features, {what} {schema.n_features}; pass the same columns"
        )
    ours, theirs = schema.names, model.schema.names
    if ours is not None and theirs is not None and ours != theirs:
        at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
        raise DataError(
            f"column {at} of {what} is {ours[at]!r}, but init_model was trained with {theirs[at]!r} there; pass the "
            "columns that it was trained with, in its order"
        )
