"""Short messages that engines of one host tell each other in common memory, and what is sent where they cannot."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.test_common_memory import N, at_once, directory, make_trouble, peers

from daskboost.cluster import dask_fit, message_board
from daskboost.cluster.channel import unpack, unpack_all
from daskboost.cluster.message_board import MESSAGE_WORDS, MessageBoard
from daskboost.cluster.session import ChannelPeers, packed
from daskboost.fit.messages import GradientRange
from daskboost.local.links import PeerLostError
from daskboost.wire import arrays_in

__all__ = ["dask_fit", "directory", "peers"]  # the first registers the messages of fits

MOST_BYTES = 8 * (MESSAGE_WORDS - 1)


def nothing() -> None:
    """Find nothing wrong."""


def boards_of(token: str = "token") -> list[MessageBoard]:
    return at_once(lambda rank: MessageBoard(token, rank, N))


@pytest.fixture
def joined(peers: list[ChannelPeers], directory: Path) -> list[ChannelPeers]:
    """Engines that are joined by sockets and by a board."""
    for each, board in zip(peers, boards_of(), strict=True):
        each._board = board
    return peers


def fails_to_send(rank: int, monkeypatch: pytest.MonkeyPatch, peers: list[ChannelPeers]) -> None:
    """Let an engine's connections fail."""
    def connect() -> Any:
        raise AssertionError("the engine sends")

    monkeypatch.setattr(peers[rank]._connector, "connect", connect)


def test_each_is_told_what_all_say_again_and_again(directory: Path) -> None:
    boards = boards_of()
    assert at_once(lambda rank: boards[rank].serves(nothing)) == [True] * N
    assert not list(directory.iterdir())  # nobody else opens them, and nothing is left
    for number, length in enumerate([0, 1, 7, MOST_BYTES, 8, 3]):
        said = [bytes([number + rank]) * length for rank in range(N)]
        assert at_once(lambda rank, said=said: boards[rank].tell(said[rank], nothing)) == [said] * N  # type: ignore[misc]


def test_nothing_is_sent_where_all_see_the_board(
    joined: list[ChannelPeers], monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(N):
        fails_to_send(rank, monkeypatch, joined)
    for _ in range(3):
        for found in at_once(lambda rank: joined[rank].share((rank, np.arange(rank)))):
            assert [(rank, len(values)) for rank, values in found] == [(rank, rank) for rank in range(N)]


def test_all_send_what_one_of_them_has_no_room_for(joined: list[ChannelPeers]) -> None:
    for n_items in (1, MOST_BYTES, 2):
        for found in at_once(lambda rank, n=n_items: joined[rank].share(np.full(n if rank == 1 else 3, rank))):  # type: ignore[misc]
            assert [len(values) for values in found] == [3, n_items, 3]
            assert [set(values.tolist()) for values in found] == [{0}, {1}, {2}]


RANGE = GradientRange(np.array([1.5, np.nan]), np.array([0.25, 1e9]))
SAID: dict[str, list[Any]] = {
    "the same": ["a", "a", "a"],
    "other words": ["a", None, (1, "b")],
    "other numbers": [RANGE, GradientRange(np.zeros(2), np.ones(2)), GradientRange(np.full(2, np.inf), np.arange(2.0))],
    "other shapes": [RANGE, GradientRange(np.zeros(3), np.ones(3)), GradientRange(np.zeros(0), np.zeros(1))],
    "arrays of arrays": [
        [{"a": np.arange(6, dtype=np.int32).reshape(2, 3).T * k, "b": (np.zeros((0, 2)), k)}, np.full(1, k)]
        for k in (1, 1, 7)
    ],
    "other types": [np.arange(3), np.arange(3.0), np.arange(3, dtype=np.int32)],
}


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("kind", SAID)
def test_messages_like_ones_own_are_unpacked_alike(kind: str, place: int) -> None:
    said = [b"".join(packed(each)) for each in SAID[kind]]
    found = unpack_all(said, SAID[kind][place], place)
    assert found[place] is SAID[kind][place]
    for message, each in zip(said, found, strict=True):
        assert b"".join(packed(each)) == message
        assert type(each) is type(unpack(message))
        assert all(own.flags.aligned and own.flags.writeable for own in arrays_in(each))


@pytest.mark.parametrize("trouble", ["no such place", "no memory", "other hosts"])
def test_a_board_serves_all_or_none(
    trouble: str, peers: list[ChannelPeers], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    culprit = make_trouble(trouble, directory, monkeypatch)

    def make(rank: int) -> MessageBoard:
        culprit.is_one = rank == 1
        return MessageBoard("token", rank, N)

    def share(rank: int) -> list[str]:
        culprit.is_one = rank == 1
        return peers[rank].share(f"engine {rank}")

    for each, board in zip(peers, at_once(make), strict=True):
        each._board = board
    for _ in range(2):
        assert at_once(share) == [["engine 0", "engine 1", "engine 2"]] * N
    assert [each._board.serves(nothing) for each in peers if each._board] == [False] * N
    assert not list(directory.iterdir())


def test_boards_of_two_fits_do_not_meet(directory: Path) -> None:
    boards = [*boards_of("one"), *boards_of("two")]
    with ThreadPoolExecutor(2 * N) as threads:
        assert all(threads.map(lambda board: board.serves(nothing), boards))
        told = list(threads.map(lambda k: boards[k].tell(bytes([k]), nothing), range(2 * N)))
    assert told == [[b"\0", b"\1", b"\2"]] * N + [[b"\3", b"\4", b"\5"]] * N


@pytest.mark.parametrize("when", ["before all have looked", "in a meeting"])
def test_who_waits_for_an_engine_that_leaves_is_told(
    when: str, joined: list[ChannelPeers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_board, "BOARD_LOOK_S", 1e-3)
    if when == "in a meeting":
        at_once(lambda rank: joined[rank].share(rank))

    def work(rank: int) -> Any:
        if rank == 2:
            time.sleep(0.1)
            return joined[rank].close()
        with pytest.raises(PeerLostError, match=f"engine {rank} lost another"):
            joined[rank].share(rank)
        return None

    at_once(work)
    assert all(each._closed for each in joined)  # who loses one is lost to all others


def test_a_fit_that_is_cancelled_wakes_who_waits(joined: list[ChannelPeers]) -> None:
    at_once(lambda rank: joined[rank].share(rank))
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            joined[0].share(0)
        except PeerLostError as error:
            raised.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    time.sleep(0.1)
    joined[0].close()
    waiting.join(10)
    assert not waiting.is_alive()
    assert raised


def test_no_file_is_left_where_nobody_has_looked(directory: Path) -> None:
    boards = boards_of()
    assert len(list(directory.iterdir())) == N
    for board in boards:
        board.close()
        board.release()
    assert not list(directory.iterdir())
