"""Drawing rows by their gradients: the kernel against its naive twin, and the threshold that makes a sample's size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.sampling import cell_of, drawn, threshold_of

from daskboost.cluster.sampled import sample_threshold
from daskboost.devices.cpu.device import CpuDevice
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.sampling import N_CELLS, cell_norms

KEY = 0x9D2C5680A7F1C3E5
LAYOUT = SlotLayout(np.array([0, 2], np.int64), np.array([2], np.int32))


@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("ids", ["stretches", "single ids"])
@pytest.mark.parametrize("threshold", [1e-3, 1.5, 1e30, np.inf])
def test_rows_are_counted_and_drawn_as_the_naive_twin_does(n_outputs: int, ids: str, threshold: float) -> None:
    rng, n_rows = np.random.default_rng(4), 9_000  # enough for two threads
    g, h = (rng.normal(size=(n_rows, n_outputs)).astype(np.float32) * np.float32(scale) for scale in (1, 3))
    h = np.abs(h)
    g[::7], h[::7] = 0, 0
    g[5::11] *= np.float32(1e-30)
    h[5::11] = 0
    g[3], g[4], h[10] = np.inf, np.nan, 3e38
    every = np.concatenate([np.arange(5_000, dtype=np.uint64) + np.uint64(2**33), np.arange(4_000, dtype=np.uint64)])
    pieces = every if ids == "single ids" else ((0, 2**33), (5_000, 0))
    device = CpuDevice(LAYOUT, Threads(2))
    counts = np.zeros(N_CELLS, np.int64)
    found = device.draw_rows(g, h, pieces, KEY, threshold, counts)
    device.close()
    rows, norms, draws, expected = drawn(g, h, every, KEY, threshold)
    if threshold == np.inf:  # which only counts
        rows, norms, draws = [], [], []
    assert found.rows.tolist() == rows and found.norms.tolist() == norms and found.draws.tolist() == draws
    assert (counts == expected).all()


def test_cells_hold_the_norms_that_they_stand_for() -> None:
    norms = cell_norms()
    assert [cell_of(norm) for norm in norms.tolist()] == list(range(N_CELLS))
    assert (np.diff(norms) > 0).all() and np.abs(np.diff(norms) / norms[1:]).max() < 1 / 60


@settings(max_examples=60, deadline=None)
@given(
    norms=st.lists(st.floats(2.0**-100, 2.0**100), min_size=1, max_size=20), rate=st.floats(0.01, 0.99),
    repeats=st.integers(1, 5),
)  # fmt: skip
def test_the_threshold_gives_a_sample_of_the_wanted_size(norms: list[float], rate: float, repeats: int) -> None:
    cells = np.array([cell_of(norm) for norm in norms])
    counts = np.bincount(cells, minlength=N_CELLS) * repeats
    threshold = sample_threshold(counts, rate)
    shares = np.minimum(1, cell_norms() / threshold)
    assert (shares * counts).sum() == pytest.approx(rate * counts.sum(), rel=1e-9)
    assert threshold == pytest.approx(threshold_of(np.repeat(cell_norms()[cells], repeats), rate), rel=1e-6)


def test_rows_without_gradients_need_no_threshold() -> None:
    assert sample_threshold(np.zeros(N_CELLS, np.int64), 0.1) == 1.0
