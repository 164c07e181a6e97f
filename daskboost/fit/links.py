"""An engine's side of the other engines of a fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from daskboost.dtypes import Array


class Peers(Protocol):
    """An engine's side: the other engines of the fit, itself included."""

    @property
    def rank(self) -> int:
        """This engine's place in engine order, from 0."""

    @property
    def n_peers(self) -> int:
        """How many engines take part, this one included."""

    def exchange(self, parts: Sequence[Array], /) -> list[Array]:
        """All-to-all: `parts[i]` goes to engine i; returns what each engine sent here, in rank order.

        Collective: every engine calls it equally often. The part for oneself comes back as it is.

        Raises
        ------
        PeerLostError
            Another engine failed, so this exchange can never complete.
        """
