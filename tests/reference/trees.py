"""A naive trainer: gradient boosting by its definition, row by row, without histograms, chunks or engines.

Its trees must equal the engines' trees to the last bit of every gain and value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from reference import gradients, leaf_models, partition, residuals, split, split_sets

from daskboost.data.cuts.cut_points import Cuts
from daskboost.devices.cpu.rows import Rounding
from daskboost.devices.leaf_models import LeafModels
from daskboost.dtypes import Float32
from daskboost.hashing import Purpose
from daskboost.objectives.objective import Objective
from daskboost.params import TrainParams
from daskboost.tree.category_sets import CategorySets
from daskboost.tree.growing_tree import walk_arrays
from daskboost.tree.table import TreeTable

Quantized = tuple[dict[int, tuple[int, int]], tuple[float, float]]
"""Pairs by row, and what a quantum of g and of h is worth."""


@dataclass
class Node:
    rows: list[int]
    depth: int = 0
    used: frozenset[int] = frozenset()
    bounds: tuple[float, float] = (-split.INF, split.INF)
    left: int = -1
    right: int = -1
    feature: int = 0
    split_bin: int = -1
    default_left: bool = False
    gain: float = 0.0
    right_bins: frozenset[int] = frozenset()


@dataclass
class Problem:
    """What a fit is about."""

    params: TrainParams
    objective: Objective
    cuts: Cuts
    symbols: Any
    """Shape (rows, features); `n_bins[f]` where missing."""
    label: Float32
    weight: Float32 | None = None
    monotone: Sequence[int] = ()
    groups: Sequence[Sequence[int]] = ()
    """Interaction constraints."""
    limits: split_sets.SetRules = field(default_factory=split_sets.SetRules)
    """How sets of categories split features."""
    rules: split.Rules = field(init=False)
    search_rules: split.Rules = field(init=False)
    leaf_rules: split.Rules = field(init=False)

    def __post_init__(self) -> None:
        step = self.params.max_delta_step
        self.rules = split.Rules(
            self.params.reg_lambda, self.params.reg_alpha,
            self.objective.default_max_delta_step if step is None else step, self.params.min_child_weight,
            self.monotone,
        )  # fmt: skip
        self.search_rules = dataclasses.replace(self.rules, step=0.0) if self.by_weight else self.rules
        self.leaf_rules = dataclasses.replace(self.rules, least_h=0.0) if self.by_weight else self.rules

    @property
    def by_weight(self) -> bool:
        """Whether N is in the place of H where splits are scored, and differs from it."""
        params, objective = self.params, self.objective
        if objective.name in ("reg:squarederror", "reg:absoluteerror", "reg:quantileerror"):
            return False
        if params.score_function == "auto":
            is_logistic = objective.name in ("binary:logistic", "binary:logitraw", "reg:logistic")
            return params.grow_policy == "symmetric" and is_logistic and not any(self.monotone)
        return params.score_function == "l2"

    def weights_as_h(self) -> tuple[Float32, float]:
        """Of each row, as they are before weights of small data multiply them; and their largest."""
        factor = np.float32(getattr(self.objective, "scale_pos_weight", 1.0))
        weights = np.where(self.label == 1, factor, np.float32(1))
        most = max(factor, np.float32(1))
        if self.weight is None or self.small:
            return weights, float(most)
        return weights * self.weight, float(most * self.weight.max())

    def positions(self, row: int) -> list[int]:
        """Of a row's bins, in models of leaves."""
        bins = zip(self.cuts.n_bins.tolist(), self.symbols[row].tolist(), strict=True)
        return [leaf_models.position(n_bins, symbol) for n_bins, symbol in bins]

    @property
    def small(self) -> bool:
        """Whether gradients keep more bits, and are rounded before weights multiply them."""
        return len(self.label) <= gradients.SMALL_ROWS

    def largest_weight(self) -> float:
        return 1.0 if self.weight is None else float(self.weight.max())


def train(problem: Problem, n_rounds: int) -> list[TreeTable]:
    """All trees, in the order of rounds and outputs."""
    objective, label = problem.objective, problem.label
    start = objective.to_margin(np.array(base_score(problem), np.float32))
    margin = np.empty((len(label), objective.n_outputs), np.float32)
    margin[:] = start
    trees = []
    for iteration in range(n_rounds):
        g, h = objective.gradients(label, margin)
        if problem.weight is not None and not problem.small:
            g, h = g * problem.weight[:, None], h * problem.weight[:, None]
        if problem.params.has_vector_leaves(objective.n_outputs):
            from reference.vectors import VectorTree

            trees.append(tree := VectorTree(problem, iteration, g, h, margin).grown())
            walk = walk_arrays(tree)
            for row in range(len(label)):
                margin[row] += tree.value[partition.leaf(walk, problem.symbols[row], problem.cuts.n_bins)]
            continue
        for output in range(objective.n_outputs):
            tree = Tree(problem, iteration, output, g[:, output], h[:, output], margin[:, output]).grown()
            trees.append(tree)
            walk = walk_arrays(tree)
            for row in range(len(label)):
                leaf = partition.leaf(walk, problem.symbols[row], problem.cuts.n_bins)
                margin[row, output] += leaf_models.added(tree, leaf, dict(enumerate(problem.positions(row))))
    return trees


