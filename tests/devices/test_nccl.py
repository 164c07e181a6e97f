"""Communicators of a GPU: kept between fits, and aborted when one fails; NCCL itself is an imitation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from daskboost.devices.gpu.runtime import nccl
from daskboost.devices.gpu.runtime.collective import Members
from daskboost.devices.gpu.runtime.nccl import Communicator, Communicators, NcclCollective, why_no_nccl
from daskboost.local.links import local_peers

GPUS = ("a", "b")
LONG_S = 60.0


class FakeHandle:
    """What CuPy's communicator would be told."""

    def __init__(self, n_ranks: int, unique_id: bytes, rank: int) -> None:
        self.made_as = (n_ranks, unique_id, rank)
        self.n_aborts = 0
        self.enqueued: list[tuple[Any, ...]] = []

    def allReduce(self, *arguments: int) -> None:
        self.enqueued.append(("reduce", *arguments))

    def allGather(self, *arguments: int) -> None:
        self.enqueued.append(("gather", *arguments))

    def abort(self) -> None:
        self.n_aborts += 1


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakeHandle]:
    """Communicators that an imitation of CuPy's NCCL has made, whose ids are counted."""
    found: list[FakeHandle] = []
    n_ids: list[int] = []

    def new_id() -> tuple[int, ...]:
        n_ids.append(0)
        return (7, len(n_ids))

    def make(*arguments: Any) -> FakeHandle:
        found.append(FakeHandle(*arguments))
        return found[-1]

    numbers = {"NCCL_INT32": 2, "NCCL_UINT32": 3, "NCCL_INT64": 4, "NCCL_UINT64": 5, "NCCL_SUM": 0, "NCCL_MAX": 2}
    module = SimpleNamespace(get_unique_id=new_id, NcclCommunicator=make, get_version=lambda: 22_800, **numbers)
    monkeypatch.setattr(nccl, "nccl_module", lambda: module)
    return found


def on_all(work: Callable[[Communicators, Members], Communicator], kept: list[Communicators]) -> list[Communicator]:
    """Run the same on all GPUs, each in a thread of its own."""
    with ThreadPoolExecutor(len(kept)) as pool:
        found = [pool.submit(work, *each) for each in zip(kept, local_peers(len(kept)), strict=True)]
        return [each.result(LONG_S) for each in found]


def take(kept: Communicators, members: Members) -> Communicator:
    return kept.take(GPUS, members)


def test_all_gpus_take_the_id_of_the_first(made: list[FakeHandle]) -> None:
    found = on_all(take, [Communicators(), Communicators()])
    assert sorted(each.made_as for each in made) == [(2, bytes((7, 1)), 0), (2, bytes((7, 1)), 1)]
    assert {each.name for each in found} == {"0701"}


def test_they_are_kept_for_the_same_gpus(made: list[FakeHandle]) -> None:
    kept = [Communicators(), Communicators()]
    first = on_all(take, kept)
    for own, used in zip(kept, first, strict=True):
        own.give_back(GPUS, used)
    assert on_all(take, kept) == first
    assert len(made) == 2
    on_all(lambda own, members: own.take(("b", "a"), members), kept)  # in another order ranks differ
    assert len(made) == 4


def test_all_are_made_anew_where_one_gpu_has_lost_its_own(made: list[FakeHandle]) -> None:
    kept = [Communicators(), Communicators()]
    first = on_all(take, kept)
    kept[1].give_back(GPUS, first[1])
    second = on_all(take, kept)
    assert len(made) == 4
    assert {each.name for each in second} == {"0702"}
    assert first[1].is_aborted and not any(each.is_aborted for each in second)


def test_one_that_was_aborted_is_not_kept(made: list[FakeHandle]) -> None:
    kept = [Communicators(), Communicators()]
    first = on_all(take, kept)
    for own, used in zip(kept, first, strict=True):
        used.abort()
        own.give_back(GPUS, used)
    assert on_all(take, kept) != first
    assert [each.n_aborts for each in made] == [1, 1, 0, 0]


