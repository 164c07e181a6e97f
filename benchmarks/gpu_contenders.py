"""Who takes part in a case of `gpu_speed`: ours and its peers, over the same rows, each a function that gives a `Run`.

A run of training is two fits, and its time that of the trees by which the longer one exceeds the shorter: what a fit
costs once, uploads and compilations included, counts for nobody. Models are scored once, after the first run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import ours, peers
from benchmarks.generators import WORKLOADS
from benchmarks.gpu_cases import Config, floor_of
from benchmarks.gpu_floors import Floor
from benchmarks.harness import Contender, Run, timed
from benchmarks.sparse_rows import SPARSE_WORKLOADS

Scores = Mapping[str, float]
VECTOR_LEAVES = " vector leaves"
"""Behind a library's name: one tree a round, with a value of each class in its leaves."""
SKETCH = " sketch"
"""Behind vector leaves: their splits are searched on combinations of the classes' gradients."""
SKETCH_OUTPUTS = 8
"""So many of them."""
VECTORS = {"multi_strategy": "multi_output_tree"}
UNWATCHED = " unwatched"
"""What follows a library's name in that of the same fit without metrics of an evaluation set."""
METRIC_TOLERANCE = 1e-5
"""How far a metric of a fit's history may be from the naive one of the same rows."""


@dataclass(frozen=True)
class Rows:
    """Training and test rows of a case, where they were made."""

    x: Any
    y: Any
    x_test: Any
    y_test: Any
    synchronize: Callable[[], Any]
    """Waits for what runs on the device."""

    def on_host(self) -> Rows:
        return Rows(host(self.x), host(self.y), host(self.x_test), host(self.y_test), self.synchronize)


def host(array: Any) -> Any:
    """A CuPy array or matrix in the host's memory; NumPy's and scipy's as they are."""
    return array.get() if hasattr(array, "get") else array


def array_module(device: str) -> Any:
    if device == "cpu":
        return np
    import cupy

    return cupy


@functools.lru_cache(maxsize=1)
def make_rows(workload: str, n_rows: int, n_features: int, test_rows: int, device: str, draw: int = 0) -> Rows:
    """Rows on the device, other ones in each draw; those of the last case are kept for the next."""
    xp = array_module(device)
    found = SPARSE_WORKLOADS[workload] if workload in SPARSE_WORKLOADS else WORKLOADS[workload].wide(n_features)
    first = draw * (n_rows + test_rows)
    train, test = found.rows(n_rows, first=first, xp=xp), found.rows(test_rows, first=first + n_rows, xp=xp)
    return Rows(*train, *test, (lambda: None) if xp is np else xp.cuda.Device().synchronize)


def scores(
    label: npt.NDArray[np.float32], prediction: npt.NDArray[Any], quantiles: tuple[float, ...] = ()
) -> dict[str, float]:
    """AUC and log-loss of probabilities; of many classes, whose probabilities are columns, log-loss alone; of
    quantiles, columns as well, the mean pinball loss."""
    if quantiles:
        above = label[:, None].astype(np.float64) - prediction
        return {"pinball": float(np.maximum(np.array(quantiles) * above, (np.array(quantiles) - 1) * above).mean())}
    p = np.clip(prediction.astype(np.float64), 1e-15, 1 - 1e-15)
    if p.ndim == 2:
        return {"logloss": float(-np.log(p[np.arange(len(p)), label.astype(np.int64)]).mean())}
    from sklearn.metrics import roc_auc_score

    loss = -np.where(label > 0, np.log(p), np.log1p(-p)).mean()
    return {"auc": float(roc_auc_score(label, p)), "logloss": float(loss)}


History = dict[str, dict[str, list[float]]]
"""Evaluation set -> metric -> a value per round."""


