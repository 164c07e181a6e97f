"""Rounds of gradients on the device alone: range, scales, pairs, sums and the root's rows, against the naive twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from devices.backends import unpack
from kernels.emulation import EmulatedRuntime
from kernels.gradient_rounds import DeviceRounds, check_round, make_chunks, sum_of_weights
from objectives.losses import LOSSES
from reference import gradients as reference
from strategies.roundings import make_rounding, sample_bound

from daskboost.devices.gpu.rows.gradients import (
    ALL,
    LossRows,
    Quantizer,
    RoundGradients,
    StoredChunk,
)
from daskboost.devices.gpu.rows.rounding import DeviceRounding
from daskboost.devices.gpu.runtime.launches import Runtime, overwrite, to_host
from daskboost.devices.gpu.runtime.stretches import TILE_ROWS, stretches
from daskboost.errors import DataError
from daskboost.fit.messages import GradientRange
from daskboost.fit.scales import check_range, scale_rule, tree_keys
from daskboost.objectives.objective import Objective
from daskboost.objectives.objective_names import make_objective
from daskboost.params import TrainParams

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


@pytest.mark.parametrize(("small", "weighted", "share"), MORE_FORMS)
@pytest.mark.parametrize("name", ["binary:logistic", "multi:softprob"])
def test_weights_in_place_of_hessians(
    name: str, small: bool, weighted: bool, share: float, runtime: Runtime, rng: np.random.Generator
) -> None:
    """A loss's hessians are never looked at; its own factor of rows with label 1 is a weight, too."""
    objective = make_objective(name, {"scale_pos_weight": 2.5, "num_class": 2})
    chunks = make_chunks(rng, objective, [500, 33], weighted)
    for chunk in chunks:
        chunk.label[:] = chunk.label == 1
    device = DeviceRounds(runtime, objective, chunks, small, share, by_weight=True)
    check_round(device, objective, small, 7, share, by_weight=True)


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
    device.start(sum_of_weights(chunks) if small else None)
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


@pytest.mark.parametrize("by_weight", [False, True])
def test_stored_gradients_go_the_same_way(by_weight: bool, runtime: Runtime, rng: np.random.Generator) -> None:
    """Of several outputs, as users' own losses give them; or weights in place of hessians, the same for all."""
    xp, n = runtime.xp, 900
    g = rng.normal(size=(n, 3)).astype(np.float32)
    h = rng.random((n, 3)).astype(np.float32)
    weight, largest = rng.uniform(0, 7, n).astype(np.float32), 7.0 if by_weight else 0.0
    rounding = DeviceRounding(runtime, 3)
    source = StoredChunk(runtime, xp.asarray(g), xp.asarray(h), xp.asarray(weight))
    round_ = RoundGradients(source, Quantizer(runtime, [(0, 0)], n), rounding, by_weight=by_weight)
    order, pairs, bounds = xp.zeros(n, np.uint32), xp.zeros(n, np.int32), xp.zeros((1, 2), np.int64)
    params = TrainParams()
    overwrite(runtime, rounding.keys, np.array([tree_keys(params.random_state, 0, k) for k in range(3)], np.uint64))
    round_.find_range()
    rounding.find_scales(scale_rule(None, 1.0, 0.0, largest_searched=largest))
    ranges = [GradientRange(np.abs(g).max(axis=0).astype(np.float64), h.max(axis=0).astype(np.float64))]
    for output in (2, 0, 1):
        round_.quantize(output, order, pairs, bounds)
        made = make_rounding(params, "any", 0, output, ranges, None, largest)
        expected = reference.quantize(g[:, output], weight if by_weight else h[:, output], made, 0)
        found = [(row, *pair) for row, *pair in zip(to_host(order), *unpack(to_host(pairs)), strict=True)]
        assert found == expected
        assert rounding.sums_of(output) == (sum(row[1] for row in expected), sum(row[2] for row in expected))