def base_score(problem: Problem) -> list[float]:
    """In the label's space: one for all outputs, or one each."""
    objective, label = problem.objective, problem.label
    weight = np.ones_like(label) if problem.weight is None else problem.weight
    if problem.params.base_score is not None:
        return [float(np.float32(problem.params.base_score))]
    if objective.base_score_rule == "constant":
        return [objective.base_score_constant]
    if objective.base_score_rule == "quantile":
        whole = residuals.integer_weights(weight.tolist(), problem.largest_weight())
        return [residuals.quantile(list(label), whole, alpha) for alpha in objective.adaptive_quantiles or ()]
    if objective.base_score_rule == "shares":
        total = sum(Fraction(float(w)) for w in weight)
        of = [sum((Fraction(float(w)) for y, w in zip(label, weight, strict=True) if y == k), Fraction(0))
              for k in range(objective.n_outputs)]  # fmt: skip
        scores = objective.base_scores_of(np.array([float(own / total) for own in of]))
        return [float(np.float32(score)) for score in scores]
    pairs = [(Fraction(float(y)), Fraction(float(w))) for y, w in zip(label, weight, strict=True)]
    mean = sum(y * w for y, w in pairs) / sum(w for _, w in pairs)
    return [float(np.float32(objective.base_score_of(float(mean))))]


