"""Which features a node may split on, and in which direction: column samples, interaction and monotone constraints."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from daskboost.data.input.row_batch import FeatureSchema
from daskboost.dtypes import Bool, Int32, UInt8, UInt64
from daskboost.errors import ParameterError
from daskboost.hashing import Purpose, key_state, keys_after, samples
from daskboost.params import TrainParams, as_tuple, shown


def monotone_directions(value: object, schema: FeatureSchema) -> Int32:
    """`monotone_constraints` as -1, 0 or 1 per feature; int32, shape (features,).

    A sequence may be shorter than the features, as in XGBoost: the rest are free.
    """
    out = np.zeros(schema.n_features, np.int32)
    if value is None:
        return out
    columns = schema.columns
    if isinstance(value, Mapping):
        index = _FeatureIndex("monotone_constraints", schema)
        directions = {index.column_of(name): _direction(value, direction) for name, direction in value.items()}
    else:
        directions = dict(enumerate(_direction(value, entry) for entry in _entries(value)))
    if len(directions) > columns.n_features:
        raise ParameterError(
            f"monotone_constraints has {len(directions)} entries for {columns.n_features} features; give one per "
            "feature or a mapping from feature name to direction"
        )
    unordered = set(columns.categorical)
    for column, direction in directions.items():
        if direction and column in unordered:
            raise ParameterError(
                f"monotone_constraints={shown(value)} binds {columns.label(column)!r}, whose categories have no order; "
                "leave it out, or give the column as numbers"
            )
        out[schema.of_column(column)] = direction
    return out


def _entries(value: object) -> Iterable[object]:
    """Return the entries of a sequence, or of one written out as XGBoost takes it."""
    entries = [part for part in value.strip("() ").split(",") if part.strip()] if isinstance(value, str) else value
    if not isinstance(entries, Iterable):
        raise ParameterError(
            f"monotone_constraints={shown(value)} must be a sequence with -1, 0 or 1 per feature, or a mapping from "
            "feature name to direction"
        )
    return entries


def _direction(value: object, entry: Any) -> int:
    try:
        number = float(entry)
    except (TypeError, ValueError, OverflowError):
        number = np.nan
    if number not in (-1, 0, 1):
        raise ParameterError(f"monotone_constraints={shown(value)}: every direction must be -1, 0 or 1")
    return int(number)


def interaction_groups(value: object, schema: FeatureSchema) -> Bool | None:
    """`interaction_constraints` as membership; bool, shape (groups, features), or None."""
    if value is None:
        return None
    listed = isinstance(value, Collection) and not isinstance(value, str | Mapping)
    members = as_tuple(value) if listed else ()
    if not listed or not all(isinstance(group, Collection) and not isinstance(group, str) for group in members):
        raise ParameterError(
            f"interaction_constraints={shown(value)} must be a list of lists of feature names or indices, "
            "such as [['a', 'b'], ['c']]"
        )
    if not members:
        return None
    groups = np.zeros((len(members), schema.n_features), np.bool_)
    index = _FeatureIndex("interaction_constraints", schema)
    for g, group in enumerate(members):
        for feature in as_tuple(group):
            groups[g, index.of(feature)] = True
    for feature, columns in schema.of_several.items():
        groups[:, feature] = groups[:, [schema.of_column(column).start for column in columns]].all(axis=1)
    # Features of a categorical column in no group may meet each other, as a column meets itself.
    own = [schema.of_column(column) for column in schema.columns.categorical]
    alone = [np.isin(np.arange(schema.n_features), features) for features in own if not groups[:, features.start].any()]
    return np.vstack([groups, *alone])


def n_groups(value: object) -> int:
    """Return the number of groups of `interaction_constraints` that were checked."""
    return 0 if value is None else len(as_tuple(value))


def ignored_features(value: Iterable[object], schema: FeatureSchema, groups: Bool | None = None) -> tuple[int, ...]:
    """Return the numbers of the features that no tree splits on, in increasing order: all those that are made of a
    column that `ignored_features` names, and those made of columns that must not meet.

    Parameters
    ----------
    groups : bool array, shape (groups, features), optional
        See `interaction_groups`.

    Raises
    ------
    ParameterError
        As of `some_columns`.
    """
    columns = some_columns(value, schema, "ignored_features")
    alone = [feature for column in columns for feature in schema.of_column(column)]
    several = [
        feature for feature, own in schema.of_several.items()
        if not set(own).isdisjoint(columns) or (groups is not None and not groups[:, feature].any())
    ]  # fmt: skip
    return (*alone, *several)


def some_columns(value: Iterable[object], schema: FeatureSchema, argument: str) -> tuple[int, ...]:
    """Return the columns that an argument names, as numbers, each once, in increasing order.

    Raises
    ------
    ParameterError
        A column that there is not, or none that is left.
    """
    index, n_all = _FeatureIndex(argument, schema), schema.columns.n_features
    numbers = tuple(sorted({index.column_of(feature) for feature in value}))
    if numbers and len(numbers) == n_all:
        raise ParameterError(f"{argument} names all {n_all} features; leave at least one")
    return numbers


class _FeatureIndex:
    """Numbers of columns by name, for one argument; made once, so that thousands of names cost as many look-ups, and
    not before one is looked up: of a million columns they take a second."""

    def __init__(self, argument: str, schema: FeatureSchema) -> None:
        self._argument, self._schema = argument, schema

    @cached_property
    def _numbers(self) -> dict[str, int]:
        columns = self._schema.columns
        return {columns.label(f): f for f in range(columns.n_features)}

    def of(self, feature: object) -> range:
        """Return the features that are made of the column that a user calls so."""
        return self._schema.of_column(self.column_of(feature))

    def column_of(self, feature: object) -> int:
        """Return the number of the column that a user calls so, by its name or number; ParameterError for none."""
        argument, n_features = self._argument, self._schema.columns.n_features
        if isinstance(feature, (int, np.integer)) and not isinstance(feature, bool):
            if 0 <= feature < n_features:
                return int(feature)
            raise ParameterError(f"{argument} names feature {shown(feature)}, but there are {n_features} features")
        numbers = self._numbers
        if isinstance(feature, str) and feature in numbers:
            return numbers[feature]
        close = difflib.get_close_matches(feature, numbers, n=1) if isinstance(feature, str) else []
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ParameterError(f"{argument} names the unknown feature {shown(feature)}{hint}")


def draws_by_node(params: TrainParams) -> bool:
    """Whether each node draws features of its own; those of a symmetric tree's level draw once for all of them."""
    return params.colsample_bynode < 1 and params.grow_policy != "symmetric"


