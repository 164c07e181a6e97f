"""Separate trees and vector leaves until they reach one log-loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_equal_loss import main, rounds_to


def test_rounds_until_a_log_loss() -> None:
    assert rounds_to(0.5, [0.9, 0.5, 0.4]) == 2
    assert rounds_to(0.3, [0.9, 0.5, 0.4]) is None


def rehearse(tmp_path: Path, device: str, rounds: int) -> dict[str, dict[str, Any]]:
    sizes = ["--rows", "2000", "--trees", "2", "--rounds", str(rounds)]
    main(["--cases", "classes_10_small", "--device", device, *sizes, "--results", str(tmp_path)])
    rows = map(json.loads, (tmp_path / "gpu_equal_loss.jsonl").read_text().splitlines())
    return {row["contender"]: row for row in rows}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_vector_leaves_get_the_rounds_that_they_need(device: str, tmp_path: Path) -> None:
    rows = rehearse(tmp_path, device, 30)
    separate = rows.pop("daskboost")
    assert (separate["rounds"], separate["separate_trees_time_over_ours"]) == (2, 1)
    assert set(rows) == {"daskboost vector leaves", "daskboost vector leaves sketch"}
    for row in rows.values():
        assert row["goal"] == separate["logloss"] == pytest.approx(row["logloss"], rel=0.03)
        assert row["logloss"] <= row["goal"] * (1 + 1e-5)
        assert 1 < row["rounds"] <= 30
        assert row["separate_trees_time_over_ours"] == pytest.approx(separate["seconds"] / row["seconds"], rel=1e-3)


def test_too_few_rounds_say_so(tmp_path: Path) -> None:
    row = rehearse(tmp_path, "cpu", 2)["daskboost vector leaves"]
    assert (row["rounds"], row["seconds"], row["separate_trees_time_over_ours"]) == (None, None, None)
    assert row["logloss"] > row["goal"]
