"""Quantizing kernels: a value's bin is the number of its feature's cut points that are <= the value.

The search is a branchless binary search in a feature's table, see `SearchTables`: a NaN value, which compares false as
padding does, is never counted.
"""

from __future__ import annotations

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.devices.search_tables import SearchTables
from daskboost.dtypes import Csr, Float32, Int32, Int64, Symbols, UInt8, UInt32

# Bit packing kernels: the symbols of a chunk as a little-endian bit stream, and back.
#
# Symbol `i` of a stream of `b`-bit symbols owns the bits `[i * b, (i + 1) * b)`; bit `k` is bit `k % 8` of byte `k //
# 8`. The kernels work on bytes, because rows of dense chunks start at bytes: threads that pack neighbouring rows then
# never write to the same byte.
#
# What all four kernels share is inlined by numba before types are known: as a call, reading took twice as long.

@njit(cache=True, nogil=True, inline="always")
def _write(out: UInt8, position: int, pending: int, n_pending: int) -> tuple[int, int, int]:
    """Move whole bytes of the pending bits to `out`; position, pending bits and their number afterwards."""
    while n_pending >= 8:
        out[position] = pending & 255
        position += 1
        pending >>= 8
        n_pending -= 8
    return position, pending, n_pending


@njit(cache=True, nogil=True, inline="always")
def _read(packed: UInt8, position: int, pending: int, n_pending: int, width: int) -> tuple[int, int, int]:
    """Take bytes from `packed` until `width` bits are pending; position, pending bits and their number afterwards."""
    while n_pending < width:
        pending |= int(packed[position]) << n_pending
        position += 1
        n_pending += 8
    return position, pending, n_pending


@njit(cache=True, nogil=True)
def pack_rows(symbols: Symbols, bits: UInt8, stride: int, start: int, stop: int, out: UInt8) -> None:
    """Pack rows `start..stop` of a (rows, features) matrix, each row from its own byte `row * stride` on."""
    for row in range(start, stop):
        position = row * stride
        pending = 0
        n_pending = 0
        for feature in range(symbols.shape[1]):
            pending |= int(symbols[row, feature]) << n_pending
            position, pending, n_pending = _write(out, position, pending, n_pending + int(bits[feature]))
        if n_pending > 0:
            out[position] = pending


@njit(cache=True, nogil=True)
def unpack_rows(packed: UInt8, bits: UInt8, stride: int, start: int, stop: int, out: Symbols) -> None:
    """Undo `pack_rows`."""
    for row in range(start, stop):
        position = row * stride
        pending = 0
        n_pending = 0
        for feature in range(out.shape[1]):
            width = int(bits[feature])
            position, pending, n_pending = _read(packed, position, pending, n_pending, width)
            out[row, feature] = pending & ((1 << width) - 1)
            pending >>= width
            n_pending -= width


@njit(cache=True, nogil=True)
def pack_stream(symbols: UInt32, width: int, start: int, stop: int, out: UInt8) -> None:
    """Pack symbols `start..stop` of one stream; `start` is a multiple of 8, where a symbol starts a byte."""
    position = start * width // 8
    pending = 0
    n_pending = 0
    for i in range(start, stop):
        pending |= int(symbols[i]) << n_pending
        position, pending, n_pending = _write(out, position, pending, n_pending + width)
    if n_pending > 0:
        out[position] = pending


@njit(cache=True, nogil=True)
def unpack_stream(packed: UInt8, width: int, start: int, stop: int, out: UInt32) -> None:
    """Undo `pack_stream`; `start` is a multiple of 8."""
    position = start * width // 8
    pending = 0
    n_pending = 0
    mask = (1 << width) - 1
    for i in range(start, stop):
        position, pending, n_pending = _read(packed, position, pending, n_pending, width)
        out[i] = pending & mask
        pending >>= width
        n_pending -= width


BLOCK_ROWS = 128  # values of one feature searched together: independent chains of loads hide their latency


@njit(cache=True, nogil=True)
def _bin_of(value: np.float32, cuts: Float32, first: int, depth: int) -> int:
    found = 0
    step = (1 << depth) >> 1
    while step > 0:
        found += step * (cuts[first + found + step - 1] <= value)
        step >>= 1
    return found


@njit(cache=True, nogil=True)
def _bins_of(values: Float32, table: Float32, depth: int, out: Int32) -> None:
    found = out[: len(values)]
    found[:] = 0
    step = np.int32((1 << depth) >> 1)
    while step > 0:
        for i in range(len(values)):
            found[i] += step if table[found[i] + step - 1] <= values[i] else np.int32(0)
        step >>= 1


