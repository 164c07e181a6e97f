"""Fits whose trees are stored (`tests/data/golden_models.json`), and the data they train on.

Data are hashes of row and column numbers, by integers alone, so that they are the same whatever NumPy draws. Most fits
give a base score, so that a change of how one is estimated touches only those that are named for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.sparse

from daskboost import (
    Booster,
    DaskBoostClassifier,
    DaskBoostRegressor,
    LearningRateSchedule,
    QuantizedDataset,
    cv,
    train,
    train_many,
)
from daskboost.data.chunks.build import BuildOptions
from daskboost.data.input.source import make_source

Params = dict[str, Any]
Scores = dict[str, dict[str, list[float]]]
How = Literal["train", "schedule", "evaluate", "stop early", "continue", "continue on margins", "subset", "folds", "cv",
              "regressor", "classifier"]  # fmt: skip
"""What is called: `train` with or without evaluation sets, on a model, on some rows; or what calls it for a user."""


@dataclass(frozen=True)
class Rows:
    """A data set's size and kind. More than 4,096 rows are not small data, whose gradients keep more bits."""

    n_rows: int = 700
    n_features: int = 6
    n_values: int = 40
    """Distinct values of a feature."""
    density: float = 1.0
    """Share of entries; less than 1 makes a sparse matrix."""
    outlier: bool = False
    """Whether one row's label is far larger than all others, and with it the scale of gradients."""


@dataclass(frozen=True)
class Fit:
    """One call, and all that it depends on but the device."""

    params: Params = field(default_factory=dict)
    rows: Rows = Rows()
    how: How = "train"
    weighted: bool = False
    margin: bool = False
    """Whether rows have a base margin."""
    max_bin: int = 32
    encoding: str = "dense"
    packing: str = "aligned"
    n_chunks: int = 1
    n_engines: int = 1
    on_disk: bool = False
    """Whether most chunks lie in files."""
    n_resident: int | None = None
    """Chunks that stay on a GPU; None for as many as have room."""
    by_entries: bool = False
    """Whether a GPU searches sorted entries in place of histograms."""
    n_rounds: int = 3
    n_queries: int = 0
    """Queries that rows belong to; 0 for none."""


def doubled_squares(label: Any, margin: Any) -> tuple[Any, Any]:
    """Return gradients and hessians of a user's own loss, the doubled square of the error."""
    return 2 * (margin - label), margin * 0 + 2


SMALL, LARGE, SPARSE = Rows(), Rows(n_rows=4_300), Rows(n_features=30, density=0.15)
WIDE, LARGE_WIDE = Rows(700, 80, 8, density=0.06), Rows(4_300, 60, 8, density=0.05)
LOGISTIC: Params = {"objective": "binary:logistic", "max_depth": 4, "base_score": 0.5}
CLASSES: Params = {"objective": "multi:softprob", "num_class": 4, "max_depth": 3, "base_score": 0.5}
VECTORS: Params = {**CLASSES, "multi_strategy": "multi_output_tree"}
ABSOLUTE: Params = {"objective": "reg:absoluteerror", "max_depth": 3, "base_score": 1.0}
QUANTILES: Params = {"objective": "reg:quantileerror", "quantile_alpha": (0.2, 0.7), "max_depth": 3, "base_score": 1.0}
BEST_FIRST: Params = {"grow_policy": "lossguide", "max_depth": 0, "max_leaves": 11}
SYMMETRIC: Params = {"grow_policy": "symmetric", "max_depth": 3}
NEWTON, BY_WEIGHT = {"score_function": "newton"}, {"score_function": "l2"}
DRAWN: Params = {"subsample": 0.7, "colsample_bytree": 0.8}
RANKED: Params = {"objective": "rank:ndcg", "max_depth": 4}
MONOTONE: Params = {"monotone_constraints": (1, 0, -1, 0, 0, 0)}
CERTIFIED: Params = {"out_of_core": "certified"}
SAMPLED: Params = {"out_of_core": "sampled", "subsample": 0.3}

