"""Randomness without streams: every draw is a hash of what it is for.

A draw depends on (seed, purpose, iteration, output, id) and on nothing else, so it is the same on every worker,
device, chunk and after a recovery. The mixer is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", 2014); `devices/cpu/gradients.py` holds its twin for row loops.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from daskboost.dtypes import Bool, UInt64

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_GOLDEN_INT, _M1_INT, _M2_INT = int(GOLDEN), int(_M1), int(_M2)
_MASK = 2**64 - 1
LARGEST = np.uint64(2**64 - 1)
TOGETHER = 2**16
"""Hashes that are looked at together: their memory stays in caches, and is not the system's to clear each time."""


class Purpose(IntEnum):
    """What a draw decides; each has hashes of its own."""

    ROUNDING = 1
    ROW_SAMPLE = 2
    TREE_FEATURES = 3
    LEVEL_FEATURES = 4
    NODE_FEATURES = 5
    GRADIENT_SKETCH = 6
    FOLDS = 7
    CERTIFIED_SAMPLE = 8
    GRADIENT_SAMPLE = 9
    STATISTIC_FOLDS = 10
    RANKING_PAIRS = 11


def mix(values: UInt64) -> UInt64:
    """SplitMix64's finaliser, element by element; uint64 arrays in and out, which wrap around silently."""
    z = (values ^ (values >> np.uint64(30))) * _M1
    z = (z ^ (z >> np.uint64(27))) * _M2
    return np.asarray(z ^ (z >> np.uint64(31)))


def _mix_one(z: int) -> int:
    """`mix` of one Python integer: keys are made one at a time, where arrays would cost more than the arithmetic."""
    z = (z ^ (z >> 30)) * _M1_INT & _MASK
    z = (z ^ (z >> 27)) * _M2_INT & _MASK
    return z ^ (z >> 31)


def key(seed: int, *parts: int) -> np.uint64:
    """One 64-bit key from a seed and any number of integers, order mattering."""
    return np.uint64(_mix_one(key_state(seed, *parts)))


def key_state(seed: int, *parts: int) -> int:
    """Return what becomes the `key` of these parts, or of them and others that `hashing.cuh` and `tree_key` add."""
    state = seed & _MASK
    for part in parts:
        state = _mix_one((state + _GOLDEN_INT + (part & _MASK)) & _MASK)
    return state


def draws(key_: np.uint64 | UInt64, ids: UInt64) -> UInt64:
    """64 random bits per id, by one key or by those of an array that fits."""
    return mix(np.atleast_1d(np.asarray(key_ + ids * GOLDEN)))


def keys_after(states: UInt64, *parts: UInt64) -> UInt64:
    """Return the `key` of each of these parts behind those that have led to a `key_state`; arrays of at least one
    dimension, whose shapes fit."""
    for part in parts:
        states = mix(states + GOLDEN + part)
    return mix(states)


def samples(keys: UInt64, candidates: Bool, count: int) -> Bool:
    """Return which candidates each of some draws without replacement takes: `count` of the smallest hashes, by the
    draw's key, of their numbers. By one key no two of these are equal.

    `keys` : shape (draws,). `candidates` : shape (draws, n), as many in each row. Bool, shape (draws, n).
    """
    if count >= np.count_nonzero(candidates[:1]):
        return candidates
    taken, ids = np.empty(candidates.shape, np.bool_), np.arange(candidates.shape[1], dtype=np.uint64)
    n_together = max(1, TOGETHER // len(ids))
    for begin in range(0, len(keys), n_together):
        own, into = (each[begin : begin + n_together] for each in (candidates, taken))
        hashes = draws(keys[begin : begin + n_together, None], ids)
        last = np.partition(np.where(own, hashes, LARGEST), count - 1, axis=1)[:, count - 1 : count]
        np.less_equal(hashes, last, out=into)
        into &= own
    return taken
