"""Plain arrays in plain files: written once, read by `pread` into fresh memory, each with a CRC-32.

Memory-mapped pages count against a Dask worker's memory limit, buffers that were read and dropped do not. CRC-32
(zlib, about 2 GB/s here) finds every error of up to 32 neighbouring bits, and releases the GIL.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from daskboost.dtypes import Array, UInt8

# Never follow a link planted in a data set, and never wait for a writer on a planted pipe.
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def bytes_of(array: Array) -> memoryview:
    """The bytes of an array in C order, little-endian, without a copy where it has them already."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data


def crc32(array: Array) -> int:
    return zlib.crc32(bytes_of(array))


def write_file(path: Path, parts: Sequence[memoryview | bytes], sync: bool = False) -> None:
    """Write a new file of these parts; OSError where it exists, or the disk is full, and nothing is left of it then."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try:
            for part in parts:
                _write_all(descriptor, memoryview(part))
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _write_all(descriptor: int, rest: memoryview) -> None:
    while len(rest):
        rest = rest[os.write(descriptor, rest) :]


class ArrayFile:
    """An open file to read arrays from, in order; OSError where it is not there, is a link, or cannot be read."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, _READ_FLAGS)
        self._offset = 0
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        self.size = status.st_size

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._descriptor)

    @property
    def at_end(self) -> bool:
        """Whether all of the file has been read."""
        return self._offset == self.size

    def read(self, dtype: npt.DTypeLike, shape: tuple[int, ...], into: UInt8 | None = None) -> Array:
        """The next array, in memory of its own or at the beginning of `into`.

        Raises
        ------
        EOFError
            The file ends before; nothing was allocated if its size says so from the start.
        ValueError
            `into` is too small.
        """
        little = np.dtype(dtype).newbyteorder("<")
        n_bytes = little.itemsize
        for length in shape:
            n_bytes *= length
        if self._offset + n_bytes > self.size:
            raise EOFError(f"{self.size} bytes long, {self._offset + n_bytes} needed")
        if into is not None and n_bytes > len(into):
            raise ValueError(f"{n_bytes} bytes, and room for {len(into)}")
        array = np.empty(shape, little) if into is None else into[:n_bytes].view(little).reshape(shape)
        rest = array.reshape(-1).view(np.uint8).data
        while len(rest):
            n_read = os.preadv(self._descriptor, [rest], self._offset)
            if n_read == 0:
                raise EOFError(f"ends at byte {self._offset}")
            self._offset += n_read
            rest = rest[n_read:]
        return array.astype(dtype, copy=False)
