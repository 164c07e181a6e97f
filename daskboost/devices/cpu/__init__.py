"""Kernels that numba compiles, when a machine first needs them; `daskboost.devices.compiling` says so."""

from __future__ import annotations

from numba.core import event

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
