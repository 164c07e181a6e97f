"""CUDA devices through CuPy, which is imported when the first one is asked for."""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property, partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from daskboost.devices.compiling import say_compiling
from daskboost.devices.gpu.runtime.collective import Members, Turn
from daskboost.devices.gpu.runtime.cubin_files import CubinFiles, cache_folder, writable_folder
from daskboost.devices.gpu.runtime.kernel_source import LEAST_SM, Entry, KernelFile, Variant, kernel_file
from daskboost.devices.gpu.runtime.launches import DeviceArray, Event, KernelArgument, Runtime
from daskboost.devices.gpu.runtime.modules import Modules
from daskboost.devices.gpu.runtime.nccl import Communicators, NcclCollective, why_no_nccl
from daskboost.dtypes import UInt8
from daskboost.errors import DeviceError, MissingDependencyError, NoDeviceError

if TYPE_CHECKING:
    from cupy.cuda import Function, Graph, MemoryAsyncPool, MemoryPointer, MemoryPool, Module, Stream
    from rmm.mr import DeviceMemoryResource

# Copies to a CUDA device beside its kernels, and the page-locked memory that they are made from.
#
# Memory that is touched by several threads and then registered took .09 s/GiB, CUDA's own allocation of such memory
# .28 (one H200's host): so pages are mapped, touched and registered. Each array has pages of its own, since a page can
# be registered once only, and forks do not inherit them: their writes would part the host's pages from the device's.
# What else a fork may have mapped at such an address is left alone there.

HOST_TO_DEVICE = 1
"""`cudaMemcpyHostToDevice`."""
PORTABLE = 1
"""`cudaHostRegisterPortable`: for all devices of the process."""
_of_parent: list[mmap.mmap] = []
"""Pages of a fork that only its parent has, never unmapped."""


def address_of(array: DeviceArray) -> int:
    """Return where a device array begins: CuPy's in its GPU's memory, or one of an emulated device."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


class CudaCopies:
    """A `CopyStream` of CuPy's current device."""

    def __init__(self, cuda: ModuleType) -> None:
        self._cuda = cuda
        self._stream = cuda.Stream(non_blocking=True)

    def copy(self, out: DeviceArray, values: UInt8) -> None:
        self._cuda.runtime.memcpyAsync(
            address_of(out), values.ctypes.data, values.nbytes, HOST_TO_DEVICE, self._stream.ptr
        )

    def wait(self, event: Event) -> None:
        self._stream.wait_event(event)

    def record(self) -> Event:
        event: Event = self._cuda.Event(block=True, disable_timing=True)
        self._stream.record(event)
        return event

    def synchronize(self) -> None:
        self._stream.synchronize()


class Driver(Protocol):
    """CuPy's functions of CUDA that lock pages of the host's memory."""

    @property
    def CUDARuntimeError(self) -> type[Exception]: ...
    def hostRegister(self, address: int, n_bytes: int, flags: int, /) -> None: ...

    def hostUnregister(self, address: int, /) -> None: ...


class _Locked:
    """Registered pages; arrays over them keep this object."""

    def __init__(self, runtime: Driver, n_bytes: int) -> None:
        pages = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_DONTFORK)
        touched = np.frombuffer(pages, np.uint8)
        touched[:: mmap.PAGESIZE] = 0
        address = touched.ctypes.data
        try:
            runtime.hostRegister(address, n_bytes, PORTABLE)
        except runtime.CUDARuntimeError as error:
            raise DeviceError(
                f"the host does not page-lock {n_bytes:,} bytes more, to stream chunks to the GPU from ({error}): "
                "raise the limit of locked memory (ulimit -l), or set a lower host_memory_limit with a spill_directory"
            ) from error
        # The finalizer keeps the pages mapped until the driver has let go of them.
        weakref.finalize(self, _unlock, runtime, address, pages, os.getpid()).atexit = False
        self.__array_interface__ = {"data": (address, False), "shape": (n_bytes,), "typestr": "|u1", "version": 3}


