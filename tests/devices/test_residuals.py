"""Exact quantiles of residuals by counting, against sorting them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from devices.backends import make_layout
from reference import residuals as reference

from daskboost.devices.cpu.gradients import Residuals, count_residuals, sortable_key
from daskboost.devices.gpu.rows.row_state import GpuRows
from daskboost.devices.gpu.runtime.collective import ALONE
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.gpu.trees.growth import make_tables
from daskboost.devices.gpu.trees.leaf_quantiles import Labels, LeafQuantiles
from daskboost.dtypes import Float32
from daskboost.fit import messages as m
from daskboost.fit.base_score import residual_quantiles, weight_scale


class Counting:
    """Engines that hold nothing but labels, margins, weights and the leaf of each row."""

    def __init__(self, parts: Sequence[tuple[Float32, Float32, Float32, Any]]) -> None:
        self.n_engines, self._parts = len(parts), parts

    def ask(self, message: Any, /) -> list[Any]:
        replies = []
        for label, margin, weight, leaf in self._parts:
            query = message.query
            counts = np.zeros((len(query.leaves), 1 << query.next_bits), np.int64)
            residuals = Residuals(label, margin, weight, query.weight_scale)
            for i, node in enumerate(query.leaves):
                rows = np.flatnonzero(leaf == node).astype(np.uint32)
                count_residuals(residuals, rows, query.prefixes[i], query.known_bits, query.next_bits, counts[i])
            replies.append(m.Counts(counts))
        return replies


def values_of(kind: str, rng: np.random.Generator, n: int) -> Float32:
    values: dict[str, Any] = {
        "normal": rng.normal(size=n),
        "ties": rng.integers(-2, 3, n),
        "wide": rng.normal(size=n) * 10.0 ** rng.integers(-40, 38, n),  # denormals too
        "zeros": np.where(rng.random(n) < 0.5, 0.0, -0.0),
        "negative": -rng.random(n),
    }
    return np.asarray(values[kind], np.float32)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("alpha", [0.01, 0.25, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("kind", ["normal", "ties", "wide", "zeros", "negative"])
def test_equals_the_naive_twin(kind: str, alpha: float, weighted: bool, rng: np.random.Generator) -> None:
    n = 400
    label, leaf = values_of(kind, rng, n), rng.integers(0, 6, n)
    margin = np.zeros(n, np.float32) if kind in ("wide", "zeros") else rng.normal(size=n).astype(np.float32)
    weight = np.asarray(rng.random(n) * 10.0 ** rng.integers(-9, 3, n), np.float32)
    if not weighted:
        weight = np.empty(0, np.float32)
    largest = float(weight.max()) if weighted else 1.0
    cuts = [0, 1, 150, 150, n]
    parts = [(label[a:b], margin[a:b], weight[a:b], leaf[a:b]) for a, b in itertools.pairwise(cuts)]
    leaves = np.array([4, 0, 9, 5], np.int32)  # 9 has no rows
    found = residual_quantiles(Counting(parts), 0, leaves, alpha, largest)
    for i, node in enumerate(leaves):
        rows = np.flatnonzero(leaf == node)
        whole = reference.integer_weights(weight[rows].tolist() if weighted else [1.0] * len(rows), largest)
        expected = reference.quantile([label[row] - margin[row] for row in rows], whole, alpha)
        np.testing.assert_array_equal(found[i], np.float32(expected))


class CountingOnGpu:
    """An engine of one chunk on a GPU, whose rows lie in the order of their leaves."""

    n_engines = 1

    def __init__(self, runtime: Runtime, label: Float32, margin: Float32, weight: Float32 | None, leaf: Any) -> None:
        xp = runtime.xp
        self._rows = GpuRows(runtime, lambda: (), [len(label)], [[(0, 0)]], make_layout([2]))
        chunk = self._rows.chunks[0]
        chunk.start(len(label))
        chunk.order[: len(label)] = xp.asarray(np.argsort(leaf, kind="stable").astype(np.uint32))
        ends = np.cumsum(np.bincount(leaf, minlength=10))
        chunk.bounds[:10] = xp.asarray(np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1).astype(np.int64))
        self._columns = xp.asarray(label), xp.asarray(margin), None if weight is None else xp.asarray(weight)

    def ask(self, message: Any, /) -> list[Any]:
        return [m.Counts(self._rows.count_residuals(0, message.query, *self._columns))]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("leaves", [[4, 0, 9, 5], [-1]])
def test_a_gpu_counts_alike(leaves: list[int], weighted: bool, runtime: Runtime, rng: np.random.Generator) -> None:
    n = 3000
    label, margin, leaf = values_of("normal", rng, n), values_of("ties", rng, n), rng.integers(0, 6, n)
    weight = rng.random(n).astype(np.float32) if weighted else None
    largest = float(weight.max()) if weight is not None else 1.0
    counting = CountingOnGpu(runtime, label, margin, weight, leaf)
    found = residual_quantiles(counting, 0, np.array(leaves, np.int32), 0.3, largest)
    for i, node in enumerate(leaves):
        rows = np.flatnonzero((leaf == node) | (node < 0))
        whole = reference.integer_weights([1.0] * len(rows) if weight is None else weight[rows].tolist(), largest)
        expected = reference.quantile([label[row] - margin[row] for row in rows], whole, 0.3)
        np.testing.assert_array_equal(found[i], np.float32(expected))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["normal", "ties", "wide", "zeros", "negative"])
def test_leaves_become_the_naive_twins_quantiles(
    kind: str, weighted: bool, runtime: Runtime, rng: np.random.Generator
) -> None:
    """Trees that grew together, twice, as a graph repeats them; a leaf without any weight keeps its value."""
    n, n_trees, per_tree, alphas, xp = 5_000, 2, 7, (0.2, 0.3, 0.95), runtime.xp
    rows = GpuRows(runtime, lambda: (), [n], [[(0, 0)]], make_layout([2]), n_trees=n_trees)
    chunk, label = rows.chunks[0], values_of(kind, rng, n)
    margin = rng.normal(size=(n, 3)).astype(np.float32) if kind != "wide" else np.zeros((n, 3), np.float32)
    weight = np.where(rng.random(n) < 0.1, 0, rng.random(n)).astype(np.float32) if weighted else None
    largest = float(weight.max()) if weight is not None else 1.0
    labels = Labels(xp.asarray(label), None if weight is None else xp.asarray(weight), weight_scale(largest))
    rate, first = np.float32(0.3), 1
    place_of = {node: node for node in range(6)}, {20: 0, 21: 1, 22: 2, 24: 4, 25: 5, 33: 3}
    tables = make_tables(runtime, n_trees, 20)
    fit = LeafQuantiles(runtime, labels, alphas, n_trees, per_tree, ALONE)
    for _ in range(2):
        leaf = rng.integers(0, 6, (n_trees, n))
        leaf[0, leaf[0] == 2] = 3  # 2 has no rows, 5 of the other tree only such without weight
        nodes = np.array([[4, 2, 0, 5, 1, 3, -1], [33, 21, -1, 24, 20, 22, 25]], np.int32)
        if weight is not None:
            leaf[1, leaf[1] == 5] = 1
            leaf[1, np.flatnonzero(weight == 0)[:40]] = 5
        chunk.start(n)
        chunk.make_room(xp, 40)
        before = rng.normal(size=(n_trees, 20)).astype(np.float32)
        tables.values[:] = xp.asarray(before)
        segments = np.zeros((40, 2), np.int64)
        for tree, ids in enumerate(place_of):
            order = np.argsort(leaf[tree], kind="stable")
            chunk.order[tree * n : (tree + 1) * n] = xp.asarray(order.astype(np.uint32))
            ends = np.cumsum(np.bincount(leaf[tree], minlength=6)) + tree * n
            for node, place in ids.items():
                segments[node] = (ends[place - 1] if place else tree * n), ends[place]
        chunk.bounds[:40] = xp.asarray(segments)
        fit(xp.asarray(nodes), first, chunk, xp.asarray(margin)[:, first:], xp.asarray(np.array([0.3])), tables)
        expected = before.copy()
        for tree, ids in enumerate(place_of):
            for node, place in ids.items():
                these = np.flatnonzero(leaf[tree] == place)
                own = [1.0] * len(these) if weight is None else weight[these].tolist()
                residuals = [label[row] - margin[row, first + tree] for row in these]
                found = reference.quantile(residuals, reference.integer_weights(own, largest), alphas[first + tree])
                if not math.isnan(found):
                    expected[tree, node % 20] = np.float32(found) * rate
        np.testing.assert_array_equal(to_host(tables.values), expected)


def test_keys_sort_as_values() -> None:
    values = np.array([-3e38, -1, -1e-45, 0, 1e-45, 1e-38, 1, 3e38], np.float32)
    keys = [int(sortable_key.py_func(bits)) for bits in values.view(np.uint32)]
    assert keys == sorted(set(keys))


def test_a_median_is_the_lower_one() -> None:
    label = np.array([1, 2, 3, 4], np.float32)
    part = (label, np.zeros(4, np.float32), np.empty(0, np.float32), np.zeros(4, int))
    assert residual_quantiles(Counting([part]), 0, np.zeros(1, np.int32), 0.5, 1.0).tolist() == [2]


@pytest.mark.parametrize("largest", [1e-30, 0.3, 1.0, 1000.0, 3e38])
def test_weights_become_integers_of_twenty_bits(largest: float) -> None:
    assert 2**19 <= largest * weight_scale(largest) <= 2**20
