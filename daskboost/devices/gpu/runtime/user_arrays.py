"""Input that lies in a GPU's memory: whose it is, on which GPU, and its arrays as kernels take them.

A type alone tells, so that neither CuPy nor cuDF is imported for it: whoever passes a CuPy array has imported CuPy.
"""

from __future__ import annotations

from typing import Any, Literal, TypeGuard

from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime
from daskboost.errors import DataTypeError

DeviceKind = Literal["cupy", "cupy_sparse", "cudf"]


def device_kind(x: object) -> DeviceKind | None:
    """Which library's device memory an object lies in; None for what lies in the host's.

    Parameters
    ----------
    x : any object
        Of a Dask collection, what its partitions are (its meta) decides.

    Returns
    -------
    str or None
        ``"cupy"``: a CuPy array, or anything else with ``__cuda_array_interface__`` (PyTorch, Numba), which
        ``cupy.asarray`` takes without a copy. ``"cupy_sparse"``: a matrix of ``cupyx.scipy.sparse``. ``"cudf"``: a
        DataFrame, Series or Index of cuDF.
    """
    if hasattr(x, "__dask_graph__"):
        meta = getattr(x, "_meta", None)
        return None if meta is None or hasattr(meta, "__dask_graph__") else device_kind(meta)
    for cls in type(x).__mro__:
        package, _, rest = cls.__module__.partition(".")
        if package == "cudf":
            return "cudf"
        if package == "cupyx" and rest.startswith("scipy.sparse"):
            return "cupy_sparse"
        if package == "cupy" and cls.__name__ == "ndarray":
            return "cupy"
    return "cupy" if hasattr(type(x), "__cuda_array_interface__") and _on_gpu(x) else None


def is_device_array(x: object) -> bool:
    """Whether an object lies in a GPU's memory; of a Dask collection, whether its partitions do."""
    return device_kind(x) is not None


def _on_gpu(x: Any) -> bool:
    """PyTorch's tensors have the attribute also on the CPU, where reading it fails, as it does where they require
    gradients."""
    try:
        return x.__cuda_array_interface__ is not None
    except (AttributeError, TypeError, RuntimeError):
        return bool(getattr(x, "is_cuda", False))


def as_device_array(x: object, name: str = "X") -> DeviceArray:
    """A CuPy array; of anything else with `__cuda_array_interface__` one that shares its memory.

    Raises
    ------
    DataTypeError
        Naming the argument `name`, with what its library says: of tensors that require gradients, for instance.
    """
    if _is_cupys(x):
        return x
    import cupy

    try:
        found: DeviceArray = cupy.asarray(x)
        return found
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataTypeError(
            f"{name} is of type {type(x).__module__}.{type(x).__name__}, and cannot be read where it lies: {error}"
        ) from error


def _is_cupys(x: object) -> TypeGuard[DeviceArray]:
    """Return whether an object is a CuPy array."""
    return any(cls.__module__.split(".")[0] == "cupy" for cls in type(x).__mro__)


def runtime_of(x: Any) -> Runtime:
    """The GPU that a CuPy array or a matrix of cupyx lies on, or the current one, where cuDF's frames lie.

    Raises
    ------
    DeviceError
        For a GPU that is too old.
    """
    from daskboost.devices.gpu.runtime.cuda import get_runtime

    if hasattr(x, "tocsr"):  # cupyx's matrices say nothing of themselves, their arrays do
        x = x.data
    return get_runtime(getattr(getattr(x, "device", None), "id", None))
