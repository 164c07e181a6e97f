"""Tests of which cases of a test `make test` runs."""

from __future__ import annotations

import itertools

from combinations import each_value, kept_cases

OBJECTS = (object(), object(), object())


def test_each_value_comes_and_few_cases_do() -> None:
    sizes, words = range(7), ("one", "two", "three")
    cases = [
        (f"test[{size}-{word}-{place}]", {"size": size, "word": word, "object": OBJECTS[place]})
        for size, word, place in itertools.product(sizes, words, range(len(OBJECTS)))
    ]
    kept = each_value(cases)
    of_kept = [parameters for name, parameters in cases if name in kept]
    assert {each["size"] for each in of_kept} == set(sizes)
    assert {each["word"] for each in of_kept} == set(words)
    assert {each["object"] for each in of_kept} == set(OBJECTS)
    assert 7 <= len(kept) <= 13
    assert each_value(cases[::-1]) == kept


def test_values_of_other_types_are_others() -> None:
    values = (0, False, 0.0, "0", None)
    assert len(each_value([(f"test[{value!r}]", {"value": value}) for value in values])) == len(values)


def test_all_cases_of_one_parameter_are_kept_and_one_of_none() -> None:
    assert each_value([(f"test[{value}]", {"value": value}) for value in range(30)]) == {
        f"test[{value}]" for value in range(30)
    }
    assert each_value([("test", {})]) == {"test"}


def test_tests_are_looked_at_one_by_one() -> None:
    tests = [(test, (f"{test}[{value}]", {"value": value})) for test in ("test_a", "test_b") for value in (1, 2)]
    assert len(kept_cases(tests)) == 4
