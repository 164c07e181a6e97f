"""Constant and linear leaves on a shipped set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import linear_leaves


@pytest.mark.parametrize("penalties", ["", "5,20"])
def test_contenders_are_compared_with_constant_leaves(
    penalties: str, tmp_path: Path, bundled_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DASKBOOST_DATA", str(bundled_data))
    linear_leaves.main(["--sets", "california_housing", "--penalties", penalties, "--rounds", "5", "--most-rows", "900",
                        "--results", str(tmp_path)])  # fmt: skip
    rows = [json.loads(line) for line in (tmp_path / "linear_leaves.jsonl").read_text().splitlines()]
    constant = [row for row in rows if "constant" in row["contender"]]
    assert len(rows) == (3 if penalties else 6) and len(constant) == (1 if penalties else 3)
    assert all(row["relative"] == 0 for row in constant)
    assert all(0.5 < row["score"] < 1.2 and row["relative"] < 0.1 and row["round"] == 5 for row in rows)