@pytest.mark.parametrize("share", [1.0, 0.6])
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("name, given", [
    ("multi:softprob", {"num_class": 4}), ("reg:quantileerror", {"quantile_alpha": (0.1, 0.4, 0.5, 0.9)}),
])  # fmt: skip
def test_outputs_quantized_together(name: str, given: Any, small: bool, share: float, runtime: Runtime,
                                    rng: np.random.Generator) -> None:  # fmt: skip
    """As one after the other: each in places of its own, from its first node's segment on."""
    n, capacity = 2 * TILE_ROWS + 77, 5
    objective = make_objective(name, given)
    chunks = make_chunks(rng, objective, [n], True)
    chunks[0].label[:] = rng.integers(0, 4, n)
    device, params = DeviceRounds(runtime, objective, chunks, small, share), TrainParams(subsample=share)
    keys = [tree_keys(params.random_state, 3, k) for k in range(4)]
    overwrite(runtime, device.rounding.keys, np.array(keys, np.uint64))
    total = sum_of_weights(chunks) if small else None
    device.start(total)
    expected = []
    for output in range(4):
        device.quantize(output)
        expected.append((device.found(0), device.rounding.sums_of(output)))
    assert len({sums for _, sums in expected}) == 4
    xp, first, n_trees = runtime.xp, 1, 3
    weight = (xp.ones(n, np.float32) if chunks[0].weight is None else xp.asarray(chunks[0].weight)) if small else None
    quantizer = Quantizer(runtime, chunks[0].pieces, n, weight, n_trees)
    source = device.rounds[0]._source
    order, pairs = xp.full(n_trees * n, 77, np.uint32), xp.zeros(n_trees * n, np.int64 if small else np.int32)
    bounds = xp.full((n_trees * capacity, 2), 7, np.int64)
    device.start(total)
    round_ = RoundGradients(source, quantizer, device.rounding, sample_bound(params))
    round_.quantize(first, order, pairs, bounds, n_trees, capacity)
    of_nodes = to_host(bounds).reshape(n_trees, capacity, 2)
    assert (of_nodes[:, 1:] == 7).all()
    for tree, (begin, end) in enumerate(of_nodes[:, 0].tolist()):
        assert begin == tree * n
        g, h = unpack(to_host(pairs[begin:end]))
        found = list(zip(to_host(order[begin:end]).tolist(), g.tolist(), h.tolist(), strict=True))
        assert (found, device.rounding.sums_of(first + tree)) == expected[first + tree]
    assert device.rounding.sums_of(0) == (0, 0)


def test_an_engine_without_rows_has_a_range_of_zero(runtime: Runtime) -> None:
    assert LossRows(runtime, [], 2).found_ranges().tolist() == [[0, 0], [0, 0]]


def test_a_recorded_round_gives_the_same_again(runtime: Runtime, rng: np.random.Generator) -> None:
    """Launches are recorded once; keys and margins change between replays."""
    objective = make_objective("binary:logistic")
    chunks = make_chunks(rng, objective, [3_000, 300], True)
    device = DeviceRounds(runtime, objective, chunks, False, 0.5)
    check_round(device, objective, False, 0, 0.5)  # compiles and loads what is recorded

    def whole_round() -> None:
        device.start(None)
        device.quantize(0)

    replay = runtime.record(whole_round)
    for iteration in range(1, 3):
        for chunk, margin in zip(chunks, device.margins, strict=True):
            chunk.margin[:] += np.float32(0.25)
            margin[:] = device.xp.asarray(chunk.margin)
        overwrite(runtime, device.rounding.keys, np.array([tree_keys(0, iteration, 0)], np.uint64))
        replay()
        replayed = [device.found(index) for index in range(2)], device.rounding.sums_of(0)
        check_round(device, objective, False, iteration, 0.5)
        assert replayed == ([device.found(index) for index in range(2)], device.rounding.sums_of(0))


def test_all_rows_are_kept_without_a_sample() -> None:
    assert sample_bound(TrainParams()) == ALL
