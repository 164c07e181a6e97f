"""The benchmark of quantizing on a GPU, on few rows: its check, its contender and its steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from strategies.device_arrays import Place, place

from benchmarks import gpu_quantize
from benchmarks.generators import WORKLOADS
from benchmarks.gpu_quantize import CASES, STEPS, Config, check_cuts, contenders, step_rows

__all__ = ["place"]


def nothing() -> None:
    """The device is idle whenever a kernel returns, or the clock does not matter."""


def to_host(array: Any) -> Any:
    return array.host if hasattr(array, "host") else array.get()


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_small_case(order: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config("small", "higgs", 3_000, 6, max_bin=16, repeats=2, order=order)
    monkeypatch.setattr(gpu_quantize, "CHECKED_ROWS", 1_000)
    x, y = WORKLOADS["higgs"].wide(6).rows(3_000)
    there, labels = place.array(np.asarray(x, order=order)), place.array(y)  # type: ignore[call-overload]
    check_cuts(config, there, to_host)
    run = contenders(config, there, labels, nothing)["daskboost"]()
    assert run.answer == {"bins": 96.0}
    assert run.seconds > 0
    rows = step_rows(config, there, labels, nothing)
    assert [row["step"] for row in rows] == list(STEPS)
    assert all(row["milliseconds"] > 0 for row in rows)


def test_floors_are_bytes_over_bandwidth() -> None:
    assert CASES["higgs_11m"].floor_s == pytest.approx(11e6 * 28 * 5 / 4.5e12)
