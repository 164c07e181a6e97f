"""Engine threads tell the operating system that they compute in batches.

On a host whose cores are all taken by workers, the coordinator's message to the first engine otherwise wakes that
engine on the coordinator's own core, in its place: the second engine then waits for its message until the first one
has computed. A batch thread does not push others aside when it wakes (sched(7)).
"""

from __future__ import annotations

import contextlib
import os


def compute_in_batches() -> None:
    """Make the calling thread, and those it starts from now on, batch threads; where the system has no such thing,
    nothing changes but speed."""
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
