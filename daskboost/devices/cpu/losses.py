"""Gradients of losses: `gradients` of `daskboost/objectives/`, operation by operation, with NumPy's bits.

`kernels/objectives.cuh` is the twin for GPUs. Array expressions serve all losses; these loops are for those that most
fits have, since a team of threads runs them without Python, and no temporary array leaves a register.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from daskboost.devices.cpu import njit
from daskboost.devices.cpu.by_reference import by_reference
from daskboost.devices.cpu.compilers import addresses_of
from daskboost.devices.cpu.team import next_task, part, rows_of_task, start, threads_worth
from daskboost.devices.losses import DeviceLoss, LossKernel
from daskboost.dtypes import Float32, Float64, Int32, Int64

CLASS_ROWS = 64
"""Rows whose classes are computed together, each class's values side by side, as vector instructions take them."""
_ROW_NS = 4
"""Nanoseconds that an output of a row takes about."""
_ZERO, _ONE, _TWO, _LEAST = np.float32(0), np.float32(1), np.float32(2), np.float32(1e-16)
_LIMIT, _HUBER = np.float32(80), np.float32(1e12)
_LOG2_E, _LN2_HIGH, _LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
_P0, _P1, _P2, _P3, _P4, _P5 = (
    np.float32(c) for c in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
)
_ROUND = np.float32(12582912.0)
"""Adding it to a float32 of a moderate size, and taking it away, rounds that to the nearest integer."""
_BIAS = np.int32(127 << 23)
"""The bits of 2**0."""
_MAGNITUDE = np.int32(0x7FFFFFFF)
"""The bits of a float32 but for its sign: as integers, in the order of sizes, and NaN above all."""


class SquaredError(NamedTuple):
    """A loss and its two parameters (`LossKernel`), as the others below."""

    a: np.float32
    b: np.float32


class PseudoHuber(NamedTuple):
    a: np.float32
    b: np.float32


class Logistic(NamedTuple):
    a: np.float32
    b: np.float32


class Poisson(NamedTuple):
    a: np.float32
    b: np.float32


class Gamma(NamedTuple):
    a: np.float32
    b: np.float32


class Tweedie(NamedTuple):
    a: np.float32
    b: np.float32


class Softmax(NamedTuple):
    """The loss of all outputs of a row together."""

    a: np.float32
    b: np.float32


LOSSES: Mapping[LossKernel, Any] = {
    LossKernel.SQUARED_ERROR: SquaredError, LossKernel.PSEUDO_HUBER: PseudoHuber, LossKernel.LOGISTIC: Logistic,
    LossKernel.POISSON: Poisson, LossKernel.GAMMA: Gamma, LossKernel.TWEEDIE: Tweedie, LossKernel.SOFTMAX: Softmax,
}  # fmt: skip
"""The losses that have a loop."""


@njit(inline="always", error_model="numpy")
def _exp(given: np.float32) -> np.float32:
    """Return `objectives.objective.exp` of a number; NaN of NaN."""
    x = min(max(given, -_LIMIT), _LIMIT)
    shifted = x * _LOG2_E + _ROUND  # its lowest bits are the integer
    n = shifted - _ROUND
    r = x - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    power = np.int32(np.int32(np.float32(shifted).view(np.int32) << np.int32(23)) + _BIAS)
    p = r * _P0
    p = (p + _P1) * r
    p = (p + _P2) * r
    p = (p + _P3) * r
    p = (p + _P4) * r
    p = (p + _P5) * r
    p = p * r
    p = p + r
    p = p + _ONE
    p = p * np.int32(power).view(np.float32)
    return p if given == given else given


def _gradient(loss: Any, label: np.float32, margin: np.float32) -> tuple[np.float32, np.float32]:
    """Return g and h of a row."""
    raise NotImplementedError("for compiled code only")


def _squared_error(loss: SquaredError, label: np.float32, margin: np.float32) -> tuple[np.float32, np.float32]:
    return margin - label, _ONE


def _pseudo_huber(loss: PseudoHuber, label: np.float32, margin: np.float32) -> tuple[np.float32, np.float32]:
    ratio = (margin - label) / loss.a
    limited = min(max(ratio, -_HUBER), _HUBER)
    limited = limited if ratio == ratio else ratio
    inverse = _ONE / np.sqrt(_ONE + limited * limited)
    return loss.a * (limited * inverse), inverse * inverse * inverse


def _logistic(loss: Logistic, label: np.float32, margin: np.float32) -> tuple[np.float32, np.float32]:
    p = _ONE / (_exp(-margin) + _ONE)
    factor = loss.a if label == _ONE else _ONE
    h = p * (_ONE - p)
    h = _LEAST if h < _LEAST else h
    return (p - label) * factor, h * factor


