"""The one place where benchmarks call the other libraries."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.ours import Matrix, Vector, threads
from benchmarks.real_sets import Part


def xgboost_matrix(
    x: Matrix, y: Vector, *, max_bin: int = 256, base_margin: Vector | None = None, reference: Any = None
) -> Any:
    """XGBoost's quantized matrix, the counterpart of a QuantizedDataset; `reference` : whose cut points it has."""
    import xgboost

    return xgboost.QuantileDMatrix(
        x, y, base_margin=base_margin, max_bin=max_bin, nthread=threads(), ref=reference, enable_categorical=True
    )  # fmt: skip


def xgboost_query_matrix(x: Matrix, y: Vector, qid: npt.NDArray[np.int32]) -> Any:
    """XGBoost's quantized matrix of rows of queries, which follow one another."""
    import xgboost

    return xgboost.QuantileDMatrix(x, y, qid=qid, max_bin=256, nthread=threads())


def xgboost_streamed(blocks: Iterable[tuple[Matrix, Vector]], *, max_bin: int, host_ratio: float, page_bytes: int,
                     folder: str, device: str) -> Any:  # fmt: skip
    """XGBoost's external memory: quantized pages of blocks that are made anew whenever it reads them.

    On a GPU pages of at least `page_bytes` are kept in pinned memory of the host, all but a share of `1 - host_ratio`,
    which is cached on the device; a CPU has them in files in `folder`.
    """
    import xgboost

    class Blocks(xgboost.DataIter):
        def __init__(self) -> None:
            super().__init__(
                cache_prefix=os.path.join(folder, "xgboost"), on_host=True, min_cache_page_bytes=page_bytes
            )
            self._left = iter(blocks)

        def next(self, input_data: Callable[..., Any]) -> bool:
            found = next(self._left, None)
            if found is not None:
                input_data(data=found[0], label=found[1])
            return found is not None

        def reset(self) -> None:
            self._left = iter(blocks)

    of_gpus = {"cache_host_ratio": host_ratio} if device == "cuda" else {}
    with _pooled(device):
        return xgboost.ExtMemQuantileDMatrix(Blocks(), max_bin=max_bin, nthread=threads(), **of_gpus)


def xgboost_train_streamed(params: Mapping[str, Any], matrix: Any, rounds: int) -> Any:
    """The same as `xgboost_train` on external memory."""
    with _pooled(params["device"]):
        return xgboost_train(params, matrix, rounds)


def _pooled(device: str) -> AbstractContextManager[Any]:
    """XGBoost asks for a pool of the GPU's memory where pages are made and freed all the time."""
    import xgboost

    return xgboost.config_context(use_cuda_async_pool=True) if device == "cuda" else nullcontext()


def xgboost_train(params: Mapping[str, Any], matrix: Any, rounds: int, **more: Any) -> Any:
    """A Booster of XGBoost's histogram method on `threads()` threads; `more` goes to `xgboost.train`."""
    import xgboost

    own = {"tree_method": "hist", "nthread": threads(), **params}
    if groups := params.get("interaction_constraints"):
        own["interaction_constraints"] = str(groups)  # a list would have to name features
    return xgboost.train(own, matrix, num_boost_round=rounds, verbose_eval=False, **more)


def xgboost_classifier(**params: Any) -> Any:
    """A classifier that fits on `threads()` threads."""
    import xgboost

    return xgboost.XGBClassifier(tree_method="hist", n_jobs=threads(), **params)


def xgboost_predict(booster: Any, x: Matrix, base_margin: Vector | None = None) -> npt.NDArray[np.float64]:
    """Probabilities, means or values of each row."""
    import xgboost

    return np.asarray(booster.predict(xgboost.DMatrix(x, base_margin=base_margin, enable_categorical=True)), np.float64)


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


def catboost_category_pool(x: Any, y: Vector, categories: Sequence[str]) -> Any:
    """CatBoost's pool of a frame, of which some columns hold categories."""
    import catboost

    return catboost.Pool(x, y, cat_features=list(categories), thread_count=threads())


def catboost_query_pool(x: Matrix, y: Vector, qid: npt.NDArray[np.int32], borders: int, device: str) -> Any:
    """CatBoost's quantized pool of rows of queries, which follow one another."""
    import catboost

    pool = catboost.Pool(x, y, group_id=qid, thread_count=threads())
    pool.quantize(border_count=borders, task_type=_task_type(device))
    return pool


