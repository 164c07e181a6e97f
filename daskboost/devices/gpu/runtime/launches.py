"""Where kernels run: a CUDA device through CuPy (`cuda.py`), or what stands in for one in `tests/kernels`.

Whatever is written against this protocol knows no CuPy and runs on both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import cycle
from types import ModuleType
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from daskboost.devices.gpu.runtime.collective import Collective, Members, Turn
from daskboost.dtypes import ArrayModule, UInt8
from daskboost.errors import DeviceError

OUT_OF_MEMORY = 2
"""`cudaErrorMemoryAllocation` of CUDA's runtime, and `CUDA_ERROR_OUT_OF_MEMORY` of its driver."""
OF_CUDA = ("CUDARuntimeError", "CUDADriverError")
"""CuPy's names of what these two raise; those of its libraries have numbers of their own."""


@contextmanager
def lack_of_memory(message: Callable[[Exception], str]) -> Iterator[None]:
    """Within it, a GPU's lack of memory is a `DeviceError`; `message` makes its sentence of what was raised."""
    try:
        yield
    except Exception as error:
        if not is_lack(error):
            raise
        raise DeviceError(message(error)) from error


def is_lack(error: Exception) -> bool:
    """Whether a GPU has too little memory. CuPy's and RMM's errors are MemoryErrors, of which NumPy's alone tells that
    it is of the host; where CUDA itself takes memory, for modules and graphs, its error has a number."""
    kind = type(error)
    if isinstance(error, MemoryError):
        return not kind.__module__.startswith("numpy")
    of_cuda = kind.__module__.startswith("cupy") and kind.__name__ in OF_CUDA
    return of_cuda and getattr(error, "status", None) == OUT_OF_MEMORY


DeviceArray = npt.NDArray[Any]
"""An array of the runtime's module, on its device; typed as NumPy's, whose interface CuPy's arrays have."""
KernelArgument = DeviceArray | np.generic | float | None
"""What kernels take: an array, whose first element's address is passed; a number; or a null pointer."""


class Kernel(Protocol):
    """An entry point of one variant, ready to be launched on the current stream."""

    def __call__(self, grid: int, block: int, *arguments: KernelArgument, shared_bytes: int = 0) -> None:
        """Launch `grid` blocks of `block` threads, with so many bytes of dynamic shared memory.

        Arguments are arrays of the runtime, of any stride: the address of the first element is passed; Python or NumPy
        scalars; or None for a null pointer. Those that do not fit the kernel's signature are refused.
        """


class Event(Protocol):
    """A moment in a stream."""

    def synchronize(self) -> None:
        """Wait for it on the host; from any thread."""


class CopyStream(Protocol):
    """Copies to the device, one after the other, beside what runs on the current stream."""

    def copy(self, out: DeviceArray, values: UInt8) -> None:
        """Enqueue: bytes of `out` become those of `values`, page-locked (`Runtime.pinned`); until they have arrived
        neither may be used otherwise."""

    def wait(self, event: Event) -> None:
        """Later copies begin after the event, of another stream."""

    def record(self) -> Event:
        """The end of all copies so far."""

    def synchronize(self) -> None:
        """Wait on the host for all copies."""


class Lane(Protocol):
    """A stream; within it as a context, it is this thread's current one."""

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...

    def wait_event(self, event: Event) -> None:
        """What it is given from now on begins after the event."""

    def synchronize(self) -> None:
        """Wait on the host for all that it has been given."""


class Runtime(Protocol):
    """One device."""

    @property
    def xp(self) -> ArrayModule:
        """The array module: CuPy, or NumPy under emulation."""

    @property
    def device(self) -> int:
        """Its number among the GPUs that the process sees."""

    @property
    def name(self) -> str:
        """What tells the GPU from all others, of whatever process and host."""

    @property
    def turn(self) -> Turn:
        """Which fit may join it with other GPUs."""

    @property
    def sm(self) -> int:
        """Compute capability, 90 for an H100."""

    @property
    def multiprocessors(self) -> int:
        """How many blocks, at least, run at the same time."""

    @property
    def shared_bytes(self) -> int:
        """Most shared memory of a block, static and dynamic."""

    @property
    def free_bytes(self) -> int:
        """Memory that arrays may still take."""

    def kernel(self, file: str, entry: str, **constants: int) -> Kernel:
        """An entry point of `kernels/<file>.cu`, compiled at most once per process and device.

        Asking does not wait for the compiler, launching does: who asks for several kernels before the first launch has
        them compiled at the same time.
        """

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """What queues up all that `work` launches, faster than `work` does, with the same arguments each time.

        `work` is called to see what it launches, without effect on a real device. It must not copy from or to the host,
        nor wait; what it allocates stays allocated.
        """

    def beside(self, work: Callable[[], None]) -> AbstractContextManager[None]:
        """Within it, what is launched may run at the same time as what `work` launches; the end waits for both.

        In recorded work it does, as far as the launches within leave room on the device: they go first. Else one comes
        after the other.
        """

    def copy_stream(self) -> CopyStream:
        """A stream of its own."""

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        """Two streams for work that takes turns; always the same ones, since memory pools keep memory for each."""

    def record_event(self) -> Event:
        """The end of all that the current stream has been given so far."""

    def wait_event(self, event: Event) -> None:
        """What the current stream is given from now on begins after the event."""

    def why_apart(self) -> str:
        """Say why it cannot be joined with other GPUs; empty where it can."""

    def joined(self, members: Members, gpus: tuple[str, ...]) -> Collective:
        """Join it with other GPUs, of these names in the members' order, all of which are this fit's turn; collective,
        and may take seconds."""

    def taken(self, values: DeviceArray, other: Runtime) -> DeviceArray:
        """Return a copy here of an array of another GPU of the process, or of this one, C-contiguous; waits for what
        computes it there."""

    def pinned(self, n_bytes: int) -> UInt8:
        """Page-locked memory of the host, from which copies need no other: for as long as there are arrays over it.

        Pages are touched in the caller's thread: several at a time take less time.

        Raises
        ------
        DeviceError
            The host does not page-lock so much.
        """