@njit(cache=True, nogil=True)
def quantize_dense(values: Float32, search: SearchTables, start: int, stop: int, out: Symbols) -> int:
    """Symbols of rows `start..stop` of a (rows, features) matrix; NaN becomes the feature's symbol for missing values.

    Returns a feature that has a NaN though it has no symbol for it, or -1.
    """
    cuts, offsets, depths, missing = search.cuts, search.offsets, search.depths, search.symbols
    block = np.empty(BLOCK_ROWS, np.float32)
    bins = np.empty(BLOCK_ROWS, np.int32)
    unrepresentable = -1
    for first_row in range(start, stop, BLOCK_ROWS):
        n = min(BLOCK_ROWS, stop - first_row)
        for feature in range(values.shape[1]):
            any_missing = False
            for i in range(n):
                block[i] = values[first_row + i, feature]
                any_missing |= block[i] != block[i]
            table = cuts[offsets[feature] : offsets[feature + 1]]
            _bins_of(block[:n], table, depths[feature], bins)
            if any_missing:
                if missing[feature] < 0:
                    unrepresentable = feature
                for i in range(n):
                    if block[i] != block[i]:
                        bins[i] = missing[feature]
            for i in range(n):
                out[first_row + i, feature] = bins[i]
    return unrepresentable


@njit(cache=True, nogil=True)
def scatter_sparse(entries: Csr, search: SearchTables, start: int, stop: int, out: Symbols) -> int:
    """Symbols of CSR rows `start..stop` as a matrix; absent entries become the feature's symbol for missing values.

    Returns a feature that is absent from some row though it has no symbol for that, or -1.
    """
    indptr, indices, values = entries.indptr, entries.indices, entries.values
    cuts, offsets, depths, missing = search.cuts, search.offsets, search.depths, search.symbols
    n_present = np.zeros(len(missing), np.int64)
    for row in range(start, stop):
        for feature in range(len(missing)):
            out[row, feature] = max(missing[feature], 0)
        for entry in range(indptr[row], indptr[row + 1]):
            feature = indices[entry]
            out[row, feature] = _bin_of(values[entry], cuts, offsets[feature], depths[feature])
            n_present[feature] += 1
    for feature in range(len(missing)):
        if missing[feature] < 0 and n_present[feature] < stop - start:
            return feature
    return -1


@njit(cache=True, nogil=True)
def quantize_entries(entries: Csr, search: SearchTables, start: int, stop: int, out: UInt32) -> None:
    """Global bins of the CSR entries `start..stop`."""
    indices, values = entries.indices, entries.values
    cuts, offsets, depths, bin_offsets = search.cuts, search.offsets, search.depths, search.symbols
    for entry in range(start, stop):
        feature = indices[entry]
        out[entry] = bin_offsets[feature] + _bin_of(values[entry], cuts, offsets[feature], depths[feature])


@njit(cache=True, nogil=True)
def count_present(values: Float32, start: int, stop: int, out: Int64) -> None:
    """Number of values that are not NaN in each of the rows `start..stop`."""
    for row in range(start, stop):
        n = 0
        for feature in range(values.shape[1]):
            n += values[row, feature] == values[row, feature]
        out[row] = n


@njit(cache=True, nogil=True)
def compress_dense(values: Float32, search: SearchTables, indptr: Int64, start: int, stop: int, out: UInt32) -> None:
    """Global bins of the values that are not NaN of the matrix rows `start..stop`, in CSR order."""
    cuts, offsets, depths, bin_offsets = search.cuts, search.offsets, search.depths, search.symbols
    block = np.empty(BLOCK_ROWS, np.float32)
    bins = np.empty((values.shape[1], BLOCK_ROWS), np.int32)
    for first_row in range(start, stop, BLOCK_ROWS):
        n = min(BLOCK_ROWS, stop - first_row)
        for feature in range(values.shape[1]):
            for i in range(n):
                block[i] = values[first_row + i, feature]
            table = cuts[offsets[feature] : offsets[feature + 1]]
            _bins_of(block[:n], table, depths[feature], bins[feature])
        for i in range(n):
            entry = indptr[first_row + i]
            for feature in range(values.shape[1]):
                if values[first_row + i, feature] == values[first_row + i, feature]:
                    out[entry] = bin_offsets[feature] + bins[feature, i]
                    entry += 1
