"""Rows of queries that lie on several GPUs: scores go to the GPU that ranks a query, and gradients come back, within
the recorded work of a round.

Every GPU has room for the rows that each one sends, behind its own rows. All are told all of them, which two GPUs would
be anyway; what comes back is a sum to which all GPUs but one add zeros, of which each gets its share.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from daskboost.devices.gpu.runtime.collective import Collective
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, Shapes, make_arrays, overwrite
from daskboost.dtypes import Int64

Fill = Callable[[DeviceArray, DeviceArray, DeviceArray], None]
"""Enqueues what fills g and h of rows by their scores; float32, shape (rows,)."""


def score_shapes(n_rows: int, n_sent: int, room: int, n_members: int) -> Shapes:
    """Return the shapes of what scores need that are told; `room` : most rows that a GPU sends."""
    return {"sent": ((n_sent,), np.int32), "scores": ((n_rows + n_members * room,), np.float32)}


def gradient_shapes(n_rows: int, room: int, n_members: int) -> Shapes:
    """Return the shapes of what gradients need that come back."""
    return {"places": ((n_rows,), np.int32), "gradients": ((2, n_rows + n_members * room), np.float32)}


class MovedScores:
    """Scores of a GPU's rows, and of those that GPUs tell each other.

    Parameters
    ----------
    runtime : Runtime
    joined : Collective
    n_rows : int
        Rows of this GPU.
    sent : int64, shape (rows,)
        Places of those that it tells, on the host.
    room : int
        Most rows that a GPU tells; not 0.
    """

    def __init__(self, runtime: Runtime, joined: Collective, n_rows: int, sent: Int64, room: int) -> None:
        self._xp, self._joined, self._n_rows = runtime.xp, joined, n_rows
        made = make_arrays(runtime, score_shapes(n_rows, len(sent), room, joined.n_members))
        self._sent, self._scores = made["sent"], made["scores"]
        overwrite(runtime, self._sent, sent.astype(np.int32))
        self._scores.fill(0)
        self._told = self._scores[n_rows:].view(np.int32).reshape(joined.n_members, room)

    def of_all(self, own: DeviceArray) -> DeviceArray:
        """Enqueue: what is returned becomes the scores of the GPU's rows, given these, and behind them the scores that
        each GPU tells; collective."""
        n, rank = len(self._sent), self._joined.rank
        self._scores[: self._n_rows] = own
        if n:
            told = self._told[rank].view(np.float32)[:n]
            self._xp.take(self._scores[: self._n_rows], self._sent, axis=0, out=told)
        self._joined.gather(self._told[rank], self._told)
        return self._scores


class MovedRows:
    """Gradients of a GPU's rows, some of which other GPUs compute. Parameters are those of `MovedScores`."""

    def __init__(self, runtime: Runtime, joined: Collective, n_rows: int, sent: Int64, room: int) -> None:
        self._xp, self._joined, self._n_rows = runtime.xp, joined, n_rows
        self._scores = MovedScores(runtime, joined, n_rows, sent, room)
        made = make_arrays(runtime, gradient_shapes(n_rows, room, joined.n_members))
        self._places, self._gradients = made["places"], made["gradients"]
        places = np.arange(n_rows, dtype=np.int32)
        places[sent] = n_rows + joined.rank * room + np.arange(len(sent))
        overwrite(runtime, self._places, places)
        self._gradients.fill(0)

    def fill(self, fill: Fill, margin: DeviceArray, g: DeviceArray, h: DeviceArray) -> None:
        """Enqueue: `g` and `h` become the gradients of the GPU's rows, C-contiguous; `fill` fills those of the queries
        that it ranks; collective."""
        scores = self._scores.of_all(margin)
        of_all = self._gradients[0], self._gradients[1]
        for each in of_all:
            each[self._n_rows :].fill(0)  # what other GPUs rank adds nothing
        fill(scores, *of_all)
        for each, out in zip(of_all, (g, h), strict=True):
            self._joined.add_up_shares(each[self._n_rows :].view(np.int32))
            self._xp.take(each, self._places, axis=0, out=out)
