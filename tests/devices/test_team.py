"""Teams of threads: regions of compiled code, several at once, their end, and their fate in a forked child."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from strategies.alive import come_to, settled

from daskboost.devices.cpu import threads
from daskboost.devices.cpu.by_reference import by_reference
from daskboost.devices.cpu.compilers import addresses_of
from daskboost.devices.cpu.team import TEAM_WORDS, next_task, part, run, start
from daskboost.devices.cpu.threads import Threads, usable_cores
from daskboost.dtypes import Int64


class Sums(NamedTuple):
    """What the region of these tests works on."""

    team: Int64
    values: Int64
    out: Int64


@part
def _add(state: Sums, thread: int) -> None:
    while True:
        task = next_task(state.team)
        if task >= len(state.values):
            return
        state.out[task] += state.values[task]


class Many(NamedTuple):
    """What calls the region above."""

    sums: Sums
    address: int
    n_threads: int
    times: int


@part
def _many(state: Many, thread: int) -> None:
    for _ in range(state.times):
        run(state.sums.team, state.n_threads, state.address, state.sums)


def _sums(team: Int64, times: int, n_threads: int) -> Int64:
    sums = by_reference(Sums(team, np.arange(97), np.zeros(97, np.int64)))
    many = by_reference(Many(sums, addresses_of([_add], sums, 1)[0], n_threads, times))
    start(sums.team, 1, addresses_of([_many], many, 1)[0], many)
    return sums.out


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_every_task_of_every_region_is_done_once(n_threads: int) -> None:
    own = Threads(n_threads)
    try:
        assert (_sums(own.team, 400, n_threads) == 400 * np.arange(97)).all()
        time.sleep(0.05)  # threads sleep by then
        assert (_sums(own.team, 3, n_threads) == 3 * np.arange(97)).all()
    finally:
        own.close()


def test_many_teams_work_at_once() -> None:
    found: list[Any] = [None] * 8

    def work(place: int) -> None:
        own = Threads(2)
        found[place] = _sums(own.team, 300, 2)
        own.close()

    at_once = [threading.Thread(target=work, args=(place,)) for place in range(8)]
    for each in at_once:
        each.start()
    for each in at_once:
        each.join(60)
    assert all((each == 300 * np.arange(97)).all() for each in found)


def test_a_team_ends_when_closed_and_when_forgotten() -> None:
    for closes in (True, False):
        before = settled()
        own = Threads(3)
        _sums(own.team, 1, 3)
        assert come_to(before + 2)
        if closes:
            own.close()
        else:
            del own
        assert come_to(before)


FORKED = """
import os
import numpy as np
from daskboost import QuantizedDataset, train
x = np.random.default_rng(0).normal(size=(3000, 4)).astype(np.float32)
data = QuantizedDataset.from_dask(x, x[:, 0])
given = {"n_jobs": 3, "device": "cpu"}
before = train(given, data, num_boost_round=3).to_bytes()
child = os.fork()
if child == 0:
    os._exit(0 if train(given, data, num_boost_round=3).to_bytes() == before else 3)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes fork on POSIX only")
def test_a_forked_child_fits_with_threads_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_words_that_threads_change_lie_apart() -> None:
    assert TEAM_WORDS * 8 >= 6 * 128


@pytest.mark.parametrize(
    ("limit", "most"), [("max 100000", None), ("150000 100000", 2), ("50000 100000", 1), ("odd", None), ("1 0", None)]
)
def test_cores_are_those_that_a_container_may_use(
    limit: str, most: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "CPU_LIMITS", tmp_path / "absent")
    cores = usable_cores()
    (tmp_path / "cpu.max").write_text(limit)
    monkeypatch.setattr(threads, "CPU_LIMITS", tmp_path / "cpu.max")
    assert usable_cores() == (cores if most is None else min(most, cores))
