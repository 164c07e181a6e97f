"""Rounds of gradients on the device alone: range, scales, pairs, sums and the root's rows, against the naive twin."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from devices.backends import unpack
from hypothesis import example, given
from hypothesis import strategies as st
from kernels.emulation import EmulatedRuntime
from objectives.losses import LOSSES
from reference import gradients as reference

from daskboost.cluster.messages import GradientRange
from daskboost.cluster.rounding import (
    QUANTUM_LIMIT,
    SMALL_ROWS,
    check_range,
    make_rounding,
    sample_bound,
    scale_rule,
    tree_keys,
)
from daskboost.devices.gpu.gradients import (
    ALL,
    TILE_ROWS,
    LossChunk,
    LossRows,
    Quantizer,
    RoundGradients,
    StoredChunk,
    stretches,
)
from daskboost.devices.gpu.rounding import DeviceRounding
from daskboost.devices.gpu.runtime import Runtime, to_host
from daskboost.errors import DataError
from daskboost.objectives.base import Objective, kernel_of
from daskboost.objectives.registry import make_objective
from daskboost.params import TrainParams


@dataclass
class Chunk:
    """Rows on the host; margins change from round to round."""

    label: Any
    margin: Any
    weight: Any
    pieces: list[tuple[int, int]]


def make_chunks(rng: np.random.Generator, objective: Objective, sizes: list[int], weighted: bool) -> list[Chunk]:
    chunks = []
    for n in sizes:
        label = rng.choice(np.array([0, 1, 0.3], np.float32), n)
        margin = rng.normal(scale=2, size=(n, objective.n_outputs)).astype(np.float32)
        weight = (rng.integers(0, 3, n) * rng.random(n)).astype(np.float32) if weighted else None
        begins = sorted({0, *(rng.integers(1, n, 3).tolist() if n > 9 else [])}) if n else []
        chunks.append(Chunk(label, margin, weight, [(begin, 2**40 + 10_000 * begin) for begin in begins]))
    return chunks


class DeviceRounds:
    """The same rows on a device, and everything that a round of them takes."""

    def __init__(self, runtime: Runtime, objective: Objective, chunks: list[Chunk], small: bool, share: float) -> None:
        xp, loss = runtime.xp, kernel_of(objective)
        assert loss is not None
        self.chunks, self.xp = chunks, xp
        below = sample_bound(TrainParams(subsample=share))
        self.rounding = DeviceRounding(runtime, objective.n_outputs)
        self.margins = [xp.asarray(chunk.margin) for chunk in chunks]
        self.rounds, self.rows = [], []
        for chunk, margin in zip(chunks, self.margins, strict=True):
            n = len(chunk.label)
            weight = None if chunk.weight is None else xp.asarray(chunk.weight)
            own = xp.ones(n, np.float32) if small and weight is None else weight
            source = LossChunk(runtime, loss, xp.asarray(chunk.label), margin, weight, small_data=small)
            quantizer = Quantizer(runtime, chunk.pieces, n, own if small else None)
            self.rounds.append(RoundGradients(source, quantizer, self.rounding, below))
            pairs = xp.zeros(n, np.int64 if small else np.int32)
            self.rows.append((xp.full(n, 77, np.uint32), pairs, xp.full((3, 2), 7, np.int64)))

    def start(self, total_weight: float | None) -> None:
        """Everything of a round but the host's keys."""
        for round_ in self.rounds:
            round_.find_range()
        self.rounding.find_scales(scale_rule(total_weight))

    def quantize(self, output: int, ordered: bool = True) -> None:
        for round_, (order, pairs, bounds) in zip(self.rounds, self.rows, strict=True):
            round_.quantize(output, order if ordered else None, pairs, bounds)

    def found(self, chunk: int) -> list[tuple[int, int, int]]:
        """Sampled rows of a chunk and their pairs."""
        order, pairs, bounds = (to_host(array) for array in self.rows[chunk])
        begin, kept = bounds[0].tolist()
        assert begin == 0 and (bounds[1:] == 7).all()
        g, h = unpack(pairs[:kept])
        return list(zip(order[:kept].tolist(), g.tolist(), h.tolist(), strict=True))


