"""Rows in the memory of a runtime, emulated or not."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from daskboost.data.input.row_batch import DeviceDenseRows, DeviceSparseRows, SparseRows
from daskboost.devices.gpu.quantize.bins import Matrix
from daskboost.devices.gpu.runtime.launches import Runtime


def device_dense(runtime: Runtime, values: Any, missing: float = math.nan) -> DeviceDenseRows:
    """A matrix of float32; NumPy's strides are kept where the array is Fortran's or C's."""
    order: Literal["C", "F"] = "F" if np.isfortran(values) else "C"
    on_device = runtime.xp.array(values, dtype=np.float32, order=order)
    n_missing, _ = Matrix(on_device, missing).inspect(runtime)
    return DeviceDenseRows(runtime, on_device, missing, n_missing)


def device_sparse(runtime: Runtime, rows: SparseRows) -> DeviceSparseRows:
    put = runtime.xp.asarray
    return DeviceSparseRows(runtime, put(rows.indptr), put(rows.indices), put(rows.values), rows.n_features)
