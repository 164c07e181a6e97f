"""The one place where benchmarks call daskboost, on arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.real_sets import Part

Matrix = Any
"""A NumPy array or a scipy.sparse CSR matrix; for training and its peers on a GPU, CuPy's too."""
Vector = npt.NDArray[np.float32]


def quantize(
    x: Matrix, y: Vector, *, max_bin: int = 256, base_margin: Vector | None = None, reference: Any = None, **more: Any
) -> Any:
    """A QuantizedDataset of arrays in this process; with the cut points of `reference`, if it is given; `more` goes to
    `from_dask`."""
    from daskboost import QuantizedDataset

    cuts = {"max_bin": max_bin} if reference is None else {"reference": reference}
    return QuantizedDataset.from_dask(x, y, base_margin=base_margin, n_jobs=threads(), **cuts, **more)


@contextmanager
def _meanwhile(module: ModuleType, name: str, value: int) -> Iterator[None]:
    """Let a module's constant have another value meanwhile."""
    known = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, known)


def least_levels_of_pairs(n_levels: int) -> AbstractContextManager[None]:
    """Let data sets that are made meanwhile have pairs of columns of so many levels."""
    from daskboost.data.categories import combinations

    return _meanwhile(combinations, "LEAST_LEVELS", n_levels)


@contextmanager
def rows_of_frequent_levels(n_rows: int) -> Iterator[None]:
    """Let levels of so many rows be frequent meanwhile, whose statistics have all labels; with 0 rows are not read
    again for folds."""
    from daskboost.data.categories import encoder

    telling = encoder.TELLING if n_rows else 0
    with _meanwhile(encoder, "FREQUENT", n_rows), _meanwhile(encoder, "TELLING", telling):
        yield


def cross_validated(params: Mapping[str, Any], dataset: Any, rounds: int, folds: Any) -> Any:
    """The table of `daskboost.cv`."""
    import daskboost

    return daskboost.cv({"n_jobs": threads(), **params}, dataset, rounds, folds=folds)


def default_predictions(rows: Part, x: Any, is_binary: bool) -> Vector:
    """What a default classifier's chances of label 1 are, or a default regressor's predictions."""
    import daskboost

    if is_binary:
        found: Vector = daskboost.DaskBoostClassifier(n_jobs=threads()).fit(rows.x, rows.y).predict_proba(x)[:, 1]
        return found
    numbers: Vector = daskboost.DaskBoostRegressor(n_jobs=threads()).fit(rows.x, rows.y).predict(x)
    return numbers


def quantize_frame(x: Any, y: Vector, **options: Any) -> Any:
    """A QuantizedDataset of a frame in this process; `options` go to `QuantizedDataset`."""
    from daskboost import QuantizedDataset

    return QuantizedDataset.from_dask(x, y, n_jobs=threads(), **options)


def train(params: Mapping[str, Any], dataset: Any, rounds: int, **more: Any) -> Any:
    """A Booster trained in this process, on `threads()` threads; `more` goes to `daskboost.train`."""
    import daskboost

    return daskboost.train({"n_jobs": threads(), **params}, dataset, num_boost_round=rounds, **more)


def ranking(params: Mapping[str, Any], train: Part, test: Part, rounds: int) -> Vector:
    """Our scores of test rows."""
    import daskboost

    with daskboost.QuantizedDataset(train.x, train.y, qid=train.group) as data:
        booster = daskboost.train({"device": "cpu", "n_jobs": threads(), **params}, data, rounds)
    return np.asarray(booster.predict(test.x), np.float32)


def ranking_spread(params: Mapping[str, Any], train: Part, rounds: int) -> list[float]:
    """The largest gradient beside the root mean square of all, of the training rows before the first round and after
    the last."""
    assert train.group is not None
    spread = []
    for score in (np.zeros(len(train.y), np.float32), ranking(params, train, train, rounds)):
        g, h = np.empty_like(score), np.empty_like(score)
        query_gradients(params, train.y, train.group, "cpu")(score, g, h)
        spread.append(float(np.abs(g).max() / np.sqrt(np.mean(g.astype(np.float64) ** 2))))
    return spread


