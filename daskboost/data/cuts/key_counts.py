"""Key counts: a bounded, mergeable summary of float32 values that depends only on which values there were.

float32 values map to uint32 keys of the same order. A cell at resolution r is the set of keys that share their top r
bits; a summary keeps, per occupied cell, the least and the greatest key seen and integer counts, at the largest
resolution at which the occupied cells number at most the capacity. The occupied cells of a union are at least those
of its parts, at every resolution, so the union's resolution is at most theirs, and coarsening adds counts exactly:
merging parts in any order gives, bit for bit, the summary of the whole. Common mergeable quantile summaries
(Greenwald and Khanna, Space-efficient online computation of quantile summaries, 2001; KLL) lack that property, and
models made from them depend on the partitioning.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from daskboost.dtypes import Float32, Int64, UInt8, UInt32, for_kernels, in_columns
from daskboost.errors import DataError

if TYPE_CHECKING:
    from daskboost.devices.cpu.sketch import CellTable

KEY_BITS = 32
CELL_BYTES = 16
"""Memory per cell with one count: two keys and an int64."""

LEAST_MERGED_CELLS = 1 << 17
"""Least cells that a thread is worth: it merges them in a millisecond."""

_SIGN = np.uint32(1 << 31)
_TYPES = {"capacities": "int64", "bits": "uint8", "offsets": "int64", "lower": "uint32", "upper": "uint32"}


def keys_of(values: Float32) -> UInt32:
    """Order-preserving keys of float32 values; both zeros get one key."""
    words = (np.asarray(values, dtype=np.float32) + np.float32(0)).view(np.uint32)  # -0.0 + 0.0 is +0.0
    return np.where(words >= _SIGN, ~words, words | _SIGN)


def values_of(keys: UInt32) -> Float32:
    """The float32 values of keys."""
    return np.where(keys >= _SIGN, keys & ~_SIGN, ~keys).astype(np.uint32).view(np.float32)


@dataclass(frozen=True, eq=False)
class KeyTable:
    """Key counts of several series side by side.

    Parameters
    ----------
    capacities : int64 array, shape (series,)
        The most cells each series may occupy.
    bits : uint8 array, shape (series,)
        Resolution of each series; at 32 every cell is one value.
    offsets : int64 array, shape (series + 1,)
        Series `s` owns cells `offsets[s]:offsets[s + 1]`, in increasing order.
    lower, upper : uint32 arrays, shape (cells,)
        The least and the greatest key seen in each cell.
    counts : int64 array, shape (cells, columns)
    """

    capacities: Int64
    bits: UInt8
    offsets: Int64
    lower: UInt32
    upper: UInt32
    counts: Int64

    @classmethod
    def count(cls, keys: UInt32, counts: Int64 | None, starts: Int64, ends: Int64, capacities: Int64) -> KeyTable:
        """Count series `keys[starts[s]:ends[s]]`.

        Parameters
        ----------
        keys : uint32 array, shape (n,), changed
            Left in another order. Series must not overlap.
        counts : int64 array, shape (n, columns), or None for ones
            No row all zero; changed as the keys are.
        starts, ends, capacities : int64 arrays, shape (series,)
        """
        rows = np.empty((0, 1), np.int64) if counts is None else counts
        cells = int(np.minimum(ends - starts, capacities).sum())
        if cells == 0:  # as of fits that are checked before they begin: no kernel is compiled for them
            return cls.empty(capacities, rows.shape[1])
        from daskboost.devices.cpu.sketch import KeyRuns, count_sorted_keys

        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            _sort(keys[start:end], None if counts is None else counts[start:end])
        table = cls._allocate(capacities, cells, rows.shape[1])
        count_sorted_keys(KeyRuns(keys, rows, starts, ends), capacities, table._cells())
        return table._trimmed()

    @classmethod
    def of(cls, values: npt.ArrayLike, counts: npt.ArrayLike | None = None, *, capacity: int) -> KeyTable:
        """Count the values of one series.

        Parameters
        ----------
        values : float32 array, shape (n,)
            Infinities count as values.
        counts : int64 array, shape (n,) or (n, columns), or None for ones
            What each value adds to each column: not negative. A row of zeros leaves no trace.
        capacity : int
            The most cells kept, at least 1; the summary is exact while the distinct values number at most that.

        Raises
        ------
        DataError
            For NaN values, counts that are negative or of another length, and capacities below 1.

        Examples
        --------
        >>> left, right = (KeyTable.of(part, capacity=4) for part in (np.float32([1, 2, 2]), np.float32([3, 1])))
        >>> both = left + right
        >>> values_of(both.lower).tolist(), both.counts[:, 0].tolist()
        ([1.0, 2.0, 3.0], [2, 2, 1])
        """
        floats = np.ascontiguousarray(values, dtype=np.float32)
        if capacity < 1:
            raise DataError(f"capacity: {capacity} is not positive; keep at least one cell")
        if np.isnan(floats).any():
            raise DataError("values: contain NaN, which has no place in an order; leave such rows out")
        keys, columns = keys_of(floats), None
        if counts is not None:
            columns = in_columns(np.array(counts, dtype=np.int64))  # a copy, since counting sorts it
            if len(columns) != len(keys):
                raise DataError(f"counts: {len(columns)} rows for {len(keys)} values; pass one row per value")
            if (columns < 0).any():
                raise DataError(f"counts: the least is {columns.min()}; pass counts that are not negative")
            seen = columns.any(axis=1)
            if not seen.all():
                keys, columns = keys[seen], columns[seen]
        start, end = np.zeros(1, np.int64), np.array([len(keys)], np.int64)
        return cls.count(keys, columns, start, end, np.array([capacity], np.int64))

    @classmethod
    def empty(cls, capacities: Int64, columns: int = 1) -> KeyTable:
        """Series without values: what adds nothing."""
        table = cls._allocate(capacities, 0, columns)
        table.bits[:], table.offsets[:] = KEY_BITS, 0
        return table

    @classmethod
    def _allocate(cls, capacities: Int64, cells: int, columns: int) -> KeyTable:
        """Uninitialised arrays for a kernel to fill."""
        series = len(capacities)
        bits, offsets = np.empty(series, np.uint8), np.empty(series + 1, np.int64)
        lower, upper = np.empty(cells, np.uint32), np.empty(cells, np.uint32)
        return cls(capacities, bits, offsets, lower, upper, np.empty((cells, columns), np.int64))

    def _trimmed(self) -> KeyTable:
        """Only the cells in use; copied where more than a quarter of the memory would stay unused."""
        cells = int(self.offsets[-1])
        lower, upper, counts = self.lower[:cells], self.upper[:cells], self.counts[:cells]
        if 4 * cells <= 3 * len(self.lower):
            lower, upper, counts = lower.copy(), upper.copy(), counts.copy()
        return KeyTable(self.capacities, self.bits, self.offsets, lower, upper, counts)

    def __add__(self, other: KeyTable) -> KeyTable:
        return self.merged(other)

    def merged(self, other: KeyTable, threads: int = 1) -> KeyTable:
        """The sum of both: the same bytes for any number of threads."""
        if not np.array_equal(self.capacities, other.capacities) or self.counts.shape[1] != other.counts.shape[1]:
            raise DataError("other: key counts merge only if they have the same series, capacities and count columns")
        for nothing, whole in ((self, other), (other, self)):
            if not len(nothing.lower) and (nothing.bits >= whole.bits).all():
                return whole
        most = np.minimum(np.diff(self.offsets) + np.diff(other.offsets), self.capacities)
        n_parts = max(1, min(threads, len(most), int(most.sum()) // LEAST_MERGED_CELLS))
        if n_parts == 1:
            return self._merged_series(other, most, 0, len(most))._trimmed()
        ends = np.searchsorted(np.cumsum(most), np.linspace(0, most.sum(), n_parts + 1)[1:-1], side="right")
        edges = [0, *ends.tolist(), len(most)]
        with ThreadPoolExecutor(n_parts) as pool:
            parts = list(pool.map(partial(self._merged_series, other, most), edges[:-1], edges[1:]))
            starts = np.cumsum([0, *(part.offsets[-1] for part in parts)])
            table = self._allocate(self.capacities, int(starts[-1]), self.counts.shape[1])
            table.bits[:] = np.concatenate([part.bits for part in parts])
            offsets = [part.offsets[1:] + start for part, start in zip(parts, starts, strict=False)]
            table.offsets[:] = np.concatenate([[0], *offsets])
            list(pool.map(table._put_cells, parts, starts.tolist()))
        return table

    def _merged_series(self, other: KeyTable, most: Int64, begin: int, end: int) -> KeyTable:
        """Merge some series, with memory for as many cells of each as there may be."""
        from daskboost.devices.cpu.sketch import merge_cells

        own, theirs = (
            each._cells()._replace(bits=each.bits[begin:end], offsets=each.offsets[begin : end + 1])
            for each in (self, other)
        )
        table = self._allocate(self.capacities[begin:end], int(most[begin:end].sum()), self.counts.shape[1])
        longest = int((np.diff(own.offsets) + np.diff(theirs.offsets)).max(initial=0))
        room = self._allocate(table.capacities, longest, self.counts.shape[1])
        merge_cells(table.capacities, own, theirs, table._cells(), room._cells())
        return table

    def _put_cells(self, part: KeyTable, start: int) -> None:
        """The cells of some series, from `start` on."""
        cells = int(part.offsets[-1])
        for name in ("lower", "upper", "counts"):
            getattr(self, name)[start : start + cells] = getattr(part, name)[:cells]

    def _cells(self) -> CellTable:
        """The cells as kernels take them."""
        from daskboost.devices.cpu.sketch import CellTable

        return CellTable(self.bits, self.offsets, self.lower, self.upper, self.counts)

    @classmethod
    def concatenate(cls, tables: list[KeyTable]) -> KeyTable:
        """The series of several tables, one after the other."""
        starts = np.cumsum([0] + [len(table.lower) for table in tables])
        offsets = [table.offsets[:-1] + start for table, start in zip(tables, starts, strict=False)]
        return cls(
            np.concatenate([table.capacities for table in tables]),
            np.concatenate([table.bits for table in tables]),
            np.concatenate([*offsets, starts[-1:]]),
            np.concatenate([table.lower for table in tables]),
            np.concatenate([table.upper for table in tables]),
            np.concatenate([table.counts for table in tables]),
        )

    def part(self, first: int, last: int) -> KeyTable:
        """The series from `first` to `last`, as views."""
        offsets = self.offsets[first : last + 1]
        cells = slice(offsets[0], offsets[-1])
        return KeyTable(
            self.capacities[first:last], self.bits[first:last], offsets - offsets[0], self.lower[cells],
            self.upper[cells], self.counts[cells],
        )  # fmt: skip

    def for_kernels(self) -> KeyTable:
        """The same in arrays as kernels take them, see `dtypes.for_kernels`."""
        return KeyTable(**{name: for_kernels(array) for name, array in self.to_arrays().items()})

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The fields by name, for the wire."""
        return {name: getattr(self, name) for name in (*_TYPES, "counts")}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> KeyTable:
        """The inverse of `to_arrays`; DataError where an array is absent, of another dtype, or does not fit the
        others."""
        for name, dtype in {**_TYPES, "counts": "int64"}.items():
            if name not in arrays or arrays[name].dtype != dtype:
                raise DataError(f"arrays: {name!r} is not an array of {dtype}; pass what to_arrays returned")
        table = cls(**{name: arrays[name] for name in (*_TYPES, "counts")}).for_kernels()
        series, cells = len(table.capacities), len(table.lower)
        fits = (
            table.bits.shape == (series,)
            and table.offsets.shape == (series + 1,)
            and table.upper.shape == (cells,)
            and table.counts.ndim == 2
            and len(table.counts) == cells
            and (table.offsets[0], table.offsets[-1]) == (0, cells)
            and bool((np.diff(table.offsets) >= 0).all())
            and bool((table.bits <= KEY_BITS).all())
        )
        if not fits:
            raise DataError("arrays: their shapes and offsets contradict each other; pass what to_arrays returned")
        return table


def _sort(keys: UInt32, counts: Int64 | None) -> None:
    """Sort keys in place, and the rows of counts along with them."""
    from daskboost.devices.cpu.sketch import pack_places, unpack_places

    if counts is None:
        keys.sort()
        return
    # Places fill the low half of a 64-bit word: a vectorised sort of words beats an argsort of keys.
    words = np.empty(len(keys), np.uint64)
    pack_places(keys, words)
    words.sort()
    unpack_places(words, counts.copy(), keys, counts)
