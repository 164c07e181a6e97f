"""Prediction of rows that lie on a GPU: there, without a copy in the host's memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskboost.byte_sizes import format_bytes
from daskboost.data.align import columns_named
from daskboost.data.convert import margin_values
from daskboost.data.device_read import csr_matrix, dense_matrix
from daskboost.data.features import choose_features
from daskboost.data.frontend import open_input
from daskboost.data.kinds import as_array, kind_of, readable
from daskboost.data.read import ReadSpec, require_length
from daskboost.data.source import missing_value
from daskboost.devices.gpu.features import as_float32
from daskboost.devices.gpu.input import as_device_array, device_kind, runtime_of
from daskboost.devices.gpu.lack_of_memory import lack_of_memory
from daskboost.devices.gpu.predict import DenseValues, SparseValues, Values
from daskboost.devices.gpu.runtime import DeviceArray, Runtime, active
from daskboost.dtypes import ArrayModule, Float32
from daskboost.errors import DataError, DataTypeError
from daskboost.model.output import PredictRequest
from daskboost.shapes import in_columns
from daskboost.tracebacks import without_locals


def array_module(x: object) -> ArrayModule:
    """CuPy for what lies on a GPU, else NumPy."""
    if device_kind(x) is None:
        return np
    import cupy  # which whoever made x has loaded

    found: ArrayModule = cupy
    return found


def predict_on_device(request: PredictRequest, x: object, base_margin: object, missing: object) -> DeviceArray:
    """Predict rows on a GPU (`device_kind`); a CuPy array. Parameters and errors are those of `Booster.predict`."""
    opened = open_input(x)
    margin_columns = columns_named(base_margin, opened.columns, "base_margin")
    features, schema = choose_features(opened, set(margin_columns or ()), None, request.booster.schema)
    spec = ReadSpec(schema, features, missing_value(missing), margin_columns=margin_columns)
    return predict_block(request, spec, opened.data, None if margin_columns else base_margin)


@without_locals()
def predict_block(
    request: PredictRequest, spec: ReadSpec, x: Any, base_margin: Any = None, where: str = ""
) -> DeviceArray:
    """Predict one partition, whose type is a GPU library's; a CuPy array. `where` : what messages call it."""
    runtime = runtime_of(as_device_array(x) if device_kind(x) == "cupy" else x)

    def has_no_room(error: Exception) -> str:
        return (
            f"the GPU's memory does not hold the prediction ({error}; {format_bytes(runtime.free_bytes)} are free): "
            "predict fewer rows at a time"
        )

    try:
        with lack_of_memory(has_no_room), active(runtime):
            rows = _values(spec, x, runtime)
            if spec.margin_columns is not None:
                base_margin = x[list(spec.margin_columns)]
            margin = None if base_margin is None else _margin(spec, base_margin, rows.n_rows, runtime)
            result, infinite = request.run_on_device(rows, margin, runtime)
            if len(infinite):
                spec.refuse_infinite(infinite)
            return result
    except DataError as error:
        if not where:
            raise
        raise type(error)(f"{where}: {error}") from error


def _values(spec: ReadSpec, x: Any, runtime: Runtime) -> Values:
    """The features of a partition."""
    if device_kind(x) != "cupy_sparse":
        values, _ = dense_matrix(x, spec.columns)
        _check_features(spec, values)
        return DenseValues(values, spec.missing)
    matrix, _ = csr_matrix(x, spec.columns)
    _check_features(spec, matrix)
    values = as_float32(runtime, matrix.data)
    return SparseValues(
        matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32, copy=False), values, int(matrix.shape[1]),
        spec.missing,
    )  # fmt: skip


def _check_features(spec: ReadSpec, matrix: Any) -> None:
    if matrix.shape[1] != spec.schema.n_features:
        raise DataError(
            f"X has {matrix.shape[1]} features here, but {spec.schema.n_features} were expected. "
            "Make all partitions have the same columns."
        )


def _margin(spec: ReadSpec, given: object, n_rows: int, runtime: Runtime) -> Float32:
    """Base margins as an array of the device; float32, shape (rows, columns)."""
    margins = readable(given, "base_margin")
    kind = kind_of(margins, "base_margin")
    if kind == "cudf":
        frame = margins.to_frame() if margins.ndim == 1 else margins
        margin, _ = dense_matrix(frame, None)
    elif kind == "cupy":
        margin = as_device_array(margins, "base_margin")
    else:
        margin = as_array(margins, "base_margin") if kind == "numpy" else margin_values(margins, None)
    if margin.ndim not in (1, 2) or margin.dtype.kind not in "fiub":
        raise DataTypeError(
            f"base_margin is an array of type {margin.dtype} and shape {margin.shape}, but must hold a number per row, "
            "or per row and output"
        )
    margin = in_columns(as_float32(runtime, runtime.xp.asarray(margin)))
    require_length(margin, n_rows, "base_margin")
    return spec.checked_margin(margin)
