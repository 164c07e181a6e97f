"""What lies in a GPU's memory is told by its type, without importing what made it."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from daskboost.devices.gpu.runtime.user_arrays import device_kind, is_device_array


def made(module: str, name: str, base: type = object, **attributes: Any) -> Any:
    """An object of a class that says it comes from `module`."""
    return type(name, (base,), {"__module__": module, **attributes})()


class OnCpu:
    """As PyTorch's tensors on the CPU."""

    @property
    def __cuda_array_interface__(self) -> Any:
        raise AttributeError("this tensor lies on the CPU")


@pytest.mark.parametrize(
    ("x", "kind"),
    [
        (made("cupy", "ndarray"), "cupy"),
        (made("cupy._core.core", "ndarray"), "cupy"),
        (made("mine", "Sub", type(made("cupy", "ndarray"))), "cupy"),
        (made("numba.cuda", "DeviceNDArray", __cuda_array_interface__={"shape": (1,)}), "cupy"),
        (made("cupyx.scipy.sparse._csr", "csr_matrix"), "cupy_sparse"),
        (made("cudf.core.dataframe", "DataFrame"), "cudf"),
        (made("cudf.core.series", "Series", __cuda_array_interface__={}), "cudf"),
        (made("cupy.cuda", "Stream"), None),
        (made("cudfish", "DataFrame"), None),
        (OnCpu(), None),
        (np.zeros(3), None),
        (pd.DataFrame({"a": [1]}), None),
        (scipy.sparse.eye_array(2), None),
        ([1, 2], None),
        ("file.parquet", None),
        (None, None),
        (da.zeros(3), None),
    ],
)
def test_kinds(x: Any, kind: str | None) -> None:
    assert device_kind(x) == kind
    assert is_device_array(x) == (kind is not None)


def test_a_dask_collection_is_what_its_partitions_are() -> None:
    collection = made("dask.array", "Array", __dask_graph__=None, _meta=made("cupy", "ndarray"))
    assert device_kind(collection) == "cupy"
    frame = made("dask_cudf", "DataFrame", __dask_graph__=None, _meta=made("cudf.core.dataframe", "DataFrame"))
    assert device_kind(frame) == "cudf"


@pytest.mark.gpu
def test_real_arrays() -> None:
    import cupy
    import cupyx.scipy.sparse

    assert device_kind(cupy.zeros(3)) == "cupy"
    assert device_kind(cupyx.scipy.sparse.csr_matrix(cupy.eye(3))) == "cupy_sparse"
    assert device_kind(da.from_array(cupy.zeros(3), asarray=False)) == "cupy"
