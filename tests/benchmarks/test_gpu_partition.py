"""The benchmark of moving rows: its floors, and its own check, which the emulation passes too."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import gpu_partition
from benchmarks.gpu_partition import Config, sector_bytes, split_floor_ms
from daskboost.devices.gpu.rows import row_state as rows
from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.trees import known_tree


def test_sectors_are_shared_by_neighbours() -> None:
    assert sector_bytes(1, 1.0) == 1
    assert sector_bytes(4, 1.0) == 4
    assert 31 < sector_bytes(1, 1 / 1024) < 32


def test_deep_levels_read_as_much_as_rows_do() -> None:
    config = Config(1_000_000)
    floors = [split_floor_ms(config, level, True) for level in range(1, 20)]
    assert floors == sorted(floors)
    assert floors[0] == pytest.approx(17 / 4500)
    assert floors[-1] == pytest.approx(split_floor_ms(config, 1, False), rel=0.01)


@pytest.mark.parametrize("has_columns", [False, True])
def test_right_rows_pass_the_check(runtime: Any, has_columns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    monkeypatch.setattr(gpu_partition, "CHECKED_ROWS", 3000)
    gpu_partition.check(has_columns)


@pytest.mark.parametrize(("owner", "name", "complaint"), [
    (known_tree, "add_leaf_values", "margins are not"), (rows.GpuRows, "split_rows", r"the rows of node \d+ are not"),
])  # fmt: skip
def test_wrong_rows_do_not(
    runtime: Any, owner: Any, name: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
    monkeypatch.setattr(gpu_partition, "CHECKED_ROWS", 300)
    monkeypatch.setattr(owner, name, lambda *arguments: None)
    with pytest.raises(AssertionError, match=complaint):
        gpu_partition.check(True)
