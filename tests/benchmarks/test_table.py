"""Tiny runs of the commands that measure one machine beside XGBoost, and what their rows say."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cpu_speed, cpu_threads, dask_overhead, first_use, fit_calls, gpu_predict, ours
from benchmarks.fit_calls import CASES, REAL, scores
from benchmarks.gpu_speed import not_worse
from benchmarks.harness import Comparison, Run


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """What a command records with these arguments."""
    monkeypatch.setenv("BENCH_THREADS", "2")

    def run(module: Any, *arguments: str) -> list[dict[str, Any]]:
        module.main([*arguments, "--results", str(tmp_path)])
        (path,) = tmp_path.glob("*.jsonl")
        found = [json.loads(line) for line in path.read_text().splitlines()]
        assert all({"date", "commit", "versions", "device", "config"} <= set(row) for row in found)
        return found

    return run


Rows = Callable[..., list[dict[str, Any]]]


def test_trees_are_timed_on_each_number_of_threads(rows: Rows) -> None:
    found = rows(
        cpu_threads, "--sizes", "2k", "--rows", "400", "--trees", "2", "--threads", "1,2", "--repeats", "1"
    )  # fmt: skip
    assert [(row["threads"], row["contender"]) for row in found] == [
        (n, name) for n in (1, 2) for name in ("daskboost", "xgboost", "daskboost beside xgboost")
    ]
    assert all(row["asked"] == 1.0 and "ratio" in row for row in found if "beside" in row["contender"])


def test_fits_at_once_are_timed_beside_one_alone(rows: Rows) -> None:
    found = rows(
        cpu_threads, "--sizes", "2k", "--rows", "400", "--trees", "3", "--threads", "2", "--repeats", "1",
        "--at-once", "3",
    )  # fmt: skip
    assert [row["contender"] for row in found] == [
        "daskboost alone", "daskboost, 3 at once", "daskboost, 3 at once beside their ideal"
    ]
    assert found[0]["answer"] == found[1]["answer"], "the same bytes"
    assert found[-1]["over_ideal"] > 0 and found[-1]["asked"] == 1.3


def test_the_ideal_of_fits_at_once() -> None:
    result = Comparison({"daskboost alone": [Run(1.0, {})], "together": [Run(5.0, {})]})
    assert cpu_threads.over_ideal(result, "together", 4.0) == 1.25
    assert cpu_threads.over_ideal(result, "together", 0.5) == 5.0, "on idle cores they could take as long as one"


def test_different_models_of_fits_at_once_are_found(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(range(100))
    train = ours.train
    monkeypatch.setattr(
        ours, "train",
        lambda params, data, n: train({**params, "seed": next(drawn), "subsample": 0.5}, data, n),
    )  # fmt: skip
    with pytest.raises(AssertionError, match="3 fits at once of the same rows gave 3 models"):
        rows(cpu_threads, "--sizes", "2k", "--rows", "400", "--trees", "2", "--threads", "1", "--at-once", "3")


def test_quantizing_is_timed_beside_training(rows: Rows) -> None:
    found = rows(cpu_speed, "--cases", "quantize_2m", "--rows", "500", "--trees", "2", "--repeats", "1")
    assert [row["contender"] for row in found] == ["daskboost", "xgboost", "daskboost beside xgboost"]
    assert all(row["threads"] == 2 and row["config"]["n_rows"] == 500 for row in found)
    assert all(row["answer"]["auc"] > 0.6 for row in found[:2])


@pytest.mark.parametrize("case", ["letter", "host_2m", "host_100k"])
def test_whole_fits(case: str, rows: Rows) -> None:
    found = rows(fit_calls, "--cases", case, "--rows", "600", "--trees", "2", "--repeats", "1", "--threads", "1")
    assert [row["contender"] for row in found] == ["daskboost", "xgboost", "daskboost beside xgboost"]
    assert [row["threads"] for row in found] == [1] * 3
    assert found[-1]["asked"] == CASES[case].asked and found[-1]["gpu"] == "none"


def test_cases_of_whole_fits() -> None:
    assert REAL == ("covtype_20k", "letter", "adult", "poker_100k")
    asked = {name: (case.asked, case.n_rows, case.evaluated_rows, case.trees) for name, case in CASES.items()}
    assert asked["host_5m"] == (6, 5_000_000, 0, 100)
    assert asked["host_2m"] == (5, 2_000_000, 500_000, 200)
    assert asked["host_100k"] == (2, 100_000, 30_000, 500)
    small = CASES["host_2m"].sized(20_000, 7)
    assert (small.n_rows, small.evaluated_rows, small.trees, small.dtype) == (20_000, 5_000, 7, "float64")


def test_a_worse_classifier_is_found() -> None:
    def runs(**own: float) -> dict[str, Run]:
        return {"daskboost": Run(1, own), "xgboost": Run(1, {"accuracy": 0.9, "auc": 0.9, "logloss": 0.5})}

    check = not_worse(fit_calls.CASES["letter"].leeway)
    check(runs(accuracy=0.896, auc=0.896, logloss=0.509))
    with pytest.raises(AssertionError, match=r"accuracy 0\.89000 is lower than the peer's 0\.90000 by"):
        check(runs(accuracy=0.89, logloss=0.5))
    with pytest.raises(AssertionError, match=r"log-loss 0\.52000 exceeds the peer's 0\.50000 by over 2\.0%"):
        check(runs(auc=0.9, logloss=0.52))


def test_scores_of_probabilities() -> None:
    import numpy as np

    two = scores(np.array([0, 1]), np.array([[0.9, 0.1], [0.2, 0.8]]))
    assert two == {"auc": 1.0, "logloss": pytest.approx(-np.log([0.9, 0.8]).mean())}
    three = scores(np.array([0, 2]), np.array([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]]))
    assert three == {"accuracy": 0.5, "logloss": pytest.approx(-np.log([0.5, 0.1]).mean())}


def test_host_rows_are_predicted_without_a_gpu(rows: Rows) -> None:
    found = rows(
        gpu_predict, "--cases", "host_float32", "--device", "cpu", "--rows", "300", "--trees", "3", "--repeats", "1"
    )  # fmt: skip
    assert [row["contender"] for row in found] == [
        "daskboost", "daskboost on the CPU", "xgboost", "daskboost beside xgboost"
    ]
    assert found[-1]["ratio"] > 0 and found[-1]["gpu"] == "none"


def test_layouts_of_workers_are_compared_with_threads_in_process(rows: Rows) -> None:
    found = rows(
        dask_overhead, "--rows", "400", "--trees", "2", "--repeats", "1", "--layouts", "1x2", "--threads", "2"
    )  # fmt: skip
    assert [row["contender"] for row in found] == ["in_process", "cluster", "in_process beside cluster"]
    assert found[0]["answer"] == found[1]["answer"], "the same bytes"
    config = found[0]["config"]
    assert (config["workers"], config["threads_per_worker"], config["threads"]) == (1, 2, 2)


def test_first_fits_of_new_processes(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(config: first_use.Config, _: str) -> dict[str, float]:
        assert (config.n_rows, config.trees) == (500, 3)
        return dict.fromkeys(first_use.MEASURES, 0.5)

    monkeypatch.setattr(first_use, "bench_once", measured)
    found = rows(first_use, "--rows", "500", "--trees", "3", "--processes", "2")
    assert [row["caches"] for row in found] == ["empty", "filled", "filled"]


@pytest.mark.parametrize("config", [
    first_use.Config(n_rows=2000, trees=5), first_use.Config(n_rows=2000, defaults=True, classes=7),
], ids=["trees", "defaults"])  # fmt: skip
def test_a_first_fit_is_timed_beside_others(config: first_use.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(code: str, folder: str) -> str:
        with redirect_stdout(StringIO()) as printed:
            exec(code, {})
        return printed.getvalue()

    monkeypatch.setattr(first_use, "_run", run)
    found = first_use.bench_once(config, "nowhere")
    assert set(first_use.MEASURES) == set(found)
    assert found["first_fit_s"] > 0 and found["second_fit_s"] > 0
    assert found["first_fit_excess_s"] == found["first_fit_s"] - found["second_fit_s"]