def _unlock(runtime: Driver, address: int, pages: mmap.mmap, owner: int) -> None:
    if os.getpid() == owner:
        runtime.hostUnregister(address)
    else:
        _of_parent.append(pages)


def staging(cuda: ModuleType, n_bytes: int) -> UInt8:
    """Page-locked memory for an array's pieces; `cuda` is CuPy's, whose pool has it back when nobody holds the array.

    Raises
    ------
    DeviceError
        The host has none.
    """
    try:
        memory = cuda.alloc_pinned_memory(n_bytes)
    except cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(
            f"the host does not page-lock {n_bytes:,} bytes, to copy arrays to and from the GPU through ({error}): "
            "raise the limit of locked memory (ulimit -l), or end what else holds the host's memory"
        ) from error
    return np.ndarray(n_bytes, np.uint8, buffer=memory)


def pinned_bytes(runtime: Driver, n_bytes: int) -> UInt8:
    """See `Runtime.pinned`; `runtime` is CuPy's."""
    n_pages = -(-max(n_bytes, 1) // mmap.PAGESIZE)
    found: UInt8 = np.asarray(_Locked(runtime, n_pages * mmap.PAGESIZE))[:n_bytes]
    return found


RMM_ALLOCATORS = "rmm.allocators"
"""Module of the function that makes CuPy allocate by RMM."""


def free_bytes(xp: ModuleType, device: int) -> int:
    """Return the bytes of the GPU of that index."""
    with xp.cuda.Device(device):
        of_driver = int(xp.cuda.runtime.memGetInfo()[0])
        allocator = xp.cuda.get_allocator()
        pool = getattr(allocator, "__self__", None)
        if isinstance(pool, (xp.cuda.MemoryPool, xp.cuda.MemoryAsyncPool)):
            return _with_pool(of_driver, pool)
        if (getattr(allocator, "__module__", None) or "").startswith(RMM_ALLOCATORS):
            import rmm

            return _with_resources(of_driver, list(_chain(rmm.mr.get_per_device_resource(device))))
        return of_driver


def _with_pool(of_driver: int, pool: MemoryPool | MemoryAsyncPool) -> int:
    """A pool of CuPy's."""
    free, limit = of_driver + int(pool.free_bytes()), int(pool.get_limit())
    return free if limit == 0 else max(0, min(free, limit - int(pool.used_bytes())))


def _chain(resource: DeviceMemoryResource | None) -> Iterator[DeviceMemoryResource]:
    """A memory resource of RMM, and all that it takes its memory from."""
    while resource is not None:
        yield resource
        resource = getattr(resource, "upstream_mr", None)


def _with_resources(of_driver: int, resources: list[DeviceMemoryResource]) -> int:
    """RMM says what a pool holds, and only by a resource that counts allocations what of that is in use.

    Without one all of the pool counts as free. The other way, the pool of a worker that has just started would leave
    nothing to its fits; where it is in use, a fit ends with an error, and `device_memory_limit` says what it may take.
    """
    held = sum(int(resource.pool_size()) for resource in resources if hasattr(resource, "pool_size"))
    used = next((count for count in map(_used_bytes, resources) if count is not None), 0)
    free = of_driver + max(0, held - used)
    limits = [
        int(resource.get_allocation_limit()) - int(resource.get_allocated_bytes())
        for resource in resources if hasattr(resource, "get_allocation_limit")
    ]  # fmt: skip
    return max(0, min([free, *limits]))


def _used_bytes(resource: DeviceMemoryResource) -> int | None:
    """What a resource has given away, if it counts."""
    if hasattr(resource, "get_allocated_bytes"):  # one that limits or tracks
        return int(resource.get_allocated_bytes())
    counts = getattr(resource, "allocation_counts", None)
    return None if counts is None else int(counts.current_bytes)


LEAST_CUPY = (14, 2)
"""Before it, a sort that finds no memory to work in returns without a word what is in no order."""
DRIVER_LIBRARY = "libcuda.so.1"
EXTRAS = "'daskboost[cuda13]', or 'daskboost[cuda12]' where the NVIDIA driver is older than 580"


def wake_driver() -> None:
    """Initialize CUDA's driver, which takes about as long as the import of CuPy and needs no Python: a thread does it
    meanwhile. What goes wrong is told to whoever asks CuPy for a device."""
    with suppress(OSError):
        ctypes.CDLL(DRIVER_LIBRARY).cuInit(0)


def cupy_module() -> ModuleType:
    """CuPy, imported.

    Raises
    ------
    MissingDependencyError
        It is not installed, cannot be imported, or is too old.
    """
    if importlib.util.find_spec("cupy") is None:
        raise MissingDependencyError(f"device='cuda' needs CuPy, which is not installed: pip install {EXTRAS}")
    if "cupy" not in sys.modules:
        threading.Thread(target=wake_driver, name="daskboost-driver", daemon=True).start()
    try:
        with writable_folder():
            import cupy
    except ImportError as error:
        raise MissingDependencyError(
            "device='cuda' needs CuPy, which is installed but cannot be imported, as the error before this one says: "
            f"pip uninstall what is there of it, then pip install {EXTRAS}"
        ) from error
    if tuple(int(number) for number in re.findall(r"\d+", cupy.__version__)[:2]) < LEAST_CUPY:
        least = ".".join(map(str, LEAST_CUPY))
        raise MissingDependencyError(
            f"device='cuda' needs CuPy {least} or later, and {cupy.__version__} is installed: pip install --upgrade "
            f"{EXTRAS}"
        )
    found: ModuleType = cupy
    return found


def count_devices(cupy: ModuleType) -> int:
    """How many GPUs the process sees; an error where there are none, or no driver."""
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise NoDeviceError(
            f"device='cuda' needs a GPU and a working NVIDIA driver, and CUDA says {error}: use device='cpu' here"
        ) from error


def n_visible() -> int:
    """How many GPUs the process sees; raises as `get_runtime` does where there are none."""
    return count_devices(cupy_module())


def check_compiler(cupy: ModuleType) -> None:
    """Refuse an installation without NVRTC, which CuPy's wheels do not bring and which compiles every kernel."""
    try:
        cupy.cuda.nvrtc.getVersion()
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceError(
            "device='cuda' compiles kernels with NVRTC, which cannot be loaded, as the error before this one says: pip "
            f"install {EXTRAS}, which brings it"
        ) from error


GOES_FIRST = -1
"""Priority of a stream that is recorded, above the usual one that branches have: a multiprocessor with room takes its
blocks before theirs."""
UNASKED_SHARED_BYTES = 48 << 10
"""Dynamic shared memory that a launch may have without asking for it."""
_ASKING = threading.Lock()
"""Fits in several threads share kernels: who asks for less must not take back what another has asked for."""


class _Recording(threading.local):
    """What a thread records."""

    branches: list[Stream] | None = None
    """Streams beside the one that is captured, which live until its end; None while there is none."""


class CudaRuntime:
    """One CUDA device; `get_runtime` makes it."""

    def __init__(self, xp: Any, device: int) -> None:
        properties = xp.cuda.runtime.getDeviceProperties(device)
        self.xp = xp
        self.device = device
        self.sm = 10 * int(properties["major"]) + int(properties["minor"])
        self.multiprocessors = int(properties["multiProcessorCount"])
        self.shared_bytes = int(properties["sharedMemPerBlockOptin"])
        self._modules = Modules(NvidiaToolchain(xp, device, self.sm), CubinFiles(cache_folder()))
        self._kernels: dict[tuple[KernelFile, str, Variant], CudaKernel] = {}
        self._by_name: dict[tuple[Any, ...], CudaKernel] = {}
        """The same, found without a look at the source: a level of a tree asks ten times."""
        self._recording = _Recording()
        self._communicators = Communicators(lambda: xp.cuda.Device(device))
        self.turn = Turn()

    def __reduce__(self) -> tuple[Callable[[int | None], CudaRuntime], tuple[int]]:
        """Pickle it as the GPU of that index in another process, to which Dask may move rows that lie on this one."""
        return get_runtime, (self.device,)

    @cached_property
    def name(self) -> str:
        """The number that the GPU was made with."""
        return bytes(self.xp.cuda.runtime.getDeviceProperties(self.device)["uuid"]).hex()

    @property
    def free_bytes(self) -> int:
        """What the driver has left, and what CuPy's allocator holds unused."""
        return free_bytes(self.xp, self.device)

    def kernel(self, file: str, entry: str, **constants: int) -> CudaKernel:
        """An entry point of `kernels/<file>.cu`; see `Runtime.kernel`."""
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

        stream = cuda.Stream(non_blocking=True, priority=GOES_FIRST)
        with stream, cuda.using_allocator(keep):
            stream.begin_capture(cuda.runtime.streamCaptureModeRelaxed)
            branches = self._recording.branches = []
            try:
                work()
            finally:
                self._recording.branches = None
                graph = stream.end_capture()
                branches.clear()

        return partial(self._replay, graph, kept)

    def _replay(self, graph: Graph, kept: list[MemoryPointer]) -> None:
        """`kept` : what the graph has addresses of."""
        graph.launch(self.xp.cuda.get_current_stream())

    @contextmanager
    def beside(self, work: Callable[[], None]) -> Iterator[None]:
        """A branch of the graph that is recorded; see `Runtime.beside`."""
        branches = self._recording.branches
        if branches is None:
            work()
            yield
            return
        branch = self.xp.cuda.Stream(non_blocking=True)
        branches.append(branch)
        branch.wait_event(self.record_event())
        try:
            with branch:
                work()
            yield
        finally:  # a capture cannot end with a branch that nothing waits for
            with branch:
                done = self.record_event()
            self.wait_event(done)

    def copy_stream(self) -> CudaCopies:
        """A stream that does not wait for the default one."""
        return CudaCopies(self.xp.cuda)

    @cached_property
    def lanes(self) -> tuple[Stream, Stream]:
        """Two streams that do not wait for the default one."""
        with self.xp.cuda.Device(self.device):
            return self.xp.cuda.Stream(non_blocking=True), self.xp.cuda.Stream(non_blocking=True)

    def record_event(self) -> Event:
        """Of CuPy's current stream."""
        event: Event = self.xp.cuda.Event(block=True, disable_timing=True)
        self.xp.cuda.get_current_stream().record(event)
        return event

    def wait_event(self, event: Event) -> None:
        """In CuPy's current stream."""
        self.xp.cuda.get_current_stream().wait_event(event)

    def why_apart(self) -> str:
        """See `Runtime.why_apart`."""
        return why_no_nccl()

    def joined(self, members: Members, gpus: tuple[str, ...]) -> NcclCollective:
        """Join GPUs by NCCL; see `Runtime.joined`."""
        return NcclCollective(self.xp.cuda, self._communicators, members, gpus)

    def taken(self, values: DeviceArray, other: Runtime) -> DeviceArray:
        """Copy by the bus between the GPUs where there is one; else the driver goes by way of the host."""
        cuda = self.xp.cuda
        with cuda.Device(other.device):
            whole: DeviceArray = self.xp.ascontiguousarray(values)
            cuda.get_current_stream().synchronize()
        with cuda.Device(self.device):
            found: DeviceArray = self.xp.empty(whole.shape, whole.dtype)
            cuda.get_current_stream().synchronize()  # what had its memory before may still be at work there
            if whole.size:
                cuda.runtime.memcpyPeer(
                    address_of(found), self.device, address_of(whole), other.device, int(whole.nbytes)
                )
        return found

    def pinned(self, n_bytes: int) -> UInt8:
        """Pages of its own, registered with the driver."""
        with self.xp.cuda.Device(self.device):
            return pinned_bytes(self.xp.cuda.runtime, n_bytes)

    def kernel_of(self, source: KernelFile, entry: str, variant: Variant) -> CudaKernel:
        """Return an entry point of any source, such as a test's own."""
        key = (source, entry, variant)
        if key not in self._kernels:
            described = source.entries(variant)[entry]
            self._modules.start(source, variant)
            self._kernels[key] = CudaKernel(partial(self._function, *key), described)
        return self._kernels[key]

    def _function(self, source: KernelFile, entry: str, variant: Variant) -> Function:
        with self.xp.cuda.Device(self.device):
            return self._modules.function(source, variant, entry)


class CudaKernel:
    """An entry point, whose function is found when it is first launched."""

    def __init__(self, find: Callable[[], Function], entry: Entry) -> None:
        self._find = find
        self._function: Function | None = None
        self._entry = entry
        self._asked_bytes = UNASKED_SHARED_BYTES

    def __call__(self, grid: int, block: int, *arguments: KernelArgument, shared_bytes: int = 0) -> None:
        """Launch on CuPy's current stream."""
        self._entry.check_block(block)
        function = self._function
        if function is None:
            function = self._function = self._find()
        if shared_bytes > self._asked_bytes:
            self._ask(function, shared_bytes)
        bound = [np.uintp(0) if argument is None else argument for argument in self._entry.bind(arguments)]
        function((grid,), (block,), tuple(bound), shared_mem=shared_bytes)

    def _ask(self, function: Function, shared_bytes: int) -> None:
        """Ask for as much dynamic shared memory as any launch has had so far."""
        with _ASKING:
            most = max(self._asked_bytes, shared_bytes)
            allow_shared_bytes(function, most)
            self._asked_bytes = most  # only now may others go on without asking


def allow_shared_bytes(function: Function, n_bytes: int) -> None:
    """Let launches of a function have so many bytes of dynamic shared memory."""
    driver = cupy_module().cuda.driver
    driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, n_bytes)


