"""Fits that join the same GPUs take turns, and a fit that fails gives its turn back."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cluster.emulated_gpu import WakesByAbort
from kernels.emulation import EmulatedRuntime
from strategies.trees import make_data, quantized

from daskboost import Booster, QuantizedDataset, train
from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.runtime.collective import Members, Turn
from daskboost.errors import DataError
from daskboost.local.in_process import LocalShards
from daskboost.local.links import PeerLostError, local_peers
from daskboost.training.callbacks import Callback, RoundInfo

gpus_by_rank = property(lambda shards: range(len(shards.shards)), lambda *_: None)
"""A GPU for each engine, in place of those that a data set is given."""
LONG_S = 60.0
PARAMS: dict[str, Any] = {"max_depth": 3, "n_jobs": 1, "device": "cuda", "reduction": "nccl"}


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Two emulated GPUs, which the engines of every fit have in their order, and whether a fit had to wait for them."""
    gpus, found = [EmulatedRuntime(seed=3), EmulatedRuntime(seed=4)], threading.Event()
    take = Turn.is_taken

    def noted(self: Turn, name: str, names: tuple[str, ...], members: Members) -> bool:
        is_taken = take(self, name, names, members)
        if not is_taken:
            found.set()
        return is_taken

    monkeypatch.setattr(cuda, "get_runtime", lambda number=None: gpus[number or 0])
    monkeypatch.setattr(LocalShards, "gpus", gpus_by_rank, raising=False)
    monkeypatch.setattr(Turn, "is_taken", noted)
    return found


class WaitsFor(Callback):
    """Goes on with a fit's second round when something has happened."""

    def __init__(self, event: threading.Event, begun: threading.Event) -> None:
        self.event, self.begun = event, begun

    def after_round(self, info: RoundInfo) -> bool:
        self.begun.set()
        assert self.event.wait(LONG_S)
        return False


@pytest.fixture
def data() -> Any:
    return make_data(np.random.default_rng(8), n_rows=600, weighted=False)