def naive(chunk: Chunk, g: Any, h: Any, rounding: Any, small: bool) -> list[tuple[int, int, int]]:
    """What `DeviceRounds.found` should be, by the naive twin, one piece at a time."""
    weight = None
    if small:
        weight = np.ones(len(g), np.float32) if chunk.weight is None else chunk.weight
    ends = [begin for begin, _ in chunk.pieces[1:]] + [len(g)]
    expected = []
    for (begin, first), end in zip(chunk.pieces, ends, strict=False):
        own = None if weight is None else weight[begin:end]
        part = reference.quantize(g[begin:end], h[begin:end], rounding, first, own)
        expected += [(begin + row, *pair) for row, *pair in part]
    return expected


def check_round(device: DeviceRounds, objective: Objective, small: bool, iteration: int, share: float) -> None:
    """One round on the device, and the same by array expressions, the host's scales and the naive twin."""
    chunks, params = device.chunks, TrainParams(subsample=share)
    n_outputs = objective.n_outputs
    given = [reference.weighted(objective, each.label, each.margin, each.weight, small) for each in chunks]
    tops = [np.concatenate([pair[i] for pair in given]) for i in range(2)]
    ranges = [GradientRange(*(np.abs(values).max(axis=0).astype(np.float64) for values in tops))]
    total = None
    if small:
        total = math.fsum(
            value for each in chunks for value in ([1.0] * len(each.label) if each.weight is None else each.weight)
        )
    roundings = [make_rounding(params, "any", iteration, k, ranges, total) for k in range(n_outputs)]
    device.rounding.put_keys(np.array([tree_keys(params, iteration, k) for k in range(n_outputs)], np.uint64))
    device.start(total)
    largest = device.rounding.largest()
    np.testing.assert_array_equal(largest, [ranges[0].largest_g, ranges[0].largest_h])
    scales = to_host(device.rounding.scales)
    expected = [(own.scale_g, own.scale_h, own.scale_w, *own.units) for own in roundings]
    np.testing.assert_array_equal(scales[:, :5], expected)
    np.testing.assert_array_equal(to_host(device.rounding.units), scales[:, 3:5])
    for output, rounding in enumerate(roundings):
        device.quantize(output)
        found = [device.found(index) for index in range(len(chunks))]
        for index, (chunk, (g, h)) in enumerate(zip(chunks, given, strict=True)):
            assert found[index] == naive(chunk, g[:, output], h[:, output], rounding, small)
        rows = [row for part in found for row in part]
        assert device.rounding.sums_of(output) == (sum(row[1] for row in rows), sum(row[2] for row in rows))


FORMS = [
    pytest.param(False, True, 1.0, id="large weighted"),
    pytest.param(True, True, 0.4, id="small weighted sampled"),
]
MORE_FORMS = [
    pytest.param(False, False, 0.4, id="large sampled"),
    pytest.param(True, False, 1.0, id="small"),
]


@pytest.mark.parametrize(("small", "weighted", "share"), FORMS)
@pytest.mark.parametrize("objective", LOSSES)
def test_rounds_equal_the_naive_twin(objective: Objective, small: bool, weighted: bool, share: float, runtime: Runtime,
                                     rng: np.random.Generator) -> None:  # fmt: skip
    """Two rounds one after the other, with other margins: ranges and sums start anew."""
    chunks = make_chunks(rng, objective, [TILE_ROWS + 76, 0, 1, 300], weighted)
    device = DeviceRounds(runtime, objective, chunks, small, share)
    for iteration in range(2):
        for chunk, margin in zip(chunks, device.margins, strict=True):
            chunk.margin[:] *= np.float32(0.5)
            margin[:] = device.xp.asarray(chunk.margin)
        check_round(device, objective, small, iteration, share)


@pytest.mark.parametrize(("small", "weighted", "share"), MORE_FORMS)
def test_other_forms(
    small: bool, weighted: bool, share: float, runtime: Runtime, rng: np.random.Generator
) -> None:
    objective = make_objective("binary:logistic", {"scale_pos_weight": 2.5})
    chunks = make_chunks(rng, objective, [500, 33], weighted)
    check_round(DeviceRounds(runtime, objective, chunks, small, share), objective, small, 7, share)


@pytest.mark.emulated
@pytest.mark.parametrize("share", [0.4, 1.0, 0.001])
def test_blocks_of_several_tiles(share: float, rng: np.random.Generator) -> None:
    """More rows than the grid has threads, in few and in many pieces."""
    runtime, objective = EmulatedRuntime(seed=3), make_objective("reg:squarederror")
    n = stretches(runtime, 10**9)[0] * TILE_ROWS * 3 // 2
    chunks = make_chunks(rng, objective, [n], False)
    chunks[0].pieces = [(0, 5), *((begin, 100_000 + 3 * begin) for begin in range(4000, n, 97))]
    assert stretches(runtime, n)[1] == 2 * TILE_ROWS
    check_round(DeviceRounds(runtime, objective, chunks, False, share), objective, False, 0, share)


