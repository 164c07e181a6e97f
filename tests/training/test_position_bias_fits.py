"""Whole fits on clicks: bytes that depend on rows alone, what they learn of positions, files, and what is refused."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, Literal

import numpy as np
import pytest
import xgboost
from kernels.tracked import TrackedRuntime
from training.plan_shapes import within
from training.test_ranking_fits import WHERE, emulate, make_data

from daskboost import Booster, DaskBoostRanker, QuantizedDataset, cv, plan, train, train_many
from daskboost.devices.gpu.runtime import cuda
from daskboost.errors import ParameterError
from daskboost.objectives.ranking import RankingObjective
from daskboost.training.callbacks import Checkpoint

PARAMS: dict[str, Any] = {
    "objective": "rank:ndcg", "lambdarank_unbiased": True, "max_depth": 4, "max_bin": 32, "n_jobs": 1,
    "min_child_weight": 0,
}  # fmt: skip


def chances_of(model: Booster) -> list[tuple[float, ...]]:
    """Return what a model has learned of positions."""
    assert isinstance(model.objective, RankingObjective) and model.objective.position_bias is not None
    return [model.objective.position_bias.relevant, model.objective.position_bias.irrelevant]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("method", ["topk", "mean"])
@pytest.mark.parametrize("n_rows", [600, 4_500])
def test_models_depend_on_rows_alone(
    method: str, n_rows: int, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chances too, where a fit goes on from a model, which has those of its last round."""
    emulate(where, monkeypatch)
    rows, found = make_data(n_rows, weighted=True, large=n_rows > 600), []
    given = {**PARAMS, "lambdarank_pair_method": method}
    for device, chunk_rows, jobs in (("cpu", 0, 1), ("cpu", 333, 3), ("cuda", 0, 1)):
        with QuantizedDataset.from_dask(**rows, max_bin=32, n_jobs=1, chunk_rows=chunk_rows) as data:
            params = {**given, "device": device, "n_jobs": jobs}
            begun = Booster.from_bytes(train(params, data, 2).to_bytes("ubj"))
            found += [train(params, data, 5), train(params, data, 3, init_model=begun)]
    assert len({model.to_bytes("json") for model in found[::2]}) == 1
    assert len({model.to_bytes("json") for model in found}) == 1
    assert all(tree.n_nodes > 1 for tree in found[0].trees)
    assert min(map(np.ptp, chances_of(found[0]))) > 0.1 and chances_of(begun) != chances_of(found[0])


