"""The line that says that kernels are being compiled: once, where they are, and nowhere that it disturbs."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daskboost.devices import compiling, cpu

LINE = "daskboost compiles its CPU kernels for this machine: some seconds, once; they are kept on disk\n"
ADDS = """
import numpy as np
from numba import njit
njit(lambda x: x + 1)(1)
import sys
print("others' functions are theirs to speak of", file=sys.stderr)
from daskboost.devices.cpu.arithmetic import EXPONENTS, add_to_limbs
for _ in range(2):
    add_to_limbs(np.ones(3), np.zeros((EXPONENTS, 2), np.int64))
"""


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "_SAID", set())


def test_the_line_comes_once_per_kind_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("daskboost.devices.compiling").setLevel(logging.WARNING)
    try:
        for kind in ("CPU", "CPU", "CUDA", "CPU"):
            compiling.say_compiling(kind)
    finally:
        logging.getLogger("daskboost.devices.compiling").setLevel(logging.NOTSET)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == LINE + LINE.replace("CPU", "CUDA")


def test_where_logging_shows_it_the_line_is_logged(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, "daskboost"):
        compiling.say_compiling("CPU")
    assert [record.getMessage() + "\n" for record in caplog.records] == [LINE]
    assert capsys.readouterr().err == ""


def test_a_level_of_errors_turns_it_off(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.ERROR, "daskboost"):
        compiling.say_compiling("CPU")
    assert caplog.records == [] and capsys.readouterr().err == ""


def test_a_process_says_it_where_numba_has_to_compile_and_the_next_finds_the_cache(tmp_path: Path) -> None:
    for said in (LINE, ""):
        done = subprocess.run(
            [sys.executable, "-c", ADDS], capture_output=True, text=True, check=True,
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        )  # fmt: skip
        assert done.stderr == "others' functions are theirs to speak of\n" + said
        assert done.stdout == ""


def test_a_cache_that_names_a_tuple_that_has_moved_is_made_anew(tmp_path: Path) -> None:
    """As another version of the package may have left it: numba alone would raise whenever the function is called."""
    kernel = "from daskboost.devices.cpu import njit\n@njit(cache=True)\ndef total(pair): return pair.a + pair.b\n"
    (tmp_path / "kernel.py").write_text(kernel)
    calls = "from kernel import total\nprint(total(Pair(1, 2.0)), sum(total.stats.cache_hits.values()))"
    for module in ("before", "after"):
        pair = "from typing import NamedTuple\nclass Pair(NamedTuple):\n    a: int\n    b: float\n"
        (tmp_path / f"{module}.py").write_text(pair)
        for hits in (0, 1):
            done = subprocess.run(
                [sys.executable, "-B", "-c", f"from {module} import Pair\n{calls}"], capture_output=True, text=True,
                check=True, cwd=tmp_path, env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
            )  # fmt: skip
            assert done.stdout == f"3.0 {hits}\n"
        (tmp_path / f"{module}.py").unlink()


def test_without_a_folder_kernels_are_compiled_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a container, say, whose user may write neither to the package nor at home: numba alone would raise."""

    def nowhere(function: Callable[..., Any]) -> Any:
        raise RuntimeError(f"cannot cache function {function.__name__!r}: no locator available")

    monkeypatch.setattr(cpu, "_KernelCache", nowhere)
    cpu._say_unkept.cache_clear()

    def double(x: int) -> int:
        return 2 * x

    for _ in range(2):
        assert cpu.njit(cache=True, nogil=True)(double)(21) == 42
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.endswith("set NUMBA_CACHE_DIR to a folder that can be written")
