"""Damaged model files and saved data sets at length: each is used, or refused by an error of ours, in bounded memory.

    make fuzz
    PYTHONPATH=tests python -m fuzz --seconds 3600 --processes 8 --seed 7 --folder /tmp/found

A case is its kind, the seed and a number: `--kind model --seed 7 --case 12345` runs one again. Each process takes every
n-th case; one that dies or hangs at a case is replaced. What fails is kept in the folder with its traceback.
"""

from __future__ import annotations

import argparse
import faulthandler
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from fuzz.targets import CASES

HANGS_S = 120
"""Seconds after which a case counts as hanging."""
ADDRESS_BYTES = 2**36
"""Address space of a process: numba, Arrow and threads' stacks reserve a lot; no file may make it more."""
RUNNING = "running.txt"


def run_case(kind: str, seed: int, number: int, folder: Path) -> bool:
    """Run a case; whether the damaged file could still be used.

    Raises
    ------
    Exception
        Whatever is no error of ours, and AssertionError for what took too long or too much memory.
    """
    return CASES[kind](Random(f"{kind} {seed} {number}"), folder)


def keep(folder: Path, name: str, work: Path, text: str) -> None:
    """Keep a case's files and what it ended with."""
    print(f"{name}: {text.splitlines()[-1] if text else 'died'}", flush=True)
    for file in work.glob("case.*"):
        target = folder / f"{name}{file.suffix}"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(file, target) if file.is_dir() else shutil.copy(file, target)
    (folder / f"{name}.txt").write_text(text)


def run_cases(arguments: argparse.Namespace) -> int:
    """Run cases until the time is over; how many failed."""
    kinds: Sequence[str] = arguments.kind
    seed, folder, work = arguments.seed, arguments.folder, arguments.work
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    number, failed, used, ran = arguments.first, 0, 0, 0
    while time.time() < arguments.until and number < arguments.cases:
        for kind in kinds:
            (work / RUNNING).write_text(f"{kind} {seed} {number}")
            faulthandler.dump_traceback_later(HANGS_S, exit=True)
            try:
                used += run_case(kind, seed, number, work)
            except Exception:
                failed += 1
                keep(folder, f"{kind}-{seed}-{number}", work, traceback.format_exc())
            faulthandler.cancel_dump_traceback_later()
            ran += 1
        number += arguments.step
    print(f"{ran} cases, of which {used} were usable and {failed} failed", flush=True)
    return failed


def watch(arguments: argparse.Namespace, rank: int, until: float) -> int:
    """Run every n-th case in a process of its own, replaced when a case kills it; how many cases failed or killed."""
    failed, first = 0, rank
    while time.time() < until and first < arguments.cases:
        with tempfile.TemporaryDirectory() as work:
            command = [
                sys.executable, "-m", "fuzz", "--seed", str(arguments.seed), "--folder", str(arguments.folder),
                "--first", str(first), "--step", str(arguments.processes), "--until", str(until), "--work", work,
                "--cases", str(arguments.cases),
                *(f"--kind={kind}" for kind in arguments.kind),
            ]  # fmt: skip
            done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
            if 0 <= done.returncode <= 100 and "Timeout" not in done.stderr:
                return failed + done.returncode
            kind, seed, number = (Path(work) / RUNNING).read_text().split()
            keep(arguments.folder, f"{kind}-{seed}-{number}", Path(work), done.stderr)
            failed, first = failed + 1, int(number) + arguments.processes
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="at most so many of each kind")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=sorted(CASES), help="by default all")
    parser.add_argument("--case", type=int, help="run this one only, in this process")
    parser.add_argument("--folder", type=Path, default=Path("fuzz_output"), help="for what fails")
    for hidden in ("--first", "--step"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.kind = arguments.kind or sorted(CASES)
    if arguments.case is not None:
        with tempfile.TemporaryDirectory() as work:
            for kind in arguments.kind:
                print(kind, "usable" if run_case(kind, arguments.seed, arguments.case, Path(work)) else "refused")
        return 0
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.work is not None:
        return min(run_cases(arguments), 100)
    until = time.time() + arguments.seconds
    with ThreadPoolExecutor(arguments.processes) as pool:
        failed = sum(pool.map(lambda rank: watch(arguments, rank, until), range(arguments.processes)))
    print(f"{failed} cases failed" + (f": see {arguments.folder}" if failed else ""))
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