@pytest.mark.parametrize("where", WHERE)
def test_rows_that_stream(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(where, monkeypatch)
    rows = make_data(4_500, weighted=False, large=True)
    rows["X"] = np.tile(rows["X"], 30)
    with QuantizedDataset.from_dask(**rows, max_bin=32, n_jobs=1, chunk_rows=500) as data:
        limit = plan({**PARAMS, "device": "cuda", "device_memory_limit": 1}, data, num_boost_round=3).total_bytes
        streamed = {**PARAMS, "device": "cuda", "device_memory_limit": limit}
        assert plan(streamed, data, num_boost_round=3).reads is not None
        assert train(streamed, data, 3).to_bytes() == train({**PARAMS, "device": "cpu"}, data, 3).to_bytes()


@pytest.mark.emulated
@pytest.mark.parametrize("method", ["topk", "mean"])
def test_a_fit_stays_within_its_plan(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = TrackedRuntime()
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    params = {**PARAMS, "lambdarank_pair_method": method, "device": "cuda", "lambdarank_num_pair_per_sample": 500}
    params |= {"eval_metric": ["ndcg@10"]}
    with QuantizedDataset.from_dask(**make_data(8_000, weighted=False, large=True), max_bin=32, n_jobs=1) as data:
        planned = plan(params, data, num_boost_round=3, evals=[(data, "train")])
        assert planned.without_host and planned.watched
        train(params, data, 3, evals=[(data, "train")])
    within(runtime.meter.pool.total_bytes, planned)


def test_checkpoints_resume_where_they_were_taken(tmp_path: Any) -> None:
    rows = make_data(600, weighted=True, large=False)
    with QuantizedDataset.from_dask(**rows, max_bin=32, n_jobs=1) as data:
        train(PARAMS, data, 2, callbacks=[Checkpoint(tmp_path / "model.ubj", period=1)])
        resumed = train(PARAMS, data, 3, init_model=Booster.load_model(tmp_path / "model.ubj"))
        whole = train(PARAMS, data, 5)
        assert resumed.to_bytes() == whole.to_bytes()
        shorter = train({**PARAMS, "lambdarank_num_pair_per_sample": 5}, data, 1, init_model=whole)
        assert [len(own) for own in chances_of(shorter)] == [5, 5]
        biased = train({**PARAMS, "lambdarank_unbiased": False}, data, 1, init_model=whole)
        assert not json.loads(biased.to_bytes("json"))["learner"]["objective"].get("ti+")


def test_models_that_are_trained_together() -> None:
    rows = make_data(600, weighted=False, large=False)
    with QuantizedDataset.from_dask(**rows, max_bin=32, n_jobs=1) as data:
        several = [PARAMS, {**PARAMS, "lambdarank_bias_norm": 0.5}]
        assert [each.booster.to_bytes() for each in train_many(several, data, 3)] == (
            [train(each, data, 3).to_bytes() for each in several])  # fmt: skip
        assert len(cv(PARAMS, data, 2, folds=3)) == 2


# Clicks as people make them, who look at rows from the first one on.

N_SHOWN = 10
"""Rows of a query, in the order in which they were shown."""


@cache
def shown(n_queries: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """Return features, grades, clicks and queries of rows in the order of a ranking that knows little: a row is looked
    at with the chance 1 / place, and clicked then by its grade."""
    rng, n = np.random.default_rng(seed), n_queries * N_SHOWN
    X, qid = rng.normal(size=(n, 5)).astype(np.float32), np.repeat(np.arange(n_queries), N_SHOWN)
    relevance = X[:, 0] + 0.7 * X[:, 1] * X[:, 2] + rng.normal(size=n) * 0.5
    order = np.lexsort((-X[:, 3] - 0.3 * relevance, qid))
    X, grade = X[order], np.digitize(relevance[order], [0.5, 1.5, 2.5])
    chance = (0.05 + 0.9 * (2.0**grade - 1) / 7) / (1 + np.tile(np.arange(N_SHOWN), n_queries))
    return X, grade.astype(np.float32), (rng.random(n) < chance).astype(np.float32), qid


def test_positions_are_told_from_relevance() -> None:
    X, _, click, qid = shown(1500, 1)
    X_test, grade, _, qid_test = shown(400, 2)
    scores = {}
    for unbiased in (False, True):
        ranker = DaskBoostRanker(
            n_estimators=30, learning_rate=0.1, max_depth=4, n_jobs=1, lambdarank_unbiased=unbiased
        ).fit(X, click, qid=qid)  # fmt: skip
        scores[unbiased] = ranker.score(X_test, grade, qid=qid_test)
    assert scores[True] > scores[False] + 0.02
    relevant, irrelevant = chances_of(ranker.booster_)
    assert relevant[0] == 1 and relevant[1] < 0.8 and relevant[3] < 0.5 and max(relevant[6:]) < 0.3
    assert 0.8 < min(irrelevant[:N_SHOWN]) and max(irrelevant[:N_SHOWN]) < 1.3
    theirs = xgboost.train(
        {"objective": "rank:ndcg", "lambdarank_unbiased": True, "eta": 0.1, "max_depth": 4, "nthread": 1},
        xgboost.DMatrix(X, click, qid=qid), 30,
    )  # fmt: skip
    config = json.loads(theirs.save_config())["learner"]["objective"]
    np.testing.assert_allclose(relevant, config["ti+"][:N_SHOWN], rtol=0.15, atol=0.02)
    np.testing.assert_allclose(irrelevant, config["tj-"][:N_SHOWN], rtol=0.15, atol=0.02)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["json", "ubj"])
def test_files_go_to_xgboost_and_back(form: Literal["json", "ubj"]) -> None:
    """Models of either are read and continued by the other."""
    rows = make_data(300, weighted=False, large=False)
    order = np.argsort(rows["qid"], kind="stable")
    X, y, qid = rows["X"][order], rows["y"][order], rows["qid"][order]
    matrix = xgboost.DMatrix(X, y, qid=qid)
    given = {"objective": "rank:ndcg", "lambdarank_unbiased": True, "lambdarank_bias_norm": 2, "max_depth": 3}
    given["lambdarank_num_pair_per_sample"] = 4
    theirs = xgboost.train({**given, "nthread": 1}, matrix, 3)
    model = Booster.from_bytes(bytes(theirs.save_raw(form)))
    np.testing.assert_allclose(model.predict(X), theirs.predict(matrix), rtol=1e-6, atol=1e-7)
    loaded = xgboost.Booster(model_file=bytearray(model.to_bytes(form)))
    kept, before = (json.loads(each.save_config())["learner"]["objective"] for each in (loaded, theirs))
    assert kept == before and len(kept["ti+"]) == 4 and kept["ti+"][1] != 1
    with QuantizedDataset.from_dask(X, y, qid=qid, init_model=model, n_jobs=1) as data:
        ours = train({**given, "n_jobs": 1}, data, 1, init_model=model)
    whole = xgboost.train({**given, "nthread": 1}, matrix, 4)  # which forgets chances where it goes on from a model
    config = json.loads(whole.save_config())["learner"]["objective"]
    np.testing.assert_allclose(chances_of(ours), [config["ti+"], config["tj-"]], rtol=1e-4)
    longer = xgboost.train({**given, "nthread": 1}, matrix, 1, xgb_model=bytearray(ours.to_bytes(form)))
    assert longer.num_boosted_rounds() == 5


@pytest.mark.parametrize(("params", "message"), [
    ({"objective": "reg:squarederror", "lambdarank_unbiased": True}, "lambdarank_unbiased=True has no effect with"),
    ({"objective": "pairlogit", "lambdarank_unbiased": True}, "it is of objectives 'rank:ndcg', 'rank:pairwise'"),
    ({"lambdarank_unbiased": "yes"}, "lambdarank_unbiased='yes' must be True or False"),
    ({"lambdarank_bias_norm": -1}, "lambdarank_bias_norm=-1 must lie in [0, "),
    ({"lambdarank_unbiased": False, "lambdarank_bias_norm": 2}, "no effect without lambdarank_unbiased=True"),
])  # fmt: skip
def test_bad_parameters_are_refused(params: dict[str, Any], message: str) -> None:
    rows = make_data(200, weighted=False, large=False)
    with pytest.raises(ParameterError, match=re.escape(message)):
        train({**PARAMS, **params}, QuantizedDataset(rows["X"], rows["y"], qid=rows["qid"], max_bin=32), 1)
