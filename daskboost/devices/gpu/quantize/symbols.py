"""Symbols of dense rows in a GPU's memory, laid out as training views read them: quantizing writes that at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daskboost.devices.gpu.rows.feature_groups import (
    MOST_COLUMNS,
    FeatureGroups,
    feature_groups,
    room_bytes,
    skewed_shape,
)
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, element_stride
from daskboost.dtypes import Int64

# Packed symbols become machine integers: launches of `kernels/unpack.cu`, as `devices/cpu/quantize.py` does it.

THREADS = 256
"""Threads of a block, as in `kernels/unpack.cu`, `turn.cu`, `by_feature.cu` and `take_rows.cu`."""
TILE_SYMBOLS = 16 * THREADS
"""About so many symbols are a block's work: enough to spread the cost of starting it."""


def unpack_rows(runtime: Runtime, words: DeviceArray, offsets: DeviceArray, stride_bytes: int,
                symbols: DeviceArray) -> None:  # fmt: skip
    """Unpack rows of fixed stride into `symbols`, uint8 or uint16, shape (rows, features), C-contiguous.

    `words` : uint32, with a guard word behind the last symbol. `offsets` : uint32, shape (features + 1,), first bit of
    each feature's symbol within a row, and the end.
    """
    n_rows, n_features = symbols.shape
    if symbols.size == 0:
        return
    tile_rows = max(1, TILE_SYMBOLS // n_features)
    runtime.kernel("unpack", "unpack_rows", SYMBOL_BYTES=symbols.itemsize)(
        -(-n_rows // tile_rows), THREADS, words, offsets, n_features, stride_bytes, n_rows, tile_rows, symbols
    )


def unpack_stream(runtime: Runtime, words: DeviceArray, width: int, bins: DeviceArray) -> None:
    """Unpack one stream of symbols of `width` bits, 1 to 32, into `bins`, uint32.

    `words` : uint32, with a guard word behind the last symbol.
    """
    if bins.size == 0:
        return
    blocks = -(-bins.size // TILE_SYMBOLS)
    runtime.kernel("unpack", "unpack_stream", SYMBOL_BYTES=1)(blocks, THREADS, words, width, bins.size, bins)


BLOCKS = 8
"""Blocks of a multiprocessor at the same time."""
TILE_ROWS = 32
"""A warp's."""
LEAST_ROWS = 1 << 20
"""With fewer, passes take as long to begin and to end as to read rows."""


def turned_columns(n_features: int, symbol_bytes: int, most_slots: int, shared_bytes: int | None) -> int:
    """Columns of the copy; 0 where there is none: of rows that leave few columns idle, or most, or one of whose
    features has so many slots that a block has no room for the kernel that reads the copy."""
    most_idle = MOST_COLUMNS // 2
    if symbol_bytes != 1 or n_features <= most_idle:
        return 0
    found = skewed_shape(n_features, most_slots, room_bytes(shared_bytes))
    return 0 if found is None else found[0]


def turned_bytes(n_rows: int, n_features: int, symbol_bytes: int, most_slots: int, shared_bytes: int | None) -> int:
    """Return the bytes of the copy, where it pays."""
    if n_rows < LEAST_ROWS:
        return 0
    return -(-n_rows // TILE_ROWS) * TILE_ROWS * turned_columns(n_features, symbol_bytes, most_slots, shared_bytes)


def turn(runtime: Runtime, planes: DeviceArray, columns: int) -> DeviceArray:
    """The copy of rows of MOST_COLUMNS symbols, of which `columns` are features' or zero.

    `planes` : uint8, shape (planes, rows, MOST_COLUMNS). Returns uint8, shape (planes, bytes of a plane).
    """
    n_planes, n_rows, _ = planes.shape
    tiles, words = -(-n_rows // TILE_ROWS), columns // 4
    turned = runtime.xp.empty((n_planes, tiles, words, TILE_ROWS), np.uint32)
    blocks = max(1, min(-(-tiles * TILE_ROWS // THREADS), runtime.multiprocessors * BLOCKS))
    for rows, copy in zip(planes, turned, strict=True):
        runtime.kernel("turn", "turn_rows")(blocks, THREADS, rows.view(np.uint32), n_rows, words, copy)
    return turned.view(np.uint8).reshape(n_planes, -1)


WORD_BYTES = (16, 4, 2)
"""Widths of words that `kernels/take_rows.cu` is compiled for, the widest first; rows of a plane have powers of two of
bytes."""


@dataclass(frozen=True, eq=False)
class SymbolPlaces:
    """Where symbols lie in a flat array, for any number of rows: planes of the widest feature groups first, so that all
    are aligned to their own rows."""

    groups: Sequence[FeatureGroups]
    n_features: int
    dtype: np.dtype[Any]
    """uint8 or uint16: that of the features that need most."""
    mixes: bool = False
    """Whether other features take one byte all the same, so that places are counted in bytes."""

    @classmethod
    def of_slots(cls, slots: Int64, dtype: np.dtype[Any], shared_bytes: int, most_idle: int = 0, *, mixes: bool = False
                 ) -> SymbolPlaces:  # fmt: skip
        """Return those of features with so many histogram slots each, on a device whose blocks have so much shared
        memory; `most_idle`, `mixes` : see `feature_groups`. Where all features need as many bytes, nothing is mixed."""
        groups = feature_groups(slots, dtype.itemsize, shared_bytes, most_idle, mixes=mixes)
        is_mixed = len({each.symbol_bytes for each in groups}) > 1
        if mixes and not is_mixed:
            groups = feature_groups(slots, dtype.itemsize, shared_bytes, most_idle)
        return cls(groups, len(slots), dtype, is_mixed)

    @property
    def flat_dtype(self) -> np.dtype[Any]:
        """What the flat array is of."""
        return np.dtype(np.uint8) if self.mixes else self.dtype

    def row_size(self, group: FeatureGroups) -> int:
        """Return a group's places of a row in the flat array."""
        return group.row_bytes if self.mixes else group.columns

    def agrees(self, other: SymbolPlaces) -> bool:
        """Whether symbols lie at the same places."""
        mine, others = ([(each.columns, each.groups.tolist()) for each in places.groups] for places in (self, other))
        return (self.dtype, self.mixes) == (other.dtype, other.mixes) and mine == others

    @property
    def columns(self) -> int:
        """Places of a row, padding included."""
        return sum(each.n_planes * self.row_size(each) for each in self.groups)

    def of(self, n_rows: int) -> Int64:
        """Place of each feature's first symbol, and the step from row to row; int64, shape (features, 2)."""
        places, start = np.empty((self.n_features, 2), np.int64), 0
        for each in self.groups:
            row, step = self.row_size(each), self.row_size(each) // each.columns
            for plane, first, n, _, _ in each.groups.tolist():
                places[first : first + n, 0] = start + plane * n_rows * row + step * np.arange(n)
                places[first : first + n, 1] = row
            start += each.n_planes * n_rows * row
        return places

    def size(self, n_rows: int) -> int:
        """Places of so many rows, padding included."""
        return n_rows * self.columns


@dataclass(frozen=True, eq=False)
class DeviceSymbols:
    """Symbols of some rows; zeros in between."""

    runtime: Runtime
    places: SymbolPlaces
    n_rows: int
    flat: DeviceArray

    @classmethod
    def empty(cls, runtime: Runtime, places: SymbolPlaces, n_rows: int) -> DeviceSymbols:
        """Room for so many rows."""
        return cls(runtime, places, n_rows, runtime.xp.zeros(places.size(n_rows), places.flat_dtype))

    @property
    def planes(self) -> list[DeviceArray]:
        """Return the planes of each kind of groups; shape (planes, rows, columns)."""
        found, start = [], 0
        for each in self.places.groups:
            end = start + each.n_planes * self.n_rows * self.places.row_size(each)
            own = self.flat[start:end].view(np.dtype(f"u{each.symbol_bytes}"))
            found.append(own.reshape(each.n_planes, self.n_rows, each.columns))
            start = end
        return found

    def blocks(self) -> Iterator[tuple[slice, DeviceArray]]:
        """Neighbouring features, and their symbols; shape (rows, features)."""
        for each, planes in zip(self.places.groups, self.planes, strict=True):
            for plane, first, n, low, _ in each.groups.tolist():
                if low == 0:  # further groups of the same features have other bins
                    yield slice(first, first + n), planes[plane, :, :n]

    def put(self, begin: int, symbols: DeviceArray) -> None:
        """Take a matrix of rows, shape (rows, features), from row `begin` on."""
        for features, block in self.blocks():
            block[begin : begin + len(symbols)] = symbols[:, features]

    def take(self, begin: int, planes: Sequence[DeviceArray], rows: DeviceArray) -> None:
        """Enqueue: from row `begin` on, rows become those of `planes`, as `planes` of other symbols has them; `rows` :
        uint32."""
        runtime = self.runtime
        for own, to in zip(planes if len(rows) else [], self.planes, strict=False):
            n_planes, from_rows, columns = own.shape
            row_bytes = columns * own.itemsize
            word_bytes = next(size for size in WORD_BYTES if row_bytes % size == 0)
            shift = (row_bytes // word_bytes).bit_length() - 1
            blocks = min(-(-(len(rows) << shift) // THREADS), BLOCKS * runtime.multiprocessors)
            runtime.kernel("take_rows", "take_rows", WORD_BYTES=word_bytes)(
                blocks, THREADS, own.view(np.uint8), from_rows, rows, len(rows), n_planes, shift, to.view(np.uint8),
                self.n_rows, begin,
            )  # fmt: skip

    def in_order(self, rows: DeviceArray) -> DeviceSymbols:
        """Enqueue: return symbols whose rows are these ones of all, each once; uint32."""
        flat = self.runtime.xp.empty(self.places.size(self.n_rows), self.places.flat_dtype)
        found = DeviceSymbols(self.runtime, self.places, self.n_rows, flat)
        found.take(0, self.planes, rows)
        return found

    def rows(self, begin: int, end: int) -> DeviceArray:
        """A copy of some rows, as a matrix of shape (rows, features)."""
        found = self.runtime.xp.empty((end - begin, self.places.n_features), self.places.dtype)
        for features, block in self.blocks():
            found[:, features] = block[begin:end]
        return found

    def columns(self, first: int, last: int) -> DeviceArray:
        """A copy of some features of all rows, as a matrix of shape (rows, features)."""
        found = self.runtime.xp.empty((self.n_rows, last - first), self.places.dtype)
        for own, block in self._blocks_of(first, last):
            found[:, own] = block
        return found

    def put_columns(self, first: int, symbols: DeviceArray, begin: int = 0) -> None:
        """Take a matrix of all rows, or of those from `begin` on, shape (rows, features), as the features from `first`
        on."""
        for own, block in self._blocks_of(first, first + symbols.shape[1]):
            block[begin : begin + len(symbols)] = symbols[:, own]

    def _blocks_of(self, first: int, last: int) -> Iterator[tuple[slice, DeviceArray]]:
        """Give the `blocks` of some features, whose numbers count from the first of these on."""
        for features, block in self.blocks():
            begin, end = max(first, features.start), min(last, features.stop)
            if begin < end:
                yield slice(begin - first, end - first), block[:, begin - features.start : end - features.start]

    def by_feature(self) -> DeviceArray:
        """A copy of all rows, shape (features, rows)."""
        runtime, dtype = self.runtime, self.places.dtype
        found = runtime.xp.empty((self.places.n_features, self.n_rows), dtype)
        blocks = max(1, min(-(-self.n_rows // THREADS), BLOCKS * runtime.multiprocessors))
        for features, block in self.blocks():
            kernel = runtime.kernel(
                "by_feature", "copy_columns", SYMBOL_BYTES=block.itemsize, WIDENS=int(block.dtype != dtype)
            )
            kernel(blocks, THREADS, block, self.n_rows, element_stride(block), block.shape[1], found[features])
        return found
