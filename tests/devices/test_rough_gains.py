"""Rough gains lead to the split that exact ones choose, and are as near to them as `kernels/rough.cuh` proves."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from devices.backends import EagerThreads, declared, make_layout
from devices.test_device_split import assert_same, searching
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernels.emulation import EmulatedRuntime
from reference import split as reference

from daskboost.devices.gpu.rows.views import DeviceLayout
from daskboost.devices.gpu.runtime.cuda import address_of
from daskboost.devices.gpu.runtime.launches import Runtime, to_device, to_host
from daskboost.devices.gpu.trees.split import HostNodes, Level, SplitKernels
from daskboost.dtypes import Int32, Int64
from daskboost.tree.split_search import OpenNodes, SplitRules, SplitSearch

ERROR = 2.0**-19.9
WIDTHS = [1, 2, 31, 33, 255, 256, 257, 300]
KINDS = ["small", "proportional", "near", "large", "huge", "steep", "skewed", "empty"]
LAMBDAS = [0.0, 1e-300, 1e-3, 1.0, 1e6, 1e200]
UNITS = [(2.0**-9, 2.0**-11), (0.1, 0.3), (3.7e-12, 8e4), (1e-170, 1e-3), (2.0**-700, 2.0**-690), (1e160, 1.0)]


def make_histogram(kind: str, n_bins: list[int], rng: np.random.Generator) -> tuple[Int64, Int64]:
    """Sums of one node, of shape (slots, 2), whose features agree on the totals, and these."""
    layout = make_layout(n_bins)
    built = np.zeros((layout.n_slots, 2), np.int64)
    largest = {"large": 2**33, "huge": 2**42, "near": 2**40}.get(kind, 40)
    for f, slot in enumerate(layout.offsets[:-1]):
        n, own = n_bins[f], built[slot : layout.offsets[f + 1]]
        if kind == "near" and f > 0 and n == n_bins[0]:  # gains that differ by no more than float32's errors
            moved = rng.integers(-(2**18), 2**18, (n + 2, 2))
            moved[[0, -1]] = 0
            own[:] = built[: n + 1] + np.diff(moved, axis=0)
            continue
        own[:, 1] = rng.integers(0, largest, n + 1) * (rng.random(n + 1) < 0.7)
        own[:, 0] = rng.integers(-largest, largest, n + 1) * (own[:, 1] > 0)
        if kind == "steep":
            own[:, 0] *= 2**27
        if kind == "proportional":
            own[:, 0] = -3 * own[:, 1]
        if kind == "skewed":
            own[rng.integers(n + 1)] = (rng.integers(-(2**31), 2**31), 2**31 - rng.integers(0, 100))
        if kind == "empty":
            own[:, 0] = 0
        own[n] *= rng.integers(2)
    sums = np.add.reduceat(built, layout.offsets[:-1])
    total = sums[np.argmax(sums[:, 1]) if kind in ("small", "large") else rng.integers(len(sums))]
    built[layout.offsets[1:] - 1] += total - sums  # what some feature lacks; h may become negative, which none allows
    return built, total


def open_node(total: Int64, n_features: int, units: tuple[float, float]) -> OpenNodes:
    ids: Int32 = np.ones(1, np.int32)
    bounds = np.array([[-np.inf, np.inf]])
    return OpenNodes(ids, -ids, ids, total[None], bounds, np.ones((1, n_features), np.uint8), units)


def rules_of(n_features: int, reg_lambda: float, least_h: float) -> SplitRules:
    return SplitRules(reg_lambda, 0.0, 0.0, least_h, np.zeros(n_features, np.int32), False)


def least_of(how: str, built: Int64, unit: float, rng: np.random.Generator) -> float:
    """A least h that some split meets exactly, or misses by the last bit."""
    if how == "none":
        return 0.0
    exact = float(np.cumsum(built[:, 1])[rng.integers(len(built))] * unit)
    return max(0.0, {"met": exact, "above": math.nextafter(exact, math.inf), "below": math.nextafter(exact, 0)}[how])


@settings(max_examples=150)
@given(
    st.integers(0, 2**32), st.sampled_from(KINDS), st.lists(st.sampled_from(WIDTHS), min_size=1, max_size=5),
    st.sampled_from(LAMBDAS), st.sampled_from(["none", "met", "above", "below"]), st.sampled_from(UNITS),
)  # fmt: skip
@example(1, "near", [256] * 5, 0.0, "none", UNITS[0])
@example(2, "near", [33] * 5, 1.0, "met", UNITS[1])
@example(3, "proportional", [31] * 5, 0.0, "none", UNITS[1])
@example(4, "huge", [257] * 4, 1e-3, "above", UNITS[2])
@example(5, "small", [2] * 5, 1e200, "none", UNITS[0])
@example(6, "small", [31] * 5, 1.0, "none", UNITS[3])
@example(7, "large", [33] * 3, 1.0, "none", UNITS[4])
@example(9, "steep", [256, 33], 1.0, "none", UNITS[0])
@example(8, "empty", [256, 1], 0.0, "none", UNITS[0])
def test_the_split_is_the_cpus(seed: int, kind: str, n_bins: list[int], reg_lambda: float, least: str,
                               units: tuple[float, float]) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    built, total = make_histogram(kind, n_bins, rng)
    layout, nodes = make_layout(n_bins), open_node(total, len(n_bins), units)
    rules = rules_of(len(n_bins), reg_lambda, least_of(least, built, units[1], rng))
    expected = SplitSearch(layout, rules, EagerThreads(1), (0, len(n_bins))).search(nodes, built[None])
    assert_same(searching(EmulatedRuntime(), rules, layout).search(nodes, built[None]), expected)


def test_the_least_weight_counts_whole_quanta(rng: np.random.Generator) -> None:
    """Where a division in float64 would be wrong by one."""
    for unit in (0.3, 0.1, 3.7e-12, 8.1e4):
        h = rng.integers(2**50, 2**51, 10_000)
        met, above = h * unit, np.nextafter(h * unit, np.inf)
        wrong = [(int(h[i]), float(least[i])) for least, quanta in ((met, h), (above, h + 1))
                 for i in np.flatnonzero(np.ceil(least / unit) != quanta)[:3]]  # fmt: skip
        assert wrong
        for each, least in wrong:
            for quanta in (each - 1, each, each + 1):
                built = np.array([[5, quanta], [-7, 2**51], [0, 0]])
                rules, layout = rules_of(1, 1.0, least), make_layout([2])
                nodes = open_node(built.sum(axis=0), 1, (1.0, unit))
                found = searching(EmulatedRuntime(), rules, layout).search(nodes, built[None])
                assert (found.gain[0] > -np.inf) == (quanta * unit >= least)
                assert_same(found, SplitSearch(layout, rules, EagerThreads(1), (0, 1)).search(nodes, built[None]))


def level_of(runtime: Runtime, kernels: SplitKernels, addresses: Any, totals: Any, units: tuple[float, float]) -> Level:
    n, n_features = len(totals), len(kernels.layout.host.n_bins)
    bounds = np.tile([-np.inf, np.inf], (n, 1))
    return kernels.upload(HostNodes(
        np.array(addresses, np.uint64), np.zeros((3, n), np.uint64), np.asarray(totals, np.int64), bounds,
        np.ones((1, n_features), np.uint8), np.array(units),
    ))  # fmt: skip


@pytest.mark.parametrize("units", UNITS[:3])
@pytest.mark.parametrize("kind", KINDS)
def test_rough_gains_are_as_near_as_proved(
    kind: str, units: tuple[float, float], runtime: Runtime, rng: np.random.Generator
) -> None:
    n_bins = [256, 33, 1, 257, 7, 7]
    layout = make_layout(n_bins)
    kernels = SplitKernels(DeviceLayout(runtime, layout))
    room = kernels.room(1)
    for reg_lambda, how in ((0.0, "none"), (1.0, "met"), (1e6, "above")):
        built, total = make_histogram(kind, n_bins, rng)
        least = least_of(how, built, units[1], rng)
        memory = to_device(runtime, built)
        level = level_of(runtime, kernels, [[address_of(memory)], [0], [0]], total[None], units)
        (tops,) = to_host(kernels.tops_of_features(level, rules_of(len(n_bins), reg_lambda, least).regular, room))
        for f, slot in enumerate(layout.offsets[:-1]):
            rules = reference.Rules(reg_lambda, least_h=least)
            bins = built[slot : slot + n_bins[f]]
            expected = reference.rough_top(rules, bins, (int(total[0]), int(total[1])), units)
            if expected is None:
                assert tops[f] == -np.inf
            else:
                assert abs(tops[f] - expected) <= ERROR * expected


def test_the_margin_is_what_such_an_error_needs() -> None:
    """The best split's rough gain is at least 1 - ERROR of its own, the largest at most 1 + ERROR of its own."""
    assert 1 - float.fromhex(declared("rough.cuh", "double MARGIN")) <= (1 - ERROR) / (1 + ERROR)


