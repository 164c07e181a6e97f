"""Bit packing kernels: the symbols of a chunk as a little-endian bit stream, and back.

Symbol `i` of a stream of `b`-bit symbols owns the bits `[i * b, (i + 1) * b)`; bit `k` is bit `k % 8` of byte
`k // 8`. The kernels work on bytes, because rows of dense chunks start at bytes: threads that pack neighbouring
rows then never write to the same byte.

What all four kernels share is inlined by numba before types are known: as a call, reading took twice as long.
"""

from __future__ import annotations

from daskboost.devices.cpu import njit
from daskboost.dtypes import Symbols, UInt8, UInt32


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
