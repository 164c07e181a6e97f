"""A fit in two parts is the fit in one part, to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies.rows import classes, regression

from daskboost import Booster, Checkpoint, QuantizedDataset, train
from daskboost.errors import DataError, ParameterError
from daskboost.training.callbacks import Callback, RoundInfo

PARAMS: dict[str, Any] = {
    "subsample": 0.7, "colsample_bytree": 0.8, "colsample_bynode": 0.8, "max_depth": 3, "n_jobs": 1
}  # fmt: skip
LABELS = {"reg:squarederror": regression, "reg:absoluteerror": regression, "multi:softprob": classes}


class Interrupt(Callback):
    """Raises after a round, as Ctrl-C would."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def after_round(self, info: RoundInfo) -> bool:
        if info.iteration == self.iteration:
            raise KeyboardInterrupt
        return False


def params_of(objective: str, **more: Any) -> dict[str, Any]:
    return {**PARAMS, "objective": objective, **({"num_class": 3} if objective.startswith("multi") else {}), **more}


@pytest.mark.parametrize("objective", LABELS)
@pytest.mark.parametrize("grow_policy", ["depthwise", "symmetric"])
def test_fifty_and_fifty_rounds_on_one_data_set_are_a_hundred(objective: str, grow_policy: str) -> None:
    X, y = LABELS[objective]()
    params = params_of(objective, grow_policy=grow_policy)
    with QuantizedDataset.from_dask(X, y, max_bin=32) as data:
        whole = train(params, data, 100)
        first = train(params, data, 50)
        second = train(params, data, 50, init_model=first)
    assert second.to_bytes() == whole.to_bytes()
    assert first.to_bytes() != whole.to_bytes()


@pytest.mark.parametrize("objective", LABELS)
def test_data_that_starts_from_the_margins_of_a_model_continues_it(objective: str) -> None:
    X, y = LABELS[objective]()
    with QuantizedDataset.from_dask(X, y) as data:
        whole = train(params_of(objective), data, 12)
        first = train(params_of(objective), data, 6)
    with QuantizedDataset.from_dask(X, y, init_model=first) as rest:
        second = train(params_of(objective), rest, 6, init_model=Booster.from_bytes(first.to_bytes()))
    assert second.to_bytes() == whole.to_bytes()


def test_other_rows_may_continue_a_model() -> None:
    X, y = regression()
    more_X, more_y = regression(400, seed=1)
    with QuantizedDataset.from_dask(X, y) as data:
        first = train(PARAMS, data, 5)
    with QuantizedDataset.from_dask(more_X, more_y, init_model=first) as rest:
        second = train(PARAMS, rest, 5, init_model=first)
    assert second.n_iterations == 10
    assert second.trees[:5] == first.trees
    before, after = (np.mean((model.predict(more_X) - more_y) ** 2) for model in (first, second))
    assert after < 0.8 * before


@pytest.mark.parametrize("early", [None, 3])
def test_a_checkpoint_resumes_as_if_nothing_had_happened(tmp_path: Path, early: int | None) -> None:
    X, y = regression(300)
    valid_X, valid_y = regression(200, seed=7)
    path = tmp_path / "model.ubj"
    params = {**PARAMS, "learning_rate": 0.9}
    with (
        QuantizedDataset.from_dask(X, y) as data,
        QuantizedDataset.from_dask(valid_X, valid_y, reference=data) as valid,
    ):
        options: dict[str, Any] = {"evals": [(valid, "valid")], "early_stopping_rounds": early}
        whole = train(params, data, 40, **options)
        stop_at = max(3, (whole.best_iteration or 20) + 1)
        with pytest.raises(KeyboardInterrupt):
            train(params, data, 40, callbacks=[Checkpoint(path, period=1), Interrupt(stop_at)], **options)
        saved = Booster.load_model(path)
        resumed = train(params, data, 40 - saved.n_iterations, init_model=saved, **options)
    assert saved.n_iterations == stop_at + 1
    assert resumed.to_bytes() == whole.to_bytes()
    assert (resumed.best_iteration, resumed.best_score) == (whole.best_iteration, whole.best_score)
    if early is not None:
        assert whole.n_iterations < 40, "early stopping had nothing to count"
    assert [file.name for file in tmp_path.iterdir()] == ["model.ubj"]


def test_a_continued_model_keeps_its_own_attributes() -> None:
    X, y = regression(100)
    with QuantizedDataset.from_dask(X, y) as data:
        first = train(PARAMS, data, 2)
        named = Booster(
            first.trees, first.tree_outputs, first.iteration_indptr, first.objective, first.base_score, first.schema,
            {"owner": "me", "best_iteration": "1", "best_score": "0.5"}, first.params,
        )  # fmt: skip
        assert train(PARAMS, data, 1, init_model=named).attributes == {"owner": "me"}


def test_a_model_that_the_data_cannot_continue_is_refused() -> None:
    X, y = regression(200)
    with QuantizedDataset.from_dask(X, y) as data:
        model = train(PARAMS, data, 3)
        with pytest.raises(ParameterError, match=r"init_model was trained for 'reg:squarederror' with 1 outputs"):
            train({**PARAMS, "objective": "reg:absoluteerror"}, data, 3, init_model=model)
        two = Booster(model.trees * 2, (0, 0, 0, 1, 1, 1), (0, 2, 4, 6), model.objective, (1.0, 2.0), model.schema)
        with pytest.raises(ParameterError, match=r"with 2 outputs, the fit is for 'reg:squarederror' with 1;"):
            train(PARAMS, data, 3, init_model=two)
    with QuantizedDataset.from_dask(X[:, :4], y) as narrow:
        with pytest.raises(DataError, match=r"init_model has 5 features, the training data 4"):
            train(PARAMS, narrow, 3, init_model=model)
    with QuantizedDataset.from_dask(X * 2 + 0.1, y) as other:
        with pytest.raises(ParameterError, match=r"no cut point of this QuantizedDataset; .*init_model=model"):
            train(PARAMS, other, 3, init_model=model)
