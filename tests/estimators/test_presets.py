"""What estimators do where nothing is given: rows that are held out tell when to stop, and models are averaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from cluster.test_same_bytes import gpu
from sklearn.base import clone
from sklearn.metrics import log_loss, root_mean_squared_error
from strategies.rows import regression

from daskboost import (
    Callback,
    DaskBoostClassifier,
    DaskBoostRanker,
    DaskBoostRegressor,
    LearningRateSchedule,
    QuantizedDataset,
    train,
)
from daskboost.errors import DataError, ParameterError, StorageError
from daskboost.estimators.presets import PRESETS, Facts, learning_rate_of
from daskboost.estimators.stopping import FitShape, rounds_of
from daskboost.training.callbacks import RoundInfo
from daskboost.training.folds import make_folds
from daskboost.training.members import LEAST_SHARE

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["gpu"]

X, Y = regression(900, seed=5)
SEVERAL = np.digitize(Y, [-0.5, 0.5])
SMALL: dict[str, Any] = {"max_depth": 3, "n_jobs": 1, "device": "cpu"}
QID = np.random.default_rng(7).integers(0, 90, len(X))


def members(model: Any) -> list[dict[str, Any]]:
    """What each member's held-out rows told."""
    found: list[dict[str, Any]] = json.loads(model.booster_.attributes["members"])
    return found


def test_members_are_fits_that_stop_by_folds_and_their_mean_is_the_model() -> None:
    model = DaskBoostRegressor(**SMALL).fit(X, Y)
    params = {**SMALL, "learning_rate": 0.1, "subsample": 0.8, "colsample_bylevel": 0.8}
    margins, found, rounds = [], [], []
    with QuantizedDataset(X, Y, n_jobs=1, device="cpu") as data:
        start = train(params, data, 0).base_score[0]
        for rows, held_out in make_folds(data, 5):
            own = train({**params, "base_score": start}, rows, 2000, evals=[(held_out, "v")], early_stopping_rounds=30)
            margins.append(own.predict(X))
            assert own.best_iteration is not None
            rounds.append(own.best_iteration + 1)
            found.append({"rounds": rounds[-1], "score": own.best_score})
    assert members(model) == found
    assert sorted(model.evals_result_) == [f"held_out_{i}" for i in range(5)]
    np.testing.assert_allclose(model.predict(X), np.mean(margins, axis=0), rtol=1e-5, atol=1e-6)
    assert model.booster_.n_iterations == max(rounds)


def test_members_end_where_losses_go_on_falling_by_next_to_nothing() -> None:
    model = DaskBoostClassifier(**SMALL, subsample=1, colsample_bylevel=1).fit(np.round(X), X[:, 0] >= 0.5)
    for i, own in enumerate(members(model)):
        losses = model.evals_result_[f"held_out_{i}"]["logloss"]
        best = ends = 0
        for ends, loss in enumerate(losses):
            if loss < losses[best] - LEAST_SHARE * losses[0]:
                best = ends
        assert own["rounds"] == best + 1
        assert ends == best + 30
        assert losses[ends] < losses[best]  # which would have gone on
        assert ends < 1999


@pytest.mark.parametrize("given", [{}, {"early_stopping_rounds": 5, "eval_metric": ["ndcg@3", "map"]}])
def test_members_of_rankings_end_together_where_their_mean_score_is_best(given: dict[str, Any]) -> None:
    model = DaskBoostRanker(**SMALL, **given).fit(X, np.digitize(Y, [0, 1]), qid=QID)
    scores = [list(model.evals_result_[f"held_out_{i}"].values())[-1] for i in range(5)]
    n_common = min(map(len, scores))
    assert n_common < max(map(len, scores))
    means = [sum(own[i] for own in scores) / 5 for i in range(n_common)]
    best = max(range(n_common), key=means.__getitem__)
    assert members(model) == [{"rounds": best + 1, "score": own[best]} for own in scores]
    assert model.booster_.n_iterations == best + 1
    patience = given.get("early_stopping_rounds", 60)
    assert min(len(own) - 1 - np.argmax(own) for own in scores) == patience


