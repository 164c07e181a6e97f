"""Naive twin of trees whose leaves are vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from reference import gradients, split, split_sets, split_vectors, trees
from reference.split import INF, Rows, Split
from reference.split_vectors import FREE

from daskboost.devices.cpu.rows import Rounding
from daskboost.dtypes import Float32
from daskboost.hashing import Purpose
from daskboost.tree.table import TreeTable


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
        outputs = self.rows_of_all(node, self.searched_columns)
        return split_sets.best(self.problem.rules, self.problem.limits, outputs, self.features(node))

    def best_of_level(self, level: Sequence[int], features: Sequence[int]) -> Split:
        whole = [self.rows_of_all(node, self.searched_columns) for node in level]
        return split_sets.best_of_level(self.problem.rules, self.problem.limits, whole, features)

    def judge(self, node: int, chosen: Split) -> tuple[float, list[tuple[float, float]]]:
        outputs = self.rows_of_all(node, self.exact_columns)
        lefts = split_sets.lefts_of(outputs, chosen)
        children, parent = split_vectors.totals(self.problem.rules, outputs, lefts, False)
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
