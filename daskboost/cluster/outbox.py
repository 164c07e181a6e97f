"""Saves round trips: requests whose replies nobody waits for travel with the next one that somebody does."""

from __future__ import annotations

from typing import Any, Protocol

from daskboost.cluster.messages import OnSample, Several


class AsksEngines(Protocol):
    """The coordinator's side of the engines (see `links.Engines`)."""

    @property
    def n_engines(self) -> int: ...

    def ask(self, message: Any, /) -> list[Any]: ...


class Outbox:
    """Engines with a queue in front of them."""

    def __init__(self, engines: AsksEngines) -> None:
        self._engines = engines
        self._waiting: list[Any] = []

    @property
    def n_engines(self) -> int:
        return self._engines.n_engines

    def later(self, message: Any) -> None:
        """Send a request before the next one that is asked; its replies are dropped."""
        self._waiting.append(message)

    def ask(self, message: Any, /) -> list[Any]:
        """Replies of all engines to one request, in engine order."""
        return self.ask_all(message)[0]

    def ask_all(self, *messages: Any) -> list[list[Any]]:
        """Replies to several requests in one round trip: one list per request, in engine order."""
        waiting, self._waiting = self._waiting, []
        if not waiting and len(messages) == 1:
            return [self._engines.ask(messages[0])]
        replies = [reply.replies[len(waiting) :] for reply in self._engines.ask(Several((*waiting, *messages)))]
        return [list(found) for found in zip(*replies, strict=True)] if messages else []

    def flush(self) -> None:
        """Send what waits."""
        self.ask_all()


class SampleOutbox(Outbox):
    """Asks engines about their samples; what waits goes in the order of `outbox`, with the next that it sends."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__(outbox)
        self._outbox = outbox

    def later(self, message: Any) -> None:
        self._outbox.later(OnSample(message))

    def ask_all(self, *messages: Any) -> list[list[Any]]:
        return self._outbox.ask_all(*map(OnSample, messages))
