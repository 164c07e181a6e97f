"""Distinct values of a column as byte strings: one form for texts, integers and booleans.

Texts are their UTF-8, whose order is that of code points; integers and booleans are 8 bytes each. So one set of loops
hashes, compares and finds all of them, and ten million values take their bytes and no Python objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from daskboost import wire
from daskboost.dtypes import Int32, Int64, UInt8, UInt64, read_only

if TYPE_CHECKING:
    import pyarrow as pa

    from daskboost.devices.cpu.byte_strings import HashedStrings

TEXT, INTEGER, BOOLEAN, NOTHING = "text", "integer", "boolean", ""
"""Kinds of values, the last one of columns that have none."""
KINDS = (TEXT, INTEGER, BOOLEAN, NOTHING)
Names = npt.NDArray[np.object_] | Int64


def _as_array(buffer: bytes | pa.Buffer | None) -> UInt8:
    """Return memory as an array that shares it."""
    return np.frombuffer(buffer, np.uint8) if buffer is not None and len(buffer) else np.empty(0, np.uint8)


@wire.register
@dataclass(frozen=True, eq=False)
class LevelValues:
    """Values of one kind.

    Parameters
    ----------
    kind : str
        One of `KINDS`; `NOTHING` where there is no value.
    data : uint8 array
        Their bytes, one value behind the other.
    ends : int64 array, shape (values + 1,)
        Where each value ends, behind a 0.
    """

    kind: str
    data: UInt8
    ends: Int64

    def __post_init__(self) -> None:
        ends = self.ends
        are_flat = len(ends.shape) == len(self.data.shape) == 1
        if not are_flat or len(ends) == 0 or ends[0] != 0 or ends[-1] != len(self.data):
            raise ValueError(f"ends of shape {ends.shape} are not those of {self.data.size} bytes")
        widths = np.diff(ends)
        is_known = self.kind in KINDS and (self.kind == NOTHING) == (len(widths) == 0)
        if not is_known or (widths < 0).any() or (self.kind != TEXT and (widths != 8).any()):
            raise ValueError(f"{len(widths)} values are not of the kind {self.kind!r}, or their ends are not in order")

    @classmethod
    def of_texts(cls, texts: pa.LargeStringArray) -> LevelValues:
        """Return an Arrow array of type large_string without nulls as values; they share its memory where it is no
        slice."""
        if len(texts) == 0:
            return cls.of_names((), TEXT)
        _, ends_buffer, data_buffer = texts.buffers()
        ends = np.frombuffer(ends_buffer, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        return cls(TEXT, _as_array(data_buffer)[ends[0] : ends[-1]], ends - ends[0])

    @classmethod
    def of_integers(cls, integers: Int64, kind: str) -> LevelValues:
        """Return integers, or booleans as 0 and 1, as values that share their memory."""
        data = np.ascontiguousarray(integers, dtype="<i8").view(np.uint8)
        return cls(kind if len(integers) else NOTHING, data, np.arange(len(integers) + 1, dtype=np.int64) * 8)

    @classmethod
    def of_names(cls, names: Sequence[str] | Sequence[int] | Sequence[bool], kind: str) -> LevelValues:
        """Return Python's values of a kind in this form; UnicodeEncodeError for texts that are no Unicode,
        OverflowError for integers beyond 64 bits."""
        if kind in (INTEGER, BOOLEAN):
            return cls.of_integers(np.array(names, dtype=np.int64), kind)
        encoded = [str(name).encode() for name in names]
        ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        return cls(TEXT if encoded else NOTHING, _as_array(b"".join(encoded)), ends)

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __reduce__(self) -> tuple[type[LevelValues], tuple[str, UInt8, Int64]]:
        """Leave out what follows from the values, which would be sent along with them."""
        return LevelValues, (self.kind, self.data, self.ends)

    @property
    def sortable(self) -> pa.Array:
        """Return the values as Arrow's arrays, which order them as users do: texts by code points, integers by size."""
        import pyarrow as pa

        if self.kind in (INTEGER, BOOLEAN):
            return pa.array(self.data.view("<i8"))
        buffers = [None, pa.py_buffer(self.ends), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.large_string(), len(self), buffers)

    @property
    def names(self) -> Names:
        """Return the values as an object array of `str`, or as int64; booleans are 0 and 1."""
        if self.kind in (INTEGER, BOOLEAN):
            return self.data.view("<i8")
        found: npt.NDArray[np.object_] = np.empty(len(self), np.object_)
        found[:] = self.sortable.to_pylist()
        return found

    @property
    def plain(self) -> list[str] | list[int] | list[bool]:
        """Return the values as those of Python, for messages and JSON."""
        values: list[Any] = self.names.tolist()
        return [bool(value) for value in values] if self.kind == BOOLEAN else values

    @property
    def example(self) -> str | int | bool:
        """Return the first value as one of Python, for messages."""
        return self.taken(np.zeros(1, np.int64)).plain[0]

    @cached_property
    def hashed(self) -> HashedStrings:
        """The values with a hash of each, by its bytes alone: the same on every machine."""
        from daskboost.devices.cpu.byte_strings import HashedStrings, hash_strings

        hashes, data, ends = np.empty(len(self), np.uint64), read_only(self.data), read_only(self.ends)
        hash_strings(data, ends, hashes)
        return HashedStrings(data, ends, read_only(hashes))

    @property
    def hashes(self) -> UInt64:
        """Return the hash of each value."""
        return self.hashed.hashes

    @cached_property
    def order(self) -> Int64:
        """The values by hash."""
        return np.argsort(self.hashes, kind="stable")

    @cached_property
    def _by_hash(self) -> HashedStrings:
        """The values with their hashes in increasing order."""
        return self.hashed._replace(hashes=read_only(self.hashes[self.order]))

    def taken(self, places: Int64) -> LevelValues:
        """Return the values at some places, in their order."""
        if self.kind in (INTEGER, BOOLEAN):
            found = LevelValues.of_integers(self.data.view("<i8")[places], self.kind)
        else:
            found = LevelValues.of_texts(self.sortable.take(places))
        return found._hashed_by(self.hashes[places]) if "hashed" in self.__dict__ else found

    def _hashed_by(self, hashes: UInt64) -> LevelValues:
        """Return the same values, whose hashes are known."""
        from daskboost.devices.cpu.byte_strings import HashedStrings

        self.__dict__["hashed"] = HashedStrings(read_only(self.data), read_only(self.ends), read_only(hashes))
        return self

    def merged(self, counts: Int64, other: LevelValues, other_counts: Int64) -> tuple[LevelValues, Int64]:
        """Return the different values of both, which have the same kind if any, and the sums of their counts; all are
        distinct, by hash, then by bytes."""
        from daskboost.devices.cpu.byte_strings import HashedStrings, find_sorted, merge_strings

        places = np.empty(len(other), np.int64)
        n = len(self) + len(other) - find_sorted(self.hashed, other.hashed, places)
        n_bytes = len(self.data) + int(np.diff(other.ends)[places < 0].sum())
        made = HashedStrings(np.empty(n_bytes, np.uint8), np.zeros(n + 1, np.int64), np.empty(n, np.uint64))
        sums = np.empty(n, np.int64)
        merge_strings(self.hashed, read_only(counts), other.hashed, read_only(other_counts), places, made, sums)
        return LevelValues(self.kind or other.kind, made.data, made.ends)._hashed_by(made.hashes), sums

    def places_of(self, wanted: LevelValues, absent: int) -> Int32:
        """Return where each of the wanted values is among these, which are distinct, or `absent`; int32."""
        from daskboost.devices.cpu.byte_strings import find_strings

        places = np.empty(len(wanted), np.int32)
        find_strings(self._by_hash, self.order, wanted.hashed, wanted.order, absent, places)
        return places

    def distinct(self) -> tuple[Int64, Int64]:
        """Return these values by hash and bytes, as places, and where among these each value begins that differs from
        the one before."""
        from daskboost.devices.cpu.byte_strings import mark_first

        order, is_first = self.order.copy(), np.empty(len(self), np.bool_)
        mark_first(self.hashed, order, is_first)
        return order, np.flatnonzero(is_first)
