"""Fixtures that every test folder shares."""

from __future__ import annotations

import faulthandler
import functools
import gc
import importlib.util
import itertools
import os
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from combinations import kept_cases
from hypothesis import HealthCheck, settings
from kernels.emulation import ALWAYS, EACH_VALUE, MOST_TESTS
from kernels.processes import LATE_SECONDS, piece_of
from kernels.runtimes import RUNTIMES

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

    from daskboost.devices.gpu.runtime.launches import Runtime

ROOT = Path(__file__).resolve().parents[1]

# The first example of a test may compile a kernel, and test machines are busy: neither deadline nor health check looks
# at the clock. The same examples in every run, so that a red build can be had again.
settings.register_profile("daskboost", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("daskboost")


@functools.cache
def _gpu_missing() -> str | None:
    """Why tests marked `gpu` cannot run here, or None."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    import cupy

    try:
        return None if cupy.cuda.runtime.getDeviceCount() > 0 else "no CUDA device"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no CUDA driver: {error}"


MULTIPROCESSORS = "DASKBOOST_MULTIPROCESSORS"
"""For tests under compute-sanitizer: GPUs are taken to have so few multiprocessors. Most of a small fit's time goes
into shared memory that blocks clear for the few rows they have, and the bytes do not depend on the number of blocks."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-golden", action="store_true", help="store the trees of tests/test_golden_models.py anew"
    )
    parser.addoption(
        EACH_VALUE, action="store_true",
        help="of each test, run cases in which each value of each parameter comes at least once, not all combinations",
    )  # fmt: skip


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; tests press Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if fewer := os.environ.get(MULTIPROCESSORS):
        from daskboost.devices.gpu.runtime.cuda import CudaRuntime

        make = CudaRuntime.__init__

        def make_smaller(runtime: CudaRuntime, xp: Any, device: int) -> None:
            make(runtime, xp, device)
            runtime.multiprocessors = min(runtime.multiprocessors, int(fewer))

        CudaRuntime.__init__ = make_smaller  # type: ignore[assignment]


FIRST = [
    "tests/training/test_compiled_trees.py", "tests/cluster/test_channels.py", "tests/compute_sanitizer/test_run.py",
    "tests/kernels/test_gradient_rounds.py",
]  # fmt: skip
"""Files that come first: one compiles most CPU kernels, on two cores. Processes of later files find these on disk; they
would else compile the same at once, the workers of a cluster above all. The other files need few CPU kernels."""


