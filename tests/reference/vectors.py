"""Naive twin of trees whose leaves are vectors: every split tried on the rows of every output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from reference import gradients, split, trees
from reference.split import INF, Rows, Rules, Split

from daskboost.devices.cpu.rows import Rounding
from daskboost.dtypes import Float32
from daskboost.hashing import Purpose
from daskboost.tree.table import TreeTable

FREE = (-INF, INF)
"""Bounds of leaf values: vectors have none."""
Outputs = Sequence[Rows]
"""The rows of a node once for each output: the same symbols with each output's gradients."""


def reduction(rules: Rules, g: float, h: float, plain: bool) -> float:
    """Loss reduction of one output's value."""
    if not rules.heavy(h):
        return 0.0
    return split.closed_form(rules, g, h) if plain else split.loss_reduction(rules, g, h, FREE)


def totals(rules: Rules, outputs: Outputs, lefts: Sequence[tuple[int, int]], plain: bool) -> tuple[float, float]:
    """Loss reductions of both children and of their parent, summed over outputs."""
    children, parent = 0.0, 0.0
    for rows, left in zip(outputs, lefts, strict=True):
        right = (rows.sums[0] - left[0], rows.sums[1] - left[1])
        children += reduction(rules, *rows.worth(left), plain) + reduction(rules, *rows.worth(right), plain)
        parent += reduction(rules, *rows.worth(rows.sums), plain)
    return children, parent


def lefts_of(outputs: Outputs, feature: int, bin_: int, default_left: bool) -> list[tuple[int, int]]:
    return [split.left_of(rows, feature, bin_, default_left) for rows in outputs]


def gain(rules: Rules, outputs: Outputs, lefts: Sequence[tuple[int, int]]) -> float:
    """-inf where some child has no output that weighs enough."""
    pairs = list(zip(outputs, lefts, strict=True))
    left = any(rules.heavy(rows.worth(sums)[1]) for rows, sums in pairs)
    right = any(rules.heavy((rows.sums[1] - sums[1]) * rows.units[1]) for rows, sums in pairs)
    children, parent = totals(rules, outputs, lefts, rules.plain)
    return children - parent if left and right else -INF


def some_missing(outputs: Outputs) -> list[bool]:
    found: list[bool] = np.any([split.some_missing(rows) for rows in outputs], axis=0).tolist()
    return found


def best(rules: Rules, outputs: Outputs, features: Sequence[int]) -> tuple[Split, list[tuple[int, int]]]:
    """The best split of one node, and the sums of its left child for each output."""
    found, found_lefts = Split(-INF, -1, -1, False, (0, 0)), [(0, 0)] * len(outputs)
    for feature, bin_, default_left in split.places(outputs[0], features, some_missing(outputs)):
        lefts = lefts_of(outputs, feature, bin_, default_left)
        own = gain(rules, outputs, lefts)
        if own > max(found.gain, 0.0):
            found, found_lefts = Split(own, feature, bin_, default_left, (0, 0)), lefts
    return found, found_lefts


def best_of_level(rules: Rules, level: Sequence[Outputs], features: Sequence[int]) -> Split:
    """The one split for all nodes of a level."""
    missing = np.any([some_missing(outputs) for outputs in level], axis=0).tolist()
    found = Split(-INF, -1, -1, False, (0, 0))
    for feature, bin_, default_left in split.places(level[0][0], features, missing):
        gains = [gain(rules, outputs, lefts_of(outputs, feature, bin_, default_left)) for outputs in level]
        total = 0.0
        for own in gains:
            total += own if own > -INF else 0.0
        if total > max(found.gain, 0.0):
            found = Split(total, feature, bin_, default_left, (0, 0))
    return found


def projection(seed: int, iteration: int, n_outputs: int, n_columns: int) -> list[tuple[int, int]]:
    """(column, sign) of each output: dealt out in the order of their hashes."""
    key = gradients.key(seed, Purpose.GRADIENT_SKETCH, iteration)
    bits = [gradients.bits(key, output) for output in range(n_outputs)]
    by_hash = sorted(range(n_outputs), key=lambda output: bits[output])
    return [(by_hash.index(output) % n_columns, -1 if bits[output] % 2 else 1) for output in range(n_outputs)]


def sketch(values: Float32, places: Sequence[tuple[int, int]], n_columns: int, signed: bool) -> Float32:
    """Float32 sums, output after output."""
    found = np.zeros((len(values), n_columns), np.float32)
    for row in range(len(values)):
        for output, (column, sign) in enumerate(places):
            found[row, column] = found[row, column] + np.float32(sign if signed else 1) * values[row, output]
    return found


