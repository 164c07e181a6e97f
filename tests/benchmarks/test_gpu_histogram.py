"""The histogram benchmark's rows, levels and check, without a clock."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from benchmarks import gpu_histogram
from benchmarks.gpu_histogram import HOT_SHARE, LEVELS, Config, bench_once, make_level, make_symbols
from daskboost.devices.gpu.quantize import symbols as turned
from daskboost.devices.gpu.rows import views
from daskboost.devices.gpu.rows.views import DenseView


@pytest.mark.parametrize("skewed", [False, True])
def test_every_level_is_checked_before_it_is_timed(
    skewed: bool, runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_histogram, "median_ms", lambda *_: 0.5)
    rows = list(bench_once(runtime, Config("small", 700, 5), 64, skewed))
    assert [row["level"] for row in rows] == ["root", "2 nodes", "8 nodes", "64 nodes"]
    assert rows[0]["t_updates_per_s"] == round(700 * 5 / 0.5 / 1e9, 3)
    assert all(0 <= row["fraction_of_floor"] < 1 for row in rows)


@pytest.mark.parametrize("wrong", [False, True])
def test_roots_of_a_copy_are_compared_with_those_of_the_rows(
    wrong: bool, runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum that `check` does not look at is wrong in a copy whose columns are."""
    monkeypatch.setattr(gpu_histogram, "median_ms", lambda *_: 0.5)
    if wrong:
        monkeypatch.setattr(views, "turn", lambda runtime, planes, n: 0 * turned.turn(runtime, planes, n))
        monkeypatch.setattr(gpu_histogram, "check", lambda *_: None)
        with pytest.raises(AssertionError, match="other sums than of the rows themselves"):
            list(bench_once(runtime, Config("narrow", 300, 20), 64, False))
        return
    rows = list(bench_once(runtime, Config("narrow", 300, 20), 64, False))
    assert [row["level"] for row in rows][:3] == ["root", "root, copy", "2 nodes"]


def test_a_wrong_sum_is_found(runtime: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DenseView, "build", lambda *_, **__: None)
    with pytest.raises(AssertionError, match="wrong sums: node 0, feature 0"):
        list(bench_once(runtime, Config("small", 700, 5), 64, False))


@pytest.mark.parametrize("n_nodes", LEVELS[1:])
def test_levels_are_about_half_of_the_rows_in_segments(n_nodes: int, runtime: Any) -> None:
    level = make_level(runtime, 5000, n_nodes)
    bounds = [[int(bound) for bound in each] for each in level.bounds]
    assert bounds[0][0] == 0 and bounds[-1][1] == level.n_rows
    assert all(end == begin for (_, end), (begin, _) in pairwise(bounds))
    assert abs(level.n_rows - 2500) < 250
    assert level.order is not None and level.order.dtype == np.uint32
    own = level.order[bounds[0][0] : bounds[0][1]]
    assert bool((own[1:] > own[:-1]).all())


def test_skewed_symbols(runtime: Any) -> None:
    symbols = make_symbols(runtime, Config("small", 3000, 4), 64, True)
    assert int(symbols.max()) < 64
    assert abs(float((symbols == 0).mean()) - HOT_SHARE) < 0.03