FITS: dict[str, Fit] = {
    # objectives
    "squared error": Fit({"max_depth": 4}),
    "squared error, large": Fit({"max_depth": 5}, LARGE, weighted=True),
    "logistic": Fit({**LOGISTIC, "scale_pos_weight": 1.7}, weighted=True),
    "logistic, large": Fit({**LOGISTIC, "scale_pos_weight": 1.7, "max_depth": 6}, LARGE),
    "logistic, automatic base score": Fit({**LOGISTIC, "base_score": None}, weighted=True),
    "shares": Fit({**LOGISTIC, "objective": "reg:logistic"}),
    "raw logits": Fit({**LOGISTIC, "objective": "binary:logitraw"}),
    "raw logits, automatic base score": Fit({"objective": "binary:logitraw", "max_depth": 3}),
    "softprob": Fit(CLASSES, weighted=True),
    "softprob, large": Fit({**CLASSES, **DRAWN}, LARGE, n_rounds=2),
    "softprob, automatic base score": Fit({**CLASSES, "base_score": None}, weighted=True),
    "softmax": Fit({**CLASSES, "objective": "multi:softmax"}),
    "poisson": Fit({"objective": "count:poisson", "max_depth": 4}),
    "poisson, large": Fit({"objective": "count:poisson", "max_depth": 4, "subsample": 0.5}, LARGE, weighted=True),
    "tweedie": Fit({"objective": "reg:tweedie", "tweedie_variance_power": 1.3, "max_depth": 4}, weighted=True),
    "gamma": Fit({"objective": "reg:gamma", "max_depth": 4}),
    "pseudo-Huber": Fit({"objective": "reg:pseudohubererror", "huber_slope": 0.5, "max_depth": 4, "base_score": 1.0}),
    "pseudo-Huber, automatic base score": Fit({"objective": "reg:pseudohubererror", "max_depth": 3}),
    "absolute error": Fit(ABSOLUTE, weighted=True),
    "absolute error, large": Fit({**ABSOLUTE, **DRAWN}, LARGE),
    "absolute error, automatic base score": Fit({**ABSOLUTE, "base_score": None}),
    "quantiles": Fit({**QUANTILES, "quantile_alpha": (0.1, 0.5, 0.9)}),
    "quantiles, automatic base score": Fit({**QUANTILES, "base_score": None}, weighted=True),
    "custom objective": Fit({"objective": doubled_squares, "max_depth": 4, "base_score": 0.0}, weighted=True),
    "rankings": Fit({**RANKED, "eval_metric": ["ndcg@5", "err", "query-auc"]}, how="evaluate", n_queries=40),
    "rankings, drawn queries": Fit({**RANKED, "subsample": 0.7, "sampling_unit": "group"}, n_queries=40),
    "rankings, drawn pairs": Fit(
        {**RANKED, **BEST_FIRST, "objective": "rank:pairwise", "lambdarank_pair_method": "mean"}, n_queries=40
    ),
    "base margin": Fit({**LOGISTIC, "max_depth": 3}, margin=True),
    # growth
    "deep": Fit({**LOGISTIC, "max_depth": 13}, n_rounds=2),
    "few leaves by levels": Fit({"max_depth": 6, "max_leaves": 9}),
    "best first": Fit({**LOGISTIC, **BEST_FIRST}),
    "best first, large": Fit({**LOGISTIC, **BEST_FIRST, **DRAWN}, LARGE, weighted=True),
    "best first by depth": Fit({**BEST_FIRST, "max_depth": 4, "max_leaves": 0}),
    "best first with the host": Fit({**LOGISTIC, **BEST_FIRST, "colsample_bylevel": 0.6}),
    "best first of classes": Fit({**CLASSES, **BEST_FIRST, "max_leaves": 6}, n_rounds=2),
    "symmetric": Fit({**LOGISTIC, **SYMMETRIC}),
    "symmetric, large": Fit({**LOGISTIC, **SYMMETRIC, **DRAWN}, LARGE, weighted=True),
    "symmetric by hessians": Fit({**LOGISTIC, **SYMMETRIC, **NEWTON}),
    "symmetric of classes": Fit({**CLASSES, **SYMMETRIC, "colsample_bynode": 0.6}, n_rounds=2),
    "by weight": Fit({**LOGISTIC, **BY_WEIGHT}, weighted=True),
    "by weight, large": Fit({**LOGISTIC, **BY_WEIGHT, **BEST_FIRST, "scale_pos_weight": 1.7}, LARGE, weighted=True),
    "by weight of classes": Fit({**CLASSES, **BY_WEIGHT}, n_rounds=2),
    # linear leaves
    "linear leaves": Fit({**LOGISTIC, "linear_leaves": True, "max_depth": 4}, LARGE, "evaluate", weighted=True),
    "linear leaves, small": Fit({"linear_leaves": True, **DRAWN}, n_chunks=2),
    "linear leaves, best first": Fit({"linear_leaves": True, **BEST_FIRST, "linear_lambda": 3.0}),
    "linear leaves, symmetric": Fit({**LOGISTIC, **SYMMETRIC, "linear_leaves": True}, weighted=True),
    "linear leaves of classes, sparse": Fit(
        {**CLASSES, "linear_leaves": True, "max_depth": 3}, SPARSE, encoding="csr", n_rounds=2
    ),
    "linear leaves, engines": Fit({**LOGISTIC, "linear_leaves": True, "max_depth": 4}, n_engines=2),
    # rules and draws
    "monotone": Fit({**LOGISTIC, **MONOTONE}),
    "monotone, best first": Fit({**MONOTONE, **BEST_FIRST}),
    "monotone, symmetric": Fit({**LOGISTIC, **MONOTONE, **SYMMETRIC}),
    "interactions": Fit({"interaction_constraints": [[0, 1, 2], [2, 3], [4, 5]], "max_depth": 5}),
    "ignored feature": Fit({"ignored_features": (0,), "max_depth": 4}),
    "penalties": Fit({**LOGISTIC, "reg_alpha": 0.8, "gamma": 0.4, "min_child_weight": 5.0, "reg_lambda": 0.2}),
    "small steps": Fit({**LOGISTIC, "max_delta_step": 0.2}),
    "all rules": Fit({**LOGISTIC, **MONOTONE, "reg_alpha": 0.5, "gamma": 0.2, "max_delta_step": 0.3}),
    "no penalty": Fit({**LOGISTIC, "reg_lambda": 0.0, "min_child_weight": 0.0, "learning_rate": 1.0}),
    "root lighter than min_child_weight": Fit({**LOGISTIC, "min_child_weight": 400.0}),
    "rows and columns": Fit({**LOGISTIC, **DRAWN, "colsample_bylevel": 0.7, "random_state": 5}),
    "columns of nodes": Fit({**DRAWN, "colsample_bynode": 0.6, "max_depth": 4}),
    # vectors in leaves
    "vectors": Fit(VECTORS, weighted=True),
    "vectors, large": Fit({**VECTORS, **DRAWN}, LARGE, n_rounds=2),
    "vectors, best first": Fit({**VECTORS, **BEST_FIRST, "max_leaves": 6}),
    "vectors, symmetric": Fit({**VECTORS, **SYMMETRIC}, n_rounds=2),
    "sketched vectors": Fit({**VECTORS, "sketch_outputs": 2}),
    "sketched vectors, large": Fit({**VECTORS, "sketch_outputs": 1, "subsample": 0.6}, LARGE, n_rounds=2),
    "vectors of quantiles": Fit({**QUANTILES, "multi_strategy": "multi_output_tree"}),
    # layouts
    "two bins": Fit(LOGISTIC, max_bin=2),
    "bins of two bytes": Fit(LOGISTIC, replace(SMALL, n_values=500), max_bin=400),
    "bins of two bytes, large": Fit({"max_depth": 4}, replace(LARGE, n_values=3_000), max_bin=1_000),
    "many features": Fit({**LOGISTIC, "max_depth": 3}, Rows(4_300, 20, n_values=60), max_bin=64, n_rounds=2),
    "many features of many bins": Fit({"max_depth": 3}, Rows(4_300, 37, n_values=400), max_bin=256, n_rounds=2),
    "tight bins": Fit({**LOGISTIC, **DRAWN}, packing="tight", n_chunks=2),
    "common bins": Fit({"max_depth": 4}, LARGE, packing="common"),
    "sparse": Fit(LOGISTIC, SPARSE, encoding="csr", n_chunks=2),
    "sparse stored dense": Fit({**CLASSES, **DRAWN}, SPARSE, encoding="dense", n_rounds=2),
    "dense stored sparse": Fit({**LOGISTIC, **BEST_FIRST}, encoding="csr"),
    "wide sparse, by histograms": Fit({**LOGISTIC, "max_depth": 3}, Rows(1_200, 300, density=0.25), encoding="csr"),
    "sorted entries": Fit({**LOGISTIC, **DRAWN}, WIDE, encoding="csr", by_entries=True),
    "sorted entries, large": Fit({"max_depth": 4}, LARGE_WIDE, weighted=True, encoding="csr", by_entries=True),
    "sorted entries, best first": Fit({**LOGISTIC, **BEST_FIRST}, WIDE, encoding="csr", by_entries=True),
    # many chunks, on disk, of several engines
    "chunks": Fit({**LOGISTIC, **DRAWN}, weighted=True, n_chunks=5),
    "chunks on disk": Fit(LOGISTIC, LARGE, n_chunks=4, on_disk=True),
    "streamed": Fit({**LOGISTIC, **DRAWN}, LARGE, n_chunks=4, on_disk=True, n_resident=1),
    "streamed, small": Fit({"max_depth": 3}, n_chunks=3, on_disk=True, n_resident=0),
    "streamed classes, sparse": Fit(CLASSES, SPARSE, encoding="csr", n_chunks=3, on_disk=True, n_resident=0),
    "streamed, best first": Fit({**ABSOLUTE, **BEST_FIRST}, n_chunks=3, on_disk=True, n_resident=1),
    "streamed vectors": Fit({**VECTORS, "sketch_outputs": 2}, n_chunks=3, on_disk=True, n_resident=1),
    "engines": Fit({**LOGISTIC, **DRAWN, "reduction": "coordinator"}, LARGE, weighted=True, n_engines=3),
    "engines that share histograms": Fit({**LOGISTIC, **DRAWN, "reduction": "peers"}, LARGE, n_engines=3, n_chunks=2),
    "engines of classes": Fit({**CLASSES, **SYMMETRIC, "reduction": "peers"}, n_engines=2, n_rounds=2),
    "engines of vectors": Fit({**VECTORS, **BEST_FIRST, "reduction": "peers"}, n_engines=2, n_rounds=2),
    "engines of quantiles": Fit({**QUANTILES, "reduction": "coordinator"}, n_engines=2, n_chunks=2, on_disk=True),
    # trees that grow on some of the rows
    "certified": Fit({**LOGISTIC, **CERTIFIED}, LARGE, "evaluate", n_chunks=4, on_disk=True),
    "certified without tolerance": Fit({**LOGISTIC, **CERTIFIED, "certify_tolerance": 0.0}, how="evaluate", n_chunks=3),
    "certified with little tolerance": Fit(
        {**CERTIFIED, "certify_tolerance": 0.05, "resident_share": 0.1, "max_depth": 5}, LARGE, "evaluate", n_chunks=3
    ),
    "certified, streamed": Fit({**LOGISTIC, **CERTIFIED, **DRAWN}, n_chunks=3, on_disk=True, n_resident=0),
    "certified classes, sparse": Fit({**CLASSES, **CERTIFIED}, SPARSE, encoding="csr", n_chunks=2, n_rounds=2),
    "certified poisson": Fit(
        {"objective": "count:poisson", "max_depth": 4, **CERTIFIED, "resident_share": 0.5, "reg_alpha": 0.2}, n_chunks=2
    ),
    "certified, of another scale": Fit(
        {**CERTIFIED, "resident_share": 0.1, "learning_rate": 1.0}, Rows(outlier=True), n_chunks=2, n_rounds=5
    ),
    "certified engines": Fit({**LOGISTIC, **CERTIFIED, "subsample": 0.8}, LARGE, n_engines=2, n_rounds=2),
    "certified custom objective": Fit(
        {"objective": doubled_squares, "max_depth": 3, "base_score": 0.0, **CERTIFIED}, n_chunks=2
    ),
    "sampled": Fit({**LOGISTIC, **SAMPLED}, LARGE, "evaluate", weighted=True, n_chunks=4, on_disk=True, n_resident=1),
    "sampled, small": Fit({**SAMPLED, "max_depth": 4, "colsample_bynode": 0.7}, n_chunks=2),
    "sampled again": Fit({**LOGISTIC, **SAMPLED, "learning_rate": 1.0}, how="evaluate", n_chunks=2),
    "sampled by weight": Fit({**LOGISTIC, **SAMPLED, **BY_WEIGHT}, weighted=True),
    "sampled classes, sparse": Fit({**CLASSES, **SAMPLED}, SPARSE, encoding="csr", n_rounds=2),
    "sampled, symmetric": Fit({**LOGISTIC, **SAMPLED, **SYMMETRIC}, n_chunks=2),
    "sampled absolute error": Fit({**ABSOLUTE, **SAMPLED}, n_chunks=2),
    "sampled vectors": Fit({**VECTORS, **SAMPLED, "sketch_outputs": 2}, n_chunks=2),
    "sampled engines": Fit({**LOGISTIC, **SAMPLED, **BEST_FIRST}, n_engines=2),
    # what is called
    "learning rates": Fit(LOGISTIC, how="schedule"),
    "scores": Fit({**LOGISTIC, "eval_metric": ["auc", "error", "logloss"]}, how="evaluate", weighted=True),
    "scores of classes": Fit({**CLASSES, "eval_metric": ["merror", "mlogloss"]}, how="evaluate"),
    "scores of regression": Fit({**ABSOLUTE, "eval_metric": ["rmse", "mae"]}, how="evaluate", n_engines=2),
    "early stopping": Fit({**LOGISTIC, "learning_rate": 1.0}, how="stop early", n_rounds=12),
    "early stopping, streamed": Fit(
        {**LOGISTIC, "learning_rate": 1.0}, how="stop early", n_chunks=3, on_disk=True, n_resident=0, n_rounds=12
    ),
    "continued": Fit({**LOGISTIC, **DRAWN}, how="continue"),
    "continued classes": Fit({**VECTORS, "max_depth": 2}, how="continue", n_chunks=2),
    "continued on margins": Fit({**LOGISTIC, **BEST_FIRST}, how="continue on margins"),
    "subset": Fit({**LOGISTIC, **DRAWN}, how="subset", weighted=True),
    "folds": Fit({**LOGISTIC, "max_depth": 3}, how="folds", n_rounds=2),
    "folds, streamed": Fit(
        {**LOGISTIC, "max_depth": 2}, how="folds", n_chunks=3, on_disk=True, n_resident=0, n_rounds=2
    ),
    "folds, certified": Fit({**LOGISTIC, **CERTIFIED, "max_depth": 3}, how="folds", n_chunks=2, n_rounds=2),
    "folds, sampled": Fit({**CLASSES, **SAMPLED, "max_depth": 2}, how="folds", n_chunks=2, n_rounds=2),
    "cross-validation": Fit({**LOGISTIC, "max_depth": 3, "eval_metric": ["auc", "logloss"]}, how="cv", n_rounds=4),
    "regressor": Fit({"max_depth": 4, **DRAWN}, how="regressor"),
    "classifier": Fit({**CLASSES, "max_depth": 2}, how="classifier", n_rounds=6),
}  # fmt: skip
"""The fits by name. A new path of a fit is a new line, and `--rewrite-golden` stores its trees."""

