"""Kernels that numba compiles, when a machine first needs them; `daskboost.devices.compiling` says so."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numba
import numba.extending
from llvmlite import ir
from numba.core import event
from numba.core.base import BaseContext
from numba.core.caching import FunctionCache
from numba.core.compiler import CompileResult
from numba.core.typing.templates import Signature

from daskboost.devices.compiling import say_compiling
from daskboost.devices.cpu.linked import KernelCompiler, LinkedCompiler

logger = logging.getLogger(__name__)


class _Compiling(event.Listener):
    """Hears of each function that numba has to compile, as it is not in numba's cache on disk; says so.

    Nothing is collected meanwhile: compilers make many objects that stay, among which the collector would search for
    garbage again and again, a sixth of the time.
    """

    def __init__(self) -> None:
        self._depth = 0
        """Functions that are being compiled, of which each is for the one before; numba does so in one thread."""
        self._collects = False

    def on_start(self, event: event.Event) -> None:
        function = event.data["dispatcher"].py_func
        if self._depth == 0 and not function.__module__.startswith(__name__):  # others' are theirs to speak of
            return
        self._depth += 1
        if self._depth == 1:
            say_compiling("CPU")
            self._collects = gc.isenabled()
            gc.disable()

    def on_end(self, event: event.Event) -> None:
        if self._depth == 0:
            return
        self._depth -= 1
        if self._depth == 0 and self._collects:
            gc.enable()


event.register("numba:compile", _Compiling())  # type: ignore[no-untyped-call]


class _KernelCache(FunctionCache):
    """Numba's cache on disk of one function, where other versions of the package may have left theirs.

    It names the classes of tuples that a function takes. Where one has moved since, numba would raise for good. And it
    looks at the file of the function alone, though that contains what it calls: here all files of kernels count.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._cache_file._source_stamp = _stamp()

    def load_overload(self, sig: Signature, target_context: BaseContext) -> CompileResult | None:
        try:
            found: CompileResult | None = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except (ImportError, AttributeError):
            self.flush()  # type: ignore[no-untyped-call]
            return None
        return found

    def has(self, sig: object, target_context: Any) -> bool:
        """Tell whether it keeps the function for a signature."""
        try:
            kept: dict[object, str] = self._cache_file._load_index()  # type: ignore[no-untyped-call]
            return self._index_key(sig, target_context.codegen()) in kept  # type: ignore[no-untyped-call]
        except (OSError, ImportError, AttributeError):
            return False


def is_kept(dispatcher: object, sig: object) -> bool:
    """Whether a function's machine code for a signature lies on disk, or never will."""
    kept = getattr(dispatcher, "_cache", None)
    return not isinstance(kept, _KernelCache) or kept.has(sig, getattr(dispatcher, "targetctx"))  # noqa: B009


@cache
def _stamp() -> tuple[tuple[str, float, int], ...]:
    """Return what changes when a file with kernels, or with tuples that they take, does."""
    folder = Path(__file__).parent
    files = sorted([*folder.glob("*.py"), folder.parent / "row_order.py"])
    found = [(path.name, path.stat()) for path in files if path.exists()]
    return tuple((name, state.st_mtime, state.st_size) for name, state in found)


if TYPE_CHECKING:
    from numba import njit as njit
else:

    def njit(**options):
        """Compile a function as `numba.njit` does; with ``cache=True`` it is kept in a `_KernelCache`, where there is a
        folder for it: numba itself would refuse to compile without."""
        is_kept = options.pop("cache", False)
        options |= {"no_cfunc_wrapper": True, "no_cpython_wrapper": not is_kept}  # others are for compiled code alone
        options["pipeline_class"] = KernelCompiler if is_kept else LinkedCompiler

        def compiled(function):
            dispatcher = numba.njit(**options)(function)
            if is_kept:
                try:
                    dispatcher._cache = _KernelCache(function)
                except RuntimeError:
                    _say_unkept()
            return dispatcher

        return compiled


Emitted = tuple[Signature, Callable[..., ir.Value]]
"""What an intrinsic returns: its types, and what emits its code."""


def intrinsic(function: Callable[..., Any]) -> Any:
    """Make an intrinsic of compiled code. Numba passes the typing context itself, which type checkers cannot know."""
    return numba.extending.intrinsic(function)


def uncounted(*, cache: bool = False, error_model: str = "python") -> Any:
    """Compile a function that makes no arrays: without counting references to those that it takes.

    Where it returns such an array, its callers must not count references either. What chooses between arrays in a loop
    is safe so: numba takes out counts that it finds to be in pairs, and has been seen to free what was still in use.
    """
    options: dict[str, Any] = {"nogil": True, "cache": cache, "error_model": error_model, "_nrt": False}
    return njit(**options)


@cache
def _say_unkept() -> None:
    """Say once that no folder keeps compiled kernels."""
    logger.warning(
        "neither daskboost's folder nor the user's can keep compiled CPU kernels, so that every process compiles them "
        "again, for some seconds: set NUMBA_CACHE_DIR to a folder that can be written"
    )
