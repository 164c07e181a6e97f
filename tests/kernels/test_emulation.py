"""The emulation of CUDA: it does what CUDA does, and reports what CUDA leaves undefined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernels.emulation import LAUNCHES, EmulatedRuntime, EmulationError, launch_lines

from daskboost.devices.gpu.runtime.kernel_source import kernel_file, parse

PATH = Path(__file__).parent / "toys.cu"
TOYS = parse("toys", PATH.read_text())
ASSEMBLER, UCONTEXT = TOYS.variants
SEEDS = [0, 1, 2]


def launch(entry: str, grid: int, block: int, *arguments: Any, seed: int = 0, ucontext: bool = False, shared: int = 0
           ) -> None:  # fmt: skip
    kernel = EmulatedRuntime(seed).kernel_of(TOYS, entry, UCONTEXT if ucontext else ASSEMBLER)
    kernel(grid, block, *arguments, shared_bytes=shared)


def line_of(text: str, nth: int = 0) -> int:
    """Number of the nth line of the toys that contains a text."""
    return [i for i, line in enumerate(PATH.read_text().splitlines(), 1) if text in line][nth]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_thread_of_every_block_runs_once(seed: int) -> None:
    out = np.zeros(3 * 40, np.int32)
    launch("indices", 3, 40, out, seed=seed)
    assert out.tolist() == [3001 + 10 * block for block in range(3) for _ in range(40)]


@pytest.mark.parametrize("ucontext", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_barriers(seed: int, ucontext: bool) -> None:
    values = np.arange(64, dtype=np.int32)
    launch("reverse", 1, 64, values, seed=seed, ucontext=ucontext)
    assert values.tolist() == list(range(66, 2, -1))


def test_launches_are_noted_by_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once each; not where a single thread has no order, nor where a kernel is only made or does not get to its end."""
    path = tmp_path / "launches"
    monkeypatch.setenv(LAUNCHES, str(path))
    EmulatedRuntime(1).kernel_of(TOYS, "votes", ASSEMBLER)
    with pytest.raises(EmulationError):
        launch("early_exit", 1, 32, np.zeros(32, np.int32), seed=1)
    launch("unset_shared", 1, 1, np.zeros(1, np.uint32), seed=1)
    for seed in (0, 0, 2, 1):
        launch("reverse", 1, 64, np.arange(64, dtype=np.int32), seed=seed)
    assert path.read_text().splitlines() == [
        line for late in (False, True) for line in launch_lines("toys", "reverse", ASSEMBLER, late)
    ]


def test_a_missing_barrier_shows() -> None:
    """In whichever order: some thread reads what another has not yet written."""
    for seed in SEEDS:
        values = np.arange(64, dtype=np.int32)
        launch("reverse_without_barrier", 1, 64, values, seed=seed)
        assert values.tolist() != list(range(64, 0, -1))


@pytest.mark.parametrize("seed", SEEDS)
def test_divergent_barriers_are_reported(seed: int) -> None:
    out = np.zeros(64, np.int32)
    place = rf"toys\.cu:{line_of('if (threadIdx.x < 5) __syncthreads')}"
    with pytest.raises(
        EmulationError, match=rf"divergent: thread 0 waits at .*{place}, thread 5 has ended \(block 0\)"
    ):
        launch("divergent_barrier", 1, 64, out, seed=seed)
    first = line_of('extern "C" __global__ void two_barriers') + 2
    expected = rf"thread 0 waits at .*toys\.cu:{first}, thread 5 waits at .*toys\.cu:{first + 2} "
    with pytest.raises(EmulationError, match=expected):
        launch("two_barriers", 1, 64, out, seed=seed)
    with pytest.raises(EmulationError, match=r"waits at .*toys\.cu:\d+, thread 7 has ended"):
        launch("early_exit", 1, 32, out, seed=seed)
    with pytest.raises(EmulationError, match=r"thread 20 waits at .*toys\.cu:\d+, thread 0 has ended"):
        launch("half_a_warp", 1, 32, out, seed=seed)
    with pytest.raises(EmulationError, match="the mask names lanes that the block lacks"):
        launch("votes", 1, 31, out, np.zeros(7 * 31, np.int32), seed=seed)
    test_barriers(seed, False)  # what was left in the middle troubles no later launch


