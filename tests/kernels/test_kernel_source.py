"""What kernel files declare is read as the compiler reads it."""

from __future__ import annotations

import ctypes
import gc
import importlib.machinery
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from daskboost.devices.gpu.runtime import cuda, kernel_source
from daskboost.devices.gpu.runtime.kernel_source import (
    evaluate,
    kernel_file,
    kernel_names,
    parse,
    preprocess,
    source_folder,
)
from daskboost.errors import DeviceError, MissingDependencyError

SOURCE = """
// variants: SMALL=0,1 WIDTH=4,8
// variants: SMALL=0 WIDTH=16 sm=80
// usual: SMALL=0 WIDTH=8,16
// budget: add registers=2*WIDTH shared=4*THREADS/2
#include "types.cuh"
#ifndef THREADS
#define THREADS (1u << 6)
#endif
#if SMALL
using Pair = i64;
#else
using Pair = i32;  // a comment, with "quotes"
#endif
#define EXTRA i32 n, \\
              const u8* widths
struct Group;
extern "C" __global__ void __launch_bounds__(THREADS) add(
    const Pair* __restrict__ pairs, EXTRA, double unit, const Group* groups, u64 key) {}
"""


def test_variants_are_products() -> None:
    variants = parse("any", SOURCE).variants
    found = [(dict(v.constants)["SMALL"], dict(v.constants)["WIDTH"], v.least_sm) for v in variants]
    assert found == [(0, 4, 75), (0, 8, 75), (1, 4, 75), (1, 8, 75), (0, 16, 80)]
    assert variants[0].defines == ("-DSMALL=0", "-DWIDTH=4")
    assert parse("any", SOURCE).variant({"WIDTH": 16}) == variants[4]
    assert parse("any", SOURCE).usual == (variants[1], variants[4])


