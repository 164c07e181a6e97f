"""Machine code of kernels on disk, beside that of CuPy's own kernels.

A file is named by all that its contents depend on and begins with a digest of them, so that a damaged one is found and
compiled again. Files are written whole (`daskboost/files.py`): any number of processes may read and write at once.
Where the folder cannot be written, kernels that are not there are compiled by each process anew, and the log says so.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from daskboost.files import write_whole

logger = logging.getLogger(__name__)

FOLDER = "CUPY_CACHE_DIR"
"""Environment variable of CuPy: the folder of compiled kernels."""
DEFAULT_FOLDER = "~/.cupy/kernel_cache"
"""CuPy's, where that variable is not set."""
DIGEST_BYTES = hashlib.sha256().digest_size


def cache_folder() -> Path:
    """Return CuPy's folder of compiled kernels, which need not be there."""
    return Path(os.environ.get(FOLDER) or os.path.expanduser(DEFAULT_FOLDER))


class CubinFiles:
    """The files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_written = True

    def read(self, name: str) -> bytes | None:
        """Return what was written under a name; None where there is nothing, or nothing whole."""
        try:
            found = (self._folder / name).read_bytes()
        except OSError:
            return None
        code = found[DIGEST_BYTES:]
        return code if code and hashlib.sha256(code).digest() == found[:DIGEST_BYTES] else None

    def write(self, name: str, code: bytes) -> None:
        """Keep machine code under a name; a folder that cannot be written is told once."""
        if not self._is_written:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._folder / name, hashlib.sha256(code).digest() + code)
        except OSError as error:
            self._is_written = False
            logger.warning(
                "%s cannot keep compiled kernels (%s), so that every process compiles them again: set %s to a folder "
                "that can be written", self._folder, error, FOLDER
            )  # fmt: skip


@contextmanager
def writable_folder() -> Iterator[None]:
    """Within it, `FOLDER` names a folder that can be written: CuPy cannot be imported, nor compile, without one.

    A process that may not write where it should has a temporary folder of its own, which is removed at its end.
    """
    folder, named = cache_folder(), os.environ.get(FOLDER)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        is_writable = False
    if is_writable:
        yield
        return
    os.environ[FOLDER] = _own_folder().name
    try:
        yield
    finally:
        if named is None:
            del os.environ[FOLDER]
        else:
            os.environ[FOLDER] = named


_OWN: list[tempfile.TemporaryDirectory[str]] = []
"""A temporary folder of this process, for as long as it runs."""


def _own_folder() -> tempfile.TemporaryDirectory[str]:
    if not _OWN:
        _OWN.append(tempfile.TemporaryDirectory(prefix="daskboost-kernels-", ignore_cleanup_errors=True))
    return _OWN[0]
