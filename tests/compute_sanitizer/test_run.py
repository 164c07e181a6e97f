"""Processes share tests, and a row says what became of them and what the sanitizer said: a script stands in for it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from compute_sanitizer import __main__ as call
from compute_sanitizer.__main__ import main
from compute_sanitizer.claims import is_lost
from compute_sanitizer.report import Report, lines_in

TESTS = """
import os, time, pytest

PAUSE = float(os.environ.get("PAUSE", 0))

@pytest.fixture(scope="module", params=["a", "b"])
def made(request):
    with open(os.environ["MADE"], "a") as file:
        file.write(request.param)
    return request.param

@pytest.mark.parametrize("n", range(4))
def test_shares_what_is_made(made, n):
    time.sleep(PAUSE / 2)

@pytest.mark.parametrize("n", range(6))
def test_passes(n):
    time.sleep(PAUSE)
    assert not os.path.exists(os.environ["MADE"] + ".lost")

def test_fails():
    assert os.environ.get("DASKBOOST_MULTIPROCESSORS") is None

def test_is_skipped():
    pytest.skip("so it is")

def test_goes_wrong(request):
    log = request.config.option.claims_log
    if log is None or "WRONG" not in os.environ:
        return
    with open(log, "a") as file:
        file.write(os.environ["WRONG"])
    with open(os.environ["MADE"] + ".lost", "w"):
        pytest.fail("the GPU is lost")

def test_takes_long():
    if "LONG" in os.environ:
        with open(os.environ["MADE"] + ".long", "w"):
            time.sleep(float(os.environ["LONG"]))
"""
SANITIZER = """#!{python}
import os, sys, time
log = sys.argv[sys.argv.index("--log-file") + 1]
with open(log, "w") as file:
    file.write("========= COMPUTE-SANITIZER\\n" + os.environ.get("SAYS", "") + "========= ERROR SUMMARY: 0 errors\\n")
if "failure to track" in os.environ.get("SAYS", ""):
    time.sleep(5)  # a real one takes long to start as well: it is to be ended before its first test
os.execv({python!r}, sys.argv[sys.argv.index({python!r}):])
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of tests; no GPU is named, so that all processes have the same."""
    (tmp_path / "bin").mkdir()
    sanitizer = tmp_path / "bin" / "compute-sanitizer"
    sanitizer.write_text(SANITIZER.format(python=sys.executable))
    sanitizer.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MADE", str(tmp_path / "made.txt"))
    path = tmp_path / "test_toy.py"
    path.write_text(TESTS)
    return path


def rows_of(toy: Path, *arguments: str, folder: str = "claims", results: str = "results") -> dict[str, dict[str, Any]]:
    """By tool."""
    parent = toy.parent
    places = ["--folder", str(parent / folder), "--results", str(parent / results)]
    main([*arguments, *places, "--", f"--rootdir={parent}", str(toy)])  # for tests' names, wherever this checkout is
    lines = (parent / results / "gpu_sanitizers.jsonl").read_text().splitlines()
    return {row["tool"]: row for row in map(json.loads, lines)}


def end_once(is_enough: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Move the clock of `main` past its time limit as soon as `is_enough`, instead of waiting for the limit."""
    def now() -> float:
        return time.time() + 3 * 3600 * is_enough()

    monkeypatch.setattr(call, "time", SimpleNamespace(time=now, time_ns=time.time_ns, sleep=time.sleep))


def begun(folder: Path) -> list[str]:
    return [line["test"] for line in lines_in(folder) if line["outcome"] == "begun"]