def training(
    trees: int, rows: Rows, train: Callable[[int], Any], predict: Callable[[Any], Any], draw: int = 0,
    short: int | None = None, score: Callable[[Any, Any], dict[str, float]] = scores,
) -> Contender:  # fmt: skip
    """A contender that trains so many trees; both functions are of one library. Only the first draw's time is taken.
    `short` : trees of the fit whose time is left out; 0 for none, by default a fifth."""
    short = max(1, trees // 5) if short is None else short
    found: dict[str, float] = {}

    def fit(n: int) -> Any:
        model = train(n)
        rows.synchronize()
        return model

    def run() -> Run:
        first = timed(lambda: fit(short))[0] if draw == 0 and short else 0.0
        second, model = timed(lambda: fit(trees))
        if not found:
            found.update(score(host(rows.y_test), host(predict(model))))
        return Run((second - first) / (trees - short), found)

    return run


def check_history(history: History, naive: Mapping[str, float]) -> None:
    """Compare the last metrics of each evaluation set with those that were computed of predictions.

    Raises
    ------
    AssertionError
        One is further off than `METRIC_TOLERANCE`.
    """
    for metrics in history.values():
        for metric, values in metrics.items():
            if abs(values[-1] - naive[metric]) > METRIC_TOLERANCE:
                raise AssertionError(f"{metric} is {naive[metric]} of the predictions, but {values[-1]} in the history")


def contenders(config: Config, ours_on: str, draw: int = 0) -> Iterator[tuple[str, Callable[[], Contender]]]:
    """Names and what makes each contender; ours first. Making one quantizes its rows."""
    rows = make_rows(config.workload, config.n_rows, config.n_features, config.test_rows, config.device, draw)
    given = rows.on_host() if "host" in (ours_on, config.per_row and config.sparse_on) else rows
    make = {"train": _trainers, "fit": _trainers, "quantize": _quantizers, "predict": _predictors}[config.kind]
    yield from make(config, rows, given, draw).items()


def floor_of_contender(name: str, config: Config) -> Floor:
    """The least time of what a contender of ours does."""
    return floor_of(config, SKETCH_OUTPUTS if name.endswith(SKETCH) else config.n_outputs)


def vector_leaves(config: Config) -> dict[str, dict[str, Any]]:
    """Ours, and their parameters beside the case's."""
    found: dict[str, dict[str, Any]] = {"daskboost" + VECTOR_LEAVES: VECTORS}
    if config.n_classes > SKETCH_OUTPUTS:
        found["daskboost" + VECTOR_LEAVES + SKETCH] = {**VECTORS, "sketch_outputs": SKETCH_OUTPUTS}
    return found


Makers = dict[str, Callable[[], Contender]]


def _trainers(config: Config, rows: Rows, given: Rows, draw: int) -> Makers:
    params, short = config.params(), config.short_trees
    metrics = {"eval_metric": list(config.eval_metric)} if config.eval_metric else {}

    def watching(matrix: Callable[..., Any], data: Any, seen: Rows) -> tuple[History, dict[str, Any]]:
        """Where metrics go, and what a library's `train` takes for it."""
        history: History = {}
        some = slice(0, config.eval_rows)
        test = matrix(seen.x_test[some], seen.y_test[some], max_bin=config.max_bin, reference=data)
        return history, {"evals": [(test, "test")], "evals_result": history}

    def scored(history: History) -> Callable[[Any, Any], dict[str, float]]:
        def score(label: Any, prediction: Any) -> dict[str, float]:
            if history:
                check_history(history, scores(label[: config.eval_rows], prediction[: config.eval_rows]))
            return scores(label, prediction, config.quantiles)

        return score

    def own(is_watched: bool = bool(metrics), **more: Any) -> Contender:
        data = ours.quantize(given.x, given.y, max_bin=config.max_bin)
        given_params = {**params, "score_function": config.score_function, **(metrics if is_watched else {}), **more}
        history, watched = watching(ours.quantize, data, given) if is_watched else ({}, {})
        return training(
            config.trees, rows, lambda n: ours.train(given_params, data, n, **watched),
            lambda m: ours.predict(m, given.x_test), draw, short, scored(history),
        )  # fmt: skip

    def xgboost(**more: Any) -> Contender:
        seen = rows.on_host() if config.per_row else rows
        matrix = peers.xgboost_matrix(seen.x, seen.y, max_bin=config.max_bin)
        history, watched = watching(peers.xgboost_matrix, matrix, seen) if metrics else ({}, {})
        if config.quantiles:
            return training(
                config.trees, rows, lambda n: [
                    peers.xgboost_train({**params, "quantile_alpha": one}, matrix, n) for one in config.quantiles
                ], lambda fits: np.stack([peers.xgboost_predict(m, seen.x_test) for m in fits], axis=1), draw, short,
                scored(history),
            )  # fmt: skip
        return training(
            config.trees, rows, lambda n: peers.xgboost_train({**params, **metrics, **more}, matrix, n, **watched),
            lambda m: peers.xgboost_predict(m, seen.x_test), draw, short, scored(history),
        )  # fmt: skip

    def catboost() -> Contender:
        seen = rows.on_host()
        pool = peers.catboost_pool(seen.x, seen.y, config.max_bin - 1, config.device)
        fit = functools.partial(
            peers.catboost_train, pool, config.max_depth, config.learning_rate, config.device,
            config.peer_score_function,
        )  # fmt: skip
        return training(config.trees, rows, fit, lambda m: peers.catboost_predict(m, seen.x_test), draw)

    others: Makers = {"catboost": catboost, "daskboost" + UNWATCHED: functools.partial(own, False)}
    found: Makers = {"daskboost": own, config.peer: others.get(config.peer, xgboost)}
    if config.n_classes > 2:
        found |= {name: functools.partial(own, **more) for name, more in vector_leaves(config).items()}
        found["xgboost" + VECTOR_LEAVES] = functools.partial(xgboost, **VECTORS)
    return found


def _quantizers(config: Config, rows: Rows, given: Rows, _: int) -> Makers:
    def quantizing(quantize: Callable[[], Any]) -> Contender:
        def run() -> Run:
            seconds, _ = timed(lambda: (quantize(), rows.synchronize()))
            return Run(seconds, {})

        return run

    return {
        "daskboost": lambda: quantizing(lambda: ours.quantize(given.x, given.y, max_bin=config.max_bin)),
        "xgboost": lambda: quantizing(lambda: peers.xgboost_matrix(rows.x, rows.y, max_bin=config.max_bin)),
    }


def _predictors(config: Config, rows: Rows, given: Rows, _: int) -> Makers:
    """Both predict by the same model, which ours has trained."""
    model = functools.cache(
        lambda: ours.train(config.params(), ours.quantize(given.x, given.y, max_bin=config.max_bin), config.trees)
    )

    def predicting(predict: Callable[[Any], Any], x: Any) -> Contender:
        found: dict[str, float] = {}

        def run() -> Run:
            seconds, prediction = timed(lambda: (predict(x), rows.synchronize())[0])
            if not found:
                some = slice(0, config.test_rows)
                found.update(scores(host(rows.y[some]), host(prediction[some])))
            return Run(seconds, found)

        return run

    return {
        "daskboost": lambda: predicting(model().predict, given.x),
        "xgboost": lambda: predicting(peers.xgboost_predictor(ours.as_bytes(model()), config.device), rows.x),
    }
