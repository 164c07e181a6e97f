"""An engine that cannot start takes none of the others' memory and threads with it."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from training.test_leaks import own_threads

from daskboost import QuantizedDataset, train
from daskboost.devices import choose
from daskboost.engine.passes import RowSets
from daskboost.errors import DeviceError
from daskboost.local import in_process
from daskboost.local.in_process import LocalShards

__all__ = ["own_threads"]


@pytest.mark.parametrize("which", ["device", "engine"])
def test_engines_that_started_are_closed_at_once(
    which: str, own_threads: set[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(9_000, 3)).astype(np.float32), rng.normal(size=9_000).astype(np.float32)
    made: list[Any] = []
    make_device, open_rows = choose.make_device, RowSets.__init__

    def second_fails() -> None:
        if len(made) > 1:
            raise DeviceError("no room")

    def make(*arguments: Any, **options: Any) -> Any:
        made.append(make_device(*arguments, **options))
        if which == "device":
            second_fails()
        return made[-1]

    def opened(self: Any, *arguments: Any) -> None:
        open_rows(self, *arguments)
        if which == "engine":
            second_fails()

    monkeypatch.setattr(in_process, "make_device", make)
    monkeypatch.setattr(RowSets, "__init__", opened)
    with QuantizedDataset.from_dask(X, y, chunk_rows=3_000, max_bin=16) as data:
        (whole,) = data.shards.shards
        halves = [replace(whole, entries=own) for own in (whole.entries[:1], whole.entries[1:])]
        monkeypatch.setattr(QuantizedDataset, "shards", LocalShards(halves, []))
        with pytest.raises(DeviceError, match="no room"):
            train({"device": "cpu", "n_jobs": 3}, data, 1)
    assert len(made) == 2
    assert [thread.name for thread in own_threads - {threading.current_thread()} if thread.is_alive()] == []
