"""Synthetic workloads shaped like the public benchmarks, made on the host or on the device.

Every value is a hash of (seed, row, column), computed in integers, so a data set does not depend on how it is cut
into chunks, and its features are the same bits with NumPy and with CuPy. A "normal" value is the scaled sum of the four
16-bit fields of one hash (Irwin-Hall, n = 4): mean 0, variance 1, bounded by 3.5, one hash a value. Labels compare a
hashed uniform with a smooth probability, so two libraries can differ on a label only where the two touch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

Array = Any
"""A NumPy or CuPy array."""

COLUMN_BITS = 21
LABEL_COLUMN = 1 << 20
"""Columns from here on feed the label, never a feature."""
EFFECT_ROW = 1 << 40
"""Rows from here on hold the effect of a category or a column on the label, never data."""
BLOCK_VALUES, DEVICE_BLOCK_VALUES = 1 << 22, 1 << 25
"""Hashes made at a time: bounds the 64-bit temporaries to 32 MB each; on a GPU, where thirty launches for each block
took longer than the work, to 256 MB."""
NORMAL_SCALE = 1 / (65536 * (4 / 12) ** 0.5)
"""A uniform of 16 bits has variance 65536**2 / 12, and four of them add up."""


@dataclass(frozen=True)
class Workload:
    """A generator and the facts that a benchmark needs about it."""

    name: str
    n_features: int
    n_classes: int
    make: Callable[[Array, int, int, Any], tuple[Array, Array]]
    """(row numbers int64, seed, features, numpy or cupy) -> float32 features (rows, features) and label (rows,)."""

    def wide(self, n_features: int) -> Workload:
        """The same workload with another number of features."""
        return replace(self, n_features=n_features)

    def rows(self, n_rows: int, *, seed: int = 0, first: int = 0, xp: Any = np) -> tuple[Array, Array]:
        """Rows `first` to `first + n_rows`: features float32 (n_rows, n_features) and label float32 (n_rows,)."""
        features = xp.empty((n_rows, self.n_features), xp.float32)
        label = xp.empty(n_rows, xp.float32)
        block_rows = max(1, (BLOCK_VALUES if xp is np else DEVICE_BLOCK_VALUES) // self.n_features)
        for start in range(0, n_rows, block_rows):
            stop = min(start + block_rows, n_rows)
            numbers = xp.arange(first + start, first + stop, dtype=xp.int64)
            features[start:stop], label[start:stop] = self.make(numbers, seed, self.n_features, xp)
        return features, label

    def chunks(
        self, n_rows: int, chunk_rows: int, *, seed: int = 0, first: int = 0, xp: Any = np
    ) -> Iterator[tuple[Array, Array]]:
        """The same rows piece by piece, at most `chunk_rows` at a time."""
        for start in range(0, n_rows, chunk_rows):
            yield self.rows(min(chunk_rows, n_rows - start), seed=seed, first=first + start, xp=xp)


def hashes(rows: Array, columns: Array, seed: int, xp: Any) -> Array:
    """64 random bits per (row, column); uint64, shape (rows, columns). The finaliser of SplitMix64 (Steele, Lea and
    Flood, "Fast splittable pseudorandom number generators", 2014)."""
    ids = (rows.astype(xp.uint64)[:, None] << xp.uint64(COLUMN_BITS)) | columns.astype(xp.uint64)[None, :]
    z = ids * xp.uint64(0x9E3779B97F4A7C15) + xp.uint64((seed * 0xD1B54A32D192ED03) % 2**64)
    z ^= z >> xp.uint64(30)
    z *= xp.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> xp.uint64(27)
    z *= xp.uint64(0x94D049BB133111EB)
    z ^= z >> xp.uint64(31)
    return z


def normals(bits: Array, xp: Any) -> Array:
    """Nearly normal values, float32, from 64 random bits each."""
    field = xp.uint64(0xFFFF)
    total = (
        (bits & field) + ((bits >> xp.uint64(16)) & field) + ((bits >> xp.uint64(32)) & field) + (bits >> xp.uint64(48))
    )
    return ((total.astype(xp.int32) - 2 * 0xFFFF).astype(xp.float32) * xp.float32(NORMAL_SCALE)).astype(xp.float32)


def uniforms(bits: Array, xp: Any) -> Array:
    """Values in [0, 1), float64, from the upper 53 of 64 random bits each."""
    return (bits >> xp.uint64(11)).astype(xp.float64) * 2.0**-53


def integers(bits: Array, high: int, xp: Any) -> Array:
    """Integers in [0, high), int64."""
    return (uniforms(bits, xp) * high).astype(xp.int64)


def _columns(first: int, count: int, xp: Any) -> Array:
    return xp.arange(first, first + count, dtype=xp.int64)


def _effects(kind: int, count: int, seed: int, xp: Any) -> Array:
    """A fixed normal effect for each of `count` categories, float64."""
    rows = xp.arange(EFFECT_ROW, EFFECT_ROW + count, dtype=xp.int64)
    return normals(hashes(rows, _columns(kind, 1, xp), seed, xp), xp)[:, 0].astype(xp.float64)


def _bernoulli(logit: Array, rows: Array, seed: int, xp: Any) -> Array:
    draw = uniforms(hashes(rows, _columns(LABEL_COLUMN, 1, xp), seed, xp), xp)[:, 0]
    return (draw < 1.0 / (1.0 + xp.exp(-logit))).astype(xp.float32)


def _smooth(x: Array, xp: Any) -> Array:
    """A non-linear function of the first nine features, float64, shape (rows,)."""
    n_features = x.shape[1]
    v = [x[:, min(j, n_features - 1)].astype(xp.float64) for j in range(9)]
    return (
        0.8 * v[0] - 0.6 * v[1] + 0.9 * v[2] * v[3] + 0.7 * xp.sin(2.0 * v[4])
        + xp.where(v[5] > 0.3, v[6], -0.5 * v[6]) + 0.4 * (v[7] * v[7] - 1.0) - 0.3 * v[8] * v[0]
    )  # fmt: skip


def _higgs(rows: Array, seed: int, n_features: int, xp: Any) -> tuple[Array, Array]:
    x = normals(hashes(rows, _columns(0, n_features, xp), seed, xp), xp)
    return x, _bernoulli(_smooth(x, xp), rows, seed, xp)


def _uneven(rows: Array, seed: int, n_features: int, xp: Any) -> tuple[Array, Array]:
    x = normals(hashes(rows, _columns(0, n_features, xp), seed, xp), xp)
    noise = normals(hashes(rows, _columns(LABEL_COLUMN, 1, xp), seed, xp), xp)[:, 0].astype(xp.float64)
    spread = 0.5 + xp.abs(x[:, min(9, n_features - 1)].astype(xp.float64))
    return x, (_smooth(x, xp) + spread * noise).astype(xp.float32)


def _epsilon(rows: Array, seed: int, n_features: int, xp: Any) -> tuple[Array, Array]:
    x = normals(hashes(rows, _columns(0, n_features, xp), seed, xp), xp)
    weights = _effects(0, n_features, seed, xp) * (3.0 / n_features**0.5)
    return x, _bernoulli(x.astype(xp.float64) @ weights, rows, seed, xp)


AIRLINE_LEVELS = (22, 12, 31, 7, 24, 60, 22, 7000, 4500, 300, 300)
"""Year, month, day, weekday, hour, minute, carrier, flight, tail number, origin, destination."""


def _airline(rows: Array, seed: int, n_features: int, xp: Any) -> tuple[Array, Array]:
    bits = hashes(rows, _columns(0, n_features, xp), seed, xp)
    x = xp.empty((len(rows), n_features), xp.float32)
    for column in range(n_features):
        if column < len(AIRLINE_LEVELS):
            draw = uniforms(bits[:, column], xp)
            skewed = draw * draw if AIRLINE_LEVELS[column] >= 100 else draw  # few busy airports, many quiet ones
            x[:, column] = xp.floor(skewed * AIRLINE_LEVELS[column])
        elif column == 11:
            x[:, column] = xp.floor(50.0 + 2450.0 * uniforms(bits[:, column], xp) ** 2)  # miles
        else:
            minutes = xp.floor(10.0 * xp.abs(normals(bits[:, column], xp)))
            x[:, column] = xp.where((bits[:, column] & xp.uint64(15)) == 0, xp.nan, minutes)  # taxi time, 6 % missing
    code = x[:, :11].astype(xp.int64)
    logit = -1.4 + 0.08 * (x[:, 4].astype(xp.float64) - 8.0) + 0.0001 * x[:, 11].astype(xp.float64)
    for column, strength in ((1, 0.6), (3, 0.4), (6, 0.8), (9, 0.8), (10, 0.5)):
        logit = logit + strength * _effects(column, AIRLINE_LEVELS[column], seed, xp)[code[:, column]]
    return x, _bernoulli(logit, rows, seed, xp)


WILDERNESS, SOILS, CLASSES = 4, 40, 7


def _covtype(rows: Array, seed: int, n_features: int, xp: Any) -> tuple[Array, Array]:
    numeric = n_features - WILDERNESS - SOILS
    bits = hashes(rows, _columns(0, numeric + 2, xp), seed, xp)
    x = xp.zeros((len(rows), n_features), xp.float32)
    x[:, :numeric] = xp.floor(300.0 * normals(bits[:, :numeric], xp) + 2800.0)
    area, soil = integers(bits[:, numeric], WILDERNESS, xp), integers(bits[:, numeric + 1], SOILS, xp)
    index = xp.arange(len(rows))
    x[index, numeric + area] = 1.0
    x[index, numeric + WILDERNESS + soil] = 1.0
    elevation = (x[:, 0].astype(xp.float64) - 2800.0) / 300.0
    noise = normals(hashes(rows, _columns(LABEL_COLUMN, CLASSES, xp), seed, xp), xp).astype(xp.float64)
    scores = 0.7 * noise
    for c in range(CLASSES):
        centre = (c - 3) * 0.6
        scores[:, c] += (
            0.8 * _effects(2 * c, SOILS, seed, xp)[soil] + 0.5 * _effects(2 * c + 1, WILDERNESS, seed, xp)[area]
        )
        scores[:, c] -= 0.5 * (elevation - centre) ** 2
    return x, xp.argmax(scores, axis=1).astype(xp.float32)


TERMS = 4


def _classes(n_classes: int, rows: Array, seed: int, n_features: int, xp: Any) -> tuple[Array, Array]:
    x = normals(hashes(rows, _columns(0, n_features, xp), seed, xp), xp)
    # A class looks at a few distinct features, so that shallow trees have something to find, all with the same
    # weight, so that no class is rare.
    kinds = hashes(_columns(EFFECT_ROW, n_classes, xp), _columns(0, 2 * TERMS, xp), seed, xp)
    strip = n_features // TERMS
    features = _columns(0, TERMS, xp) * strip + integers(kinds[:, :TERMS], strip, xp)
    signs = xp.where(kinds[:, TERMS:] >> xp.uint64(63) == 1, 1.5, -1.5)
    scores = normals(hashes(rows, _columns(LABEL_COLUMN, n_classes, xp), seed, xp), xp).astype(xp.float64)
    for term in range(TERMS):
        scores += signs[:, term] * x[:, features[:, term]].astype(xp.float64)
    return x, xp.argmax(scores, axis=1).astype(xp.float32)


SKEWED_KINDS = 6
"""Columns take turns: lognormal; lognormal where they are not zero; counts; missing for a third of the rows; nearly the
column four before; and few values."""
FLAG_COLUMN = 1 << 19
"""Columns from here on decide where a feature is zero or missing."""
ZERO_SHARE, MISSING_SHARE = 0.7, 0.3


def _lognormal(z: Array, sigma: float, xp: Any) -> Array:
    """About exp(sigma z), float32: (1 + sigma z / 64)**64, whose squares are the same bits with NumPy and CuPy."""
    power = z.astype(xp.float64) * (sigma / 64) + 1.0
    for _ in range(6):
        power = power * power
    return power.astype(xp.float32)


def _skewed(rows: Array, seed: int, n_features: int, xp: Any) -> tuple[Array, Array]:
    columns = _columns(0, n_features, xp)
    x = normals(hashes(rows, columns, seed, xp), xp)
    hidden = [x[:, min(j, n_features - 1)].astype(xp.float64) for j in range(SKEWED_KINDS)]
    log, rare, counts, holes, alike, few = (slice(kind, None, SKEWED_KINDS) for kind in range(SKEWED_KINDS))

    def draws(some: slice) -> Array:
        return uniforms(hashes(rows, columns[some] + FLAG_COLUMN, seed, xp), xp)

    near = x[:, alike]
    near[...] = xp.float32(0.9) * x[:, log][:, : near.shape[1]] + xp.float32(0.45) * near
    x[:, log] = _lognormal(x[:, log], 1.5, xp)
    x[:, rare] = xp.where(draws(rare) < ZERO_SHARE, xp.float32(0), _lognormal(x[:, rare], 1.0, xp))
    x[:, counts] = xp.floor(2 * _lognormal(x[:, counts], 0.8, xp))
    x[:, holes] = xp.where(draws(holes) < MISSING_SHARE, xp.float32(xp.nan), x[:, holes])
    x[:, few] = xp.floor(xp.abs(x[:, few]) * 2)
    given = [x[:, min(j, n_features - 1)] for j in range(SKEWED_KINDS)]
    logit = (
        0.8 * hidden[0] + xp.where(given[1] > 0, 1.2, -0.4) - 0.5 * (given[2] < 2)
        + xp.where(xp.isnan(given[3]), 0.6, 0.7 * hidden[3]) + 0.6 * hidden[4] * hidden[0] - 0.4 * (given[5] > 1) - 0.3
    )  # fmt: skip
    return x, _bernoulli(logit, rows, seed, xp)


WORKLOADS = {
    w.name: w
    for w in (
        Workload("higgs", 28, 2, _higgs),  # dense, all features continuous, a non-linear logit of nine of them
        Workload("uneven", 28, 0, _uneven),  # the same function, and noise that another feature scales
        Workload("epsilon", 2000, 2, _epsilon),  # wide, every feature weakly informative
        Workload("airline", 13, 2, _airline),  # few features, many of them codes with skewed frequencies, some missing
        Workload("skewed", 50, 2, _skewed),  # lognormal, mostly zero, counts, missing, correlated, of few values
        Workload("covtype", 54, 7, _covtype),  # ten numbers and 44 indicators, seven classes
        Workload("classes", 200, 80, partial(_classes, 80)),  # dense, continuous, 80 classes of some features each
        Workload("ten_classes", 28, 10, partial(_classes, 10)),  # the same of fewer
    )
}