class NvidiaToolchain:
    """NVRTC and the driver, through CuPy.

    CuPy's own way to modules would compile with -ftz=true, which makes zeros of the smallest float32 that the CPU's
    kernels keep.
    """

    def __init__(self, cupy: ModuleType, device: int, sm: int) -> None:
        self._cupy, self._device, self._sm = cupy, device, sm

    @cached_property
    def _architecture(self) -> str:
        """Return the newest architecture that the compiler knows and the GPU runs, which may be older than the GPU;
        the GPU's own where there is none, of which the compiler then complains."""
        known = self._cupy.cuda.nvrtc.getSupportedArchs()
        fitting = [sm for sm in known if sm // 10 == self._sm // 10 and sm <= self._sm]
        return f"sm_{max(fitting, default=self._sm)}"

    @cached_property
    def target(self) -> str:
        return f"{self._architecture} NVRTC {_version(self._cupy)}"

    def compile(self, source: KernelFile, variant: Variant) -> bytes:
        """See `Toolchain.compile`; NVRTC releases Python's lock."""
        say_compiling("CUDA")
        nvrtc = self._cupy.cuda.nvrtc
        program = nvrtc.createProgram(source.text, f"{source.name}.cu", (), ())
        try:
            nvrtc.compileProgram(program, (*source.options(variant), f"-arch={self._architecture}"))
            code: bytes = nvrtc.getCUBIN(program)
        except nvrtc.NVRTCError as error:
            raise DeviceError(
                f"NVRTC {_version(self._cupy)} cannot compile {source.name}.cu for GPU {self._device} (sm_{self._sm}): "
                f"install a CUDA toolkit that knows this GPU, or use device='cpu'; NVRTC says {error}: "
                f"{' '.join(nvrtc.getProgramLog(program).split())}"
            ) from error
        finally:
            nvrtc.destroyProgram(program)
        return code

    def load(self, code: bytes) -> Module:
        module = self._cupy.cuda.Module()
        module.load(code)
        return module


def _version(cupy: ModuleType) -> str:
    """Return NVRTC's version, such as 13.0."""
    return ".".join(map(str, cupy.cuda.nvrtc.getVersion()))


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
