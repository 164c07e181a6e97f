"""One line for those who wait: kernels are compiled when a machine first needs them, which takes seconds.

It goes to the log at level INFO where logging shows that. Python's default level does not, and a silent first fit looks
like one that hangs, so there the line goes to standard error, as progress bars do. It is no warning, since nothing is
wrong, and standard output is the user's own. `logging.getLogger("daskboost").setLevel("ERROR")` turns it off. A process
says it once for each kind of kernels: later ones are quick beside the first, and the next process finds all of them in
the cache on disk.
"""

from __future__ import annotations

import logging
import sys
import threading

logger = logging.getLogger(__name__)

_SAID: set[str] = set()
_SAYING = threading.Lock()


def say_compiling(kind: str) -> None:
    """Say that kernels are being compiled, if this process has not yet said so of this kind.

    Parameters
    ----------
    kind : str
        What the line calls them, such as "CPU" or "CUDA".
    """
    with _SAYING:
        if kind in _SAID:
            return
        _SAID.add(kind)
    line = f"daskboost compiles its {kind} kernels for this machine: some seconds, once; they are kept on disk"
    if logger.isEnabledFor(logging.INFO):
        logger.info(line)
    elif logger.isEnabledFor(logging.WARNING):
        print(line, file=sys.stderr, flush=True)
