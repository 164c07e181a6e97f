"""A plugin of pytest: processes share the tests, each of which is run by the first that is free for it.

    PYTHONPATH=tests python -m pytest -p compute_sanitizer.claims --claims FOLDER     # several at the same time

Tests that share a fixture of their module are taken together. `FOLDER` has a file for each that is taken, all that
there are in `COLLECTED`, and what became of them in `<pid>.jsonl`: a line when a test begins and one when it has
ended, so that it is known on which one a process hangs.

A kernel that goes wrong leaves its process without the GPU, and all others that share its context. What fails then says
nothing of tests but of the one to blame: a process that finds itself so has its test's outcome left open, leaves a mark
beside the sanitizer's log and ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.runner import runtestprotocol
from compute_sanitizer.report import BEGUN, COLLECTED, findings_of, lines_in

LOST = ".lost"
"""Ending of a mark's name, instead of the log's."""
MOST_BEGINNINGS = 3
"""Of a test: one beside which the GPU was lost so often counts as failed, though nothing was said of it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--claims", type=Path, required=True, help="folder that the processes share")
    parser.addoption("--claims-order", type=Path, help="file that names tests, the first to run first")
    parser.addoption("--claims-log", type=Path, help="what the sanitizer of this process writes")
    parser.addoption("--claims-until", type=float, default=float("inf"), help="Unix time after which none begins")


def pytest_configure(config: pytest.Config) -> None:
    given = config.option
    config.pluginmanager.register(Claims(given.claims, given.claims_until, given.claims_log), "claims")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """By the order that is asked for, tests that it does not name first; those that share a fixture side by side."""
    (config.option.claims / COLLECTED).write_text("".join(f"{item.nodeid}\n" for item in items))
    order = config.option.claims_order
    if order is None:
        return
    place = {name: i for i, name in enumerate(order.read_text().splitlines())}
    first: dict[str, int] = {}
    for item in items:
        key = shared_key(item)
        first[key] = min(first.get(key, len(place)), place.get(item.nodeid, -1))
    items.sort(key=lambda item: (first[shared_key(item)], shared_key(item)))


def shared_key(item: pytest.Item) -> str:
    """Equal for tests that share what a fixture of their module makes."""
    fixtures: Mapping[str, Any] = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    shared = sorted(name for name, found in fixtures.items() if found and found[-1].scope == "module")
    if not shared:
        return item.nodeid
    params = getattr(getattr(item, "callspec", None), "params", {})
    return f"{item.nodeid.split('::')[0]} {[(name, repr(params.get(name))) for name in shared]}"


def claim_of(key: str) -> str:
    """Name of the file by which tests are taken."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def is_lost() -> bool:
    """Whether a kernel has left this process without its GPU."""
    try:
        import cupy
    except ImportError:
        return False
    try:
        cupy.cuda.runtime.deviceSynchronize()
    except cupy.cuda.runtime.CUDARuntimeError:
        return True
    return False


class Claims:
    """Of one process."""

    def __init__(self, folder: Path, until: float, log: Path | None = None) -> None:
        self._folder, self._until, self._log = folder, until, log
        self._mine: set[str] = set()
        self._outcomes: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        """Run the test if nobody else does. True: it is dealt with."""
        if time.time() > self._until:
            item.session.shouldstop = "time is up"
        elif self._takes(shared_key(item)):
            self._write(item.nodeid, BEGUN, claim=claim_of(shared_key(item)))
            item.session._setupstate.teardown_exact(item)  # of the module before, if it was another
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            # As if another test of the module came next, so that its fixtures stay.
            runtestprotocol(item, nextitem=item.parent)  # type: ignore[arg-type]
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            outcome = self._outcomes.get(item.nodeid, "passed")
            if self._log is not None and outcome == "failed" and is_lost():
                self._leave(item.nodeid, self._log)
            self._write(item.nodeid, outcome)
        return True

    def _leave(self, test: str, log: Path) -> NoReturn:
        """End the process, which has lost its GPU."""
        beginnings = sum(line["test"] == test and line["outcome"] == BEGUN for line in lines_in(self._folder))
        if findings_of(log) or beginnings >= MOST_BEGINNINGS:
            self._write(test, "failed")
        log.with_suffix(LOST).touch()
        pytest.exit("the GPU is lost")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The worst of set-up, call and end is what became of a test."""
        if report.outcome != "passed" and self._outcomes.get(report.nodeid) != "failed":
            self._outcomes[report.nodeid] = report.outcome

    def _takes(self, key: str) -> bool:
        if key not in self._mine:
            try:
                (self._folder / claim_of(key)).touch(exist_ok=False)
            except FileExistsError:
                return False
            self._mine.add(key)
        return True

    def _write(self, test: str, outcome: str, **more: str) -> None:
        line = {"test": test, "outcome": outcome, "at": round(time.time(), 2), **more}
        with (self._folder / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
