"""The benchmark of categories within a limit of memory, on few rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.category_memory import Config, bench_once, holds, parquet, table

SMALL = Config(n_rows=2500, n_levels=(3000, 500, 20, 200), file_rows=1000, trees=3, threads=1)


def test_rows_are_the_same_however_they_are_written(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    path = parquet(SMALL, tmp_path)
    assert parquet(SMALL, tmp_path) == path and len(list(path.glob("*.parquet"))) == 3
    written = pq.read_table(path)
    assert written.column_names == ["text_0", "number_1", "text_2", "number_3", "label"]
    assert written.slice(1000, 1000).equals(table(SMALL, 1, 1000))
    assert written.column("text_2").combine_chunks().unique().__len__() == 20


def test_a_fit_says_its_peaks(tmp_path: Path) -> None:
    row = bench_once(SMALL, parquet(SMALL, tmp_path))
    assert json.loads(json.dumps(row)) == row
    assert row["auc"] > 0.6 and row["n_features"] == 11, "two of each column, and those of three pairs"
    assert 1000 < row["kept_levels"][0] < 3000 and row["kept_levels"][2] == 20 and row["pooled_levels"] == [0] * 4
    assert 50 < row["start_mb"] <= row["quantize_peak_mb"]
    assert holds(SMALL, row) and not holds(replace(SMALL, limit_bytes=10**6), row)
    with pytest.raises(AssertionError, match="learned nothing"):
        holds(SMALL, {**row, "auc": 0.5})
