"""Trees grown on a sample and certified: the exact model at tolerance 0, and at any the same bytes everywhere."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from cluster.test_same_bytes import PLACES, WHOLE, gpu, model_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.sampling import of_share
from strategies.pairs import every_pair, pairs_of
from strategies.streams import keep_on_gpu
from strategies.trees import PARAMS, Data, fit, make_data, quantized

from daskboost import Booster, DaskBoostRegressor, QuantizedDataset, plan, train
from daskboost.devices.cpu.gradients import RowDraw, RowRange
from daskboost.devices.cpu.samples import draw_share
from daskboost.dtypes import UInt64
from daskboost.errors import DataError, ParameterError
from daskboost.fit import samplers
from daskboost.hashing import Purpose, key
from daskboost.local.in_process import LocalShards

__all__ = ["gpu"]
CERTIFIED = {"out_of_core": "certified", "device": "cpu"}
FITS: dict[str, dict[str, Any]] = {
    "regression": {"max_depth": 5},
    "logistic": {"objective": "binary:logistic", "max_depth": 4, "gamma": 0.5, "reg_alpha": 0.2},
    "five classes": {"objective": "multi:softprob", "num_class": 5, "max_depth": 4},
    "poisson": {"objective": "count:poisson", "max_depth": 4},
    "samples": {"subsample": 0.6, "colsample_bytree": 0.8, "colsample_bylevel": 0.6, "max_depth": 4},
    "heavy children": {"objective": "binary:logistic", "min_child_weight": 150, "max_depth": 6},
    "one level": {"max_depth": 1},
    "small data": {"objective": "binary:logistic", "max_depth": 5},
    "no sample": {"objective": "binary:logistic", "max_depth": 3, "resident_share": 1e-9},
    "all rows": {"objective": "binary:logistic", "max_depth": 4, "resident_share": 1.0},
}  # fmt: skip


def data_of(name: str) -> Data:
    n_rows = 3_001 if "small" in name else 13_003
    return make_data(np.random.default_rng(8), FITS[name].get("objective", "reg:squarederror"), n_rows, 6,
                     n_values=500, missing=0.3)  # fmt: skip


def report_of(params: dict[str, Any], dataset: QuantizedDataset, n_rounds: int = 3) -> tuple[Booster, dict[str, Any]]:
    found: dict[str, dict[str, list[float]]] = {}
    booster = train({**CERTIFIED, "n_jobs": 2, **params}, dataset, n_rounds, evals_result=found)
    return booster, found["out_of_core"]


@pytest.mark.parametrize("name", FITS)
def test_tolerance_0_gives_the_exact_model_in_at_most_as_many_passes_as_levels(name: str) -> None:
    data, params = data_of(name), {"learning_rate": 0.3, **FITS[name]}
    with quantized(data) as dataset:
        exact = {key: value for key, value in params.items() if key != "resident_share"}
        expected = train({**exact, "device": "cpu", "n_jobs": 2}, dataset, 3).to_bytes()
        booster, report = report_of({**params, "certify_tolerance": 0.0}, dataset)
    assert booster.to_bytes() == expected
    report["passes"][0] -= 1  # for the first sample
    assert max(report["passes"]) <= params["max_depth"] + (name == "no sample")  # which guesses scales worse
    assert report["gain_lost"] == [0.0] * 3
    if name == "all rows":  # nothing to redo
        assert (report["passes"], report["splits_redone"]) == ([1] * 3, [0] * 3)


PLACE_FITS = {"samples": 0.02, "five classes": 0.03, "small data": 0.05}


@pytest.fixture(scope="module", params=PLACE_FITS)
def case(request: pytest.FixtureRequest) -> tuple[Data, dict[str, Any], bytes]:
    name = request.param
    params = {**FITS[name], **CERTIFIED, "certify_tolerance": PLACE_FITS[name]}
    data = data_of(name)
    expected = model_bytes(data, params, {"n_jobs": 1}, 2)
    assert expected != model_bytes(data, FITS[name], {"n_jobs": 1}, 2)
    return data, params, expected


@pytest.mark.parametrize("place", [*pairs_of(PLACES), *WHOLE], ids=lambda place: "-".join(map(str, place.values())))
def test_any_pair_of_places(case: tuple[Data, dict[str, Any], bytes], place: dict[str, Any]) -> None:
    data, params, expected = case
    assert model_bytes(data, params, place, 2) == expected


GPU_PLACES: dict[str, Any] = {
    "encoding": ["dense", "csr"], "engines": [1, 2], "partitions": [1, 4],
    "on_disk": ["no", "stays on the GPU", "streams"],
}  # fmt: skip


@pytest.mark.usefixtures("gpu")
@every_pair({"case": PLACE_FITS, **GPU_PLACES}, indirect=["case"])
def test_gpu(case: tuple[Data, dict[str, Any], bytes], encoding: str, engines: int, partitions: int, on_disk: str,
             tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    data, params, expected = case
    place: dict[str, Any] = {"encoding": encoding, "engines": engines, "partitions": partitions}
    if on_disk == "streams":
        keep_on_gpu(monkeypatch, 0)
    if on_disk != "no":
        place |= {"chunk_rows": 9_000, "limit": 1, "directory": tmp_path}
    with quantized(data, **place) as dataset:
        booster, _ = report_of({**params, "device": "cuda", "n_jobs": 1}, dataset, 2)
    assert booster.to_bytes() == expected


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", ["logistic", "no sample"])
def test_gpu_gives_the_exact_model_at_tolerance_0(name: str) -> None:
    """Metrics of the training rows too, whose margins wait for the next pass; their bins are there once."""
    with quantized(data_of(name)) as dataset:
        found: dict[str, dict[str, list[float]]] = {}
        given = {**CERTIFIED, **FITS[name], "certify_tolerance": 0.0, "n_jobs": 1, "device": "cuda"}
        booster = train(given, dataset, 2, evals=[(dataset, "train")], evals_result=found)
        own: dict[str, dict[str, list[float]]] = {}
        exact = {key: value for key, value in FITS[name].items() if key != "resident_share"}
        expected = train({**exact, "n_jobs": 1, "device": "cpu"}, dataset, 2, evals=[(dataset, "train")],
                         evals_result=own)  # fmt: skip
    assert booster.to_bytes() == expected.to_bytes()
    assert found["train"] == own["train"]


@pytest.mark.parametrize("engines", [1, 2])
def test_streamed_chunks_are_read_once_per_pass(engines: int, tmp_path: Path) -> None:
    """And once to take the sample; the model is that of chunks in RAM."""
    data, params = data_of("regression"), {**FITS["regression"], "certify_tolerance": 0.01}
    with quantized(data, partitions=7, engines=engines, chunk_rows=1_000) as dataset:
        expected, _ = report_of(params, dataset)
    with quantized(data, partitions=7, engines=engines, chunk_rows=1_000, limit=1, directory=tmp_path) as dataset:
        assert isinstance(dataset.shards, LocalShards)
        booster, report = report_of(params, dataset)
        assert booster.to_bytes() == expected.to_bytes()
        assert sum(report["passes"]) > len(report["passes"])
        for shard in dataset.shards.shards:
            assert shard.store.counters().disk_reads == len(shard.entries) * sum(report["passes"])


def test_a_wrong_guess_of_the_scale_costs_a_pass_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    data, params = data_of("five classes"), {**FITS["five classes"], "certify_tolerance": 0.03}
    with quantized(data) as dataset:
        expected, report = report_of(params, dataset)
        monkeypatch.setattr(samplers, "range_ratio", lambda all_rows, sample: np.full_like(all_rows, 1 / 30))
        booster, again = report_of(params, dataset)
    assert booster.to_bytes() == expected.to_bytes()
    assert again["passes"] == [n + 1 for n in report["passes"]]
    assert again["splits_redone"] == report["splits_redone"]


@pytest.mark.parametrize("tolerance", [0.01, 0.05, 1.0])
def test_no_more_is_lost_than_tolerated(tolerance: float, caplog: pytest.LogCaptureFixture) -> None:
    with quantized(data_of("logistic")) as dataset, caplog.at_level(logging.INFO, "daskboost"):
        _, report = report_of({**FITS["logistic"], "certify_tolerance": tolerance}, dataset, 6)
    assert max(report["gain_lost"]) <= tolerance * 1.1  # of the gain that there would be, and losses stay spent
    assert "passes over all rows" in caplog.text
    if tolerance == 1:
        assert report["passes"] == [2, *[1] * 5]


def test_a_fit_that_goes_on_is_one_that_was_never_interrupted() -> None:
    params = {**CERTIFIED, **FITS["logistic"], "certify_tolerance": 0.02, "n_jobs": 1}
    with quantized(data_of("logistic")) as dataset:
        half = train(params, dataset, 2)
        assert train(params, dataset, 2, init_model=half).to_bytes() == train(params, dataset, 4).to_bytes()


def test_early_stopping_and_base_margins() -> None:
    """Metrics see every tree of their round, and the sample starts from its rows' margins."""
    data = data_of("logistic")
    rng = np.random.default_rng(3)
    margin = rng.normal(size=(len(data.y), 1)).astype(np.float32)
    with QuantizedDataset.from_dask(data.X, data.y, base_margin=margin, max_bin=16, n_jobs=1) as dataset:
        found: dict[str, dict[str, list[float]]] = {}
        params = {**CERTIFIED, "objective": "binary:logistic", "max_depth": 3, "n_jobs": 1}
        booster = train(params, dataset, 5, evals=[(dataset, "all")], early_stopping_rounds=2, evals_result=found)
        expected = train({**params, "certify_tolerance": 0.0}, dataset, 2)
        exact = train({"objective": "binary:logistic", "max_depth": 3, "n_jobs": 1, "device": "cpu"}, dataset, 2)
        assert expected.to_bytes() == exact.to_bytes()
    p = booster.predict(data.X, base_margin=margin).clip(1e-15, 1 - 1e-15)
    logloss = -np.mean(data.y * np.log(p) + (1 - data.y) * np.log(1 - p))
    assert found["all"]["logloss"][-1] == pytest.approx(logloss, rel=1e-4)


