"""A few of the damaged files that `make fuzz` makes without end, and the fuzzer itself."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from fuzz import __main__ as fuzz
from fuzz import mutations, targets
from fuzz.corpus import DATASETS, dataset, models

from daskboost.errors import DataError

N_MODELS, N_DATASETS, N_BLOCKS = 800, 200, 4


# shap colours its plots when it is imported, in a way that matplotlib is about to drop.
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("block", range(N_BLOCKS))
@pytest.mark.parametrize(("kind", "n"), [("model", N_MODELS), ("dataset", N_DATASETS)])
def test_damaged_files_are_used_or_refused(kind: str, n: int, block: int, tmp_path: Path) -> None:
    used = 0
    for number in range(block, n, N_BLOCKS):
        try:
            used += fuzz.run_case(kind, 0, number, tmp_path)
        except Exception as error:
            raise AssertionError(f"PYTHONPATH=tests python -m fuzz --kind {kind} --seed 0 --case {number}") from error
    assert 0.02 * n / N_BLOCKS < used < 0.5 * n / N_BLOCKS  # damage that nobody notices, and that which all notice


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_sound_files_can_be_used(tmp_path: Path) -> None:
    for data in models():
        targets.use_model(data)
    for kind in DATASETS:
        path = dataset(*kind, tmp_path)
        if kind[2] == "bare":
            with pytest.raises(DataError, match="label"):
                targets.use_dataset(path, targets.OBJECTIVES[0])
        else:
            outputs = {"multi_strategy": "multi_output_tree", "objective": "multi:softprob", "num_class": 2}
            targets.use_dataset(path, outputs if kind[2] == "margins" else targets.OBJECTIVES[0])


def test_a_case_is_its_number() -> None:
    for number in range(50):
        found = [mutations.model_file(Random(number), models()) for _ in range(2)]
        assert found[0] == found[1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda data: int("nothing"), "nothing"),
        (lambda data: np.ones(2**26), "537 MB for a file of"),
        (lambda data: time.sleep(0.3), r"\d s$"),
    ],
    ids=["exception", "memory", "time"],
)
def test_what_goes_wrong_is_found(
    wrong: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "use_model", wrong)
    monkeypatch.setattr(targets, "SLOWEST_S", 0.2 if message.endswith("s$") else 100.0)
    with pytest.raises(Exception, match=message):
        fuzz.run_case("model", 0, 0, tmp_path)


def test_a_process_that_dies_is_found_and_its_file_kept(tmp_path: Path) -> None:
    """As when a file makes a kernel write where it must not."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "from random import Random\n"
        "draw = Random.__init__\n"
        "def init(self, seed=None):\n"
        "    if str(seed).endswith(' 3'):\n"
        "        os.abort()\n"
        "    draw(self, seed)\n"
        "Random.__init__ = init\n"
    )
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "fuzz", "--kind", "model", "--processes", "1", "--cases", "6",
               "--folder", str(tmp_path / "found")]  # fmt: skip
    path = f"{tmp_path}:{root}:{root / 'tests'}"
    done = subprocess.run(command, env={"PYTHONPATH": path, "PATH": ""}, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "model-0-3" in done.stdout and "1 cases failed" in done.stdout
    assert "Abort" in (tmp_path / "found" / "model-0-3.txt").read_text()
    assert (tmp_path / "found" / "model-0-3.model").exists()
