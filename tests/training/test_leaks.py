"""What a fit leaves behind when it ends, and when it fails: no file, no thread, no chunk in memory."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies.rows import regression

from daskboost import Callback, DaskBoostRegressor, QuantizedDataset, train
from daskboost.training.callbacks import RoundInfo

X, Y = regression(40_000, 4)


@pytest.fixture
def own_threads(monkeypatch: pytest.MonkeyPatch) -> set[threading.Thread]:
    """The threads that the test's thread starts, and those that they start, and so on.

    Others come and go when they like: those of a cluster that other tests left running, for one.
    """
    own = {threading.current_thread()}
    start = threading.Thread.start

    def note(thread: threading.Thread) -> None:
        if threading.current_thread() in own:
            own.add(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", note)
    return own


class Watch(Callback):
    """Notes the spilled files in the middle of the fit, then may fail."""

    def __init__(self, directory: Path, error: BaseException | None) -> None:
        self.directory, self.error = directory, error
        self.n_files = 0

    def after_round(self, info: RoundInfo) -> bool:
        self.n_files = sum(path.is_file() for path in self.directory.rglob("*"))
        if self.error is not None:
            raise self.error
        return False


@pytest.mark.parametrize("error", [None, ZeroDivisionError("mine"), KeyboardInterrupt()])
def test_files_and_threads_of_a_fit_are_gone_afterwards(
    tmp_path: Path, error: BaseException | None, own_threads: set[threading.Thread]
) -> None:
    watch = Watch(tmp_path, error)
    model = DaskBoostRegressor(
        n_estimators=2, max_depth=3, n_jobs=2, chunk_rows=4096, host_memory_limit=1, spill_directory=str(tmp_path),
        callbacks=[watch],
    )  # fmt: skip
    if error is None:
        model.fit(X, Y)
    else:
        with pytest.raises(type(error)):
            model.fit(X, Y, eval_set=[(X[:100], Y[:100])])
    assert watch.n_files > 0, "nothing was spilled, so nothing could be left behind"
    assert len(own_threads) > 1, "no thread was started, so none could be left behind"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert {thread for thread in own_threads if thread.is_alive()} == {threading.current_thread()}


def test_an_error_while_quantizing_removes_the_files(tmp_path: Path) -> None:
    broken = X.copy()
    broken[-1, 0] = np.inf
    with pytest.raises(ValueError, match="infinite"):
        QuantizedDataset.from_dask(
            broken, Y, chunk_rows=4096, host_memory_limit=1, spill_directory=tmp_path, n_jobs=1
        )
    assert list(tmp_path.rglob("*")) == []


def test_a_data_set_that_nobody_holds_frees_its_files(tmp_path: Path) -> None:
    data = QuantizedDataset.from_dask(X, Y, chunk_rows=4096, host_memory_limit=1, spill_directory=tmp_path, n_jobs=1)
    assert any(path.is_file() for path in tmp_path.rglob("*"))
    shards = weakref.ref(data.shards)
    del data
    gc.collect()
    assert shards() is None
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_a_custom_objective_that_fails_says_so_and_leaves_nothing(
    tmp_path: Path, own_threads: set[threading.Thread]
) -> None:
    def broken(label: Any, margin: Any) -> tuple[Any, Any]:
        raise ZeroDivisionError("in my objective")

    with (
        QuantizedDataset.from_dask(X, Y, n_jobs=2, spill_directory=tmp_path) as data,
        pytest.raises(ZeroDivisionError, match="in my objective"),
    ):
        train({"n_jobs": 2}, data, 3, objective=broken)
    assert {thread for thread in own_threads if thread.is_alive()} == {threading.current_thread()}
    assert list(tmp_path.rglob("*")) == []