def test_sparse_rows() -> None:
    rng = np.random.default_rng(2)
    dense = np.where(rng.random((9_000, 30)) < 0.2, rng.normal(size=(9_000, 30)), 0)
    y = (dense[:, 0] + dense[:, 1] * dense[:, 2] + 0.1 * rng.normal(size=9_000)).astype(np.float32)
    X = scipy.sparse.csr_matrix(dense.astype(np.float32))
    with QuantizedDataset.from_dask(X, y, max_bin=32, n_jobs=1) as dataset:
        exact = train({"max_depth": 4, "device": "cpu", "n_jobs": 1}, dataset, 3)
        booster, _ = report_of({"max_depth": 4, "certify_tolerance": 0.0}, dataset)
    assert booster.to_bytes() == exact.to_bytes()


@settings(max_examples=25, deadline=None)
@given(params=PARAMS, seed=st.integers(0, 2**32 - 1), share=st.sampled_from([0.1, 0.5]))
def test_tolerance_0_is_exact_whatever_the_parameters(params: dict[str, Any], seed: int, share: float) -> None:
    unlike = ("grow_policy", "multi_strategy", "monotone_constraints", "interaction_constraints", "colsample_bynode",
              "score_function")  # fmt: skip
    params = {name: value for name, value in params.items() if name not in unlike} | {"device": "cpu", "n_jobs": 1}
    with quantized(make_data(np.random.default_rng(seed))) as dataset:
        exact = train(params, dataset, 3).to_bytes()
        more = {"out_of_core": "certified", "resident_share": share, "certify_tolerance": 0.0}
        assert train({**params, **more}, dataset, 3).to_bytes() == exact


