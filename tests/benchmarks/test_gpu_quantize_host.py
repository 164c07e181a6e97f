"""The benchmark of quantizing rows of the host on a GPU, on few rows."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from kernels.emulation import EmulatedRuntime

from benchmarks.gpu_quantize_host import CASES, STEPS, Config, run_case
from daskboost.data.input import blocks
from daskboost.data.input import uploaded_rows as upload
from daskboost.devices.gpu.quantize import sketch
from daskboost.devices.gpu.runtime import cuda


@pytest.mark.parametrize("kind", ["numpy", "pandas"])
@pytest.mark.parametrize("device", [
    pytest.param("emulated", marks=pytest.mark.emulated), pytest.param("cuda", marks=pytest.mark.gpu),
])  # fmt: skip
def test_a_small_case(device: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "emulated":
        runtime = EmulatedRuntime()
        monkeypatch.setattr(cuda, "get_runtime", lambda *_: runtime)
        monkeypatch.setattr(sketch, "FIRST_BITS", 14)  # fewer words to visit, which takes the emulation long
    monkeypatch.setattr(upload, "TINY_VALUES", 0)
    monkeypatch.setattr(blocks, "MAX_ROWS", 600)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "xgboost" else find_spec(name)
    )  # ours alone
    run_case(Config("small", "higgs", 1_000, 3, kind=kind, max_bin=16, repeats=1), tmp_path, lambda: None)
    rows = [json.loads(line) for line in (tmp_path / "gpu_quantize_host.jsonl").read_text().splitlines()]
    assert {row["contender"] for row in rows if "contender" in row} == {"daskboost", "daskboost cpu"}
    steps = {row["step"]: row["milliseconds"] for row in rows if "step" in row}
    assert list(steps) == list(STEPS)
    nothing = {"merge"} if kind == "numpy" else set()  # which comes whole
    assert {step for step, time in steps.items() if time == 0} == nothing


def test_floors_are_reads_over_the_bus() -> None:
    assert CASES["numpy_float64"].floor_s == pytest.approx(8 * 11e6 * 28 / 55.5e9)
    assert CASES["pandas"].floor_s == pytest.approx(2 * 4 * 11e6 * 28 / 55.5e9)