class Interrupting:
    """What is freed only by the garbage collector, which then lets other threads run."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        for _ in range(50):
            pass


def test_threads_evaluate_at_once() -> None:
    found: list[int] = []

    def evaluate_below(frames: int) -> None:
        if frames:
            return evaluate_below(frames - 1)
        for _ in range(2000):
            Interrupting()
            found.append(evaluate("8*WIDTH/32 + 2*(WIDTH+1)", {"WIDTH": "256"}))
        return None

    threads = [threading.Thread(target=evaluate_below, args=(5 * depth,)) for depth in range(4)]
    switches, collects = sys.getswitchinterval(), gc.get_threshold()
    try:
        sys.setswitchinterval(1e-6)
        gc.set_threshold(50)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switches)
        gc.set_threshold(*collects)
    assert found == [8 * 256 // 32 + 2 * 257] * 8000


@pytest.mark.parametrize("constants", [{}, {"WIDTH": 4}, {"WIDTH": 4, "SMALL": 2}, {"NAME": 1}])
def test_constants_must_name_one_declared_variant(constants: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"kernels/any\.cu declares \d variants with"):
        parse("any", SOURCE).variant(constants)


def test_signatures_follow_the_constants() -> None:
    source = parse("any", SOURCE)
    for small, dtype in ((0, np.int32), (1, np.int64)):
        entry = source.entries(source.variant({"SMALL": small, "WIDTH": 8}))["add"]
        found = [(p.name, p.dtype, p.is_pointer) for p in entry.parameters]
        assert found == [
            ("pairs", np.dtype(dtype), True), ("n", np.dtype(np.int32), False), ("widths", np.dtype(np.uint8), True),
            ("unit", np.dtype(np.float64), False), ("groups", None, True), ("key", np.dtype(np.uint64), False),
        ]  # fmt: skip
        assert (entry.most_threads, entry.registers, entry.shared_bytes) == (64, 16, 128)


def test_arguments_are_bound() -> None:
    source = parse("any", SOURCE)
    entry = source.entries(source.variant({"SMALL": 0, "WIDTH": 8}))["add"]
    pairs, structs = np.zeros(3, np.int32), np.zeros(3, np.uint16)
    bound = entry.bind((pairs, 3, None, 1, structs, 2**64 - 1))
    assert bound[0] is pairs and bound[2] is None and bound[4] is structs
    assert [(type(bound[i]), bound[i]) for i in (1, 3, 5)] == [
        (np.int32, 3), (np.float64, 1.0), (np.uint64, 2**64 - 1)
    ]  # fmt: skip
    good = (pairs, np.int32(3), None, np.float64(1), structs, np.uint64(5))
    entry.bind(good)
    for place, bad in [(0, structs), (0, 3), (1, pairs), (1, None), (1, np.int64(3)), (1, True + 0.5), (3, "1"),
                       (3, np.float32(1)), (5, np.int64(1))]:  # fmt: skip
        with pytest.raises(TypeError, match=entry.parameters[place].name):
            entry.bind((*good[:place], bad, *good[place + 1 :]))
    for place, value in [(1, 2**31), (5, -1), (5, 2**64)]:
        with pytest.raises(OverflowError):
            entry.bind((*good[:place], value, *good[place + 1 :]))


@pytest.mark.parametrize(
    "wrong, message",
    [
        (SOURCE.replace("// variants", "// other"), "must declare its variants"),
        (SOURCE.replace("sm=80", "").replace("WIDTH=16", "WIDTH=4"), "each once"),
        (SOURCE.replace("usual: SMALL=0 WIDTH=8", "usual: SMALL=0 WIDTH=7"), "declares 0 variants with SMALL=0"),
        (SOURCE.replace("// budget", "// other"), "no line '// budget: add registers"),
        (SOURCE.replace(" shared=4*THREADS/2", ""), "no line '// budget: add registers"),
        (SOURCE.replace("double unit", "Group unit"), "unknown type"),
        (SOURCE.replace("extern", "static"), "no entry point"),
        (SOURCE.replace("2*WIDTH", "min(2, WIDTH)"), "cannot evaluate"),
    ],
)
def test_what_is_missing_or_wrong_is_named(wrong: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        source = parse("any", wrong)
        assert source.usual
        for variant in source.variants:
            source.entries(variant)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("#if A == 2 && !defined(B)\nyes\n#else\nno\n#endif", "yes"),
        ("#if A > 2 || B\nyes\n#elif A * 3 == 6\nelif\n#else\nno\n#endif", "elif"),
        ("#ifdef B\n#if A\nyes\n#else\nother\n#endif\n#elif A != 2\nno\n#else\nlast\n#endif", "last"),
        ("#ifndef A\n#define B 1\n#endif\n#ifdef B\nyes\n#endif\nno", "no"),
        ("#define B 7 /* seven\nlines */\n#undef A\n#if B - 7 || defined A\nyes\n#endif", ""),
        ("// #if A\n#if !(A / 3)\nyes // #else\n#endif", "yes"),
    ],
)
def test_conditionals(text: str, expected: str) -> None:
    assert preprocess(text, source_folder(), {"A": "2"}).strip() == expected


@pytest.mark.parametrize(
    "text, value",
    [("4*N/3", 10), ("(1u << N) - 1ull", 255), ("-N + 0x10", 8), ("MISSING", 0), ("N >= 8", 1), ("N%3", 2)],
)
def test_whole_numbers(text: str, value: int) -> None:
    assert evaluate(text, {"N": "EIGHT", "EIGHT": "8"}) == value


def test_headers_are_part_of_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or CuPy would go on with the binaries that older headers gave."""
    for path in source_folder().glob("*.cu*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(kernel_source, "source_folder", lambda: tmp_path)
    text = (tmp_path / "margins.cu").read_text()
    before = parse("margins", text).digest
    assert parse("margins", text).digest == before
    (tmp_path / "types.cuh").write_text((tmp_path / "types.cuh").read_text() + "\n")
    assert parse("margins", text).digest != before


def test_kernels_name_no_header_but_their_own() -> None:
    """NVRTC needs no toolkit then, and the emulation none of CUDA's headers."""
    folder = source_folder()
    for path in folder.glob("*.cu*"):
        includes = [line for line in path.read_text().splitlines() if line.startswith("#include")]
        assert all((folder / line.split('"')[1]).is_file() for line in includes), path
    assert kernel_names()


def fake_cupy(count: Any, capability: tuple[int, int] = (9, 0), version: str = "14.2.0", nvrtc: str = "") -> ModuleType:
    """As much of CuPy as asking for a device takes; `count` is an exception or the number of devices, `nvrtc` what is
    said where the compiler is not there."""

    class CUDARuntimeError(RuntimeError):
        pass

    def device_count() -> int:
        if isinstance(count, str):
            raise CUDARuntimeError(count)
        return int(count)

    def compiler_version() -> tuple[int, int]:
        if nvrtc:
            raise RuntimeError(nvrtc)
        return 13, 0

    properties = {"multiProcessorCount": 2, "sharedMemPerBlockOptin": 65536}
    runtime = SimpleNamespace(
        getDeviceCount=device_count, CUDARuntimeError=CUDARuntimeError,
        getDeviceProperties=lambda _: {**properties, "major": capability[0], "minor": capability[1]},
    )  # fmt: skip
    module = ModuleType("cupy")
    module.__spec__ = importlib.machinery.ModuleSpec("cupy", None)
    module.__version__ = version  # type: ignore[attr-defined]
    module.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        runtime=runtime, nvrtc=SimpleNamespace(getVersion=compiler_version)
    )
    return module


