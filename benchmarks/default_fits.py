"""Every library's model of a real set at its own defaults, through the estimator that its users call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.ours import threads
from benchmarks.real_sets import Loaded, Part, categories_of, with_texts

Predicted = npt.NDArray[np.float64]
DefaultFit = Callable[[Loaded, int], tuple[Callable[[], Any], Callable[[Any], Predicted]]]
"""Takes a set and a seed, and returns what fits a model, which is timed, and what predicts the test rows by it."""


def probabilities(model: Any, data: Loaded, x: Any, labels: Any = None) -> Predicted:
    """Probabilities of class 1, or of all classes of the set: 0 of those that no training row has; `labels` are those
    of the model's columns where it was given others."""
    found = np.asarray(model.predict_proba(x), np.float64)
    if data.info.task == "binary":
        return found[:, 1]
    every = np.zeros((len(found), data.n_classes))
    every[:, np.asarray(model.classes_ if labels is None else labels).astype(np.int64)] = found
    return every


def ours(data: Loaded, seed: int) -> tuple[Callable[[], Any], Callable[[Any], Predicted]]:
    """Ours: no parameter but the seed and the threads, and the objective of counts."""
    from daskboost import DaskBoostClassifier, DaskBoostRanker, DaskBoostRegressor

    own, test = data.train, data.test
    common: dict[str, Any] = {"random_state": seed, "n_jobs": threads()}
    if data.info.task == "ranking":
        return (lambda: DaskBoostRanker(**common).fit(own.x, own.y, qid=own.group)), lambda model: model.predict(test.x)
    if data.info.task in ("binary", "multiclass"):
        return (lambda: DaskBoostClassifier(**common).fit(own.x, own.y)), lambda model: probabilities(
            model, data, test.x
        )
    regressor = DaskBoostRegressor(objective=data.info.objective, **common)
    return (lambda: regressor.fit(own.x, own.y, base_margin=own.base_margin)), lambda model: np.asarray(
        model.predict(test.x, base_margin=test.base_margin), np.float64
    )


def xgboost(data: Loaded, seed: int) -> tuple[Callable[[], Any], Callable[[Any], Predicted]]:
    """XGBoost's defaults."""
    from xgboost import XGBClassifier, XGBRanker, XGBRegressor

    own, test = data.train, data.test
    common: dict[str, Any] = {"random_state": seed, "n_jobs": threads(), "enable_categorical": True}
    if data.info.task == "ranking":
        return (lambda: XGBRanker(**common).fit(own.x, own.y, qid=own.group)), lambda model: model.predict(test.x)
    if data.info.task in ("binary", "multiclass"):
        labels, codes = np.unique(own.y, return_inverse=True)  # it wants labels without gaps
        return (lambda: XGBClassifier(**common).fit(own.x, codes)), lambda model: probabilities(
            model, data, test.x, labels
        )
    regressor = XGBRegressor(objective=data.info.objective, **common)
    return (lambda: regressor.fit(own.x, own.y, base_margin=own.base_margin)), lambda model: np.asarray(
        model.predict(test.x, base_margin=test.base_margin), np.float64
    )


def lightgbm(data: Loaded, seed: int) -> tuple[Callable[[], Any], Callable[[Any], Predicted]]:
    """LightGBM's defaults."""
    from lightgbm import LGBMClassifier, LGBMRanker, LGBMRegressor

    own, test = data.train, data.test
    common: dict[str, Any] = {"random_state": seed, "n_jobs": threads(), "verbose": -1}
    if data.info.task == "ranking":
        sizes = run_lengths(own.group)
        return (lambda: LGBMRanker(**common).fit(own.x, own.y, group=sizes)), lambda model: model.predict(test.x)
    if data.info.task in ("binary", "multiclass"):
        return (lambda: LGBMClassifier(**common).fit(own.x, own.y)), lambda model: probabilities(model, data, test.x)
    if data.info.task == "count":
        counts = LGBMRegressor(objective="poisson", **common)
        return (lambda: counts.fit(own.x, own.y, init_score=own.base_margin)), lambda model: np.exp(
            np.asarray(model.predict(test.x, raw_score=True), np.float64)
        ) * exposure(test)
    return (lambda: LGBMRegressor(**common).fit(own.x, own.y)), lambda model: model.predict(test.x)


