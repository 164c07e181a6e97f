"""The copy of narrow rows: its order wastes nothing, its bytes are the naive twin's, and roots alone read it."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from devices.backends import make_layout, make_symbols
from devices.histograms import dense
from kernels.emulation import EmulatedRuntime
from reference import turned as reference

from daskboost.devices.gpu.quantize.symbols import LEAST_ROWS, turn, turned_bytes, turned_columns
from daskboost.devices.gpu.rows.feature_groups import SKEWED_BINS, SKEWED_COLUMNS, feature_groups
from daskboost.devices.gpu.runtime.cuda import get_runtime
from daskboost.devices.gpu.runtime.kernel_source import ARCHITECTURES
from daskboost.devices.gpu.runtime.launches import to_host

LANES = range(reference.LANES)
SHARED_KIB = sorted(set(ARCHITECTURES.values()))


@pytest.mark.parametrize("columns", SKEWED_COLUMNS)
def test_every_step_takes_one_wavefront(columns: int) -> None:
    """A warp adds 32 rows in as many steps as they have columns; at each, lanes meet in no bank, whatever the bins."""
    for step in range(columns):
        assert sorted(reference.cell(lane, step) % 32 for lane in LANES) == list(LANES)
    for lane in LANES:
        own = [reference.column(lane, step, columns) for step in range(columns)]
        assert sorted(own) == list(range(columns))
    assert max(reference.cell(lane, step) for lane in LANES for step in range(columns)) < 28 + columns


@pytest.mark.parametrize("columns", SKEWED_COLUMNS)
@pytest.mark.parametrize("n_rows", [1, 32, 77, 600])
def test_equals_the_naive_twin(n_rows: int, columns: int, runtime: Any, rng: np.random.Generator) -> None:
    """Several planes, which groups of 17 to 28 features never have, are one behind the other."""
    planes = rng.integers(0, 256, (2, n_rows, 32), np.uint8)
    planes[:, :, columns:] = 0
    found = to_host(turn(runtime, runtime.xp.asarray(planes), columns))
    for rows, copy in zip(planes, found, strict=True):
        np.testing.assert_array_equal(copy, reference.turned(rows, columns).ravel())


def test_what_is_copied_is_what_is_added_in_that_order() -> None:
    for n_features in range(1, 70):
        for n_bins, shared_kib in product((60, 128, 129, 200, 256), SHARED_KIB):
            room, at_least = shared_kib << 10, min(bins for bins in SKEWED_BINS if bins >= n_bins)
            first, *others = feature_groups(np.full(n_features, n_bins), 1, room)
            columns = turned_columns(n_features, 1, n_bins, room)
            assert first.skewed(room) == ((columns, at_least) if columns else None)
            assert not columns or (not others and first.n_planes == 1)
            assert turned_columns(n_features, 2, n_bins, room) == 0
    assert [turned_columns(n, 1, 200, 227 << 10) for n in (16, 17, 20, 21, 28, 29)] == [0, 20, 20, 24, 28, 0]
    for n_bins, found in ((128, [28, 28, 28, 28]), (129, [0, 0, 28, 28])):
        assert [turned_columns(28, 1, n_bins, shared_kib << 10) for shared_kib in SHARED_KIB] == found


def test_few_rows_have_no_copy() -> None:
    for n_rows, n_features, symbol_bytes in ((LEAST_ROWS - 1, 28, 1), (LEAST_ROWS, 28, 2), (LEAST_ROWS, 32, 1)):
        assert turned_bytes(n_rows, n_features, symbol_bytes, 200, None) == 0
    assert turned_bytes(LEAST_ROWS + 1, 25, 1, 200, None) == 28 * (LEAST_ROWS + 32)
    assert turned_bytes(LEAST_ROWS + 1, 25, 1, 200, 64 << 10) == 0


LARGE = [pytest.param(EmulatedRuntime(sm=90), marks=pytest.mark.emulated), pytest.param(None, marks=pytest.mark.gpu)]


@pytest.mark.parametrize("large", LARGE)
def test_a_view_counts_its_copy(large: Any, rng: np.random.Generator) -> None:
    runtime, n_bins = large or get_runtime(), [100] * 26  # which small GPUs have room for, too
    layout, symbols = make_layout(n_bins), make_symbols(rng, 70, n_bins)
    bare, copied = (dense(runtime, symbols, layout, turn_rows=turns) for turns in (False, True))
    assert (bare.nbytes, copied.nbytes) == (70 * 32, 70 * 32 + 96 * 28)
    wide = dense(runtime, symbols, layout, np.uint16, turn_rows=True)
    assert wide.nbytes == dense(runtime, symbols, layout, np.uint16).nbytes
