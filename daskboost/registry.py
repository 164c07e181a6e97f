"""Classes that users call by name: registering them, finding them, and what an unknown name is told."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from daskboost.errors import ParameterError

T = TypeVar("T")


@dataclass(eq=False)
class Registry(Generic[T]):
    """Classes by a name that each carries."""

    noun: str
    """What messages call such a class."""
    attribute: str
    """The class attribute that holds the name."""
    reserved: str = ""
    """A character that no name may hold."""
    foreign: Mapping[str, str] = field(default_factory=dict)
    """Other libraries' names to ours, where the closest spelling would be another class."""

    def __post_init__(self) -> None:
        self._classes: dict[str, type[T]] = {}

    def add(self, kind: type[T]) -> type[T]:
        """Make a class known.

        Raises
        ------
        ParameterError
            The class has no name, a name with the reserved character, or one that another class has.
        """
        name = getattr(kind, self.attribute, None)
        if not isinstance(name, str) or not name or (self.reserved and self.reserved in name):
            without = f", no {self.reserved!r}" if self.reserved else ""
            raise ParameterError(
                f"{self.noun} class {kind.__qualname__} has no name; set its class attribute `{self.attribute}`"
                f"{without}"
            )
        taken = self._classes.setdefault(name, kind)
        if taken is not kind:
            raise ParameterError(
                f"{self.noun} {name!r} is already registered by {taken.__qualname__}; choose another name"
            )
        return kind

    def names(self) -> tuple[str, ...]:
        """Every name, sorted."""
        return tuple(sorted(self._classes))

    def get(self, name: str) -> type[T]:
        """The class of a name.

        Raises
        ------
        ParameterError
            There is none; the message has the closest name.
        """
        if name not in self._classes:
            known = self.foreign.get(name)
            close = [known] if known else difflib.get_close_matches(name, self._classes, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}?" if close else f"valid names are {', '.join(self.names())}"
            raise ParameterError(f"{self.noun} {name!r} is unknown; {hint}")
        return self._classes[name]
