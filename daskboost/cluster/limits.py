"""How long one process of a cluster waits for another: every limit, in seconds; docs/cluster.md lists all waits.

Three things end a wait early: the other side hangs up (a process that is killed does so at once), Dask reports that a
worker left, or nothing shows that the other side still lives for `silence_s()`. All that works shows so: engines by
heartbeats over their fit's connection, from a thread of their own, workers by Dask's heartbeats to the scheduler, a
scheduler by answers. A worker that fell silent is lost only if its nanny, where it has one, does not see it compute
(`dask_silence.py`): neither Python's lock nor a busy host makes a worker a lost one. One whose process is stopped, as
its nanny sees, is lost after `STOPPED_S` already.
"""

from __future__ import annotations

from daskboost.errors import ParameterError

SILENCE_KEY = "daskboost.silence"
"""Dask's configuration under this name replaces `SILENCE_S`: seconds, or a text such as "60s"."""
SILENCE_S = 15.0
"""A worker counts as lost after so long without a sign of life. A dead process shows at once; this is for hosts that
vanish and processes that are frozen, and a worker may well hold Python's lock for some seconds."""
STOPPED_S = 1.5
"""A nanny looks after so long whether its worker's process is stopped: two signs of life that Dask's scheduler misses,
and six of an engine's."""
LEAST_SILENCE_S = 1.0
"""`silence_s` can be no less: Dask's heartbeats come every half second."""
SCHEDULER_PATIENCE = 4
"""A scheduler may give no answer for so many times `silence_s`: it gives none while it takes in a large graph, which
takes it about 0.1 ms per task (5,000 partitions submitted at once: 0.9 s, with what the client does)."""
HEARTBEATS = 3
"""A worker must miss so many of Dask's heartbeats in a row; their interval grows with the number of workers."""
HEARTBEAT_S = 0.25
"""An engine shows signs of life so often, and a working one learns within so long that it was cancelled."""
LOOK_S = 0.5
"""Whoever waits looks so often at who still lives."""
BOARD_LOOK_S = 1e-4
"""An engine looks so often whether the others of its host see its messages, once in a fit."""
FIRST_LOOK_S = 0.2
"""The first look comes after so long: most calls are answered before, and it takes a connection."""
LOST_LOOK_S = 0.05
"""Whoever finds a connection broken looks so often, for `GRACE_S`, whether it was that of a lost worker."""

OPINION_S = 5.0
"""The nannies of silent workers have so long to say whether these compute."""
LOOK_APART_S = 0.1
"""A nanny that was asked looks at its worker's process so often."""

CONNECT_TIMEOUT_S = 10.0
"""A connection to a worker or a scheduler, their first answer included, may take so long."""
HELLO_S = 30.0
"""A new connection must say within so long what it wants."""
SETUP_S = 30.0
"""A plugin that somebody else is registering is waited for so long: its module is imported meanwhile."""

GRACE_S = 2.0
"""The culprit is looked for so long after somebody reported that another one failed: a dead process's connection
closes at once, an exception elsewhere is on its way."""
DRAIN_S = 5.0
"""Engines have so long to free what they hold at the end of a fit, so that the next one finds the memory."""
CLEAN_UP_S = 2.0
"""Workers have so long to forget a data set or a fit, and unwanted calls to end: then that goes on without those who
wait."""
CANCEL_S = 2.0
"""After Ctrl-C, the connection to the coordinator has so long to close."""
FAREWELL_S = 5.0
"""A closing scheduler's fits have so long to tell their clients why they end."""
REPORT_S = 0.02
"""Seconds for which a fit's rounds wait for others, to be reported to the client together."""


def silence_s() -> float:
    """Return the seconds without a sign of life after which a worker counts as lost.

    Raises
    ------
    ParameterError
        Dask's configuration has something else than a number of seconds under `SILENCE_KEY`.
    """
    import dask
    from dask.utils import parse_timedelta

    given = dask.config.get(SILENCE_KEY, SILENCE_S)
    try:
        seconds = float(parse_timedelta(given))
    except (TypeError, ValueError, KeyError, AttributeError):  # whatever parsing raises
        seconds = float("nan")
    if not LEAST_SILENCE_S <= seconds < float("inf"):
        raise ParameterError(
            f"Dask's configuration has {SILENCE_KEY}={given!r}; give at least {LEAST_SILENCE_S:g} seconds, e.g. '60s'"
        )
    return seconds