def _n_sampled(share: float, n: int) -> int:
    """Features that are drawn from `n`; XGBoost truncates too."""
    return n if share >= 1 else max(1, int(share * n))


class FeatureRules:
    """Features that the nodes of one tree may use.

    Column samples nest as in XGBoost: a level samples from the tree's features, a node from the level's. Of `params`,
    `ignored_features` are numbers already.
    """

    def __init__(self, params: TrainParams, n_features: int, groups: Bool | None, iteration: int, output: int) -> None:
        self._params, self.n_features, self._groups = params, n_features, groups
        self._place = (iteration, output)
        usable = np.ones((1, n_features), np.bool_)
        usable[0, np.array(params.ignored_features, np.int64)] = False
        self._n_of_tree = _n_sampled(params.colsample_bytree, int(np.count_nonzero(usable)))
        (self._tree,) = samples(self.keys(Purpose.TREE_FEATURES), usable, self._n_of_tree)

    def keys(self, purpose: Purpose, *parts: UInt64) -> UInt64:
        """The keys of draws of the tree's, of shape (draws,): one for each depth, or depth and node."""
        state = key_state(self._params.random_state, purpose, *self._place)
        return keys_after(np.array([state], np.uint64), *parts)

    @property
    def by_path(self) -> bool:
        """Whether a node's features depend on its path from the root."""
        return self._groups is not None

    @property
    def n_of_level(self) -> int:
        """Features that each level draws from the tree's."""
        return _n_sampled(self._params.colsample_bylevel, self._n_of_tree)

    @property
    def n_drawn(self) -> int:
        """Features that each node draws from its level's; 0 where it does not."""
        return _n_sampled(self._params.colsample_bynode, self.n_of_level) if draws_by_node(self._params) else 0

    @property
    def states(self) -> tuple[int, int]:
        """States of the keys (`key_state`) of a level's draw, to which its depth is to be added, and of a node's, to
        which its depth and its number are."""
        purposes = (Purpose.LEVEL_FEATURES, Purpose.NODE_FEATURES)
        of_level, of_node = (key_state(self._params.random_state, purpose, *self._place) for purpose in purposes)
        return of_level, of_node

    def allowed(self, ids: Sequence[int], depths: Sequence[int], used: Sequence[frozenset[int]]) -> UInt8:
        """Allowed features of nodes; uint8, shape (nodes, features), or (1, features) if all nodes agree.

        `used` : the features on each node's path from the root; read only if `by_path`.
        """
        if not draws_by_node(self._params) and not self.by_path and len(set(depths)) == 1:
            return self.of_level(depths[0])[None, :]
        paths = used if self.by_path else [frozenset[int]()] * len(ids)
        return np.stack([self._row(*node) for node in zip(ids, depths, paths, strict=True)])

    @property
    def of_tree(self) -> UInt8:
        """The features that levels draw from; uint8, shape (features,)."""
        row: UInt8 = self._tree.view(np.uint8)
        return row

    def of_level(self, depth: int) -> UInt8:
        """Return the features that the nodes of a level may use, or what each of them draws from; uint8, shape
        (features,)."""
        row: UInt8 = features_of_levels([self], self._params, range(depth, depth + 1))[0, 0]
        return row

    def _row(self, node: int, depth: int, used: frozenset[int]) -> UInt8:
        features = _drawn_by_levels([self], self._params, range(depth, depth + 1))
        if draws_by_node(self._params):
            keys = self.keys(Purpose.NODE_FEATURES, *np.array([[depth], [node]], np.uint64))
            features = samples(keys, features, self.n_drawn)
        row: UInt8 = features[0].view(np.uint8)
        if self._groups is not None and used:
            path = np.fromiter(used, np.int64)
            compatible: Bool = np.asarray(self._groups[self._groups[:, path].all(axis=1)].any(axis=0))
            compatible[path] = True
            row[~compatible] = 0
        return row


