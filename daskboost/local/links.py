"""How a coordinator talks to its engines, and engines to each other, whatever carries the words.

`Engines` is the coordinator's side, `Peers` (`fit/peers.py`) an engine's side, `Engine` what must stand behind them.
Here is their embodiment within one process; across a Dask cluster they are `ChannelEngines` and `ChannelPeers`.

Every implementation keeps the same rules. A call is collective: all engines get a message and all reply, in engine
order. The first failure ends the conversation: no engine waits for another any more, and every later call raises the
same error. Messages are shared between threads or travel as bytes, so nobody changes one after it was sent or received.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

import numpy as np

from daskboost.dtypes import Array, UInt8
from daskboost.errors import DaskBoostError, DataError, EngineError, FitCancelledError
from daskboost.wire import register

V = TypeVar("V")


class Engine(Protocol):
    """One shard of the data on one device: a state machine that answers messages, one at a time."""

    def handle(self, message: Any, /) -> Any:
        """The reply to a message; blocking, never on an event loop."""

    def stop(self) -> None:
        """Wait for no other engine any more; from any thread."""

    def close(self) -> None:
        """Free everything; called once, after the last `handle` returned."""


class Engines(Protocol):
    """The coordinator's side: all engines of a fit."""

    @property
    def n_engines(self) -> int:
        """How many engines take part."""

    def ask(self, message: Any, /) -> list[Any]:
        """Send one message to all engines at once; their replies, in engine order.

        Raises
        ------
        EngineError
            An engine raised; the message has its type, text and rank, the cause its traceback.
        WorkerLostError
            A worker died, left or fell silent.
        FitCancelledError
            The fit was cancelled meanwhile.
        """

    def ask_each(self, messages: Sequence[Any], /) -> list[Any]:
        """Like `ask`, with one message per engine, in engine order."""

    def close(self) -> None:
        """End all engines and free what they hold. Idempotent."""


class PeerLostError(DaskBoostError, RuntimeError):
    """An engine waited for another one that failed: a consequence, never the cause."""


class RemoteError(Exception):
    """Stands in for an exception of another process as the cause of ours; its text is the remote traceback."""

    def __str__(self) -> str:
        return "\n" + "".join(map(str, self.args))


@register
@dataclass(frozen=True)
class Failure:
    """An exception on its way through a wire."""

    error_type: str
    """The class's name, without its module."""
    message: str
    """The exception's text."""
    traceback: str
    """The formatted traceback, causes included."""
    is_consequence: bool = False
    """Whether the exception only reports that somebody else failed."""
    is_about_data: bool = False
    """Whether it is a `DataError`: engines that decide in step refuse data alike, so that it matters little which one
    says so."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        text = "".join(traceback.format_exception(error))
        return cls(
            type(error).__name__, _sendable(_text(error)), _sendable(text), _is_consequence(error),
            isinstance(error, DataError),
        )  # fmt: skip

    def as_error(self, rank: int, where: str, phase: str) -> DaskBoostError:
        """Return the error to raise at the coordinator: a `DataError` stays that, others become an `EngineError`."""
        if not self.is_about_data:
            return self.as_engine_error(rank, where, phase)
        error = DataError(self.message)
        error.__cause__ = RemoteError(self.traceback)
        return error

    def as_engine_error(self, rank: int, where: str, phase: str) -> EngineError:
        """The error to raise at the coordinator, for engine `rank` at `where` that failed while handling `phase`."""
        error = EngineError(f"engine {rank} on {where} failed in {phase}: {self.error_type}: {self.message}")
        error.__cause__ = RemoteError(self.traceback)
        return error


def _text(error: BaseException) -> str:
    """Return an exception's text, as a traceback has it, which an exception may fail to give."""
    try:
        return str(error)
    except Exception:
        return "<its text cannot be had>"


def _sendable(text: str) -> str:
    """Return the text without lone surrogates, as in names of files: whoever waits for a failure must have it."""
    return text.encode("utf-8", "backslashreplace").decode()


def _is_consequence(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, PeerLostError | FitCancelledError):
            return True
        error = error.__cause__ or error.__context__
    return False


