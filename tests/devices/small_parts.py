"""Parts of regions that compile quickly, for `test_compilers.py`, whose helpers import them by name."""

from __future__ import annotations

from typing import NamedTuple

from daskboost.devices.cpu.team import part
from daskboost.dtypes import Int64


class State(NamedTuple):
    """What the parts work on."""

    values: Int64


@part
def add_one(state: State, thread: int) -> None:
    state.values[0] += 1


@part
def add_two(state: State, thread: int) -> None:
    state.values[1] += 2


@part
def add_four(state: State, thread: int) -> None:
    state.values[2] += 4


@part
def add_eight(state: State, thread: int) -> None:
    state.values[3] += 8


PARTS = (add_one, add_two, add_four, add_eight)
