"""Differences and products of two numerical columns as further features.

Trees divide rows by one feature at a time. Whether two columns are equal, or which is larger, takes them a staircase of
splits, and a difference of both only one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, get_args

import numpy as np

from daskboost.dtypes import Float32, Float64

Operation = Literal["difference", "product"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
SIGNS: Mapping[Operation, str] = {"difference": "-", "product": "*"}
MOST_COLUMNS: Mapping[Operation, int] = {"difference": 8, "product": 5}
"""Columns of which each two are crossed: 28 differences and 10 products; `docs/defaults.md` has what they bring."""


@dataclass(frozen=True)
class Cross:
    """A feature made of two numerical columns.

    Parameters
    ----------
    columns : tuple of int
        Their numbers, increasing.
    operation : {"difference", "product"}
        The first one less the second, or both multiplied.
    """

    columns: tuple[int, int]
    operation: Operation

    def name(self, labels: tuple[str, str]) -> str:
        """Return what the feature is called, by the names of its columns."""
        return f" {SIGNS[self.operation]} ".join(labels)

    def values(self, first: Float32, second: Float32) -> Float32:
        """Return the feature of some rows; NaN where either column is missing, or the result is beyond float32."""
        with np.errstate(over="ignore"):
            found = first - second if self.operation == "difference" else first * second
        found[~np.isfinite(found)] = np.nan
        return found

    def to_json(self) -> list[Any]:
        """Return plain values, of which `from_json` makes the same."""
        return [*self.columns, self.operation]

    @classmethod
    def from_json(cls, values: Sequence[Any], numerical: Sequence[bool]) -> Cross:
        """Return the feature that gave these values, of columns of which these are numerical; TypeError or ValueError
        where they are none."""
        first, second, operation = values
        columns = (int(first), int(second))
        if not 0 <= columns[0] < columns[1] < len(numerical) or not all(numerical[column] for column in columns):
            raise ValueError(f"columns {first!r} and {second!r} cannot be crossed")
        if operation not in OPERATIONS:
            raise ValueError(f"columns are crossed by {operation!r}, which is none of {', '.join(OPERATIONS)}")
        return cls(columns, operation)


def crosses_of(gains: Float64, numerical: Sequence[int]) -> tuple[Cross, ...]:
    """Return crosses of the numerical columns that gain most (`MOST_COLUMNS`); of equal ones the first.

    Parameters
    ----------
    gains : float64 array, shape (columns,)
        What splits of each column have gained; columns that no split uses are crossed with none.
    numerical : sequence of int
        The numerical columns.
    """
    ranked = sorted((column for column in numerical if gains[column] > 0), key=lambda column: -gains[column])
    return tuple(
        Cross(pair, operation) for operation, most in MOST_COLUMNS.items()
        for pair in combinations(sorted(ranked[:most]), 2)
    )  # fmt: skip
