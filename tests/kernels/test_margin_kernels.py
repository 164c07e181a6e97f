"""Leaf values added on the GPU, its emulation and the CPU against their naive twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.runtimes import RUNTIMES
from reference import margins as reference

from daskboost.devices.cpu import partition as cpu
from daskboost.devices.gpu import margins as gpu
from daskboost.devices.gpu.runtime import Runtime, to_host


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
@pytest.mark.parametrize("n", [1, 255, 5000])
def test_by_position(runtime: Runtime, n: int, dtype: Any, rng: np.random.Generator) -> None:
    """The last of the nodes has no value: its rows keep their margins."""
    n_values = min(np.iinfo(dtype).max, 300)
    position = rng.integers(0, n_values + 1, n).astype(dtype)
    position[0] = np.iinfo(dtype).max
    values, before = rng.normal(size=n_values).astype(np.float32), rng.normal(size=(n, 3)).astype(np.float32)
    expected, margin = before.copy(), runtime.xp.asarray(before)
    reference.add_leaf_values(position.tolist(), values, expected[:, 1])
    gpu.add_leaf_values(runtime, runtime.xp.asarray(position), runtime.xp.asarray(values), margin[:, 1])
    assert to_host(margin).tobytes() == expected.tobytes()


@pytest.mark.parametrize("sizes", [[], [0], [1], [0, 0, 700, 0, 1], [300, 2, 900], [1] * 70])
@pytest.mark.parametrize("make_runtime", [pytest.param(None, id="cpu"), *RUNTIMES])
def test_in_order(make_runtime: Any, sizes: list[int], rng: np.random.Generator) -> None:
    ends = np.cumsum(np.array(sizes, np.int64))
    n = sum(sizes) + 50  # rows that grow no tree
    order = rng.permutation(n).astype(np.uint32)[: sum(sizes)]
    values, before = rng.normal(size=len(sizes)).astype(np.float32), rng.normal(size=(n, 2)).astype(np.float32)
    expected, margin = before.copy(), before.copy()
    reference.add_leaf_values_in_order(order.tolist(), ends.tolist(), values, expected[:, 0])
    if make_runtime is None:
        cpu.add_leaf_values(order, np.stack([ends - sizes, ends], axis=1).astype(np.int64), values, margin[:, 0])
    else:
        runtime: Runtime = make_runtime()
        on_device = runtime.xp.asarray(before)
        order, ends, values = (runtime.xp.asarray(array) for array in (order, ends, values))
        gpu.add_leaf_values_in_order(runtime, order, ends, values, on_device[:, 0])
        margin = to_host(on_device)
    assert margin.tobytes() == expected.tobytes()