ON_CLUSTER = ("engines", "engines that share histograms", "engines of vectors", "certified engines", "sampled engines")
"""Fits that real workers do as well: their trees do not depend on how many there are."""


def hashed(stream: int, shape: tuple[int, ...], below: int) -> npt.NDArray[np.int64]:
    """Return integers in [0, below) that hash their places (SplitMix64; Steele, Lea and Flood, "Fast Splittable
    Pseudorandom Number Generators", 2014)."""
    with np.errstate(over="ignore"):
        z = (np.arange(np.prod(shape), dtype=np.uint64) + np.uint64(stream << 32)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) % np.uint64(below)).astype(np.int64).reshape(shape)


@dataclass(frozen=True)
class Table:
    """Rows of a data set: features, labels, and weights and base margins of fits that have them."""

    X: Any
    y: npt.NDArray[np.float32]
    weight: npt.NDArray[np.float32] | None
    base_margin: npt.NDArray[np.float32] | None
    qid: npt.NDArray[np.int64] | None


def table_of(fit: Fit, stream: int = 1, n_rows: int | None = None) -> Table:
    """Return a fit's rows, or `n_rows` others like them by another stream; the label depends on values, on what is
    missing, and on chance."""
    n, n_features = n_rows or fit.rows.n_rows, fit.rows.n_features
    values = hashed(stream, (n, n_features), fit.rows.n_values)
    chance = hashed(stream + 1, (n, n_features), 1_000)
    missing = chance < 300 * np.arange(n_features) // n_features  # none in the first feature
    signal = 40 * values // fit.rows.n_values
    if fit.rows.density < 1:
        missing = chance >= 1_000 * fit.rows.density
        signal = np.where(missing, 0, signal + 20)
    score = signal[:, 0] * signal[:, 1] // 40 + 2 * signal[:, 2] + signal[:, 3:].sum(axis=1) // 2
    score += 15 * missing[:, -1] + hashed(stream + 2, (n,), 30)
    X: Any = np.where(missing, np.float32(np.nan), (values / 4 - 1).astype(np.float32))
    if fit.rows.density < 1:
        X = scipy.sparse.csr_matrix(np.where(missing, 0, values + 1).astype(np.float32))
    y = labels_of(fit, score)
    if fit.rows.outlier:
        y[5] *= 256
    return Table(
        X, y,
        ((1 + hashed(stream + 3, (n,), 16)) / 8).astype(np.float32) if fit.weighted else None,
        (hashed(stream + 4, (n,), 9) / 4 - 1).astype(np.float32) if fit.margin else None,
        hashed(stream + 5, (n,), fit.n_queries) if fit.n_queries else None,
    )  # fmt: skip


