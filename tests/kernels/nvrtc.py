"""NVIDIA's run-time compiler without a GPU or CuPy: the library of the wheel nvidia-cuda-nvrtc, through ctypes.

    python -m kernels.nvrtc NAME [SM]    usage of all entry points of a kernel file's variants, as JSON; on all
                                         architectures, or on one
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path

from daskboost.devices.gpu.kernel_source import ARCHITECTURES, LEAST_SM, KernelFile, Variant, kernel_file

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


def compile_for(source: KernelFile, variant: Variant, sm: int) -> dict[str, Usage]:
    """Compile down to machine code as the engine does; usage of each entry point."""
    log, _ = _compile(source, variant, f"-arch=sm_{sm}", "--ptxas-options=-v")
    return {name: _usage(rest) for name, *rest in _USAGE.findall(log)}


def place_of(variant: Variant, sm: int) -> str:
    """What `usage_of_all` calls a variant on an architecture."""
    return f"{variant}, sm_{sm}"


def usage_of_all(source: KernelFile, architectures: Sequence[int]) -> dict[str, dict[str, Usage]]:
    """By variant and architecture, those that have it."""
    return {
        place_of(variant, sm): compile_for(source, variant, sm)
        for sm in architectures for variant in source.variants if sm >= variant.least_sm
    }  # fmt: skip


def ptx_of(source: KernelFile, variant: Variant) -> str:
    """The intermediate code that every architecture's is made from."""
    return _compile(source, variant, f"-arch=compute_{LEAST_SM}")[1]


def _compile(source: KernelFile, variant: Variant, *more: str) -> tuple[str, str]:
    """Log and PTX, which is empty if machine code was asked for."""
    nvrtc, program = _library(), ctypes.c_void_p()
    options = [*more, *source.options(variant)]
    encoded = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    name = f"{source.name}.cu".encode()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.text.encode(), name, 0, None, None) == 0
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(options), encoded)
        log = _text(program, "ProgramLog")
        if status != 0:
            raise CompileError(f"{source.name}.cu, {variant}, {more[0]}:\n{log}")
        return log, _text(program, "PTX")
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


if __name__ == "__main__":
    found = usage_of_all(kernel_file(sys.argv[1]), [int(sm) for sm in sys.argv[2:]] or [*ARCHITECTURES]).items()
    print(json.dumps({where: {name: astuple(usage) for name, usage in usages.items()} for where, usages in found}))
