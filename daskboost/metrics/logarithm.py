"""Logarithms of arrays, the same bits on every processor; see `daskboost.devices.cpu.logarithm`."""

from __future__ import annotations

import numpy as np

from daskboost.dtypes import Float64


def log(values: Float64) -> Float64:
    """Natural logarithms; float64 of the same shape. -inf of 0, NaN below."""
    from daskboost.devices.cpu.logarithm import logarithms

    logs = np.empty(np.shape(values), np.float64)
    logarithms(np.ascontiguousarray(values, np.float64).ravel(), logs.ravel())
    return logs


def log1p(values: Float64) -> Float64:
    """Natural logarithms of 1 plus the values; float64 of the same shape."""
    from daskboost.devices.cpu.logarithm import logarithms_of_one_plus

    logs = np.empty(np.shape(values), np.float64)
    logarithms_of_one_plus(np.ascontiguousarray(values, np.float64).ravel(), logs.ravel())
    return logs
