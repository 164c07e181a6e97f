"""How numba compiles kernels: in less time than by itself, to the same machine code.

Numba optimizes each function and makes machine code of it. A function that only compiled code calls is optimized once
more within its callers, and machine code of its own never runs: here it ends as a module of LLVM that is linked into
them, which spares a tenth of the time. What numba looks up for each operation is found by the function's options, which
it compares a hundred thousand times for a tree: here quickly.
"""

from __future__ import annotations

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, Flags
from numba.core.compiler_machinery import PassManager

_DEFAULTS: dict[str, object] = {name: option.default for name, option in Flags.options.items()}


class _QuickFlags(Flags):
    """Numba's options of a function."""

    def values(self) -> dict[str, object]:
        """Return all options by name."""
        return {**_DEFAULTS, **self._values}


class KernelCompiler(Compiler):
    """Numba's compiler, of functions that are kept as machine code."""

    def __init__(self, typing_context: object, target_context: object, library: object, args: object, returned: object,
                 flags: Flags, variables: object) -> None:  # fmt: skip
        super().__init__(  # type: ignore[no-untyped-call]
            typing_context, target_context, library, args, returned, _QuickFlags(flags), variables  # type: ignore[no-untyped-call]
        )


class LinkedCompiler(KernelCompiler):
    """Numba's compiler, of functions that are linked into their callers."""

    def define_pipelines(self) -> list[PassManager]:
        """Return numba's passes, which then fill the library that is set here."""
        state = self.state
        state.library = _LinkedLibrary(state.targetctx.codegen(), state.func_id.func_qualname)  # type: ignore[no-untyped-call]
        passes: list[PassManager] = super().define_pipelines()  # type: ignore[no-untyped-call]
        return passes


class _LinkedLibrary(JITCodeLibrary):
    """The code of a function that has no address."""

    @property
    def codegen(self) -> _LinkedLibrary:
        return self  # numba asks it for `set_env` alone

    def set_env(self, name: str, environment: object) -> None:
        """Do nothing: a function without an address has no place for the Python objects of its environment."""

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()  # type: ignore[no-untyped-call]
        return 0

    def _optimize_final_module(self) -> None:
        """Do nothing: callers do."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()  # type: ignore[no-untyped-call]
        self._finalized = True
