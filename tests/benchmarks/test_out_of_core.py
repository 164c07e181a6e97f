"""The benchmark of streamed training: its bookkeeping, its rows, and all cases rehearsed on a few of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import out_of_core_data as data
from benchmarks.generators import WORKLOADS
from benchmarks.harness import Run
from benchmarks.out_of_core import main
from benchmarks.out_of_core_cases import CASES, Config, Goal
from benchmarks.out_of_core_kinds import KINDS, compared, not_worse, same_bytes
from daskboost import plan
from daskboost.params import TrainParams

SMALL = ["--rows", "600", "--features", "9", "--trees", "3", "--rounds", "3", "--repeats", "1"]
TINY = Config("tiny", 500, 3, device="cpu", test_rows=100, block_rows=200, chunk_rows=100)
STREAMS_TO_GPUS = pytest.mark.skipif(
    "device_memory_limit" not in TrainParams.__dataclass_fields__, reason="GPUs hold all chunks"
)


def test_every_asked_row_has_a_case() -> None:
    asked = {
        (name, figure): (goal.asked, goal.stretch, goal.at_most)
        for name, case in CASES.items()
        for figure, goal in case.goals.items()
    }
    assert asked["80m_exact", "times_floor"] == (1.15, 1.05, True)
    assert asked["80m_xgboost", "speedup"] == (1.1, None, False)
    assert asked["80m_certified", "speedup"] == (5, 8, False)
    assert asked["80m_certified", "auc_below"] == (0.0003, None, True)
    assert asked["train_many_5_folds", "times_one"] == (1.6, 1.2, True)
    assert asked["passes_to_score_4m", "passes_of_exact"] == (0.25, 1 / 7, True)
    assert {case.kind for case in CASES.values()} == set(KINDS)
    one_host = [case for name, case in CASES.items() if name != "billion_rows"]
    assert all(case.estimate_s < 600 for case in CASES.values()), "a call ends after ten minutes"
    assert all(case.config.n_rows * case.config.n_features < 64e9 for case in one_host), "128 GiB of host memory"


def test_goals_are_met_from_their_side() -> None:
    assert [Goal("", 2.0).holds(value) for value in (1.9, 2.0, 2.1)] == [True, True, False]
    assert [Goal("", 2.0, at_most=False).holds(value) for value in (1.9, 2.0, 2.1)] == [False, True, True]
    assert Goal("").holds(7.0) is None


def test_blocks_are_the_workloads_rows_and_made_once_for_each_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = data.Blocks.make

    def noted(blocks: data.Blocks, i: int) -> tuple[Any, Any]:
        made.append(i)
        return make(blocks, i)

    monkeypatch.setattr(data.Blocks, "make", noted)
    blocks = data.training_blocks(TINY)
    x, y = WORKLOADS["higgs"].wide(3).rows(600)
    lazy_x, lazy_y = blocks.lazily()
    assert lazy_x.chunks == ((200, 200, 100), (3,))
    assert made == []
    np.testing.assert_array_equal(lazy_x.compute(), x[:500])
    np.testing.assert_array_equal(lazy_y.compute(), y[:500])
    fresh = np.concatenate([block[0] for block in data.test_blocks(TINY)])
    np.testing.assert_array_equal(fresh, x[500:])
    made.clear()
    with data.quantized.__wrapped__(blocks, 16, "aligned", 100, "host", None, None) as dataset:
        assert dataset.n_rows == 500
    assert sorted(made) == [0, 0, 1, 1, 2, 2], "for the sketch and for the bins"


def test_kept_bins_are_opened_again(tmp_path: Path) -> None:
    of = (data.training_blocks(TINY), 16, "tight", 100, "host", 300, tmp_path)
    with data.quantized.__wrapped__(*of) as made, data.quantized.__wrapped__(*of) as opened:
        assert data.bin_bytes(opened) == data.bin_bytes(made)
        assert data.counters(opened).disk_bytes == data.counters(made).disk_bytes > 0
    assert len(list(tmp_path.iterdir())) == 1


@STREAMS_TO_GPUS
@pytest.mark.parametrize("mode", ["exact", "folds"])
def test_a_share_of_the_chunks_is_resident(mode: str) -> None:
    config = replace(TINY, n_rows=40_000, n_features=100, max_bin=16, max_depth=4, block_rows=10_000)
    on_gpu, blocks = replace(config, device="cuda"), data.training_blocks(config)
    with data.quantized.__wrapped__(blocks, 16, "aligned", 2000, "host", None, None) as dataset:
        rows, evals = dataset, []
        if mode == "folds":
            first = np.arange(40_000) < 8_000
            rows, evals = dataset.subset(~first), [(dataset.subset(first), "valid")]
        assert data.device_limit(config, rows, 0.5, evals=evals) == {}, "the CPU's data set is divided instead"
        for share, kept in ((0.0, 0), (0.25, 5), (0.5, 10), (1.0, None)):
            limit = data.device_limit(on_gpu, rows, share, evals=evals)
            planned = plan(on_gpu.params(**limit), rows, evals=evals)
            assert planned.fits
            resident = vars(planned)["resident"]
            assert (None if resident is None else resident[0]) == kept


def test_a_case_ends_where_models_differ_and_says_why_times_do_not_count() -> None:
    class Model:
        def __init__(self, content: bytes) -> None:
            self._content = content

        def to_bytes(self) -> bytes:
            return self._content

    same_bytes(Model(b"a"), Model(b"a"))
    with pytest.raises(AssertionError, match="differ"):
        same_bytes(Model(b"a"), Model(b"b"))

    def runs(auc: float, seconds: float = 1.0) -> dict[str, Any]:
        return {"daskboost": lambda: Run(seconds, {"auc": auc}), "xgboost": lambda: Run(1.0, {"auc": 0.8})}

    assert compared(runs(0.8), 1, not_worse).why_not == ""
    assert compared(runs(0.7), 1, not_worse).why_not.startswith("AUC 0.70000 is lower")
    assert compared(runs(0.8, -0.1), 1, not_worse).why_not == "the fits are too short to be told apart"


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """Rows of all cases on the CPU."""
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCH_THREADS", "1")
        main(["--device", "cpu", *SMALL, "--results", str(folder)])
    yield [json.loads(line) for line in (folder / "out_of_core.jsonl").read_text().splitlines()]
    data.quantized.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_rehearsal(name: str, rehearsal: list[dict[str, Any]]) -> None:
    rows = [row for row in rehearsal if row["case"] == name]
    assert not [row["absent"] for row in rows if "absent" in row]
    figures = {row["figure"]: row for row in rows if "figure" in row}
    assert set(figures) == set(CASES[name].goals) - {"device_over_plan"}, "which a GPU alone has"
    for row in figures.values():
        assert np.isfinite(row["value"]) or name.startswith("passes_to_score"), "few trees need not reach it"
        expected = CASES[name].goals[row["figure"]].holds(row["value"])
        assert row["holds"] is (None if row["does_not_count"] else expected)
        assert row["floor_s"] is None or row["floor_s"] > 0
        assert {"gpu", "versions", "commit", "config", "case_s", "bytes_per_s"} <= set(row)
    contenders = {row["contender"] for row in rows if "repeat" in row}
    assert ("xgboost" in contenders) == (name in ("80m_xgboost", "80m_certified", "sampled_10"))


def test_five_folds_read_what_one_reads(rehearsal: list[dict[str, Any]]) -> None:
    (row,) = [row for row in rehearsal if row.get("figure") == "times_one"]
    together, alone = row["disk_read_bytes"].values()
    assert together == alone > 0
    assert set(row["passes"]) == {"daskboost", "daskboost one fold"}


def test_a_certified_curve_says_when_the_score_was_reached(rehearsal: list[dict[str, Any]]) -> None:
    (row,) = [row for row in rehearsal if row["case"] == "passes_to_score_1m"]
    reached = row["trees"]
    assert (reached is not None) == (row["best_auc"] >= row["goal_auc"])
    if reached is not None:
        assert row["value"] == pytest.approx(sum(row["passes_by_tree"][:reached]) / row["exact_passes"], abs=1e-6)


def test_what_exact_trees_reach_is_taken_from_a_row(
    rehearsal: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same rows and trees, where they were grown, or the case says so."""
    monkeypatch.setenv("BENCH_THREADS", "1")
    earlier = tmp_path / "earlier.jsonl"
    (grown,) = [row for row in rehearsal if row["case"] == "passes_to_score_1m"]
    second_hand = {**grown, "goal_auc": 0.1, "exact_from": {}}
    earlier.write_text("".join(json.dumps(row) + "\n" for row in (*rehearsal, second_hand)))
    call = ["--device", "cpu", "--cases", "passes_to_score_1m", "--exact-from", str(earlier)]
    for sizes in (SMALL, [*SMALL, "--rounds", "4"]):
        main([*call, *sizes, "--results", str(tmp_path)])
    taken, absent = (json.loads(line) for line in (tmp_path / "out_of_core.jsonl").read_text().splitlines())
    same = ("value", "goal_auc", "best_auc", "trees", "exact_passes", "passes_by_tree")
    assert [taken[name] for name in same] == [grown[name] for name in same]
    assert taken["exact_from"] == {name: grown[name] for name in ("commit", "date", "gpu")}
    assert "has no row of exact trees of" in absent["absent"]
    assert "'rounds': 4" in absent["absent"]


def test_no_case_begins_that_would_end_too_late(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--device", "cpu", "--seconds", "0", "--results", str(tmp_path)])
    assert not list(tmp_path.iterdir())
    assert "80m_exact: skipped, takes about" in capsys.readouterr().out


def test_unknown_cases_are_named() -> None:
    with pytest.raises(SystemExit, match="no case is named 80m; there are 80m_exact, "):
        main(["--device", "cpu", "--cases", "80m"])


@pytest.mark.gpu
def test_bandwidth_of_the_bus() -> None:
    assert 1e9 < data.bandwidth("cuda") < 1e12


@pytest.mark.gpu
@STREAMS_TO_GPUS
@pytest.mark.parametrize("name", ["80m_exact", "in_core_overhead", "train_many_5_folds"])
def test_rehearsal_on_a_gpu(name: str, tmp_path: Path) -> None:
    main([*SMALL, "--trees", "2", "--chunk-rows", "200", "--cases", name, "--results", str(tmp_path)])
    rows = [json.loads(line) for line in (tmp_path / "out_of_core.jsonl").read_text().splitlines()]
    assert not [row["absent"] for row in rows if "absent" in row]
