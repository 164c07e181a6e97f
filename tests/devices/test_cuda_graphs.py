"""What is recorded as a CUDA graph, by a stand-in for CuPy: when it is launched, and how long its memory lives."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from daskboost.devices.gpu.runtime.cuda import CudaRuntime
from daskboost.tracebacks import without_locals

Memory = type("Memory", (), {})


class Stream:
    def __init__(self, cupy: Cupy, **_: Any) -> None:
        self._cupy, self._outer = cupy, cupy.stream
        cupy.made.append(self)
        self.captures = self.captured = False
        self.before: list[Any] = []
        """Streams on whose work the rest waits."""

    def __enter__(self) -> None:
        self._outer, self._cupy.stream = self._cupy.stream, self

    def __exit__(self, *_: Any) -> None:
        self._cupy.stream = self._outer

    def record(self, event: Any) -> None:
        event.stream = self

    def wait_event(self, event: Any) -> None:
        self.before.append(event.stream)

    def begin_capture(self, mode: int) -> None:
        assert mode == 2 and self._cupy.stream is self
        self.captures = self.captured = True

    def end_capture(self) -> Any:
        self.captures = False
        return SimpleNamespace(launch=self._cupy.launch)


class Cupy:
    """As much of it as a graph takes."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.stream: Any = None
        self.default = self.stream = Stream(self)
        self.launched: list[Any] = []
        self.allocated: list[tuple[Any, Any]] = []
        """Streams, and what was allocated on them."""
        self.fails = False
        self._allocator: Callable[[int], Any] = self._allocate
        properties = {"major": 9, "minor": 0, "multiProcessorCount": 132, "sharedMemPerBlockOptin": 227 << 10}
        runtime = SimpleNamespace(getDeviceProperties=lambda _: properties, streamCaptureModeRelaxed=2)
        self.cuda = SimpleNamespace(
            runtime=runtime, get_current_stream=lambda: self.stream, get_allocator=lambda: self._allocator,
            using_allocator=self._using, Stream=lambda **options: Stream(self, **options),
            Event=lambda **_: SimpleNamespace(),
        )  # fmt: skip

    def launch(self, stream: Any) -> None:
        if self.fails:
            raise LookupError("the launch's own")
        self.launched.append(stream)

    def _allocate(self, n_bytes: int) -> Any:
        made = Memory()
        self.allocated.append((self.stream, weakref.ref(made)))
        return made

    @contextmanager
    def _using(self, allocator: Callable[[int], Any]) -> Iterator[None]:
        outer, self._allocator = self._allocator, allocator
        yield
        self._allocator = outer

    @property
    def alive(self) -> int:
        gc.collect()
        return sum(made() is not None for _, made in self.allocated)


@pytest.fixture
def cupy() -> Cupy:
    return Cupy()


def test_a_graph_is_launched_when_it_is_called_and_keeps_its_arrays(cupy: Cupy) -> None:
    """Which are of the stream on which it will run."""

    def work() -> None:
        assert cupy.stream is not cupy.default and cupy.stream.captures
        cupy.cuda.get_allocator()(100)
        cupy.cuda.get_allocator()(200)

    replay = CudaRuntime(cupy, 0).record(work)
    assert cupy.stream is cupy.default and not cupy.launched
    assert [stream for stream, _ in cupy.allocated] == [cupy.default, cupy.default] and cupy.alive == 2
    replay()
    replay()
    assert cupy.launched == [cupy.default, cupy.default] and cupy.alive == 2
    del replay
    assert cupy.alive == 0


@pytest.mark.parametrize("fails", ["", "branch", "rest"])
def test_a_branch_begins_after_what_was_recorded_and_is_waited_for(cupy: Cupy, fails: str) -> None:
    """Also where either fails: a capture cannot end before. Without a recording there is no branch."""
    runtime, streams = CudaRuntime(cupy, 0), dict[str, Any]()

    def note(name: str) -> None:
        streams[name] = cupy.stream
        if fails == name:
            raise LookupError("the work's own")

    def work() -> None:
        with runtime.beside(partial(note, "branch")):
            note("rest")
        note("end")

    with pytest.raises(LookupError) if fails else nullcontext():
        runtime.record(work)
    main, branch = next(stream for stream in cupy.made if stream.captured), streams["branch"]
    assert branch is not main and branch.before == [main] and main.before == [branch]
    assert cupy.stream is cupy.default and (fails or streams["rest"] is streams["end"] is main)
    if not fails:
        work()
        assert set(map(id, streams.values())) == {id(cupy.default)}


def test_work_that_fails_ends_its_capture(cupy: Cupy) -> None:
    streams: list[Any] = []

    def work() -> None:
        streams.append(cupy.stream)
        cupy.cuda.get_allocator()(100)
        raise LookupError("the work's own")

    with pytest.raises(LookupError, match="the work's own"):
        CudaRuntime(cupy, 0).record(work)
    assert not streams[0].captures and cupy.stream is cupy.default


def test_a_launch_that_fails_keeps_no_memory(cupy: Cupy) -> None:
    """Though somebody keeps the exception."""
    replays = [CudaRuntime(cupy, 0).record(lambda: cupy.cuda.get_allocator()(100))]
    cupy.fails = True
    with pytest.raises(LookupError, match="the launch's own") as caught, without_locals():
        replays.pop()()
    assert cupy.alive == 0
    assert caught.value.__traceback__ is not None
