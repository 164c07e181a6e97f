"""Input that lies in a GPU's memory: told by its type alone, so that neither CuPy nor cuDF is imported for it.

What a type's module says is enough: whoever passes a CuPy array has imported CuPy.
"""

from __future__ import annotations

from typing import Any, Literal

DeviceKind = Literal["cupy", "cupy_sparse", "cudf"]


def device_kind(x: Any) -> DeviceKind | None:
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


def is_device_array(x: Any) -> bool:
    """Whether an object lies in a GPU's memory; of a Dask collection, whether its partitions do."""
    return device_kind(x) is not None


def _on_gpu(x: Any) -> bool:
    """PyTorch's tensors have the attribute also on the CPU, where reading it fails."""
    try:
        return x.__cuda_array_interface__ is not None
    except (AttributeError, TypeError, RuntimeError):
        return False