FROZEN_BEFORE = pytest.StashKey[str]()
"""The file of the test that runs: garbage collections leave out what was there before it."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort tests: those in files of `FIRST` come first; those marked `late` come last, as many small pieces of work
    leave no process idle at the end.

    Under sanitizers, which are ten times as slow, so many tests of a file as `test_sanitizers.py` asks for, none of
    them large, and those that are always run there.
    """
    places = {file: place for place, file in enumerate(FIRST, -len(FIRST))}
    items.sort(key=lambda item: (
        item.get_closest_marker("late") is not None, places.get(item.nodeid.split("::")[0], 0)
    ))  # fmt: skip
    for item in items:
        if item.get_closest_marker("late"):
            item.add_marker(pytest.mark.timeout(LATE_SECONDS))
    if config.getoption(EACH_VALUE):
        _leave_out(config, items, _repeated(items))
    if MOST_TESTS not in os.environ:
        return
    emulated = [item for item in items if item.get_closest_marker("emulated")]
    small = [item for item in emulated if not item.get_closest_marker("large")]
    kept, most = set[int](), int(os.environ[MOST_TESTS])
    for _, of_file in itertools.groupby(small, lambda item: item.nodeid.split("::")[0]):
        tests = list(of_file)
        kept |= {id(item) for item in tests[:: -(-len(tests) // most)]} if most else set()
    always = set(ALWAYS.read_text().splitlines())
    kept |= {id(item) for item in small if item.nodeid in always}
    _leave_out(config, items, {id(item) for item in emulated} - kept)


def _repeated(items: list[pytest.Item]) -> set[int]:
    """Return the cases, by `id`, whose values other cases of their test have; those that are marked alike are looked at
    together, as some marks skip a case."""
    tests = [
        (f"{item.nodeid.split('[')[0]} {sorted({mark.name for mark in item.iter_markers()})}", (
            item.nodeid, _values_of(item)
        ))
        for item in items
    ]  # fmt: skip
    kept = kept_cases(tests)
    return {id(item) for item in items if item.nodeid not in kept}


def _values_of(item: pytest.Item) -> dict[str, object]:
    """Return the values of a case's parameters: those that its mark `values` names in place of its one parameter."""
    if not (isinstance(item, pytest.Function) and hasattr(item, "callspec")):
        return {}
    own, mark = item.callspec.params, item.get_closest_marker("values")
    if mark is None:
        return own
    return {**{name: value for name, value in own.items() if not isinstance(value, str)}, **mark.kwargs}


def _leave_out(config: pytest.Config, items: list[pytest.Item], left_out: set[int]) -> None:
    """Take items, by `id`, from those that run."""
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left_out])
    items[:] = [item for item in items if id(item) not in left_out]


def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Leave out of garbage collections what is there before a file's tests, a million objects: modules, all collected
    tests, what compilers keep of CPU kernels.

    Tests collect garbage hundreds of times, to see that something is no longer held; each time took .3 s, and where
    kernels were compiled .6 s.
    """
    file = item.nodeid.split("::")[0]
    if item.config.stash.get(FROZEN_BEFORE, None) != file:
        item.config.stash[FROZEN_BEFORE] = file
        gc.collect()
        gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many processes share the tests (`-n auto`): one per core, or none where all would share a GPU."""
    return 0 if _gpu_missing() is None else len(os.sched_getaffinity(0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give processes whole pieces, in the order in which tests were collected."""
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False
    scheduler: Any = LoadScopeScheduling(config, log)
    scheduler._split_scope = piece_of
    return scheduler


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("late"):
        faulthandler.cancel_dump_traceback_later()  # nothing hangs but, at most, a process that has a limit of its own
    if item.get_closest_marker("gpu") and (reason := _gpu_missing()):
        pytest.skip(reason)


@pytest.fixture(scope="session")
def session_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the session's processes share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if hasattr(request.config, "workerinput") else own


@pytest.fixture(scope="session")
def bundled_data() -> Path:
    """The real sets that ship with the repository."""
    return ROOT / "tests" / "data"


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """All real sets: the folder that DASKBOOST_DATA names, else `shared/data` beside the checkout."""
    named = os.environ.get("DASKBOOST_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not (folder / "README.md").is_file():
        pytest.skip(f"no real data sets in {folder}; set DASKBOOST_DATA to their folder")
    return folder


@pytest.fixture(scope="session", autouse=True)
def no_helpers() -> None:
    """Compile CPU kernels in the processes of tests alone: there are as many of these as cores, and helpers of
    `compilers.py`, which import all that they need and compile small functions once more, would take theirs.

    `tests/devices/test_compilers.py` tests helpers, and processes that tests start have them.
    """
    from daskboost.devices.cpu import compilers

    compilers.MOST_HELPERS = 0


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> Runtime:
    """Where CUDA kernels run: on the CPU, with threads in two orders, and on a GPU if there is one."""
    made: Runtime = request.param()
    return made


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator of the test's own: the same numbers whatever runs before it."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[LocalCluster]:
    """Two worker processes with one thread each, for the whole session."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", memory_limit="4GiB"
    ) as cluster:
        yield cluster


@pytest.fixture
def cluster_client(shared_cluster: LocalCluster) -> Iterator[Client]:
    """A client of the shared cluster for one test: the current one, to which the Dask data of other tests would go."""
    from distributed import Client

    with Client(shared_cluster) as client:
        client.wait_for_workers(2, timeout=60)
        yield client
