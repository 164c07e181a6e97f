"""Constraints as users write them: every form means the same, and every malformed one is refused by name."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from daskboost.data.input.row_batch import FeatureSchema
from daskboost.errors import ParameterError
from daskboost.tree.constraints import ignored_features, interaction_groups, monotone_directions

SCHEMA = FeatureSchema(("a", "b", "c"), ("float",) * 3)


@pytest.mark.parametrize("value", [
    [1, 0, -1], (1.0, 0.0, -1.0), np.array([1, 0, -1]), "(1,0,-1)", {"a": 1, "c": -1}, {0: 1, 2: -1}, {0: 1, "c": "-1"},
])  # fmt: skip
def test_directions_in_every_form(value: Any) -> None:
    assert monotone_directions(value, SCHEMA).tolist() == [1, 0, -1]


def test_directions_may_be_fewer_than_features() -> None:
    assert monotone_directions([-1], SCHEMA).tolist() == [-1, 0, 0]


@pytest.mark.parametrize(("value", "message"), [
    ([0.5, 0, 0], r"monotone_constraints=\[0.5, 0, 0\]: every direction must be -1, 0 or 1"),
    ([2], "every direction must be"), ([None], "every direction must be"), ({"a": "up"}, "every direction must be"),
    ("(a,b)", "every direction must be"), (5, "monotone_constraints=5 must be a sequence"),
    ({"aa": 1}, "monotone_constraints names the unknown feature 'aa'; did you mean 'a'"),
    ({3: 1}, "monotone_constraints names feature 3, but there are 3 features"),
    ([0] * 4, "monotone_constraints has 4 entries for 3 features"),
])  # fmt: skip
def test_bad_directions(value: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        monotone_directions(value, SCHEMA)


@pytest.mark.parametrize("value", [
    [["a", "b"], ["c"]], ((0, 1), (2,)), [{"a", 1}, frozenset("c")], [np.array([0, 1]), np.array([2])],
])  # fmt: skip
def test_groups_in_every_form(value: Any) -> None:
    groups = interaction_groups(value, SCHEMA)
    assert groups is not None
    assert groups.tolist() == [[True, True, False], [False, False, True]]


@pytest.mark.parametrize("value", [5, "[[0, 1]]", ["ab"], [0, 1], {"a": ["b"]}])
def test_bad_groups(value: Any) -> None:
    with pytest.raises(ParameterError, match=r"interaction_constraints=.* must be a list of lists of feature names"):
        interaction_groups(value, SCHEMA)


def test_thousands_of_names_are_looked_up_one_by_one() -> None:
    names = tuple(f"f{i}" for i in range(20_000))
    schema = FeatureSchema(names, ("float",) * len(names))
    start = time.perf_counter()
    assert monotone_directions(dict.fromkeys(names, 1), schema).all()
    groups = interaction_groups([names], schema)
    assert groups is not None and groups.all()
    assert time.perf_counter() - start < 5  # a tenth of a second; a search per name takes over a minute


@pytest.mark.parametrize("value", [["c", "a"], (2, 0, "a"), {0, 2}, np.array([0, 2])])
def test_ignored_features_in_every_form(value: Any) -> None:
    assert ignored_features(value, SCHEMA) == (0, 2)


@pytest.mark.parametrize(("value", "message"), [
    (["aa"], "ignored_features names the unknown feature 'aa'; did you mean 'a'"),
    ([3], "ignored_features names feature 3, but there are 3 features"),
    ([True], "ignored_features names the unknown feature True"),
    (["a", 1, "c"], "ignored_features names all 3 features; leave at least one"),
])  # fmt: skip
def test_bad_ignored_features(value: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        ignored_features(value, SCHEMA)
