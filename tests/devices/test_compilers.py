"""Parts that are compiled side by side: with a helper, and where it dies, hangs or is not to be started; kernels that
are foreseen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
COMPILES = """
import json, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import numpy as np
from numba.core import event
from daskboost.devices.cpu import compilers
from daskboost.devices.cpu.by_reference import by_reference
from daskboost.devices.cpu.team import TEAM_WORDS, start
import small_parts
folder, executable, wanted, n_fits = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
compiled, started, handed_out, take = [], [], [], compilers.Crew._take

class Listener(event.Listener):
    def on_start(self, event):
        function = event.data["dispatcher"].py_func
        if function.__module__ != "small_parts":
            return
        compiled.append(function.__name__)
        end = time.monotonic() + 120
        while len(list(Path(folder).rglob("small_parts.*.nbc"))) < wanted and time.monotonic() < end:
            time.sleep(0.05)  # the helper has its turn

    def on_end(self, event):
        pass

class Popen(subprocess.Popen):
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        started.append(self)

def hand_out(crew, helper):
    order = take(crew, helper)
    handed_out.extend([order.part.py_func.__name__] if order else [])
    return order

event.register("numba:compile", Listener())
compilers.Crew._take = hand_out
compilers.LONGEST_WAIT_S = 60.0 if wanted else 1.0
sys.executable = executable
subprocess.Popen = Popen
team = np.zeros(TEAM_WORDS, np.int64)
state = by_reference(small_parts.State(np.zeros(4, np.int64)))
with ThreadPoolExecutor(n_fits) as pool:
    found = list(pool.map(lambda fit: compilers.addresses_of(small_parts.PARTS, state, 2), range(n_fits)))
assert all(addresses == found[0] for addresses in found)
for address in found[0]:
    start(team, 1, address, state)
helpers = [each.wait(60) for each in started]
values = state.values.tolist()
print(json.dumps({"values": values, "compiled": compiled, "helped": handed_out, "helpers": len(helpers)}))
"""


FORESEES = """
import json, sys, time
import numpy as np
from numba import types
from daskboost.devices.cpu import compilers
from daskboost.devices.cpu.by_reference import by_reference, kind_of
from daskboost.devices.cpu.team import TEAM_WORDS, start
import small_parts
compilers.LONGEST_REST_S = float(sys.argv[1])
state = by_reference(small_parts.State(np.zeros(4, np.int64)))
signature = kind_of(state), types.int64
orders = [compilers.Order(part, signature) for part in small_parts.PARTS]
compilers.foresee(orders, 2)
crew, end = compilers._crew(), time.monotonic() + 240
n_helpers = len(crew._helpers)
while (crew._foreseen or crew._under_way) and time.monotonic() < end:
    time.sleep(0.05)
kept = [not order.is_missing for order in orders]
while sys.argv[1] == "0" and crew._helpers and time.monotonic() < end:
    time.sleep(0.05)
for address in compilers.addresses_of(small_parts.PARTS, state, 2):
    start(np.zeros(TEAM_WORDS, np.int64), 1, address, state)
compilers.foresee(orders, 2)
print(json.dumps({"kept": kept, "values": state.values.tolist(), "helpers": [n_helpers, len(crew._helpers)]}))
"""


@pytest.mark.parametrize("rest_s", [0, 600])
def test_what_is_foreseen_is_compiled_before_it_is_asked_for(rest_s: float, tmp_path: Path) -> None:
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", FORESEES, str(rest_s)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    helpers = [1, 0] if rest_s == 0 else [1, 1]  # a helper that has nothing to do for so long ends
    assert found == {"kept": [True] * 4, "values": [1, 2, 4, 8], "helpers": helpers}


def _compile(folder: Path, executable: str, wanted: int = 0, n_fits: int = 1) -> dict[str, Any]:
    """Return what comes of compiling four parts in two processes, the first of which begins when the other has compiled
    as many as are wanted of it; for so many fits that ask at the same time."""
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(folder), "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", COMPILES, str(folder), executable, str(wanted), str(n_fits)], env=environment,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["values"] == [1, 2, 4, 8]
    return found


def test_a_helper_compiles_what_this_process_then_loads(tmp_path: Path) -> None:
    found = _compile(tmp_path, sys.executable, wanted=3)
    assert (found["compiled"], found["helpers"]) == (["add_one"], 1)
    again = _compile(tmp_path, sys.executable)
    assert (again["compiled"], again["helpers"]) == ([], 0)


def test_fits_that_ask_at_the_same_time_have_parts_compiled_once(tmp_path: Path) -> None:
    found = _compile(tmp_path, sys.executable, wanted=3, n_fits=3)
    assert sorted(found["compiled"] + found["helped"]) == ["add_eight", "add_four", "add_one", "add_two"]
    assert (found["compiled"], found["helpers"]) == (["add_one"], 1)


@pytest.mark.skipif(os.name == "nt", reason="the helpers are shell scripts")
@pytest.mark.parametrize("does", ["exit 3", "exec sleep 600"])
def test_what_a_helper_leaves_is_compiled_here(does: str, tmp_path: Path) -> None:
    script = tmp_path / "python-of-test"
    script.write_text(f"#!/bin/sh\n{does}\n")
    script.chmod(0o755)
    begin = time.monotonic()
    found = _compile(tmp_path, str(script))
    assert sorted(found["compiled"]) == ["add_eight", "add_four", "add_one", "add_two"]
    assert found["helpers"] == 1
    assert time.monotonic() - begin < 240, "waited for a helper that does not answer"


@pytest.mark.parametrize("name", ["", "a-program-that-embeds-python"])
def test_a_program_that_embeds_python_is_not_started_again(name: str, tmp_path: Path) -> None:
    found = _compile(tmp_path, str(tmp_path / name) if name else "")
    assert (len(found["compiled"]), found["helpers"]) == (4, 0)
