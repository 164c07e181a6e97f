"""CUDA devices through CuPy, which is imported when the first one is asked for."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daskboost.devices.compiling import say_compiling
from daskboost.devices.gpu.cuda_copies import CudaCopies, pinned_bytes
from daskboost.devices.gpu.free_memory import free_bytes
from daskboost.devices.gpu.installed import check_compiler, count_devices, cupy_module
from daskboost.devices.gpu.kernel_source import LEAST_SM, Entry, KernelFile, Variant, kernel_file
from daskboost.devices.gpu.runtime import Event, KernelArgument
from daskboost.dtypes import UInt8
from daskboost.errors import DeviceError
from daskboost.files import write_whole

if TYPE_CHECKING:
    from cupy import RawModule
    from cupy.cuda import Function, Graph, MemoryPointer

UNASKED_SHARED_BYTES = 48 << 10
"""Dynamic shared memory that a launch may have without asking for it."""
_ASKING = threading.Lock()
"""Fits in several threads share kernels: who asks for less must not take back what another has asked for."""


class CudaRuntime:
    """One CUDA device; `get_runtime` makes it."""

    def __init__(self, xp: Any, device: int) -> None:
        properties = xp.cuda.runtime.getDeviceProperties(device)
        self.xp = xp
        self.device = device
        self.sm = 10 * int(properties["major"]) + int(properties["minor"])
        self.multiprocessors = int(properties["multiProcessorCount"])
        self.shared_bytes = int(properties["sharedMemPerBlockOptin"])
        self._kernels: dict[tuple[KernelFile, str, Variant], CudaKernel] = {}
        self._by_name: dict[tuple[Any, ...], CudaKernel] = {}
        """The same, found without a look at the source: a level of a tree asks ten times."""

    def __reduce__(self) -> tuple[Callable[[int | None], CudaRuntime], tuple[int]]:
        """Pickle it as the GPU of that index in another process, to which Dask may move rows that lie on this one."""
        return get_runtime, (self.device,)

    @property
    def free_bytes(self) -> int:
        """What the driver has left, and what CuPy's allocator holds unused."""
        return free_bytes(self.xp, self.device)

    def kernel(self, file: str, entry: str, **constants: int) -> CudaKernel:
        """An entry point of `kernels/<file>.cu`; NVRTC compiles its module on first use."""
        key = (file, entry, *constants.items())
        found = self._by_name.get(key)
        if found is None:
            source = kernel_file(file)
            found = self._by_name[key] = self.kernel_of(source, entry, source.variant(constants))
        return found

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """A CUDA graph of what `work` launches; it does not run yet.

        The arrays that `work` makes are of the stream on which the graph will run, and live as long as the graph does,
        since CuPy's pool knows of no replays.
        """
        cuda = self.xp.cuda
        outer, allocate, kept = cuda.get_current_stream(), cuda.get_allocator(), []

        def keep(nbytes: int) -> MemoryPointer:
            with outer:
                kept.append(allocate(nbytes))
            return kept[-1]

        stream = cuda.Stream(non_blocking=True)
        with stream, cuda.using_allocator(keep):
            stream.begin_capture(cuda.runtime.streamCaptureModeRelaxed)
            try:
                work()
            finally:
                graph = stream.end_capture()

        return partial(self._replay, graph, kept)

    def _replay(self, graph: Graph, kept: list[MemoryPointer]) -> None:
        """`kept` : what the graph has addresses of."""
        graph.launch(self.xp.cuda.get_current_stream())

    def copy_stream(self) -> CudaCopies:
        """A stream that does not wait for the default one."""
        return CudaCopies(self.xp.cuda)

    def record_event(self) -> Event:
        """Of CuPy's current stream."""
        event: Event = self.xp.cuda.Event(block=True, disable_timing=True)
        self.xp.cuda.get_current_stream().record(event)
        return event

    def wait_event(self, event: Event) -> None:
        """In CuPy's current stream."""
        self.xp.cuda.get_current_stream().wait_event(event)

    def pinned(self, n_bytes: int) -> UInt8:
        """Pages of its own, registered with the driver."""
        with self.xp.cuda.Device(self.device):
            return pinned_bytes(self.xp.cuda.runtime, n_bytes)

    def kernel_of(self, source: KernelFile, entry: str, variant: Variant) -> CudaKernel:
        """Return an entry point of any source, such as a test's own."""
        key = (source, entry, variant)
        if key not in self._kernels:
            with self.xp.cuda.Device(self.device):
                function = _module(self.device, source, variant).get_function(entry)
            self._kernels[key] = CudaKernel(function, source.entries(variant)[entry])
        return self._kernels[key]


