"""CUDA sources: where they lie, what they declare, and how they become a module. Knows no GPU and imports no CuPy.

A `kernels/<file>.cu` declares in its opening comment everything that its users and its tests need to know:

    // variants: SMALL=0,1 COLUMNS=8,16
    // variants: SMALL=0 COLUMNS=32 sm=80
    // usual: SMALL=0 COLUMNS=8
    // budget: quantize_gradients registers=56 shared=12*THREADS/32

A `variants` line is the product of its constants' values, for every architecture of `ARCHITECTURES`, or from `sm` on.
No other constants can be asked for, so whatever runs was compiled by the tests: for two architectures of the seven, or
for all by `make kernels`. A `usual` line is the product of those that most fits launch, with which a process that has
to compile begins (`modules.py`). A `budget` line limits an entry point's registers per thread and bytes of static
shared memory; both may be expressions of the file's macros.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import operator
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from daskboost.devices.gpu.runtime.launches import KernelArgument

# The C preprocessor, as far as `kernels/` uses it: what a source declares once its constants are known.
#
# Knows `#include "..."` (each header once), `#define` of names without parameters, `#undef`, and conditionals over
# whole numbers. Compilers see the original source; this serves reading signatures and budgets.

_ONE_PARSES = threading.Lock()
"""Python 3.11 counts the depth of the tree it builds for all threads together, and raises where two count at once."""
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_NUMBER = re.compile(r"\b(0x[0-9a-fA-F]+|\d+)[uUlL]+\b")
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
_OPERATORS: dict[type, Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.Eq: operator.eq,
    ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
}  # fmt: skip


def preprocess(text: str, folder: Path, macros: dict[str, str]) -> str:
    """The lines that remain, macros unexpanded; `macros` gains what the source and its headers define."""
    return "\n".join(_lines(text, folder, macros, set()))


def _lines(text: str, folder: Path, macros: dict[str, str], seen: set[str]) -> list[str]:
    kept: list[str] = []
    active: list[tuple[bool, bool]] = []  # of each open conditional: is this branch taken, was any
    for line in _COMMENT.sub(" ", text).replace("\\\n", " ").splitlines():
        words = line.strip().removeprefix("#").split(maxsplit=1)
        if not line.lstrip().startswith("#"):
            if all(taken for taken, _ in active):
                kept.append(line)
            continue
        directive, rest = words[0], words[1] if len(words) > 1 else ""
        if directive in ("if", "ifdef", "ifndef", "elif", "else", "endif"):
            _branch(directive, rest, active, macros)
        elif all(taken for taken, _ in active):
            if directive == "include" and rest.startswith('"') and rest not in seen:
                seen.add(rest)
                kept += _lines((folder / rest.strip('"')).read_text(), folder, macros, seen)
            elif directive == "define" and (found := re.fullmatch(r"(\w+)(?:\s+(.*))?", rest)):
                macros[found[1]] = (found[2] or "").strip()
            elif directive == "undef":
                macros.pop(rest.strip(), None)
    return kept


def _branch(directive: str, rest: str, active: list[tuple[bool, bool]], macros: Mapping[str, str]) -> None:
    """Open, change or close a conditional."""
    if directive in ("if", "ifdef", "ifndef"):
        outer = all(taken for taken, _ in active)
        holds = outer and (
            bool(evaluate(rest, macros)) if directive == "if" else (rest.strip() in macros) == (directive == "ifdef")
        )
        active.append((holds, holds or not outer))  # inside a branch not taken, no branch is
    else:
        _, was_any = active.pop()
        if directive != "endif":
            holds = not was_any and (directive == "else" or bool(evaluate(rest, macros)))
            active.append((holds, was_any or holds))


def expand(text: str, macros: Mapping[str, str]) -> str:
    """Replace macros until none is left."""
    for _ in range(20):
        expanded = _NAME.sub(lambda found: macros.get(found[0], found[0]), text)
        if expanded == text:
            return text
        text = expanded
    raise ValueError(f"macros without end in {text!r}")


def evaluate(expression: str, macros: Mapping[str, str]) -> int:
    """A whole number; `/` divides as C does for positive ones, and unknown names are 0."""
    text = re.sub(r"defined\s*\(?\s*(\w+)\s*\)?", lambda found: str(int(found[1] in macros)), expression)
    text = _NUMBER.sub(r"\1", _NAME.sub("0", _NUMBER.sub(r"\1", expand(text, macros))))
    text = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or ")).replace("/", "//")

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int() as number):
                return number
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return int(_OPERATORS[type(op)](value(left), value(right)))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
                return int(_OPERATORS[type(op)](value(left), value(right)))
            case ast.BoolOp(op=op, values=values):
                return int((all if isinstance(op, ast.And) else any)(value(each) for each in values))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return int(not value(operand))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
        raise ValueError(f"cannot evaluate {expression!r}")

    try:
        with _ONE_PARSES:
            return value(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError as error:
        raise ValueError(f"cannot evaluate {expression!r}") from error


ARCHITECTURES = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
"""Compute capabilities that kernels compile for, and the KiB of shared memory that a block may have there."""
LEAST_SM = min(ARCHITECTURES)
OPTIONS = ("-std=c++17", "--fmad=false")
"""No fused multiply-adds: gains and leaf values are the CPU's to the last bit."""

