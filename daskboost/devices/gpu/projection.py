"""Few sums of many outputs' gradients: launches of `kernels/project.cu`."""

from __future__ import annotations

import numpy as np

from daskboost.devices.gpu.gradients import BLOCKS_PER_MULTIPROCESSOR
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, to_device
from daskboost.dtypes import Float32

THREADS = 256
"""Threads of a block, as in `kernels/project.cu`."""
ROOM_BYTES = 24 << 10
"""Shared memory of a block, of which two or more then fit every multiprocessor."""


def project(runtime: Runtime, values: DeviceArray, projection: Float32, out: DeviceArray) -> None:
    """Enqueue: `out` becomes the projection of `values`, as `Device.project` has it."""
    n_rows, n_outputs = values.shape
    if not n_rows:
        return
    n_columns = projection.shape[1]
    columns, outputs = np.nonzero(projection.T)
    starts = np.searchsorted(columns, np.arange(n_columns + 1)).astype(np.int32)
    at_once = min(ROOM_BYTES // (4 * n_outputs), THREADS)
    blocks = min(-(-n_rows // max(at_once, 1)), 2 * BLOCKS_PER_MULTIPROCESSOR * runtime.multiprocessors)
    runtime.kernel("project", "project")(
        blocks, THREADS, values, n_rows, n_outputs, to_device(runtime, starts),
        to_device(runtime, outputs.astype(np.int32)), to_device(runtime, projection.T[columns, outputs]), n_columns,
        at_once, out, shared_bytes=4 * n_outputs * at_once,
    )  # fmt: skip