class CudaKernel:
    """An entry point of a compiled module."""

    def __init__(self, function: Function, entry: Entry) -> None:
        self._function = function
        self._entry = entry
        self._asked_bytes = UNASKED_SHARED_BYTES

    def __call__(self, grid: int, block: int, *arguments: KernelArgument, shared_bytes: int = 0) -> None:
        """Launch on CuPy's current stream."""
        self._entry.check_block(block)
        if shared_bytes > self._asked_bytes:
            with _ASKING:
                most = max(self._asked_bytes, shared_bytes)
                self._function.max_dynamic_shared_size_bytes = most
                self._asked_bytes = most  # only now may others go on without asking
        bound = [np.uintp(0) if argument is None else argument for argument in self._entry.bind(arguments)]
        self._function((grid,), (block,), tuple(bound), shared_mem=shared_bytes)


@cache
def _module(device: int, source: KernelFile, variant: Variant) -> RawModule:
    """One module per source, constants and device; its binary is kept beside those of CuPy's own cache.

    CuPy would compile with -ftz=true, which makes zeros of the smallest float32 that the CPU's kernels keep.
    """
    cupy = cupy_module()
    compiler, options = cupy.cuda.compiler, source.options(variant)
    made_for = (source.digest, options, cupy.cuda.Device(device).compute_capability, cupy.cuda.nvrtc.getVersion())
    key = hashlib.sha256(repr(made_for).encode()).hexdigest()[:24]
    folder = Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")
    path = folder / f"daskboost-{source.name}-{key}.cubin"
    if not path.is_file():
        say_compiling("CUDA")
        try:
            binary, _ = compiler.compile_using_nvrtc(source.text, options, filename=f"{source.name}.cu")
        except compiler.CompileException as error:
            major, minor = cupy.cuda.nvrtc.getVersion()
            raise DeviceError(
                f"NVRTC {major}.{minor} cannot compile {source.name}.cu for GPU {device}, as the error before this one "
                "says: install a CUDA toolkit that knows this GPU, or use device='cpu'"
            ) from error
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, binary)  # other processes may look for it meanwhile
        except OSError as error:
            raise DeviceError(
                f"{path.parent} cannot keep compiled kernels ({error}): set CUPY_CACHE_DIR to a folder that can be "
                "written"
            ) from error
    return cupy.RawModule(path=str(path))


def get_runtime(device: int | None = None) -> CudaRuntime:
    """The GPU of this number, by default CuPy's current one; always the same object, with its compiled kernels.

    Raises
    ------
    MissingDependencyError
        CuPy is not installed, or too old.
    DeviceError
        No driver, no such GPU, one older than compute capability 7.5, or no compiler.
    """
    if device is None:
        cupy = cupy_module()
        count_devices(cupy)
        device = int(cupy.cuda.runtime.getDevice())
    return make_runtime(device)


@cache
def make_runtime(device: int) -> CudaRuntime:
    """See `get_runtime`, which asks for it once."""
    cupy = cupy_module()
    n_devices = count_devices(cupy)
    if not 0 <= device < n_devices:
        raise DeviceError(
            f"GPU {device} was asked for, and CUDA sees {n_devices}, numbered from 0: check CUDA_VISIBLE_DEVICES, or "
            "use device='cpu'"
        )
    check_compiler(cupy)
    runtime = CudaRuntime(cupy, device)
    if runtime.sm < LEAST_SM:
        raise DeviceError(
            f"GPU {device} has compute capability {runtime.sm / 10}, and daskboost needs {LEAST_SM / 10} or newer "
            "(Turing, 2018): use device='cpu'"
        )
    return runtime
