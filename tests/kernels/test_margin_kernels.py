"""Leaf values added on the GPU, its emulation and the CPU against their naive twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.runtimes import RUNTIMES
from reference import margins as reference

from daskboost.devices.cpu import partition as cpu
from daskboost.devices.gpu.rows.row_state import DeviceOrder
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.gpu.trees import known_tree as gpu

SIZES: list[list[int]] = [[0], [1], [0, 0, 700, 0, 1], [300, 2, 2900], [1] * 70, [1] * 1100]
"""Rows of leaves: several tiles of some, and more leaves than a block counts itself."""


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"{len(sizes)} leaves of {sum(sizes)}")
@pytest.mark.parametrize("make_runtime", [pytest.param(None, id="cpu"), *RUNTIMES])
def test_equals_the_naive_twin(make_runtime: Any, sizes: list[int], rng: np.random.Generator) -> None:
    """Leaves lie in either half of the order, and every third node is none; some rows grow no tree."""
    n = sum(sizes) + 50
    ends = np.cumsum(np.array(sizes, np.int64))
    bounds = np.stack([ends - sizes, ends], axis=1)
    in_second_half = rng.random(len(sizes)) < 0.5
    order = np.full(2 * n, n + 1, np.uint32)  # no row
    rows = rng.permutation(n).astype(np.uint32)
    for segment, second in zip(bounds, in_second_half, strict=True):
        segment += n * second
        order[slice(*segment)] = rows[slice(*(segment - n * second))]
    nodes = rng.permutation(len(sizes)).astype(np.int32)
    nodes[1::3] = -1
    values, before = rng.normal(size=len(sizes)).astype(np.float32), rng.normal(size=(n, 2)).astype(np.float32)
    expected, margin = before.copy(), before.copy()
    reference.add_leaf_values(order.tolist(), bounds.tolist(), nodes.tolist(), values, expected[:, 0])
    if make_runtime is None:
        leaves = nodes[nodes >= 0]
        cpu.add_leaf_values(order, bounds[leaves], values[leaves], margin[:, 0])
    else:
        runtime: Runtime = make_runtime()
        chunk, on_device = DeviceOrder(runtime, n), runtime.xp.asarray(before)
        chunk.order, chunk.bounds = runtime.xp.asarray(order), runtime.xp.asarray(bounds)
        gpu.add_leaf_values(runtime, chunk, runtime.xp.asarray(nodes), runtime.xp.asarray(values), on_device[:, 0])
        margin = to_host(on_device)
    assert margin.tobytes() == expected.tobytes()


def test_nothing_to_add(runtime: Runtime) -> None:
    empty, none = DeviceOrder(runtime, 0), runtime.xp.empty(0, np.int32)
    margin, values = runtime.xp.zeros((0, 1), np.float32), runtime.xp.ones(1, np.float32)
    gpu.add_leaf_values(runtime, empty, runtime.xp.zeros(1, np.int32), values, margin[:, 0])
    gpu.add_leaf_values(runtime, DeviceOrder(runtime, 1), none, values, runtime.xp.zeros((1, 1), np.float32)[:, 0])
