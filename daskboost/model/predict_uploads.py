"""Rows of the host's memory are predicted on a GPU: block by block, in the order of the rows, in bounded memory.

    stream 1   copy a | walk a, fetch |                 copy c | walk c, fetch | ...
    stream 2            copy b ...... | walk b, fetch |          copy d .....

Blocks take turns on two streams, so that one is copied while the kernels of the other run. Threads copy rows into
pinned memory (`devices/gpu/runtime/transfers.py`), and the result of a block is fetched once the next one is queued up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from daskboost.data.input.uploaded_rows import BlockLimit, UploadedRows, naming
from daskboost.devices.gpu.runtime.launches import (
    DeviceArray,
    Lane,
    Runtime,
    active,
    lack_of_memory,
    taking_turns,
    to_device,
    to_host,
)
from daskboost.devices.gpu.runtime.transfers import Download, Uploader
from daskboost.dtypes import Float32
from daskboost.errors import DataError, format_bytes
from daskboost.tracebacks import without_locals

if TYPE_CHECKING:
    from daskboost.model.output import PredictRequest

BLOCK_BYTES = 1 << 28
"""Device memory of a block, at most: of 50 columns 300,000 rows or so, whose 60 MB come in 2 ms."""
BLOCK_SHARE = 8
"""Blocks have at most this part of the free memory: there are two, and ranks and results beside them."""
RESULT_COPIES = 3
"""Results that expressions make of margins, one after the other."""


@without_locals()
def predict_uploads(request: PredictRequest, batches: Sequence[UploadedRows], base_margins: Sequence[Float32 | None],
                    runtime: Runtime) -> npt.NDArray[Any]:  # fmt: skip
    """Predict partitions of the host's memory on a GPU.

    Parameters
    ----------
    base_margins : sequence of float32 arrays of shape (rows, outputs), or None
        For each partition.

    Returns
    -------
    numpy array
        What `PredictRequest.run_on_host` gives for the same rows on the CPU, to the byte, one partition behind the
        other.

    Raises
    ------
    DataError, DataTypeError
        What reading the rows on the host refuses.
    DeviceError
        The GPU has too little memory, or the host no pinned memory.
    """

    def has_no_room(error: Exception) -> str:
        return (
            f"the GPU's memory does not hold the model and a block of rows ({error}; "
            f"{format_bytes(runtime.free_bytes)} are free): free what else is there, or predict with device='cpu'"
        )

    empty = request.empty()
    out = np.empty((sum(rows.n_rows for rows in batches), *empty.shape[1:]), empty.dtype)
    with lack_of_memory(has_no_room), active(runtime):
        waiting = deque[_Step]()
        with closing(_queued(request, batches, base_margins, runtime, out)) as queued:
            try:
                for step in queued:
                    waiting.append(step)
                    if len(waiting) > 1:
                        waiting.popleft().finish(runtime, request.threads)
            except DataError:  # of a later partition than those that wait
                _finish(waiting, runtime, request.threads)
                raise
            _finish(waiting, runtime, request.threads)
    return out


class _Step(Protocol):
    """What is queued up on the device, and has an end on the host."""

    def finish(self, runtime: Runtime, threads: int) -> None: ...


def _finish(waiting: deque[_Step], runtime: Runtime, threads: int) -> None:
    while waiting:
        waiting.popleft().finish(runtime, threads)


@dataclass(frozen=True)
class _Predicted:
    """A block, whose result lies on the device once its lane has come so far."""

    lane: Lane
    result: DeviceArray
    out: npt.NDArray[Any]
    """The same rows of the whole result."""

    def finish(self, runtime: Runtime, threads: int) -> None:
        with self.lane, Download(runtime, [(self.result, self.out)], threads):
            pass


@dataclass(frozen=True)
class _End:
    """The end of a partition, all of whose blocks were fetched before."""

    rows: UploadedRows
    infinite: DeviceArray
    """uint8 for each feature; see `DeviceForest.run`."""

    def finish(self, runtime: Runtime, threads: int) -> None:
        beyond = np.flatnonzero(to_host(self.infinite))
        if len(beyond):
            with naming(self.rows.where):
                self.rows.spec.refuse_infinite(beyond)


def _queued(request: PredictRequest, batches: Sequence[UploadedRows], base_margins: Sequence[Float32 | None],
            runtime: Runtime, out: npt.NDArray[Any]) -> Generator[_Step, None, None]:  # fmt: skip
    """Yield blocks, and the ends of partitions, as soon as all that makes them is queued up.

    The end waits for what is queued up, however it comes.
    """
    n_bytes = min(BLOCK_BYTES, runtime.free_bytes // BLOCK_SHARE)
    limit = BlockLimit(n_bytes, RESULT_COPIES * out.nbytes // max(len(out), 1) + 4 * request.booster.n_outputs)
    forest = request.forest_on(runtime)
    marks = [runtime.xp.zeros(max(rows.n_features, 1), np.uint8) for rows in batches]
    begin = 0
    with taking_turns(runtime) as lanes, Uploader(runtime, request.threads) as uploader:
        for rows, base_margin, infinite in zip(batches, base_margins, marks, strict=True):
            start, first = None if base_margin is None else _start(request, rows, base_margin), begin
            with closing(rows.values(uploader, limit)) as uploads:
                while True:
                    lane = next(lanes)
                    with lane, naming(rows.where):
                        values = next(uploads, None)
                        if values is None:
                            break
                        end = begin + values.n_rows
                        own = None if start is None else to_device(runtime, start[begin - first : end - first])
                        found = request.run_on_device(forest, values, own, infinite)
                        del values, own
                    yield _Predicted(lane, found, out[begin:end])
                    del found
                    begin = end
            yield _End(rows, infinite)


def _start(request: PredictRequest, rows: UploadedRows, base_margin: Float32) -> Float32:
    """Base margins, float32 of shape (rows, outputs); errors of features come before theirs, as on the CPU."""
    try:
        return request.start(rows.n_rows, base_margin)
    except DataError:
        rows.on_host()
        raise
