"""Files that are whole at any moment: written beside their place and renamed onto it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from daskboost.errors import StorageError


def write_whole(path: str | Path, data: bytes) -> None:
    """Write a file that readers find either as it was before or complete, whatever happens meanwhile.

    Parameters
    ----------
    path : str or Path
        Of a link, the file that it leads to is replaced.
    data : bytes

    Raises
    ------
    StorageError
        The file cannot be written: no such folder, no permission, a full disk. What was at `path` stays as it was, and
        nothing is left beside it.
    """
    place = Path(os.path.realpath(path))
    beside = place.with_name(f".{os.getpid()}-{threading.get_ident()}-{place.name}")
    try:
        try:
            with open(beside, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # a full disk of a network is found now, and a crash leaves no empty file
            beside.replace(place)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            error.errno, f"could not write the file, what was there is as it was: {error.strerror or error}", str(path)
        ) from error
