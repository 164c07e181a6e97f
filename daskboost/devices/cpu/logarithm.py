"""The natural logarithm from operations that IEEE 754 fixes to the last bit: the arithmetic of `kernels/logarithm.cuh`.

Libraries' logarithms differ in the last bit between processors (AVX2, AVX-512, ARM, CUDA), and a metric's would decide
when training stops. Addition, multiplication and division do not.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from daskboost.dtypes import Float64

_ROOT_OF_HALF = float.fromhex("0x1.6a09ep-1")
"""About; to the upper word of its bits, as the kernel compares it."""


@njit(cache=True, nogil=True)
def logarithm(x: float) -> float:
    """To one unit in the last place; the reduction and the polynomial of FreeBSD's e_log.c (Sun Microsystems, 1993):
    x = 2**k (1 + f), s = f / (2 + f), log(1 + f) = f - s (f - R(s**2))."""
    if not x > 0:
        return -np.inf if x == 0 else np.nan
    if x == np.inf:
        return x
    part, k = math.frexp(x)
    if part < _ROOT_OF_HALF:
        part *= 2.0
        k -= 1
    f = part - 1.0
    half = 0.5 * f * f
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    odd = z * (
        6.666666666666735130e-01
        + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01))
    )
    dk = float(k)
    return s * (half + (odd + even)) + dk * 1.90821492927058770002e-10 - half + f + dk * 6.93147180369123816490e-01


@njit(cache=True, nogil=True)
def logarithm_of_one_plus(x: float) -> float:
    """log(1 + x), accurate where x is small: what rounding 1 + x loses is put back."""
    u = 1.0 + x
    if u == 1.0:
        return x
    found = logarithm(u)
    return found + (x - (u - 1.0)) / u if found - found == 0 else found


@njit(cache=True, nogil=True)
def logarithms(values: Float64, logs: Float64) -> None:
    """Of a contiguous array; into another, or the same."""
    for i in range(len(values)):
        logs[i] = logarithm(values[i])


@njit(cache=True, nogil=True)
def logarithms_of_one_plus(values: Float64, logs: Float64) -> None:
    """As `logarithms`."""
    for i in range(len(values)):
        logs[i] = logarithm_of_one_plus(values[i])