def _poisson(loss: Poisson, label: np.float32, margin: np.float32) -> tuple[np.float32, np.float32]:
    return _exp(margin) - label, _exp(margin + loss.a)


def _gamma(loss: Gamma, label: np.float32, margin: np.float32) -> tuple[np.float32, np.float32]:
    ratio = label * _exp(-margin)
    return _ONE - ratio, ratio


def _tweedie(loss: Tweedie, label: np.float32, margin: np.float32) -> tuple[np.float32, np.float32]:
    a, b = label * _exp(loss.a * margin), _exp(loss.b * margin)
    return b - a, loss.b * b - loss.a * a


FORMULAS: Mapping[type[NamedTuple], Callable[..., object]] = {
    SquaredError: _squared_error, PseudoHuber: _pseudo_huber, Logistic: _logistic, Poisson: _poisson, Gamma: _gamma,
    Tweedie: _tweedie,
}  # fmt: skip


@overload(_gradient, inline="always", strict=False)
def _typed_gradient(loss: types.NamedTuple, label: types.Type, margin: types.Type) -> Callable[..., object]:
    return FORMULAS[loss.instance_class]


class Job(NamedTuple):
    """The gradients of a chunk's rows; float32 arrays of shape (rows,), or (rows, outputs) for a loss of several."""

    team: Int64
    loss: Any
    label: Float32
    margin: Float32
    weight: Float32
    """What multiplies gradients; shape (0,) for nothing."""
    g: Float32
    h: Float32
    block: int
    """Rows of a task."""
    tops: Int32
    """The largest bits of |g| and h that each thread has come upon, shape (threads, 2, outputs)."""
    scratch: Float32
    """Two arrays of each thread for a loss of several outputs, shape (threads, 2, outputs, CLASS_ROWS)."""


@njit(nogil=True, error_model="numpy")
def _fill_rows(
    loss: Any, label: Float32, margin: Float32, weight: Float32, g: Float32, h: Float32
) -> tuple[np.int32, np.int32]:
    """Fill the gradients of some rows; the largest bits of |g| and h."""
    for i in range(len(label)):
        g[i], h[i] = _gradient(loss, label[i], margin[i])
    if len(weight) > 0:
        for i in range(len(label)):
            g[i] *= weight[i]
            h[i] *= weight[i]
    bits_g, bits_h = g.view(np.int32), h.view(np.int32)
    top_g = top_h = np.int32(0)
    for i in range(len(label)):
        top_g = max(top_g, np.int32(bits_g[i] & _MAGNITUDE))
        top_h = max(top_h, np.int32(bits_h[i] & _MAGNITUDE))
    return top_g, top_h


@part
def _fill(job: Job, thread: int) -> None:
    """Fill the gradients of blocks of rows."""
    top_g, top_h = job.tops[thread, 0, 0], job.tops[thread, 1, 0]
    n = len(job.label)
    while True:
        begin = next_task(job.team) * job.block
        if begin >= n:
            break
        end = min(begin + job.block, n)
        weight = job.weight[begin:end] if len(job.weight) > 0 else job.weight
        g, h = _fill_rows(
            job.loss, job.label[begin:end], job.margin[begin:end], weight, job.g[begin:end], job.h[begin:end]
        )
        top_g, top_h = max(top_g, g), max(top_h, h)
    job.tops[thread, 0, 0], job.tops[thread, 1, 0] = top_g, top_h


@njit(nogil=True, error_model="numpy")
def _fold(values: Float32, n_rows: int) -> None:
    """Add the rows of `values` up into the first, by halves as `objective.fold` does."""
    n = len(values)
    while n > 1:
        half = n // 2
        for c in range(half):
            for i in range(n_rows):
                values[c, i] += values[c + half, i]
        if n % 2:
            for i in range(n_rows):
                values[0, i] += values[n - 1, i]
        n = half


@njit(nogil=True, error_model="numpy")
def _softmax(margin: Float32, e: Float32, sums: Float32) -> None:
    """Write the probabilities of up to `CLASS_ROWS` rows into `e`, shape (classes, CLASS_ROWS), as `objective.softmax`
    does."""
    n_rows, n_classes = margin.shape
    for i in range(n_rows):
        largest = margin[i, 0]
        for c in range(1, n_classes):
            largest = max(largest, margin[i, c])
        for c in range(n_classes):
            e[c, i] = margin[i, c] - largest  # NaN of a class that is NaN; so are then the sum and all probabilities
    for c in range(n_classes):
        for i in range(n_rows):
            e[c, i] = sums[c, i] = _exp(e[c, i])
    _fold(sums, n_rows)
    for c in range(n_classes):
        for i in range(n_rows):
            e[c, i] /= sums[0, i]