_TYPES: dict[str, Any] = {
    "signed char": np.int8, "unsigned char": np.uint8, "short": np.int16, "unsigned short": np.uint16,
    "int": np.int32, "unsigned int": np.uint32, "long long": np.int64, "unsigned long long": np.uint64,
    "float": np.float32, "double": np.float64, "bool": np.bool_,
}  # fmt: skip
_ENTRY = re.compile(r'extern "C" __\w+__ void (?:__launch_bounds__\(([^),]*)[^)]*\)\s*)?(\w+)\s*\(([^)]*)\)')
_INCLUDE = re.compile(r'^[ \t]*#include "([^"]+)"', re.M)
_ALIAS = re.compile(r"\busing (\w+) = ([\w ]+);")


@dataclass(frozen=True)
class Variant:
    """Values of a file's constants, and the least architecture that they are built for."""

    constants: tuple[tuple[str, int], ...]
    least_sm: int = LEAST_SM

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.constants) or "no constants"

    @property
    def defines(self) -> tuple[str, ...]:
        return tuple(f"-D{name}={value}" for name, value in self.constants)


@dataclass(frozen=True)
class Parameter:
    """A parameter of an entry point; `dtype` is None for a pointer to a struct."""

    name: str
    dtype: np.dtype[Any] | None
    is_pointer: bool


@dataclass(frozen=True)
class Entry:
    """An `extern "C"` kernel as one variant has it."""

    name: str
    parameters: tuple[Parameter, ...]
    most_threads: int
    """Most threads of a block, from `__launch_bounds__`."""
    registers: int
    """Budget of a thread."""
    shared_bytes: int
    """Budget of a block's static shared memory."""

    def check_block(self, threads: int) -> None:
        """Refuse more threads than `__launch_bounds__` allows."""
        if threads > self.most_threads:
            raise ValueError(f"{self.name} is bounded by {self.most_threads} threads in a block, got {threads}")

    def bind(self, arguments: Sequence[Any]) -> list[Any]:
        """Arguments for a launch: arrays checked, scalars checked and converted, None kept for a null pointer.

        Raises
        ------
        TypeError
            Too many or too few arguments, or one of another kind or dtype than its parameter.
        OverflowError
            A Python integer that its parameter cannot hold.
        """
        if len(arguments) != len(self.parameters):
            raise TypeError(f"{self.name} takes {len(self.parameters)} arguments, got {len(arguments)}")
        return list(map(self._bind, self.parameters, arguments))

    def _bind(self, parameter: Parameter, argument: KernelArgument) -> KernelArgument:
        """One of them: a pass binds thousands, so no test is made that the argument does not need."""
        dtype, wanted_dtype = getattr(argument, "dtype", None), parameter.dtype
        if parameter.is_pointer:
            is_array = dtype is not None and not isinstance(argument, np.generic)
            if argument is None or (is_array and (wanted_dtype is None or dtype == wanted_dtype)):
                return argument
        elif wanted_dtype is not None:
            if dtype is None:  # refuses integers that do not fit
                if isinstance(argument, int) or (isinstance(argument, float) and wanted_dtype.kind == "f"):
                    converted: np.generic = wanted_dtype.type(argument)
                    return converted
            elif isinstance(argument, np.generic) and dtype == wanted_dtype:
                return argument
        wanted = f"{'a pointer to ' if parameter.is_pointer else ''}{parameter.dtype or 'a struct'}"
        raise TypeError(f"{self.name}: {parameter.name} is {wanted}, got {type(argument).__name__} {dtype or ''}")


