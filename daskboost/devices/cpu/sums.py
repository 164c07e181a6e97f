"""The row loop of exact sums: each value's mantissa is added, as integers, to the limbs of its exponent."""

from __future__ import annotations

import numpy as np

from daskboost.devices.cpu import njit
from daskboost.dtypes import Float64, Int64

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