def test_members_of_rankings_end_together_by_a_metric_that_is_smaller_where_it_is_better() -> None:
    def misplaced(label: Any, margin: Any) -> float:
        return -float(np.corrcoef(label, margin)[0, 1]) if np.std(margin) else 0.0

    model = DaskBoostRanker(**SMALL, eval_metric=misplaced).fit(X, np.digitize(Y, [0, 1]), qid=QID)
    scores = [model.evals_result_[f"held_out_{i}"]["misplaced"] for i in range(5)]
    means = np.mean([own[: min(map(len, scores))] for own in scores], axis=0)
    assert {own["rounds"] for own in members(model)} == {int(np.argmin(means)) + 1}


@pytest.mark.parametrize("kind", ["numbers", "classes", "queries", "time", "crosses"])
def test_defaults_have_the_same_bytes_on_a_cluster(cluster_client: Client, kind: str) -> None:
    model: Any = DaskBoostRegressor(**SMALL, has_time=kind == "time")
    x, label = (EQUAL, SAME) if kind == "crosses" else (X, Y)
    qid = None
    if kind == "classes":
        model, label = DaskBoostClassifier(**SMALL), SEVERAL
    elif kind == "queries":
        model, label, qid = DaskBoostRanker(**SMALL), np.digitize(Y, [0, 1]), QID
    model.set_params(early_stopping_rounds=5, n_estimators=40)
    expected = model.fit(x, label, qid=qid).booster_
    assert kind != "crosses" or expected.n_features > 5
    history = model.evals_result_
    for size in (300, 170):
        lazy, lazy_label = da.from_array(x, chunks=(size, -1)), da.from_array(label, chunks=size)
        lazy_qid = None if qid is None else da.from_array(qid, chunks=size)
        found = clone(model).fit(lazy, lazy_label, qid=lazy_qid)
        assert found.booster_.to_bytes() == expected.to_bytes()
        assert found.evals_result_ == history


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("kind", ["numbers", "classes", "crosses"])
def test_defaults_have_the_same_bytes_on_a_gpu(kind: str) -> None:
    model: Any = DaskBoostClassifier(**SMALL) if kind == "classes" else DaskBoostRegressor(**SMALL)
    model.set_params(early_stopping_rounds=3, n_estimators=25)
    x, label = {"numbers": (X, Y), "classes": (X, SEVERAL), "crosses": (EQUAL, SAME)}[kind]
    expected = model.fit(x, label).booster_
    on_gpu = clone(model).set_params(device="cuda").fit(x, label)
    assert on_gpu.booster_.to_bytes() == expected.to_bytes()
    assert on_gpu.evals_result_ == model.evals_result_


def test_one_model_sees_the_newest_rows_last_and_is_trained_on_all() -> None:
    model = DaskBoostRegressor(**SMALL, has_time=True, early_stopping_rounds=10).fit(X, Y)
    (only,) = members(model)
    params = {**SMALL, "learning_rate": 0.1, "subsample": 0.8, "colsample_bylevel": 0.8, "has_time": True}
    with QuantizedDataset(X, Y, n_jobs=1, device="cpu", has_time=True) as data:
        rows, last = data.subset(np.arange(720)), data.subset(np.arange(720, 900))
        best = train(params, rows, 2000, evals=[(last, "v")], early_stopping_rounds=10)
        assert best.best_iteration is not None
        again = train(params, data, best.best_iteration + 1)
    assert only == {"rounds": best.best_iteration + 1, "score": best.best_score}
    np.testing.assert_array_equal(model.predict(X), again.predict(X))


def test_a_number_of_rounds_alone_is_one_model_of_so_many() -> None:
    model = DaskBoostRegressor(n_estimators=100, **SMALL).fit(X, Y)
    with QuantizedDataset(X, Y, n_jobs=1, device="cpu") as data:
        expected = train({**SMALL, "learning_rate": 0.17}, data, 100)
    np.testing.assert_array_equal(model.predict(X), expected.predict(X))
    assert "members" not in model.booster_.attributes and model.booster_.n_iterations == 100


def test_xgboosts_preset_is_what_train_does_by_default() -> None:
    model = DaskBoostRegressor(preset="xgboost", **SMALL).fit(X, Y)
    with QuantizedDataset(X, Y, n_jobs=1, device="cpu") as data:
        expected = train(SMALL, data, 100)
    assert model.booster_.to_bytes() == expected.to_bytes()