@dataclass(frozen=True)
class KernelFile:
    """What a `.cu` file says of itself."""

    name: str
    text: str
    variants: tuple[Variant, ...]

    @cached_property
    def digest(self) -> str:
        """Digest of this file and of the headers that it includes, directly or not."""
        found, folder, seen = hashlib.sha256(self.text.encode()), source_folder(), set[str]()
        waiting = _INCLUDE.findall(self.text)
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                text = (folder / name).read_text()
                found.update(f"{name}\n{text}".encode())
                waiting += _INCLUDE.findall(text)
        return found.hexdigest()[:16]

    @cached_property
    def usual(self) -> tuple[Variant, ...]:
        """Variants that most fits launch."""
        lines = re.findall(r"^// usual:(.*)$", self.text, re.M)
        return tuple(self.variant(dict(found.constants)) for line in lines for found in _variants(line))

    def variant(self, constants: Mapping[str, int]) -> Variant:
        """The declared variant with these constants; those of one value only need not be named."""
        found = [variant for variant in self.variants if constants.items() <= dict(variant.constants).items()]
        if len(found) != 1:
            wanted = " ".join(f"{name}={value}" for name, value in constants.items()) or "no constants"
            raise ValueError(
                f"kernels/{self.name}.cu declares {len(found)} variants with {wanted}, see its opening lines"
            )
        return found[0]

    def options(self, variant: Variant) -> tuple[str, ...]:
        """Compiler options but for the architecture."""
        return (*OPTIONS, f"-I{source_folder()}", *variant.defines)

    def entries(self, variant: Variant) -> Mapping[str, Entry]:
        """The variant's entry points by name."""
        return _entries(self, variant)


def source_folder() -> Path:
    """Where the kernels are: in the installed package, or at the top of the checkout of an editable install."""
    package = Path(__file__).resolve().parents[3]
    for folder in (package / "kernels", package.parent / "kernels"):
        if (folder / "types.cuh").is_file():
            return folder
    raise FileNotFoundError(f"daskboost is installed without its CUDA sources: no kernels in {package} or beside it")


def kernel_names() -> list[str]:
    """All kernel files, without their suffix."""
    return sorted(path.stem for path in source_folder().glob("*.cu"))


@cache
def kernel_file(name: str) -> KernelFile:
    """`kernels/<name>.cu`, read once per process."""
    return parse(name, (source_folder() / f"{name}.cu").read_text())


def parse(name: str, text: str) -> KernelFile:
    """Read which variants a kernel file has."""
    variants = tuple(v for line in re.findall(r"^// variants:(.*)$", text, re.M) for v in _variants(line))
    if not variants or len({variant.constants for variant in variants}) < len(variants):
        raise ValueError(f"kernels/{name}.cu must declare its variants, each once")
    return KernelFile(name, text, variants)


def _variants(line: str) -> list[Variant]:
    """All combinations of a line's values."""
    values = {key: [int(v) for v in text.split(",")] for key, text in (field.split("=") for field in line.split())}
    (least_sm,) = values.pop("sm", [LEAST_SM])
    names = sorted(values)
    return [
        Variant(tuple(zip(names, combination, strict=True)), least_sm)
        for combination in itertools.product(*(values[name] for name in names))
    ]


@cache
def _entries(source: KernelFile, variant: Variant) -> Mapping[str, Entry]:
    macros = {name: str(value) for name, value in variant.constants}
    text = preprocess(source.text, source_folder(), macros)
    types = dict(_ALIAS.findall(text))
    budgets = {}
    for line in re.findall(r"^// budget: *(.*)$", source.text, re.M):
        entry, *fields = line.split()
        budgets[entry] = {key: evaluate(text, macros) for key, text in (field.split("=", 1) for field in fields)}
    entries = {}
    for threads, name, parameters in _ENTRY.findall(text):
        if budgets.get(name, {}).keys() != {"registers", "shared"}:
            raise ValueError(f"kernels/{source.name}.cu: no line '// budget: {name} registers=... shared=...'")
        taken = tuple(_parameter(p, types) for p in expand(parameters, macros).split(","))
        most = evaluate(threads, macros) if threads else 1024
        entries[name] = Entry(name, taken, most, budgets[name]["registers"], budgets[name]["shared"])
    if not entries:
        raise ValueError(f'kernels/{source.name}.cu has no entry point, an extern "C" kernel')
    return entries


def _parameter(text: str, types: Mapping[str, str]) -> Parameter:
    """`const u32* __restrict__ words` and the like."""
    *words, name = text.replace("*", " * ").split()
    type_ = " ".join(word for word in words if word not in ("const", "*", "__restrict__"))
    while type_ in types:
        type_ = types[type_]
    if type_ not in _TYPES and "*" not in words:
        raise ValueError(f"parameter {text.strip()!r} is of an unknown type: take those of types.cuh")
    return Parameter(name, np.dtype(_TYPES[type_]) if type_ in _TYPES else None, "*" in words)
