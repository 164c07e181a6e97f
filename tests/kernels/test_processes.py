"""Jobs beside other tests: each once, in order, what they raise told to who waits."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

import pytest
from kernels.beside import ENVIRONMENT, ROOT, Jobs, run_python, scratch_file


def test_jobs_run_once_and_one_at_a_time_until_somebody_waits() -> None:
    jobs, begun, may_end = Jobs(), list[str](), threading.Event()
    first_began = threading.Event()

    def job(name: str) -> str:
        begun.append(name)
        first_began.set()
        assert may_end.wait(60)
        return name.upper()

    futures = [jobs.begin(job, name) for name in ("a", "b", "a", "c")]
    assert first_began.wait(60)
    assert begun == ["a"] and futures[0] is futures[2]
    may_end.set()
    assert [jobs.result(job, name) for name in ("c", "b", "a", "d")] == ["C", "B", "A", "D"]
    assert sorted(begun) == ["a", "b", "c", "d"]


def test_what_a_job_raises_is_told_and_others_go_on() -> None:
    jobs = Jobs()

    def job(name: str) -> str:
        if name == "bad":
            raise ValueError(name)
        return name

    jobs.begin(job, "bad")
    assert jobs.result(job, "good") == "good"
    with pytest.raises(ValueError, match="bad"):
        jobs.result(job, "bad")


def test_a_process_has_its_environment_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """And that of the session, its folders of modules among it, whatever a test beside has set."""
    monkeypatch.setenv("PATH", "nowhere")
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    code = "import os, sys, kernels.beside; print(os.environ['GIVEN'], os.environ['PYTHONPATH']); sys.exit(3)"
    done = run_python("-c", code, GIVEN="here")
    folders = os.pathsep.join(filter(None, (str(ROOT), str(ROOT / "tests"), ENVIRONMENT.get("PYTHONPATH"))))
    assert (done.returncode, done.stdout) == (3, f"here {folders}\n")


def test_files_of_jobs_are_not_among_those_of_a_test_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that give temporary files a folder look for what was left there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_file() as file:
        assert Path(file.name).exists() and list(tmp_path.iterdir()) == []
