"""Which of a test's cases run: all, or each value of each parameter at least once."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence

Case = tuple[str, Mapping[str, object]]
"""A case's name, and the values of its test's parameters."""


def each_value(cases: Sequence[Case]) -> set[str]:
    """Return the names of cases of one test in which each value of each parameter comes at least once.

    Cases are looked at in the order of a hash of their names, so that values meet as if by chance, and always the same
    ones; a case is left out where others have all its values. Values are the same if they are one object, or equal
    numbers, texts or the like.
    """
    seen = set[tuple[str, object]]()
    kept = set[str]()
    for name, parameters in sorted(cases, key=lambda case: zlib.crc32(case[0].encode())):
        values = {(parameter, _identity(value)) for parameter, value in parameters.items()}
        if not kept or not values <= seen:
            seen |= values
            kept.add(name)
    return kept


def kept_cases(tests: Iterable[tuple[str, Case]]) -> set[str]:
    """Return the names of the cases that `each_value` keeps of each test; `tests` : the test of each case."""
    cases: dict[str, list[Case]] = {}
    for test, case in tests:
        cases.setdefault(test, []).append(case)
    return {name for of_test in cases.values() for name in each_value(of_test)}


def _identity(value: object) -> object:
    return (type(value), value) if isinstance(value, (bool, int, float, str, type(None))) else id(value)
