"""UBJSON, Draft 12, as far as XGBoost's model files use it: a codec whose typed arrays are NumPy arrays.

A NumPy array is written as an optimised array (`[$type#count` and big-endian bytes), a Python list value by value.
Reading trusts nothing: a declared size is compared with the bytes that are left before anything is allocated, so
memory stays within a small multiple of the file's size, and nesting is limited.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from daskboost.errors import ModelFormatError

MAX_NESTING = 64
"""Model files nest 8 deep."""

_NUMBERS: Final[dict[bytes, np.dtype[Any]]] = {
    b"i": np.dtype(">i1"),
    b"U": np.dtype(">u1"),
    b"I": np.dtype(">i2"),
    b"l": np.dtype(">i4"),
    b"L": np.dtype(">i8"),
    b"d": np.dtype(">f4"),
    b"D": np.dtype(">f8"),
}
_MARKERS: Final = {dtype.newbyteorder("=").str: marker for marker, dtype in _NUMBERS.items()}
_CONSTANTS: Final[dict[bytes, bool | None]] = {b"T": True, b"F": False, b"Z": None}


def encode(value: object) -> bytes:
    """Write a document of dicts (keys in their order), lists, strings, integers, floats and 1-d arrays."""
    parts: list[bytes] = []
    _write(value, parts)
    return b"".join(parts)


def _write(value: object, parts: list[bytes]) -> None:
    match value:
        case np.ndarray():
            parts += (b"[$", _MARKERS[value.dtype.str], b"#", _length(len(value)))
            parts.append(value.astype(value.dtype.newbyteorder(">")).tobytes())
        case dict():
            parts.append(b"{")
            for key, item in value.items():
                _write_text(key, parts)
                _write(item, parts)
            parts.append(b"}")
        case list():
            parts += (b"[#", _length(len(value)))
            for item in value:
                _write(item, parts)
        case str():
            parts.append(b"S")
            _write_text(value, parts)
        case int():
            parts.append(_integer(value))
        case _:
            raise TypeError(f"UBJSON documents of models hold no {type(value).__name__}")


def _write_text(text: str, parts: list[bytes]) -> None:
    encoded = text.encode()
    parts += (_length(len(encoded)), encoded)


def _length(size: int) -> bytes:
    """XGBoost writes every size with 64 bits, and older versions of it read no other."""
    return b"L" + struct.pack(">q", size)


def _integer(value: int) -> bytes:
    """The narrowest signed type, as XGBoost writes integers."""
    for marker, code in ((b"i", ">b"), (b"I", ">h"), (b"l", ">i"), (b"L", ">q")):
        bits = 8 * struct.calcsize(code) - 1
        if -(1 << bits) <= value < 1 << bits:
            return marker + struct.pack(code, value)
    raise OverflowError(f"{value} does not fit in 64 bits")


def decode(data: bytes) -> Any:
    """Read a document; optimised numeric arrays become NumPy arrays in native byte order.

    Raises
    ------
    ModelFormatError
        Truncated or malformed data, sizes beyond the data, nesting beyond `MAX_NESTING`, bytes after the document.
    """
    reader = _Reader(data)
    value = reader.value(reader.take(1), 0)
    if reader.at != len(data):
        raise ModelFormatError(
            f"UBJSON: {len(data) - reader.at} bytes follow the end of the document at byte {reader.at}"
        )
    return value


class _Reader:
    """A position in the bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            raise ModelFormatError(
                f"UBJSON: {size} bytes wanted at byte {self.at} of {len(self.data)}: the file is truncated or corrupt"
            )
        self.at += size
        return self.data[self.at - size : self.at]

    def peek(self) -> bytes:
        return self.data[self.at : self.at + 1]

    def number(self, marker: bytes) -> int | float:
        dtype = _NUMBERS[marker]
        number: int | float = np.frombuffer(self.take(dtype.itemsize), dtype)[0].item()
        return number

    def length(self) -> int:
        marker = self.take(1)
        if marker not in b"iUIlL":
            raise ModelFormatError(f"UBJSON: byte {self.at - 1} is {marker!r}, where the type of a size belongs")
        size = int(self.number(marker))
        # One byte an item is the least, so no list can be longer than what is left.
        if not 0 <= size <= len(self.data) - self.at:
            raise ModelFormatError(
                f"UBJSON: size {size} declared at byte {self.at}, with {len(self.data) - self.at} bytes left"
            )
        return size

    def text(self) -> str:
        try:
            return self.take(self.length()).decode()
        except UnicodeDecodeError as error:
            raise ModelFormatError(f"UBJSON: the text before byte {self.at} is not UTF-8") from error

    def value(self, marker: bytes, nesting: int) -> Any:
        if nesting > MAX_NESTING:
            raise ModelFormatError(f"UBJSON: values nest deeper than {MAX_NESTING} at byte {self.at}")
        if marker in _NUMBERS:
            return self.number(marker)
        if marker in _CONSTANTS:
            return _CONSTANTS[marker]
        match marker:
            case b"S" | b"H":
                return self.text()
            case b"C":
                return self.take(1).decode("latin-1")
            case b"[":
                return self.array(nesting)
            case b"{":
                return self.object(nesting)
            case _:
                raise ModelFormatError(f"UBJSON: byte {self.at - 1} is {marker!r}, which is no type")

    def header(self) -> tuple[bytes | None, int | None]:
        """Type and count of an optimised container, where they are given."""
        kind, count = None, None
        if self.peek() == b"$":
            kind = self.take(2)[1:]
            if self.peek() != b"#":
                raise ModelFormatError(f"UBJSON: the typed container at byte {self.at} has no count")
            if kind in _CONSTANTS:
                # Items without bytes: a few bytes could declare any number of them.
                raise ModelFormatError(
                    f"UBJSON: the container at byte {self.at} is of type {kind!r}, which holds nothing"
                )
        if self.peek() == b"#":
            self.take(1)
            count = self.length()
        return kind, count

    def array(self, nesting: int) -> list[Any] | npt.NDArray[Any]:
        kind, count = self.header()
        if kind in _NUMBERS and count is not None:
            dtype = _NUMBERS[kind]
            return np.frombuffer(self.take(count * dtype.itemsize), dtype).astype(dtype.newbyteorder("="))
        items: list[Any] = []
        while self.more(count, len(items), b"]"):
            items.append(self.value(kind or self.take(1), nesting + 1))
        return items

    def object(self, nesting: int) -> dict[str, Any]:
        kind, count = self.header()
        items: dict[str, Any] = {}
        read = 0
        while self.more(count, read, b"}"):
            key = self.text()
            items[key] = self.value(kind or self.take(1), nesting + 1)
            read += 1
        return items

    def more(self, count: int | None, read: int, end: bytes) -> bool:
        """Whether a container has another item; takes its end mark where no count was given."""
        if count is not None:
            return read < count
        if self.peek() != end:
            return True
        self.take(1)
        return False