def catboost(data: Loaded, seed: int) -> tuple[Callable[[], Any], Callable[[Any], Predicted]]:
    """CatBoost's defaults."""
    from catboost import CatBoostClassifier, CatBoostRanker, CatBoostRegressor, Pool

    columns = categories_of(data.train.x)
    own, test = (with_texts(part, columns) for part in (data.train, data.test))
    common: dict[str, Any] = {
        "random_seed": seed, "thread_count": threads(), "logging_level": "Silent", "allow_writing_files": False,
    }  # fmt: skip
    if data.info.task == "ranking":
        return (lambda: CatBoostRanker(**common).fit(own.x, own.y, group_id=own.group)), lambda model: model.predict(
            test.x
        )
    kept: dict[str, Any] = {"cat_features": columns or None}
    if data.info.task in ("binary", "multiclass"):
        classifier = CatBoostClassifier(**common)
        return (lambda: classifier.fit(own.x, own.y, **kept)), lambda model: probabilities(model, data, test.x)
    regressor = CatBoostRegressor(loss_function="Poisson" if data.info.task == "count" else "RMSE", **common)

    def predicted(model: Any) -> Predicted:
        if data.info.task != "count":
            return np.asarray(model.predict(test.x), np.float64)
        pool = Pool(test.x, cat_features=columns, baseline=test.base_margin)
        return np.exp(np.asarray(model.predict(pool, prediction_type="RawFormulaVal"), np.float64))

    return (lambda: regressor.fit(own.x, own.y, baseline=own.base_margin, **kept)), predicted


def chimeraboost(data: Loaded, seed: int) -> tuple[Callable[[], Any], Callable[[Any], Predicted]]:
    """ChimeraBoost's defaults, which rank nothing; counts are rates weighted by what is exposed, the same loss."""
    from chimeraboost import ChimeraBoostClassifier, ChimeraBoostRegressor

    columns = categories_of(data.train.x)
    own, test = (dense(with_texts(part, columns)) for part in (data.train, data.test))
    common: dict[str, Any] = {
        "random_state": seed, "thread_count": threads(), "cat_features": positions(data.train.x, columns),
    }  # fmt: skip
    if data.info.task in ("binary", "multiclass"):
        classifier = ChimeraBoostClassifier(**common)
        return (lambda: classifier.fit(own.x, own.y)), lambda model: probabilities(model, data, test.x)
    if data.info.task == "count":
        exposed, rates = exposure(own), ChimeraBoostRegressor(loss="Poisson", **common)
        return (lambda: rates.fit(own.x, own.y / exposed, sample_weight=exposed)), lambda model: (
            np.asarray(model.predict(test.x), np.float64) * exposure(test)
        )
    return (lambda: ChimeraBoostRegressor(**common).fit(own.x, own.y)), lambda model: model.predict(test.x)


def exposure(part: Part) -> Predicted:
    """What rates of rows are multiplied by."""
    assert part.base_margin is not None
    return np.exp(part.base_margin.astype(np.float64))


def dense(part: Part) -> Part:
    """The same rows as an array: of frames with texts an array of objects, of sparse ones with zeros."""
    import pandas as pd

    if isinstance(part.x, pd.DataFrame):
        return replace(part, x=part.x.to_numpy(dtype=object))
    return replace(part, x=part.x.toarray()) if hasattr(part.x, "toarray") else part


def positions(x: Any, columns: Sequence[str]) -> list[int] | None:
    """Places of columns of a frame; None where there are none."""
    return [list(x.columns).index(name) for name in columns] or None


def run_lengths(group: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    """Numbers of rows of queries, which follow one another."""
    assert group is not None
    ends = np.flatnonzero(np.diff(group, append=group[-1] + 1)) + 1
    return np.diff(ends, prepend=0)


LIBRARIES: Mapping[str, DefaultFit] = {
    "ours": ours, "xgboost": xgboost, "lightgbm": lightgbm, "catboost": catboost, "chimeraboost": chimeraboost,
}  # fmt: skip
