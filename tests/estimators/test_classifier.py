"""DaskBoostClassifier: labels of any type in and out, partitions without some class, probabilities, class weights."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score
from sklearn.utils.class_weight import compute_sample_weight
from strategies.models import tree_bytes
from strategies.rows import classes

from daskboost import Booster, Callback, Checkpoint, DaskBoostClassifier, LearningRateSchedule
from daskboost.data.input.row_batch import Features
from daskboost.dtypes import Float32
from daskboost.errors import DataError, ModelFormatError, ParameterError
from daskboost.model.output import PredictRequest
from daskboost.training.callbacks import RoundInfo

X, CODES = classes(400, 3)
TWO = (CODES > 0).astype(int)
LABELS: dict[str, Any] = {
    "strings": np.array(["ant", "bee", "cat"])[CODES.astype(int)],
    "objects": np.array(["ant", "bee", "cat"], dtype=object)[CODES.astype(int)],
    "negative integers": np.array([-5, 0, 7])[CODES.astype(int)],
    "integers": CODES.astype(np.int64),
    "large integers": 2**40 + CODES.astype(np.int64),
    "floats": CODES * 2,
    "booleans": TWO.astype(bool),
    "pandas strings": pd.Series(np.array(["ant", "bee", "cat"])[CODES.astype(int)], dtype="string"),
    "pandas categories": pd.Series(np.array(["ant", "bee", "cat"])[CODES.astype(int)], dtype="category"),
    "two strings": np.array(["no", "yes"])[TWO],
    "nullable integers": pd.Series(CODES.astype(int), dtype="Int64"),
}


def model(**params: Any) -> DaskBoostClassifier:
    return DaskBoostClassifier(**{"n_estimators": 8, "max_depth": 3, "n_jobs": 1, **params})


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_any_type_come_back_as_they_were(kind: str) -> None:
    labels = LABELS[kind]
    fitted = model().fit(X, labels)
    expected = np.unique(np.asarray(labels))
    np.testing.assert_array_equal(fitted.classes_, expected)
    assert fitted.n_classes_ == len(expected)
    predicted = fitted.predict(X)
    assert set(predicted) <= set(np.asarray(labels))
    assert predicted.dtype.kind == ("O" if isinstance(expected[0], str) else expected.dtype.kind)
    score = fitted.score(X, labels)
    assert score == accuracy_score(np.asarray(labels), predicted) > 0.8


@pytest.mark.parametrize("kind", LABELS)
def test_labels_survive_files_and_pickles(kind: str, tmp_path: Path) -> None:
    fitted = model().fit(X, LABELS[kind])
    fitted.save_model(tmp_path / "m.ubj")
    loaded = DaskBoostClassifier().load_model(tmp_path / "m.ubj")
    for other in (loaded, pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_array_equal(other.classes_, fitted.classes_)
        assert other.classes_.dtype == fitted.classes_.dtype
        np.testing.assert_array_equal(other.predict(X), fitted.predict(X))
        np.testing.assert_array_equal(other.predict_proba(X), fitted.predict_proba(X))
        assert other.n_features_in_ == X.shape[1]


def test_labels_that_are_codes_leave_no_trace_in_the_model() -> None:
    by_codes, by_names = model().fit(X, LABELS["integers"]), model().fit(X, LABELS["strings"])
    assert dict(by_codes.booster_.attributes) == {}
    assert list(by_names.booster_.attributes) == ["daskboost_classes"]
    assert tree_bytes(by_codes.booster_) == tree_bytes(by_names.booster_)


def test_xgboost_reads_the_file_and_we_read_its(tmp_path: Path) -> None:
    import xgboost

    ours = model().fit(X, LABELS["strings"])
    ours.save_model(tmp_path / "ours.json")
    theirs = xgboost.Booster(model_file=tmp_path / "ours.json")
    np.testing.assert_allclose(theirs.predict(xgboost.DMatrix(X)), ours.predict_proba(X), rtol=1e-5)
    peer = xgboost.XGBClassifier(n_estimators=5).fit(X, CODES)
    peer.save_model(tmp_path / "theirs.json")
    read = DaskBoostClassifier().load_model(tmp_path / "theirs.json")
    np.testing.assert_array_equal(read.classes_, [0, 1, 2])
    np.testing.assert_allclose(read.predict_proba(X), peer.predict_proba(X), rtol=1e-5)
    np.testing.assert_array_equal(read.predict(X), peer.predict(X))


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"dtype": "str"}', '{"dtype": "str", "labels": ["a", "a", "b"]}',
             '{"dtype": "O", "labels": [[], 1, 2]}', '{"dtype": "int64", "labels": [1, 2]}']
)  # fmt: skip
def test_damaged_classes_in_a_file_are_refused(text: str, tmp_path: Path) -> None:
    fitted = model().fit(X, LABELS["strings"])
    booster = fitted.booster_
    damaged = Booster(
        booster.trees, booster.tree_outputs, booster.iteration_indptr, booster.objective, booster.base_score,
        booster.schema, {"daskboost_classes": text},
    )  # fmt: skip
    damaged.save_model(tmp_path / "m.ubj")
    with pytest.raises(ModelFormatError, match="'daskboost_classes'"):
        DaskBoostClassifier().load_model(tmp_path / "m.ubj")


@pytest.mark.parametrize("kind", ["strings", "booleans", "negative integers"])
def test_partitions_may_lack_classes_and_rows(kind: str) -> None:
    labels = np.asarray(LABELS[kind])
    order = np.argsort(CODES, kind="stable")  # the first partitions have the first class only
    frame = pd.DataFrame(X[order], columns=list("abcde")).assign(label=labels[order])
    parts = dd.from_pandas(frame, npartitions=7, sort=False)
    empty = parts.partitions[0].query("a > 1e9")
    local, lazy = model().fit(frame, "label"), model().fit(dd.concat([empty, parts, empty]), "label")
    np.testing.assert_array_equal(lazy.classes_, local.classes_)
    assert lazy.booster_.to_bytes() == local.booster_.to_bytes()


@pytest.mark.parametrize("kind", ["strings", "booleans", "integers"])
def test_lazy_predictions_have_the_partitions_and_the_right_meta(kind: str) -> None:
    frame = pd.DataFrame(X, columns=list("abcde"))
    fitted = model().fit(frame, LABELS[kind])
    lazy = dd.from_pandas(frame, npartitions=3)
    labels, probabilities = fitted.predict(lazy), fitted.predict_proba(lazy)
    assert labels.divisions == probabilities.divisions == lazy.divisions
    for part in [*labels.to_delayed(), *fitted.predict(lazy.query("a > 1e9")).to_delayed()]:
        computed = part.compute()
        assert computed.dtype == labels.dtype and computed.name == labels.name == "prediction"
    np.testing.assert_array_equal(np.asarray(labels.compute()), fitted.predict(frame))
    assert list(probabilities.columns) == list(probabilities.compute().columns) == fitted.classes_.tolist()
    assert set(probabilities.dtypes) == {np.dtype("f4")}
    np.testing.assert_array_equal(probabilities.compute().to_numpy(), fitted.predict_proba(frame))


@pytest.mark.parametrize("kind", ["strings", "booleans"])
@pytest.mark.parametrize("known", [True, False])
def test_lazy_predictions_of_arrays(kind: str, known: bool) -> None:
    fitted = model().fit(X, LABELS[kind])
    unknown = dd.from_pandas(pd.DataFrame(X), npartitions=3).to_dask_array()
    lazy = da.from_array(X, chunks=(150, 5)) if known else unknown
    labels, probabilities = fitted.predict(lazy), fitted.predict_proba(lazy)
    assert labels.ndim == 1 and probabilities.ndim == 2
    assert labels.dtype == fitted.classes_.dtype and probabilities.dtype == np.float32
    assert probabilities.shape[1] == fitted.n_classes_
    if known:
        assert labels.chunks == probabilities.chunks[:1] == lazy.chunks[:1]
    np.testing.assert_array_equal(labels.compute(), fitted.predict(X))
    np.testing.assert_array_equal(probabilities.compute(), fitted.predict_proba(X))


@pytest.mark.parametrize("labels", [TWO, CODES], ids=["two", "three"])
def test_probabilities_sum_to_one_and_agree_with_labels(labels: Any) -> None:
    fitted = model().fit(X, labels)
    p = fitted.predict_proba(X)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(fitted.classes_[p.argmax(axis=1)], fitted.predict(X))
    margins = fitted.predict(X, output_margin=True)
    assert margins.shape == ((400,) if p.shape[1] == 2 else (400, 3))
    np.testing.assert_array_equal(margins, fitted.booster_.predict(X, output="margin"))


@pytest.mark.parametrize(
    ("objective", "labels", "n_outputs"),
    [("binary:logitraw", TWO, 1), ("multi:softmax", CODES, 3), ("multi:softprob", TWO, 2), ("binary:logistic", TWO, 1)],
)
def test_every_objective_of_classes(objective: str, labels: Any, n_outputs: int) -> None:
    fitted = model(objective=objective).fit(X, labels)
    assert fitted.booster_.objective.name == objective and fitted.booster_.n_outputs == n_outputs
    assert fitted.score(X, labels) > 0.85
    assert fitted.predict_proba(X).shape == (400, len(np.unique(labels)))


def test_a_custom_objective_predicts_labels_but_no_probabilities() -> None:
    def logistic(label: Any, margin: Any) -> tuple[Any, Any]:
        p = 1 / (1 + np.exp(-margin))
        return p - label, p * (1 - p)

    def softmax(label: Any, margin: Any) -> tuple[Any, Any]:
        p = np.exp(margin) / np.exp(margin).sum(axis=1, keepdims=True)
        return p - (np.arange(3) == label[:, None]), 2 * p * (1 - p)

    for objective, labels in ((logistic, LABELS["two strings"]), (softmax, LABELS["strings"])):
        fitted = model(objective=objective, base_score=0.0).fit(X, labels)
        assert fitted.score(X, labels) > 0.85
        with pytest.raises(ParameterError, match="objective 'custom' gives no probabilities"):
            fitted.predict_proba(X)


@pytest.mark.parametrize("n_partitions", [1, 5])
@pytest.mark.parametrize("class_weight", ["balanced", {"ant": 3.0, "cat": 0.5}])
def test_class_weights_are_the_same_as_weights_of_rows(class_weight: Any, n_partitions: int, rng: Any) -> None:
    labels = LABELS["strings"]
    own = rng.uniform(0.5, 2, 400).astype(np.float32)
    frame = pd.DataFrame(X, columns=list("abcde")).assign(label=labels, weight=own)
    lazy = dd.from_pandas(frame, npartitions=n_partitions)
    for weight in (None, "weight"):
        by_class = model(class_weight=class_weight).fit(lazy, "label", sample_weight=weight)
        rows = compute_sample_weight(class_weight, labels) * (1 if weight is None else own.astype(np.float64))
        features = frame.drop(columns=["label"] if weight is None else ["label", "weight"])
        by_rows = model().fit(features, labels, sample_weight=rows.astype(np.float32))
        assert tree_bytes(by_class.booster_) == tree_bytes(by_rows.booster_)


def test_class_weights_do_not_weigh_evaluation_sets() -> None:
    plain = model().fit(X, CODES, eval_set=[(X, CODES)])
    weighted = model(class_weight="balanced", n_estimators=1).fit(X, CODES, eval_set=[(X, CODES)])
    by_hand = weighted.predict_proba(X)[np.arange(400), CODES.astype(int)]
    logloss = weighted.evals_result_["validation_0"]["mlogloss"][0]
    assert logloss == pytest.approx(-np.log(by_hand).mean(), rel=1e-6)
    assert plain.evals_result_["validation_0"]["mlogloss"][-1] < logloss


def test_scores_on_dask_collections_count_unknown_labels_as_wrong(rng: Any) -> None:
    labels = LABELS["strings"].astype(object)
    fitted = model().fit(X, labels)
    strange = labels.copy()
    strange[:40] = "dog"
    weight = rng.uniform(0.5, 2, 400)
    frame = pd.DataFrame(X).assign(label=strange, w=weight.astype(np.float32))
    frame.columns = frame.columns.astype(str)
    expected = accuracy_score(strange, fitted.predict(X), sample_weight=weight.astype(np.float32))
    lazy = dd.from_pandas(frame, npartitions=4)
    features = [str(i) for i in range(5)]
    assert fitted.score(lazy[features], lazy["label"], lazy["w"]) == pytest.approx(expected, rel=1e-12)
    assert fitted.score(X, strange, weight) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", ["strings", "two strings"])
def test_continuing_keeps_the_classes_also_where_the_new_rows_lack_some(kind: str) -> None:
    labels = LABELS[kind]
    first = model().fit(X, labels)
    some = labels != np.unique(labels)[-1]
    second = model(n_estimators=3).fit(X[some], labels[some], init_model=first)
    np.testing.assert_array_equal(second.classes_, first.classes_)
    assert second.booster_.n_iterations == 11
    assert tree_bytes(second.booster_[:8]) == tree_bytes(first.booster_)


def test_infinite_labels_are_no_classes() -> None:
    with pytest.raises(DataError, match="y has infinite labels, which name no class"):
        model().fit(X, np.where(TWO, np.inf, 1.0))


@pytest.mark.parametrize("kind", ["array", "frame"])
def test_labels_and_probabilities_of_one_collection_walk_its_rows_once(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    model = DaskBoostClassifier(n_estimators=2, device="cpu").fit(x, x[:, 0] > 0)
    rows = da.from_array(x, chunks=(30, 3))
    if kind == "frame":
        rows = dd.from_pandas(pd.DataFrame(x), npartitions=2)
    runs: list[int] = []
    run = PredictRequest.run_on_host

    def counted(request: PredictRequest, features: Features, base_margin: Float32 | None) -> Any:
        runs.append(features.n_rows)
        return run(request, features, base_margin)

    monkeypatch.setattr(PredictRequest, "run_on_host", counted)
    asked: Any = model.predict(rows), model.predict_proba(rows), model.predict(rows, output_margin=True)
    dask.compute(*asked, scheduler="synchronous")
    assert runs == [30, 30]


class Seen(Callback):
    """Keeps the models that it is shown, and may stop the fit after so many."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.models: list[Booster] = []
        self._stop_after = stop_after

    def after_round(self, info: RoundInfo) -> bool:
        self.models.append(info.snapshot())
        return len(self.models) == self._stop_after

    def after_training(self, booster: Booster) -> None:
        self.models.append(booster)


