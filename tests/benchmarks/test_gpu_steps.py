"""The benchmark of a tree's steps, small and emulated: that it runs, and what its rows say."""

from __future__ import annotations

import pytest
from kernels.emulation import EmulatedRuntime

from benchmarks import gpu_steps
from benchmarks.gpu_steps import Config, parse_size, step_times


@pytest.mark.emulated
def test_every_step_has_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_steps, "REPEATS", 1)
    rows = step_times(Config("tiny", 1500, 5, max_depth=3, n_bins=16), EmulatedRuntime())
    steps = [row["case"].removeprefix("tiny: ") for row in rows]
    assert steps == [
        "gradients", "root histogram", "split into 2", "histograms of 1", "split into 4", "histograms of 2",
    ]  # fmt: skip
    root = rows[1]
    assert root["updates_per_s"] == pytest.approx(1500 * 5 / root["ms"] * 1e3, rel=0.01)
    assert root["floor_ms"] <= root["ms"]
    assert not any("asked_updates_per_s" in row for row in rows), "of the kernel alone a rate is asked"
    assert all("floor_ms" not in row for row in rows if "histogram" not in row["case"])


def test_sizes_are_rows_by_features() -> None:
    config = parse_size("4000000x200")
    assert (config.n_rows, config.n_features, config.n_bins) == (4_000_000, 200, 256)
