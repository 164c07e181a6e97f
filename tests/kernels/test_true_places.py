"""Places of flags that are set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.gpu.runtime.stretches import TILE_ROWS, true_places


@pytest.mark.parametrize("n", [0, 1, 31, 256, TILE_ROWS + 1, 5 * TILE_ROWS - 3])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.6, 1.0])
@pytest.mark.parametrize("dtype", [np.uint8, np.bool_])
def test_are_numpys(n: int, share: float, dtype: type, runtime: Runtime) -> None:
    flags: np.ndarray[Any, Any] = (np.random.default_rng(n).random(n) < share).astype(dtype)
    found = true_places(runtime, runtime.xp.asarray(flags))
    assert found.dtype == np.int64
    assert to_host(found).tolist() == [place for place, flag in enumerate(flags.tolist()) if flag]
