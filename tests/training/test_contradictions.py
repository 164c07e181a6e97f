"""Arguments that contradict each other: refused by name and before any row is trained on, or read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask import delayed
from strategies.rows import classes, regression

from daskboost import (
    Booster,
    Checkpoint,
    DaskBoostClassifier,
    DaskBoostRegressor,
    LearningRateSchedule,
    ProgressBar,
    QuantizedDataset,
    train,
)
from daskboost.errors import DataError, DataTypeError, ParameterError
from daskboost.objectives.regression import SquaredError
from daskboost.params import TrainParams

X, Y = regression(60, 3)
CODES = classes(60, 3)[1]


@pytest.fixture(scope="module")
def data() -> QuantizedDataset:
    return QuantizedDataset.from_dask(X, Y, max_bin=32)


VECTORS = {
    "objective": "reg:quantileerror", "quantile_alpha": [0.1, 0.9], "multi_strategy": "multi_output_tree",
}  # fmt: skip


def unread() -> Any:
    """A Dask Array that nobody may compute."""

    def fail(block: Any) -> NoReturn:
        raise AssertionError("a row was read")

    return da.from_array(X, chunks=20).map_blocks(fail, dtype=X.dtype, meta=np.empty((0, 0)))


@pytest.mark.parametrize(("params", "message"), [
    ({"scale_pos_weight": 3}, r"scale_pos_weight=3 has no effect with objective='reg:squarederror'; it is of binary"),
    ({"quantile_alpha": 0.3, "eval_metric": "quantile"}, r"quantile_alpha=\(0.3,\) has no effect .*quantile@0.1,0.9"),
    ({"huber_slope": 2}, "huber_slope=2 has no effect .*'reg:pseudohubererror'"),
    ({"tweedie_variance_power": 1.2}, "tweedie_variance_power=1.2 has no effect .*'reg:tweedie'"),
    ({"device": "cpu", "device_memory_limit": "2kB"}, "device_memory_limit=2000 is only read on GPUs"),
    ({"num_class": 3}, "num_class=3 has no effect with objective='reg:squarederror'; .*'multi:softprob'"),
    ({"max_bin": 64}, r"max_bin=64 contradicts dtrain, .* max_bin=32; .*from_dask\(..., max_bin=64\)"),
    ({"chunk_rows": 64}, r"chunk_rows=64 contradicts dtrain, .* chunk_rows=\d+; .*from_dask\(..., chunk_rows=64\)$"),
    ({"host_memory_limit": "2kB"}, r"host_memory_limit=2000 contradicts dtrain, .*=None; .*from_dask\(.*\) or .open"),
    ({"spill_directory": "d"}, r"spill_directory='d' contradicts dtrain, .*=None; .*from_dask\(.*\) or .open"),
    ({"encoding": "csr"}, "unknown parameter 'encoding'; it is an argument of QuantizedDataset.from_dask"),
    ({"eval_metric": ["rmse", "mae", "rmse"]}, "eval_metric has 'rmse' twice"),
    ({"eval_metric": "mlogloss"}, r"eval_metric='mlogloss' does not suit objective 'reg:squarederror' with 1 output"),
    (
        {"objective": "reg:quantileerror", "quantile_alpha": [0.1, 0.9], "eval_metric": "mae"},
        "eval_metric='mae' does not suit objective 'reg:quantileerror' with 2 output",
    ),
    (
        {"objective": "reg:absoluteerror", "monotone_constraints": {"f1": -1}},
        "monotone_constraints contradicts objective='reg:absoluteerror'.*use 'reg:pseudohubererror'",
    ),
    ({"objective": "reg:quantileerror", "monotone_constraints": "(0,1,0)"}, "monotone_constraints contradicts"),
    ({"multi_strategy": "multi_output"}, "multi_strategy='multi_output' must be one of .*mean 'multi_output_tree'"),
    ({"sketch_outputs": -1}, r"sketch_outputs=-1 must lie in \[0"),
    ({"sketch_outputs": 1.5}, "sketch_outputs=1.5 must be an integer"),
    ({"sketch_outputs": 1}, "sketch_outputs=1 has no effect: objective 'reg:squarederror' has a single output"),
    (
        {**VECTORS, "objective": "reg:squarederror", "quantile_alpha": 0.5, "sketch_outputs": 1},
        "sketch_outputs=1 has no effect: objective 'reg:squarederror' has a single output",
    ),
    ({**VECTORS, "multi_strategy": "one_output_per_tree", "sketch_outputs": 1}, "set multi_strategy='multi_output_tre"),
    ({**VECTORS, "sketch_outputs": 2}, "sketch_outputs=2 must be less than the 2 outputs of .*'reg:quantileerror'"),
])  # fmt: skip
def test_parameters(params: dict[str, Any], message: str, data: QuantizedDataset) -> None:
    with pytest.raises(ParameterError, match=message):
        train(params, data, 2, evals=[(data, "train")])


def test_vectors_keep_no_monotone_constraint() -> None:
    data = QuantizedDataset.from_dask(X, CODES)
    params = {"objective": "multi:softprob", "num_class": 3, "multi_strategy": "multi_output_tree"}
    with pytest.raises(ParameterError, match="monotone_constraints contradicts multi_strategy='multi_output_tree'"):
        train({**params, "monotone_constraints": [0, 1, 0]}, data, 1)
    assert train({**params, "monotone_constraints": [0, 0, 0]}, data, 1).has_vectors


def test_a_model_goes_on_with_leaves_of_its_kind() -> None:
    data = QuantizedDataset.from_dask(X, CODES)
    params = {"objective": "multi:softprob", "num_class": 3}
    vectors = {**params, "multi_strategy": "multi_output_tree"}
    with pytest.raises(ParameterError, match=r"leaves of init_model are not vectors .* those of the fit are; use the"):
        train(vectors, data, 1, init_model=train(params, data, 1))
    with pytest.raises(ParameterError, match=r"leaves of init_model are vectors .* those of the fit are not; use the"):
        train(params, data, 1, init_model=train(vectors, data, 1))
    assert train(vectors, data, 1, init_model=train(params, data, 0)).has_vectors  # no trees, no leaves


def test_estimators_refuse_vectors_before_they_read() -> None:
    y = da.from_array(CODES, chunks=20)
    for params in ({"sketch_outputs": 2}, {"multi_strategy": "multi_output_tree", "sketch_outputs": 3}):
        with pytest.raises(ParameterError, match="sketch_outputs="):
            DaskBoostClassifier(**params).fit(unread(), y)


@pytest.mark.parametrize("params", [
    {"max_bin": 32}, {"num_class": 1}, {"objective": "reg:absoluteerror", "monotone_constraints": [0, 0, 0]},
    {"objective": "reg:quantileerror", "quantile_alpha": 0.3}, {"objective": "reg:pseudohubererror", "huber_slope": 2},
    {"objective": lambda label, margin: (margin - label, np.ones_like(margin)), "quantile_alpha": 0.3},
])  # fmt: skip
def test_parameters_that_go_together(params: dict[str, Any], data: QuantizedDataset) -> None:
    assert train(params, data, 1).n_iterations == 1


@pytest.mark.parametrize("opened", [False, True])
def test_parameters_of_the_data_set_may_be_repeated(opened: bool, tmp_path: Path) -> None:
    storage: dict[str, Any] = {"host_memory_limit": "1 MB", "spill_directory": tmp_path}
    made: dict[str, Any] = {"max_bin": 32, "chunk_rows": 7}
    with QuantizedDataset.from_dask(X, Y, **made, **({} if opened else storage)) as data:
        data.save(tmp_path / "saved")
        with QuantizedDataset.open(tmp_path / "saved", **storage) if opened else data as rows:
            bins = {"max_bin": 32}
            model = train(bins, rows, 1)
            nothing = {"chunk_rows": 0, "host_memory_limit": None, "spill_directory": None}
            for params in ({**made, **storage}, {**storage, "spill_directory": f"{tmp_path}/"}, nothing):
                assert train(params | bins, rows, 1) == model
            for params in ({"chunk_rows": 8}, {"host_memory_limit": 10**6 + 1}, {"spill_directory": "elsewhere"}):
                with pytest.raises(ParameterError, match=f"{next(iter(params))}=.* contradicts dtrain"):
                    train(params, rows, 1)


@pytest.mark.parametrize("evals", ["pair", "one", "mapping", "number"])
def test_evals(evals: str, data: QuantizedDataset) -> None:
    given: dict[str, Any] = {"pair": (data, "v"), "one": [data], "mapping": {"v": data}, "number": [(data, 3)]}
    with pytest.raises(ParameterError, match=r"evals=.*: give a list of pairs of a data set and its name"):
        train({}, data, 1, evals=given[evals])


def test_init_model_may_be_a_path_or_an_estimator(tmp_path: Path, data: QuantizedDataset) -> None:
    first = train({}, data, 2)
    first.save_model(tmp_path / "m.ubj")
    estimator = DaskBoostRegressor(n_estimators=2, max_bin=32).fit(X, Y)
    six = train({}, data, 3)
    for given in (first, tmp_path / "m.ubj", str(tmp_path / "m.ubj"), estimator):
        assert train({}, data, 1, init_model=given) == six
    with pytest.raises(ParameterError, match="init_model is int; pass a Booster"):
        train({}, data, 1, init_model=3)


def test_callbacks(tmp_path: Path, data: QuantizedDataset) -> None:
    with pytest.raises(ParameterError, match=r"callbacks=.*must be a list of callbacks"):
        train({}, data, 1, callbacks=ProgressBar())  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"callbacks=.*must be a list of callbacks"):
        DaskBoostRegressor(callbacks=ProgressBar()).fit(X, Y)
    with pytest.raises(ParameterError, match=r"LearningRateSchedule\('fast'\): give a sequence"):
        train({}, data, 1, callbacks=[LearningRateSchedule("fast")])  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"Checkpoint\(path=.*: there is no such directory"):
        train({}, data, 1, callbacks=[Checkpoint(tmp_path / "none" / "m.ubj")])


@pytest.mark.parametrize(("params", "message"), [
    ({"importance_type": "gains"}, "importance_type='gains' must be one of 'weight'"),
    ({"eval_metric": "mlogloss"}, "eval_metric='mlogloss' does not suit"),
    ({"scale_pos_weight": 3}, "scale_pos_weight=3 has no effect"),
    ({"objective": "reg:absoluteerror", "monotone_constraints": [1]}, "monotone_constraints contradicts"),
])  # fmt: skip
def test_estimators_refuse_before_they_read(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        DaskBoostRegressor(**params).fit(unread(), da.from_array(Y, chunks=20))


@pytest.mark.parametrize("verbose", [-1, 1.5, "yes"])
def test_verbose(verbose: Any) -> None:
    with pytest.raises(ParameterError, match=f"verbose={verbose!r} must be True, False or a number of rounds"):
        DaskBoostRegressor(n_estimators=1).fit(X, Y, verbose=verbose)


def test_evaluation_sets_are_judged_before_training_rows_are_read() -> None:
    y = da.from_array(Y, chunks=20)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    for bad, error, message in (
        ((X[:, :2], Y), DataError, "X has 2 features"),
        ((X, Y[:50]), DataError, "y has 50 rows, but X has 60"),
        ((frame.assign(b="x"), Y), DataTypeError, "'f1' is of type str, but held numbers in training"),
    ):
        with pytest.raises(error, match=message):
            DaskBoostRegressor().fit(unread(), y, eval_set=[(X, Y), bad])
    unread_frame = dd.from_pandas(frame, npartitions=2).map_partitions(lambda part: 1 / 0, meta=frame)
    with pytest.raises(DataError, match="lacks 1 of the 3 feature columns used in training: 'b'"):
        DaskBoostRegressor().fit(
            unread_frame, dd.from_pandas(pd.Series(Y), npartitions=2), eval_set=[(frame[["a", "c"]], Y)]
        )


def test_labels_of_local_evaluation_sets_are_judged_before_training_rows_are_read(tmp_path: Path) -> None:
    pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=CODES).to_parquet(tmp_path / "valid.parquet")
    two, counts = da.from_array(np.minimum(CODES, 1), chunks=20), da.from_array(np.abs(Y), chunks=20)
    missing = np.where(CODES == 1, np.nan, np.abs(Y))
    for model, y, bad, message in (
        (DaskBoostClassifier(), two, (X, CODES), r"y has labels that are not among the 2 classes: 2"),
        (DaskBoostClassifier(), two, (tmp_path / "valid.parquet", "y"), r"y has labels that are not among the 2"),
        (DaskBoostRegressor(objective="count:poisson"), counts, (X, Y), "label -.* is out of range for objective"),
        (DaskBoostRegressor(), counts, (X, missing), "y has .* missing values"),
        (DaskBoostRegressor(), counts, (X, CODES.astype(str)), "y is of type .*Use DaskBoostClassifier"),
    ):
        with pytest.raises(DataError, match=rf"^eval_set\[1\]: {message}"):
            model.fit(unread(), y, eval_set=[(X, np.minimum(CODES, 1)), bad])


def test_labels_out_of_range_are_refused_after_one_read() -> None:
    def reads(objective: str) -> int:
        seen: list[int] = []  # appended to by Dask's threads

        def counted(block: np.ndarray) -> np.ndarray:
            seen.append(len(block))
            return block

        rows = da.from_array(X, chunks=(20, 3)).map_blocks(counted, dtype=X.dtype, meta=np.empty((0, 0)))
        try:
            DaskBoostRegressor(objective=objective, n_estimators=1).fit(rows, da.from_array(Y, chunks=20))
        except DataError as error:
            assert re.match("label -.* is out of range for objective 'count:poisson'", str(error))
        return len(seen)

    assert reads("count:poisson") == 3
    assert reads("reg:squarederror") == 6  # a read for the cut points, one to quantize


def test_a_parameter_of_two_classes_is_refused_for_three() -> None:
    with pytest.raises(ParameterError, match="scale_pos_weight=2 has no effect with objective='multi:softprob'"):
        DaskBoostClassifier(scale_pos_weight=2).fit(X, CODES)
    model = DaskBoostClassifier(scale_pos_weight=2, n_estimators=1).fit(X, CODES > 0)
    assert isinstance(model.booster_, Booster)


@dataclass(frozen=True)
class Particular(SquaredError):
    """A loss that needs weights, and refuses deep trees."""

    needs: ClassVar[tuple[str, ...]] = ("label", "weight")

    def check_params(self, params: TrainParams) -> None:
        super().check_params(params)
        if params.max_depth > 5:
            raise ParameterError(f"max_depth={params.max_depth} is too deep for this loss; give 5")


def test_objectives_say_what_does_not_go_with_them(data: QuantizedDataset) -> None:
    with pytest.raises(DataError, match="dtrain has no weights; make it with weight"):
        train({"max_depth": 5}, data, 1, objective=Particular())
    with QuantizedDataset.from_dask(X, Y, weight=Y**2) as weighted:
        assert len(train({"max_depth": 5}, weighted, 1, objective=Particular()).trees) == 1
        with pytest.raises(ParameterError, match="max_depth=6 is too deep for this loss"):
            train({}, weighted, 1, objective=Particular())
    with pytest.raises(ParameterError, match="max_depth=6 is too deep for this loss"):
        DaskBoostRegressor(objective=Particular()).fit(unread(), unread()[:, 0])


@pytest.mark.parametrize(("objective", "score", "message"), [
    ("binary:logistic", 2, r"base_score=2\.0 must lie in \[0, 1\]"),
    ("count:poisson", 1e-300, r"base_score=0\.0 must be above 0"),
    ("reg:squarederror", 1e39, r"base_score=1e\+39 must lie in \(-3\.40282e\+38, 3\.40282e\+38\)"),
])  # fmt: skip
def test_base_scores_that_no_model_holds_are_refused_before_rows_are_read(
    objective: str, score: float, message: str
) -> None:
    def never() -> NoReturn:
        raise AssertionError("read")

    lazy = da.from_delayed(delayed(never)(), (60, 3), np.float32)
    with pytest.raises(ParameterError, match=message):
        DaskBoostRegressor(objective=objective, base_score=score).fit(lazy, da.zeros(60))
    with QuantizedDataset.from_dask(X, np.ones(60)) as ones, pytest.raises(ParameterError, match=message):
        train({"objective": objective, "base_score": score}, ones, 1)
