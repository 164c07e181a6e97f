"""The split search of GPUs for leaves that are vectors, against the naive twin and the CPU's, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from devices.backends import EagerThreads, make_layout
from devices.test_device_split import assert_same
from devices.test_vectors import N_BINS, RULES, check, make_level, open_nodes, wide
from reference import split_vectors

from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.gpu.rows.views import DeviceLayout
from daskboost.devices.gpu.runtime.launches import Runtime
from daskboost.devices.gpu.trees.split import VectorKernels, empty_histograms
from daskboost.dtypes import Int64
from daskboost.tree.device_trees import DeviceSearch
from daskboost.tree.split_search import OpenNodes, SplitRules, SplitSearch


def on_device(runtime: Runtime, layout: SlotLayout, histograms: Int64) -> Any:
    """Histograms of several outputs as a GPU has them."""
    made = empty_histograms(runtime, len(histograms), layout.n_slots, layout.width)
    made[...] = runtime.xp.asarray(histograms.reshape(made.shape))
    return made


def searching(runtime: Runtime, rules: SplitRules, layout: SlotLayout) -> DeviceSearch:
    return DeviceSearch(VectorKernels(DeviceLayout(runtime, layout)), rules)


def device_rules(name: str, symmetric: bool, n_features: int = 5) -> SplitRules:
    given = RULES[name]
    return SplitRules(
        given.reg_lambda, given.alpha, given.step, given.least_h, np.zeros(n_features, np.int32), symmetric
    )


@pytest.mark.parametrize("name", RULES)
def test_best_split_of_each_node_on_a_gpu(name: str, runtime: Runtime, rng: np.random.Generator) -> None:
    layout = wide(make_layout(N_BINS), 3)
    for sizes in ([40], [1], [2, 3, 50, 1, 30, 7]):
        histograms, nodes = make_level(rng, sizes)
        allowed = rng.random((len(nodes), len(N_BINS))) < 0.7
        own = searching(runtime, device_rules(name, False), layout)
        found = own.search(open_nodes(nodes, allowed), on_device(runtime, layout, histograms))
        for row, outputs in enumerate(nodes):
            check(found, row, *split_vectors.best(RULES[name], outputs, np.flatnonzero(allowed[row]).tolist()))


@pytest.mark.parametrize("name", RULES)
def test_best_split_of_a_level_on_a_gpu(name: str, runtime: Runtime, rng: np.random.Generator) -> None:
    layout = wide(make_layout(N_BINS), 3)
    for sizes in ([40], [1], [2, 3, 50, 1, 30, 7]):
        histograms, nodes = make_level(rng, sizes)
        allowed = rng.random((1, len(N_BINS))) < 0.8
        own = searching(runtime, device_rules(name, True), layout)
        found = own.search(open_nodes(nodes, allowed), on_device(runtime, layout, histograms))
        expected = split_vectors.best_of_level(RULES[name], nodes, np.flatnonzero(allowed[0]).tolist())
        for row, outputs in enumerate(nodes):
            where = (expected.feature, expected.bin, expected.default_left)
            check(found, row, expected, split_vectors.lefts_of(outputs, *where) if expected.gain > -np.inf else [])


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_many_bins_and_siblings_as_on_the_cpu(
    name: str, symmetric: bool, runtime: Runtime, rng: np.random.Generator
) -> None:
    """Bins beyond a warp and a block, more outputs than lanes; and histograms that nobody built, over two levels."""
    n_bins, width = [31, 32, 33, 300, 1], 37
    layout, rules = wide(make_layout(n_bins), width), device_rules(name, symmetric)
    units = tuple((2.0 ** -rng.integers(8, 13, 2 * width)).tolist())
    leaves = rng.integers(-(2**15), 2**15, (4, layout.n_slots, width, 2))
    leaves[..., 1] = np.abs(leaves[..., 1])
    first, end = layout.offsets[3:5]
    for f in range(5):  # all features sum to the same, but that some of the rows lack the last
        last, present = layout.offsets[f + 1] - 1, leaves[:, layout.offsets[f] : layout.offsets[f + 1] - 1]
        if f != 3:
            leaves[:, last] = leaves[:, first:end].sum(axis=1) - present.sum(axis=1)
    totals = leaves[:, first:end].sum(axis=1)

    def level(ids: list[int], parents: list[int], members: list[list[int]], built: list[int]) -> tuple[Any, Any]:
        sums = np.array([totals[own].sum(axis=0).ravel() for own in members])
        nodes = OpenNodes(
            np.array(ids, np.int32), np.array(parents, np.int32), np.array(built, np.int32), sums,
            np.tile([-np.inf, np.inf], (len(ids), 1)), np.ones((1, 5), np.uint8), units,
        )  # fmt: skip
        rows = np.array([leaves[members[ids.index(node)]].sum(axis=0).reshape(-1, 2) for node in built])
        return nodes, rows

    own, cpu = searching(runtime, rules, layout), SplitSearch(layout, rules, EagerThreads(1), (0, 5))
    for given in (
        level([0], [-1], [[0, 1, 2, 3]], [0]),
        level([1, 2], [0, 0], [[0, 1], [2, 3]], [2]),
        level([3, 4, 5, 6], [1, 1, 2, 2], [[0], [1], [2], [3]], [3, 6]),
    ):
        assert_same(own.search(given[0], on_device(runtime, layout, given[1])), cpu.search(*given))
