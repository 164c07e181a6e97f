"""Values that lie where partitions are read: a small object stands for each, wherever it goes.

Levels of categories and what is counted of them may take a gigabyte. On a cluster they are made on workers and needed
there again, so that they travel neither through the client nor in graphs of tasks; in one process they lie here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

S = TypeVar("S")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Held(ABC, Generic[T_co]):
    """Stands for a value."""

    @abstractmethod
    def value(self) -> T_co:
        """Return the value, in a process that reads partitions."""


@dataclass(frozen=True, eq=False)
class Here(Held[T_co]):
    """Stands for a value of this process."""

    own: T_co

    def value(self) -> T_co:
        return self.own


@dataclass(frozen=True, eq=False)
class PartOf(Held[T_co], Generic[S, T_co]):
    """Stands for what a function takes from a value."""

    whole: Held[S]
    take: Callable[[S], T_co]

    def value(self) -> T_co:
        return self.take(self.whole.value())


def value_of(given: T | Held[T]) -> T:
    """Return what is given, or the value that it stands for."""
    return given.value() if isinstance(given, Held) else given


class Parted(Protocol):
    """A large value that travels piece by piece, so that few bytes of it are on their way at a time."""

    @property
    def sizes(self) -> Sequence[int]:
        """Return about how many bytes each piece has."""
        ...

    def pieces(self, numbers: range) -> list[object]:
        """Return some of the pieces."""
        ...

    @classmethod
    def joined(cls, pieces: Sequence[object]) -> Self:
        """Return the value of which these are all pieces."""
        ...
