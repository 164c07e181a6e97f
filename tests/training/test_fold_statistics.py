"""Target statistics where rows are held out: what they know of the labels of these."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.statistics import sums_of, values_of
from sklearn.model_selection import KFold

from daskboost import DaskBoostClassifier, QuantizedDataset, cv, evaluate_features, train_many
from daskboost.data.categories import combinations, encode
from daskboost.data.categories import encoder as encoder_module
from daskboost.data.categories.encode import CategoryOptions, encoded, encoded_without
from daskboost.data.categories.encoder import Encoder
from daskboost.data.categories.folds import folds_of
from daskboost.data.chunks.row_folds import FoldRule, GivenFolds, LeftOut
from daskboost.data.input import uploaded_rows as upload
from daskboost.data.input.row_batch import DenseRows
from daskboost.data.input.source import Source, make_source
from daskboost.dtypes import Float32
from daskboost.errors import DataError, ParameterError, StorageError
from daskboost.local.in_process import LocalRunner, LocalShards
from daskboost.model.average import average
from daskboost.training import members
from daskboost.training.folds import Folds

SEED = 3


def frame(n_rows: int, seed: int = 0, n_levels: int = 250) -> pd.DataFrame:
    """Return columns that say nothing of the labels in "y"."""
    rng = np.random.default_rng(seed)
    columns = {name: rng.integers(0, n_levels, n_rows).astype(str) for name in "abc"}
    return pd.DataFrame({**columns, "y": rng.integers(0, 2, n_rows)})


def features(rows: pd.DataFrame, folds: Sequence[int]) -> tuple[Float32, Encoder, Encoder]:
    """Return the features in which rows know no labels of fold 1, and of none; the encoder of all rows, and theirs."""
    runner = LocalRunner(1)
    with QuantizedDataset(rows.drop(columns=["y", "w"]), rows["y"], weight=rows["w"], random_state=SEED) as data:
        info = data.info
    source = encoded(make_source(rows, "y", weight="w"), CategoryOptions(SEED), runner)
    whole = source.schema.encoder
    assert isinstance(whole, Encoder)
    left_out, counted = LeftOut(GivenFolds(np.array(folds, np.int8)), 1), np.array(folds) == 0
    n_counted = int((counted & (rows["w"] > 0)).sum())
    own = encoded_without(source, whole, left_out, n_counted, info, SEED, runner)
    (batch,) = own.batches()
    made = own.schema.encoder
    assert isinstance(made, Encoder)
    assert isinstance(batch.features, DenseRows)
    return batch.features.matrix(), whole, made


@st.composite
def held_out_rows(draw: st.DrawFn) -> tuple[pd.DataFrame, list[int]]:
    """Some rows of weights, and which of them are trained on (0), held out (1), and neither (-1)."""
    n = draw(st.integers(12, 40))
    one_of: dict[str, list[str | None]] = {"a": ["u", "v", "w", "x", None], "b": ["p", "q", "r", "s"]}
    columns = {name: draw(st.lists(st.sampled_from(own), min_size=n, max_size=n)) for name, own in one_of.items()}
    labels = [0, 1, *draw(st.lists(st.integers(0, 1), min_size=n - 2, max_size=n - 2))]
    weights = [1, 1, *draw(st.lists(st.sampled_from([0, 1, 2]), min_size=n - 2, max_size=n - 2))]
    folds = draw(st.lists(st.sampled_from([0, 0, 0, 1, -1]), min_size=n, max_size=n))
    return pd.DataFrame({**columns, "y": labels, "w": weights}), folds


@given(held_out_rows(), st.sampled_from([0, 4, 1000]))
@settings(max_examples=40, deadline=None)
def test_rows_have_what_other_rows_count(own: tuple[pd.DataFrame, list[int]], frequent: int) -> None:
    """A row that is held out has statistics of all others, as if nine tenths of them counted; others have them of other
    folds. Labels of rows held out count in frequent levels alone."""
    rows, folds = own
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder_module, "FREQUENT", frequent)
        patch.setattr(combinations, "LEAST_LEVELS", 3)
        found, whole, made = features(rows, folds)
    n, names, labels = len(rows), list(whole.schema.names or ()), rows["y"].tolist()
    weighs, parts = (rows["w"] > 0).tolist(), folds_of(SEED, 0, n).tolist()
    statistics = whole.target.statistics(whole.priors)
    for columns in (["a"], ["b"], ["a", "b"]):
        name = f"{', '.join(columns)} (target)"
        if name not in names:
            continue
        levels = [tuple(each) for each in rows[columns].fillna("").itertuples(index=False)]
        for i in range(n):
            same = [j for j in range(n) if levels[j] == levels[i] and weighs[j]]
            counted = [j for j in same if folds[j] == 0 or len(same) >= frequent]
            if folds[i] == 0:
                counted = [j for j in counted if parts[j] != parts[i]]
            sums = sums_of(counted, labels, statistics.steps.tolist())
            (value,) = values_of(sums, statistics, 1.0 if folds[i] == 0 else 0.9)
            assert found[i, names.index(name)] == np.float32(value), (columns, i)
    trained = sum(fold == 0 and weight for fold, weight in zip(folds, weighs, strict=True))
    assert made.share == pytest.approx(0.9 * trained / sum(weighs))


def test_labels_of_rows_held_out_change_no_feature() -> None:
    rows = frame(600, n_levels=40).assign(w=1.0)
    folds = np.random.default_rng(1).choice([0, 0, 1, -1], 600)
    others = rows.copy()
    hidden = np.flatnonzero(folds)
    others.loc[hidden, "y"] = rows["y"].to_numpy()[np.roll(hidden, 7)]
    assert (others["y"] != rows["y"]).sum() > 50
    np.testing.assert_array_equal(features(rows, folds.tolist())[0], features(others, folds.tolist())[0])


@pytest.mark.parametrize("folds", ["number", "pairs"])
def test_noise_is_found_to_be_noise(folds: str) -> None:
    """Three columns of 250 levels that say nothing had an AUC of .56 to .62 where statistics knew the labels of rows
    held out."""
    for seed in range(3):
        rows = frame(4000, seed)
        given = 5 if folds == "number" else list(KFold(5, shuffle=True, random_state=seed).split(rows))
        with QuantizedDataset(rows.drop(columns="y"), rows["y"], max_ctr_complexity=1) as data:
            params = {"objective": "binary:logistic", "eval_metric": "auc", "learning_rate": 0.3, "n_jobs": 2}
            table = cv(params, data, 20, folds=given)
        assert abs(table["valid-auc-mean"].iloc[-1] - 0.5) < 0.035


def test_levels_of_hundreds_of_rows_tell_no_labels() -> None:
    """Where no level was rare nothing was read again, and columns that say nothing had an AUC of .58 to .61 of labels
    that few rows have."""
    found = []
    for seed in range(3):
        rows = frame(12000, seed, n_levels=40)
        x = rows.drop(columns="y").assign(n=rows["a"].astype(float))
        y = np.random.default_rng(seed).random(12000) < 0.05
        with QuantizedDataset(x, y.astype(int)) as data:
            params = {"objective": "binary:logistic", "eval_metric": "auc", "learning_rate": 0.3, "n_jobs": 2}
            found.append(cv(params, data, 20, folds=5)["valid-auc-mean"].iloc[-1])
    assert abs(np.mean(found) - 0.5) < 0.03


def test_a_subset_is_divided_without_the_other_rows() -> None:
    """Labels that rows share with rows outside the subset are nothing to learn of it."""
    rows = frame(4000, 1)
    doubled = pd.concat([rows, rows, rows, rows], ignore_index=True)
    with QuantizedDataset(doubled.drop(columns="y"), doubled["y"], max_ctr_complexity=1) as data:
        params = {"objective": "binary:logistic", "eval_metric": "auc", "learning_rate": 0.3, "n_jobs": 2}
        table = cv(params, data.subset(np.arange(4000)), 20, folds=5)
    assert abs(table["valid-auc-mean"].iloc[-1] - 0.5) < 0.035


def test_a_fit_stops_where_new_rows_would() -> None:
    """Held-out rows of pure noise show no round to be better than none by much."""
    rows = frame(4000, 2)
    model = DaskBoostClassifier(max_ctr_complexity=1, n_jobs=2, cross_features=False)
    model.fit(rows.drop(columns="y"), rows["y"])
    losses = [metrics["logloss"] for metrics in model.evals_result_.values()]
    assert len(losses) == 5
    assert np.mean([min(each) for each in losses]) > 0.692, "that of one half for all is .6931"
    encoder = model.booster_.schema.encoder
    assert isinstance(encoder, Encoder)
    assert encoder.share == pytest.approx(0.9 * 0.8, abs=0.001)


def test_an_average_does_not_depend_on_which_model_is_first() -> None:
    """Statistics are of the middle share of the rows, not of the first model's, which held out most rows."""
    rows, places = frame(600, 3, n_levels=60), np.arange(600)
    held_out = [places < 500, places < 100, places >= 500]
    params = {"objective": "binary:logistic", "base_score": 0.5, "device": "cpu", "n_jobs": 1}
    with QuantizedDataset(rows[["a"]], rows["y"]) as data:
        models = [own.booster for own in train_many(params, data, 3, folds=[(~own, own) for own in held_out])]
    found = []
    for given_models in (models, models[::-1]):
        mean = average(given_models)
        encoder = mean.schema.encoder
        assert isinstance(encoder, Encoder)
        assert encoder.share == pytest.approx(0.9 * 500 / 600)
        found.append(mean.predict(rows[["a"]], output="margin"))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["numbers", "codes", "time", "frequent"])
