"""Prediction of rows that lie on a GPU, CuPy's or cudf's: there, without a copy in the host's memory.

Neither library is imported here: a type's module says whose it is, and its objects do the rest.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np

from daskboost.data.align import columns_named
from daskboost.data.features import choose_features
from daskboost.data.frontend import OpenedInput
from daskboost.data.read import ReadSpec, require_length
from daskboost.data.source import missing_value
from daskboost.devices.gpu.predict import DenseValues, SparseValues, Values, round_values
from daskboost.devices.gpu.runtime import Runtime
from daskboost.errors import DataError, DataTypeError, DeviceError
from daskboost.model.output import PredictRequest


def device_library(x: Any) -> str | None:
    """Whose an object on a GPU is: "cupy" (cupyx's matrices included) or "cudf"; None for everything else."""
    for cls in type(x).__mro__:
        library = cls.__module__.split(".")[0]
        if library in ("cupy", "cupyx", "cudf"):
            return "cupy" if library == "cupyx" else library
    return None


def array_module(x: Any) -> Any:
    """CuPy for what lies on a GPU, else NumPy."""
    if device_library(x) is None:
        return np
    import cupy  # which whoever made x has loaded

    return cupy


def predict_on_device(request: PredictRequest, x: Any, base_margin: Any, missing: Any) -> Any:
    """Predict a CuPy array or matrix or a cudf DataFrame; a CuPy array. Parameters and errors are those of
    `Booster.predict`."""
    if x.ndim != 2:
        raise DataError(f"X has {x.ndim} dimension(s), but must have 2: rows and features. Reshape it.")
    is_frame = device_library(x) == "cudf"
    columns = tuple(x.columns) if is_frame else None
    dtypes = tuple(x.dtypes) if is_frame else (x.dtype,)
    opened = OpenedInput("cudf" if is_frame else "cupy", x, columns, dtypes, int(x.shape[1]))
    margin_columns = columns_named(base_margin, opened.columns, "base_margin")
    features, schema = choose_features(opened, set(margin_columns or ()), None, request.booster.schema)
    spec = ReadSpec(schema, features, missing_value(missing), margin_columns=margin_columns)
    return predict_block(request, spec, x, None if margin_columns else base_margin)


def predict_block(request: PredictRequest, spec: ReadSpec, x: Any, base_margin: Any = None, where: str = "") -> Any:
    """Predict one partition, whose type is a GPU library's; a CuPy array. `where` : what messages call it."""
    runtime = runtime_of(x)
    try:
        with _active(runtime):
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
    except MemoryError as error:  # CuPy's is one
        raise DeviceError(
            f"the GPU's memory does not hold the prediction ({error}; {runtime.free_bytes / 1e9:.2f} GB are free): "
            "predict fewer rows at a time"
        ) from error


def runtime_of(x: Any) -> Runtime:
    """The GPU that an array lies on, or the current one, where cudf's frames lie."""
    from daskboost.devices.gpu.cuda import get_runtime

    if hasattr(x, "tocsr"):  # cupyx's matrices say nothing of themselves, their arrays do
        x = x.data
    device = getattr(x, "device", None)
    if device is None:
        import cupy  # which cudf has loaded

        device = cupy.cuda.Device()
    return get_runtime(int(device.id))


def _active(runtime: Runtime) -> Any:
    """Makes the runtime's device the current one."""
    return nullcontext() if runtime.xp is np else runtime.xp.cuda.Device(getattr(runtime, "device", 0))


def _values(spec: ReadSpec, x: Any, runtime: Runtime) -> Values:
    """The features of a partition."""
    xp = runtime.xp
    if device_library(x) == "cudf":
        matrix = xp.empty((len(x), len(spec.columns or ())), np.float32, order="F")
        for place, name in enumerate(spec.columns or ()):
            matrix[:, place] = _column(x[name])
        return DenseValues(matrix, spec.missing)
    if spec.columns is not None:
        x = x[:, xp.asarray(spec.columns)]
    if x.shape[1] != spec.schema.n_features:
        raise DataError(
            f"X has {x.shape[1]} features here, but {spec.schema.n_features} were expected. "
            "Make all partitions have the same columns."
        )
    if not hasattr(x, "tocsr"):
        return DenseValues(x, spec.missing)
    matrix = x.tocsr()
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    values = round_values(runtime, matrix.data)
    return SparseValues(
        matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32, copy=False), values, int(x.shape[1]),
        spec.missing,
    )  # fmt: skip


def _column(series: Any) -> Any:
    """A cudf Series of numbers as a CuPy array, NaN where it has nulls."""
    return series.astype("float32").to_cupy(na_value=np.nan)


def _margin(spec: ReadSpec, given: Any, n_rows: int, runtime: Runtime) -> Any:
    """Base margins as an array of the device; float32, shape (rows, columns)."""
    if device_library(given) == "cudf":
        columns = [given] if given.ndim == 1 else [given[name] for name in given.columns]
        margin = runtime.xp.stack([_column(column) for column in columns], axis=1)
    else:
        margin = given if hasattr(given, "dtype") else np.asarray(given)
    if margin.ndim not in (1, 2) or margin.dtype.kind not in "fiub":
        raise DataTypeError(
            f"base_margin is an array of type {margin.dtype} and shape {margin.shape}, but must hold a number per row, "
            "or per row and output"
        )
    margin = round_values(runtime, runtime.xp.asarray(margin))
    margin = margin if margin.ndim == 2 else margin.reshape(-1, 1)
    require_length(margin, n_rows, "base_margin")
    return spec.checked_margin(margin)