def query_gradients(params: Mapping[str, Any], y: Vector, qid: npt.NDArray[Any], device: str) -> Callable[..., None]:
    """Return what fills the gradients of rows of queries, ``fill(scores, g, h)``, float32 in the device's memory of
    shape (rows,); `y` and `qid` lie in the host's."""
    from daskboost.devices.choose import make_device
    from daskboost.devices.cpu.queries import Queries
    from daskboost.devices.cpu.threads import Threads
    from daskboost.devices.cpu.views import SlotLayout
    from daskboost.devices.losses import ListLoss, QueryLoss
    from daskboost.engine.query_rows import QueryRows
    from daskboost.objectives.objective_names import make_objective

    loss = make_objective(params["objective"], params).query_loss
    assert isinstance(loss, QueryLoss | ListLoss)
    layout = SlotLayout(np.array([0, 2], np.int64), np.array([2], np.int32))  # no histogram is built
    rows = QueryRows.of(qid.astype(np.int64), y, None)
    queries = Queries(rows.order, rows.begins, rows.label, rows.ids, rows.factors(by_weight=True))
    loops = make_device(device, layout, Threads(threads())).query_loops(loss, queries)
    return partial(loops.fill, np.uint64(0))


def classifier(**params: Any) -> Any:
    """A classifier that fits on `threads()` threads."""
    from daskboost import DaskBoostClassifier

    return DaskBoostClassifier(n_jobs=threads(), **params)


def train_folds(params: Mapping[str, Any], dataset: Any, rounds: int, folds: Any) -> Any:
    """A model for each fold, trained together."""
    import daskboost

    return daskboost.train_many({"n_jobs": threads(), **params}, dataset, rounds, folds=folds)


def score_function(params: Mapping[str, Any]) -> str:
    """What a fit with these parameters scores splits by: "newton" or "l2"."""
    from daskboost.objectives.objective import scores_weights
    from daskboost.objectives.objective_names import make_objective
    from daskboost.params import TrainParams

    chosen = TrainParams.from_mapping(params)
    return "l2" if scores_weights(chosen, make_objective(chosen.objective, params)) else "newton"


def predict(booster: Any, x: Matrix, base_margin: Vector | None = None) -> npt.NDArray[np.float64]:
    """Probabilities, means or values of each row, as `Booster.predict` gives them."""
    options = {} if base_margin is None else {"base_margin": base_margin}
    found = booster.predict(x, **options)
    return np.asarray(found.get() if hasattr(found, "get") else found, np.float64)


def as_bytes(booster: Any) -> bytes:
    """The model as XGBoost reads it."""
    found: bytes = booster.to_bytes()
    return found


def margins(booster: Any, x: Any, device: str = "auto") -> Any:
    """Margins of each row, in the memory that the rows lie in; `device` : where those of the host's are predicted."""
    return booster.predict(x, output="margin", device=device)


def random_model(n_features: int, n_trees: int, depth: int, n_bins: int = 256) -> Any:
    """A Booster of complete trees whose splits are drawn from `n_bins` quantile bins of normal features."""
    from statistics import NormalDist

    from daskboost.data.input.row_batch import FeatureSchema
    from daskboost.model.booster import Booster
    from daskboost.objectives.classification import Logistic
    from daskboost.tree.table import TreeTable

    rng, n = np.random.default_rng(0), 2 ** (depth + 1) - 1
    cuts = np.array([NormalDist().inv_cdf(i / n_bins) for i in range(1, n_bins)], np.float32)
    nodes = np.arange(n, dtype=np.int32)
    inner = nodes < n // 2
    trees = tuple(
        TreeTable(
            left_child=np.where(inner, 2 * nodes + 1, -1).astype(np.int32),
            right_child=np.where(inner, 2 * nodes + 2, -1).astype(np.int32),
            feature=np.where(inner, rng.integers(0, n_features, n), 0).astype(np.int32),
            split_bin=np.full(n, -1, np.int32),
            threshold=np.where(inner, rng.choice(cuts, n), 0).astype(np.float32),
            default_left=np.zeros(n, np.bool_),
            gain=inner.astype(np.float32),
            cover=np.ones(n, np.float32),
            value=rng.normal(scale=0.05, size=n).astype(np.float32),
        )
        for _ in range(n_trees)
    )
    return Booster(
        trees=trees, tree_outputs=(0,) * n_trees, iteration_indptr=tuple(range(n_trees + 1)), objective=Logistic(),
        base_score=(0.5,), schema=FeatureSchema(None, ("float",) * n_features),
    )  # fmt: skip


def threads() -> int:
    """Threads that every contender gets: the cores of this machine unless BENCH_THREADS says otherwise."""
    return int(os.environ.get("BENCH_THREADS", os.cpu_count() or 1))