def test_rows_in_order_need_none_written(runtime: Runtime, rng: np.random.Generator) -> None:
    objective = make_objective("binary:logistic")
    chunks = make_chunks(rng, objective, [700], False)
    device = DeviceRounds(runtime, objective, chunks, False, 1.0)
    device.start(None)
    device.quantize(0)
    order, pairs, bounds = (to_host(array).copy() for array in device.rows[0])
    device.rows[0][0][:], device.rows[0][1][:], device.rows[0][2][:] = 77, 0, 7
    device.quantize(0, ordered=False)
    assert (to_host(device.rows[0][0]) == 77).all()
    np.testing.assert_array_equal(to_host(device.rows[0][1]), pairs)
    np.testing.assert_array_equal(to_host(device.rows[0][2]), bounds)
    np.testing.assert_array_equal(order, np.arange(700))
    sampled = DeviceRounds(runtime, objective, chunks, False, 0.5)
    with pytest.raises(ValueError, match="needs an array for their order"):
        sampled.quantize(0, ordered=False)


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize(("margin", "weight", "top"), [
    (np.nan, 1.0, np.nan), (np.inf, 1.0, np.inf), (-np.inf, 1.0, np.inf), (3e38, 1e30, np.inf), (np.inf, 0.0, np.nan),
    (np.nan, 0.0, np.nan),
])  # fmt: skip
def test_a_range_that_is_not_finite_leaves_zeros(margin: float, weight: float, top: float, small: bool,
                                                 runtime: Runtime, rng: np.random.Generator) -> None:  # fmt: skip
    """NaN wins over infinity; every integer is 0 and nothing overflows; the next round goes on."""
    if small and weight == 1e30:
        top = 3e38  # weights of small data multiply later
    objective = make_objective("reg:squarederror")
    chunks = make_chunks(rng, objective, [100, 300], True)
    chunks[0].margin[17], chunks[0].weight[17] = margin, weight
    chunks[1].margin[3], chunks[1].weight[3] = (np.inf, 1.0) if np.isnan(margin) else (1.0, 1.0)
    device = DeviceRounds(runtime, objective, chunks, small, 1.0)
    device.start(400.0 if small else None)
    largest = device.rounding.largest()
    np.testing.assert_array_equal(largest[0, 0], np.float64(np.float32(top)))
    device.quantize(0)
    if not np.isfinite(top):
        with pytest.raises(DataError, match=r"gave a gradient of (nan|inf) in iteration 4"):
            check_range("reg:squarederror", 4, *largest[:, 0].tolist())
        assert device.found(0) == [(row, 0, 0) for row in range(100)]
        assert device.rounding.sums_of(0) == (0, 0)
        assert (to_host(device.rounding.units) == 0).all()
    for chunk, on_device, row in zip(chunks, device.margins, (17, 3), strict=True):
        chunk.margin[row] = on_device[row] = 0
    check_round(device, objective, small, 1, 1.0)


def test_stored_gradients_go_the_same_way(runtime: Runtime, rng: np.random.Generator) -> None:
    """Of several outputs, as users' own losses give them."""
    xp, n = runtime.xp, 900
    g = rng.normal(size=(n, 3)).astype(np.float32)
    h = rng.random((n, 3)).astype(np.float32)
    rounding = DeviceRounding(runtime, 3)
    source = StoredChunk(runtime, xp.asarray(g), xp.asarray(h))
    round_ = RoundGradients(source, Quantizer(runtime, [(0, 0)], n), rounding)
    order, pairs, bounds = xp.zeros(n, np.uint32), xp.zeros(n, np.int32), xp.zeros((1, 2), np.int64)
    params = TrainParams()
    rounding.put_keys(np.array([tree_keys(params, 0, k) for k in range(3)], np.uint64))
    round_.find_range()
    rounding.find_scales(scale_rule(None))
    ranges = [GradientRange(np.abs(g).max(axis=0).astype(np.float64), h.max(axis=0).astype(np.float64))]
    for output in (2, 0, 1):
        round_.quantize(output, order, pairs, bounds)
        expected = reference.quantize(
            g[:, output], h[:, output], make_rounding(params, "any", 0, output, ranges, None), 0
        )
        found = [(row, *pair) for row, *pair in zip(to_host(order), *unpack(to_host(pairs)), strict=True)]
        assert found == expected
        assert rounding.sums_of(output) == (sum(row[1] for row in expected), sum(row[2] for row in expected))


