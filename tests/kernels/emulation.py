"""Runs unmodified `kernels/*.cu` on the CPU: a `Runtime` over g++ and ctypes (see `cuda_emulation.hpp`)."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import itertools
import os
import platform
import shutil
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from kernels.late_copies import POISON, LateCopies, Launched, Launches
from kernels.races import DETECTOR_FLAGS, RACE_FLAGS, RACES, describe

from daskboost.devices.gpu.runtime.collective import Members, Turn
from daskboost.devices.gpu.runtime.kernel_source import (
    ARCHITECTURES,
    LEAST_SM,
    Entry,
    KernelFile,
    Variant,
    kernel_file,
    source_folder,
)

HERE = Path(__file__).parent
EMULATION = HERE / "cuda_emulation.cpp"
DETECTOR = HERE / "race_detector.cpp"
EMULATION_FLAGS = ("-O2", "-mno-red-zone") if platform.machine() == "x86_64" else ("-O2",)
"""Options of the emulation itself, whose fibers push what they save onto their stacks."""
FLAGS = (
    "-std=c++17", "-O1", "-g1", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing",
    "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-parameter",
)  # fmt: skip
"""Lines are all that sanitizers name; knowing variables as well takes the compiler a quarter more time."""
SANITIZER_FLAGS = (
    "-O0", "-fsanitize=address,undefined", "-fsanitize-sections=emulated_shared", "-fno-sanitize-recover=all"
)  # fmt: skip
"""Compiling takes most of the time of tests under sanitizers, and without optimizing a fifth less than with it."""
OF_THE_HEADER = "-DEMULATION_"
"""Definitions of a variant that change the emulation itself begin so. All others come after its header, some of whose
names, or of the C++ library's, they may have."""
SANITIZE = "DASKBOOST_SANITIZE"
"""Environment variable: not empty where the process was started with the address sanitizer's library."""
EACH_VALUE = "--each-value"
"""Option of pytest: not all combinations of values of parameters, but each value (`tests/conftest.py`)."""
MOST_TESTS = "DASKBOOST_MOST_TESTS"
"""Environment variable: run at most so many emulated tests of each file, evenly chosen, none of them large, and those
of `ALWAYS`."""
ALWAYS = HERE / "sanitized.txt"
"""Names tests that together launch kernels with every value of every constant."""
LAUNCHES = "DASKBOOST_LAUNCHES"
"""Environment variable: a file that gains a line for every entry point that several threads have run, and for every
value of a constant that it was compiled with; whether they ran out of order."""


ONE_AT_A_TIME = threading.Lock()
"""Fibers and shared memory are a library's own, and engines of one process have threads of their own."""


class EmulationError(Exception):
    """A kernel broke CUDA's rules: a barrier that not all threads reach, a race, and the like."""


