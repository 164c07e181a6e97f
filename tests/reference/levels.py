"""Naive twins of levels: one Python value at a time, in dictionaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from daskboost.hashing import key

Value = str | int | bool
Values = Sequence[Value | None]


def in_bytes(value: Value) -> bytes:
    """The bytes of a level: UTF-8, or 8 bytes."""
    return value.encode() if isinstance(value, str) else int(value).to_bytes(8, "little", signed=True)


def hash_of(data: bytes) -> int:
    """The hash of a level's bytes."""
    words = [int.from_bytes(data[start : start + 8], "little") for start in range(0, len(data), 8)]
    return int(key(len(data), *words))


def level_counts(values: Values) -> dict[Value, int]:
    """Rows of each level, in the order of hashes."""
    counts = Counter(value for value in values if value is not None)
    return {value: counts[value] for value in sorted(counts, key=lambda each: hash_of(in_bytes(each)))}


def kept(values: Values, most: int) -> list[Value]:
    """The most frequent levels, of those with as many rows the ones of lesser hashes; in the order of rows, then of
    values."""
    counts = level_counts(values)
    chosen = sorted(counts, key=lambda value: -counts[value])[:most]  # in the order of hashes before
    return sorted(chosen, key=lambda value: (-counts[value], value))


def codes(levels: Sequence[Value], values: Values) -> list[int]:
    """The place of each value among levels: -1 where it is missing, -2 where it is none of them."""
    return [-1 if value is None else levels.index(value) if value in levels else -2 for value in values]
