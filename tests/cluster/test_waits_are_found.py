"""Trees that wait for the host, or that are no graphs, are found by what `test_waits_for_the_host.py` checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cluster.takes_of_rounds import BEST_FIRST, GROUP, GROWTH, Takes, check, check_best_first, fit, takes

from daskboost.devices.gpu.runtime.launches import Recorder, cuda_of, to_host
from daskboost.devices.gpu.runtime.transfers import Download
from daskboost.devices.gpu.trees import best_first
from daskboost.devices.gpu.trees.best_first import STEPS, BestFirstGrower
from daskboost.devices.gpu.trees.growth import Around, TreeGrower

__all__ = ["takes"]

pytestmark = pytest.mark.emulated


def skips_recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "__call__", lambda self, name, work: work())


def skips_recorder_in_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    def grow(self: TreeGrower, inputs: Any, rows: Any, queue: Any, name: Any, around: Around) -> None:
        rows.reserve(self._n_trees * self._sizes.capacity, self._n_trees * self._sizes.searched)
        around.before()
        self._grow(inputs, rows)
        around.after()

    monkeypatch.setattr(TreeGrower, "grow", grow)


def records_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "expect", lambda self, memory: self._replays.clear())


def records_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The roots are a graph of their own."""
    grow = TreeGrower.grow

    def in_parts(self: TreeGrower, inputs: Any, rows: Any, queue: Any, name: Any, around: Around) -> None:
        queue(("before", name), around.before)
        grow(self, inputs, rows, queue, name, replace(around, before=lambda: None))

    monkeypatch.setattr(TreeGrower, "grow", in_parts)


@pytest.mark.parametrize("growth", ["depthwise", "symmetric"])
@pytest.mark.parametrize(("fault", "message"), [
    (skips_recorder, "outside of graphs l"), (skips_recorder_in_grow, "outside of graphs l"),
    (records_each_round, "3 graphs, not 1"), (records_in_parts, "outside of graphs .*GGr, not"),
])  # fmt: skip
def test_a_round_that_is_no_graph_is_found(
    fault: Callable[[pytest.MonkeyPatch], None], message: str, growth: str, takes: Takes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    fault(monkeypatch)
    fit(takes, GROWTH[growth])
    with pytest.raises(AssertionError, match=message):
        check(takes, GROUP, 1)


WAYS_TO_WAIT: dict[str, Callable[[TreeGrower, Any], object]] = {
    "to_host": lambda grower, results: to_host(results),
    "get": lambda grower, results: results.get(),
    "int": lambda grower, results: int(grower.tables.sizes[0, 0]),
    "float": lambda grower, results: float(grower.tables.gains[0, 0]),
    "bool": lambda grower, results: bool(grower.tables.sizes[0, 0] > 1),
    "index": lambda grower, results: range(grower.tables.sizes[0, 0]),
    "item": lambda grower, results: results[0, 0].item(),
    "tolist": lambda grower, results: results.sum().tolist(),
    "largest": lambda grower, results: max(results[0]),
    "download": lambda grower, results: Download(grower._runtime, [(results, np.empty_like(results._own))]).wait(),
    "event": lambda grower, results: grower._runtime.record_event().synchronize(),
    "copies": lambda grower, results: grower._runtime.copy_stream().synchronize(),
    "stream": lambda grower, results: cuda_of(grower._runtime).get_current_stream().synchronize(),
    "device": lambda grower, results: cuda_of(grower._runtime).Device().synchronize(),
}


@pytest.mark.parametrize("way", WAYS_TO_WAIT)
@pytest.mark.parametrize("skips", [False, True])
def test_a_level_that_waits_is_found(skips: bool, way: str, takes: Takes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is recorded, which a GPU would refuse, or not."""
    choose = TreeGrower._choose

    def choose_and_wait(self: TreeGrower, depth: int, results: Any) -> None:
        choose(self, depth, results)
        WAYS_TO_WAIT[way](self, results)

    monkeypatch.setattr(TreeGrower, "_choose", choose_and_wait)
    if skips:
        skips_recorder(monkeypatch)
    fit(takes, {"max_depth": 2})
    with pytest.raises(AssertionError, match=r"the host reads .*test_waits" if skips else "in graphs, which only"):
        check(takes, GROUP, 1)


def test_no_array_becomes_the_hosts_unasked(takes: Takes) -> None:
    """As on a GPU, it is an error."""
    array = takes.runtime.xp.ones(3)
    for convert in (np.array, np.asarray, np.ascontiguousarray):
        with pytest.raises(TypeError, match="Implicit conversion"):
            convert(array)


def test_best_first_trees_that_ask_too_often_are_found(takes: Takes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_first, "STEPS", STEPS - 1)
    fit(takes, BEST_FIRST)
    with pytest.raises(AssertionError, match="steps between two questions"):
        check_best_first(takes)


def test_best_first_trees_that_forget_the_last_ones_steps_are_found(
    takes: Takes, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow = BestFirstGrower.grow

    def forgetful(self: BestFirstGrower, *arguments: Any) -> None:
        self._unasked = 1
        grow(self, *arguments)

    monkeypatch.setattr(BestFirstGrower, "grow", forgetful)
    fit(takes, {**BEST_FIRST, "max_leaves": 120, "max_depth": 8})
    with pytest.raises(AssertionError, match="replays without a question"):
        check_best_first(takes)


@pytest.mark.parametrize("skips", [False, True])
def test_a_step_that_waits_is_found(skips: bool, takes: Takes, monkeypatch: pytest.MonkeyPatch) -> None:
    search = BestFirstGrower._best_per_node

    def search_and_wait(self: BestFirstGrower, *arguments: Any, **how: Any) -> Any:
        found = search(self, *arguments, **how)
        to_host(found)
        return found

    monkeypatch.setattr(BestFirstGrower, "_best_per_node", search_and_wait)
    if skips:
        skips_recorder(monkeypatch)
    fit(takes, BEST_FIRST)
    with pytest.raises(AssertionError, match="the host reads" if skips else "in graphs, which only"):
        check_best_first(takes)
