"""The copy of symbols feature by feature: NumPy's, whatever the groups that rows lie in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daskboost.devices.gpu.quantize.symbols import DeviceSymbols, SymbolPlaces
from daskboost.devices.gpu.runtime.launches import to_host


@pytest.mark.parametrize("n_rows", [1, 255, 700])
@pytest.mark.parametrize("symbol_bytes", [1, 2])
@pytest.mark.parametrize("n_features", [1, 7, 75])
def test_equals_numpys(
    n_features: int, symbol_bytes: int, n_rows: int, runtime: Any, rng: np.random.Generator
) -> None:
    slots = rng.integers(2, 256, n_features) if symbol_bytes == 1 else rng.integers(2, 900, n_features)
    dtype = np.dtype(f"u{symbol_bytes}")
    places = SymbolPlaces.of_slots(slots.astype(np.int64), dtype, 64 << 10)
    symbols = DeviceSymbols.empty(runtime, places, n_rows)
    rows = rng.integers(0, 256**symbol_bytes, (n_rows, n_features), dtype)
    symbols.put(0, runtime.xp.asarray(rows))
    found = symbols.by_feature()
    assert found.dtype == dtype and found.flags.c_contiguous
    np.testing.assert_array_equal(to_host(found), rows.T)


def test_of_no_rows_there_is_nothing_to_copy(runtime: Any) -> None:
    places = SymbolPlaces.of_slots(np.full(5, 9), np.dtype(np.uint8), 64 << 10)
    assert DeviceSymbols.empty(runtime, places, 0).by_feature().shape == (5, 0)
