"""Processes that tests start: their environment and end, and results that several of them share."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kernels.processes import ROOT, once, piece_of, run_python


def test_a_process_has_its_environment_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    code = "import os, sys, kernels.processes; print(os.environ['GIVEN'], os.environ['PYTHONPATH']); sys.exit(3)"
    done = run_python("-c", code, GIVEN="here")
    folders = os.pathsep.join((str(ROOT), str(ROOT / "tests"), "elsewhere"))
    assert (done.returncode, done.stdout) == (3, f"here {folders}\n")


def test_a_result_is_computed_once_and_others_wait_for_it(tmp_path: Path) -> None:
    """A file lock holds between threads that open the file themselves, as between processes."""
    begun, may_end = list[str](), threading.Event()

    def work() -> list[str]:
        begun.append("a")
        assert may_end.wait(60)
        return ["found"]

    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(once, tmp_path, "tests/a.py", work) for _ in range(3)]
        assert once(tmp_path, "tests/b.py", lambda: 5) == 5
        assert not any(each.done() for each in asked)
        may_end.set()
        assert [each.result(60) for each in asked] == [["found"]] * 3
    assert begun == ["a"]


def test_what_fails_is_tried_again_by_the_next(tmp_path: Path) -> None:
    def fail() -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        once(tmp_path, "a", fail)
    assert once(tmp_path, "a", lambda: "good") == "good"
    assert once(tmp_path, "a", fail) == "good"


@pytest.mark.parametrize(("nodeid", "piece"), [
    ("tests/tree/test_laws.py::test_a[b::c]", "tests/tree/test_laws.py"),
    ("tests/kernels/test_compile.py::test_budgets[grow-75]", "tests/kernels/test_compile.py grow"),
    ("tests/kernels/test_compile.py::test_an_error", "tests/kernels/test_compile.py"),
    ("tests/kernels/test_races.py::test_a[b]", "tests/kernels/test_races.py::test_a[b]"),
])  # fmt: skip
def test_pieces_of_work_are_files_or_smaller_late_ones(nodeid: str, piece: str) -> None:
    assert piece_of(nodeid) == piece
