"""NVIDIA's run-time compiler without a GPU or CuPy: the library of the wheel nvidia-cuda-nvrtc, through ctypes."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from daskboost.devices.gpu.runtime.kernel_source import KernelFile, Variant

_USAGE = re.compile(
    r"Compiling entry function '(\w+)'.*?"
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads.*?"
    r"Used (\d+) registers([^\n]*)",
    re.S,
)


class CompileError(Exception):
    """The compiler's log."""


@dataclass(frozen=True)
class Usage:
    """What an entry point takes on one architecture; `local_bytes` : of registers that had no room, or stacks."""

    registers: int
    shared_bytes: int
    local_bytes: int


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a variant for one architecture."""

    usages: dict[str, Usage]
    """By entry point."""
    ptx: str
    """The intermediate code that the machine code was made from."""


def compile_for(source: KernelFile, variant: Variant, sm: int) -> Compiled:
    """Compile a variant down to machine code, as the engine does."""
    nvrtc, program = _library(), ctypes.c_void_p()
    options = [f"-arch=sm_{sm}", "--ptxas-options=-v", *source.options(variant)]
    encoded = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    name = f"{source.name}.cu".encode()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.text.encode(), name, 0, None, None) == 0
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(options), encoded)
        log = _text(program, "ProgramLog")
        if status != 0:
            raise CompileError(f"{source.name}.cu, {variant}, sm_{sm}:\n{log}")
        return Compiled({name: _usage(rest) for name, *rest in _USAGE.findall(log)}, _text(program, "PTX"))
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(program: ctypes.c_void_p, what: str) -> str:
    nvrtc, size = _library(), ctypes.c_size_t()
    assert getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    text = ctypes.create_string_buffer(max(size.value, 1))
    assert getattr(nvrtc, f"nvrtcGet{what}")(program, text) == 0
    return text.value.decode()


def _usage(found: list[str]) -> Usage:
    stack, stores, loads, registers, rest = found
    shared = re.search(r"(\d+) bytes smem", rest)
    return Usage(int(registers), int(shared[1]) if shared else 0, max(int(stack), int(stores), int(loads)))


@cache
def _library() -> ctypes.CDLL:
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    found = sorted(path for folder in folders for path in folder.glob("cu13/lib/libnvrtc.so.*"))
    assert found, "compiling kernels needs NVRTC: pip install 'daskboost[test]'"
    return ctypes.CDLL(str(found[-1]))
