"""Scales and keys of trees: compiled code's are those of Python, and of the naive twin."""

from __future__ import annotations

import itertools
import math

import numba
import numpy as np
import pytest
from reference import gradients as reference

from daskboost.devices.cpu.gradients import tree_key
from daskboost.devices.cpu.scales import ScaleRule, least_gain, scale, scales_by, units_of
from daskboost.fit.scales import QUANTUM_LIMIT, SUM_LIMIT, key_states, scale_rule, tree_keys

compiled_scales = numba.njit(lambda rule, g, h: scales_by(rule, g, h))
compiled_scale = numba.njit(lambda largest, limit: scale(largest, limit))
compiled_units = numba.njit(lambda g, h, w: units_of(g, h, w))
compiled_key = numba.njit(lambda state, iteration, output: tree_key(state, iteration, output))
compiled_least = numba.njit(lambda gamma, noise: least_gain(gamma, noise))

SIZES = [0.0, 1e-45, 3.1e-20, 0.25, 1.0, 1.0 + 2**-23, 32767.0, 32768.0, 7.7e12, float(np.finfo(np.float32).max)]


@pytest.mark.parametrize("limit", [1, QUANTUM_LIMIT, SUM_LIMIT, 2**30])
def test_a_scale_is_the_largest_power_of_two_within_the_limit(limit: int) -> None:
    for largest in SIZES:
        found = scale(largest, limit)
        assert compiled_scale(largest, limit) == found
        assert math.frexp(found)[0] == 0.5
        if largest:
            assert largest * found <= limit < 2 * largest * found


@pytest.mark.parametrize("rule", [
    scale_rule(None, 1.0, 0.0), scale_rule(None, 0.0, 0.7), scale_rule(900.0, 1.0, 0.0), scale_rule(1e7, 0.0, 0.7),
    scale_rule(None, 1.0, 0.0, largest_searched=3.0),
])  # fmt: skip
def test_compiled_scales_are_those_of_python(rule: ScaleRule) -> None:
    for g, h in itertools.product(SIZES, SIZES):
        found = scales_by(rule, g, h)
        assert compiled_scales(rule, g, h) == found
        units = units_of(*found[:2], rule.scale_w)
        assert compiled_units(*found[:2], rule.scale_w) == units == (
            1 / (found[0] * rule.scale_w), 1 / (found[1] * rule.scale_w)
        )  # fmt: skip
        for gamma in (0.0, 1.0):
            assert compiled_least(gamma, found[2]) == least_gain(gamma, found[2]) >= max(gamma, found[2], 5e-324)


@pytest.mark.parametrize("seed", [0, 2**40 + 7, -1, 2**64 - 1])
def test_compiled_keys_of_trees_are_those_of_python(seed: int) -> None:
    for iteration, output in itertools.product(range(5, 9), range(3)):
        found = [int(compiled_key(state, np.int64(iteration), output)) for state in key_states(seed)]
        assert found == list(tree_keys(seed, iteration, output))
        assert found == [reference.key(seed, purpose, iteration, output) for purpose in (1, 2)]