@part
def _fill_classes(job: Job, thread: int) -> None:
    """Fill the gradients of all outputs, in blocks of rows."""
    n, n_classes = job.margin.shape
    p, h, tops = job.scratch[thread, 0], job.scratch[thread, 1], job.tops[thread]
    while True:
        begin = next_task(job.team) * job.block
        if begin >= n:
            return
        for first in range(begin, min(begin + job.block, n), CLASS_ROWS):
            n_rows = min(CLASS_ROWS, n - first)
            _softmax(job.margin[first : first + n_rows], p, h)
            for c in range(n_classes):
                of_class = np.float32(c)
                for i in range(n_rows):
                    bound = np.float32(_TWO * p[c, i]) * (_ONE - p[c, i])
                    h[c, i] = _LEAST if bound < _LEAST else bound
                    p[c, i] -= _ONE if job.label[first + i] == of_class else _ZERO
            if len(job.weight) > 0:
                for c in range(n_classes):
                    for i in range(n_rows):
                        p[c, i] *= job.weight[first + i]
                        h[c, i] *= job.weight[first + i]
            bits_g, bits_h = p.view(np.int32), h.view(np.int32)
            for c in range(n_classes):
                top_g, top_h = tops[0, c], tops[1, c]
                for i in range(n_rows):
                    top_g = max(top_g, np.int32(bits_g[c, i] & _MAGNITUDE))
                    top_h = max(top_h, np.int32(bits_h[c, i] & _MAGNITUDE))
                tops[0, c], tops[1, c] = top_g, top_h
            for i in range(n_rows):
                for c in range(n_classes):
                    job.g[first + i, c], job.h[first + i, c] = p[c, i], h[c, i]


class GradientLoops:
    """Fills gradients of a loss by a compiled loop, on a team of threads."""

    def __init__(self, loss: DeviceLoss, team: Int64, n_threads: int) -> None:
        self._loss = LOSSES[loss.kernel](*(np.float32(value) for value in loss.parameters[0]))
        self._part = _fill_classes if loss.kernel == LossKernel.SOFTMAX else _fill
        self._team, self._n_threads = team, n_threads
        self.tops = np.zeros((n_threads, 2, 0), np.int32)
        """The largest bits of |g| and h that each thread has come upon, shape (threads, 2, outputs)."""
        self._address = 0
        self._last: tuple[Float32 | None, ...] = (None,) * 5
        self._job: Job | None = None

    def job(self, label: Float32, margin: Float32, weight: Float32 | None, g: Float32, h: Float32) -> Job:
        """Return what the part works on that fills `g` and `h`, shape (rows, outputs) as `margin`; `by_reference`."""
        together, n = self._part is _fill_classes, margin.shape[1]
        if self.tops.shape[2] != n:
            self.tops = np.zeros((self._n_threads, 2, n), np.int32)
            self._scratch = np.empty((self._n_threads, 2, n if together else 0, CLASS_ROWS), np.float32)
        margin, g, h = (each if together else each[:, 0] for each in (margin, g, h))
        weight, block = label[:0] if weight is None else weight, rows_of_task(len(label), self._n_threads)
        return by_reference(
            Job(self._team, self._loss, label, margin, weight, g, h, block, self.tops, self._scratch)
        )

    def threads_for(self, job: Job) -> int:
        """Return how many threads it is worth to fill the gradients of a chunk."""
        return threads_worth(self._n_threads, job.margin.size * _ROW_NS)

    def address(self, job: Job) -> int:
        """Return the address of the part."""
        if not self._address:
            (self._address,) = addresses_of([self._part], job, 1)
        return self._address

    def fill(self, label: Float32, margin: Float32, weight: Float32 | None, g: Float32, h: Float32) -> Float64:
        """Fill `g` and `h`. Returns the largest |g| and h; float64, shape (2, outputs)."""
        arrays = (label, margin, weight, g, h)
        if self._job is None or any(one is not other for one, other in zip(arrays, self._last, strict=True)):
            self._last, self._job = arrays, self.job(label, margin, weight, g, h)
        self.tops[:] = 0
        start(self._team, self.threads_for(self._job), self.address(self._job), self._job)
        found: Float64 = self.tops.max(axis=0).view(np.float32).astype(np.float64)
        return found
