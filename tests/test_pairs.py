"""Combinations in which any two values meet (`strategies/pairs.py`)."""

from __future__ import annotations

from itertools import combinations_with_replacement, product
from typing import Any

import pytest
from strategies.pairs import Choice, every_pair, pairs_of

PARAMETERS: list[dict[str, Any]] = [
    {"a": [1]}, {"a": [1, 2, 3]}, {"a": "xyz", "b": [False, True]},
    {"a": [1, 2, 3], "b": [{}, {"c": 4}, {"d": 5}], "c": range(2), "d": range(3), "e": range(2)},
]  # fmt: skip


def met(choices: list[Choice], together: int = 2) -> set[Any]:
    """Values of up to so many parameters that are in one choice."""
    return {frozenset((name, str(choice[name])) for name in names) for choice in choices
            for names in combinations_with_replacement(choice, together)}  # fmt: skip


def all_of(parameters: dict[str, Any]) -> list[Choice]:
    return [dict(zip(parameters, values, strict=True)) for values in product(*parameters.values())]


@pytest.mark.parametrize("together", [2, 3])
@pytest.mark.parametrize("parameters", PARAMETERS, ids=lambda given: f"{len(given)} parameters")
def test_any_two_or_three_values_meet(parameters: dict[str, Any], together: int) -> None:
    chosen = pairs_of(parameters, together=together)
    assert met(chosen, together) == met(all_of(parameters), together)
    assert all(choice in all_of(parameters) for choice in chosen)
    assert chosen == pairs_of(parameters, together=together)


def test_they_are_few() -> None:
    assert [len(pairs_of(parameters)) for parameters in PARAMETERS[:3]] == [1, 3, 6]
    assert 9 <= len(pairs_of(PARAMETERS[3])) <= 12 < len(all_of(PARAMETERS[3])) == 108
    assert len(pairs_of(dict.fromkeys("abcdefghij", range(2)))) <= 10


def test_what_is_not_possible_is_left_out_and_asked_of_nobody() -> None:
    def possible(choice: Choice) -> bool:
        return bool(choice["a"] < 2) or choice["c"] == 0

    parameters = {"a": range(3), "b": range(3), "c": range(2), "d": range(2)}
    chosen = pairs_of(parameters, possible)
    assert all(map(possible, chosen))
    assert met(chosen) == met([choice for choice in all_of(parameters) if possible(choice)])


GPU = [pytest.param(f"gpu {i}", i, marks=pytest.mark.gpu) for i in range(3)]
VIEWS: list[Any] = [("cpu 0", 0), ("cpu 1", 1), *GPU]
SEEN = every_pair({"view, number": VIEWS, "threads": [1, 2, 3], "data": "ab"}).args


def test_marked_values_have_combinations_of_their_own() -> None:
    names, params = SEEN
    assert names == "view, number, threads, data"
    for mark, n_views in (((), 2), (("gpu",), 3)):
        alike = [param for param in params if tuple(each.name for each in param.marks) == mark]
        choices = [dict(zip(names.split(", "), param.values, strict=True)) for param in alike]
        views = sorted({choice["view"] for choice in choices})
        assert len(views) == n_views
        parameters = {"view": views, "threads": [1, 2, 3], "data": "ab"}
        kept = [{name: choice[name] for name in parameters} for choice in choices]
        assert met(kept) == met(all_of(parameters))
        assert all(choice["view"].endswith(str(choice["number"])) for choice in choices)
        assert [param.id for param in alike] == ["-".join(map(str, choice.values())) for choice in choices]


@every_pair({"name, form": [("dense", "words"), ("csr", "pairs"), ("dense", "pairs")], "threads": [1, 2]},
            possible=lambda given: given["name, form"] != ("csr", "pairs") or given["threads"] == 1)  # fmt: skip
def test_pytest_takes_them(name: str, form: str, threads: int) -> None:
    assert (name, form, threads) != ("csr", "pairs", 2)
