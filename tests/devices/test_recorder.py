"""What is recorded is replayed, as long as it was recorded with the memory that is in use."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kernels.emulation import EmulatedRuntime

from daskboost.devices.gpu.rows.row_state import SplitScratch
from daskboost.devices.gpu.runtime.launches import Recorder


class Recording(EmulatedRuntime):
    """Remembers what was recorded, and how often that was replayed."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[str] = []
        self.replays = 0

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self.recorded.append(work.__name__)

        def replay() -> None:
            self.replays += 1
            work()

        return replay


def test_the_second_time_is_recorded_and_other_memory_makes_recordings_stale() -> None:
    runtime, done = Recording(), list[str]()
    queue = Recorder(runtime)

    def first() -> None:
        done.append("first")

    def second() -> None:
        done.append("second")

    for n_replays, (memory, expected) in enumerate(
        ((0, []), (0, ["first"]), (0, ["first"]), (1, ["first"] * 2), (1, ["first"] * 2))
    ):
        queue.expect(memory)
        queue("a name", first)
        assert runtime.recorded == expected
        assert runtime.replays == n_replays
    queue("another", second)
    assert done == ["first"] * 5 + ["second"]


@pytest.mark.emulated
def test_scratch_memory_says_when_it_grew() -> None:
    scratch = SplitScratch(EmulatedRuntime())
    scratch.reserve(10_000, 5)
    n_grown, sides = scratch.n_grown, scratch.arrays["sides"]
    scratch.reserve(10_000, 5)
    scratch.reserve(500, 2)
    assert scratch.n_grown == n_grown and scratch.arrays["sides"] is sides
    scratch.reserve(10_000, 500)
    assert scratch.n_grown > n_grown and scratch.arrays["sides"] is not sides
    with pytest.raises(ValueError, match="no memory was reserved for 10000 tiles"):
        scratch.sides(10_000, 256)
