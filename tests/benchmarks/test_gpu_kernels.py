"""Where the time of a tree goes: what is added up of a profiler's events."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from compute_sanitizer.__main__ import UNDER

from benchmarks import ours
from benchmarks.gpu_cases import CASES
from benchmarks.gpu_kernels import NAMES, Profile, main, profile_of, profile_rows, works

LONG = [("build", 300.0), ("build", 500.0), ("build", 400.0), ("search", 90.0), ("upload", 7.0)]
SHORT = [("build", 200.0), ("upload", 7.0), ("launch on the host", 0.0)]


def test_a_tree_takes_what_the_longer_fit_has_more() -> None:
    found = profile_of(LONG).less(profile_of(SHORT), 2)
    assert found.ms == pytest.approx({"build": 0.5, "search": 0.045, "upload": 0})
    assert found.launches == {"build": 1, "search": 0.5, "upload": 0}
    assert "launch on the host" not in profile_of(SHORT).ms


def test_rows_tell_kernels_gaps_and_the_whole() -> None:
    rows = {row["kernel"]: row for row in profile_rows(Profile({"a": 0.1, "b": 0.5}, {"a": 3, "b": 1}), 0.8, 0.2)}
    assert list(rows) == ["b", "a", "gaps", "all"]
    assert (rows["gaps"]["ms"], rows["gaps"]["share"]) == (pytest.approx(0.2), pytest.approx(0.25))
    assert (rows["all"]["launches"], rows["all"]["fraction_of_floor"], rows["b"]["share"]) == (4, 0.25, 0.625)


def test_cases_are_there() -> None:
    assert set(NAMES) <= set(CASES)


@pytest.mark.parametrize("kind", ["train", "quantize", "predict"])
def test_units_of_work_are_trees_or_calls(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which a profile of more has more."""
    called: list[int] = []
    monkeypatch.setattr(ours, "quantize", lambda *_, **__: called.append(1))

    class Model:
        def predict(self, x: object) -> None:
            called.append(2)

    def train(params: object, data: object, n: int, *, evals: object = ()) -> Model:
        assert not evals
        called.extend([3] * n)
        return Model()

    monkeypatch.setattr(ours, "train", train)
    config = replace(CASES["predict_11m"].config, kind=kind, device="cpu", n_rows=50, trees=4)
    ((name, (work, n)),) = works(config).items()
    called.clear()
    work(n)
    assert (name, called) == ("daskboost", {"train": [3] * 4, "quantize": [1] * 5, "predict": [2] * 5}[kind])


@pytest.mark.gpu
def test_a_profile_names_our_kernels(tmp_path: Path) -> None:
    if UNDER in os.environ:
        pytest.skip("a sanitizer and a profiler do not trace the same process")
    pytest.importorskip("torch")
    main(["--cases", "higgs_100k", "--rows", "20000", "--trees", "3", "--results", str(tmp_path)])
    rows = [json.loads(line) for line in (tmp_path / "gpu_kernels.jsonl").read_text().splitlines()]
    assert {"build", "best_of_nodes", "gaps", "all"} <= {row["kernel"] for row in rows}
