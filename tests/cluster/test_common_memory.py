"""Rooms that engines of one host have in common, and what becomes of engines that wait there."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
import pytest
from cluster.test_channels import PairConnector

from daskboost.cluster import common_memory
from daskboost.cluster.channel import Channel
from daskboost.cluster.session import ChannelPeers
from daskboost.devices.cpu import team
from daskboost.engine.tree_room import addresses
from daskboost.local.links import PeerLostError, local_peers

T = TypeVar("T")
N = 3
arrive: Any = numba.njit(lambda room: team.arrive(room))
come_together: Any = numba.njit(lambda room, rooms: team.come_together(room, rooms))


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(common_memory, "DIRECTORY", tmp_path)
    return tmp_path


@pytest.fixture
def peers() -> Iterator[list[ChannelPeers]]:
    """Engines that are joined by sockets."""
    pipes = {(i, j): tuple(map(Channel, socket.socketpair())) for i in range(N) for j in range(N) if i != j}
    made = [
        ChannelPeers(rank, N, PairConnector(
            {j: pipes[rank, j][0] for j in range(N) if j != rank}, {j: pipes[j, rank][1] for j in range(N) if j != rank}
        )) for rank in range(N)
    ]  # fmt: skip
    yield made
    for each in made:
        each.close()
    for each in made:
        each.release()


def at_once(work: Callable[[int], T]) -> list[T]:
    """Do the work of all engines, each in a thread."""
    with ThreadPoolExecutor(N) as threads:
        return list(threads.map(work, range(N)))


def test_each_engine_is_told_what_the_others_share(peers: list[ChannelPeers]) -> None:
    messages: list[list[Any]] = [["a", "b", "c"], [np.arange(100_000) + rank for rank in range(N)]]
    for said in messages:
        for found in at_once(lambda rank, said=said: peers[rank].share(said[rank])):  # type: ignore[misc]
            assert all(np.array_equal(own, other) for own, other in zip(found, said, strict=True))


def test_all_see_what_each_writes(peers: list[ChannelPeers], directory: Path) -> None:
    rooms: list[Any] = at_once(lambda rank: peers[rank].common_memory(4_096))
    assert not list(directory.iterdir())  # nobody else opens them, and nothing is left
    for rank, own in enumerate(rooms):
        assert not own[rank].any()
        own[rank][:] = rank + 1
    assert all([room[0] for room in own or ()] == [1, 2, 3] for own in rooms)


def test_rooms_of_one_process_are_its_arrays() -> None:
    peers = local_peers(N)
    rooms: list[Any] = at_once(lambda rank: peers[rank].common_memory(64))
    assert all(own[k] is rooms[k][k] for own in rooms for k in range(N))


def make_trouble(trouble: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> threading.local:
    """Give rooms trouble, where they cannot be made or opened by those threads for which `is_one` is set in what is
    returned; or by all, where there is no such place."""
    culprit = threading.local()
    allocate, open_room = os.posix_fallocate, os.open

    def refuse(*given: Any) -> None:
        if culprit.is_one:
            raise OSError(errno.ENOSPC, "the test says so")
        allocate(*given)

    def lose(path: Any, flags: int, *mode: int) -> Any:
        if culprit.is_one and not flags & os.O_CREAT:
            raise FileNotFoundError(path)
        return open_room(path, flags, *mode)

    if trouble == "no such place":
        monkeypatch.setattr(common_memory, "DIRECTORY", directory / "nowhere")
    elif trouble == "no memory":
        monkeypatch.setattr(os, "posix_fallocate", refuse)
    else:
        assert trouble == "other hosts"
        monkeypatch.setattr(os, "open", lose)
    return culprit


@pytest.mark.parametrize("trouble", ["no such place", "no memory", "too large", "other hosts"])
def test_there_are_rooms_for_all_or_for_none(
    trouble: str, peers: list[ChannelPeers], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_bytes, culprit = 4_096, threading.local()
    if trouble == "too large":
        monkeypatch.setattr(common_memory, "MOST_BYTES", n_bytes - 1)
    else:
        culprit = make_trouble(trouble, directory, monkeypatch)

    def ask(rank: int) -> Any:
        culprit.is_one = rank == 1
        return peers[rank].common_memory(n_bytes)

    assert at_once(ask) == [None] * N
    assert not list(directory.iterdir())


def test_what_a_killed_process_has_left_is_removed(directory: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    left, living, strange = (
        directory / f"{common_memory.PREFIX}{name}" for name in (f"{ended.pid}-a", f"{os.getpid()}-a", "what-a")
    )
    for path in (left, living, strange):
        path.touch()
    room = common_memory.Room(64)
    assert sorted(directory.iterdir()) == sorted([living, strange, directory / room.name])
    room.forget_name()


def test_engines_come_together_or_look_again() -> None:
    rooms = [np.zeros(16, np.int64) for _ in range(N)]
    places = addresses(rooms)
    for room in rooms[:2]:
        arrive(room)
    assert not come_together(rooms[0], places)
    arrive(rooms[2])
    assert all(come_together(room, places) for room in rooms)
    assert [room[0] for room in rooms] == [1] * N


def test_who_waits_for_an_engine_that_is_gone_is_told(peers: list[ChannelPeers]) -> None:
    at_once(lambda rank: peers[rank].share(rank))
    peers[0].check()
    peers[2].close()
    with pytest.raises(PeerLostError, match="engine 0 lost another"):
        peers[0].check()
    alone = local_peers(2)
    alone[1].close()
    with pytest.raises(PeerLostError, match="another engine"):
        alone[0].check()