def test_the_sample_is_a_share_of_the_rows_and_of_every_stretch() -> None:
    ids = np.arange(200_000, dtype=np.uint64)
    chosen = is_sampled(7, 0.25, ids)
    shares = chosen.reshape(20, -1).mean(axis=1)
    assert abs(chosen.mean() - 0.25) < 0.004 and np.abs(shares - 0.25).max() < 0.02
    other = is_sampled(8, 0.25, ids)
    assert abs((chosen & other).mean() - 0.25**2) < 0.004
    assert (is_sampled(7, 0.1, ids) <= chosen).all()
    assert is_sampled(7, 1.0, ids).all()


def is_sampled(key: int, share: float, ids: UInt64) -> Any:
    """Whether rows of those global ids are of the sample of that key; bool array."""
    found = np.zeros(len(ids), np.bool_)
    found[of_share(ids, key, share)] = True
    for first, n in ((0, len(ids)), (1_000, 1), (17, 0)):  # consecutive ids, as a chunk has them
        rows = np.empty(n, np.uint32)
        kept = draw_share(
            RowDraw(np.uint64(key), np.uint64(math.ceil(share * 2**32))), RowRange(0, n, ids[first] if n else 0), rows
        )
        assert (rows[:kept] == np.flatnonzero(found[first : first + n])).all()
    return found


