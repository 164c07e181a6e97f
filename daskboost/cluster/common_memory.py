"""Memory that processes of one host have in common: files in the host's memory, mapped by each of them.

A file's name is random, or follows from a fit's secret token, and only lives until all have opened it. What a process
leaves that is killed in between, others of its user on this host remove when they make a room. A file's pages are taken
when it is made: where the place is too small, that shows then, and not by a signal later.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from daskboost.dtypes import Int64, UInt8

DIRECTORY = Path("/dev/shm")
"""Where files lie in memory; other systems than Linux have no such place."""
PREFIX = "daskboost-"
"""Names of files begin so, followed by the number of their process."""
MOST_BYTES = 1 << 28
"""What is larger than 256 MiB is sent instead: the room would be missed, and the time is not."""


class Room:
    """A room of this process, which others open by its name, cleared."""

    def __init__(self, n_bytes: int, key: str = "") -> None:
        self.name = ""
        """Empty where there is no room, for want of memory or of a place for it."""
        self._array: UInt8 | None = None

        def fill(descriptor: int) -> None:
            os.posix_fallocate(descriptor, 0, n_bytes)
            self._array = _mapped(descriptor, n_bytes)

        if hasattr(os, "posix_fallocate"):
            self.name = _made(n_bytes, fill, key)

    @property
    def words(self) -> Int64 | None:
        """The room as int64, if there is one."""
        return None if self._array is None else self._array.view(np.int64)

    def opened(self, names: list[str], own: int) -> list[UInt8] | None:
        """Return the rooms of these names, one's own among them; None if one of them cannot be opened here."""
        if self._array is None:
            return None
        rooms: list[UInt8] = []
        for rank, name in enumerate(names):
            room = self._array if rank == own else opened(name, len(self._array))
            if room is None:
                return None
            rooms.append(room)
        return rooms

    def forget_name(self) -> None:
        """Let no other process open the room from now on."""
        forget(self.name)


class Written:
    """A file in memory that holds some bytes, for another process to open once."""

    def __init__(self, frames: Sequence[bytes | bytearray | memoryview], starts: Sequence[int]) -> None:
        """Write frames, each from its start on; the last of `starts` is the end."""

        def fill(descriptor: int) -> None:
            # Written rather than mapped: that takes half the time, since pages need be neither cleared nor mapped.
            os.truncate(descriptor, starts[-1])
            for frame, start in zip(frames, starts, strict=False):
                _write(descriptor, memoryview(frame), start)

        self.name = _made(starts[-1], fill)
        """Empty where there is no such file, for want of memory or of a place for it."""

    def close(self) -> None:
        """Let no process open it from now on."""
        forget(self.name)


def _made(n_bytes: int, fill: Callable[[int], None], key: str = "") -> str:
    """Make a file for other processes to open, which `fill` gives so many bytes by its descriptor; return its name.

    It is empty, and there is no file, where so many bytes are not shared, or for want of memory or of a place.
    """
    _remove_left()
    name = f"{PREFIX}{os.getpid()}-{key or secrets.token_hex(16)}"
    if n_bytes > MOST_BYTES:
        return ""
    try:
        descriptor = os.open(DIRECTORY / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        return ""
    try:
        fill(descriptor)
    except (OSError, ValueError, OverflowError):
        forget(name)
        return ""
    finally:
        os.close(descriptor)
    return name


def _write(descriptor: int, frame: memoryview, start: int) -> None:
    done = 0
    while done < len(frame):  # the system may write a part
        done += os.pwrite(descriptor, frame[done:], start + done)


def opened(name: str, n_bytes: int) -> UInt8 | None:
    """Return the room of that name, or None if it cannot be opened here."""
    try:
        descriptor = os.open(DIRECTORY / (Path(name).name or "none"), os.O_RDWR)
    except OSError:
        return None
    try:
        return _mapped(descriptor, n_bytes)
    except (OSError, ValueError, OverflowError):
        return None
    finally:
        os.close(descriptor)


def forget(name: str) -> None:
    """Let no process open the room of that name from now on."""
    if name:
        with contextlib.suppress(OSError):
            (DIRECTORY / Path(name).name).unlink()


def names_of(keys: Sequence[str]) -> list[str]:
    """Return the names of rooms that were made with these keys; empty for those that are not here."""
    names = [path.name for path in DIRECTORY.glob(f"{PREFIX}*")]
    return [next((name for name in names if name.endswith(f"-{key}")), "") for key in keys]


def _remove_left() -> None:
    """Remove files of processes that have ended."""
    for path in DIRECTORY.glob(f"{PREFIX}*"):
        process = path.name[len(PREFIX) :].split("-")[0]
        with contextlib.suppress(OSError):
            if process.isdigit() and _has_ended(int(process)) and path.stat().st_uid == os.getuid():
                path.unlink()


def _has_ended(process: int) -> bool:
    """Whether a process of this user does not run any more, as far as this one can see."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def _mapped(descriptor: int, n_bytes: int) -> UInt8:
    """Return the memory of an open file; it is unmapped when nobody refers to it."""
    return np.frombuffer(mmap.mmap(descriptor, n_bytes), np.uint8)