class Launch(ctypes.Structure):
    """`emulation::Launch`."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_ulonglong),
        ("seed", ctypes.c_ulonglong), ("bytes", ctypes.POINTER(ctypes.c_ulonglong)),
    ]  # fmt: skip


class EmulatedLane(contextlib.nullcontext[None]):
    """A stream, for which there is nothing to wait."""

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...


NUMBERS = itertools.count()
"""Numbers of emulated devices, by which they are told apart."""


class JoinedByHost:
    """Joins emulated devices, each in a thread of its own, by what their engines tell each other."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self.n_members, self.rank = members.n_peers, members.rank

    def add_up(self, values: Any) -> None:
        assert values.flags.c_contiguous
        values[...] = np.add.reduce(self._members.share(values.copy()))

    def add_up_shares(self, values: Any) -> None:
        """What is undefined is what no histogram has."""
        assert values.flags.c_contiguous
        sums = np.add.reduce(self._members.share(values.copy()))
        own = slice(self.rank * len(values) // self.n_members, (self.rank + 1) * len(values) // self.n_members)
        values[...] = np.iinfo(values.dtype).max // 7
        values[own] = sums[own]

    def find_largest(self, values: Any) -> None:
        assert values.flags.c_contiguous
        values[...] = np.maximum.reduce(self._members.share(values.copy()))

    def gather(self, values: Any, out: Any) -> None:
        assert values.flags.c_contiguous and out.flags.c_contiguous
        out[...] = self._members.share(values.copy())

    def check(self) -> None:
        """Whoever is lost fails what is enqueued."""

    def abort(self) -> None:
        """The engines' peers wake who waits."""

    def close(self) -> None:
        """There is nothing to give back."""


class EmulatedRuntime:
    """A `Runtime` of two multiprocessors and NumPy arrays.

    `seed` orders threads and blocks, 0 by their indices. `finds_races` : compile kernels with the race detector, which
    makes a race an error; by default where the environment asks for it.
    """

    xp = np
    multiprocessors = 2
    free_bytes = 1 << 30
    device = 0

    def __init__(self, seed: int = 0, sm: int = LEAST_SM, finds_races: bool | None = None) -> None:
        self.seed = seed
        self.name = f"emulated {next(NUMBERS)}"
        self.turn = Turn()
        self.finds_races = bool(os.environ.get(RACES)) if finds_races is None else finds_races
        self.sm = sm
        self.device = 0
        self.shared_bytes = ARCHITECTURES[sm] << 10
        self.launches: Launches | None = None
        """Noted once there are copies beside them."""
        self.pinned_bytes = self.pinned_peak_bytes = 0
        """Page-locked now, and at most so far."""
        self._pinning = threading.RLock()

    def kernel(self, file: str, entry: str, **constants: int) -> EmulatedKernel:
        """As `CudaRuntime.kernel`."""
        source = kernel_file(file)
        return self.kernel_of(source, entry, source.variant(constants))

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """As `CudaRuntime.record`."""
        return work

    @contextlib.contextmanager
    def beside(self, work: Callable[[], None]) -> Iterator[None]:
        """As `CudaRuntime.beside`: either may come first on a device, and the seed says which one does here."""
        comes_first = self.seed % 2 == 0
        if comes_first:
            work()
        yield
        if not comes_first:
            work()

    def copy_stream(self) -> LateCopies:
        """As `CudaRuntime.copy_stream`."""
        self.launches = self.launches or Launches()
        return LateCopies(self.launches)

    @property
    def lanes(self) -> tuple[EmulatedLane, EmulatedLane]:
        """As `CudaRuntime.lanes`: launches run at once, whatever the stream."""
        return EmulatedLane(), EmulatedLane()

    def record_event(self) -> Launched:
        """As `CudaRuntime.record_event`."""
        return Launched(0 if self.launches is None else self.launches.count)

    def wait_event(self, event: Any) -> None:
        """As `CudaRuntime.wait_event`: what comes next needs it, and launches run at once."""
        event.synchronize()

    def why_apart(self) -> str:
        """As `CudaRuntime.why_apart`."""
        return ""

    def joined(self, members: Members, gpus: tuple[str, ...]) -> JoinedByHost:
        """As `CudaRuntime.joined`."""
        assert len(set(gpus)) == members.n_peers and gpus[members.rank] == self.name
        return JoinedByHost(members)

    def taken(self, values: Any, other: Any) -> Any:
        """As `CudaRuntime.taken`."""
        return np.array(values, order="C")

    def pinned(self, n_bytes: int) -> Any:
        """As `CudaRuntime.pinned`: of unknown contents."""
        made = np.full(n_bytes, POISON, np.uint8)
        self._pin(n_bytes)
        weakref.finalize(made, self._pin, -n_bytes)
        return made

    def _pin(self, n_bytes: int) -> None:
        with self._pinning:
            self.pinned_bytes += n_bytes
            self.pinned_peak_bytes = max(self.pinned_peak_bytes, self.pinned_bytes)

    def kernel_of(self, source: KernelFile, entry: str, variant: Variant) -> EmulatedKernel:
        """Of any source, such as a test's own."""
        assert variant.least_sm <= self.sm, f"{variant} needs sm_{variant.least_sm}"
        path = library(source, variant, self.finds_races)
        return EmulatedKernel(self, path, source.name, variant, source.entries(variant)[entry])


class EmulatedKernel:
    """An entry point that g++ compiled."""

    def __init__(self, runtime: EmulatedRuntime, path: Path, file: str, variant: Variant, entry: Entry) -> None:
        self._runtime, self._entry, self._path, self._file, self._variant = runtime, entry, path, file, variant
        self._function = getattr(_load(path), f"emulate_{entry.name}")
        self._function.restype = ctypes.c_char_p

    def __call__(self, grid: int, block: int, *arguments: Any, shared_bytes: int = 0) -> None:
        self._entry.check_block(block)
        assert 0 < grid < 2**31 and block > 0, f"CUDA refuses {grid} blocks of {block} threads"
        assert self._entry.shared_bytes + shared_bytes <= self._runtime.shared_bytes, (self._entry, shared_bytes)
        bound = self._entry.bind(arguments)
        assert all(a.ctypes.data % a.itemsize == 0 for a in bound if isinstance(a, np.ndarray))
        cells = [_cell(argument) for argument in bound]
        pointers = (ctypes.c_void_p * len(cells))(*[ctypes.addressof(cell) for cell in cells])
        if self._runtime.launches is not None:
            self._runtime.launches.note(bound)
        sizes = (ctypes.c_ulonglong * len(bound))(*map(_bytes_behind, bound))
        launch = Launch((grid, 1, 1), (block, 1, 1), shared_bytes, self._runtime.seed, sizes)
        with ONE_AT_A_TIME:
            message = self._function(ctypes.byref(launch), pointers)
        if message is not None:
            raise EmulationError(f"{self._entry.name}: {self._in_words(message.decode(), bound)}")
        if grid * block > 1 and (path := os.environ.get(LAUNCHES)):
            for line in launch_lines(self._file, self._entry.name, self._variant, self._runtime.seed != 0):
                _note(path, line)

    def _in_words(self, message: str, bound: list[Any]) -> str:
        """An error as it is, or races with their lines."""
        if not message[:1].isdigit():
            return message
        names = [parameter.name for parameter in self._entry.parameters]
        arrays = {name: a for name, a in zip(names, bound, strict=True) if isinstance(a, np.ndarray)}
        return describe(message, self._path, arrays)


def launch_lines(file: str, entry: str, variant: Variant, out_of_order: bool) -> list[str]:
    """What the file of `LAUNCHES` says of an entry point."""
    values = [f"{name}={value}" for name, value in variant.constants]
    return [f"{file} {what} {'out of order' if out_of_order else 'in order'}" for what in (entry, *values)]


@cache
def _note(path: str, line: str) -> None:
    """Append a line, once per process."""
    with open(path, "a") as launches:
        launches.write(line + "\n")


def _cell(argument: Any) -> Any:
    """Memory that holds an argument: a pointer, or the bytes of a scalar."""
    if argument is None:
        return ctypes.c_void_p(None)
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(argument.ctypes.data)
    return ctypes.create_string_buffer(argument.tobytes(), argument.dtype.itemsize)


def _bytes_behind(argument: Any) -> int:
    """The pointer of an argument: up to the end of its array, which may be every other column of another."""
    if not isinstance(argument, np.ndarray):
        return 0
    return int(np.lib.array_utils.byte_bounds(argument)[1]) - argument.ctypes.data


@cache
def _load(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path))


