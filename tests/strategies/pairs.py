"""Few combinations of parameters' values instead of all: those in which any two values meet.

Faults that need three values at once are rare (Kuhn, Wallace and Gallo, "Software Fault Interactions and Implications
for Software Testing", 2004), and all combinations are many: of seven parameters of three values each 2,187, where about
a score has all pairs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from itertools import combinations_with_replacement, groupby, product
from operator import or_
from typing import Any

import pytest

Choice = dict[str, Any]
"""A value of each parameter."""


def pairs_of(
    parameters: Mapping[str, Iterable[Any]], possible: Callable[[Choice], bool] = lambda _: True, together: int = 2
) -> list[Choice]:
    """Combinations in which all values occur, and any two of two parameters that possible ones have together; or any
    `together` of as many.

    Chosen greedily, so they are about as few as there can be, and always the same.
    """
    columns = [list(values) for values in parameters.values()]
    numbers: defaultdict[Any, int] = defaultdict(lambda: len(numbers))
    everything: list[tuple[Choice, int]] = []
    for places in product(*(range(len(column)) for column in columns)):
        choice = {name: column[k] for name, column, k in zip(parameters, columns, places, strict=True)}
        if possible(choice):
            groups = combinations_with_replacement(enumerate(places), together)  # a value with itself: that it occurs
            everything.append((choice, reduce(or_, (1 << numbers[group] for group in groups))))
    missing, found = (1 << len(numbers)) - 1, []
    while missing:
        choice, met = max(everything, key=lambda each: (each[1] & missing).bit_count())
        missing &= ~met
        found.append(choice)
    return found


def every_pair(
    parameters: Mapping[str, Iterable[Any]], possible: Callable[[Choice], bool] = lambda _: True,
    indirect: bool | list[str] = False,
) -> pytest.MarkDecorator:  # fmt: skip
    """`pytest.mark.parametrize` by `pairs_of`. A name may be several ("name, form"), a value may be a `pytest.param`.

    Values of other marks, which are other devices, have combinations of their own: what one device was seen to do with
    two values says nothing of another. `possible` sees values as tests get them, of several names their tuple.
    """
    columns = [_by_marks(name, values) for name, values in parameters.items()]
    chosen = [
        list(choice.values())
        for alike in product(*columns)
        for choice in pairs_of(
            dict(zip(parameters, alike, strict=True)), lambda given: possible({k: _plain(v) for k, v in given.items()})
        )
    ]
    return pytest.mark.parametrize(", ".join(parameters), [_joined(choice) for choice in chosen], indirect=indirect)


def _by_marks(name: str, values: Iterable[Any]) -> list[list[Any]]:
    """As `pytest.param`s; those of the same marks together."""
    as_params = [
        value if hasattr(value, "marks") else pytest.param(*value) if "," in name else pytest.param(value)
        for value in values
    ]

    def marks(param: Any) -> list[str]:
        return sorted(mark.name for mark in param.marks)

    return [list(alike) for _, alike in groupby(sorted(as_params, key=marks), key=marks)]


def _joined(params: list[Any]) -> Any:
    """One `pytest.param` of several."""
    values = [value for param in params for value in param.values]
    marks = [mark for param in params for mark in param.marks]
    return pytest.param(*values, marks=marks, id="-".join(_id(param) for param in params))


def _plain(param: Any) -> Any:
    return param.values[0] if len(param.values) == 1 else param.values


def _id(param: Any) -> str:
    return param.id or "-".join(str(value) for value in param.values)