def filled_bins(width: int) -> list[list[int]]:
    """Bins of a feature that have something, in several ways."""
    bins = list(range(width))
    half, third = width // 2, width // 3
    return [
        [], bins[:1], bins[-1:], bins[half : half + 1], [*bins[:1], *bins[-1:]], bins[1:-1], bins[3::5], bins[1::2],
        bins[32:64], bins[:third], bins[:third] + bins[third + 1 :], bins,
    ]  # fmt: skip


@pytest.mark.parametrize("largest", [40, 2**33])
def test_empty_bins_change_no_rough_gain(largest: int, runtime: Runtime, rng: np.random.Generator) -> None:
    """To the last bit: features beside others that have their filled bins only."""
    total, features = (2 * largest, 2000 * largest), list[Int64]()
    for width in (1, 5, 32, 33, 64, 256, 257, 700):
        for i, filled in enumerate(filled_bins(width)):
            sums = rng.integers([-largest, 0], largest, (len(filled), 2))
            if i % 2 == len(features) // 24 % 2:
                sums[-1:] += np.array(total) - sums.sum(axis=0)  # no value is missing
            bins = np.zeros((width, 2), np.int64)
            bins[filled] = sums
            features += [bins, sums if filled else bins[:1]]
    layout = make_layout([len(bins) for bins in features])
    memory = to_device(runtime, np.concatenate([np.append(bins, [[0, 0]], axis=0) for bins in features]))
    kernels = SplitKernels(DeviceLayout(runtime, layout))
    level = level_of(runtime, kernels, [[address_of(memory)], [0], [0]], [total], UNITS[0])
    (tops,) = to_host(kernels.tops_of_features(level, rules_of(1, 1.0, 0.0).regular, kernels.room(1)))
    np.testing.assert_array_equal(tops[::2], tops[1::2])
    for bins, top in zip(features[::2], tops[::2], strict=True):
        both = [reference.rough_top(reference.Rules(1.0), bins, total, UNITS[0], empty) for empty in (True, False)]
        assert any((top == -np.inf) if each is None else (abs(top - each) <= ERROR * each) for each in both)


