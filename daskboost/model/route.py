"""Where a prediction happens: at once for rows in memory or in Parquet, in a lazy graph for Dask collections; on the
device for rows that lie on one, and where `PredictRequest.place` says for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from daskboost.data.input.align import columns_named
from daskboost.data.input.blocks import Blocks, DaskArrayBlocks, DaskFrameBlocks, LocalBlocks
from daskboost.data.input.convert import margin_values
from daskboost.data.input.device_read import dense_matrix, device_values
from daskboost.data.input.frontend import choose_features, open_input
from daskboost.data.input.kinds import DEVICE_KINDS, arrayed, kind_of, readable
from daskboost.data.input.read import ReadSpec, require_length
from daskboost.data.input.row_columns import COLUMNS, RowBatch, checked_margin
from daskboost.data.input.source import make_source, missing_value
from daskboost.data.input.uploaded_rows import UploadedRows, naming
from daskboost.devices.gpu.predict import DenseValues, Values
from daskboost.devices.gpu.quantize.bins import as_float32
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, active, lack_of_memory, to_device, to_host
from daskboost.devices.gpu.runtime.user_arrays import as_device_array, device_kind, is_device_array, runtime_of
from daskboost.dtypes import ArrayModule, Float32, in_columns
from daskboost.errors import DataError, DataTypeError, DeviceError, ParameterError, format_bytes
from daskboost.model.output import PredictRequest
from daskboost.model.predict_uploads import predict_uploads
from daskboost.tracebacks import without_locals

if TYPE_CHECKING:
    import pandas as pd

# Prediction of rows that lie on a GPU: there, without a copy in the host's memory.

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
    margin_columns = columns_named(base_margin, opened.columns, COLUMNS["base_margin"])
    features, schema = choose_features(opened, set(margin_columns or ()), None, request.booster.schema)
    spec = ReadSpec(schema, features, missing_value(missing), {"base_margin": margin_columns} if margin_columns else {})
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

    with naming(where), lack_of_memory(has_no_room), active(runtime):
        rows = _values(spec, x, runtime)
        if "base_margin" in spec.inside:
            base_margin = x[list(spec.inside["base_margin"])]
        margin = None if base_margin is None else _margin(spec, base_margin, rows.n_rows, runtime)
        infinite = runtime.xp.zeros(max(rows.n_features, 1), np.uint8)
        result = request.run_on_device(request.forest_on(runtime), rows, margin, infinite)
        beyond = np.flatnonzero(to_host(infinite))
        if len(beyond):
            spec.refuse_infinite(beyond)
        return result


def _values(spec: ReadSpec, x: Any, runtime: Runtime) -> Values:
    """The features of a partition."""
    encoder = spec.schema.encoder
    if encoder is not None:
        return DenseValues(to_device(runtime, encoder.derive(x, spec, {})), np.nan)
    values, _ = device_values(x, spec.columns, spec.missing)
    spec.check_features(values.n_features)
    return values


def _margin(spec: ReadSpec, given: object, n_rows: int, runtime: Runtime) -> Float32:
    """Base margins as an array of the device; float32, shape (rows, columns)."""
    margins = arrayed(readable(given, "base_margin"), "base_margin")
    kind = kind_of(margins, "base_margin")
    if kind == "cudf":
        frame = margins.to_frame() if margins.ndim == 1 else margins
        margin, _ = dense_matrix(frame, None)
    else:
        margin = margins if kind in ("numpy", "cupy") else margin_values(margins, None)
    if margin.ndim not in (1, 2) or margin.dtype.kind not in "fiub":
        raise DataTypeError(
            f"base_margin is an array of type {margin.dtype} and shape {margin.shape}, but must hold a number per row, "
            "or per row and output"
        )
    margin = in_columns(as_float32(runtime, runtime.xp.asarray(margin)))
    require_length(margin, n_rows, "base_margin")
    return checked_margin(margin, spec)


_AXES = "op"
"""Names of a result's axes after its rows."""


def predict(request: PredictRequest, given: object, base_margin: object, missing: float) -> Any:
    """Predict any supported input; see `Booster.predict`."""
    x = readable(given)
    if kind_of(x) in DEVICE_KINDS:
        return predict_on_device(request, x, base_margin, missing)
    source = make_source(x, base_margin=base_margin, missing=missing, schema=request.booster.schema).read_late()
    if isinstance(source.x, DaskFrameBlocks):
        return _predict_frame(request, source.x.data, source.beside.get("base_margin"), source.spec)
    if isinstance(source.x, DaskArrayBlocks):
        return _predict_array(request, source.x.data, source.beside.get("base_margin"), source.spec)
    return run(request, list(source.batches()))