def labels_of(fit: Fit, score: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Return labels that the fit's objective takes, by the scores or by their ranks."""
    rank = np.empty(len(score), np.int64)
    rank[np.argsort(score, kind="stable")] = np.arange(len(score))
    objective, n = str(fit.params.get("objective")), len(score)
    if objective.startswith("binary") or objective == "reg:logistic":
        labels = (rank > n // 3).astype(np.int64)
    elif objective.startswith("multi"):
        labels = rank * rank * fit.params["num_class"] // (n * n)  # the first class has most rows
    elif objective.startswith("rank"):
        labels = rank * rank * 5 // (n * n)  # most rows are of the least grade
    elif objective == "count:poisson":
        return (rank * 7 // n).astype(np.float32)
    elif objective in ("reg:gamma", "reg:tweedie"):
        return (np.maximum(rank * 40 // n - 10, objective == "reg:gamma") / 8).astype(np.float32)
    else:
        return (score / 32).astype(np.float32)
    return labels.astype(np.float32)


@dataclass(frozen=True)
class Outcome:
    """What a fit gives: models, several of folds, and their scores by evaluation set and metric."""

    models: list[Booster]
    scores: Scores


@contextmanager
def quantized(fit: Fit, directory: Path, *, client: Any = None, **how: Any) -> Iterator[QuantizedDataset]:
    """Quantize the fit's rows where it wants them; partitions go round its engines, or round a cluster's workers."""
    data = table_of(fit)
    X, n = data.X, len(data.y)
    given = {"y": data.y, "weight": data.weight, "base_margin": data.base_margin, "qid": data.qid}
    if fit.n_engines > 1:
        import dask.array as da

        edges = np.linspace(0, n, 2 * fit.n_engines + 2).astype(int)  # an odd number of partitions
        rows = tuple(np.diff(edges).tolist())
        X = da.from_array(X, chunks=(rows, X.shape[1]))
        given = {k: None if v is None else da.from_array(v, chunks=(rows,)) for k, v in given.items()}
    per_engine = n if fit.n_engines == 1 else n // (2 * fit.n_engines + 1)
    chunk_rows = per_engine if fit.n_chunks == 1 else -(-per_engine // fit.n_chunks)
    with QuantizedDataset.from_source(
        make_source(X, given["y"], weight=given["weight"], base_margin=given["base_margin"], qid=given["qid"]),
        BuildOptions(fit.max_bin, fit.encoding, fit.packing, chunk_rows), n_engines=1 if client else fit.n_engines,
        n_jobs=1, host_memory_limit=2 * n if fit.on_disk else None, spill_directory=directory if fit.on_disk else None,
        client=client, **how,
    ) as dataset:  # fmt: skip
        yield dataset


def run(fit: Fit, directory: Path, device: str, n_jobs: int = 1, client: Any = None) -> Outcome:
    """Do what the fit says on a device."""
    params = {**fit.params, "device": device, "n_jobs": n_jobs}
    if fit.how in ("regressor", "classifier"):
        return _estimated(fit, params)
    with ExitStack() as stack:
        dataset = stack.enter_context(quantized(fit, directory, client=client))
        if fit.how == "train":
            return Outcome([train(params, dataset, fit.n_rounds)], {})
        if fit.how == "schedule":
            rates = LearningRateSchedule(lambda i: 1 / (2 + i))
            return Outcome([train(params, dataset, fit.n_rounds, callbacks=[rates])], {})
        if fit.how == "continue":
            first = train(params, dataset, fit.n_rounds)
            scores: Scores = {}
            evals = [(dataset, "train")]
            return Outcome([train(params, dataset, 2, init_model=first, evals=evals, evals_result=scores)], scores)
        if fit.how == "continue on margins":
            first = train(params, dataset, fit.n_rounds)
            more = stack.enter_context(quantized(replace(fit, max_bin=16), directory, init_model=first))
            return Outcome([train(params, more, 2, init_model=first)], {})
        some = np.flatnonzero(hashed(9, (dataset.n_rows,), 3))
        if fit.how == "subset":
            return Outcome([train(params, dataset.subset(some), fit.n_rounds)], {})
        if fit.how == "folds":
            others = np.setdiff1d(np.arange(dataset.n_rows), some)
            folds = [(some, others), (others, some)]
            candidates = [params, {**params, "random_state": 7, "learning_rate": 0.5}]
            found = train_many(candidates, dataset, fit.n_rounds, folds=folds)
            scores = {f"model {i}": model.evals_result["valid"] for i, model in enumerate(found)}
            return Outcome([model.booster for model in found], scores)
        if fit.how == "cv":
            return Outcome([], {"cv": cv(params, dataset, fit.n_rounds, folds=3).to_dict("list")})
        return _evaluated(fit, params, dataset, stack)


def _evaluated(fit: Fit, params: Params, dataset: QuantizedDataset, stack: ExitStack) -> Outcome:
    """Train with the training set and another one evaluated; the fit may stop by the other one's last metric."""
    scores: Scores = {}
    unseen = table_of(fit, 20, 300)
    other = stack.enter_context(QuantizedDataset.from_source(
        make_source(unseen.X, unseen.y, weight=unseen.weight, qid=unseen.qid),
        BuildOptions(fit.max_bin, fit.encoding, "tight", 0),
        n_engines=fit.n_engines, n_jobs=1, reference=dataset,
    ))  # fmt: skip
    evals, stops = [(dataset, "train"), (other, "unseen")], 2 if fit.how == "stop early" else None
    model = train(params, dataset, fit.n_rounds, evals=evals, evals_result=scores, early_stopping_rounds=stops)
    return Outcome([model], scores)


def _estimated(fit: Fit, params: Params) -> Outcome:
    """Fit an estimator that stops early, a classifier with texts as labels and weights of classes."""
    seen, unseen = table_of(fit), table_of(fit, 20, 300)
    params = {**params, "n_estimators": fit.n_rounds, "max_bin": fit.max_bin, "early_stopping_rounds": 2}
    params["preset"] = "xgboost"
    if fit.how == "regressor":
        regressor = DaskBoostRegressor(**params).fit(seen.X, seen.y, eval_set=[(unseen.X, unseen.y)])
        return Outcome([regressor.booster_], regressor.evals_result())
    for name in ("objective", "num_class"):  # the classifier's own
        params.pop(name)
    y, other_y = (np.array(list("abcd"))[each.y.astype(int)] for each in (seen, unseen))
    classifier = DaskBoostClassifier(**params, class_weight="balanced").fit(seen.X, y, eval_set=[(unseen.X, other_y)])
    return Outcome([classifier.booster_], classifier.evals_result())