@pytest.mark.parametrize(
    "module, error, message",
    [
        (None, MissingDependencyError, r"device='cuda' needs CuPy, which is not installed: pip install"),
        (
            fake_cupy("cudaErrorInsufficientDriver: old"),
            DeviceError,
            "NVIDIA driver, and CUDA says cudaErrorInsufficient",
        ),
        (fake_cupy(1), DeviceError, "GPU 3 was asked for, and CUDA sees 1, numbered from 0: check CUDA_VISIBLE"),
        (fake_cupy(4, (7, 0)), DeviceError, r"GPU 3 has compute capability 7\.0, and daskboost needs 7\.5 or newer"),
        (fake_cupy(4, nvrtc="no libnvrtc"), DeviceError, r"NVRTC, which cannot be loaded, .*: pip install 'daskboost"),
        *(
            (fake_cupy(4, version=old), MissingDependencyError, f"needs CuPy 14.2 or later, and {old} is installed")
            for old in ("13.6.0", "14.1.1", "14.0.0rc1")
        ),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(module: Any, error: Any, message: str,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setitem(sys.modules, "cupy", module)
    if module is None:  # not installed
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(error, match=message) as caught:
        cuda.make_runtime.__wrapped__(3)
    assert str(caught.value).count(". ") == 0 and "\n" not in str(caught.value)


def test_what_cannot_be_imported_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    monkeypatch.setitem(sys.modules, "cupy", None)  # an import of it raises
    with pytest.raises(MissingDependencyError, match=r"is installed but cannot be imported, .*: pip uninstall"):
        cuda.make_runtime.__wrapped__(3)


def test_the_driver_begins_before_cupy_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    done, initialized = threading.Event(), list[int]()

    def init(flags: int) -> int:
        initialized.append(flags)
        done.set()
        return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(cuInit=init) if "cuda" in name else None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    module = fake_cupy(1)
    monkeypatch.setitem(sys.modules, "cupy", module)  # which is undone in the end
    del sys.modules["cupy"]

    class Finder:
        """What imports CuPy, once the driver has begun."""

        def find_spec(self, name: str, *_: Any) -> Any:
            if name != "cupy":
                return None
            assert done.wait(10)
            return importlib.machinery.ModuleSpec("cupy", self)  # type: ignore[arg-type]

        def create_module(self, _: Any) -> ModuleType:
            return module

        def exec_module(self, _: Any) -> None: ...

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    for _ in range(2):
        assert cuda.cupy_module() is module
    assert initialized == [0]


def test_without_a_driver_nobody_is_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "DRIVER_LIBRARY", "libno-such-driver.so.1")
    cuda.wake_driver()


class Nvrtc:
    """`cupy.cuda.nvrtc`, which compiles for the GPUs that it knows."""

    class NVRTCError(RuntimeError):
        pass

    def __init__(self, *known: int) -> None:
        self.known = known
        self.programs: list[str] = []
        self.asked: list[tuple[str, ...]] = []

    def getVersion(self) -> tuple[int, int]:
        return 13, 0

    def getSupportedArchs(self) -> tuple[int, ...]:
        return self.known

    def createProgram(self, source: str, name: str, *_: Any) -> str:
        self.programs.append(name)
        return name

    def destroyProgram(self, program: str) -> None:
        self.programs.remove(program)

    def compileProgram(self, program: str, options: tuple[str, ...]) -> None:
        self.asked.append(options)
        if not any(f"-arch=sm_{sm}" in options for sm in self.known):
            raise self.NVRTCError("NVRTC_ERROR_INVALID_OPTION (5)")

    def getProgramLog(self, program: str) -> str:
        return "nvrtc: error: invalid value\nfor --gpu-architecture (-arch)"

    def getCUBIN(self, program: str) -> bytes:
        return b"binary"


def toolchain(sm: int, *known: int) -> tuple[Nvrtc, cuda.NvidiaToolchain]:
    """NVRTC for a GPU, which is the fourth of the machine."""
    module: Any = fake_cupy(4)
    module.cuda.nvrtc = nvrtc = Nvrtc(*known)
    return nvrtc, cuda.NvidiaToolchain(module, 3, sm)


@pytest.mark.parametrize("known", [(75, 80), (75, 100)])
def test_a_gpu_that_the_compiler_does_not_know_is_said_in_one_sentence(known: tuple[int, ...]) -> None:
    nvrtc, made = toolchain(90, *known)
    source = kernel_file("margins")
    message = r"NVRTC 13\.0 cannot compile margins\.cu for GPU 3 \(sm_90\): install a CUDA toolkit that knows this GPU"
    with pytest.raises(DeviceError, match=message) as caught:
        made.compile(source, source.variants[0])
    assert "invalid value for --gpu-architecture" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert nvrtc.programs == []


@pytest.mark.parametrize(("sm", "expected"), [(90, 90), (121, 120), (89, 89), (87, 86)])
def test_kernels_are_compiled_for_what_the_gpu_runs(
    sm: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(cuda, "say_compiling", said.append)
    nvrtc, made = toolchain(sm, 75, 80, 86, 89, 90, 100, 120)
    source = kernel_file("range")
    assert made.compile(source, source.variants[1]) == b"binary"
    assert made.target == f"sm_{expected} NVRTC 13.0"
    (options,) = nvrtc.asked
    assert f"-arch=sm_{expected}" in options and {"--fmad=false", *source.variants[1].defines} < set(options)
    assert not any("ftz" in option for option in options)
    assert (nvrtc.programs, said) == ([], ["CUDA"])


def test_a_device_that_serves_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(4, (7, 5)))
    found = cuda.make_runtime.__wrapped__(3)
    assert (found.sm, found.multiprocessors, found.shared_bytes) == (75, 2, 65536)
    assert kernel_file("margins").variants


LEAF_VALUES = kernel_file("margins").entries(kernel_file("margins").variants[0])["add_leaf_values"]
GIVEN = (None, None, None, 4, 5, None, None, 6, None)
"""Arguments of that kernel."""


class Function:
    """What the driver launches, and how much shared memory it was asked for."""

    def __init__(self) -> None:
        self.launches: list[Any] = []
        self.asked = 0

    def __call__(self, *arguments: Any, shared_mem: int) -> None:
        assert shared_mem <= max(self.asked, cuda.UNASKED_SHARED_BYTES)
        self.launches.append((*arguments, shared_mem))


def test_a_launch_asks_for_much_shared_memory_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond 48 KiB CUDA wants to be asked, once; null pointers travel as addresses."""
    function = Function()
    monkeypatch.setattr(cuda, "allow_shared_bytes", lambda found, n_bytes: setattr(found, "asked", n_bytes))
    kernel = cuda.CudaKernel(lambda: function, LEAF_VALUES)
    for shared_bytes, asked in ((48 << 10, 0), (60_000, 60_000), (50_000, 60_000)):
        kernel(3, 128, *GIVEN, shared_bytes=shared_bytes)
        assert function.asked == asked
        arguments = function.launches.pop()[2]
        assert arguments == (0, 0, 0, 4, 5, 0, 0, 6, 0)
        assert [type(argument) for argument in arguments[3:8:2]] == [np.int32, np.uintp, np.int64]
    with pytest.raises(ValueError, match="bounded by 128 threads in a block, got 512"):
        kernel(3, 512, *GIVEN)


def test_the_driver_is_asked_for_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = fake_cupy(1)
    asked: list[Any] = []
    module.cuda.driver = SimpleNamespace(
        funcSetAttribute=lambda *given: asked.append(given), CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    cuda.allow_shared_bytes(SimpleNamespace(ptr=77), 60_000)
    assert asked == [(77, 8, 60_000)]


def test_fits_in_threads_ask_for_the_most_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that has begun to ask for less does not take back what another one gets meanwhile."""
    less_begun, more_asked, less_asked = threading.Event(), threading.Event(), threading.Event()

    def allow(found: Function, n_bytes: int) -> None:
        if n_bytes == 60_000:
            less_begun.set()
            more_asked.wait(0.3)
        found.asked = n_bytes
        if n_bytes == 60_000:
            less_asked.set()
        else:
            more_asked.set()
            less_asked.wait(10)

    monkeypatch.setattr(cuda, "allow_shared_bytes", allow)
    function = Function()
    kernel = cuda.CudaKernel(lambda: function, LEAF_VALUES)
    less = threading.Thread(target=kernel, args=(3, 128, *GIVEN), kwargs={"shared_bytes": 60_000})
    less.start()
    assert less_begun.wait(10)
    kernel(3, 128, *GIVEN, shared_bytes=90_000)
    less.join()
    assert function.asked == 90_000


def test_a_function_is_found_when_it_is_first_launched() -> None:
    """Until then its compiler may take its time."""
    function, found = Function(), list[Function]()

    def find() -> Function:
        found.append(function)
        return function

    kernel = cuda.CudaKernel(find, LEAF_VALUES)
    assert found == []
    for _ in range(2):
        kernel(3, 128, *GIVEN)
    assert (found, len(function.launches)) == ([function], 2)
