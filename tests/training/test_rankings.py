"""Whole fits of ranking objectives: bytes that depend on rows alone, models of XGBoost's quality, what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.model_selection import GroupKFold
from strategies.trees import marks_of

from daskboost import Booster, QuantizedDataset, cv, evaluate_features, plan, train, train_many
from daskboost.devices.budget.plan import SMALL_ROWS
from daskboost.engine import whole_rounds
from daskboost.errors import DataError, ParameterError
from daskboost.training.folds import make_folds

NAMES = ("rank:ndcg", "rank:pairwise", "rank:map")
BASE: dict[str, Any] = {"learning_rate": 0.3, "max_depth": 4, "n_jobs": 2}


def make_rows(n: int = 4200, queries: int = 300, seed: int = 0) -> tuple[Any, Any, Any]:
    """Return features, labels and queries in no order, one query of a tenth of the rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 6)).astype(np.float32)
    X[rng.random((n, 6)) < 0.05] = np.nan
    signal = np.nan_to_num(X[:, 0] + X[:, 1] * X[:, 2]) + rng.normal(size=n)
    qid = rng.integers(0, queries, n)
    qid[: n // 10] = queries
    label = np.searchsorted([0.5, 1.5, 2.5], signal).astype(np.float32)
    order = rng.permutation(n)
    return X[order], label[order], qid[order]


X, LABEL, QID = make_rows()


def labels_for(name: str) -> Any:
    return (LABEL > 1).astype(np.float32) if name == "rank:map" else LABEL


def trained(name: str, rounds: int = 8, *, evals: bool = False, **options: Any) -> tuple[Booster, Any]:
    params = {**BASE, "objective": name, **options.pop("params", {})}
    data = QuantizedDataset(options.pop("X", X), options.pop("y", labels_for(name)), **{"qid": QID, **options})
    history: dict[str, Any] = {}
    booster = train(params, data, rounds, evals=[(data, "train")] if evals else [], evals_result=history)
    return booster, history


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("params", [{}, {"lambdarank_pair_method": "mean", "lambdarank_num_pair_per_sample": 2}],
                         ids=["topk", "mean"])  # fmt: skip
def test_bytes_depend_on_rows_alone(name: str, params: dict[str, Any], tmp_path: Path) -> None:
    given = {**params, "eval_metric": ["ndcg@10", "map@10-", "mrr"]}
    expected, history = trained(name, params=given, evals=True)
    others: list[dict[str, Any]] = [
        {"chunk_rows": 700}, {"chunk_rows": 53, "params": {"n_jobs": 1}}, {"encoding": "csr"}, {"qid": QID * -7 + 3},
        {"chunk_rows": 700, "host_memory_limit": 20_000, "spill_directory": tmp_path},
        {"X": dd.from_pandas(pd.DataFrame(X).assign(y=labels_for(name), q=[f"q{own}" for own in QID])
                             .rename(columns=str), npartitions=7), "y": "y", "qid": "q",
         "feature_names": [str(i) for i in range(6)]},
    ]  # fmt: skip
    for options in others:
        own = {**given, **options.pop("params", {})}
        booster, found = trained(name, params=own, evals=True, **options)
        assert [tree.value.tobytes() for tree in booster.trees] == [tree.value.tobytes() for tree in expected.trees]
        assert found == history
    assert len(expected.trees[0].value) > 10


@pytest.mark.parametrize("policy", ["depthwise", "lossguide"])
def test_one_round_after_another_or_by_the_host(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    params = {"grow_policy": policy, "subsample": 0.8, "max_leaves": 12 if policy == "lossguide" else 0}
    expected, _ = trained("rank:ndcg", params=params)
    monkeypatch.setattr(whole_rounds, "why_not_compiled", lambda engine, spec: "the test says so")
    assert trained("rank:ndcg", params=params)[0].to_bytes("json") == expected.to_bytes("json")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [600, 4200], ids=["small", "large"])
def test_trees_are_as_good_as_those_of_xgboost(name: str, n: int) -> None:
    label, metric = labels_for(name)[:n], "map" if name == "rank:map" else "ndcg@10"
    data = QuantizedDataset(X[:n], label, qid=QID[:n])
    history: dict[str, Any] = {}
    params = {**BASE, "objective": name, "eval_metric": metric}
    booster = train(params, data, 20, evals=[(data, "train")], evals_result=history)
    order = np.argsort(QID[:n], kind="stable")
    matrix = xgboost.DMatrix(X[:n][order], label[order], qid=QID[:n][order])
    theirs: dict[str, Any] = {}
    given = {"objective": name, "eval_metric": metric, "eta": 0.3, "max_depth": 4, "nthread": 1}
    xgboost.train(given, matrix, 20, evals=[(matrix, "train")], evals_result=theirs, verbose_eval=False)
    ours = history["train"][metric]
    assert ours[-1] > theirs["train"][metric][-1] - 0.01
    np.testing.assert_allclose(ours[:2], theirs["train"][metric][:2], atol=0.01)
    loaded = xgboost.Booster(model_file=bytearray(booster.to_bytes("json")))
    np.testing.assert_array_equal(loaded.predict(matrix, output_margin=True), booster.predict(X[:n][order]))
    assert Booster.from_bytes(booster.to_bytes("ubj")).objective == booster.objective
    model = json.loads(booster.to_bytes("json"))["learner"]
    assert model["objective"]["name"] == name and model["objective"]["lambdarank_param"]["ndcg_exp_gain"] == "1"


@pytest.mark.parametrize("n", [600, 4200], ids=["small", "large"])
def test_rows_of_weight_zero_are_as_if_there_were_none(n: int) -> None:
    own = np.random.default_rng(3).uniform(0.5, 2, 301).astype(np.float32)[QID[:n]]
    left_out = np.random.default_rng(4).random(n) < (0.3 if n < SMALL_ROWS else 0.02)  # what is left is as small
    assert (n > SMALL_ROWS) == (np.count_nonzero(~left_out) > SMALL_ROWS)
    data = QuantizedDataset(X[:n], LABEL[:n], qid=QID[:n], weight=own)
    subset = data.subset(np.flatnonzero(~left_out))
    weighted = QuantizedDataset(X[:n], LABEL[:n], qid=QID[:n], weight=np.where(left_out, 0, own), reference=data)
    params = {**BASE, "objective": "rank:ndcg", "eval_metric": "ndcg@5"}
    found: list[dict[str, Any]] = [{}, {}]
    models = [
        train(params, each, 5, evals=[(subset, "train")], evals_result=history)
        for each, history in zip((subset, weighted), found, strict=True)
    ]
    assert models[0].to_bytes("json") == models[1].to_bytes("json")
    assert found[0] == found[1]


def test_weights_of_queries_count() -> None:
    """A query of weight 2 pulls as two queries of weight 1 do, but for penalties: weights are 1 on average."""
    rows = np.flatnonzero(QID < 60)
    twice = np.concatenate([rows, rows[QID[rows] < 20]])
    copies = np.concatenate([QID[rows], QID[rows[QID[rows] < 20]] + 1000])
    params = {**BASE, "objective": "rank:pairwise", "reg_lambda": 0, "min_child_weight": 0, "max_depth": 3}
    weighted = QuantizedDataset(X[rows], LABEL[rows], qid=QID[rows], weight=1.0 + (QID[rows] < 20))
    copied = QuantizedDataset(X[twice], LABEL[twice], qid=copies, reference=weighted)
    by_weight, by_copies = (train(params, data, 3).predict(X) for data in (weighted, copied))
    np.testing.assert_allclose(by_weight, by_copies, rtol=1e-4, atol=1e-5)


def test_early_stopping_takes_the_largest_and_a_model_continues() -> None:
    data, valid = QuantizedDataset(X[:3600], LABEL[:3600], qid=QID[:3600]), (X[3600:], LABEL[3600:])
    held_out = QuantizedDataset(*valid, qid=QID[3600:], reference=data)
    params = {**BASE, "objective": "rank:ndcg", "eval_metric": "ndcg@5", "lambdarank_pair_method": "mean"}
    history: dict[str, Any] = {}
    booster = train(params, data, 60, evals=[(held_out, "v")], early_stopping_rounds=5, evals_result=history)
    assert booster.best_score == max(history["v"]["ndcg@5"])
    assert booster.n_iterations < 60
    begun = train(params, data, 4)
    assert train(params, data, 3, init_model=begun).to_bytes("json") == train(params, data, 7).to_bytes("json")


def test_models_grow_side_by_side_and_folds_keep_queries_whole() -> None:
    data = QuantizedDataset(X, LABEL, qid=QID)
    candidates = [{**BASE, "objective": name, "eval_metric": "ndcg@5"} for name in ("rank:ndcg", "rank:pairwise")]
    made = train_many(candidates, data, 4)
    for each, params in zip(made, candidates, strict=True):
        assert each.booster.to_bytes("json") == train(params, data, 4).to_bytes("json")
    table = cv(candidates[0], data, 3, folds=3)
    assert table["valid-ndcg@5-mean"].iloc[-1] > 0.5
    held_out = [set(QID[marks_of(valid)].tolist()) for _, valid in make_folds(data, 3)]
    assert sum(map(len, held_out)) == len(set.union(*held_out)) == len(np.unique(QID))
    assert max(map(len, held_out)) - min(map(len, held_out)) <= 1
    groups = list(GroupKFold(3).split(X, groups=QID))
    assert [valid.n_rows for _, valid in make_folds(data, groups)] == [len(held) for _, held in groups]
    (trial,) = evaluate_features({**candidates[0], "max_depth": 2}, data, [0], 3, folds=3)
    assert trial.metric == "ndcg@5" and trial.mean > 0
    apart = [(np.arange(2000), np.arange(2000, len(X)))]
    for bad, message in (
        ({"folds": apart}, "but trains on others of its query; keep queries whole"),
        ({"folds": 302}, "the number of queries, 301"), ({"stratified": True}, "queries stay whole"),
    ):  # fmt: skip
        with pytest.raises(ParameterError, match=message):
            cv(candidates[0], data, 1, **bad)


BAD: list[tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = [
    ({}, {"qid": None}, DataError, "dtrain has no qids; make it with qid"),
    ({}, {"y": LABEL - 1}, DataError, "label -1 is out of range for objective 'rank:ndcg'"),
    ({}, {"y": LABEL * 20}, DataError, "set ndcg_exp_gain=False"),
    ({"objective": "rank:map"}, {}, DataError, "needs labels 0 and 1"),
    ({}, {"weight": np.arange(1.0, 1.0 + len(LABEL))}, DataError, "weight differs within a query"),
    ({"out_of_core": "certified"}, {}, ParameterError, "out_of_core='certified' does not go with"),
    ({"out_of_core": "sampled", "subsample": 0.5}, {}, ParameterError, "out_of_core='sampled' does not go with"),
    ({"lambdarank_num_pair_per_sample": 10**9}, {}, ParameterError, "lambdarank_num_pair_per_sample=1000000000 must"),
    ({"objective": "reg:squarederror", "ndcg_exp_gain": False, "eval_metric": "err"}, {}, ParameterError, "no effect"),
    ({"lambdarank_pair_method": "top"}, {}, ParameterError, "must be one of 'topk', 'mean'"),
    ({"objective": "reg:squarederror", "ndcg_exp_gain": False}, {}, ParameterError, "ndcg_exp_gain=False has no effe"),
    ({"objective": "reg:squarederror", "eval_metric": "ndcg"}, {"qid": None}, DataError, "eval_metric='ndcg' is of qu"),
    ({"objective": "rank:pairwise", "eval_metric": "ndcg"}, {"y": LABEL + 0.5}, DataError, "labels that are not whole"),
]  # fmt: skip


@pytest.mark.parametrize(("params", "rows", "error", "message"), BAD)
def test_bad_input_is_refused(
    params: dict[str, Any], rows: dict[str, Any], error: type[Exception], message: str
) -> None:
    given = {"y": LABEL, "qid": QID, **rows}
    data = QuantizedDataset(X, **given)
    with pytest.raises(error, match=re.escape(message)):
        train({**BASE, "objective": "rank:ndcg", **params}, data, 2, evals=[(data, "train")])


def test_metrics_of_queries_go_with_any_objective() -> None:
    _, history = trained("reg:squarederror", params={"eval_metric": ["rmse", "ndcg@5", "mrr@3"]}, evals=True, y=LABEL)
    assert list(history["train"]) == ["rmse", "ndcg@5", "mrr@3"]
    assert history["train"]["ndcg@5"][-1] > history["train"]["ndcg@5"][0]


def test_gains_of_ndcg_are_chosen_beside_any_objective() -> None:
    """What the message about labels without an exponential gain advises is possible."""
    data = QuantizedDataset(X, LABEL + 0.5, qid=QID)
    params = {**BASE, "objective": "reg:squarederror", "ndcg_exp_gain": False}
    found: Any = {}
    train({**params, "eval_metric": ["ndcg@5", "ndcg-"]}, data, 2, evals=[(data, "train")], evals_result=found)
    assert 0.5 < found["train"]["ndcg-"][-1] <= 1
    with pytest.raises(ParameterError, match="of eval_metric='ndcg' beside any"):
        train({**params, "eval_metric": "map"}, data, 2, evals=[(data, "train")])


def test_the_automatic_device_is_the_cpu() -> None:
    auto, _ = trained("rank:ndcg", 2, params={"device": "auto"})
    assert auto.to_bytes("json") == trained("rank:ndcg", 2, params={"device": "cpu"})[0].to_bytes("json")
    ranked, plain = (plan({"objective": name}, n_rows=1000, n_features=10, evals=[500], memory="1GB")
                     for name in ("rank:ndcg", "reg:tweedie"))  # fmt: skip
    assert ranked.device == "cpu"
    assert ranked.gradients_bytes - plain.gradients_bytes == 32 * 1000
    assert ranked.evaluation_bytes - plain.evaluation_bytes == 24 * 500
    ranked, plain = (plan({"objective": name}, n_rows=1000, n_features=10, evals=[500], memory="1GB", n_workers=2)
                     for name in ("rank:ndcg", "reg:tweedie"))  # fmt: skip
    assert ranked.gradients_bytes - plain.gradients_bytes == (32 + 44) * 500
    assert ranked.evaluation_bytes - plain.evaluation_bytes == (24 + 20) * 250
