"""exp and what follows from it, in float32 operations that every device rounds alike.

Libraries' own `exp` differ in the last bit between processors (AVX2, AVX-512, ARM, CUDA), and so would a model
trained on a mixed cluster. Addition, multiplication, division and rounding do not: IEEE 754 fixes every bit. This
module uses nothing else, one array operation at a time, so no compiler can fuse a multiplication with an addition.
The price is about twice the time of NumPy's vectorised `exp`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from daskboost.dtypes import Array, ArrayModule, Float32

EXP_LIMIT = np.float32(80.0)
"""Arguments of `exp` are clipped to +-80: exp(80) = 5.5e34 leaves a factor of 6,000 for a weight within float32."""

_LOG2_E = np.float32(1.44269504)
_LN2_HIGH = np.float32(0.693359375)  # 10 significant bits: a product with an integer below 2**14 is exact
_LN2_LOW = np.float32(-2.12194440e-4)
_POLYNOMIAL = tuple(
    np.float32(c) for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
)
_ONE = np.float32(1.0)
_EXPONENT_BIAS = np.int32(127)
_MANTISSA_BITS = np.int32(23)


def exp(x: Float32, xp: ArrayModule = np) -> Float32:
    """e**x for |x| <= 80, to 2 units in the last place; beyond, the value at the end of that range.

    Parameters
    ----------
    x : float32 array of `xp`
    xp : module
        numpy or cupy.

    Returns
    -------
    float32 array of the same shape

    Notes
    -----
    Cody and Waite's reduction and the polynomial of Cephes `expf` (Moshier, "Methods and Programs for Mathematical
    Functions", 1989): x = n ln 2 + r, e**x = 2**n (1 + r + r**2 p(r)).
    """
    x = xp.clip(x, -EXP_LIMIT, EXP_LIMIT)
    n: Float32 = xp.rint(x * _LOG2_E)
    r = x - n * _LN2_HIGH
    r -= n * _LN2_LOW
    exponent = n.astype(np.int32)
    exponent += _EXPONENT_BIAS
    exponent <<= _MANTISSA_BITS
    del x, n  # of millions of rows, on a GPU too: at most four arrays at a time
    p = r * _POLYNOMIAL[0]
    for coefficient in _POLYNOMIAL[1:]:
        p += coefficient
        p *= r
    p *= r
    p += r
    p += _ONE
    p *= exponent.view(np.float32)
    return p


def sigmoid(x: Float32, xp: ArrayModule = np) -> Float32:
    """1 / (1 + e**-x); float32, never overflows, exactly 1/2 at 0."""
    odds = exp(-x, xp)
    odds += _ONE
    return _ONE / odds


def softmax(x: Float32, xp: ArrayModule = np) -> Float32:
    """Columns of `x`, shape (k, n), as probabilities; float32.

    Classes come first because operations along long contiguous rows are what arrays are fast at.
    """
    e = exp(x - fold(x, xp.maximum), xp)
    e /= fold(e, xp.add)
    return e


def fold(values: Array, operation: Callable[[Array, Array], Array]) -> Array:
    """Reduce the first axis by halves: one order of operations, whatever the shape, library or device.

    Parameters
    ----------
    values : array, shape (k, n), k >= 1
    operation : associative function of two arrays

    Returns
    -------
    array, shape (n,)
    """
    while len(values) > 1:
        half = len(values) // 2
        folded = operation(values[:half], values[half : 2 * half])
        if len(values) % 2:
            folded[0] = operation(folded[0], values[-1])
        values = folded
    last: Array = values[0]
    return last