class Tree:
    """One tree while it grows."""

    def __init__(self, problem: Problem, iteration: int, output: int, g: Float32, h: Float32, margin: Float32) -> None:
        self.problem, self.params, self.place, self.margin = problem, problem.params, (iteration, output), margin
        self.searched = self.exact = self.quantized(g, h)
        if problem.by_weight:
            self.searched = self.quantized(g, *problem.weights_as_h())
        searched_h = np.float32(problem.weights_as_h()[1]) if problem.by_weight else h
        self.noise = self.noise_of(self.searched[1], g, searched_h)
        self.nodes = [Node(list(self.exact[0]))]
        self.n_leaves = 1

    def quantized(self, g: Float32, h: Float32, largest_h: float | None = None) -> Quantized:
        """Pairs by row, and their units; `largest_h` where it is not to be found."""
        problem, (iteration, output) = self.problem, self.place
        seed, share = self.params.random_state, self.params.subsample
        ones = np.ones_like(problem.label)
        weight = (ones if problem.weight is None else problem.weight) if problem.small else None
        of_scale = h if largest_h is None else np.full_like(h, largest_h)
        scale_g, scale_h, scale_w = gradients.scales(g, of_scale, weight)
        rounding = Rounding(
            scale_g, scale_h, gradients.key(seed, Purpose.ROUNDING, iteration, output),
            gradients.key(seed, Purpose.ROW_SAMPLE, iteration, output), int(np.ceil(share * 2**32)), scale_w,
        )  # fmt: skip
        pairs = {row: (qg, qh) for row, qg, qh in gradients.quantize(g, h, rounding, weight=weight)}
        return pairs, (1 / (scale_g * scale_w), 1 / (scale_h * scale_w))

    def noise_of(self, units: tuple[float, float], g: Float32, h: Any) -> float:
        """The gain of a row whose gradient is 8 quanta or 2**-20 of the largest, whichever is more."""
        counts = np.ones(len(g), np.bool_) if self.problem.weight is None else self.problem.weight > 0
        most_g, most_h = float(np.abs(g[counts]).max()), float(np.max(np.broadcast_to(h, g.shape)[counts]))
        if self.problem.small and self.problem.weight is not None:  # a row of the weight that is scaled to 1
            weight_of_one = 1 / gradients.scales(g, np.ones_like(g), self.problem.weight)[2]
            most_g, most_h = most_g * weight_of_one, most_h * weight_of_one
        if most_g == 0 or most_h + self.params.reg_lambda == 0:
            return 0.0
        step, divisor = self.problem.search_rules.step, most_h + self.params.reg_lambda
        quantum = max(8 * units[0], most_g / 2**20)
        if step > 0 and quantum / divisor > step:  # gains are linear in gradients where a step limits leaves
            return 2.0 * quantum * step - divisor * step * step
        return quantum * quantum / divisor

    def grown(self) -> TreeTable:
        policies: dict[str, Callable[[], None]] = {
            "depthwise": self.depthwise, "lossguide": self.lossguide, "symmetric": self.symmetric,
        }  # fmt: skip
        policies[self.params.grow_policy]()
        return self.table()

    def depthwise(self) -> None:
        level = [0]
        while level:
            found = [(node, self.best(node)) for node in level]
            worth = [(node, each) for node, each in found if self.is_worth(each.gain)]
            room = self.params.max_leaves - self.n_leaves if self.params.max_leaves else len(worth)
            best = sorted(worth, key=lambda pair: -pair[1].gain)[:room]
            best.sort(key=lambda pair: pair[0])
            level = [child for node, each in best for child in self.divide(node, each)]

    def lossguide(self) -> None:
        waiting = {0: self.best(0)}
        while waiting and not 0 < self.params.max_leaves <= self.n_leaves:
            node = max(waiting, key=lambda node: (waiting[node].gain, -node))
            chosen = waiting.pop(node)
            if not self.is_worth(chosen.gain):
                return
            waiting |= {child: self.best(child) for child in self.divide(node, chosen)}

    def symmetric(self) -> None:
        level = [0]
        for depth in range(self.params.depth_limit):
            allowed = set.intersection(*(set(self.features(node)) for node in level))
            one = self.best_of_level(level, sorted(allowed))
            if not self.is_worth(one.gain):
                return
            assert all(self.nodes[node].depth == depth for node in level)
            level = [child for node in level for child in self.divide(node, one)]

    def is_worth(self, gain: float) -> bool:
        return gain > 0 and gain >= max(self.noise, self.params.gamma)

    def rows_of(self, node: int, quantized: Quantized | None = None) -> split.Rows:
        own, (by_row, units) = self.nodes[node], quantized or self.searched
        pairs = np.array([by_row[row] for row in own.rows], np.int64).reshape(-1, 2)
        return split.Rows(
            self.problem.symbols[own.rows], pairs[:, 0], pairs[:, 1], self.problem.cuts.n_bins.tolist(), units,
            own.bounds,
        )  # fmt: skip

    def best(self, node: int) -> split.Split:
        if self.nodes[node].depth == self.params.depth_limit:
            return split.Split(-split.INF, -1, -1, False, (0, 0))
        return split_sets.best(
            self.problem.search_rules, self.problem.limits, [self.rows_of(node)], self.features(node)
        )

    def best_of_level(self, level: Sequence[int], features: Sequence[int]) -> split.Split:
        rows = [[self.rows_of(node)] for node in level]
        return split_sets.best_of_level(self.problem.search_rules, self.problem.limits, rows, features)

    def divide(self, node: int, chosen: split.Split) -> list[int]:
        """Make the children of a node."""
        own, f = self.nodes[node], chosen.feature
        n_bins = int(self.problem.cuts.n_bins[f])
        own.right_bins = split_sets.right_bins_of(chosen)
        sides = partition.split(
            own.rows, self.problem.symbols[:, f], chosen.bin, n_bins, chosen.default_left, own.right_bins
        )
        own.feature, own.split_bin, own.default_left = f, chosen.bin, chosen.default_left
        own.left, own.right = len(self.nodes), len(self.nodes) + 1
        own.gain, bounds = self.judge(node, chosen)
        for side, limits in zip(sides, bounds, strict=True):
            self.nodes.append(Node(side, own.depth + 1, own.used | {f}, limits))
        self.n_leaves += 1
        return [own.left, own.right]

    def judge(self, node: int, chosen: split.Split) -> tuple[float, list[tuple[float, float]]]:
        """The gain that a split's node records, and the bounds of the children's values."""
        own, rows, rules = self.nodes[node], self.rows_of(node), self.problem.rules
        f, n_bins = chosen.feature, int(self.problem.cuts.n_bins[chosen.feature])
        (left,) = split_sets.lefts_of([rows], chosen)
        right = (rows.sums[0] - left[0], rows.sums[1] - left[1])
        low_weight, high_weight = (split.weight(rules, *rows.worth(side), own.bounds) for side in (left, right))
        middle, (low, high), direction = (low_weight + high_weight) / 2, own.bounds, rules.direction(f)
        if direction and chosen.bin == n_bins - 1:  # present against missing values: either may be the higher
            direction = int(np.sign(high_weight - low_weight))
        bounds = {0: [own.bounds] * 2, 1: [(low, middle), (middle, high)], -1: [(middle, high), (low, middle)]}
        exact = self.rows_of(node, self.exact)
        (exact_left,) = split_sets.lefts_of([exact], chosen)
        return split.own_gain(self.problem.leaf_rules, exact, exact_left), bounds[direction]

    def features(self, node: int) -> list[int]:
        """Features that a node may split on, in increasing order."""
        own, params, purposes = self.nodes[node], self.params, Purpose
        by_node = 0 if params.grow_policy == "symmetric" else node
        columns = [f for f in range(self.problem.cuts.n_features) if f not in params.ignored_features]
        features = self.sample(purposes.TREE_FEATURES, columns, params.colsample_bytree)
        features = self.sample(purposes.LEVEL_FEATURES, features, params.colsample_bylevel, own.depth)
        features = self.sample(purposes.NODE_FEATURES, features, params.colsample_bynode, own.depth, by_node)
        if not self.problem.groups or not own.used:
            return features
        fitting = own.used.union(*(group for group in self.problem.groups if own.used <= set(group)))
        return [f for f in features if f in fitting]

    def sample(self, purpose: Purpose, features: Sequence[int], share: float, *where: int) -> list[int]:
        if share >= 1:
            return list(features)
        key = gradients.key(self.params.random_state, purpose, *self.place, *where)
        return sorted(sorted(features, key=lambda f: gradients.bits(key, f))[: max(1, int(share * len(features)))])

    def table(self) -> TreeTable:
        rows = [self.rows_of(node, self.exact) for node in range(len(self.nodes))]
        rate = self.params.learning_rate
        values = [split.weight(self.problem.leaf_rules, *each.worth(each.sums), each.bounds) * rate for each in rows]
        covers = np.array([each.worth(each.sums)[1] for each in rows], np.float32)
        made = self.as_table(self.with_quantiles(np.array(values, np.float32), self.margin, self.place[1]), covers)
        return self.with_models(made) if self.params.linear_leaves else made

    def with_models(self, tree: TreeTable) -> TreeTable:
        """The same tree with linear leaves."""
        (by_row, units), problem, value = self.exact, self.problem, tree.value.copy()
        rates = self.params.linear_lambda, self.problem.leaf_rules.least_h, self.params.learning_rate
        terms, found = np.full((tree.n_nodes, leaf_models.MOST_TERMS), -1, np.int32), np.zeros((tree.n_nodes, 5))
        for leaf in np.flatnonzero(tree.is_leaf).tolist():
            features, rows = leaf_models.terms_of(tree, leaf, [True] * problem.cuts.n_features), self.nodes[leaf].rows
            x = [[problem.positions(row)[feature] for feature in features] for row in rows]
            pairs = [by_row[row] for row in rows]
            value[leaf], slopes = leaf_models.fitted(x, pairs, units, rates, value[leaf])
            if slopes:
                terms[leaf, : len(features)], found[leaf, : len(features)] = features, slopes
        models = LeafModels.of_nodes(terms, found.astype(np.float32))
        return dataclasses.replace(tree, value=value, models=models)

    def as_table(self, values: Float32, covers: Float32) -> TreeTable:
        nodes, cuts = self.nodes, self.problem.cuts
        splits = np.array([[max(n.feature, 0), max(n.split_bin, 0)] for n in nodes], np.int32)
        by_value = [n.left >= 0 and not n.right_bins for n in nodes]
        thresholds = np.where(by_value, cuts.thresholds(splits[:, 0], splits[:, 1]), 0)
        return TreeTable(
            np.array([n.left for n in nodes], np.int32), np.array([n.right for n in nodes], np.int32),
            np.array([n.feature for n in nodes], np.int32), np.array([n.split_bin for n in nodes], np.int32),
            thresholds.astype(np.float32), np.array([n.default_left for n in nodes], np.bool_),
            np.array([n.gain for n in nodes], np.float32), covers, values,
            CategorySets.of_nodes([sorted(n.right_bins) for n in nodes]),
        )  # fmt: skip

    def with_quantiles(self, values: Float32, margin: Float32, output: int) -> Float32:
        """Leaf values become quantiles of residuals where the objective says so."""
        problem, quantiles = self.problem, self.problem.objective.adaptive_quantiles
        for value, node in enumerate(self.nodes) if quantiles else ():
            if node.left >= 0:
                continue
            residual = [problem.label[row] - margin[row] for row in node.rows]
            weight = [1.0 if problem.weight is None else float(problem.weight[row]) for row in node.rows]
            whole = residuals.integer_weights(weight, problem.largest_weight())
            found = residuals.quantile(residual, whole, (quantiles or ())[output])
            if not np.isnan(found):
                values[value] = np.float32(found) * np.float32(self.params.learning_rate)
        return values
