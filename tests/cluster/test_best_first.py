"""Trees that grow best first on a device are in the strict order, whatever is split ahead of it, in vain or not."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime
from strategies.trees import Data, make_data, quantized

from daskboost import Booster, train
from daskboost.devices.gpu.runtime import cuda
from daskboost.devices.gpu.runtime.kernel_source import source_folder
from daskboost.devices.gpu.runtime.launches import Recorder
from daskboost.devices.gpu.trees import best_first

N_ROWS = 4_096
N_LEAVES = 25
BITS = np.arange(N_ROWS)[:, None] >> np.arange(6) & 1
"""Of six features of two values, which are independent: rows have each combination equally often."""


def of_bits(label: Callable[[np.random.Generator], Any]) -> Data:
    return Data(BITS.astype(np.float32), np.asarray(label(np.random.default_rng(5)), np.float32))


DATA: dict[str, Callable[[], Data]] = {
    "equal gains": lambda: of_bits(lambda _: BITS.sum(axis=1)),
    "gains below lesser ones": lambda: of_bits(
        lambda _: np.prod(1 - 2 * BITS[:, :4], axis=1) + BITS @ np.arange(6) / 500
    ),
    "chains": lambda: of_bits(lambda rng: np.exp(6 * BITS.prod(axis=1) + BITS @ np.arange(6) + rng.random(N_ROWS))),
    "noise": lambda: replace(
        make_data(np.random.default_rng(6), n_rows=N_ROWS, n_values=60),
        y=np.random.default_rng(7).normal(size=N_ROWS).astype(np.float32),
    ),
}
ROOMS: dict[str, dict[str, int]] = {
    "as it is": {},
    "none": {"SPLITS_PER_LEAF": 1},
    "none, all at once": {"SPLITS_PER_LEAF": 1, "LEAVES_PER_SPLIT": 1},
    "all at once": {"LEAVES_PER_SPLIT": 1},
    "one at a time": {"LEAST_WIDTH": 1, "LEAVES_PER_SPLIT": 1000},
}


@pytest.fixture(autouse=True, params=[
    pytest.param("emulated", marks=pytest.mark.emulated), pytest.param("cuda", marks=pytest.mark.gpu),
])  # fmt: skip
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "emulated":
        monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=9))


def fitted(data: Data, device: str, max_leaves: int, **params: Any) -> Booster:
    params = {"max_depth": 0, "grow_policy": "lossguide", "max_leaves": max_leaves, "min_child_weight": 0, **params}
    with quantized(data, max_bin=64) as dataset:
        return train({**params, "n_jobs": 1, "device": device}, dataset, 2)


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("name", DATA)
def test_what_is_split_ahead_does_not_matter(name: str, room: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for constant, value in ROOMS[room].items():
        monkeypatch.setattr(best_first, constant, value)
    data = DATA[name]()
    assert fitted(data, "cuda", N_LEAVES).to_bytes() == fitted(data, "cpu", N_LEAVES).to_bytes()


@pytest.mark.parametrize("name", ["equal gains", "noise"])
@pytest.mark.parametrize("max_leaves", [3, 6, 13, 27, 50])
def test_levels_end_with_the_first_of_the_best(name: str, max_leaves: int) -> None:
    """Where `max_leaves` leaves room for some of a level's splits."""
    data, params = DATA[name](), {"max_depth": 6, "grow_policy": "depthwise"}
    found, expected = (fitted(data, device, max_leaves, **params) for device in ("cuda", "cpu"))
    assert found.to_bytes() == expected.to_bytes()
    assert expected.trees[0].n_leaves == max_leaves


def test_the_data_are_what_they_are_called() -> None:
    """Many nodes gain the same; or much more than the nodes above them."""
    names = ("equal gains", "gains below lesser ones")
    equal, lesser = (fitted(DATA[name](), "cpu", N_LEAVES).trees[0] for name in names)
    gains = equal.gain[equal.left_child >= 0]
    assert len(np.unique(gains)) < len(gains) / 2
    inner = np.flatnonzero(lesser.left_child >= 0)
    assert (lesser.gain[lesser.left_child[inner]] > 10 * lesser.gain[inner]).any()


@pytest.mark.parametrize(("name", "most"), [("noise", 17), ("gains below lesser ones", 9)])
def test_steps_are_few(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children of nodes that were split ahead are too: a tree takes about as many steps as it is deep."""
    queue, queued = Recorder.__call__, []

    def noted(self: Recorder, name: Any, work: Callable[[], None]) -> None:  # replayed steps too
        queued.append(name[0])
        queue(self, name, work)

    monkeypatch.setattr(Recorder, "__call__", noted)
    monkeypatch.setattr(best_first, "STEPS", 1)
    fitted(DATA[name](), "cuda", 63)
    assert queued.count("root") == queued.count("leaves") == 2
    assert 0 < queued.count("steps") <= 2 * most


def test_the_largest_tree_has_room_in_the_kernels() -> None:
    """Their queue, and the bits of a node's number in a key."""
    queue = re.search(r"variants: MOST_LEAVES=(\d+),(\d+)", (source_folder() / "best_first.cu").read_text())
    bits = re.search(r"NODE_BITS = MOST_LEAVES > 1024 \? (\d+) : (\d+)", (source_folder() / "ahead.cuh").read_text())
    assert queue is not None and bits is not None
    assert (int(queue[1]), int(queue[2])) == (best_first.SHARED_LEAVES, best_first.MOST_LEAVES)
    for leaves, of_node in ((best_first.MOST_LEAVES, bits[1]), (best_first.SHARED_LEAVES, bits[2])):
        assert 2 * best_first.most_splits(leaves) + 1 < 2 ** int(of_node)
        assert best_first.step_width(leaves) <= best_first.THREADS


@pytest.mark.parametrize("name", ["noise", "equal gains"])
def test_leaves_that_wait_may_lie_in_device_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_first, "SHARED_LEAVES", 5)
    data = DATA[name]()
    assert fitted(data, "cuda", N_LEAVES).to_bytes() == fitted(data, "cpu", N_LEAVES).to_bytes()
