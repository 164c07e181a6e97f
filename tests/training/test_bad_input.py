"""Bad input through the public functions: messages name what is wrong and how to mend it, and nothing stays behind."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from strategies.rows import classes, regression

from daskboost import DaskBoostClassifier, DaskBoostRegressor, QuantizedDataset, train
from daskboost.errors import DataError, DataTypeError, ParameterError

X, Y = regression(60, 3)
CODES = classes(60, 3)[1]
FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=Y, w=1.0)


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No file in the directory for temporary ones, no thread of ours."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(threading.enumerate())
    yield
    assert list(tmp_path.iterdir()) == []
    ours = [t for t in set(threading.enumerate()) - before if "daskboost" in t.name.lower()]
    assert ours == []


class Bad(NamedTuple):
    """A call that must fail, and the message."""

    call: Callable[[], Any]
    error: type[Exception]
    message: str


def fitted(**params: Any) -> Callable[[], Any]:
    return lambda: train(params, QuantizedDataset.from_dask(X, Y), 2)


def labelled(labels: Any, **params: Any) -> Callable[[], Any]:
    return lambda: train(params, QuantizedDataset.from_dask(X, labels), 2)


def made(*args: Any, **kwargs: Any) -> Callable[[], Any]:
    return lambda: QuantizedDataset.from_dask(*args, **kwargs)


def changed(values: Any, at: Any, value: Any) -> Any:
    copy = values.copy()
    copy[at] = value
    return copy


PARAMETERS = {
    "unknown": Bad(fitted(max_dept=2), ParameterError, r"unknown parameter 'max_dept'; did you mean 'max_depth'"),
    "unknown and far": Bad(fitted(qqq=1), ParameterError, r"unknown parameter 'qqq'; valid names are base_score, "),
    "two names": Bad(fitted(eta=0.1, learning_rate=0.1), ParameterError, r"'eta' and 'learning_rate' are two names"),
    "range": Bad(fitted(learning_rate=0), ParameterError, r"learning_rate=0 must lie in \(0, 1\]"),
    "range of bins": Bad(made(X, Y, max_bin=1), ParameterError, r"max_bin=1 must be an integer from 2 to 65535"),
    "integer": Bad(fitted(max_depth=2.5), ParameterError, r"max_depth=2.5 must be an integer"),
    "number": Bad(fitted(reg_lambda="1"), ParameterError, r"reg_lambda='1' must be a number"),
    "choice": Bad(fitted(grow_policy="deptwise"), ParameterError, r"grow_policy='deptwise' .*did you mean 'depthwise'"),
    "endless": Bad(fitted(grow_policy="lossguide", max_depth=0), ParameterError, r"needs max_leaves or max_depth"),
    "contradiction": Bad(
        fitted(grow_policy="symmetric", max_leaves=8), ParameterError, r"max_leaves=8 contradicts .*max_depth instead"
    ),
    "depth": Bad(fitted(max_depth=40), ParameterError, r"max_depth=40 .*between 1 and 24; use grow_policy='lossguide'"),
    "objective": Bad(fitted(objective="reg:squarederor"), ParameterError, r"did you mean 'reg:squarederror'"),
    "metric": Bad(fitted(eval_metric="rmes"), ParameterError, r"metric 'rmes' is unknown; did you mean 'rmse'"),
    "classes": Bad(fitted(objective="multi:softprob"), ParameterError, r"num_class=None: .*give num_class"),
    "quantile": Bad(fitted(quantile_alpha=2), ParameterError, r"quantile_alpha=\(2.0,\): .*between 0 and 1"),
    "base score": Bad(
        labelled(CODES > 0, objective="binary:logistic", base_score=2), ParameterError,
        r"base_score=.*2.* must lie in \[0, 1\] for objective 'binary:logistic'",
    ),
    "memory": Bad(made(X, Y, host_memory_limit="lots"), ParameterError, r"host_memory_limit='lots' is not a size"),
    "monotone": Bad(fitted(monotone_constraints=[0] * 4), ParameterError, r"monotone_constraints has 4 .*for 3"),
    "monotone name": Bad(fitted(monotone_constraints={"q": 1}), ParameterError, r"monotone_constraints.*'q'"),
    "interaction": Bad(fitted(interaction_constraints=[[0, 9]]), ParameterError, r"interaction_constraints.*9"),
    "rounds": Bad(lambda: train({}, QuantizedDataset.from_dask(X, Y), -1), ParameterError, r"num_boost_round=-1"),
    "no data set": Bad(lambda: train({}, X, 1), ParameterError, r"dtrain is ndarray; pass a QuantizedDataset"),  # type: ignore[arg-type]
}  # fmt: skip

INPUT = {
    "column of mixed types": Bad(made(FRAME.assign(a=pd.Series(["x", 1] * 30, dtype=object)), "y"), DataTypeError,
                                 "column 'a' mixes"),
    "object column": Bad(made(FRAME.assign(b=[{}] * 60), "y"), DataTypeError, "'b' holds {} of type dict"),
    "dates": Bad(made(FRAME.assign(c=pd.Timestamp(0)), "y"), DataTypeError, r"'c' \(datetime64.*turn dates into"),
    "text array": Bad(made(X.astype(str), Y), DataTypeError, r"X is an array of type <U.*not a number"),
    "infinite": Bad(made(changed(X, (3, 1), np.inf), Y), DataError, r"infinite or too large .* in: 'f1'. Replace them"),
    "negative weight": Bad(made(X, Y, weight=changed(Y * 0, 3, -1)), DataError, r"weight.*(-1|negative)"),
    "weight of NaN": Bad(made(X, Y, weight=changed(Y * 0 + 1, 3, np.nan)), DataError, r"weight"),
    "no weight": Bad(made(X, Y, weight=Y * 0), DataError, r"weight is 0 in all 60 rows"),
    "missing label": Bad(made(X, changed(Y, 3, np.nan)), DataError, r"y has 1 missing values.*Drop these rows"),
    "infinite label": Bad(made(X, changed(Y, 3, np.inf)), DataError, r"y has 1 values that are infinite"),
    "huge label": Bad(labelled(changed(Y, 3, 1e30)), DataError, r"label 1e\+30 is too large"),
    "label of logistic": Bad(
        labelled(CODES, objective="binary:logistic"), DataError,
        r"label 2 is out of range for objective 'binary:logistic'.*use DaskBoostClassifier",
    ),
    "label of Poisson": Bad(fitted(objective="count:poisson"), DataError, r"label -.* for objective 'count:poisson'"),
    "class": Bad(
        labelled(CODES, objective="multi:softprob", num_class=2), DataError,
        r"label 2 is out of range for objective 'multi:softprob'.*raise num_class",
    ),
    "no label": Bad(labelled(None), DataError, r"dtrain has no labels; make it with y"),
    "text label": Bad(made(X, ["a", "b"] * 30), DataTypeError, r"y is of type <U1.*Use DaskBoostClassifier"),
    "label column": Bad(made(FRAME, "z"), DataError, r"y is 'z', but X has no such column"),
    "length of y": Bad(made(X, Y[:50]), DataError, r"y has 50 rows, but X has 60"),
    "length of weight": Bad(made(X, Y, weight=Y[:50]), DataError, r"weight has 50 rows, but X has 60"),
    "partitions of y": Bad(
        made(dd.from_pandas(FRAME[["a", "b"]], npartitions=3), dd.from_pandas(FRAME["y"], npartitions=2)), DataError,
        r"y has 2 partitions.*X has 3|X has 3 partitions.*y has 2",
    ),
    "lengths of partitions": Bad(
        made(da.from_array(X, chunks=(20, 3)), da.from_array(Y, chunks=30)), DataError, r"y"
    ),
    "no rows": Bad(made(X[:0], Y[:0]), DataError, r"X has 0 rows. Pass at least one row"),
    "no rows in any partition": Bad(
        made(dd.from_pandas(FRAME, npartitions=2).query("a > 1e9"), "y"), DataError, r"X has no rows in any partition"
    ),
    "no columns": Bad(made(X[:, :0], Y), DataError, r"X has 0 columns. Pass at least one feature"),
    "no columns but y": Bad(made(FRAME[["y"]], "y"), DataError, r"X has no feature columns; it has 'y'"),
    "twice a column": Bad(made(FRAME.set_axis(list("aacyw"), axis=1), "y"), DataError, r"duplicate column names: 'a'"),
    "one dimension": Bad(made(Y, Y), DataError, r"X has 1 dimension\(s\), but must have 2"),
    "kind": Bad(made({"a": [1]}, [1]), DataTypeError, r"X is of type builtins.dict, which is not supported"),
    "base margin": Bad(made(X, Y, base_margin=changed(Y, 3, np.nan)), DataError, r"base_margin has 1 missing values"),
    "evaluation set": Bad(
        lambda: train({}, QuantizedDataset.from_dask(X, Y), 1, evals=[(made(-X, Y)(), "v")]), DataError,
        r"evaluation set 'v' has cut points of its own; .*reference=dtrain",
    ),
    "names of sets": Bad(
        lambda: (lambda d: train({}, d, 1, evals=[(d, "v"), (d, "v")]))(QuantizedDataset.from_dask(X, Y)),
        ParameterError, r"evals has two sets of one name",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def regressor() -> DaskBoostRegressor:
    return DaskBoostRegressor(n_estimators=3, n_jobs=1).fit(FRAME[["a", "b", "c"]], Y)


@pytest.mark.parametrize("case", PARAMETERS)
def test_a_bad_parameter(case: str) -> None:
    check(PARAMETERS[case])


@pytest.mark.parametrize("case", INPUT)
def test_bad_input(case: str) -> None:
    check(INPUT[case])


def check(bad: Bad) -> None:
    with pytest.raises(bad.error, match=bad.message):
        bad.call()


@pytest.mark.parametrize("lazy", [False, True])
def test_columns_missing_at_predict(regressor: DaskBoostRegressor, lazy: bool) -> None:
    frame = dd.from_pandas(FRAME, npartitions=2) if lazy else FRAME
    with pytest.raises(DataError, match=r"X lacks 1 of the 3 feature columns used in training: 'b'. It has: 'a', 'c'"):
        regressor.predict(frame[["a", "c"]])


@pytest.mark.parametrize("lazy", [False, True])
def test_columns_of_another_type_at_predict(regressor: DaskBoostRegressor, lazy: bool) -> None:
    texts = FRAME.assign(b="x")
    with pytest.raises(DataTypeError, match=r"'b' is of type str(ing)?, but held numbers in training"):
        regressor.predict(dd.from_pandas(texts, npartitions=2) if lazy else texts)


@pytest.mark.parametrize("lazy", [False, True])
def test_reordered_and_further_columns_are_matched_by_name(regressor: DaskBoostRegressor, lazy: bool) -> None:
    shuffled = FRAME[["c", "w", "a", "y", "b"]]
    found = regressor.predict(dd.from_pandas(shuffled, npartitions=2) if lazy else shuffled)
    np.testing.assert_array_equal(np.asarray(found), regressor.predict(FRAME[["a", "b", "c"]]))


def test_another_number_of_columns_at_predict(regressor: DaskBoostRegressor) -> None:
    with pytest.raises(DataError, match=r"X has 2 features, but DaskBoostRegressor is expecting 3 features as input"):
        regressor.predict(X[:, :2])
    with pytest.raises(DataError, match=r"X has 2 features, but 3 were used in training \('a', 'b', 'c'\)"):
        regressor.booster_.predict(X[:, :2])


def test_infinite_values_at_predict(regressor: DaskBoostRegressor) -> None:
    with pytest.raises(DataError, match=r"infinite or too large .* in: 'c'"):
        regressor.predict(changed(X, (0, 2), -np.inf))


def test_no_rows_at_predict_are_no_error(regressor: DaskBoostRegressor) -> None:
    assert regressor.predict(X[:0]).shape == (0,)


@pytest.mark.parametrize(
    ("values", "given", "message"),
    [
        ({"max_depth": -1}, {}, r"max_depth=-1 must lie in"),
        ({"n_estimators": -1}, {}, r"n_estimators=-1 must be an integer of at least 0"),
        ({"n_estimators": 2.5}, {}, r"n_estimators=2.5 must be an integer"),
        ({"eval_metric": "rmes"}, {}, r"metric 'rmes' is unknown; did you mean 'rmse'"),
        ({"monotone_constraints": {"q": 1}}, {}, r"monotone_constraints.*'q'"),
        ({"interaction_constraints": [[0, 3]]}, {}, r"interaction_constraints.*3"),
        ({"callbacks": [3]}, {}, r"callbacks contains 3, which is not a Callback"),
        ({"objective": "multi:softprob"}, {}, r"objective='multi:softprob' is for classes; use DaskBoostClassifier"),
        ({"early_stopping_rounds": 3, "preset": "xgboost"}, {}, r"early_stopping_rounds=3 needs rows that tell when"),
        ({}, {"eval_set": (X, Y)}, r"eval_set is a tuple of 2: ndarray, ndarray; pass a list of pairs"),
        ({}, {"eval_set": [(X, Y)], "sample_weight_eval_set": [Y, Y]}, r"sample_weight_eval_set is a list of 2"),
        ({}, {"eval_set": [(X, Y)], "base_margin_eval_set": Y}, r"base_margin_eval_set is of type ndarray"),
        ({}, {"init_model": 3}, r"init_model is int; pass a Booster, an estimator or a file's path"),
        ({}, {"init_model": "a.ubj", "xgb_model": "a.ubj"}, r"'init_model' and 'xgb_model' are two names of one arg"),
        ({}, {"verbose": 1.5}, r"verbose=1.5 must be True, False or a number of rounds"),
        ({}, {"eval_set": [(X[:, :2], Y)]}, r"X has 2 features, but DaskBoostRegressor is expecting 3"),
    ],
)  # fmt: skip
def test_a_bad_argument_of_fit_is_refused_before_rows_are_read(
    values: dict[str, Any], given: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "eval_set" not in given or not isinstance(given["eval_set"], list):
        monkeypatch.setattr("daskboost.training.dataset.describe", lambda *args: pytest.fail("rows were read"))
    with pytest.raises((ParameterError, DataError), match=message):
        DaskBoostRegressor(**values).fit(X, Y, **given)


@pytest.mark.parametrize("estimator", [DaskBoostRegressor, DaskBoostClassifier])
def test_an_unknown_keyword_of_the_constructor(estimator: Any) -> None:
    with pytest.raises(TypeError, match=rf"{estimator.__name__}\(\) got .*'n_estimator'; did you mean 'n_estimators'"):
        estimator(n_estimator=3)
    with pytest.raises(TypeError, match=r"'verbosity'; metrics are printed by train and fit with verbose=True"):
        estimator(verbosity=1)
    with pytest.raises(TypeError, match=r"'enable_categorical'; columns of texts and categories are always"):
        estimator(enable_categorical=True)
    with pytest.raises(ParameterError, match=r"'eta' and 'learning_rate' are two names of one parameter"):
        estimator(eta=0.1, learning_rate=0.2)
    with pytest.raises(ParameterError, match=rf"Invalid parameter 'depth' for {estimator.__name__}; use max_depth"):
        estimator().set_params(depth=3)
    with pytest.raises(TypeError, match=r"'zzz'; parameters are "):
        estimator(zzz=3)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (np.zeros(60), DataError, r"y has only one class, 0.0, in all rows; a classifier needs at least two"),
        (["a"] * 60, DataError, r"y has only one class, 'a'"),
        (Y, DataError, r"Unknown label type: continuous. Use DaskBoostRegressor"),
        (changed(CODES, 3, np.nan), DataError, r"y has 1 missing labels; every label must be present"),
        (["a", None] * 30, DataError, r"y has 30 missing labels"),
        (["a", 1] * 30, DataTypeError, r"y holds labels of the types int, str.*all be strings, all be booleans or all"),
        (pd.Series(pd.Timestamp(0), index=range(60)), DataTypeError, r"y is of type datetime64.*Labels are"),
        (CODES[:50], DataError, r"y has 50 rows, but X has 60"),
        (None, DataError, r"DaskBoostClassifier requires y to be passed, but the target y is None"),
    ],
)
def test_bad_class_labels(labels: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        DaskBoostClassifier(n_estimators=1).fit(X, labels)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"class_weight": "balance"}, r"class_weight='balance': give 'balanced', a mapping"),
        ({"class_weight": {7: 1.0}}, r"class_weight has labels that y has not: \[7\]; the classes are \[0.0, "),
        ({"class_weight": {0: -1.0}}, r"class_weight gives 0.0 the weight -1.0; weights are finite and at least 0"),
        ({"objective": "reg:squarederror"}, r"objective='reg:squarederror' is not for classes"),
        ({"objective": "binary:logistic"}, r"objective='binary:logistic' is for two classes, but y has 3"),
    ],
)
def test_bad_parameters_of_a_classifier(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        DaskBoostClassifier(n_estimators=1, **values).fit(X, CODES)


def test_more_labels_than_classes_can_be() -> None:
    rows = np.zeros((70_000, 1), np.float32)
    with pytest.raises(DataError, match=r"y has 70000 different labels in one partition; at most 65536 .*Regressor"):
        DaskBoostClassifier(n_estimators=1).fit(rows, np.arange(70_000))


def test_an_evaluation_set_with_an_unknown_class() -> None:
    with pytest.raises(DataError, match=r"y has labels that are not among the 2 classes: 2.0. The classes are 0.0"):
        DaskBoostClassifier(n_estimators=1).fit(X[CODES < 2], CODES[CODES < 2], eval_set=[(X, CODES)])


def test_a_fit_that_fails_leaves_the_estimator_as_it_was() -> None:
    model = DaskBoostClassifier(n_estimators=2).fit(X, CODES)
    before = model.booster_
    with pytest.raises(DataError, match="infinite"):
        model.fit(changed(X, (0, 0), np.inf), CODES > 1)
    assert model.booster_ is before and model.n_classes_ == 3