def test_a_second_one_of_the_same_gpus_is_not_kept(made: list[FakeHandle]) -> None:
    kept, (one, other) = Communicators(), (Communicator(FakeHandle(1, b"", 0), name) for name in "xy")
    kept.give_back(GPUS, one)
    kept.give_back(GPUS, other)
    assert other.is_aborted and not one.is_aborted
    kept.close()
    assert one.is_aborted
    kept.close()


def test_threads_abort_once(made: list[FakeHandle]) -> None:
    handle = FakeHandle(1, b"", 0)
    communicator, ready = Communicator(handle, "x"), threading.Barrier(8)

    def abort() -> None:
        ready.wait(LONG_S)
        communicator.abort()

    with ThreadPoolExecutor(8) as pool:
        for each in [pool.submit(abort) for _ in range(8)]:
            each.result(LONG_S)
    assert handle.n_aborts == 1


class FakeArray:
    """What is asked of an array on a GPU."""

    def __init__(self, values: Any, address: int) -> None:
        self.size, self.dtype, self.flags = values.size, values.dtype, SimpleNamespace(c_contiguous=True)
        self.data = SimpleNamespace(ptr=address)


class FakeEvent:
    """An end of what is enqueued, which comes when it has been looked at a few times."""

    n_looks = 3

    def __init__(self, disable_timing: bool) -> None:
        self.left = self.n_looks

    def record(self) -> None:
        """Be the end of what has been enqueued."""

    @property
    def done(self) -> bool:
        self.left -= 1
        return self.left < 0


class NoEnd(FakeEvent):
    """An end that does not come before something is aborted."""

    n_looks = 1 << 60


def test_who_waits_for_a_gpu_that_stopped_gives_up(made: list[FakeHandle], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "CLOSE_S", 0.01)
    cuda: Any = SimpleNamespace(Event=NoEnd)
    kept = Communicators()
    NcclCollective(cuda, kept, local_peers(1)[0], ("a",)).close()
    assert made[0].n_aborts == 1
    NcclCollective(cuda, kept, local_peers(1)[0], ("a",))
    assert len(made) == 2


@pytest.mark.parametrize(("dtype", "number"), [(np.int32, 2), (np.uint32, 3), (np.int64, 4), (np.uint64, 5)])
def test_what_is_enqueued(dtype: Any, number: int, made: list[FakeHandle]) -> None:
    cuda: Any = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=99), Event=FakeEvent)
    kept = Communicators()
    joined = NcclCollective(cuda, kept, local_peers(1)[0], ("a",))
    values: Any = FakeArray(np.zeros((3, 4), dtype), 1_000)
    out: Any = FakeArray(np.zeros((6, 4), dtype), 2_000)
    joined.add_up(values)
    joined.find_largest(values)
    joined.gather(values, out)
    assert made[0].enqueued == [
        ("reduce", 1_000, 1_000, 12, number, 0, 99), ("reduce", 1_000, 1_000, 12, number, 2, 99),
        ("gather", 1_000, 2_000, 12, number, 99),
    ]  # fmt: skip
    joined.close()
    assert made[0].n_aborts == 0
    again = NcclCollective(cuda, kept, local_peers(1)[0], ("a",))
    assert len(made) == 1
    again.abort()
    again.close()
    NcclCollective(cuda, kept, local_peers(1)[0], ("a",))
    assert [each.n_aborts for each in made] == [1, 0]


def test_why_gpus_cannot_be_joined(made: list[FakeHandle], monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_no_nccl() == ""

    def missing() -> Any:
        raise ImportError("libnccl.so.2: cannot open shared object file")

    monkeypatch.setattr(nccl, "nccl_module", missing)
    assert why_no_nccl() == (
        "NCCL cannot be loaded (libnccl.so.2: cannot open shared object file; pip install nvidia-nccl-cu13, or "
        "nvidia-nccl-cu12 with CUDA 12)"
    )