REFUSED: dict[str, dict[str, Any]] = {
    "grow_policy='lossguide'": {"grow_policy": "lossguide"},
    "grow_policy='symmetric'": {"grow_policy": "symmetric"},
    "max_leaves=7": {"max_leaves": 7},
    "monotone_constraints": {"monotone_constraints": (1, 0, 0, 0, 0, 0)},
    "interaction_constraints": {"interaction_constraints": [[0, 1], [2]]},
    "colsample_bynode=0.5": {"colsample_bynode": 0.5},
    "multi_output_tree": {"objective": "multi:softprob", "num_class": 5, "multi_strategy": "multi_output_tree"},
    "leaves are quantiles": {"objective": "reg:absoluteerror"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_go_together_is_refused(message: str) -> None:
    params = {**CERTIFIED, **REFUSED[message]}
    with quantized(data_of("five classes")) as dataset, pytest.raises(ParameterError, match="out_of_core") as caught:
        train(params, dataset, 1)
    assert message in str(caught.value)
    with pytest.raises(ParameterError, match="out_of_core='certified' does not go with"):
        plan(params, n_rows=10_000, n_features=6)


def test_parameters_that_nothing_reads_are_refused() -> None:
    with quantized(data_of("regression")) as dataset:
        with pytest.raises(ParameterError, match=r"resident_share=0\.5 is only read with out_of_core='certified'"):
            train({"resident_share": 0.5}, dataset, 1)
        with pytest.raises(ParameterError, match=r"certify_tolerance=0\.6 is only read"):
            train({"certify_tolerance": 0.6, "out_of_core": "exact"}, dataset, 1)
        with pytest.raises(ParameterError, match="an evaluation set is named 'out_of_core'"):
            train(CERTIFIED, dataset, 1, evals=[(dataset, "out_of_core")])
    with pytest.raises(ParameterError, match="'auto', 'exact', 'certified', 'sampled'"):
        fit(data_of("regression"), {"out_of_core": "sample"})


def test_gradients_that_are_not_finite_are_refused() -> None:
    """Those of a row outside the sample, whose weight is beyond what its gradient may be multiplied by."""
    data = data_of("regression")
    of_first = is_sampled(int(key(0, Purpose.CERTIFIED_SAMPLE, 0)), 0.25, np.arange(len(data.y), dtype=np.uint64))
    outside = np.flatnonzero(~of_first)[0]
    assert data.weight is not None
    data.weight[outside], data.y[outside] = 1e38, 1e6
    with pytest.raises(DataError, match=r"gave a gradient of inf in iteration 0; check labels and weights"):
        fit(data, {**CERTIFIED, "base_score": 0.0})


def test_estimators_take_the_same_parameters() -> None:
    data = data_of("regression")
    options: dict[str, Any] = {"n_estimators": 3, "max_bin": 16, "n_jobs": 1, "device": "cpu"}
    model = DaskBoostRegressor(out_of_core="certified", certify_tolerance=0.0, resident_share=0.4, **options)
    model.fit(data.X, data.y)
    exact = DaskBoostRegressor(**options).fit(data.X, data.y)
    assert model.booster_.to_bytes() == exact.booster_.to_bytes()
    assert len(model.evals_result_["out_of_core"]["passes"]) == 3


def test_what_shaped_a_model_is_kept_with_it() -> None:
    with quantized(data_of("regression")) as dataset:
        booster = train({**CERTIFIED, "certify_tolerance": 0.2}, dataset, 1)
    assert booster.params["certify_tolerance"] == "0.2" and booster.params["resident_share"] == "0.25"
