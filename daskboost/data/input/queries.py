"""Query ids of rows, as users give them, become codes of 64 bits; sizes of groups become query ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from daskboost.data.input.blocks import row_slice
from daskboost.data.input.convert import plain_values
from daskboost.dtypes import Int64
from daskboost.errors import DataError, DataTypeError, ParameterError
from daskboost.params import shown

if TYPE_CHECKING:
    from daskboost.data.input.kinds import Vector

LARGEST_BITS = 53
"""Bits of query ids that are floats: from 2**53 on, different whole numbers are the same float64."""
_ONE_KIND = (
    "Ids of queries must all be whole numbers or all be texts: convert them, e.g. with `.astype(str)`."
)


def query_codes(block: Vector) -> Int64:
    """Return the code of each row's query, the same for the same id in any partition; int64, shape (rows,).

    Integers, whole floats and booleans are their own codes, texts are hashed to 64 bits.

    Raises
    ------
    DataError
        Missing ids, integers of more than 64 bits, or floats that are no whole numbers of as many bits as the type
        tells apart: 2**53 of float64, 2**24 of float32.
    DataTypeError
        Ids that are neither numbers nor texts, or a mix of these in one partition.
    """
    values = plain_values(block, "qid")
    if values.dtype.kind in "iub":
        return values.astype(np.int64)
    return _codes_of_floats(values) if values.dtype.kind == "f" else _codes_of_objects(values)


def kind_of_ids(block: object) -> str:
    """Return of which kind the ids of a block of rows are, all of which are of one: "texts" or "numbers"."""
    values = plain_values(row_slice(block, 0, 1), "qid")
    return "texts" if len(values) and isinstance(values[0], str) else "numbers"


def check_kinds_of_ids(kinds: frozenset[str]) -> None:
    """Refuse partitions whose ids are of several kinds, of which codes of the same query differ; DataTypeError."""
    if len(kinds) > 1:
        raise DataTypeError(
            f"qid holds {' in some partitions and '.join(sorted(kinds))} in others. {_ONE_KIND}"
        )


def _codes_of_floats(values: npt.NDArray[Any]) -> Int64:
    missing = int(np.isnan(values).sum())
    if missing:
        raise _missing(missing)
    bits = min(np.finfo(values.dtype).nmant + 1, LARGEST_BITS)  # beyond them whole numbers share a float
    strange = ~((np.abs(values) < 2.0**bits) & (np.rint(values) == values))
    if strange.any():
        raise DataError(
            f"qid has {int(strange.sum())} floats that are no whole numbers below 2**{bits}, e.g. "
            f"{values[strange][0]}. Number the queries by integers, or name them by texts."
        )
    return values.astype(np.int64)


def _codes_of_integers(values: list[int]) -> Int64:
    least, most = min(values, default=0), max(values, default=0)
    if least < -(2**63) or most >= (2**63 if least < 0 else 2**64):
        raise DataError(
            f"qid has integers that do not fit 64 bits, from {least} to {most}. Number the queries anew, or name "
            "them by texts, e.g. with `.astype(str)`."
        )
    return np.array(values, np.int64 if most < 2**63 else np.uint64).astype(np.int64)


def _codes_of_objects(values: npt.NDArray[Any]) -> Int64:
    import pandas as pd

    values = values.astype(object)
    missing = int(np.asarray(pd.isna(values)).sum())
    if missing:
        raise _missing(missing)
    types = sorted({type(value) for value in values}, key=lambda kind: kind.__name__)
    if all(issubclass(kind, str) for kind in types):
        hashes: npt.NDArray[np.uint64] = pd.util.hash_array(values)
        return hashes.view(np.int64)
    if all(issubclass(kind, int | np.integer) for kind in types):
        return _codes_of_integers(values.tolist())
    if all(issubclass(kind, int | float | np.integer | np.floating) for kind in types):
        return _codes_of_floats(values.astype(np.float64))
    raise DataTypeError(
        f"qid holds ids of the types {', '.join(kind.__name__ for kind in types)}. {_ONE_KIND}"
    )


def _missing(count: int) -> DataError:
    return DataError(
        f"qid has {count} missing values; every row must belong to a query. Drop these rows, or give each an id."
    )


def qid_of_groups(group: object, count_rows: Callable[[], int | None]) -> Int64:
    """Return the query of each row where rows of a query follow each other; int64, shape (rows,).

    Parameters
    ----------
    group : sequence of int
        Rows of each query, in the order of the rows.
    count_rows : Callable
        Returns the number of rows in all, or None where only computing would tell.

    Raises
    ------
    ParameterError
        What is no sequence of whole numbers of at least 0; rows whose number is not known.
    DataError
        Sizes that do not sum to the number of rows.
    """
    try:
        sizes = np.asarray(group)
    except ValueError:  # sequences of different lengths
        sizes = np.empty((0, 0))
    if len(sizes.shape) != 1 or not (np.issubdtype(sizes.dtype, np.integer) or not len(sizes)) or (sizes < 0).any():
        raise ParameterError(
            f"group={shown(group)} must be a sequence of the numbers of rows of each query, whole and at least 0; to "
            "name the query of each row use qid"
        )
    n_rows, total = count_rows(), int(sizes.sum())
    if n_rows is None:
        raise ParameterError("group needs rows whose number is known; name the query of each row by qid instead")
    if total != n_rows:
        raise DataError(
            f"group sums to {total} rows, but X has {n_rows}; give the number of rows of every query, in the order of "
            "the rows"
        )
    return np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
