"""Rounds that are counted on a device are those that the host counts: keys, learning rates and places in the ring."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference.rounds import Rounds

from daskboost.devices.gpu.rows.rounding import DeviceRounding
from daskboost.devices.gpu.rows.rounds import CountedRounds
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.fit.scales import key_states, scale_rule

RULE = scale_rule(None, 1.0, 0.0)


def bytes_of(rng: np.random.Generator, *shape: int) -> Any:
    return rng.integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize(("n_outputs", "first_iteration", "seed"), [(1, 0, 0), (3, 2**40, 7), (300, 11, -1)])
@pytest.mark.parametrize("n_places", [1, 2, 3])
def test_rounds_are_the_hosts(
    n_places: int, n_outputs: int, first_iteration: int, seed: int, runtime: Runtime, rng: np.random.Generator
) -> None:
    """Each of two parts, kept one after the other, and metrics of the last round beside its trees; metrics may be kept
    again, and before the first round there are none."""
    learning_rates, tables, metrics = rng.random(5).tolist(), (1_001, 77), 24
    ring = runtime.xp.asarray(bytes_of(rng, n_places, sum(tables) + metrics))
    host = Rounds(learning_rates, first_iteration, seed, to_host(ring))
    found = CountedRounds(runtime, learning_rates, first_iteration, key_states(seed))
    rounding, scaled = DeviceRounding(runtime, n_outputs), DeviceRounding(runtime, n_outputs)

    def keep_metrics() -> None:
        values = bytes_of(rng, metrics)
        host.keep_of_last(values, sum(tables))
        found.keep_of_last(runtime.xp.asarray(values), ring[:, sum(tables) :])
        np.testing.assert_array_equal(to_host(ring), host.ring)

    for _ in learning_rates:
        tops = rng.random((2, n_outputs), np.float32).view(np.uint32)
        for each in (rounding, scaled):
            each.tops[:] = runtime.xp.asarray(tops)
            each.sums[:] = 5
        found.begin(rounding, RULE)
        scaled.find_scales(RULE)
        np.testing.assert_array_equal(to_host(rounding.scales), to_host(scaled.scales))
        assert not to_host(rounding.tops).any() and not to_host(rounding.sums).any()
        assert to_host(found.learning_rate).tolist() == [host.begin()]
        np.testing.assert_array_equal(to_host(rounding.keys), host.keys(n_outputs))
        keep_metrics()
        begin = 0
        for n in tables:
            values = bytes_of(rng, n)
            host.keep(values, begin)
            found.keep(runtime.xp.asarray(values), ring[:, begin:])
            begin += n
        keep_metrics()


def test_nothing_is_launched_for_no_bytes(runtime: Runtime) -> None:
    """A fit without metrics keeps none."""
    found = CountedRounds(runtime, [0.1], 0, key_states(0))
    found.keep_of_last(runtime.xp.empty(0, np.uint8), runtime.xp.empty((4, 8), np.uint8)[:, 8:])


def test_a_recorded_round_is_the_next_one_each_time(runtime: Runtime, rng: np.random.Generator) -> None:
    learning_rates = [0.5, 0.25, 0.125, 1.0]
    found, rounding = CountedRounds(runtime, learning_rates, 3, key_states(5)), DeviceRounding(runtime, 2)
    ring = runtime.xp.zeros((3, 8), np.uint8)
    host = Rounds(learning_rates, 3, 5, np.zeros((3, 8), np.uint8))

    def one_round() -> None:
        found.begin(rounding, RULE)
        found.keep(found.learning_rate.view(np.uint8), ring)

    one_round()  # compiles and loads what is recorded
    replay = runtime.record(one_round)
    for number in range(len(learning_rates)):
        if number:
            replay()
        host.keep(np.array([host.begin()]).view(np.uint8), 0)
        np.testing.assert_array_equal(to_host(ring), host.ring)
        np.testing.assert_array_equal(to_host(rounding.keys), host.keys(2))