def test_each_test_runs_once_per_tool(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAUSE", "0.1")  # so that other processes start before one has taken all
    rows = rows_of(toy, "--tools", "plain,memcheck", "--processes", "3")
    assert (rows["plain"]["passed"], rows["plain"]["skipped"], rows["plain"]["failed"]) == (17, 1, [])
    assert (rows["memcheck"]["passed"], rows["memcheck"]["skipped"]) == (16, 1)
    assert [name.split("::")[1] for name in rows["memcheck"]["failed"]] == ["test_fails"], "fewer multiprocessors"
    for tool, row in rows.items():
        names = begun(toy.parent / "claims" / tool)
        assert len(names) == len(set(names)) == 18
        assert (row["not_run"], row["findings"]) == ([], {})
    assert rows["plain"]["kernels"] == rows["memcheck"]["kernels"]
    assert sorted((toy.parent / "made.txt").read_text()) == ["a", "a", "b", "b"], "once for each tool"
    assert len(list((toy.parent / "claims" / "plain").glob("*.jsonl"))) > 1, "several processes had their share"


def test_processes_share_a_context(toy: Path) -> None:
    """From before their first test until after the last, sanitizers alone."""
    service, said = toy.parent / "bin" / "nvidia-cuda-mps-control", toy.parent / "said.txt"
    service.write_text(f'#!/bin/sh\necho "$* $CUDA_MPS_PIPE_DIRECTORY" >> {said}\n[ "$1" = -d ] || cat >> {said}\n')
    service.chmod(0o755)
    toy.write_text(
        "import os\n\ndef test_tells():\n"
        f"    with open({str(said)!r}, 'a') as file:\n"
        "        print('test', os.environ.get('CUDA_MPS_PIPE_DIRECTORY'), file=file)\n"
    )
    rows = rows_of(toy, "--tools", "plain,memcheck", "--processes", "1", "--mps")
    assert rows["memcheck"]["passed"] == 1
    assert rows["memcheck"]["config"]["mps"] is True
    plain, started, tested, ended, last = said.read_text().splitlines()
    place = started.removeprefix("-d ")
    assert (plain, tested, ended.strip(), last) == ("test None", f"test {place}", place, "quit")
    assert not Path(place).exists()


def test_a_context_is_not_shared_without_the_service(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(toy.parent / "bin"))
    with pytest.raises(SystemExit, match="--mps needs nvidia-cuda-mps-control"):
        rows_of(toy, "--tools", "memcheck", "--processes", "1", "--mps")


FAULT = "========= Invalid __global__ read of size 4 bytes\n========= Program hit error 719 on API call to cudaFree\n"
LOSES = """
import os

from compute_sanitizer import claims

claims.is_lost = lambda: os.path.exists(os.environ["MADE"] + ".lost")
"""


@pytest.mark.parametrize(("said", "processes"), [(FAULT, "1"), (FAULT, "4"), ("", "1")])
def test_a_fault_costs_no_other_test(said: str, processes: str, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU is lost to all until the service has started anew; only the test to blame fails, once it is known."""
    monkeypatch.setenv("PAUSE", "0.1" if processes == "4" else "0")
    monkeypatch.setattr(call, "NOTICED_SECONDS", 3 if processes == "4" else 0)  # where there is another to notice it
    lost = toy.parent / "made.txt.lost"
    service = toy.parent / "bin" / "nvidia-cuda-mps-control"
    service.write_text(f'#!/bin/sh\n[ "$1" = -d ] || rm -f {lost}\n')
    service.chmod(0o755)
    (toy.parent / "conftest.py").write_text(LOSES)
    monkeypatch.setenv("WRONG", said)
    row = rows_of(toy, "--tools", "memcheck", "--processes", processes, "--mps")["memcheck"]
    assert [name.split("::")[1] for name in row["failed"]] == ["test_fails", "test_goes_wrong"]
    assert (row["passed"], row["skipped"], row["not_run"]) == (15, 1, [])
    assert ("Invalid __global__ read of size 4 bytes" in row["findings"]) is bool(said)
    names = [name.split("::")[1] for name in begun(toy.parent / "claims" / "memcheck")]
    assert names.count("test_goes_wrong") == (1 if said else 3)


@pytest.mark.parametrize("answers", [True, False])
def test_a_gpu_that_no_longer_answers_is_lost(answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class RuntimeError719(Exception):
        pass

    def synchronize() -> None:
        if not answers:
            raise RuntimeError719

    calls = SimpleNamespace(deviceSynchronize=synchronize, CUDARuntimeError=RuntimeError719)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=calls)))
    assert is_lost() is not answers


def test_without_cupy_no_gpu_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert not is_lost()


def test_what_the_sanitizer_says_is_counted(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "SAYS", "========= Invalid __global__ read of size 4 bytes\n=========     at build+0x10\n=========\n"
    )
    rows = rows_of(toy, "--tools", "memcheck", "--processes", "1")
    assert rows["memcheck"]["findings"] == {"Invalid __global__ read of size 4 bytes": 1}


def test_a_process_that_has_lost_track_is_ended(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Internal Sanitizer Error: Detected a failure to track a kernel launch. Future records might be incomplete"
    monkeypatch.setenv("SAYS", f"========= {said}\n")
    logs = toy.parent / "claims" / "racecheck"
    end_once(lambda: sum(said in log.read_text() for log in logs.glob("sanitizer-*.log")) > 1, monkeypatch)
    rows = rows_of(toy, "--tools", "racecheck", "--processes", "1")
    assert rows["racecheck"]["passed"] == 0, "ended before its first test"
    assert rows["racecheck"]["findings"][said] > 1, "another was begun"


def test_a_second_call_goes_on(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where time was up in a test, it runs again; others do not."""
    with monkeypatch.context() as patches:
        patches.setenv("LONG", "60")
        end_once((toy.parent / "made.txt.long").exists, patches)
        rows = rows_of(toy, "--tools", "plain", "--processes", "1")
    assert [name.split("::")[1] for name in rows["plain"]["not_run"]] == ["test_takes_long"]
    rows = rows_of(toy, "--tools", "plain", "--processes", "1")
    assert (rows["plain"]["not_run"], rows["plain"]["passed"]) == ([], 17)
    names = [name.split("::")[1] for name in begun(toy.parent / "claims" / "plain")]
    assert len(names) == 19
    assert names.count("test_takes_long") == 2


def test_some_come_first(toy: Path) -> None:
    (toy.parent / "first.txt").write_text(f"{toy.name}::test_takes_long\n{toy.name}::test_passes[4]\n")
    rows_of(toy, "--tools", "plain,memcheck", "--processes", "1", "--first", str(toy.parent / "first.txt"))
    names = [name.split("::")[1] for name in begun(toy.parent / "claims" / "memcheck")]
    assert names[:2] == ["test_takes_long", "test_passes[4]"]


def test_tools_that_are_not_there(toy: Path) -> None:
    with pytest.raises(SystemExit, match="no tool is named leakcheck; there are plain, memcheck, racecheck"):
        rows_of(toy, "--tools", "leakcheck")


def test_an_empty_folder(tmp_path: Path) -> None:
    row = Report.of(tmp_path).row()
    assert row == {"passed": 0, "skipped": 0, "failed": [], "not_run": [], "findings": {}}
