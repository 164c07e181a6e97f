"""The private file of one chunk in a store's disk tier; only the process that wrote it reads it.

`magic, first_row, n_rows, words, row pointers or 0, CRC-32 of the arrays | CRC-32 of these | words | indptr`
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

from daskboost.data.array_file import ArrayFile, bytes_of, write_file
from daskboost.data.chunk import QuantizedChunk
from daskboost.data.pack import Layout
from daskboost.dtypes import SYMBOL_WORD, UInt8
from daskboost.errors import StorageError

_MAGIC = b"DBCHUNK1"
_HEADER = struct.Struct("<8sqqqqI")
_CHECKSUM = struct.Struct("<I")


_REMEDY = "make the data set again, with spill_directory on a sound disk where nothing else writes or removes files"


def write_chunk(path: Path, chunk: QuantizedChunk) -> int:
    """Write a chunk's private file: header, words, row pointers; gives the header's checksum, by which it is known."""
    arrays = [bytes_of(array) for array in chunk.arrays]
    lengths = [len(array) for array in chunk.arrays] + [0]
    header = _HEADER.pack(_MAGIC, chunk.first_row, chunk.n_rows, *lengths[:2], _checksum(arrays))
    known = zlib.crc32(header)
    write_file(path, [header, _CHECKSUM.pack(known), *arrays])
    return known


def read_chunk(path: Path, layout: Layout, known: int, into: UInt8 | None = None) -> QuantizedChunk:
    """Read what `write_chunk` wrote, into memory of its own or, words and row pointers one behind the other, `into`.

    Raises
    ------
    StorageError
        The file vanished, is shorter or longer than it was, is another chunk's, or not a byte of it may be trusted.
    """
    try:
        with ArrayFile(path) as file:
            header = file.read("u1", (_HEADER.size,)).tobytes()
            (header_checksum,) = file.read(SYMBOL_WORD, (1,))
            if zlib.crc32(header) != header_checksum:
                raise _damaged(path, "its header does not match its checksum")
            if header_checksum != known:
                raise _damaged(path, "it is another chunk's")
            magic, first_row, n_rows, *lengths, checksum = _HEADER.unpack(header)
            arrays, begin = [], 0
            for length in filter(None, lengths):
                arrays.append(file.read(SYMBOL_WORD, (length,), None if into is None else into[begin:]))
                begin += arrays[-1].nbytes
            complete = file.at_end
    except StorageError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(error.errno, f"could not read a chunk back: {reason}; {_REMEDY}", str(path)) from error
    except EOFError as error:
        raise _damaged(path, f"truncated, {error}") from error
    except ValueError as error:
        raise _damaged(path, f"longer than it was, {error}") from error
    if magic != _MAGIC or _checksum(map(bytes_of, arrays)) != checksum or not complete:
        raise _damaged(path, "its contents do not match their checksum")
    return QuantizedChunk.of(layout, first_row, n_rows, *arrays)


def _checksum(parts: Iterable[memoryview]) -> int:
    return functools.reduce(lambda checksum, part: zlib.crc32(part, checksum), parts, 0)


def _damaged(path: Path, how: str) -> StorageError:
    return StorageError(f"chunk file {path} is damaged: {how}; {_REMEDY}")