def test_rows_without_statistics_that_tell_labels_are_read_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = frame(3000, n_levels=3 if kind == "frequent" else 30)
    if kind == "frequent":
        monkeypatch.setattr(encoder_module, "TELLING", 500)
    x = rows.drop(columns="y")
    options: dict[str, dict[str, Any]] = {"codes": {"encodings": "native"}, "time": {"has_time": True}}
    if kind == "numbers":
        x = x.astype(float)
    with QuantizedDataset(x, rows["y"], **options.get(kind, {})) as data:
        rule = GivenFolds(np.arange(3000, dtype=np.int64).astype(np.int8) % 2)
        assert data.unaware_of(rule, 1, 1500) is data
        pair = Folds(data, rule, [1])[0]
        assert all(half.shards._whole is data.shards for half in pair)


def test_a_saved_data_set_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = frame(500)
    with QuantizedDataset(rows.drop(columns="y"), rows["y"]) as data:
        data.save(tmp_path / "set")
    params = {"objective": "binary:logistic", "n_jobs": 1}
    with QuantizedDataset.open(tmp_path / "set") as opened, caplog.at_level(logging.WARNING, "daskboost"):
        train_many(params, opened, 2)
        assert not caplog.records
        cv(params, opened, 2, folds=2)
    assert caplog.text.count("know the labels of rows that are held out") == 1


