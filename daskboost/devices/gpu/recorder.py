"""Work that is launched again and again: recorded once, then replayed (`Runtime.record`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from daskboost.devices.gpu.runtime import Runtime


class Recorder:
    """Queues up work by its name, under which always the same is launched.

    The first time it is launched as it comes, which compiles kernels and takes memory; the second time it is recorded.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._seen: set[Hashable] = set()
        self._replays: dict[Hashable, Callable[[], None]] = {}
        self._memory: Hashable = None

    def expect(self, memory: Hashable) -> None:
        """Forget what was recorded with other memory: graphs have its addresses. `memory` : anything that tells."""
        if memory != self._memory:
            self._memory = memory
            self._replays.clear()

    def __call__(self, name: Hashable, work: Callable[[], None]) -> None:
        """Launch `work`, or what it launched under this name before."""
        if name not in self._seen:
            self._seen.add(name)
            work()
            return
        if name not in self._replays:
            self._replays[name] = self._runtime.record(work)
        self._replays[name]()