@cache
def library(source: KernelFile, variant: Variant, finds_races: bool = False) -> Path:
    """Compile a source once per content, options and compiler flags; kept in a temporary directory between runs."""
    sanitizers = SANITIZER_FLAGS if os.environ.get(SANITIZE) else RACE_FLAGS if finds_races else ()
    of_header = tuple(each for each in variant.defines if each.startswith(OF_THE_HEADER))
    flags = (*FLAGS, *sanitizers, *of_header)
    header = _precompiled(flags)
    emulation = _built("cuda_emulation", ".o", EMULATION.read_text(), (*flags, *EMULATION_FLAGS, f"-I{HERE}", "-c"))
    constants = [f"#define {name} {value}" for name, value in variant.constants if f"-D{name}={value}" not in of_header]
    lines = [f'#include "{header.stem}"', *constants, f'#line 1 "kernels/{source.name}.cu"', source.text]
    text = "\n".join([*lines, *(f"EMULATED_KERNEL({entry})" for entry in source.entries(variant)), ""])
    folders = (f"-iquote{header.parent}", f"-I{source_folder()}")
    options = (*flags, "-Winvalid-pch", *folders)
    if not finds_races:
        return _built(source.name, ".so", text, (*options, "-shared", str(emulation)), source.digest)
    kernels = _built(source.name, ".o", text, (*options, "-c"), source.digest)
    detector = _built("race_detector", ".o", DETECTOR.read_text(), (*FLAGS, *DETECTOR_FLAGS, f"-I{HERE}", "-c"))
    return _built(source.name, ".so", "", (*FLAGS, "-shared", *map(str, (kernels, emulation, detector))))


@cache
def _precompiled(flags: tuple[str, ...]) -> Path:
    """Compile what kernels include of the emulation and of the C++ library, once for all kernels of these flags.

    g++ finds the result by its name without the last suffix.
    """
    return _built(
        "cuda_emulation", ".hpp.gch", '#include "cuda_emulation.hpp"\n', (*flags, f"-I{HERE}", "-x", "c++-header")
    )


def _built(name: str, suffix: str, text: str, options: tuple[str, ...], digest: str = "") -> Path:
    """What g++ makes of a C++ source and of files among its options, whose names are of their contents; kept by the
    contents of everything that goes into it."""
    headers = [path.read_bytes() for path in sorted(HERE.glob("*.hpp"))]
    key = hashlib.sha256(repr((text, options, digest, headers)).encode()).hexdigest()[:24]
    folder = Path(tempfile.gettempdir()) / f"daskboost-emulation-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{name}-{key}{suffix}"
    if not path.exists():
        _compile(text, options, path)
    return path


def _compile(text: str, options: tuple[str, ...], path: Path) -> None:
    """Into a file of another name first: other test processes may look for this one."""
    compiler = shutil.which("g++")
    assert compiler, "the emulation of CUDA kernels needs g++: apt-get install g++"
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        source, built = Path(scratch) / f"{path.stem}.cpp", Path(scratch) / path.name
        source.write_text(text)
        done = subprocess.run([compiler, *options, "-o", built, source], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        os.replace(built, path)