def test_statistics_of_other_rows_know_no_labels(caplog: pytest.LogCaptureFixture) -> None:
    """Rows of a data set with a reference had no part in its statistics."""
    rows, others = frame(500), frame(500, 1)
    with QuantizedDataset(rows.drop(columns="y"), rows["y"]) as reference:
        with QuantizedDataset(others.drop(columns="y"), others["y"], reference=reference) as data:
            with caplog.at_level(logging.WARNING, "daskboost"):
                cv({"objective": "binary:logistic", "n_jobs": 1}, data, 2, folds=2)
                cv({"objective": "binary:logistic", "n_jobs": 1}, data.subset(np.arange(300)), 2, folds=2)
    assert not caplog.records


def test_what_is_read_again_is_freed() -> None:
    rows = frame(500)
    with QuantizedDataset(rows.drop(columns="y"), rows["y"]) as data:
        rule = GivenFolds((np.arange(500) % 2).astype(np.int8))
        folds = Folds(data, rule, [0, 1])
        first: Any = folds[0][0].shards
        assert folds[0][0].shards is first and first._whole is not data.shards
        kept = weakref.ref(first._whole)
        del first, folds
        gc.collect()
        assert kept() is None


def test_large_members_have_one_fold_read_again_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """They grow one after the other, so that the bins of other folds would lie there unused."""
    rows, alive, counts = frame(1500, n_levels=30), list[Any](), list[int]()
    plain = QuantizedDataset.unaware_of

    def noted(data: QuantizedDataset, rule: FoldRule, fold: int, n_others: int) -> QuantizedDataset:
        counts.append(sum(each() is not None for each in alive))
        own = plain(data, rule, fold, n_others)
        alive.append(weakref.ref(own.shards))
        return own

    settings: dict[str, Any] = {"n_estimators": 20, "early_stopping": True, "n_jobs": 1}
    x, y = rows.drop(columns="y"), rows["y"]
    expected = DaskBoostClassifier(**settings).fit(x, y)
    monkeypatch.setattr(members, "AT_ONCE", 0)
    monkeypatch.setattr(QuantizedDataset, "unaware_of", noted)
    found = DaskBoostClassifier(**settings).fit(x, y)
    assert found.booster_ == expected.booster_
    assert len(counts) >= 5
    assert max(counts) == 0