def test_an_engine_without_rows_has_a_range_of_zero(runtime: Runtime) -> None:
    assert LossRows(runtime, [], 2).ranges().tolist() == [[0, 0], [0, 0]]


def scales_on(runtime: Runtime, tops: Any, total_weight: float | None) -> Any:
    """`kernels/scales.cu` for largest |g| and h; float64, shape (outputs, 5)."""
    rounding = DeviceRounding(runtime, tops.shape[1])
    rounding.tops[:] = runtime.xp.asarray(tops.view(np.uint32))
    rounding.sums[:] = 5
    rounding.find_scales(scale_rule(total_weight))
    assert not to_host(rounding.tops).any() and not to_host(rounding.sums).any()
    np.testing.assert_array_equal(rounding.largest(), tops)
    return to_host(rounding.scales)[:, :5]


def scales_by_host(tops: Any, total_weight: float | None) -> list[tuple[float, ...]]:
    ranges = [GradientRange(*tops.astype(np.float64))]
    made = [make_rounding(TrainParams(), "any", 0, k, ranges, total_weight) for k in range(tops.shape[1])]
    return [(own.scale_g, own.scale_h, own.scale_w, *own.units) for own in made]


TOTALS = [None, 1.0, 15.0, 4096.0, 4096.5, 0.3, 1e-45, 1e-20, 2.0**60]


@pytest.mark.parametrize("total_weight", TOTALS)
def test_scales_of_every_magnitude(total_weight: float | None, runtime: Runtime) -> None:
    """All exponents, subnormal numbers included, with mantissas beside those where a power of two just fits."""
    mantissas = [0, 1, 2**22, 0x7FFDFF, 0x7FFE00, 0x7FFE01, 0x7FEFFF, 0x7FF000, 0x7FFFFF]
    exponents = np.arange(255, dtype=np.uint32) << np.uint32(23)
    tops = (exponents[:, None] | np.array(mantissas, np.uint32)).reshape(-1).view(np.float32)
    tops = np.stack([tops, tops[::-1]])
    np.testing.assert_array_equal(scales_on(runtime, tops, total_weight), scales_by_host(tops, total_weight))


@given(
    st.lists(st.tuples(*[st.floats(0, allow_infinity=False, allow_nan=False, width=32)] * 2), min_size=1, max_size=200),
    st.none() | st.floats(1e-45, 2.0**72),
)
@example([(0.0, 1.0)], float(SMALL_ROWS))
@example([(float(QUANTUM_LIMIT), float(np.nextafter(np.float32(QUANTUM_LIMIT), np.float32(np.inf))))], None)
def test_scales_equal_the_hosts(pairs: list[tuple[float, float]], total_weight: float | None) -> None:
    tops = np.array(pairs, np.float32).T.copy()
    found = scales_on(EmulatedRuntime(), tops, total_weight)
    np.testing.assert_array_equal(found, scales_by_host(tops, total_weight))
    if total_weight is None:
        assert found[0, 0] == reference.scale(float(tops[0, 0]))


@pytest.mark.gpu
def test_a_graph_of_a_round_gives_the_same_again(rng: np.random.Generator) -> None:
    """Launches are captured once; keys and margins change between two replays."""
    import cupy

    from daskboost.devices.gpu.cuda import get_runtime

    objective = make_objective("binary:logistic")
    chunks = make_chunks(rng, objective, [50_000, 300], True)
    device = DeviceRounds(get_runtime(), objective, chunks, False, 0.5)
    check_round(device, objective, False, 0, 0.5)  # compiles and loads what is captured
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        device.start(None)
        device.quantize(0)
        graph = stream.end_capture()
    params = TrainParams(subsample=0.5)
    for iteration in range(1, 3):
        for chunk, margin in zip(chunks, device.margins, strict=True):
            chunk.margin[:] += np.float32(0.25)
            margin[:] = cupy.asarray(chunk.margin)
        device.rounding.put_keys(np.array([tree_keys(params, iteration, 0)], np.uint64))
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        replayed = [device.found(index) for index in range(2)], device.rounding.sums_of(0)
        check_round(device, objective, False, iteration, 0.5)
        assert replayed == ([device.found(index) for index in range(2)], device.rounding.sums_of(0))


def test_all_rows_are_kept_without_a_sample() -> None:
    assert sample_bound(TrainParams()) == ALL