def cuda_of(runtime: Runtime) -> ModuleType:
    """Return CuPy's functions of CUDA, which an emulated device lacks."""
    found: ModuleType = cast(Any, runtime.xp).cuda
    return found


def active(runtime: Runtime) -> AbstractContextManager[Any]:
    """Within it, the device is this thread's current one, on which arrays are made and kernels run."""
    cuda = getattr(runtime.xp, "cuda", None)
    return nullcontext() if cuda is None else cuda.Device(runtime.device)


@contextmanager
def taking_turns(runtime: Runtime) -> Iterator[Iterator[Lane]]:
    """Give lanes in turn, without end, which begin after what the current stream has been given so far.

    The end waits for them, however it comes: arrays that they use may be another stream's, and freed next.
    """
    begun = runtime.record_event()
    for lane in runtime.lanes:
        lane.wait_event(begun)
    try:
        yield cycle(runtime.lanes)
    finally:
        for lane in runtime.lanes:
            lane.synchronize()


def to_device(runtime: Runtime, array: npt.NDArray[Any]) -> DeviceArray:
    """A copy of a small array on the device, without waiting for what runs there.

    CuPy's own `asarray` takes pinned memory for every array, from which only large ones gain.
    """
    made = runtime.xp.empty(array.shape, array.dtype)
    overwrite(runtime, made, array)
    return made


Shapes = Mapping[str, tuple[tuple[int, ...], type[np.generic]]]
"""Shape and type of each of some arrays, by name: what makes them and what plans their bytes go by the same shapes."""


def make_arrays(runtime: Runtime, shapes: Shapes) -> dict[str, DeviceArray]:
    """Return new arrays of any content, each of them in memory of its own."""
    return {name: runtime.xp.empty(shape, dtype) for name, (shape, dtype) in shapes.items()}


def bytes_of(shapes: Shapes) -> int:
    """Return the bytes of arrays of these shapes."""
    return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shapes.values())


def overwrite(runtime: Runtime, array: DeviceArray, values: npt.NDArray[Any]) -> None:
    """Give a C-contiguous device array other values, without waiting for what runs on the device."""
    if isinstance(array, np.ndarray):
        array[...] = values
    elif values.size:
        array.set(np.ascontiguousarray(values, array.dtype), stream=cuda_of(runtime).get_current_stream())


def to_host(array: DeviceArray) -> npt.NDArray[Any]:
    """A copy in the host's memory; waits for what computes it."""
    return np.array(array) if isinstance(array, np.ndarray) else np.asarray(array.get())


def element_stride(vector: DeviceArray) -> int:
    """Elements from one item of a vector to the next."""
    return int(vector.strides[0]) // int(vector.dtype.itemsize)


# Work that is launched again and again: recorded once, then replayed (`Runtime.record`).

class Recorder:
    """Queues up work by its name, under which always the same is launched.

    The first time it is launched as it comes, which compiles kernels and takes memory; the second time it is recorded.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._seen: set[Hashable] = set()
        self._replays: dict[Hashable, Callable[[], None]] = {}
        self._memory: Hashable = None

    def expect(self, memory: Hashable) -> None:
        """Forget what was recorded with other memory: graphs have its addresses. `memory` : anything that tells."""
        if memory != self._memory:
            self._memory = memory
            self._replays.clear()

    def __call__(self, name: Hashable, work: Callable[[], None]) -> None:
        """Launch `work`, or what it launched under this name before."""
        if name not in self._seen:
            self._seen.add(name)
            work()
            return
        if name not in self._replays:
            self._replays[name] = self._runtime.record(work)
        self._replays[name]()
