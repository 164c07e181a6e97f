"""Partitions whose reading freezes the process that reads them, or another one."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


class Strike:
    """Sends a process a signal when a partition is read for the n-th time after `arm`; a file counts for all workers.

    Parameters
    ----------
    directory : Path
        Which all processes share.
    pid : int, optional
        The process to strike; by default the one that reads.
    signum : int, default SIGSTOP
    """

    def __init__(self, directory: Path, pid: int | None = None, signum: int = signal.SIGSTOP) -> None:
        self.countdown, self.struck, self.lock = (directory / name for name in ("countdown", "struck", "lock"))
        self.pid, self.signum = pid, signum

    def arm(self, reads: int) -> None:
        """Strike at the `reads`-th read from now on."""
        self.countdown.write_text(str(reads))

    def __call__(self, part: Any) -> Any:
        """Return the partition, read; strike where it is due."""
        if self._is_due():
            pid = self.pid or os.getpid()
            self.struck.write_text(str(pid))
            os.kill(pid, self.signum)
        return part

    def _is_due(self) -> bool:
        """Count one read."""
        with self.lock.open("w") as lock, suppress(FileNotFoundError):
            fcntl.flock(lock, fcntl.LOCK_EX)
            left = int(self.countdown.read_text()) - 1
            if left == 0:
                self.countdown.unlink()
                return True
            self.countdown.write_text(str(left))
        return False

    @contextmanager
    def thawing(self) -> Iterator[None]:
        """Let whoever is frozen go on after the block."""
        try:
            yield
        finally:
            self.countdown.unlink(missing_ok=True)
            if self.struck.exists():
                os.kill(int(self.struck.read_text()), signal.SIGCONT)
                self.struck.unlink()