@pytest.mark.parametrize("kind", LABELS)
def test_checkpoints_have_the_classes(kind: str, tmp_path: Path) -> None:
    """A fit that is interrupted is resumed from one, and predicts labels as they were."""
    labels, seen, path = LABELS[kind], Seen(), tmp_path / "model.ubj"
    whole = model(callbacks=[Checkpoint(path, 3), seen]).fit(X, labels)
    assert path.read_bytes() == whole.booster_.to_bytes() == seen.models[-1].to_bytes()
    for booster in seen.models:
        loaded = model().load_model(save(booster, tmp_path))
        np.testing.assert_array_equal(loaded.classes_, whole.classes_)
    resumed = model(n_estimators=5).fit(X, labels, init_model=seen.models[2])
    assert resumed.booster_.n_iterations == 8
    np.testing.assert_array_equal(resumed.predict(X), whole.predict(X))


def save(booster: Booster, folder: Path) -> Path:
    booster.save_model(folder / "seen.ubj")
    return folder / "seen.ubj"


def test_schedules_and_stops_work_beside_classes() -> None:
    rates = [0.5, 0.25, 0.1, 0.05] * 2
    scheduled = model(callbacks=[LearningRateSchedule(rates), Seen()]).fit(X, LABELS["strings"])
    again = model().fit(X, LABELS["strings"], callbacks=[LearningRateSchedule(rates)])
    assert scheduled.booster_.to_bytes() == again.booster_.to_bytes()
    stopped = model(callbacks=[Seen(stop_after=2)]).fit(X, LABELS["strings"])
    assert stopped.booster_.n_iterations == 2
    with pytest.raises(ParameterError, match="there is no such directory"):
        model(callbacks=[Checkpoint("nowhere/model.ubj")]).fit(X, LABELS["strings"])
