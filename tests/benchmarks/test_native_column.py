"""What a column that is split by sets costs a tree."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.native_column import WITH, WITHOUT, Config, main, rows


def test_rows_do_not_depend_on_where_they_begin() -> None:
    config = Config(n_levels=50, device="cpu")
    x, y = rows(config, 0, 300)
    tail, tail_y = rows(config, 100, 200)
    np.testing.assert_array_equal(x[100:], tail)
    np.testing.assert_array_equal(y[100:], tail_y)
    assert x[:, -1].min() >= 0 and x[:, -1].max() < 50 and (x[:, -1] % 1 == 0).all()


def test_trees_with_the_column_and_without_it_are_timed_beside_each_other(tmp_path: Path) -> None:
    main(["--device", "cpu", "--rows", "20000", "--levels", "100", "--trees", "5", "--repeats", "1",
          "--results", str(tmp_path)])  # fmt: skip
    found = {
        row["contender"]: row for row in map(json.loads, (tmp_path / "native_column.jsonl").read_text().splitlines())
    }
    assert found[WITH]["answer"]["auc"] > found[WITHOUT]["answer"]["auc"]
    beside = found[f"{WITHOUT} beside {WITH}"]
    with_, without = found[WITH]["seconds"], found[WITHOUT]["seconds"]
    if min(with_, without) > 0:
        assert beside["ratio"] == pytest.approx(with_ / without, rel=1e-3, abs=6e-4)  # thousandths are written
    else:
        assert beside["ratio"] is None
