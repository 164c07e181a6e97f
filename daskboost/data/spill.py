"""Directories of chunk files below `spill_directory`: each is of one store, and goes with it.

A process that is killed, for want of memory perhaps, removes nothing. So a directory's owner holds a lock on it, which
the kernel lets go of when the owner ends, however it ends; who spills next in the same place removes what nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import platform
import secrets
import shutil
import weakref
from pathlib import Path

from daskboost.errors import ParameterError, StorageError
from daskboost.params import shown

logger = logging.getLogger(__name__)

_NEW = ".daskboost-"
"""Begins names of directories that are not locked yet, which are left alone."""


def spill_path(given: object) -> Path | None:
    """`spill_directory` as a path.

    Raises
    ------
    ParameterError
        Something else was given.
    """
    if given is None:
        return None
    if not isinstance(given, str | os.PathLike) or not str(given):
        raise ParameterError(f"spill_directory={shown(given)} must be the path of a directory")
    return Path(given)


def check_spill_directory(path: Path) -> None:
    """Make the directory if it is not there, and see that it can be written to, before anything is read to go there.

    Raises
    ------
    StorageError
        It cannot.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = _unused(path)
        try:
            probe.mkdir(0o700)
        finally:
            _remove_empty(probe)
    except OSError as error:
        raise StorageError(
            error.errno,
            f"spill_directory cannot be written to: {error.strerror or error}; name a directory that can, on a disk "
            "with room",
            str(path),
        ) from error


def make_directory(parent: Path, owner: object) -> tuple[Path, weakref.finalize[..., object]]:
    """A private directory that is removed when `owner` is collected, the interpreter exits, or what is returned beside
    it is called; those of owners that were killed are removed first.

    Raises
    ------
    OSError
        It cannot be made.
    """
    parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(parent)
    made = _unused(parent)
    directory = parent / f"{_prefix()}{made.name.removeprefix(_NEW)}"
    lock: int | None = None
    try:
        made.mkdir(0o700)
        lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # a file system without locks: then nobody takes it for abandoned either
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        made.rename(directory)
        return directory, weakref.finalize(owner, _remove, directory, lock, os.getpid())
    except BaseException:  # Ctrl-C too: nobody takes a directory that is not named yet for abandoned
        _remove_empty(made)
        _remove_empty(directory)
        if lock is not None:
            os.close(lock)
        raise


def remove_abandoned(parent: Path) -> None:
    """Remove directories whose owners were killed."""
    for path in parent.glob(f"{_prefix()}*"):
        with contextlib.suppress(OSError):  # it is gone, or another user's
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the owner lives
                if os.fstat(lock).st_uid == os.getuid():
                    shutil.rmtree(path)
                    logger.info("removed %s, left by a process that was killed", path)
            finally:
                os.close(lock)


def _unused(parent: Path) -> Path:
    """Return the path of a directory to be made: known before it is there, so that Ctrl-C cannot leave one that nobody
    knows of."""
    return parent / f"{_NEW}{secrets.token_hex(8)}"


def _remove_empty(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.rmdir()


def _prefix() -> str:
    """Return the prefix of this machine's directories since it was started: who shares a disk with others need not see
    their locks."""
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        machine = platform.node()
    return f"daskboost-chunks-{machine}-"


def _remove(directory: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits the finalizer but not the files
        try:
            shutil.rmtree(directory, ignore_errors=True)
        finally:  # what Ctrl-C left of it the next one to spill there removes, as long as nobody holds it
            os.close(lock)
