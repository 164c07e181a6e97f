"""Exact sums of leaves on the GPU, its emulation and the CPU against their naive twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from devices.backends import EagerThreads, make_layout
from kernels.runtimes import RUNTIMES
from reference import gradients as reference

from daskboost.devices.cpu.rows import CpuRows, Rounding
from daskboost.devices.gpu.rows.gradients import MOST_LEAF_ROWS
from daskboost.devices.gpu.rows.row_state import GpuRows
from daskboost.devices.gpu.runtime.launches import Runtime

PIECES = [[(0, 7), (300, 5_000), (301, 2**40)], [(0, 2**63 - 1)], [(0, 11)]]
"""Global ids of three chunks, of which one has no rows."""
SIZES = [901, 0, 64]
N_NODES = {"few": 5, "more than fit shared memory": 1_300}


def make_rows(runtime: Runtime | None, weights: Any = None) -> Any:
    layout = make_layout([2])
    if runtime is None:
        return CpuRows(lambda: (), SIZES, PIECES, layout, EagerThreads(3), weights)
    return GpuRows(runtime, lambda: (), SIZES, PIECES, layout, weights)


def segments(rng: np.random.Generator, kept: int, n_nodes: int) -> Any:
    """Nodes' segments of rows in node order, many of them empty; the nodes at odd places are no leaves."""
    ends = np.sort(rng.integers(0, kept + 1, n_nodes))
    ends[-1] = kept
    return np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1).astype(np.int64)


@pytest.mark.parametrize("n_nodes", N_NODES)
@pytest.mark.parametrize(("share", "by_query"), [(1.0, False), (0.3, False), (0.3, True)])
@pytest.mark.parametrize("small", [False, True], ids=["large", "small"])
@pytest.mark.parametrize("make_runtime", [pytest.param(None, id="cpu"), *RUNTIMES])
def test_equals_the_naive_twin(make_runtime: Any, small: bool, share: float, by_query: bool, n_nodes: str,
                               rng: np.random.Generator) -> None:  # fmt: skip
    """The tree was searched by other scales than those that its leaves are summed by, over the rows that grew it."""
    runtime: Runtime | None = make_runtime and make_runtime()
    put = np.asarray if runtime is None else runtime.xp.asarray
    weights = [rng.integers(0, 4, size).astype(np.float32) for size in SIZES] if small else None
    rows, n = make_rows(runtime, weights), N_NODES[n_nodes]
    codes = [rng.integers(0, 30, size).astype(np.uint64) << np.uint64(59) for size in SIZES] if by_query else None
    if codes is not None:
        rows.draw_by(codes)
    chunks = [(rng.normal(size=size).astype(np.float32), rng.random(size).astype(np.float32)) for size in SIZES]
    top_g, top_h = (max(float(np.abs(chunk[side]).max(initial=0)) for chunk in chunks) for side in (0, 1))
    searched, exact = (
        Rounding(reference.scale(top_g, limit), reference.scale(top_h, limit), 99, 55, int(share * 2**32))
        for limit in (4, 2**17 if small else reference.LIMIT)
    )
    on_device = [(put(g), put(h)) for g, h in chunks]
    rows.start_tree(lambda index: on_device[index], searched)
    leaves = rng.permutation(n)[: n - n // 3].astype(np.int32)
    expected = np.zeros((n, 2), np.int64)
    for index, (chunk, (g, h), pieces) in enumerate(zip(rows.chunks, chunks, PIECES, strict=True)):
        own = np.ones(len(g), np.float32) if weights is None else weights[index]
        ends = [begin for begin, _ in pieces[1:]] + [len(g)]
        pairs = {
            begin + row: pair
            for (begin, first), end in zip(pieces, ends, strict=True)
            for row, *pair in reference.quantize(
                g[begin:end], h[begin:end], exact, first, own[begin:end] if small else None,
                None if codes is None else codes[index][begin:end],
            )
        }
        order = rng.permutation(list(pairs)).astype(np.uint32)
        assert chunk.kept == len(order)
        bounds = segments(rng, len(order), n)
        chunk.order[: len(order)], chunk.bounds = put(order), put(bounds)
        for node, (begin, end) in enumerate(bounds.tolist()):
            for row in order[begin:end].tolist():
                expected[node] += pairs[row]
    found = rows.column_leaf_sums(lambda index: on_device[index], exact, leaves)
    np.testing.assert_array_equal(found, expected[leaves])
    assert expected.any(axis=1).sum() > 3


def test_no_sum_of_a_block_overflows(runtime: Runtime) -> None:
    """Of more rows than a block may take, all in one leaf and as large as they get."""
    n_rows = 2 * MOST_LEAF_ROWS + 5
    rows = GpuRows(runtime, lambda: (), [n_rows], [[(0, 0)]], make_layout([2]))
    ones = runtime.xp.ones(n_rows, np.float32)
    rounding = Rounding(32767.0, 32767.0, 1, 2, 2**32)
    rows.start_tree(lambda _: (-ones, ones), rounding)
    rows.quantizers[0]._block_rows = n_rows  # as on a GPU with hundreds of millions of rows
    found = rows.column_leaf_sums(lambda _: (-ones, ones), rounding, np.zeros(1, np.int32))
    assert found.tolist() == [[-32767 * n_rows, 32767 * n_rows]]
