"""Modules of kernels on one GPU: their machine code comes from disk or from the compiler, and is loaded when launched.

Who asks for a kernel only starts its variant. What is not on disk is compiled beside the asker, by several threads, and
a launch waits for its own variant alone. A process that finds one missing of those that most fits launch, as kernel
files say, most likely has no others either, and will need them: so all of them are compiled at the same time, rather
than one after the other as a fit comes to them.
"""

from __future__ import annotations

import hashlib
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Protocol

from daskboost.devices.gpu.runtime.cubin_files import CubinFiles
from daskboost.devices.gpu.runtime.kernel_source import OPTIONS, KernelFile, Variant, kernel_file, kernel_names

if TYPE_CHECKING:
    from cupy.cuda import Function, Module

MOST_THREADS = 8
"""Threads that compile at most. NVRTC 13.0 took 4.8 s for 18 variants with one, 2.5 with 2, 1.9 with 4, 1.2 with 8, and
no less with more (16 cores), but each variant longer."""


class Toolchain(Protocol):
    """What makes machine code for one GPU, and what loads it there."""

    @property
    def target(self) -> str:
        """The GPU's architecture and the compiler's version: machine code of another target is of no use."""

    def compile(self, source: KernelFile, variant: Variant) -> bytes:
        """Return a variant's machine code; from any thread, several at a time."""

    def load(self, code: bytes) -> Module:
        """Load machine code onto the GPU."""


class Modules:
    """The modules of one GPU, each compiled at most once by a process, and loaded once; from any thread."""

    def __init__(self, toolchain: Toolchain, files: CubinFiles) -> None:
        self._toolchain, self._files = toolchain, files
        self._lock = threading.Lock()
        self._codes: dict[tuple[KernelFile, Variant], Future[bytes]] = {}
        self._loaded: dict[tuple[KernelFile, Variant], Module] = {}
        self._compiles_usual = False

    def start(self, source: KernelFile, variant: Variant) -> None:
        """Read a variant's machine code, or begin to compile it, unless somebody has."""
        with self._lock:
            is_missing = self._start(source, variant)
            if is_missing and variant in source.usual and not self._compiles_usual:
                self._compiles_usual = True
                for name in kernel_names():
                    for each in kernel_file(name).usual:
                        self._start(kernel_file(name), each)

    def _start(self, source: KernelFile, variant: Variant) -> bool:
        """Return whether the variant was neither started before nor on disk."""
        if (source, variant) in self._codes:
            return False
        name = file_name(source, variant, self._toolchain.target)
        code = self._files.read(name)
        if code is None:
            found = _compilers().submit(self._compile, source, variant, name)
        else:
            found = Future()
            found.set_result(code)
        self._codes[source, variant] = found
        return code is None

    def _compile(self, source: KernelFile, variant: Variant, name: str) -> bytes:
        code = self._toolchain.compile(source, variant)
        self._files.write(name, code)
        return code

    def function(self, source: KernelFile, variant: Variant, entry: str) -> Function:
        """Return an entry point of a variant that was started; waits for its compiler."""
        with self._lock:
            found = self._codes[source, variant]
            is_begun = not found.cancel()
            if not is_begun:
                found = self._codes[source, variant] = Future()
                found.set_running_or_notify_cancel()
        if not is_begun:  # its turn has not come, and this thread has nothing else to do
            try:
                name = file_name(source, variant, self._toolchain.target)
                found.set_result(self._compile(source, variant, name))
            except BaseException as error:
                found.set_exception(error)
        code = found.result()
        with self._lock:
            if (source, variant) not in self._loaded:
                self._loaded[source, variant] = self._toolchain.load(code)
            return self._loaded[source, variant].get_function(entry)


def file_name(source: KernelFile, variant: Variant, target: str) -> str:
    """Return the name of the file of a variant's machine code: a digest of all that it is made from, and by."""
    made_from = (source.digest, OPTIONS, variant.defines, target)
    return f"daskboost-{source.name}-{hashlib.sha256(repr(made_from).encode()).hexdigest()[:24]}.cubin"


@cache
def _compilers() -> ThreadPoolExecutor:
    """Return the threads that compile for all GPUs of the process."""
    n_threads = min(MOST_THREADS, len(os.sched_getaffinity(0)))
    return ThreadPoolExecutor(n_threads, thread_name_prefix="daskboost-nvrtc")
