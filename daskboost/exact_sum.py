"""Exact sums of float64 values: the same result whatever the order, the partitioning or the number of threads.

Every finite float64 is an integer multiple of 2**-1074, so a sum is kept as that integer and rounded once, at the
end. Adding float64 values one by one, or partition by partition, would instead let the order of arrival decide the
last bits of a metric or a base score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from daskboost.dtypes import Array, Float64, UInt8
from daskboost.errors import DataError

_UNIT_BITS = 1074  # the smallest positive float64 is 2**-1074
_POSITIVE_INFINITY, _NEGATIVE_INFINITY, _NAN = 1, 2, 4
_BLOCK = 1 << 30  # values per kernel call: its int64 limbs hold 2**36 values
_WHOLE_BLOCK = 1 << 18  # values that are looked at together, by threads that would wait for one another between fewer
_ADDED = 1 << 14  # of which so many are added up as float64
_LARGEST_WHOLE = 2.0**38  # so that sums of that many are below 2**53


@dataclass(frozen=True)
class ExactSum:
    """The exact sum of a multiset of float64 values.

    Parameters
    ----------
    units : int, default 0
        The sum of the finite values in units of 2**-1074.
    specials : int, default 0
        What else was seen: the sum of 1 (positive infinity), 2 (negative infinity) and 4 (NaN).

    Notes
    -----
    The limbs per exponent follow the "large superaccumulator" of Neal, Fast exact summation using small and large
    superaccumulators (2015).
    """

    units: int = 0
    specials: int = 0

    @classmethod
    def of(cls, values: npt.ArrayLike) -> ExactSum:
        """Sum an array.

        Parameters
        ----------
        values : array of floats or integers, any shape
            Converted to float64 first, so integers beyond 2**53 are rounded.
        """
        given = np.asarray(values).ravel()
        whole = _whole_sum(given)
        if whole is not None:
            return cls(whole << _UNIT_BITS)
        total, flat = cls(), np.ascontiguousarray(given, dtype=np.float64)
        for start in range(0, len(flat), _BLOCK):
            total += cls._of_block(flat[start : start + _BLOCK])
        return total

    @classmethod
    def _of_block(cls, values: Float64) -> ExactSum:
        from daskboost.devices.cpu.arithmetic import EXPONENTS, LOW_BITS, add_to_limbs

        limbs = np.zeros((EXPONENTS, 2), dtype=np.int64)
        specials = int(add_to_limbs(values, limbs))
        units = 0
        for exponent in np.flatnonzero(limbs[:, 0] | limbs[:, 1]).tolist():
            high, low = limbs[exponent].tolist()
            units += ((high << LOW_BITS) + low) << max(exponent - 1, 0)
        return cls(units, specials)

    def __add__(self, other: ExactSum) -> ExactSum:
        return ExactSum(self.units + other.units, self.specials | other.specials)

    def value(self) -> float:
        """The sum, correctly rounded.

        Returns
        -------
        float
            Equal to ``math.fsum`` of the values; 0.0 of none. NaN if any value was NaN or if both infinities were
            seen, the infinity if one was, and an infinity if the sum exceeds the largest float64.
        """
        return self._special_value() if self.specials else _rounded(self.units, 1 << _UNIT_BITS)

    def ratio(self, other: ExactSum) -> float:
        """This sum divided by another, rounded once: a weighted mean without an intermediate rounding.

        Parameters
        ----------
        other : ExactSum
            The denominator. Where it is zero the ratio is NaN.
        """
        if self.specials or other.specials:
            numerator, denominator = self.value(), other.value()
            return math.nan if denominator == 0 else numerator / denominator
        return math.nan if other.units == 0 else _rounded(self.units, other.units)

    def _special_value(self) -> float:
        if self.specials == _POSITIVE_INFINITY:
            return math.inf
        return -math.inf if self.specials == _NEGATIVE_INFINITY else math.nan

    def to_array(self) -> UInt8:
        """The sum for the wire: uint8, the specials followed by the units in two's complement, low byte first."""
        length = self.units.bit_length() // 8 + 1
        body = self.units.to_bytes(length, "little", signed=True)
        return np.frombuffer(bytes([self.specials]) + body, dtype=np.uint8)

    @classmethod
    def from_array(cls, array: UInt8) -> ExactSum:
        """The inverse of :meth:`to_array`.

        Raises
        ------
        DataError
            If the array is not one that :meth:`to_array` made.
        """
        raw = bytes(array)
        if array.dtype != np.uint8 or len(raw) < 2 or raw[0] > 7:
            raise DataError(f"array: {array!r} is not an exact sum; pass what ExactSum.to_array returned")
        return cls(int.from_bytes(raw[1:], "little", signed=True), raw[0])


def stacked(sums: Sequence[ExactSum]) -> UInt8:
    """Return sums that are not negative as rows of one array, which `ExactSum.from_array` reads one by one.

    Returns
    -------
    uint8 array, shape (sums, bytes of the longest)
    """
    arrays = [each.to_array() for each in sums]
    found = np.zeros((len(arrays), max(map(len, arrays))), np.uint8)  # zeros behind a positive integer's bytes
    for row, array in zip(found, arrays, strict=True):
        row[: len(array)] = array
    return found


def _whole_sum(values: Array) -> int | None:
    """Return the sum of whole numbers, such as classes and counts, which float64 adds without rounding in any order;
    None where there are others. No kernel is compiled for them, which most fits on a GPU have no other need of."""
    total = 0
    if len(values) and float(values[0]) % 1 != 0:  # most other arrays begin with one
        return None
    for start in range(0, len(values), _WHOLE_BLOCK):
        block = np.asarray(values[start : start + _WHOLE_BLOCK], np.float64)
        if not (np.abs(block) <= _LARGEST_WHOLE).all() or (block != np.rint(block)).any():
            return None
        total += sum(map(int, np.add.reduceat(block, np.arange(0, len(block), _ADDED))))
    return total


def _rounded(numerator: int, denominator: int) -> float:
    """The quotient of two integers, correctly rounded (Python's division is), infinite where float64 ends."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf if (numerator < 0) == (denominator < 0) else -math.inf