@pytest.mark.emulated
def test_two_fits_at_once_take_turns(data: Any, refused: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    begun = threading.Event()
    caplog.set_level("INFO", "daskboost")
    with quantized(data, engines=2, partitions=2) as one, quantized(data, engines=2, partitions=4) as other:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(train, PARAMS, one, 4, callbacks=[WaitsFor(refused, begun)])
            assert begun.wait(LONG_S)
            second = pool.submit(train, {**PARAMS, "max_depth": 4}, other, 4)
            models = first.result(LONG_S), second.result(LONG_S)
    assert refused.is_set()
    assert "waiting: another fit has joined these GPUs" in caplog.messages
    assert caplog.messages.count("2 engines grow trees in step") == 2
    for depth, model in zip((3, 4), models, strict=True):
        assert model.to_bytes() == on_cpu(data, depth, 4).to_bytes()


def on_cpu(data: Any, depth: int, n_rounds: int) -> Booster:
    with quantized(data) as plain:
        return train({"max_depth": depth, "n_jobs": 1, "device": "cpu"}, plain, n_rounds)


def fails_in_objective(dataset: QuantizedDataset) -> None:
    calls: list[int] = []

    def halves(label: Any, margin: Any) -> tuple[Any, Any]:
        calls.append(0)
        if len(calls) == 3:
            raise ValueError("no third time")
        return (margin - label) / 2, label * 0 + np.float32(0.5)

    with pytest.raises(ValueError, match="no third time"):
        train(PARAMS, dataset, 4, objective=halves)


def fails_in_gradients(_: QuantizedDataset) -> None:
    """One row of one engine has a label so large that its gradient is infinite, in large data of heavy rows."""
    data = make_data(np.random.default_rng(8), n_rows=5_000, weighted=False)
    y = np.where(np.arange(5_000) == 77, 2.0**59, np.abs(data.y)).astype(np.float32)
    with quantized(replace(data, y=y, weight=np.full(5_000, 1e35, np.float32)), engines=2, partitions=2) as dataset:
        with pytest.raises(DataError, match="gradient of inf in iteration 0"):
            train(PARAMS, dataset, 4)


def fails_in_callback(dataset: QuantizedDataset) -> None:
    class Stumbles(Callback):
        def after_round(self, info: RoundInfo) -> bool:
            raise KeyError("a callback")

    with pytest.raises(KeyError, match="a callback"):
        train(PARAMS, dataset, 4, callbacks=[Stumbles()])


@pytest.mark.emulated
@pytest.mark.parametrize("fails", [fails_in_objective, fails_in_gradients, fails_in_callback])
def test_a_fit_that_fails_gives_its_turn_back(
    fails: Callable[[QuantizedDataset], None], data: Any, refused: threading.Event
) -> None:
    with quantized(data, engines=2, partitions=2) as dataset:
        fails(dataset)
        assert train(PARAMS, dataset, 2).to_bytes() == on_cpu(data, 3, 2).to_bytes()
    assert not refused.is_set()


def take_all(turns: dict[str, Turn], names: tuple[str, ...]) -> list[bool]:
    """What the engines of a fit over these GPUs are told, each in a thread of its own."""
    peers = local_peers(len(names))
    with ThreadPoolExecutor(len(names)) as pool:
        found = [pool.submit(turns[name].is_taken, name, names, peer) for name, peer in zip(names, peers, strict=True)]
        return [each.result(LONG_S) for each in found]


def test_gpus_are_taken_together_or_not_at_all() -> None:
    turns = {name: Turn() for name in "abc"}
    assert take_all(turns, ("c", "a")) == [True, True]
    assert take_all(turns, ("b", "a")) == [False, False]
    assert take_all(turns, ("b", "c")) == [False, False]
    turns["a"].end()
    assert take_all(turns, ("a", "b")) == [True, True]  # nothing of those that were refused has stayed
    turns["c"].end()
    assert take_all(turns, ("c", "b")) == [False, False]


def test_fits_over_gpus_in_any_order_all_come_to_their_turn() -> None:
    turns = {name: Turn() for name in "abc"}
    orders = [*itertools.permutations("abc"), ("a", "b"), ("b", "a"), ("c", "b")]
    at_work: dict[str, int] = dict.fromkeys(turns, 0)

    def run(names: tuple[str, ...]) -> None:
        for _ in range(10):
            while not all(take_all(turns, names)):
                threading.Event().wait(0.001)
            for name in names:
                at_work[name] += 1
                assert at_work[name] == 1
            for name in names:
                at_work[name] -= 1
                turns[name].end()

    with ThreadPoolExecutor(len(orders)) as pool:
        for each in [pool.submit(run, names) for names in orders]:
            each.result(LONG_S)


def test_an_engine_that_fails_meanwhile_leaves_no_turn_taken() -> None:
    class Lost:
        rank, n_peers = 0, 2

        def share(self, message: Any) -> list[Any]:
            raise PeerLostError("another engine of the fit failed")

        def check(self) -> None:
            raise AssertionError("not called")

    turn = Turn()
    with pytest.raises(PeerLostError):
        turn.is_taken("a", ("a", "b"), Lost())
    assert take_all({"a": turn}, ("a",)) == [True]


class Noted(WakesByAbort):
    """Says which devices were aborted."""

    aborted: list[int] = []  # noqa: RUF012  # of the class: each test's own

    def abort(self) -> None:
        self.aborted.append(self._members.rank)
        super().abort()


@pytest.fixture
def aborted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The engines whose devices were aborted."""
    monkeypatch.setattr(Noted, "aborted", [])
    monkeypatch.setattr(EmulatedRuntime, "joined", lambda _, members, names: Noted(members))
    return Noted.aborted


@pytest.mark.emulated
def test_an_engine_that_fails_wakes_those_that_wait_on_their_gpus(
    data: Any, refused: threading.Event, aborted: list[int]
) -> None:
    failed: list[int] = []

    def halves(label: Any, margin: Any) -> tuple[Any, Any]:
        if not failed:
            failed.append(0)
            raise ValueError("only one of two engines")
        return (margin - label) / 2, label * 0 + np.float32(0.5)

    with quantized(data, engines=2, partitions=2) as dataset:
        with pytest.raises(ValueError, match="only one of two engines"):
            train(PARAMS, dataset, 4, objective=halves)
        assert set(aborted) == {0, 1}
        assert train(PARAMS, dataset, 2).to_bytes() == on_cpu(data, 3, 2).to_bytes()


@pytest.mark.emulated
def test_a_fit_that_ends_well_aborts_nothing(data: Any, refused: threading.Event, aborted: list[int]) -> None:
    with quantized(data, engines=2, partitions=2) as dataset:
        train(PARAMS, dataset, 2)
    assert aborted == []
