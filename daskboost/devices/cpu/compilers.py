"""Compiles parts of regions (`team.py`) side by side, in processes that fill numba's cache on disk.

Numba compiles one function after the other, whatever threads ask for: its lock is the process's. The parts of a tree
take seconds each, so that other processes take some of them from a list while this one does the rest, and it then loads
theirs from the cache. A helper may be missing, die or take too long: what it leaves is compiled here.

    this process      [search, move, finish, ...]      a helper
    compiles `grow`   <- takes the next                takes the next ->   compiles `search`, keeps it on disk
"""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any, Protocol

from numba import types

from daskboost.devices.cpu import is_kept
from daskboost.devices.cpu.by_reference import Record, kind_of

logger = logging.getLogger(__name__)

MOST_HELPERS = 3
"""Processes that help at once: each takes 250 MB, and the longest part bounds what more of them can spare."""
LEAST_PARTS = 2
"""Parts for each process, for which its start and its imports, a second, are worth it."""
LONGEST_WAIT_S = 60.0
"""Seconds that this process waits for helpers once it has nothing left to compile itself."""
HELPER = """
import pickle, sys
sys.path[:] = pickle.load(sys.stdin.buffer)
from daskboost.devices.cpu.compilers import help_out
help_out()
"""
"""The program of a helper. It does not import the user's main module, which may have no guard."""
ANSWER = b"kept\n"


class Part(Protocol):
    """A function that numba compiles."""

    py_func: FunctionType
    overloads: Mapping[object, Any]
    """Results of compilations by signature."""

    def compile(self, sig: object) -> object:
        """Compile for a signature, or load that from the cache."""


def addresses_of(parts: Sequence[Part], state: object, n_processes: int) -> list[int]:
    """Return the addresses of parts, compiled for states of this type by up to `n_processes` processes.

    `state` is `by_reference`; `parts` are in the order in which they are taken, so the costly ones come first. Parts
    are called by address, so that each is compiled once: linked into their callers, as numba does it, they would be
    compiled again with each of these.
    """
    assert isinstance(state, Record)
    signature = kind_of(state), types.int64
    missing = deque(part for part in parts if signature not in part.overloads and not is_kept(part, signature))
    helpers = _started(min(n_processes, len(missing) // LEAST_PARTS, MOST_HELPERS + 1) - 1)
    feeders = [threading.Thread(target=_feed, args=(each, missing, signature), daemon=True) for each in helpers]
    if helpers:
        logger.info("%d functions are compiled in %d processes", len(missing), 1 + len(helpers))
    try:
        for each in feeders:
            each.start()
        _take_all(missing, lambda part: part.compile(signature))
        for each in feeders:
            each.join(LONGEST_WAIT_S)
    finally:
        for helper in helpers:
            helper.kill()  # most have ended by now
    return [_address_of(part, signature) for part in parts]


def _address_of(part: Part, signature: tuple[object, ...]) -> int:
    if signature not in part.overloads:  # numba takes a tenth of a millisecond to find that out
        part.compile(signature)
    compiled = part.overloads[signature]
    found: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    return found


def _take_all(missing: deque[Part], work: Callable[[Part], object]) -> None:
    """Take parts until there are none."""
    while True:
        try:
            part = missing.popleft()
        except IndexError:
            return
        work(part)


def _started(n: int) -> list[subprocess.Popen[bytes]]:
    """Start helpers, where the interpreter can be started again: where a program embeds Python, it is the program."""
    is_python = Path(sys.executable or "").name.lower().startswith("python") and not hasattr(sys, "frozen")
    if n < 1 or not is_python:
        return []
    with suppress(OSError):
        return [
            subprocess.Popen(
                [sys.executable, "-c", HELPER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            ) for _ in range(n)
        ]  # fmt: skip
    return []


def _feed(helper: subprocess.Popen[bytes], missing: deque[Part], signature: tuple[object, ...]) -> None:
    """Have a helper compile parts until there are none, or it fails."""
    assert helper.stdin is not None and helper.stdout is not None
    to, answers = helper.stdin, helper.stdout

    def compile_there(part: Part) -> None:
        function = part.py_func
        pickle.dump((function.__module__, function.__qualname__, signature), to)
        to.flush()
        if answers.readline() != ANSWER:
            raise BrokenPipeError

    with helper, suppress(OSError):
        pickle.dump(sys.path, to)  # as `multiprocessing` speaks to its processes, by a pipe that nobody else has
        to.flush()
        if answers.readline() == ANSWER:  # it has begun: until then, this process takes all
            _take_all(missing, compile_there)


def help_out() -> None:
    """Compile what the process asks for that has started this one, until it asks no more."""
    said, asked = os.fdopen(os.dup(1), "wb"), sys.stdin.buffer
    os.dup2(2, 1)  # what others print is no answer
    importlib.import_module("daskboost.devices.cpu.grow")
    with suppress(EOFError, OSError):
        said.write(ANSWER)
        said.flush()
        while True:
            module, name, signature = pickle.load(asked)
            getattr(importlib.import_module(module), name).compile(signature)
            said.write(ANSWER)
            said.flush()
