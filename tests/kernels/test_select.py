"""The smallest keys that groups of threads select are those of a sort."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime

from daskboost.devices.gpu.runtime.cuda import CudaRuntime
from daskboost.devices.gpu.runtime.kernel_source import parse
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.dtypes import UInt64

SOURCE = parse("selections", (Path(__file__).parent / "selections.cu").read_text())
THREADS = 256
N = 300


def ordered(values: np.ndarray) -> UInt64:
    """Numbers of float64 as integers of the same order."""
    bits = np.ascontiguousarray(values, np.float64).view(np.uint64)
    return np.where(bits >> np.uint64(63), ~bits, bits | np.uint64(1 << 63))


def cases(rng: np.random.Generator) -> list[UInt64]:
    """Keys far apart and near each other, in either half, and few different ones."""
    words = rng.integers(0, 2**64, N, np.uint64)
    uniform, small = np.sort(words)[::-1].copy(), rng.integers(0, 9, N).astype(np.uint64)
    upper = np.uint64(0xFFFFFFFF << 32)
    return [
        words, uniform, small, ~small, small << np.uint64(32), words & ~upper | np.uint64(7 << 40), words & upper,
        (words % np.uint64(3) << np.uint64(32)) + small, np.full(N, 5, np.uint64), np.full(N, 2**64 - 1, np.uint64),
        ordered(rng.normal(size=N)), ordered(rng.normal(size=N) * (rng.random(N) < 0.2)),
        ordered(rng.integers(-4, 5, N) / 7), ordered(rng.normal(size=N) * 10.0 ** rng.integers(-300, 300, N)),
        ordered(np.where(rng.random(N) < 0.03, -1e9, rng.normal(size=N))),
        np.uint64(2**64 - 257) + words % np.uint64(257),
    ]  # fmt: skip


@pytest.mark.parametrize("group", [128, 256])
def test_selected_are_the_smallest(group: int, runtime: Runtime, rng: np.random.Generator) -> None:
    keys = np.concatenate([cases(rng) for _ in range(6)])
    wanted = rng.integers(1, N + 1, len(keys)).astype(np.int32)
    wanted[:4] = 1
    wanted[4:8] = wanted[-1] = N
    last, n_equal = runtime.xp.zeros(len(keys), np.uint64), runtime.xp.zeros(len(keys), np.int32)
    kernel = cast(EmulatedRuntime | CudaRuntime, runtime).kernel_of(
        SOURCE, "select_keys", SOURCE.variant({"THREADS": THREADS, "GROUP": group})
    )
    kernel(
        len(keys) * group // THREADS, THREADS, runtime.xp.asarray(keys), N, runtime.xp.asarray(wanted), last, n_equal
    )
    for row, n, bound, equal in zip(keys, wanted.tolist(), to_host(last), to_host(n_equal).tolist(), strict=True):
        assert int((row < bound).sum()) + min(equal, int((row == bound).sum())) == n
        assert equal > 0 and bound >= np.sort(row)[n - 1]
