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
import shutil
import tempfile
import weakref
from pathlib import Path

from daskboost.errors import ParameterError, StorageError

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
        raise ParameterError(f"spill_directory={given!r} must be the path of a directory")
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
        Path(tempfile.mkdtemp(prefix=_NEW, dir=path)).rmdir()
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
    made = Path(tempfile.mkdtemp(prefix=_NEW, dir=parent))
    lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
    with contextlib.suppress(OSError):  # a file system without locks: then nobody takes it for abandoned either
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    directory = made.rename(parent / f"{_prefix()}{made.name.removeprefix(_NEW)}")
    return directory, weakref.finalize(owner, _remove, directory, lock, os.getpid())


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


def _prefix() -> str:
    """Of this machine's directories since it was started: who shares a disk with others need not see their locks."""
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    except OSError:
        machine = platform.node()
    return f"daskboost-chunks-{machine}-"


def _remove(directory: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits the finalizer but not the files
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)