@pytest.mark.parametrize("seed", SEEDS)
def test_votes(seed: int, rng: np.random.Generator) -> None:
    values = rng.integers(0, 5, 64).astype(np.int32)
    values[32:] |= 1
    out = np.zeros((64, 7), np.int32)
    launch("votes", 1, 64, values, out, seed=seed)
    odd = values % 2 == 1
    for i in range(64):
        warp = slice(i // 32 * 32, i // 32 * 32 + 32)
        ballot, same = (sum(1 << lane for lane in np.flatnonzero(x)) for x in (odd[warp], values[warp] == values[i]))
        expected = [ballot, odd[warp].any(), odd[warp].all(), same, odd.sum(), True, False]
        assert (out[i].view(np.uint32) == np.array(expected, np.int64).astype(np.uint32)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_shuffles(seed: int, rng: np.random.Generator) -> None:
    values = rng.normal(size=64)
    out = np.zeros((64, 5))
    launch("shuffles", 1, 64, values, out, seed=seed)
    for i in range(64):
        lane, warp = i % 32, values[i // 32 * 32 :]
        up, down = warp[lane - 2 if lane >= 2 else lane], warp[lane + 5 if lane + 5 < 32 else lane]
        assert out[i].tolist() == [warp[3], up, down, warp[lane ^ 9], warp[lane + 3 if lane % 8 + 3 < 8 else lane]]


@pytest.mark.parametrize("seed", SEEDS)
def test_atomics(seed: int, rng: np.random.Generator) -> None:
    values = rng.integers(1, 2**20, (4, 96)).astype(np.uint32)
    total, least, real = np.zeros(1, np.uint64), np.full(1, 2**31 - 1, np.int32), np.zeros(1, np.float32)
    most, bits, swaps = (np.zeros(1, np.uint32) for _ in range(3))
    launch("atomics", 4, 96, values, total, least, most, bits, swaps, real, seed=seed)
    assert total[0] == values.sum(dtype=np.uint64) << np.uint64(20)
    assert (least[0], most[0], swaps[0]) == (values.min(), values.max(), values.sum(dtype=np.uint32))
    assert bits[0] == np.bitwise_or.reduce(np.uint32(1) << (values.ravel() % np.uint32(32)))
    assert real[0] == values.size / 2


def test_shared_memory_starts_as_garbage_in_every_block() -> None:
    out = np.zeros(3, np.uint32)
    launch("unset_shared", 3, 1, out)
    assert out.tolist() == [0xA5A5A5A5] * 3


def test_dynamic_shared_memory() -> None:
    out = np.zeros(1, np.int64)
    launch("sum_dynamic", 1, 100, np.arange(100), out, shared=800, seed=1)
    assert out[0] == 4950


def test_launches_that_cuda_would_refuse_or_misread() -> None:
    out, values = np.zeros(64, np.int64), np.arange(64)
    with pytest.raises(TypeError, match="indices: out is a pointer to int32, got ndarray int64"):
        launch("indices", 1, 64, out)
    with pytest.raises(TypeError, match="indices: out is a pointer to int32, got int32 int32"):
        launch("indices", 1, 64, np.int32(5))
    with pytest.raises(TypeError, match="indices takes 1 arguments, got 2"):
        launch("indices", 1, 64, out, 5)
    with pytest.raises(ValueError, match="indices is bounded by 96 threads in a block, got 97"):
        launch("indices", 1, 97, out)
    with pytest.raises(TypeError, match="read_beyond: n is int32, got int64 int64"):
        launch("read_beyond", 1, 1, out.view(np.int32), np.int64(3), out.view(np.int32))
    with pytest.raises(TypeError, match="read_beyond: n is int32, got float"):
        launch("read_beyond", 1, 1, out.view(np.int32), 3.0, out.view(np.int32))
    with pytest.raises(OverflowError):
        launch("read_beyond", 1, 1, out.view(np.int32), 2**31, out.view(np.int32))
    with pytest.raises(AssertionError, match="65544"):
        launch("sum_dynamic", 1, 1, values, out, shared=(64 << 10) + 8)
    with pytest.raises(ValueError, match=r"kernels/margins\.cu declares 0 variants with ROWS=3"):
        kernel_file("margins").variant({"ROWS": 3})
