"""The row loop of exact sums: each value's mantissa is added, as integers, to the limbs of its exponent."""

from __future__ import annotations

import math

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.dtypes import Float64, Int32, Int64

# The natural logarithm from operations that IEEE 754 fixes to the last bit: the arithmetic of `kernels/logarithm.cuh`.
#
# Libraries' logarithms differ in the last bit between processors (AVX2, AVX-512, ARM, CUDA), and a metric's would
# decide when training stops. Addition, multiplication and division do not.

_ONE = np.int64(0x3FF0000000000000)
_ROOT_OF_HALF = np.int64(0x3FE6A09E00000000)
_LEAST_NORMAL = np.int64(0x0010000000000000)
_INFINITY = np.int64(0x7FF0000000000000)
_FRACTION = np.int64(0x000FFFFFFFFFFFFF)
"""Bits of float64; the root to their upper half."""
_ROOT = float.fromhex("0x1.6a09ep-1")


@njit(cache=True, nogil=True, error_model="numpy")
def _of_parts(f: float, k: float) -> float:
    """log(2**k (1 + f)), to one unit in the last place.

    The polynomial of FreeBSD's e_log.c (Sun Microsystems, 1993): s = f / (2 + f), log(1 + f) = f - s (f - R(s**2)).
    """
    half = 0.5 * f * f
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    odd = z * (
        6.666666666666735130e-01
        + w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01))
    )
    return s * (half + (odd + even)) + k * 1.90821492927058770002e-10 - half + f + k * 6.93147180369123816490e-01


@njit(cache=True, nogil=True, error_model="numpy")
def _of_any(x: float) -> float:
    """Return the logarithm of a number that `logarithms` has no short way for: not positive, not finite, or
    subnormal."""
    if not x > 0:
        return -np.inf if x == 0 else np.nan
    if x == np.inf:
        return x
    part, k = math.frexp(x)  # from 1/2 to 1
    if part < _ROOT:
        return _of_parts(2.0 * part - 1.0, float(k - 1))
    return _of_parts(part - 1.0, float(k))


@njit(cache=True, nogil=True, error_model="numpy")
def logarithms(values: Float64, logs: Float64) -> None:
    """Write the logarithms of a contiguous array into another; -inf of 0, NaN below.

    All are taken for normal positive numbers first, in a loop without branches, which compilers turn into vector
    operations: as fast as NumPy's, and seven times faster than one by one.
    """
    bits, parts = values.view(np.int64), logs.view(np.int64)
    for i in range(len(values)):
        moved = bits[i] + (_ONE - _ROOT_OF_HALF)  # 1 + f lies between the roots of 1/2 and of 2
        parts[i] = (moved & _FRACTION) + _ROOT_OF_HALF
        logs[i] = _of_parts(logs[i] - 1.0, float((moved >> np.int64(52)) - np.int64(0x3FF)))
    for i in range(len(values)):
        if not _LEAST_NORMAL <= bits[i] < _INFINITY:
            logs[i] = _of_any(values[i])


@njit(cache=True, nogil=True, error_model="numpy")
def logarithms_of_one_plus(values: Float64, logs: Float64) -> None:
    """Of 1 + x, accurate where x is small: what rounding 1 + x loses is put back. Arrays as for `logarithms`."""
    sums = 1.0 + values
    logarithms(sums, logs)
    for i in range(len(values)):
        found = logs[i]
        lost = (values[i] - (sums[i] - 1.0)) / sums[i]
        logs[i] = found + lost if found - found == 0 else found  # infinities and NaN stay


@njit(cache=True, nogil=True, error_model="numpy")
def logarithm_of_one_plus(x: float) -> float:
    """Return what `logarithms_of_one_plus` does of one number, at least 0 and finite."""
    total = 1.0 + x
    return _of_any(total) + (x - (total - 1.0)) / total


_1, _2, _HALF = np.float32(1), np.float32(2), np.float32(0.5)
_SHORT_1, _SHORT_2 = np.float32(0.66666662693), np.float32(0.40000972152)
_SHORT_3, _SHORT_4 = np.float32(0.28498786688), np.float32(0.24279078841)
_LN_2_HIGH, _LN_2_LOW = np.float32(6.9313812256e-01), np.float32(9.0580006145e-06)
_SHORT_ROOT_OF_HALF = np.int32(0x3F3504F3)


@njit(cache=True, nogil=True, error_model="numpy")
def short_logarithm_of_one_plus(x: np.float32) -> np.float32:
    """Return log(1 + x) in float32 of x from 0 to 2**119, to a few units in the last place.

    The polynomial of FreeBSD's e_logf.c, see `_of_parts`.
    """
    u = _1 + x
    bits = np.float32(u).view(np.int32)
    k = np.int32(np.int32(bits - _SHORT_ROOT_OF_HALF) >> np.int32(23))
    f = np.int32(bits - np.int32(k << np.int32(23))).view(np.float32) - _1
    s = f * (_1 / (_2 + f))
    z, half, power = s * s, _HALF * f * f, np.float32(k)
    r = z * (_SHORT_1 + z * (_SHORT_2 + z * (_SHORT_3 + z * _SHORT_4)))
    lost = (x - (u - _1)) * (_1 / u)
    return np.float32(s * (half + r) + (power * _LN_2_LOW + lost) - half + f + power * _LN_2_HIGH)


@njit(cache=True, nogil=True)
def narrow_into(sums: Int64, out: Int32) -> bool:
    """Copy flat int64 sums to int32; False, with `out` unfinished, at the first one that does not fit."""
    for i in range(len(sums)):
        value = sums[i]
        small = np.int32(value)
        if np.int64(small) != value:
            return False
        out[i] = small
    return True


EXPONENTS = 2048  # of a float64
LOW_BITS = 26  # a mantissa of 53 bits is kept in halves, so 2**36 values cannot overflow an int64 limb


@njit(cache=True, nogil=True)
def add_to_limbs(values: Float64, limbs: Int64) -> int:
    """Add values to limbs.

    Parameters
    ----------
    values : float64 array, shape (n,), contiguous
    limbs : int64 array, shape (EXPONENTS, 2), changed
        Per biased exponent e the sums of the upper and of the lower half of the signed mantissas, in units of
        2**(max(e, 1) - 1 - 1074).

    Returns
    -------
    int
        Sum of 1 if positive infinity was met, 2 if negative infinity, 4 if NaN. Those add nothing to the limbs.
    """
    bits = values.view(np.int64)
    fraction_mask = np.int64((1 << 52) - 1)
    low_mask = np.int64((1 << LOW_BITS) - 1)
    specials = 0
    for i in range(len(bits)):
        word = bits[i]
        exponent = (word >> np.int64(52)) & np.int64(0x7FF)
        fraction = word & fraction_mask
        if exponent == 0x7FF:
            specials |= 4 if fraction != 0 else (2 if word < 0 else 1)
            continue
        mantissa = fraction | (np.int64(exponent != 0) << np.int64(52))
        sign = word >> np.int64(63)  # 0 or -1; (x ^ sign) - sign negates without a branch
        limbs[exponent, 0] += ((mantissa >> np.int64(LOW_BITS)) ^ sign) - sign
        limbs[exponent, 1] += ((mantissa & low_mask) ^ sign) - sign
    return specials
