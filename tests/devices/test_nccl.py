"""Communicators of a GPU: kept between fits, and aborted when one fails; NCCL itself is an imitation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cluster.dask_fixtures import eventually

from daskboost.devices.gpu.runtime import nccl
from daskboost.devices.gpu.runtime.collective import Members
from daskboost.devices.gpu.runtime.nccl import AbortedError, Communicator, Communicators, NcclCollective, why_no_nccl
from daskboost.local.links import PeerLostError, local_peers

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

    def reduceScatter(self, *arguments: int) -> None:
        self.enqueued.append(("shares", *arguments))

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
    assert all(each.has_ended(LONG_S) for each in first)
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
    assert communicator.has_ended(LONG_S)
    assert handle.n_aborts == 1


class Unfree(FakeHandle):
    """Whose abort returns only when the graphs are gone that have something of it."""

    def __init__(self) -> None:
        super().__init__(1, b"", 0)
        self.graphs_are_gone = threading.Event()

    def abort(self) -> None:
        assert self.graphs_are_gone.wait(LONG_S)
        super().abort()


def test_an_abort_does_not_wait_for_graphs_which_may_be_the_callers() -> None:
    handle, kept = Unfree(), Communicators()
    communicator = Communicator(handle, "x")
    communicator.abort()
    assert communicator.is_aborted and not communicator.has_ended(0.01)
    with pytest.raises(AbortedError, match="joined no longer"):
        communicator.enqueue(lambda handle: handle.allReduce(1, 1, 1, 1, 1, 1))
    with pytest.raises(AbortedError):
        communicator.check()
    handle.graphs_are_gone.set()
    kept.give_back(GPUS, communicator)
    assert handle.n_aborts == 1 and not handle.enqueued
    kept.close()
    assert handle.n_aborts == 1


def test_a_graph_that_stays_is_not_waited_for_for_ever(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl, "FREE_S", 0.01)
    handle = Unfree()
    communicator = Communicator(handle, "x")
    communicator.abort()
    Communicators().give_back(GPUS, communicator)
    assert "NCCL has not freed what joined 2 GPUs yet" in caplog.messages
    handle.graphs_are_gone.set()
    assert communicator.has_ended(LONG_S)


@pytest.mark.parametrize("returns", [True, False], ids=["soon", "by the abort alone"])
def test_what_is_being_enqueued_is_not_freed_beneath_it(returns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first use of a communicator connects GPUs, and one of them may not come: then only an abort ends it."""
    monkeypatch.setattr(nccl, "ENQUEUE_S", LONG_S if returns else 0.01)
    handle, is_in, may_return = FakeHandle(1, b"", 0), threading.Event(), threading.Event()
    communicator = Communicator(handle, "x")

    def connect(_: Any) -> None:
        is_in.set()
        assert may_return.wait(LONG_S)
        assert handle.n_aborts == (not returns)

    with ThreadPoolExecutor(1) as pool:
        enqueued = pool.submit(communicator.enqueue, connect)
        assert is_in.wait(LONG_S)
        communicator.abort()
        assert communicator.has_ended(0.01 if returns else LONG_S) is not returns
        may_return.set()
        enqueued.result(LONG_S)
    assert communicator.has_ended(LONG_S)


class Alone(FakeHandle):
    """Which is made once another GPU has come, or never."""

    others_come = threading.Event()

    def __init__(self, *arguments: Any) -> None:
        assert self.others_come.wait(LONG_S)
        super().__init__(*arguments)


@pytest.mark.parametrize("comes", [True, False], ids=["too late", "and fails"])
def test_nobody_waits_to_be_joined_with_a_gpu_that_is_lost(
    comes: bool, made: list[FakeHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What NCCL makes nevertheless is aborted."""
    found: list[FakeHandle] = []
    Alone.others_come.clear()

    def make(*arguments: Any) -> FakeHandle:
        alone = Alone(*arguments)
        if not comes:
            raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR: unhandled system error")
        found.append(alone)
        return alone

    monkeypatch.setattr(nccl.nccl_module(), "NcclCommunicator", make)
    one, other = local_peers(2)
    with ThreadPoolExecutor(2) as pool:
        waits = pool.submit(Communicators().take, GPUS, one)
        for told in ("", b""):  # it has kept none, and takes the id
            pool.submit(other.share, told).result(LONG_S)
        time.sleep(3 * nccl.MAKING_LOOK_S)
        assert not waits.done()
        other.close()
        with pytest.raises(PeerLostError):
            waits.result(LONG_S)
    Alone.others_come.set()
    assert eventually(lambda: not comes or (found != [] and found[0].n_aborts == 1), LONG_S)


def test_who_cannot_be_joined_says_why(made: list[FakeHandle], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> FakeHandle:
        raise RuntimeError("NCCL_ERROR_SYSTEM_ERROR: unhandled system error")

    monkeypatch.setattr(nccl.nccl_module(), "NcclCommunicator", fail)
    with pytest.raises(RuntimeError, match="unhandled system error"):
        Communicators().take(("a",), local_peers(1)[0])


def test_what_was_kept_is_aborted_where_another_gpu_is_lost_meanwhile(made: list[FakeHandle]) -> None:
    kept = Communicators()
    found = on_all(take, [kept, Communicators()])[0]
    kept.give_back(GPUS, found)
    one, other = local_peers(2)
    other.close()
    with pytest.raises(PeerLostError):
        kept.take(GPUS, one)
    assert found.has_ended(LONG_S)


def test_communicators_are_made_on_their_gpu(made: list[FakeHandle]) -> None:
    """NCCL takes the current device of the thread that asks."""
    threads: list[int] = []

    @contextmanager
    def on_device() -> Iterator[None]:
        threads.append(threading.get_ident())
        assert not made
        yield
        assert len(made) == 1

    Communicators(on_device).take(("a",), local_peers(1)[0])
    assert len(threads) == 1


class FakeArray:
    """What is asked of an array on a GPU."""

    def __init__(self, values: Any, address: int) -> None:
        self.size, self.dtype, self.flags = values.size, values.dtype, SimpleNamespace(c_contiguous=True)
        self.itemsize = values.itemsize
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
    joined = NcclCollective(cuda, kept, local_peers(1)[0], ("a",))
    joined.check()
    joined.close()
    assert made[0].n_aborts == 1
    with pytest.raises(AbortedError):
        joined.check()
    NcclCollective(cuda, kept, local_peers(1)[0], ("a",))
    assert len(made) == 2


def test_a_gpu_that_failed_is_parted_from_the_others(made: list[FakeHandle]) -> None:
    """The driver tells of it at the next call, whatever that is."""

    def fail(disable_timing: bool) -> FakeEvent:
        raise RuntimeError("cudaErrorIllegalAddress")

    cuda: Any = SimpleNamespace(Event=fail)
    joined = NcclCollective(cuda, Communicators(), local_peers(1)[0], ("a",))
    with pytest.raises(RuntimeError, match="cudaErrorIllegalAddress"):
        joined.close()
    assert made[0].n_aborts == 1


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
    joined.n_members, joined.rank = 3, 2
    joined.add_up_shares(values)
    assert made[0].enqueued == [
        ("reduce", 1_000, 1_000, 12, number, 0, 99), ("reduce", 1_000, 1_000, 12, number, 2, 99),
        ("gather", 1_000, 2_000, 12, number, 99),
        ("shares", 1_000, 1_000 + 8 * values.itemsize, 4, number, 0, 99),
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
