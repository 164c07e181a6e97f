"""How long one process of a cluster waits for another: every limit, in seconds; docs/cluster.md lists all waits.

Three things end a wait early: the other side hangs up (a process that is killed does so at once), Dask reports that a
worker left, or nothing shows that the other side still lives for `silence_s()`. All that works shows so: engines by
heartbeats over their fit's connection, workers by Dask's heartbeats to the scheduler, a scheduler by answers.
"""

from __future__ import annotations

from daskboost.errors import ParameterError

SILENCE_KEY = "daskboost.silence"
"""Dask's configuration under this name replaces `SILENCE_S`: seconds, or a text such as "60s"."""
SILENCE_S = 15.0
"""Without a sign of life after which a worker counts as lost: a dead process shows at once, this is for hosts that
vanish and processes that are frozen, and a worker may well hold Python's lock for some seconds."""
LEAST_SILENCE_S = 1.0
"""What `silence_s` can be at least: Dask's heartbeats come every half second."""
SCHEDULER_PATIENCE = 4
"""Times `silence_s` that a scheduler may give no answer: it gives none while it takes in a large graph, which takes
it about 0.1 ms per task (5,000 partitions submitted at once: 0.9 s, with what the client does)."""
HEARTBEATS = 3
"""Of Dask's heartbeats in a row that a worker must miss; their interval grows with the number of workers."""
HEARTBEAT_S = 0.25
"""Between an engine's signs of life, and so until a working engine learns that it was cancelled."""
LOOK_S = 1.0
"""Between two looks at who still lives."""
FIRST_LOOK_S = 0.2
"""Until the first look, where nobody in particular is waited for: most calls are answered before."""

CONNECT_TIMEOUT_S = 10.0
"""To connect to a worker or a scheduler, their first answer included."""
HELLO_S = 30.0
"""That a new connection has to say what it wants."""
SETUP_S = 30.0
"""To wait for a plugin that somebody else is registering: its module is imported meanwhile."""

GRACE_S = 2.0
"""To look for the culprit after somebody reported that another one failed: a dead process's connection closes at once,
an exception elsewhere is on its way."""
DRAIN_S = 5.0
"""For engines to free what they hold at the end of a fit, so that the next one finds the memory."""
CLEAN_UP_S = 2.0
"""For workers to forget a data set or a fit, and for calls to end that are no longer wanted: then it goes on without
those who wait."""
CANCEL_S = 2.0
"""For the connection to the coordinator to close after Ctrl-C."""
FAREWELL_S = 5.0
"""For a closing scheduler's fits to tell their clients why they end."""


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