@pytest.mark.parametrize("changed", ["labels", "levels", "order"])
def test_rows_that_have_changed_are_refused(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be held out by the folds, and have the labels, of others."""
    monkeypatch.setattr(encode, "KEPT_SHARE", 2**60)  # or columns would be those that were read first
    rows = frame(1000, n_levels=30)
    x, y = rows.drop(columns="y"), rows["y"].to_numpy().copy()
    with QuantizedDataset(x, y) as data:
        if changed == "labels":
            y[:100] = 1
        elif changed == "levels":
            x["a"] = "0"
        else:
            y[:] = y[::-1].copy()
        with pytest.raises(DataError, match="have changed since the data set was made"):
            cv({"objective": "binary:logistic", "n_jobs": 1}, data, 2, folds=2)


@pytest.mark.parametrize("function", [cv, train_many, evaluate_features])
def test_parameters_are_judged_before_rows_are_read_again(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = frame(300)
    monkeypatch.setattr(QuantizedDataset, "unaware_of", lambda *_: pytest.fail("rows were read"))
    others = (["a"],) if function is evaluate_features else ()
    with QuantizedDataset(rows.drop(columns="y"), rows["y"]) as data:
        with pytest.raises(ParameterError, match="monotone_constraints"):
            function({"monotone_constraints": {"z": 1}}, data, *others, folds=3)


def test_pairs_are_judged_before_rows_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = frame(300)
    monkeypatch.setattr(QuantizedDataset, "unaware_of", lambda *_: pytest.fail("rows were read"))
    first, second = np.arange(150), np.arange(150, 300)
    with QuantizedDataset(rows.drop(columns="y"), rows["y"]) as data:
        with pytest.raises(ParameterError, match=r"folds\[1\] has row 0 in both halves"):
            cv({"objective": "binary:logistic"}, data, 2, folds=[(first, second), (first, first)])


def test_folds_share_the_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, limits = frame(500), list[int | None]()
    plain = Source.quantized_on

    def noted(source: Source, device: str | None, memory_limit: int | None = None, *, lends: bool = True) -> Source:
        limits.append(memory_limit)
        return plain(source, device, memory_limit, lends=lends)

    with QuantizedDataset(rows.drop(columns="y"), rows["y"], device_memory_limit=1000) as data:
        monkeypatch.setattr(Source, "quantized_on", noted)
        monkeypatch.setattr(LocalShards, "device_bytes", 100)
        rule = GivenFolds((np.arange(500) % 3).astype(np.int8))
        folds = list(Folds(data, rule, [0, 1, 2]))
        assert limits == [900, 800, 700]
        del folds
        data.unaware_of(rule, 0, 300)
    assert limits[3] == 900


def test_folds_without_room_say_what_takes_it() -> None:
    rows = frame(4000)
    with QuantizedDataset(rows.drop(columns="y"), rows["y"], host_memory_limit="100KB") as data:
        with pytest.raises(StorageError, match="of its reference, or of the same rows for other folds: set spill_dir"):
            cv({"objective": "binary:logistic", "n_jobs": 1}, data, 2, folds=5)


@pytest.mark.gpu
@pytest.mark.parametrize("lies", ["host", "gpu"])
def test_gpus_leave_the_same_labels_out(lies: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    monkeypatch.setattr(upload, "TINY_VALUES", 0)
    rows = frame(3000).astype(np.int32)
    x, y = rows.drop(columns="y").to_numpy(), rows["y"].to_numpy(np.float32)
    settings: dict[str, Any] = {"n_estimators": 30, "early_stopping": True, "categorical_features": [0, 1, 2]}
    expected = DaskBoostClassifier(**settings, device="cpu").fit(x, y)
    given = (x, y) if lies == "host" else (cupy.asarray(x), cupy.asarray(y))
    found = DaskBoostClassifier(**settings, device="cuda").fit(*given)
    assert found.booster_ == expected.booster_
    assert found.evals_result_.keys() == expected.evals_result_.keys()