class Meeting:
    """Where threads wait for each other, again and again, until one of them gives up.

    Whoever was met by all goes on, even if one gives up before it has woken, as it may once it has gone on itself:
    `threading.Barrier` would fail there, with nothing that says why.
    """

    def __init__(self, n: int) -> None:
        self.n, self.is_over = n, False
        self._changed = threading.Condition()
        self._n_here = self._n_held = 0

    def wait(self) -> None:
        """Wait for all others; PeerLostError if one of them gives up before all are there."""
        with self._changed:
            held = self._n_held
            self._n_here += 1
            if self._n_here == self.n and not self.is_over:
                self._n_here, self._n_held = 0, held + 1
                self._changed.notify_all()
            while self._n_held == held:
                if self.is_over:
                    raise PeerLostError("another engine of the fit failed")
                self._changed.wait()

    def give_up(self) -> None:
        """Wait for nobody any more, and let nobody wait."""
        with self._changed:
            self.is_over = True
            self._changed.notify_all()


class LocalPeers:
    """`Peers` of engines that are threads of one process. Make them with `local_peers`."""

    def __init__(self, rank: int, board: list[list[Any]], meeting: Meeting) -> None:
        self.rank = rank
        self.n_peers = meeting.n
        self._board = board
        self._meeting = meeting

    def exchange(self, parts: Sequence[Array], /) -> list[Array]:
        check_parts(parts, self.n_peers)
        return self._exchange(parts)

    def share(self, message: V, /) -> list[V]:
        return self._exchange([message] * self.n_peers)

    def _exchange(self, parts: Sequence[V]) -> list[V]:
        if self.n_peers == 1:
            return list(parts)
        self._board[self.rank] = list(parts)
        self._meeting.wait()
        received = [row[self.rank] for row in self._board]
        self._meeting.wait()  # nobody overwrites the board before all have read it
        return received

    def common_memory(self, n_bytes: int, /) -> list[UInt8] | None:
        return self.share(np.zeros(n_bytes, np.uint8))

    def check(self) -> None:
        if self._meeting.is_over:
            raise PeerLostError("another engine of the fit failed")

    def close(self) -> None:
        self._meeting.give_up()


def local_peers(n_peers: int) -> list[LocalPeers]:
    """Connected `Peers` for `n_peers` engines in threads of this process, in rank order."""
    board: list[list[Any]] = [[None] * n_peers for _ in range(n_peers)]
    meeting = Meeting(n_peers)
    return [LocalPeers(rank, board, meeting) for rank in range(n_peers)]


def check_parts(parts: Sequence[Array], n_peers: int) -> None:
    """Every exchange has one part per engine."""
    if len(parts) != n_peers:
        raise ValueError(f"exchange needs one part per engine: {n_peers}, got {len(parts)}")