def features_of_levels(trees: Sequence[FeatureRules], params: TrainParams, depths: Sequence[int]) -> UInt8:
    """Return the features that levels of trees may use, or what their nodes draw from; uint8, shape (trees, depths,
    features). All trees are of one fit."""
    drawn = _drawn_by_levels(trees, params, depths).view(np.uint8)
    return drawn.reshape(len(trees), len(depths), trees[0].n_features)


def _drawn_by_levels(trees: Sequence[FeatureRules], params: TrainParams, depths: Sequence[int]) -> Bool:
    """Return which features levels have, shape (trees * depths, features)."""
    levels = np.array(depths, np.uint64)
    features: Bool = np.repeat([tree._tree for tree in trees], len(depths), axis=0)
    if params.colsample_bylevel < 1:
        keys = np.concatenate([tree.keys(Purpose.LEVEL_FEATURES, levels) for tree in trees])
        features = samples(keys, features, trees[0].n_of_level)
    if params.colsample_bynode < 1 and not draws_by_node(params):  # one draw for all nodes of a level
        nodes = np.zeros_like(levels)
        keys = np.concatenate([tree.keys(Purpose.NODE_FEATURES, levels, nodes) for tree in trees])
        features = samples(keys, features, _n_sampled(params.colsample_bynode, trees[0].n_of_level))
    return features
