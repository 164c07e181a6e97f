"""Fits that a process takes part in: announced by Dask's own messages, and known by their secret tokens after that.

Whoever can send Dask's messages to a scheduler or worker may run anything there; Dask decides who that is (TLS,
firewalls). A fit's connections are opened beside those messages. So a client first announces the fit by one of them,
with a random token, and a connection is served only if it shows that token. Nobody can name a token that was never
announced.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Iterable, Mapping
from typing import Any


def find_token(token: str, known: Iterable[str]) -> str | None:
    """The equal one among the known tokens; the time it takes tells nothing of how alike others are."""
    shown, found = token.encode(), None
    for each in known:
        if hmac.compare_digest(each.encode(), shown):
            found = each
    return found


class Admissions:
    """Announced fits by their tokens, each with its Python objects. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._extras: dict[str, Mapping[str, Any]] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._extras)

    def announce(self, token: str, extras: Mapping[str, Any]) -> None:
        """Let connections in that show this token, and keep the fit's Python objects for it."""
        with self._lock:
            self._extras[token] = extras

    def withdraw(self, token: str) -> None:
        """Forget a fit, if it is known."""
        with self._lock:
            self._extras.pop(token, None)

    def extras(self, token: str) -> Mapping[str, Any] | None:
        """The Python objects of an announced fit; None where nobody announced such a token."""
        with self._lock:
            found = find_token(token, self._extras)
            return None if found is None else self._extras[found]