def run(request: PredictRequest, batches: Sequence[RowBatch]) -> npt.NDArray[Any]:
    """Predict rows of the host's memory, in order; on a GPU where `request.place` says so, with the same result.

    Raises
    ------
    DataError, DataTypeError
        What reading features says that were not read yet.
    MissingDependencyError, DeviceError
        As of `Place.runtime_for` and `predict_uploads`, where the call itself names a GPU.
    """
    late = [batch.features for batch in batches if isinstance(batch.features, UploadedRows)]
    if len(late) == len(batches) and request.output != "contributions":  # which the CPU alone computes
        runtime = request.place.runtime_for(request.size_of(late))
        if runtime is not None:
            try:
                return predict_uploads(request, late, [batch.columns.base_margin for batch in batches], runtime)
            except DeviceError as error:
                request.place.turn_to_cpu(error)
    results = [request.run_on_host(batch.features.on_host(), batch.columns.base_margin) for batch in batches]
    return results[0] if len(results) == 1 else np.concatenate([request.empty(), *results])


def _predict_frame(request: PredictRequest, x: Any, base_margin: Blocks | None, spec: ReadSpec) -> Any:
    """A Dask DataFrame becomes a Series or a DataFrame with its partitions, divisions and index."""
    empty = request.empty()
    if empty.ndim > 2:
        raise ParameterError(
            "output='contributions' of a model with several outputs has three dimensions, which a DataFrame lacks; "
            "pass a Dask Array, e.g. X.to_dask_array()"
        )
    names = request.column_names() if empty.ndim == 2 else request.output
    margins = []
    if base_margin is not None:
        if not isinstance(base_margin, DaskFrameBlocks):
            raise DataError(
                "base_margin is an array, but X is a Dask DataFrame; pass a Dask Series or DataFrame with X's "
                "partitions, or the name of columns of X"
            )
        margins.append(base_margin.data)
    return x.map_partitions(
        _predict_partition,
        *margins,
        request=_in_graph(request),
        spec=replace(spec, schema=spec.schema.columns),  # how features are made of these the model knows
        names=names,
        meta=frame_of(empty, x._meta.index[:0], names),
        align_dataframes=False,
        enforce_metadata=False,
    )


def _predict_partition(
    frame: pd.DataFrame,
    base_margin: pd.DataFrame | pd.Series | None = None,
    *,
    request: PredictRequest,
    spec: ReadSpec,
    names: str | list[str],
    partition_info: dict[str, int] | None = None,
) -> pd.DataFrame | pd.Series:
    """Dask fills in `partition_info`."""
    where = f"partition {partition_info['number']}" if partition_info else ""
    return frame_of(_run(frame, base_margin, request=request, spec=spec, where=where), frame.index, names)


def _run(x: Any, base_margin: Any = None, *, request: PredictRequest, spec: ReadSpec, where: str = ""
         ) -> npt.NDArray[Any]:  # fmt: skip
    """One partition's prediction, as an array where the partition lies."""
    spec = replace(spec, schema=request.booster.schema)
    if is_device_array(x):
        return predict_block(request, spec, x, base_margin, where)
    return run(request, [spec.read(x, {"base_margin": base_margin}, where=where)])


def frame_of(values: npt.NDArray[Any], index: pd.Index, names: str | list[str]) -> pd.DataFrame | pd.Series:
    """Values with the index of their rows, a cudf index's in cudf."""
    if device_kind(index) == "cudf":
        import cudf

        if isinstance(names, str):
            return cudf.Series(values, index=index, name=names)
        return cudf.DataFrame({name: values[:, i].copy() for i, name in enumerate(names)}, index=index)
    import pandas as pd

    if isinstance(names, str):
        return pd.Series(values, index=index, name=names)
    return pd.DataFrame(values, index=index, columns=names)


def _predict_array(request: PredictRequest, x: Any, base_margin: Blocks | None, spec: ReadSpec) -> Any:
    """A Dask Array becomes an Array with its row chunks, also where their sizes are unknown."""
    import dask.array as da

    empty = request.empty()
    pairs: list[Any] = [x, "rf"]
    if base_margin is not None:
        margin = _margin_array(base_margin, x)
        pairs += [margin, "rm"[: margin.ndim]]
    return da.blockwise(
        _run,
        "r" + _AXES[: empty.ndim - 1],
        *pairs,
        request=_in_graph(request),
        spec=replace(spec, schema=spec.schema.columns),  # how features are made of these the model knows
        new_axes=dict(zip(_AXES, empty.shape[1:], strict=False)),
        concatenate=True,
        align_arrays=False,
        dtype=empty.dtype,
        meta=np.empty_like(x._meta, shape=empty.shape, dtype=empty.dtype) if is_device_array(x) else empty,
    )


def _margin_array(base_margin: Blocks, x: Any) -> Any:
    """A base margin as a Dask Array with the row chunks of X."""
    import dask.array as da

    if isinstance(base_margin, LocalBlocks):
        values = margin_values(base_margin.data, None)
        return da.from_array(values, chunks=(x.chunks[0], *values.shape[1:]))
    return base_margin.data.values if isinstance(base_margin, DaskFrameBlocks) else base_margin.data


def _in_graph(request: PredictRequest) -> Any:
    """The request as one value of the graph, shared by its tasks and sent once to each worker; one thread per task."""
    from dask import delayed

    return delayed(replace(request, n_threads=1), pure=True, traverse=False)
