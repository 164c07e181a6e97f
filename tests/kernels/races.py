"""What the race detector (`race_detector.cpp`) found in an emulated kernel, in words."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

RACES = "DASKBOOST_RACES"
"""Environment variable: not empty where emulated kernels are compiled with the race detector."""
RACE_FLAGS = ("-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0", "-gdwarf-4")
"""Every access becomes a call; of g++'s own library for them nothing is linked. Of DWARF 5, addr2line of binutils 2.40
takes the first file for the one that was compiled, whatever `#line` calls it."""
DETECTOR_FLAGS = ("-O2", "-fvisibility=hidden")
"""Of the detector itself, a copy of which each library of kernels has."""
KINDS = ("read", "write", "atomic")
OF_THE_EMULATION = re.compile(r"(cuda_\w+|fiber_switch)\.[ch]pp|/c\+\+/")


def describe(findings: str, library: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """A line for each of the launch's findings; `arrays` are the arguments by their parameters' names."""
    return "\n".join(_describe(list(map(int, line.split())), library, arrays) for line in findings.splitlines())


def _describe(numbers: Sequence[int], library: Path, arrays: Mapping[str, np.ndarray]) -> str:
    (first, first_place, first_thread), (second, second_place, second_thread) = numbers[:3], numbers[3:6]
    block, is_of_two_blocks, address, place_of_data = numbers[6:]
    of_block = "another block" if is_of_two_blocks else f"block {block}"
    return (
        f"race: {KINDS[second]} after {KINDS[first]} of {_name(library, place_of_data, address, arrays)}: "
        f"{KINDS[first]} at {_lines(library, first_place)} by thread {first_thread} of {of_block}, "
        f"{KINDS[second]} at {_lines(library, second_place)} by thread {second_thread} of block {block}, "
        f"and nothing orders the two"
    )


def _name(library: Path, place: int, address: int, arrays: Mapping[str, np.ndarray]) -> str:
    """Of the array or the variable in shared memory that a byte belongs to."""
    for name, array in arrays.items():
        low, high = np.lib.array_utils.byte_bounds(array)
        if low <= address < high:
            return f"{name} (its byte {address - low})"
    for begin, size, name in _shared_variables(library):
        if begin <= place < begin + size:
            return f"{name} (its byte {place - begin})"
    return "dynamic shared memory"


@cache
def _shared_variables(library: Path) -> list[tuple[int, int, str]]:
    """(offset, bytes, name) of the static variables in shared memory, and of all others."""
    lines = subprocess.run(["nm", "-CS", library], capture_output=True, text=True, check=True).stdout.splitlines()
    found = [re.fullmatch(r"(\w+) (\w+) [dDbB] (.*)", line) for line in lines]
    return [(int(m[1], 16), int(m[2], 16), m[3].split("::")[-1]) for m in found if m]


@cache
def _lines(library: Path, place: int) -> str:
    """The line of a place in the code and, where it was inlined, the line of the kernel."""
    command = ["addr2line", "-i", "-e", str(library), hex(place)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    shown = [re.sub(r"^.*/|( \(discriminator \d+\))$", "", line) for line in lines if not OF_THE_EMULATION.search(line)]
    return " in ".join(dict.fromkeys(shown[:1] + shown[-1:])) or "an unknown line"
