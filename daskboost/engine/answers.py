"""What answers the requests of the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from daskboost.fit.messages import Request

Answers = Mapping[type[Request[Any]], Callable[[Any], Any]]
"""The function that answers each kind of request."""
