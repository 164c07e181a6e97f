"""Bookkeeping of the GPU benchmark, and small rehearsals of it without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import gpu_speed
from benchmarks.gpu_cases import CASES, Config, floor_of
from benchmarks.gpu_contenders import check_history, floor_of_contender, scores
from benchmarks.gpu_floors import updates_ms
from benchmarks.gpu_speed import complaint, main, score_functions, summaries
from benchmarks.harness import RESULTS, Comparison, Contender, Run


def test_every_asked_row_has_a_case() -> None:
    asked = {name: (case.asked, case.stretch, case.config.peer) for name, case in CASES.items()}
    xgboost, catboost = "xgboost", "catboost"
    assert asked == {
        **dict.fromkeys(("higgs_11m_depth6", "higgs_11m_depth8", "higgs_11m_64bins"), (5, 8, xgboost)),
        "higgs_11m_lossguide": (4, 10, xgboost), "epsilon_400k": (5, 9, xgboost), "higgs_40m": (6, 12, xgboost),
        "higgs_100k": (3, 6, xgboost), "classes_10_small": (3, 6, xgboost), "classes_80": (6, 12, xgboost),
        **dict.fromkeys(("sparse_1m", "sparse_1m_cupy", "sparse_many_bins"), (2, 5, xgboost)),
        **dict.fromkeys(("sparse_wide", "sparse_wide_l1", "sparse_wide_best_first"), (2, 5, xgboost)),
        **dict.fromkeys(("symmetric_11m_depth6", "symmetric_11m_depth8", "symmetric_11m_newton"), (7, 12, catboost)),
        "symmetric_400k": (5, 9, catboost), "predict_11m": (1, 2, xgboost),
        **dict.fromkeys(("quantize_11m", "quantize_40m"), (1, 3, xgboost)), "skewed_10m_39": (6, 8, xgboost),
        **dict.fromkeys(("skewed_20m_18", "skewed_1m_50"), (5, 8, xgboost)), "skewed_20k_50": (4, 6, xgboost),
        **dict.fromkeys(("watched_2k", "watched_20k", "watched_100k"), (2, 4, xgboost)),
        "quantiles_1m": (3, 4, xgboost), "evaluated_11m": (0.87, 0.926, "daskboost unwatched"),
        "depth14_2m": (4, 8, xgboost),
        **dict.fromkeys(("bynode_5m", "interactions_5m"), (5, 8, xgboost)), "depth16_2m": (3, 8, xgboost),
    }  # fmt: skip
    unpublished = [name for name, case in CASES.items() if case.config.peer not in case.published]
    wide = ["sparse_wide", "sparse_wide_l1", "sparse_wide_best_first"]
    skewed = ["skewed_20m_18", "skewed_10m_39", "skewed_1m_50", "skewed_20k_50"]
    later = [
        "quantiles_1m", "watched_2k", "watched_20k", "watched_100k", "evaluated_11m", "bynode_5m", "interactions_5m",
        "depth14_2m", "depth16_2m",
    ]  # fmt: skip
    own = ["symmetric_11m_newton", *skewed, *wide, "sparse_many_bins", "classes_10_small", *later]
    assert unpublished == own, "which nobody has published"
    assert sum(case.estimate_s for case in CASES.values()) < 25 * 60, "one machine must do them all"


def test_rows_say_what_both_sides_score_splits_by() -> None:
    found = {name: score_functions(case.config) for name, case in CASES.items() if case.config.peer == "catboost"}
    both = {"daskboost": "newton", "catboost": "NewtonL2"}
    defaults = {"daskboost": "l2", "catboost": "Cosine"}
    assert all(own == (both if "newton" in name else defaults) for name, own in found.items())
    assert score_functions(CASES["higgs_11m_depth6"].config) == {}


def test_floor_is_bound_by_updates_bytes_or_launches() -> None:
    root = floor_of(replace(CASES["higgs_11m_depth6"].config, max_depth=1))
    assert root.updates_ms == pytest.approx(1e3 * 11e6 * 28 / 3.85e12), "two atomics an update"
    assert root.bytes_ms == pytest.approx(1e3 * 11e6 * (28 + 20) / 4.5e12)
    assert root.ms == max(root.updates_ms, root.bytes_ms) + root.launches_ms
    six_bits = floor_of(replace(CASES["higgs_11m_64bins"].config, max_depth=1))
    assert six_bits.bytes_ms == pytest.approx(1e3 * 11e6 * (21 + 20) / 4.5e12), "six bits a symbol"
    small = floor_of(CASES["higgs_100k"].config)
    assert small.launches_ms > max(small.updates_ms, small.bytes_ms)
    sparse = floor_of(replace(CASES["sparse_1m"].config, max_depth=1))
    assert sparse.updates_ms == pytest.approx(1e3 * 50e6 / 3.85e12), "absent values are not added up"
    many = floor_of(CASES["classes_80"].config)
    assert many.updates_ms == pytest.approx(80 * floor_of(replace(CASES["classes_80"].config, n_classes=2)).updates_ms)
    assert many.bytes_ms == pytest.approx(1e3 * 4.66e6 * (3.5 * 200 + 4 + 16 * 80) / 4.5e12), "a label for all classes"


def test_features_that_nodes_may_not_use_need_no_sums() -> None:
    case = CASES["bynode_5m"].config
    all_of_them, half = floor_of(replace(case, searched=0)), floor_of(case)
    assert half.updates_ms == pytest.approx(all_of_them.updates_ms * (1 + 3.5 / 2) / 4.5)
    assert (half.bytes_ms, half.launches_ms) == (all_of_them.bytes_ms, all_of_them.launches_ms)


def test_an_update_takes_two_atomics() -> None:
    assert updates_ms(7.7e9) == pytest.approx(2)


def test_each_contender_has_a_floor_of_its_own() -> None:
    case = CASES["classes_80"]
    one_each, vectors = (floor_of_contender("daskboost" + more, case.config) for more in ("", " vector leaves"))
    assert one_each == vectors == floor_of(case.config), "the same sums, of as many trees or of one"
    sketch = floor_of_contender("daskboost vector leaves sketch", case.config)
    assert sketch.updates_ms == pytest.approx(vectors.updates_ms * 8 / 80)
    assert vectors.bytes_ms - sketch.bytes_ms == pytest.approx(1e3 * 4.66e6 * 8 * 72 / 4.5e12)
    names = ["daskboost", "daskboost vector leaves", "daskboost vector leaves sketch"]
    draws = {name: {"logloss": [1.0]} for name in names}
    rows = summaries(case, draws, {}, Comparison({name: [Run(0.1, {})] for name in names}))
    assert [row["floor_ms"] for row in rows] == [round(floor.ms, 4) for floor in (one_each, vectors, sketch)]


def test_nothing_that_was_measured_is_below_its_floor() -> None:
    """With the floors of today: each counts the least of what its contender does."""
    known, seen = {field.name for field in fields(Config)}, set()
    for line in (RESULTS / "gpu_speed.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row.get("fraction_of_floor") is None or "H200" not in row["gpu"]:
            continue
        config = Config(**{name: value for name, value in row["config"].items() if name in known})
        name = row["contender"].split(" beside ")[0]
        if name == "daskboost packed":  # an option that is gone, whose g and h were added by one atomic
            continue
        assert floor_of_contender(name, config).ms < row["ms"], (row["case"], row["contender"], row["date"])
        seen.add(name.removeprefix("daskboost"))
    assert seen == {"", " vector leaves", " vector leaves sketch"}


@pytest.mark.parametrize(
    ("own", "peer", "expected"),
    [
        ({"auc": 0.80, "logloss": 0.5}, {"auc": 0.8004, "logloss": 0.4995}, ""),
        ({"auc": 0.80, "logloss": 0.4}, {"auc": 0.7, "logloss": 0.5}, ""),
        ({"auc": 0.80, "logloss": 0.5}, {"auc": 0.8006, "logloss": 0.5}, "AUC 0.80000 is lower than the peer's 0.8006"),
        ({"auc": 0.80, "logloss": 0.502}, {"auc": 0.8, "logloss": 0.5}, "log-loss 0.50200 exceeds the peer's 0.50000"),
        ({"accuracy": 0.9}, {"accuracy": 0.901}, "accuracy 0.90000 is lower than the peer's 0.90100"),
        ({"pinball": 0.502}, {"pinball": 0.5}, "pinball loss 0.50200 exceeds the peer's 0.50000 by over 0.2%"),
        ({}, {}, ""),
    ],
)
def test_only_a_worse_model_is_complained_of(own: dict[str, float], peer: dict[str, float], expected: str) -> None:
    assert complaint(own, peer).startswith(expected)
    assert bool(complaint(own, peer)) == bool(expected)


def test_small_data_has_some_leeway() -> None:
    own, peer = {"auc": 0.799, "logloss": 0.5}, {"auc": 0.8, "logloss": 0.497}
    assert complaint(own, peer, leeway=4) == ""
    found = complaint(own, peer, leeway=1.9)
    assert found == "AUC 0.79900 is lower than the peer's 0.80000 by more than 0.00095"


def test_history_that_is_not_of_the_predictions_is_found() -> None:
    naive = {"auc": 0.75, "logloss": 0.5}
    check_history({"test": {"auc": [0.1, 0.75], "logloss": [0.500001]}}, naive)
    with pytest.raises(AssertionError, match=r"auc is 0\.75 of the predictions, but 0\.7501 in the history"):
        check_history({"test": {"auc": [0.75, 0.7501]}}, naive)


def test_scores() -> None:
    binary = scores(np.array([0, 1, 1], np.float32), np.array([0.1, 0.8, 0.4]))
    assert binary == {"auc": 1.0, "logloss": pytest.approx(-np.log([0.9, 0.8, 0.4]).mean())}
    many = scores(np.array([2, 0], np.float32), np.array([[0.2, 0.3, 0.5], [0.25, 0.5, 0.25]]))
    assert many == {"logloss": pytest.approx(-np.log([0.5, 0.25]).mean())}
    quantiles = scores(np.array([1, 3], np.float32), np.array([[0.0, 2.0], [2.0, 2.0]]), (0.1, 0.9))
    assert quantiles == {"pinball": pytest.approx((0.1 * 1 + 0.1 * 1 + 0.1 * 1 + 0.9 * 1) / 4)}


Maker = Callable[[], Contender]
ONE_DRAW = "higgs_11m_64bins"
"""A case of one set of rows and three repeats."""


def fixed(seconds: float, auc: float) -> Maker:
    return lambda: lambda: Run(seconds, {"auc": auc})


def broken() -> Contender:
    raise MemoryError("no room\nat all")


def run_with(
    found: dict[str, Maker], monkeypatch: pytest.MonkeyPatch, folder: Path, *more: str
) -> list[dict[str, Any]]:
    """The rows that the benchmark records of these contenders."""

    def contenders(*_: object) -> Iterator[tuple[str, Maker]]:
        yield from found.items()

    monkeypatch.setattr(gpu_speed, "contenders", contenders)
    main(["--device", "cpu", "--rows", "10", "--cases", ONE_DRAW, "--results", str(folder), *more])
    path = folder / "gpu_speed.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [row for row in rows if "asked" in row]
    return found


def test_ratio_and_floor_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = run_with({"daskboost": fixed(0.002, 0.8), "xgboost": fixed(0.01, 0.8)}, monkeypatch, tmp_path)
    assert [row["contender"] for row in rows[:6]] == ["daskboost"] * 3 + ["xgboost"] * 3
    found = summary(rows)
    assert (found["ms"], found["peer_ms"], found["ratio"], found["asked"]) == (2.0, 10.0, 5.0, 5)
    assert found["fraction_of_floor"] == pytest.approx(found["floor_ms"] / 2, abs=1e-4)
    assert found["does_not_count"] == ""
    assert {"gpu", "device", "versions", "date", "commit", "config"} <= set(found)


def test_time_of_a_worse_model_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = summary(run_with({"daskboost": fixed(1, 0.7), "xgboost": fixed(2, 0.8)}, monkeypatch, tmp_path))
    assert found["ratio"] is None
    assert "AUC 0.70000 is lower" in found["does_not_count"]
    assert "does not count: AUC" in capsys.readouterr().out


def test_absent_peers_are_recorded_and_published_figures_only_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run_with({"daskboost": fixed(1, 0.7), "not_a_library": fixed(1, 0.8)}, monkeypatch, tmp_path)
    found = summary(rows)
    assert (found["peer_ms"], found["ratio"], found["published_ms"]) == (None, None, {"xgboost": 13.2})
    assert found["does_not_count"] == "no peer took part"
    assert rows[-1]["absent"] == "not installed"
    out = capsys.readouterr().out
    assert "not_a_library takes no part: not installed" in out
    assert "published xgboost 13.2 ms" in out


def test_a_contender_that_fails_does_not_end_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = run_with({"daskboost": broken, "xgboost": fixed(1, 0.8)}, monkeypatch, tmp_path)
    assert [row["contender"] for row in rows] == ["xgboost"] * 3 + ["daskboost"]
    assert rows[-1]["absent"] == "MemoryError: no room at all"


def test_no_case_begins_that_would_end_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not run_with({"daskboost": fixed(1, 0.8)}, monkeypatch, tmp_path, "--seconds", "0")
    assert f"{ONE_DRAW}: skipped, takes about" in capsys.readouterr().out


def test_unknown_cases_are_named() -> None:
    with pytest.raises(SystemExit, match="no case is named higgs_1k; there are higgs_11m_depth6, "):
        main(["--device", "cpu", "--cases", "higgs_1k"])


@pytest.mark.parametrize("case", ["watched_2k", "evaluated_11m", "interactions_5m", "quantiles_1m"])
def test_tiny_fits_of_each_kind(case: str, tmp_path: Path) -> None:
    """Metrics are checked against predictions before anything is timed."""
    small = ["--device", "cpu", "--rows", "300", "--trees", "3", "--repeats", "1", "--draws", "1"]
    main([*small, "--cases", case, "--results", str(tmp_path)])
    *_, row = [json.loads(line) for line in (tmp_path / "gpu_speed.jsonl").read_text().splitlines()]
    assert row["contender"] == f"daskboost beside {CASES[case].config.peer}"
    assert set(row["all_ms"]) == {"daskboost", CASES[case].config.peer} and not row["absent"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["higgs_11m_lossguide", "sparse_1m", "symmetric_11m_depth6", "quantize_11m", "predict_11m"]
)
def test_rehearsal_of_real_contenders(case: str, tmp_path: Path) -> None:
    peer = CASES[case].config.peer
    pytest.importorskip(peer)
    small = ["--device", "cpu", "--rows", "300", "--trees", "5", "--repeats", "1", "--draws", "2"]
    main([*small, "--cases", case, "--results", str(tmp_path)])
    rows = [json.loads(line) for line in (tmp_path / "gpu_speed.jsonl").read_text().splitlines()]
    assert [row["contender"] for row in rows] == ["daskboost", peer, f"daskboost beside {peer}"]
    assert set(rows[-1]["answers"]) == {"daskboost", peer}