def test_the_best_feature_is_found_behind_others_of_greater_rough_gain() -> None:
    n_bins = [7] * 200
    layout, rules, runtime = make_layout(n_bins), rules_of(200, 1.0, 0.0), EmulatedRuntime()
    kernels, n_behind = SplitKernels(DeviceLayout(runtime, layout)), 0
    for seed in range(8):
        built, total = make_histogram("near", n_bins, np.random.default_rng(seed))
        nodes = open_node(total, 200, UNITS[0])
        expected = SplitSearch(layout, rules, EagerThreads(1), (0, 200)).search(nodes, built[None])
        assert_same(searching(runtime, rules, layout).search(nodes, built[None]), expected)
        level = level_of(runtime, kernels, [[address_of(built)], [0], [0]], total[None], UNITS[0])
        (tops,) = kernels.tops_of_features(level, rules.regular, kernels.room(1))
        n_behind += tops[expected.feature[0]] < tops.max()
    assert n_behind > 0


def test_units_beyond_the_proof_leave_all_to_the_exact_gains(runtime: Runtime, rng: np.random.Generator) -> None:
    built, total = make_histogram("small", [9, 9], rng)
    kernels, memory = SplitKernels(DeviceLayout(runtime, make_layout([9, 9]))), to_device(runtime, built)
    for units, reg_lambda in (((1e-170, 1e-3), 1.0), ((1.0, 1e100), 1.0), ((1.0, 1.0), 1e60)):
        level = level_of(runtime, kernels, [[address_of(memory)], [0], [0]], total[None], units)
        tops = to_host(kernels.tops_of_features(level, rules_of(2, reg_lambda, 0.0).regular, kernels.room(1)))
        assert np.isposinf(tops).all()


def test_the_most_bins_that_a_feature_may_have(runtime: Runtime, rng: np.random.Generator) -> None:
    n_bins = [65_535, 3]
    built, total = make_histogram("large", n_bins, rng)
    layout, nodes, rules = make_layout(n_bins), open_node(total, 2, UNITS[0]), rules_of(2, 1.0, 0.0)
    expected = SplitSearch(layout, rules, EagerThreads(1), (0, 2)).search(nodes, built[None])
    assert_same(searching(runtime, rules, layout).search(nodes, runtime.xp.asarray(built[None])), expected)


@pytest.mark.parametrize("alpha", [0.0, 0.02])
@pytest.mark.parametrize("n_bins", [[5, 256], [300, 2, 40]])
def test_histograms_that_no_child_needs_are_not_written(
    n_bins: list[int], alpha: float, runtime: Runtime, rng: np.random.Generator
) -> None:
    """The same splits with a parent's less a sibling's sums kept apart, in the parent's place, and not at all."""
    layout = make_layout(n_bins)
    kernels = SplitKernels(DeviceLayout(runtime, layout))
    rules = dataclasses.replace(rules_of(len(n_bins), 1.0, 0.0), reg_alpha=alpha)
    (sibling, total), (own, own_total) = (make_histogram("small", n_bins, rng) for _ in range(2))
    found = []
    for how in ("apart", "in place", "nowhere"):
        memory = to_device(runtime, np.stack([own + sibling, sibling, np.full_like(own, -7)]))
        parent, built, spare = (address_of(memory[i]) for i in range(3))
        at = parent if how == "in place" else spare
        level = level_of(runtime, kernels, [[at, built], [parent, 0], [built, 0]], [own_total, total], UNITS[0])
        level = dataclasses.replace(level, keeps=how != "nowhere")
        found.append(to_host(kernels.best_per_node(level, rules.regular, kernels.room(level.n_nodes))))
        after = to_host(memory)
        np.testing.assert_array_equal(after[2], own if how == "apart" else np.full_like(own, -7))
        np.testing.assert_array_equal(after[0], own if how == "in place" else own + sibling)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    assert (found[0][:, 1] >= 0).all()
