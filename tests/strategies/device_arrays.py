"""Users' objects in a GPU's memory: CuPy's where there is a GPU, else stand-ins over NumPy, SciPy and pandas.

Stand-ins say that they come from CuPy and cuDF, and, as those do, refuse to become NumPy arrays unasked. The fixture
`place` is a place with functions that put things there.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime

from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.runtime import user_arrays as input


class Place(Protocol):
    """Where rows lie."""

    def array(self, values: Any) -> Any:
        """A NumPy array there, of the same strides if they are C's or Fortran's."""

    def csr(self, matrix: Any) -> Any:
        """A scipy.sparse matrix there."""

    def frame(self, frame: Any) -> Any:
        """A pandas DataFrame, Series or Index there."""


class _Array:
    """As `cupy.ndarray`, as far as readers look before they know their runtime."""

    device = SimpleNamespace(id=0)

    def __init__(self, host: Any) -> None:
        self.host = host
        self.shape, self.dtype, self.ndim, self.strides = host.shape, host.dtype, host.ndim, host.strides

    def __len__(self) -> int:
        return len(self.host)

    def __getitem__(self, key: Any) -> Any:
        return type(self)(self.host[key])

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Use `.get()`.")


class _Csr:
    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix
        self.shape, self.dtype, self.ndim, self.nnz = matrix.shape, matrix.dtype, 2, matrix.nnz
        self.has_canonical_format = matrix.has_canonical_format
        self.indptr, self.indices, self.data = (
            Array(array) for array in (matrix.indptr, matrix.indices, matrix.data)
        )

    def tocsr(self) -> Any:
        return Csr(self._matrix.tocsr())

    def copy(self) -> Any:
        return Csr(self._matrix.copy())

    def sum_duplicates(self) -> None:
        self._matrix.sum_duplicates()
        self.__init__(self._matrix)  # type: ignore[misc]

    def __getitem__(self, key: Any) -> Any:
        return Csr(self._matrix[key])


class _Rows:
    """`iloc` of a Series."""

    def __init__(self, series: Any) -> None:
        self._series = series

    def __getitem__(self, key: Any) -> Any:
        return Series(self._series.host.iloc[key])


class _Column:
    """Over pandas' nullable types."""

    ndim = 1

    def __init__(self, host: Any) -> None:
        self.host = host
        self.dtype = getattr(host.dtype, "numpy_dtype", host.dtype)
        self.shape = host.shape

    def __len__(self) -> int:
        return len(self.host)

    def to_arrow(self) -> Any:
        import pyarrow as pa

        return pa.Array.from_pandas(self.host)


class _Series(_Column):
    """Whose values are of NumPy's type once there is no null."""

    def any(self) -> Any:
        return self.host.any()

    def all(self) -> Any:
        return self.host.all()

    @property
    def values(self) -> Any:
        assert self.host.dtype.kind == "f" or not self.host.isna().any(), "cuDF has no values for nulls"
        return Array(self.host.to_numpy(self.dtype))

    @property
    def iloc(self) -> Any:
        return _Rows(self)

    def isna(self) -> Any:
        return Series(self.host.isna())

    def fillna(self, value: Any) -> Any:
        return Series(self.host.fillna(value))


class _Index(_Column):
    """Whose nulls are told by a CuPy array."""

    def isna(self) -> Any:
        return self.host.isna()


class _Frame:
    ndim = 2

    def __init__(self, host: Any) -> None:
        self.host = host
        self.shape = host.shape

    @property
    def dtypes(self) -> Any:
        import pandas as pd

        return pd.Series({name: Series(self.host[name]).dtype for name in self.host.columns}, dtype=object)

    def __len__(self) -> int:
        return len(self.host)

    def __getitem__(self, key: Any) -> Any:
        return Frame(self.host[key]) if isinstance(key, list) else Series(self.host[key])

    def to_arrow(self) -> Any:
        import pyarrow as pa

        return pa.Table.from_pandas(self.host, preserve_index=False)


Array = type("ndarray", (_Array,), {"__module__": "cupy"})
Csr = type("csr_matrix", (_Csr,), {"__module__": "cupyx.scipy.sparse._csr"})
Series = type("Series", (_Series,), {"__module__": "cudf.core.series"})
Index = type("Index", (_Index,), {"__module__": "cudf.core.index"})
Frame = type("DataFrame", (_Frame,), {"__module__": "cudf.core.dataframe"})


class EmulatedPlace:
    """Stand-ins."""

    def array(self, values: Any) -> Any:
        return Array(values)

    def csr(self, matrix: Any) -> Any:
        return Csr(matrix)

    def frame(self, frame: Any) -> Any:
        if frame.ndim == 2:
            return Frame(frame)
        return Series(frame) if hasattr(frame, "iloc") else Index(frame)


class CudaPlace:
    """The real ones."""

    def array(self, values: Any) -> Any:
        import cupy

        return cupy.array(values, order="F" if np.isfortran(values) else "C")

    def csr(self, matrix: Any) -> Any:
        import cupy
        from cupyx.scipy.sparse import csr_matrix

        parts = (cupy.asarray(matrix.data), cupy.asarray(matrix.indices), cupy.asarray(matrix.indptr))
        return csr_matrix(parts, shape=matrix.shape)

    def frame(self, frame: Any) -> Any:
        cudf = pytest.importorskip("cudf")
        return cudf.from_pandas(frame)


@pytest.fixture(params=[
    pytest.param("emulated", marks=pytest.mark.emulated), pytest.param("cuda", marks=pytest.mark.gpu),
])  # fmt: skip
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A GPU, or the emulation with threads out of order."""
    if request.param == "cuda":
        yield CudaPlace()
        return
    unwrapped = input.as_device_array
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=3))
    monkeypatch.setattr(
        "daskboost.data.input.device_read.as_device_array",
        lambda x, name="X": x.host if isinstance(x, _Array) else unwrapped(x, name),
    )
    yield EmulatedPlace()
