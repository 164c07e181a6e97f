"""Small problems for trees, and ways to fit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from daskboost import Booster, QuantizedDataset, train
from daskboost.data.chunks.build import BuildOptions
from daskboost.data.input.source import make_source
from daskboost.dtypes import Bool, Float32

CLASSES = {"binary:logistic": 2, "multi:softprob": 5, "count:poisson": 9}


def _possible(params: dict[str, Any]) -> dict[str, Any]:
    """Scores by weight are neither for vectors nor for monotone constraints."""
    refused = params["multi_strategy"] == "multi_output_tree" or any(params.get("monotone_constraints", ()))
    return {**params, "score_function": "auto"} if refused else params


PARAMS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "grow_policy": st.sampled_from(["depthwise", "lossguide", "symmetric"]),
        "max_depth": st.integers(1, 5),
        "learning_rate": st.sampled_from([0.1, 1.0]),
        "reg_lambda": st.sampled_from([0.0, 1.0, 30.0]),
        "reg_alpha": st.sampled_from([0.0, 0.5]),
        "gamma": st.sampled_from([0.0, 2.0]),
        "min_child_weight": st.sampled_from([0.0, 1.0, 10.0]),
        "max_delta_step": st.sampled_from([0.0, 0.3]),
        "subsample": st.sampled_from([0.5, 1.0]),
        "random_state": st.integers(0, 5),
        "multi_strategy": st.sampled_from(["one_output_per_tree", "multi_output_tree"]),
        "score_function": st.sampled_from(["auto", "newton", "l2"]),
    },
    optional={
        "monotone_constraints": st.lists(st.integers(-1, 1), min_size=5, max_size=5),
        "interaction_constraints": st.just([[0, 1], [1, 2, 4]]),
        "colsample_bytree": st.just(0.6),
        "colsample_bylevel": st.just(0.6),
        "colsample_bynode": st.just(0.6),
    },
).map(_possible)
"""Training parameters for problems of five features."""


@dataclass(frozen=True)
class Data:
    """Rows of a small problem; features take few values, so that ties and heavy bins occur."""

    X: Float32
    y: Float32
    weight: Float32 | None = None


def make_data(rng: np.random.Generator, objective: str = "reg:squarederror", n_rows: int = 300, n_features: int = 5,
              n_values: int = 12, missing: float = 0.2, weighted: bool = True) -> Data:  # fmt: skip
    """Random rows whose label depends on the features, on whether they are missing, and on chance."""
    X = (rng.integers(0, n_values, (n_rows, n_features)) / 4 - 1).astype(np.float32)
    signal: Any = X[:, 0] * X[:, 1 % n_features] + np.sin(3 * X[:, -1]) + 0.3 * rng.normal(size=n_rows)
    lost = rng.random(X.shape) < missing * np.arange(n_features) / max(n_features - 1, 1)  # the first never
    signal += 0.5 * lost[:, -1]
    X[lost] = np.nan
    classes = CLASSES.get(objective)
    if classes is not None:
        signal = np.searchsorted(np.quantile(signal, np.arange(1, classes) / classes), signal)
    weight = rng.uniform(0.1, 3, n_rows).astype(np.float32) if weighted else None
    return Data(X, np.asarray(signal, np.float32), weight)


def quantized(data: Data, *, partitions: int | Sequence[int] = 1, engines: int = 1, encoding: str = "dense",
              chunk_rows: int = 65_536, max_bin: int = 16, limit: int | None = None, directory: Any = None,
              packing: str = "aligned", reference: QuantizedDataset | None = None) -> QuantizedDataset:  # fmt: skip
    """The data set, its rows cut into partitions, of equal or of these sizes, that go round the engines."""
    parts: Any = (data.X, data.y, data.weight)
    if partitions != 1:
        import dask.array as da

        rows = partitions
        if isinstance(rows, int):
            rows = np.diff(np.linspace(0, len(data.y), rows + 1).astype(int)).tolist()
        rows = tuple(rows)
        parts = [None if a is None else da.from_array(a, chunks=(rows, *a.shape[1:])) for a in parts]
    return QuantizedDataset.from_source(
        make_source(parts[0], parts[1], weight=parts[2]), BuildOptions(max_bin, encoding, packing, chunk_rows),
        n_engines=engines, host_memory_limit=limit, spill_directory=directory, n_jobs=1, reference=reference,
    )  # fmt: skip


def fit(data: Data, params: Mapping[str, Any], n_rounds: int = 3, **options: Any) -> Booster:
    """Quantize with `options` and train."""
    with quantized(data, **options) as dataset:
        return train({"n_jobs": 1, **params}, dataset, n_rounds)


def marks_of(data: QuantizedDataset) -> Bool:
    """Which rows of the whole data set a subset in this process has."""
    marks: Bool = data.shards.marks(data.n_numbered_rows)
    return marks
