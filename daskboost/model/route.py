"""Where a prediction happens: at once for rows in memory or in Parquet, in a lazy graph for Dask collections; on the
device for rows that lie on one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from daskboost.data.blocks import Blocks, DaskArrayBlocks, DaskFrameBlocks, LocalBlocks
from daskboost.data.convert import margin_values
from daskboost.data.kinds import DEVICE_KINDS, kind_of, readable
from daskboost.data.read import ReadSpec
from daskboost.data.source import make_source
from daskboost.devices.gpu.input import device_kind, is_device_array
from daskboost.errors import DataError, ParameterError
from daskboost.model.device_route import predict_block, predict_on_device
from daskboost.model.output import PredictRequest

if TYPE_CHECKING:
    import pandas as pd

_AXES = "op"
"""Names of a result's axes after its rows."""


def predict(request: PredictRequest, given: object, base_margin: object, missing: float) -> Any:
    """Predict any supported input; see `Booster.predict`."""
    x = readable(given)
    if kind_of(x) in DEVICE_KINDS:
        return predict_on_device(request, x, base_margin, missing)
    source = make_source(x, base_margin=base_margin, missing=missing, schema=request.booster.schema)
    if isinstance(source.x, DaskFrameBlocks):
        return _predict_frame(request, source.x.collection, source.base_margin, source.spec)
    if isinstance(source.x, DaskArrayBlocks):
        return _predict_array(request, source.x.collection, source.base_margin, source.spec)
    results = [request.run(batch) for batch in source.batches()]
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
        margins.append(base_margin.collection)
    return x.map_partitions(
        _predict_partition,
        *margins,
        request=_in_graph(request),
        spec=spec,
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
    return frame_of(_run(request, spec, frame, base_margin, where), frame.index, names)


def _run(request: PredictRequest, spec: ReadSpec, x: Any, base_margin: Any, where: str = "") -> npt.NDArray[Any]:
    """One partition's prediction, as an array where the partition lies."""
    if is_device_array(x):
        return predict_block(request, spec, x, base_margin, where)
    return request.run(spec.read(x, base_margin=base_margin, where=where))


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
        _predict_block,
        "r" + _AXES[: empty.ndim - 1],
        *pairs,
        request=_in_graph(request),
        spec=spec,
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
    assert isinstance(base_margin, DaskArrayBlocks | DaskFrameBlocks)
    collection = base_margin.collection
    return collection.values if isinstance(base_margin, DaskFrameBlocks) else collection


def _predict_block(x: Any, base_margin: Any = None, *, request: PredictRequest, spec: ReadSpec) -> npt.NDArray[Any]:
    return _run(request, spec, x, base_margin)


def _in_graph(request: PredictRequest) -> Any:
    """The request as one value of the graph, shared by its tasks and sent once to each worker; one thread per task."""
    from dask import delayed

    return delayed(replace(request, n_threads=1), pure=True, traverse=False)
