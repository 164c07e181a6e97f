"""Rows of the host's memory are predicted on a GPU: block by block, in the order of the rows, in bounded memory.

    stream 1   copy a | walk a, fetch |                 copy c | walk c, fetch | ...
    stream 2            copy b ...... | walk b, fetch |          copy d .....

Blocks take turns on two streams, so that one is copied while the kernels of the other run. The host copies rows into
pinned memory (`devices/gpu/runtime/transfers.py`) and fetches the result of a block once the next one is queued up.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

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
from daskboost.devices.gpu.runtime.transfers import Download
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


@dataclass(frozen=True)
class _Predicted:
    """A block whose result is on its way: it lies on the device once its lane has come so far."""

    lane: Lane
    result: DeviceArray
    rows: slice

    def fetch(self, runtime: Runtime, out: npt.NDArray[Any], threads: int) -> None:
        with self.lane, Download(runtime, [(self.result, out[self.rows])], threads):
            pass


@without_locals()
def predict_uploads(request: PredictRequest, rows: UploadedRows, base_margin: Float32 | None, runtime: Runtime
                    ) -> npt.NDArray[Any]:  # fmt: skip
    """Predict one partition of the host's memory on a GPU.

    Returns
    -------
    numpy array
        What `PredictRequest.run_on_host` gives for the same rows on the CPU, to the byte.

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

    margin = None if base_margin is None else _start(request, rows, base_margin)
    with naming(rows.where), lack_of_memory(has_no_room), active(runtime):
        empty = request.empty()
        out = np.empty((rows.n_rows, *empty.shape[1:]), empty.dtype)
        infinite = runtime.xp.zeros(max(rows.n_features, 1), np.uint8)
        blocks = _Blocks(request, rows, margin, runtime, infinite)
        with closing(blocks.queued(out.nbytes // max(rows.n_rows, 1))) as queued:
            for done, _ in pairwise(chain(queued, (None,))):
                assert done is not None
                done.fetch(runtime, out, request.threads)
        beyond = np.flatnonzero(to_host(infinite))
        if len(beyond):
            rows.spec.refuse_infinite(beyond)
        return out


def _start(request: PredictRequest, rows: UploadedRows, base_margin: Float32) -> Float32:
    """Base margins, float32 of shape (rows, outputs); errors of features come before theirs, as on the CPU."""
    try:
        return request.start(rows.n_rows, base_margin)
    except DataError:
        rows.on_host()
        raise


@dataclass(frozen=True)
class _Blocks:
    """The blocks of a partition."""

    request: PredictRequest
    rows: UploadedRows
    start: Float32 | None
    runtime: Runtime
    infinite: DeviceArray
    """uint8 for each feature; see `DeviceForest.run`."""

    def queued(self, result_bytes: int) -> Generator[_Predicted, None, None]:
        """Yield blocks as soon as all that makes them is queued up; `result_bytes` : of a row.

        The end waits for what is queued up, however it comes.
        """
        request, runtime = self.request, self.runtime
        n_bytes = min(BLOCK_BYTES, runtime.free_bytes // BLOCK_SHARE)
        limit = BlockLimit(n_bytes, RESULT_COPIES * result_bytes + 4 * request.booster.n_outputs)
        forest = request.forest_on(runtime)
        begin = 0
        with (
            taking_turns(runtime) as lanes,
            closing(self.rows.values(runtime, limit, threads=request.threads)) as uploads,
        ):
            for lane in lanes:
                with lane:
                    values = next(uploads, None)
                    if values is None:
                        return
                    block = slice(begin, begin + values.n_rows)
                    own = None if self.start is None else to_device(runtime, self.start[block])
                    found = request.run_on_device(forest, values, own, self.infinite)
                    del values, own
                begin = block.stop
                yield _Predicted(lane, found, block)
                del found