@pytest.mark.parametrize(("given", "n_members", "n_folds"), [
    ({}, 5, 5), ({"preset": "fast"}, 1, 5), ({"preset": "best"}, 10, 10), ({"n_members": 2}, 2, 5),
    ({"validation_fraction": 0.25}, 4, 4), ({"validation_fraction": 0.1}, 5, 10), ({"refit": "replay"}, 1, 5),
    ({"n_estimators": 40, "early_stopping": True}, 5, 5), ({"n_estimators": 40, "early_stopping_rounds": 3}, 5, 5),
])  # fmt: skip
def test_parameters_decide_on_members(given: dict[str, Any], n_members: int, n_folds: int) -> None:
    model = DaskBoostRegressor(**{"early_stopping_rounds": 5, **given}, **SMALL).fit(X[:600], Y[:600])
    assert len(members(model)) == len(model.evals_result_) == n_members
    with QuantizedDataset(X[:600], Y[:600], n_jobs=1, device="cpu") as data:
        _, held_out = make_folds(data, n_folds)[0]
        start = train(SMALL, data, 0).base_score[0]
        base = np.full(held_out.n_rows, start)
        marks = held_out.shards.marks(600)
    assert model.evals_result_["held_out_0"]["rmse"][0] < root_mean_squared_error(Y[:600][marks], base)
    if "n_estimators" in given:
        assert model.booster_.n_iterations <= 40


def test_three_classes_have_leaves_of_vectors_unless_something_needs_others() -> None:
    model = DaskBoostClassifier(**SMALL).fit(X, SEVERAL)
    assert len(members(model)) == 3 and model.booster_.has_vectors
    assert log_loss(SEVERAL, model.predict_proba(X)) < 0.5
    assert model.predict_proba(X).shape == (900, 3)
    for other in ({"monotone_constraints": {0: 1}}, {"score_function": "l2"}, {"multi_strategy": "one_output_per_tree"},
                  {"n_estimators": 3}, {"preset": "xgboost", "n_estimators": 3}):  # fmt: skip
        fitted = DaskBoostClassifier(**{**SMALL, "early_stopping_rounds": None, **other}).fit(X, SEVERAL)
        assert not fitted.booster_.has_vectors
    words = scipy.sparse.random(900, 6000, 0.002, "csr", np.float32, random_state=1)
    wide = DaskBoostClassifier(**SMALL, early_stopping_rounds=1).fit(words, SEVERAL)
    assert len(members(wide)) == 3 and not wide.booster_.has_vectors
    least = DaskBoostClassifier(**SMALL, early_stopping_rounds=1, min_child_weight=1.0).fit(words, SEVERAL)
    assert least.booster_.to_bytes() == wide.booster_.to_bytes()
    more = DaskBoostClassifier(n_estimators=2, **SMALL).fit(X, SEVERAL, init_model=model)
    assert more.booster_.has_vectors and more.booster_.n_iterations == model.booster_.n_iterations + 2


def told(model: Any) -> list[dict[str, Any]]:
    """What the held-out rows told of each of the candidates."""
    found: list[dict[str, Any]] = json.loads(model.booster_.attributes["candidates"])
    return found


