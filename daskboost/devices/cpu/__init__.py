"""Kernels that numba compiles, when a machine first needs them; `daskboost.devices.compiling` says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numba
import numba.extending
from numba.core import event
from numba.core.base import BaseContext
from numba.core.caching import FunctionCache
from numba.core.compiler import CompileResult
from numba.core.typing.templates import Signature

from daskboost.devices.compiling import say_compiling


class _SaysCompiling(event.Listener):
    """Hears of each function that numba has to compile, as it is not in numba's cache on disk."""

    def on_start(self, event: event.Event) -> None:
        dispatcher = event.data["dispatcher"]
        if dispatcher.py_func.__module__.startswith(__name__):  # others' functions are theirs to speak of
            say_compiling("CPU")

    def on_end(self, event: event.Event) -> None:
        pass


event.register("numba:compile", _SaysCompiling())  # type: ignore[no-untyped-call]


class _KernelCache(FunctionCache):
    """Numba's cache on disk of one function, where other versions of the package may have left theirs.

    It names the classes of tuples that a function takes. Where one has moved since, numba would raise for good.
    """

    def load_overload(self, sig: Signature, target_context: BaseContext) -> CompileResult | None:
        try:
            found: CompileResult | None = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except (ImportError, AttributeError):
            self.flush()  # type: ignore[no-untyped-call]
            return None
        return found


if TYPE_CHECKING:
    from numba import njit as njit
else:

    def njit(**options):
        """Compile a function as `numba.njit` does; with ``cache=True`` it is kept in a `_KernelCache`."""

        def compiled(function):
            dispatcher = numba.njit(**options)(function)
            if options.get("cache"):
                dispatcher._cache = _KernelCache(function)
            return dispatcher

        return compiled


def intrinsic(function: Callable[..., Any]) -> Any:
    """Make an intrinsic of compiled code. Numba passes the typing context itself, which type checkers cannot know."""
    return numba.extending.intrinsic(function)


def uncounted(*, cache: bool = False) -> Any:
    """Compile a function that makes no arrays: without counting references to those that it takes."""
    options: dict[str, Any] = {"nogil": True, "cache": cache, "_nrt": False}
    return njit(**options)
