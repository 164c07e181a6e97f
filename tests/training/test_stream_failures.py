"""Chunks that cannot be read on their way to a GPU, and fits that are interrupted: one clear error, all is freed."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
from kernels.tracked import TrackedRuntime
from training.test_device_memory_limit import PARAMS, chunked, least_of, no_thread_is_left, rows, runtime

from daskboost import Callback, train
from daskboost.devices.gpu.rows import streamed
from daskboost.errors import StorageError
from daskboost.training.callbacks import RoundInfo

__all__ = ["no_thread_is_left", "rows", "runtime"]


class Interrupt(Callback):
    """Ctrl-C between two rounds, when copies for the next one are under way."""

    def after_round(self, info: RoundInfo) -> bool:
        raise KeyboardInterrupt


@pytest.mark.emulated
@pytest.mark.parametrize("cause", ["interrupt", "damage"])
def test_ends_in_mid_stream_free_everything(
    cause: str, rows: dict[str, Any], runtime: TrackedRuntime, tmp_path: Path
) -> None:
    with chunked(rows, host_memory_limit=80_000, spill_directory=tmp_path) as dataset:
        given = {**PARAMS, "device_memory_limit": least_of(dataset)}
        if cause == "interrupt":
            with pytest.raises(KeyboardInterrupt):
                train(given, dataset, 3, callbacks=[Interrupt()])
        else:
            path = sorted(tmp_path.glob("*/*.chunk"))[1]
            path.write_bytes(path.read_bytes()[:-5])
            with pytest.raises(StorageError, match="is damaged: truncated"):
                train(given, dataset, 3)
            gc.collect()  # tracebacks of exceptions that crossed the engine refer to it, as `make_device` knows
        runtime.recorded.clear()
        assert runtime.meter.bytes == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.emulated
@pytest.mark.parametrize("cause", ["gone", "a directory", "shorter", "longer", "damaged", "interrupt"])
def test_chunks_that_cannot_be_read_say_the_same_whether_they_stay_or_stream(
    cause: str, rows: dict[str, Any], runtime: TrackedRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And everything is freed, files included."""
    said = []
    with chunked(rows, host_memory_limit=80_000, spill_directory=tmp_path) as dataset:
        limits = [None, least_of(dataset)]
        path = sorted(tmp_path.glob("*/*.chunk"))[2]
        content = path.read_bytes()
        if cause == "interrupt":
            limits.pop()
            add, added = streamed.UnpackedDense.add, [0]

            def interrupted(*given: Any) -> None:
                add(*given)
                added[0] += 1
                if added[0] == 3:
                    raise KeyboardInterrupt

            monkeypatch.setattr(streamed.UnpackedDense, "add", interrupted)
        else:
            path.unlink()
        if cause == "a directory":
            path.mkdir()
        elif cause not in ("gone", "interrupt"):
            path.write_bytes({
                "shorter": content[:-5], "longer": content + b"?", "damaged": content[:-9] + b"?" * 9
            }[cause])  # fmt: skip
        for limit in limits:
            with pytest.raises(KeyboardInterrupt if cause == "interrupt" else StorageError) as caught:
                train({**PARAMS, "device_memory_limit": limit}, dataset, 1)
            said.append(str(caught.value))
            del caught
            gc.collect()  # its traceback refers to the engine
            runtime.recorded.clear()
            assert runtime.meter.bytes == 0
            if limit is None:
                assert runtime.pinned_bytes == 0, "chunks in RAM were not moved"
    assert len(set(said)) == 1
    assert cause == "interrupt" or path.name in said[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.emulated
def test_a_sample_that_cannot_be_read_ends_its_threads_at_once(
    rows: dict[str, Any], runtime: TrackedRuntime, tmp_path: Path
) -> None:
    """While the exception, whose traceback refers to the device, is still there."""
    with chunked(rows, host_memory_limit=1, spill_directory=tmp_path) as dataset:
        path = sorted(tmp_path.glob("*/*.chunk"))[0]
        path.write_bytes(path.read_bytes()[:-5])
        with pytest.raises(StorageError, match="is damaged: truncated") as caught:
            train({**PARAMS, "out_of_core": "certified", "device": "cuda"}, dataset, 1)
        assert not [each.name for each in threading.enumerate() if each.name.startswith("daskboost-read")]
        del caught
        gc.collect()
        assert runtime.meter.bytes == 0