@pytest.mark.parametrize(("label", "is_shared"), [(SEVERAL, True), (np.argmax(X[:, :3], axis=1), False)])
def test_held_out_rows_choose_between_both_kinds_of_trees_of_several_classes(
    label: Any, is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daskboost.training.members.MUCH_WORSE", 1e6)
    given: dict[str, Any] = {**SMALL, "early_stopping_rounds": 5, "cross_features": False}
    model = DaskBoostClassifier(**given).fit(X, label)
    best, worse = sorted(told(model), key=lambda own: np.mean([member["score"] for member in own["members"]]))
    assert len(best["members"]) == len(worse["members"]) == 3 and best["members"] == members(model)
    assert (best["multi_strategy"] == "multi_output_tree") == model.booster_.has_vectors == is_shared
    for own in (best, worse):
        alone = DaskBoostClassifier(**given, multi_strategy=own["multi_strategy"]).fit(X, label)
        assert members(alone) == own["members"] and "candidates" not in alone.booster_.attributes
        same = np.array_equal(alone.predict_proba(X), model.predict_proba(X))
        assert same == (alone.evals_result_ == model.evals_result_) == (own is best)


def test_candidates_whose_first_member_is_much_worse_train_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daskboost.training.members.MUCH_WORSE", 0.0)
    model = DaskBoostClassifier(**SMALL, early_stopping_rounds=5, cross_features=False).fit(X, SEVERAL)
    shared, alone = told(model)
    assert shared["members"] == members(model) and len(alone["members"]) == 1
    assert alone["members"][0]["score"] > shared["members"][0]["score"]


@pytest.mark.parametrize("much", [0.0, 1e6])
def test_crosses_train_as_many_members_as_may_yet_be_chosen(much: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kinds of trees train one; the best kind trains the others unless its crosses are much better than it."""
    monkeypatch.setattr("daskboost.training.members.MUCH_WORSE", much)
    given: dict[str, Any] = {"n_jobs": 1, "device": "cpu", "early_stopping_rounds": 5}
    model = DaskBoostClassifier(**given).fit(EQUAL, SAME)
    *kinds, crossed = told(model)
    assert crossed["cross_features"] and crossed["members"] == members(model) and len(members(model)) == 3
    assert [len(own["members"]) for own in kinds] == ([1, 1] if much == 0 else [3, 3])
    plain = DaskBoostClassifier(**given, cross_features=False).fit(EQUAL, SAME)
    assert max(len(own["members"]) for own in told(plain)) == 3


@pytest.mark.parametrize("gain", [-1e6, 0.0, 1e6])
def test_crosses_stop_where_they_are_not_better_by_enough(gain: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Y depends on two columns, one by one: nothing is gained by crosses, but also little lost."""
    monkeypatch.setattr("daskboost.training.members.GAIN", gain)
    patience = 5
    model = DaskBoostRegressor(n_jobs=1, device="cpu", early_stopping_rounds=patience).fit(X[:, :3], Y)
    plain, crossed = told(model)
    assert len(plain["members"]) == 5
    n_members = len(crossed["members"])
    assert min(own["rounds"] for own in plain["members"]) > patience
    if gain < 0:
        assert n_members == 5 and model.booster_.n_features > 3
    else:
        assert n_members == 1 and model.booster_.n_features == 3
        assert gain == 0 or crossed["members"][0]["rounds"] <= patience


@pytest.mark.parametrize("given", [
    {"preset": "fast"}, {"refit": "replay"}, {"n_estimators": 5}, {"callbacks": [Callback()], "n_members": 2},
])  # fmt: skip
def test_fits_of_one_model_and_those_that_callbacks_see_choose_nothing(given: dict[str, Any]) -> None:
    model = DaskBoostClassifier(**{**SMALL, "early_stopping_rounds": None, **given}).fit(X[:600], SEVERAL[:600])
    assert "candidates" not in model.booster_.attributes


EQUAL = np.random.default_rng(4).integers(0, 8, (900, 5)).astype(np.float32)
SAME = (EQUAL[:, 0] == EQUAL[:, 3]) + 2.0 * (EQUAL[:, 1] > EQUAL[:, 4])
"""Numbers that tell whether one column is equal to another, and whether one is larger."""


@pytest.mark.parametrize("kind", ["numbers", "classes", "frame"])
def test_crosses_are_features_where_held_out_rows_are_better_by_them(kind: str, tmp_path: Path) -> None:
    model: Any = DaskBoostClassifier if kind == "classes" else DaskBoostRegressor
    x: Any = EQUAL if kind != "frame" else pd.DataFrame(EQUAL, columns=list("abcde"))
    given: dict[str, Any] = {"n_jobs": 1, "device": "cpu", "early_stopping_rounds": 5}
    fitted = model(**given).fit(x, SAME)
    plain = model(**given, cross_features=False).fit(x, SAME)
    *_, crossed = told(fitted)
    assert crossed["cross_features"] and crossed["members"] == members(fitted)
    means = [np.mean([own["score"] for own in members(each)]) for each in (fitted, plain)]
    assert means[0] < 0.98 * means[1]
    names = fitted.booster_.schema.names
    assert names is not None and ("a - d" if kind == "frame" else "f0 - f3") in names
    assert fitted.feature_importances_.shape == (5,) and fitted.n_features_in_ == 5
    fitted.save_model(tmp_path / "model.ubj")
    loaded = model().load_model(tmp_path / "model.ubj")
    expected = fitted.predict(x, output_margin=True)
    np.testing.assert_array_equal(loaded.predict(x, output_margin=True), expected)
    np.testing.assert_array_equal(fitted.predict(scipy.sparse.csr_matrix(EQUAL + 1), output_margin=True),
                                  fitted.predict(EQUAL + 1, output_margin=True))  # fmt: skip
    parts = fitted.booster_.predict(x, output="contributions")
    np.testing.assert_allclose(parts.sum(axis=-1), expected, rtol=1e-4, atol=1e-4)
    more = model(n_estimators=3, **{**given, "early_stopping_rounds": None}).fit(x, SAME, init_model=fitted)
    assert more.booster_.n_iterations == fitted.booster_.n_iterations + 3 and more.booster_.schema.names == names


@pytest.mark.parametrize("given", [
    {"cross_features": False}, {"monotone_constraints": {0: 1}}, {"interaction_constraints": [[0, 1], [2, 3, 4]]},
    {"ignored_features": [2]}, {"n_members": 1}, {"preset": "fast"}, {"callbacks": [Callback()], "n_members": 2},
])  # fmt: skip
def test_nothing_is_crossed_where_parameters_speak_of_features_or_nothing_is_chosen(given: dict[str, Any]) -> None:
    model = DaskBoostRegressor(**SMALL, early_stopping_rounds=3, **given).fit(EQUAL, SAME)
    assert "candidates" not in model.booster_.attributes and model.booster_.n_features == 5


@pytest.fixture(scope="module")
def crossed_model() -> DaskBoostRegressor:
    model = DaskBoostRegressor(n_jobs=1, device="cpu", early_stopping_rounds=5).fit(EQUAL, SAME)
    assert model.booster_.n_features > 5
    return model


def test_fits_go_on_from_crosses_only_where_the_data_have_the_same(crossed_model: DaskBoostRegressor) -> None:
    booster = crossed_model.booster_
    with (
        QuantizedDataset(EQUAL, SAME, n_jobs=1, device="cpu") as plain,
        pytest.raises(ParameterError, match=r"init_model splits features .* init_model=model"),
    ):
        train({"n_jobs": 1}, plain, 2, init_model=booster)
    with QuantizedDataset(EQUAL, SAME, n_jobs=1, device="cpu", init_model=booster) as same:
        assert train({"n_jobs": 1}, same, 2, init_model=booster).n_iterations == booster.n_iterations + 2


def test_monotone_constraints_of_crossed_columns_are_refused(crossed_model: DaskBoostRegressor) -> None:
    bound = DaskBoostRegressor(**SMALL, n_estimators=2, monotone_constraints={0: 1})
    with pytest.raises(ParameterError, match="binds 'f0', of which init_model has the feature 'f0 - f"):
        bound.fit(EQUAL, SAME, init_model=crossed_model)


def test_rows_that_lack_most_values_are_not_crossed() -> None:
    sparse = scipy.sparse.random(900, 12, 0.3, "csr", np.float32, random_state=3)
    model = DaskBoostRegressor(**SMALL, early_stopping_rounds=3).fit(sparse, Y)
    assert "candidates" not in model.booster_.attributes


def test_lack_of_memory_for_crosses_says_how_to_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = DaskBoostRegressor._quantized

    def lacking(self: Any, *given: Any, **more: Any) -> Any:
        if more.get("crosses"):
            assert more["beside"].n_rows == 900
            raise StorageError("no room")
        return whole(self, *given, **more)

    monkeypatch.setattr(DaskBoostRegressor, "_quantized", lacking)
    with pytest.raises(StorageError, match="no room") as caught:
        DaskBoostRegressor(**SMALL, early_stopping_rounds=3).fit(EQUAL, SAME)
    assert "cross_features=False" in caught.value.__notes__[0]


def test_certified_fits_hold_rows_out_too() -> None:
    given: dict[str, Any] = {**SMALL, "out_of_core": "certified", "n_members": 2, "early_stopping_rounds": 3}
    model = DaskBoostRegressor(**given, cross_features=False).fit(X, Y)
    assert len(members(model)) == 2
    for i, own in enumerate(members(model)):
        assert model.evals_result_[f"held_out_{i}"]["rmse"][own["rounds"] - 1] == own["score"]


def test_crosses_of_rankers_are_not_tried() -> None:
    model = DaskBoostRanker(**SMALL, early_stopping_rounds=2).fit(X, np.digitize(Y, [0, 1]), qid=QID)
    assert "candidates" not in model.booster_.attributes


def test_trees_of_each_class_are_tried_where_data_are_small() -> None:
    facts = Facts(2000, 1000, 4, stops=True, holds_out=True, shares_trees=True, n_features=2**23 // 1000)
    other = {"multi_strategy": "one_output_per_tree"}
    for preset, tried in (("fast", other), ("balanced", other), ("best", other), ("xgboost", {})):
        assert PRESETS[preset].also_tried(facts) == tried
    for change in ({"n_features": 2**23 // 1000 + 1}, {"shares_trees": False}, {"holds_out": False}):
        assert PRESETS["balanced"].also_tried(replace(facts, **change)) == {}


def test_few_rows_may_be_a_leaf_unless_data_of_several_classes_are_wide() -> None:
    for n_classes, is_wide, wanted in (
        (0, False, 1), (0, True, 1), (2, False, 0.01), (2, True, 0.01), (3, False, 0.01), (3, True, 1)
    ):  # fmt: skip
        facts = Facts(2000, 1000, n_classes, stops=True, holds_out=True, is_wide=is_wide)
        assert PRESETS["balanced"].values(facts)["min_child_weight"] == wanted


@pytest.mark.parametrize(("n_rows", "has_statistics", "drawn", "depth"), [
    (9_999, False, 0.8, 6), (10_000, False, 0.8, 8), (2**19 - 1, False, 0.8, 8), (2**19, False, 0.8, 7),
    (2**17 - 1, True, 1.0, 6), (2**17, True, 1.0, 8), (2**19, True, 1.0, 8),
])  # fmt: skip
def test_depths_go_by_rows_and_target_statistics_have_no_draws(
    n_rows: int, has_statistics: bool, drawn: float, depth: int
) -> None:
    facts = Facts(100, n_rows, 2, stops=True, holds_out=True, has_statistics=has_statistics)
    values = PRESETS["balanced"].values(facts)
    assert (values["subsample"], values["colsample_bylevel"], values["max_depth"]) == (drawn, 0.8, depth)


def test_many_rows_that_are_held_out_tell_in_half_the_rounds() -> None:
    for name, n_rounds in (("fast", 20), ("balanced", 30), ("best", 50)):
        model, shape = DaskBoostRegressor(preset=name), FitShape()
        for n_rows, expected in ((2**19 - 1, n_rounds), (2**19, n_rounds // 2)):
            holding_out = rounds_of(model, shape, n_rows).holding_out
            assert holding_out is not None and holding_out.patience == expected
            given = rounds_of(clone(model).set_params(early_stopping_rounds=7), shape, n_rows).holding_out
            assert given is not None and given.patience == 7
            assert rounds_of(model, FitShape(is_evaluated=True), n_rows).patience == n_rounds
    ranker = rounds_of(DaskBoostRanker(), FitShape(has_queries=True), 2**19).holding_out
    assert ranker is not None and ranker.patience == 60


@pytest.mark.parametrize(("encoding", "drawn"), [("target", "1.0"), ("onehot", "0.8")])
def test_fits_know_whether_their_features_are_target_statistics(encoding: str, drawn: str) -> None:
    frame = pd.DataFrame({"number": X[:, 0], "word": pd.Categorical.from_codes(SEVERAL, ["a", "b", "c"])})
    given: dict[str, Any] = {**SMALL, "early_stopping_rounds": 1, "encodings": {"word": encoding}}
    assert DaskBoostRegressor(**given).fit(frame, Y).booster_.params["subsample"] == drawn
    assert DaskBoostRegressor(**given, subsample=0.5).fit(frame, Y).booster_.params["subsample"] == "0.5"


def test_few_rows_and_rows_to_evaluate_hold_none_out() -> None:
    few = DaskBoostRegressor(**SMALL).fit(X[:499], Y[:499])
    assert few.booster_.n_iterations == 100 and "members" not in few.booster_.attributes
    weight = np.zeros(len(X))
    weight[:499] = 1
    assert "members" not in DaskBoostRegressor(**SMALL).fit(X, Y, sample_weight=weight).booster_.attributes
    evaluated = DaskBoostRegressor(**SMALL).fit(X[:700], Y[:700], eval_set=[(X[700:], Y[700:])])
    assert evaluated.best_iteration < 1900 and list(evaluated.evals_result_) == ["validation_0"]
    watched = DaskBoostRegressor(**SMALL, early_stopping=False).fit(X[:700], Y[:700], eval_set=[(X[700:], Y[700:])])
    assert watched.booster_.n_iterations == 100
    assert members(DaskBoostRegressor(**SMALL, early_stopping=True).fit(X[:60], Y[:60]))


def test_callbacks_see_one_model_and_logs_do_not_change_it(capsys: pytest.CaptureFixture[str]) -> None:
    class Rounds(Callback):
        def __init__(self) -> None:
            self.seen: list[int] = []

        def after_round(self, info: RoundInfo) -> bool:
            self.seen.append(info.iteration)
            return False

    watching = Rounds()
    model = DaskBoostRegressor(**SMALL, callbacks=[watching]).fit(X, Y)
    assert len(members(model)) == 1
    assert watching.seen == list(range(len(watching.seen))) and len(watching.seen) > model.booster_.n_iterations
    slow = [LearningRateSchedule(lambda iteration: 0.05)]
    for refit in ("none", "replay"):
        scheduled = DaskBoostRegressor(**SMALL, n_estimators=4, early_stopping=True, refit=refit, callbacks=slow)
        own = scheduled.fit(X, Y).predict(X) - scheduled.booster_.base_score[0]
        assert 0 < np.abs(own).max() < 4 * 0.05 * np.abs(Y).max(), refit
    plain = DaskBoostRegressor(**SMALL, early_stopping_rounds=2).fit(X, Y)
    logged = DaskBoostRegressor(**SMALL, early_stopping_rounds=2).fit(X, Y, verbose=True)
    assert plain.booster_ == logged.booster_
    assert "held_out_4" in capsys.readouterr().out


def test_a_fit_may_be_repeated_and_depends_on_its_seed() -> None:
    first, again, other = (
        DaskBoostRegressor(**SMALL, random_state=seed, early_stopping_rounds=5).fit(X, Y).booster_ for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.mark.parametrize(("given", "message"), [
    ({"preset": "quick"}, r"preset='quick' must be one of 'fast', 'balanced'"),
    ({"early_stopping": "yes"}, "early_stopping='yes' must be 'auto', True or False"),
    ({"validation_fraction": 0.7}, "validation_fraction=0.7 must be a number from 0.001 to 0.5"),
    ({"n_members": 0}, "n_members=0"), ({"cross_features": "no"}, "cross_features='no' must be True or False"),
    ({"n_members": 6}, "n_members=6 models cannot each hold out another share .*give at most 5"),
    ({"n_members": 3, "refit": "replay"}, "n_members=3 models are averaged, and refit='replay' is of one"),
    ({"n_members": 3, "has_time": True}, "n_members=3 needs as many shares of rows"),
    ({"refit": "again"}, "refit='again' must be one of 'average', 'replay', 'none'"),
    ({"early_stopping_rounds": 5, "early_stopping": False}, "early_stopping_rounds=5 needs rows that tell when"),
    ({"early_stopping_rounds": 5, "preset": "xgboost"}, "early_stopping_rounds=5 needs rows that tell when"),
    ({"early_stopping_rounds": 0}, "early_stopping_rounds=0"),
    ({"n_estimators": -1}, "n_estimators=-1"),
])  # fmt: skip
def test_what_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        DaskBoostRegressor(**given).fit(X, Y)


def test_rows_that_cannot_be_held_out_are_refused() -> None:
    first = DaskBoostRegressor(n_estimators=2, **SMALL).fit(X, Y)
    with pytest.raises(ParameterError, match="early_stopping=True holds rows out, which init_model does not allow"):
        DaskBoostRegressor(early_stopping=True, **SMALL).fit(X, Y, init_model=first)
    weight = (np.zeros(len(X)) == QID).astype(float)  # one query alone counts
    ranker = DaskBoostRanker(early_stopping=True, **SMALL)
    with pytest.raises(DataError, match="no rows can be held out to stop by: all rows of positive weight"):
        ranker.fit(X, np.digitize(Y, [0, 1]), qid=QID, sample_weight=weight)


def test_learning_rates_fall_as_rounds_rise() -> None:
    assert [learning_rate_of(n) for n in (0, 1, 30, 100, 1000, 10_000)] == [0.3, 0.3, 0.3, 0.17, 0.0302, 0.0054]
    assert all(preset.numbers.n_members <= round(1 / preset.validation_fraction) for preset in PRESETS.values())