@dataclass(eq=False)
class LocalEngines:
    """`Engines` within this process: one in the caller's thread, several in a thread each, where each is also made and
    closed: at the same time as the others, and with the thread's current stream of a GPU for its whole life.

    Raises
    ------
    Exception
        An engine cannot be made; those that were are closed.
    """

    makers: Sequence[Callable[[], Engine]]
    """Make the engines, in engine order. They are closed by `close`."""
    peers: Sequence[LocalPeers]
    """What the engines were given: after a failure nobody may wait in them."""

    def __post_init__(self) -> None:
        self._failure: BaseException | None = None
        self._closed = False
        self._replies: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()
        self._inboxes: list[SimpleQueue[Any]] = [SimpleQueue() for _ in self.makers]
        self._threads: list[threading.Thread] = []
        self.engines: list[Engine | None] = [None] * len(self.makers)
        """The engines that are made and not closed."""
        self._close_errors: list[BaseException] = []
        if len(self.makers) == 1:
            self.engines = [self.makers[0]()]
            return
        self._threads = [
            threading.Thread(target=self._serve, args=(rank, make), name=f"daskboost-engine-{rank}", daemon=True)
            for rank, make in enumerate(self.makers)
        ]
        try:
            for thread in self._threads:
                thread.start()
            _, failures = self._collect()
            if failures:
                raise _first_cause(failures)[1]
        except BaseException:
            self.cancel()
            self.close()
            raise

    @property
    def n_engines(self) -> int:
        return len(self.makers)

    def ask(self, message: Any, /) -> list[Any]:
        return self.ask_each([message] * self.n_engines)

    def ask_each(self, messages: Sequence[Any], /) -> list[Any]:
        self._check(messages)
        if not self._threads:
            try:
                return [engine.handle(message) for engine, message in zip(self._made, messages, strict=True)]
            except Exception as error:
                self._fail(0, messages[0], error)
        for inbox, message in zip(self._inboxes, messages, strict=True):
            inbox.put(message)
        try:
            return self._gather(messages)
        except KeyboardInterrupt:
            self.cancel()
            raise

    def _gather(self, messages: Sequence[Any]) -> list[Any]:
        replies, failures = self._collect()
        if failures:
            rank, cause = _first_cause(failures)
            self._fail(rank, messages[rank], cause)
        return replies

    def _collect(self) -> tuple[list[Any], list[tuple[int, BaseException]]]:
        """Wait for what all threads say; the replies in engine order, and failures as they came."""
        replies: list[Any] = [None] * self.n_engines
        failures: list[tuple[int, BaseException]] = []
        for _ in self._threads:
            rank, reply, error = self._replies.get()
            replies[rank] = reply
            if error is not None:
                failures.append((rank, error))
                self._stop()
        return replies, failures

    @property
    def _made(self) -> list[Engine]:
        """The engines that there are now."""
        return [engine for engine in self.engines if engine is not None]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for inbox in self._inboxes[: len(self._threads)]:
            inbox.put(_END)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for engine in self._made:
            engine.close()
        self.engines = []
        errors, self._close_errors = self._close_errors, []
        if errors:
            raise errors[0]

    def cancel(self) -> None:
        """From another thread: make the running call, and every later one, raise `FitCancelledError`."""
        if self._failure is None:
            self._failure = FitCancelledError("the fit was cancelled")
        self._stop()

    def _check(self, messages: Sequence[Any]) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise RuntimeError("the engines of this fit are closed")
        if len(messages) != self.n_engines:
            raise ValueError(f"{len(messages)} messages for {self.n_engines} engines")

    def _fail(self, rank: int, message: object, error: BaseException) -> None:
        if self._failure is None:  # else it was cancelled, and the engine failed because of that
            where = "this process" if self._threads == [] else f"thread {self._threads[rank].name}"
            self._failure = Failure.of(error).as_engine_error(rank, where, type(message).__name__)
            self._failure.__cause__ = error
        raise self._failure

    def _stop(self) -> None:
        for peer in self.peers[:1]:
            peer.close()
        for engine in self._made:
            engine.stop()

    def _serve(self, rank: int, make: Callable[[], Engine]) -> None:
        answer: Callable[[], object] = partial(self._make, rank, make)
        while True:
            try:
                reply = (rank, answer(), None)
            except BaseException as error:  # a callable of the user's may exit: somebody waits all the same
                self._replies.put((rank, None, error))
            else:
                self._replies.put(reply)
            message = self._inboxes[rank].get()
            if message is _END:
                break
            answer = partial(self._handle, rank, message)
        engine = self.engines[rank]
        self.engines[rank] = None
        if engine is not None:
            try:
                engine.close()
            except BaseException as error:
                self._close_errors.append(error)

    def _make(self, rank: int, make: Callable[[], Engine]) -> None:
        self.engines[rank] = make()

    def _handle(self, rank: int, message: object) -> object:
        engine = self.engines[rank]
        assert engine is not None
        reply: object = engine.handle(message)
        return reply


def _first_cause(failures: Sequence[tuple[int, BaseException]]) -> tuple[int, BaseException]:
    """Return the failure that the others follow from, whatever order the threads ran in."""
    return next((each for each in failures if not Failure.of(each[1]).is_consequence), failures[0])


_END = object()
