"""The race detector of the emulation: what it finds, and that it finds nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from kernels.emulation import MOST_TESTS, EmulatedRuntime, EmulationError
from kernels.processes import run_tests
from kernels.races import RACES

from daskboost.devices.gpu.runtime.kernel_source import parse

PATH = Path(__file__).parent / "race_toys.cu"
TOYS = parse("race_toys", PATH.read_text())
CASES = {
    "raw": ("read after write", "room"),
    "war": ("write after read", "room"),
    "waw": ("write after write", "word"),
    "loop": ("write after read", "room"),
    "warp_raw": ("read after write", "room"),
    "warp_war": ("write after read", "room"),
    "warp_waw": ("write after write", "words"),
    "half_warps": ("read after write", "room"),
    "counted": ("read after atomic", "count"),
    "bytes": ("read after write", "room"),
    "pairs": ("read after write", "room"),
    "dynamic": ("read after write", "dynamic shared memory"),
    "in_place": ("write after read", "out"),
    "blocks": ("write after write", "out"),
    "tickets": ("write after atomic", "out"),
    "equal_values": ("write after write", "word"),
}


OF_BLOCKS = {"in_place", "blocks", "tickets", "old_values"}
"""Launched with more than one: the others write where their threads are in the block."""


def launch(entry: str, ordered: bool, seed: int) -> None:
    kernel = EmulatedRuntime(seed, finds_races=True).kernel_of(TOYS, entry, TOYS.variant({"ORDERED": int(ordered)}))
    kernel(2 if entry in OF_BLOCKS else 1, 64, np.zeros(1 + 2 * 64, np.int32), shared_bytes=256)


def line_of(entry: str, mark: str) -> int:
    """The line that bears a mark in a toy."""
    lines = PATH.read_text().splitlines()
    begin = next(i for i, line in enumerate(lines) if f" {entry}(i32* out)" in line)
    return next(i for i in range(begin, len(lines)) if "//" in lines[i] and mark in lines[i].split("//")[1]) + 1


@pytest.mark.parametrize("entry", CASES)
def test_a_race_is_found_with_both_its_lines(entry: str) -> None:
    kinds, name = CASES[entry]
    first, second = line_of(entry, "first"), line_of(entry, "second")
    with pytest.raises(EmulationError) as raised:
        launch(entry, ordered=False, seed=0)
    lines = str(raised.value).splitlines()
    later, earlier = kinds.split(" after ")
    expected = (
        rf"race: {kinds} of {name}.*: {earlier} at race_toys\.cu:{first} by thread \d+ of .*block.*, "
        rf"{later} at race_toys\.cu:{second} by thread \d+ of block \d, and nothing orders the two"
    )
    assert any(re.search(expected, line) for line in lines), (expected, lines)
    assert lines[0].startswith(f"{entry}: ")
    with pytest.raises(EmulationError, match=f"race_toys.cu:{second}"):  # whatever the order of threads
        launch(entry, ordered=False, seed=1)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("entry", [*CASES, "old_values"])
def test_nothing_is_found_where_accesses_are_ordered(entry: str, seed: int) -> None:
    launch(entry, ordered=True, seed=seed)


SOME_TESTS = (
    "tests/devices/test_device_split.py", "tests/devices/test_frontier.py", "tests/devices/test_partition.py",
    "tests/devices/test_histogram_groups.py", "tests/devices/test_rough_gains.py",
    "tests/kernels/test_softmax_kernels.py",
)  # fmt: skip
"""Of the stages whose threads share memory the cheapest: `kernels/README.md` says how all are run."""


@pytest.mark.slow
@pytest.mark.late
@pytest.mark.parametrize("path", SOME_TESTS)
def test_kernels_have_no_races(path: str) -> None:
    """A share of the file's emulated tests, evenly chosen, finds nothing under the detector."""
    done = run_tests(path, **{RACES: "1", MOST_TESTS: "16"})
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    assert " passed" in done.stdout
