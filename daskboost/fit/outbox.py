"""Saves round trips: requests whose replies nobody waits for yet travel with the next one that somebody does."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from daskboost.fit.messages import OnSample, Request, Several

R = TypeVar("R")


class AsksEngines(Protocol):
    """The coordinator's side of the engines (see `links.Engines`)."""

    @property
    def n_engines(self) -> int: ...

    def ask(self, message: Request[R], /) -> list[R]: ...


class Answers(Generic[R]):
    """The replies of all engines to a request, in engine order, once they have come (`Outbox.get`).

    It does not know its outbox, so that requests which nobody waits for keep no engine alive.
    """

    replies: list[R] | None = None


class Outbox:
    """Engines with a queue in front of them."""

    def __init__(self, engines: AsksEngines) -> None:
        self._engines = engines
        self._waiting: list[tuple[Request[Any], Answers[Any]]] = []

    @property
    def n_engines(self) -> int:
        """How many engines answer."""
        return self._engines.n_engines

    def later(self, request: Request[R]) -> Answers[R]:
        """Send a request before, or with, the next one whose replies somebody waits for."""
        answers: Answers[R] = Answers()
        self._waiting.append((request, answers))
        return answers

    def get(self, answers: Answers[R]) -> list[R]:
        """Return the replies to a request; sends what waits if they have not come yet."""
        if answers.replies is None:
            self.flush()
        assert answers.replies is not None
        return answers.replies

    def ask(self, request: Request[R], /) -> list[R]:
        """Return the replies of all engines to one request, in engine order."""
        return self.get(self.later(request))

    def flush(self) -> None:
        """Send what waits, in one round trip."""
        waiting, self._waiting = self._waiting, []
        if len(waiting) == 1:
            request, answers = waiting[0]
            answers.replies = self._engines.ask(request)
        elif waiting:
            replies = self._engines.ask(Several(tuple(request for request, _ in waiting)))
            for (_, answers), found in zip(waiting, zip(*(each.replies for each in replies), strict=True), strict=True):
                answers.replies = list(found)


class SampleOutbox(Outbox):
    """Asks engines about their samples; requests go in the order of `outbox`, with the next that it sends."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__(outbox)
        self._outbox = outbox

    def later(self, request: Request[R]) -> Answers[R]:
        return self._outbox.later(OnSample(request))

    def flush(self) -> None:
        self._outbox.flush()