def catboost_tree_seconds(train: Callable[..., Any], rounds: int) -> tuple[float, Any]:
    """Seconds of a tree after the first fifth of them, and the model; `train` : fits so many rounds, with options."""
    with TemporaryDirectory() as folder:
        model = train(rounds, allow_writing_files=True, train_dir=folder)
        ends = catboost_round_ends(Path(folder))
    short = max(1, rounds // 5)
    return float(ends[-1] - ends[short - 1]) / (rounds - short), model


def catboost_round_ends(folder: Path) -> npt.NDArray[np.float64]:
    """Seconds from the start of boosting to the end of each round, of a fit that wrote its files to `folder`."""
    lines = (folder / "time_left.tsv").read_text().splitlines()[1:]
    return np.array([float(line.split("\t")[1]) for line in lines]) / 1e3


def catboost_train(pool: Any, depth: int, learning_rate: float, device: str, score: str, rounds: int, **more: Any
                   ) -> Any:  # fmt: skip
    """A model of symmetric trees whose work is like ours: one Newton step a tree, no samples, no noise on scores.

    The learning curve is computed in the first and the last round alone, and half of the GPU is left to others. `more`
    goes to CatBoost.
    """
    return _catboost_fit(
        pool, device, rounds, loss_function="Logloss", depth=depth, learning_rate=learning_rate, score_function=score,
        leaf_estimation_method="Newton", **more,
    )  # fmt: skip


def catboost_rank(pool: Any, loss: str, depth: int, learning_rate: float, device: str, rounds: int, **more: Any) -> Any:
    """A model that ranks, otherwise as that of `catboost_train`; scores and leaves are those of the loss's defaults."""
    return _catboost_fit(pool, device, rounds, loss_function=loss, depth=depth, learning_rate=learning_rate, **more)


def _catboost_fit(pool: Any, device: str, rounds: int, **params: Any) -> Any:
    import catboost

    on_gpu = {"devices": "0", "gpu_ram_part": 0.5} if device == "cuda" else {"thread_count": threads()}
    return catboost.CatBoost({
        "iterations": rounds, "l2_leaf_reg": 1.0, "boosting_type": "Plain", "bootstrap_type": "No",
        "random_strength": 0, "leaf_estimation_iterations": 1, "metric_period": rounds,
        "task_type": _task_type(device), "logging_level": "Silent", "allow_writing_files": False, **on_gpu, **params,
    }).fit(pool)  # fmt: skip


def catboost_predict(model: Any, x: Matrix) -> npt.NDArray[np.float64]:
    """Probabilities of class 1."""
    return np.asarray(model.predict(x, prediction_type="Probability", thread_count=threads())[:, 1], np.float64)


def catboost_scores(task: str, params: Mapping[str, Any], train: Part, test: Part, categories: Sequence[str],
                    rounds: int) -> npt.NDArray[np.float64]:  # fmt: skip
    """Probabilities, means or values of the test rows, of a model whose other parameters are CatBoost's defaults.

    `categories` : columns of frames that hold categories, as texts or integers, none of which is missing.
    """
    import catboost

    loss, output = {
        "binary": ("Logloss", "Probability"), "multiclass": ("MultiClass", "Probability"),
        "regression": ("RMSE", "RawFormulaVal"), "count": ("Poisson", "RawFormulaVal"),
    }[task]  # fmt: skip
    pools = [
        catboost.Pool(part.x, part.y, cat_features=list(categories), baseline=part.base_margin, thread_count=threads())
        for part in (train, test)
    ]
    model = catboost.CatBoost({
        "loss_function": loss, "iterations": rounds, "thread_count": threads(), "logging_level": "Silent",
        "allow_writing_files": False, **params,
    }).fit(pools[0])  # fmt: skip
    found = np.asarray(model.predict(pools[1], prediction_type=output, thread_count=threads()), np.float64)
    if task == "count":  # of rows with a baseline, which margins begin at
        return np.exp(found)
    return found[:, 1] if task == "binary" else found


def lightgbm_scores(task: str, params: Mapping[str, Any], train: Part, test: Part, rounds: int
                    ) -> npt.NDArray[np.float64]:  # fmt: skip
    """Probabilities, means or values of the test rows; columns of pandas' categories are categorical."""
    import lightgbm

    objective = {"count": "poisson"}.get(task, task)
    data = lightgbm.Dataset(train.x, train.y, init_score=train.base_margin)
    own = {"objective": objective, "num_threads": threads(), "verbose": -1, **params}
    booster = lightgbm.train(own, data, num_boost_round=rounds)
    found = np.asarray(booster.predict(test.x, raw_score=test.base_margin is not None), np.float64)
    return found if test.base_margin is None else np.exp(found + test.base_margin)


def xgboost_ranking(params: Mapping[str, Any], train: Part, test: Part, rounds: int) -> Vector:
    """XGBoost's scores of test rows, ranked by its histogram method."""
    import xgboost

    matrix = xgboost.DMatrix(train.x, train.y, qid=train.group, nthread=threads())
    booster = xgboost_train(params, matrix, rounds)
    return np.asarray(booster.predict(xgboost.DMatrix(test.x, nthread=threads())), np.float32)


def lightgbm_ranking(params: Mapping[str, Any], train: Part, test: Part, rounds: int) -> Vector:
    """LightGBM's scores of test rows; rows of a query follow each other."""
    import lightgbm

    sizes = np.unique(np.asarray(train.group), return_counts=True)[1]
    own = {"num_threads": threads(), "verbosity": -1, "deterministic": True, **params}
    booster = lightgbm.train(own, lightgbm.Dataset(train.x, train.y, group=sizes), num_boost_round=rounds)
    return np.asarray(booster.predict(test.x), np.float32)


def catboost_ranking(params: Mapping[str, Any], train: Part, test: Part, rounds: int) -> Vector:
    """CatBoost's scores of test rows; rows of a query follow each other."""
    import catboost

    pool = catboost.Pool(train.x, train.y, group_id=train.group, thread_count=threads())
    model = catboost.CatBoost({
        "iterations": rounds, "thread_count": threads(), "allow_writing_files": False, "logging_level": "Silent",
        **params,
    })  # fmt: skip
    return np.asarray(model.fit(pool).predict(test.x), np.float32)


def _task_type(device: str) -> str:
    return "GPU" if device == "cuda" else "CPU"
