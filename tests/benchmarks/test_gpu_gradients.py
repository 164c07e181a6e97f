"""What the benchmark of gradients checks before it times, on the emulated device."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kernels.emulation import EmulatedRuntime

from benchmarks.gpu_gradients import CASES, Round, step_bytes


@pytest.mark.parametrize("name", CASES)
def test_every_case_passes_its_check(name: str) -> None:
    config = replace(CASES[name], n_rows=CASES[name].n_rows // 10_000)
    round_ = Round(config, EmulatedRuntime())
    round_.check()
    assert set(step_bytes(config)) == {"range", "quantize and order", *(["quantize"] if config.subsample == 1 else [])}


def test_a_wrong_answer_is_not_timed() -> None:
    round_ = Round(replace(CASES["logistic"], n_rows=500), EmulatedRuntime())
    round_.rounding.keys += 1
    with pytest.raises(AssertionError):
        round_.check()
