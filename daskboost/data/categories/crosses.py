"""Differences and products of two numerical columns as further features.

Trees divide rows by one feature at a time. Whether two columns are equal, or which is larger, takes them a staircase of
splits, and a difference of both only one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from daskboost.dtypes import Float32, Float64


class Operation(NamedTuple):
    """What two columns become."""

    sign: str
    compute: Callable[[Float32, Float32], Float32]
    most_columns: int
    """Columns of which each two are crossed so; `docs/defaults.md` has what they bring."""


OPERATIONS: Mapping[str, Operation] = {
    "difference": Operation("-", np.subtract, 8), "product": Operation("*", np.multiply, 5),
}  # fmt: skip


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
    operation: str

    def name(self, labels: tuple[str, str]) -> str:
        """Return what the feature is called, by the names of its columns."""
        return f" {OPERATIONS[self.operation].sign} ".join(labels)

    def values(self, first: Float32, second: Float32) -> Float32:
        """Return the feature of some rows; NaN where either column is missing, or the result is beyond float32."""
        with np.errstate(over="ignore"):
            found = OPERATIONS[self.operation].compute(first, second)
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
    """Return crosses of the numerical columns that gain most (`Operation.most_columns`); of equal ones the first.

    Parameters
    ----------
    gains : float64 array, shape (columns,)
        What splits of each column have gained; columns that no split uses are crossed with none.
    numerical : sequence of int
        The numerical columns.
    """
    ranked = sorted((column for column in numerical if gains[column] > 0), key=lambda column: -gains[column])
    return tuple(
        Cross(pair, name) for name, operation in OPERATIONS.items()
        for pair in combinations(sorted(ranked[: operation.most_columns]), 2)
    )  # fmt: skip