class VectorTree(trees.Tree):
    """One tree of all outputs while it grows."""

    def __init__(self, problem: trees.Problem, iteration: int, g: Float32, h: Float32, margin: Float32) -> None:
        self.problem, self.params, self.place, self.margin = problem, problem.params, (iteration, 0), margin
        n_outputs, n_columns = g.shape[1], problem.params.sketch_outputs
        first = n_outputs if n_columns else 0
        if n_columns:
            places = projection(self.params.random_state, iteration, n_outputs, n_columns)
            self.exact_columns = self.quantized_columns(g, h, range(n_outputs), first)
            g, h = sketch(g, places, n_columns, True), sketch(h, places, n_columns, False)
        columns = range(first, first + g.shape[1])
        self.searched_columns = self.quantized_columns(g, h, columns, first)
        if not n_columns:
            self.exact_columns = self.searched_columns
        self.noise = sum(
            self.noise_of(units, g[:, k], h[:, k]) for k, (_, units) in enumerate(self.searched_columns)
        )
        self.nodes = [trees.Node(list(self.searched_columns[0][0]))]
        self.n_leaves = 1

    def quantized_columns(self, g: Float32, h: Float32, columns: Sequence[int], first: int
                          ) -> list[tuple[Any, Any]]:  # fmt: skip
        """Pairs by row, and units, of each column."""
        problem, (iteration, _) = self.problem, self.place
        seed, share = self.params.random_state, self.params.subsample
        ones = np.ones_like(problem.label)
        weight = (ones if problem.weight is None else problem.weight) if problem.small else None
        found = []
        for k, column in enumerate(columns):
            scale_g, scale_h, scale_w = gradients.scales(g[:, k], h[:, k], weight)
            rounding = Rounding(
                scale_g, scale_h, gradients.key(seed, Purpose.ROUNDING, iteration, column),
                gradients.key(seed, Purpose.ROW_SAMPLE, iteration, first), int(np.ceil(share * 2**32)), scale_w,
            )  # fmt: skip
            pairs = {row: (a, b) for row, a, b in gradients.quantize(g[:, k], h[:, k], rounding, weight=weight)}
            found.append((pairs, (1 / (scale_g * scale_w), 1 / (scale_h * scale_w))))
        return found

    def rows_of_all(self, node: int, quantized: Sequence[tuple[Any, Any]]) -> list[Rows]:
        rows, found = self.nodes[node].rows, []
        for pairs, units in quantized:
            own = np.array([pairs[row] for row in rows], np.int64).reshape(-1, 2)
            n_bins = self.problem.cuts.n_bins.tolist()
            found.append(Rows(self.problem.symbols[rows], own[:, 0], own[:, 1], n_bins, units))
        return found

    def best(self, node: int) -> Split:
        if self.nodes[node].depth == self.params.depth_limit:
            return Split(-INF, -1, -1, False, (0, 0))
        outputs, features = self.rows_of_all(node, self.searched_columns), self.features(node)
        if len(outputs) == 1:
            return split.best(self.problem.rules, outputs[0], features)
        return best(self.problem.rules, outputs, features)[0]

    def best_of_level(self, level: Sequence[int], features: Sequence[int]) -> Split:
        whole = [self.rows_of_all(node, self.searched_columns) for node in level]
        if len(self.searched_columns) == 1:
            return split.best_of_level(self.problem.rules, [rows for (rows,) in whole], features)
        return best_of_level(self.problem.rules, whole, features)

    def judge(self, node: int, chosen: Split) -> tuple[float, list[tuple[float, float]]]:
        outputs = self.rows_of_all(node, self.exact_columns)
        lefts = lefts_of(outputs, chosen.feature, chosen.bin, chosen.default_left)
        children, parent = totals(self.problem.rules, outputs, lefts, False)
        return children - parent, [FREE, FREE]

    def values_and_covers(self) -> tuple[Float32, Float32]:
        rules, values, covers = self.problem.rules, [], []
        for node in range(len(self.nodes)):
            worth = [rows.worth(rows.sums) for rows in self.rows_of_all(node, self.exact_columns)]
            values.append([split.weight(rules, g, h, FREE) for g, h in worth])
            covers.append(sum(h for _, h in worth))
        found = (np.array(values) * self.params.learning_rate).astype(np.float32)
        for output in range(found.shape[1]):
            found[:, output] = self.with_quantiles(found[:, output].copy(), self.margin[:, output], output)
        return found, np.array(covers, np.float32)

    def table(self) -> TreeTable:
        return self.as_table(*self.values_and_covers())
