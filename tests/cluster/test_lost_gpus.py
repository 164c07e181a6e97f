"""Engines in step, on CPUs or on GPUs that are joined: whatever befalls one of them in the midst of a fit, the fit ends
soon with the cause, and the next one on the same cluster gives the bytes it should.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from cluster.dask_fixtures import WORKER_MEMORY, all_freed, eventually, worker_addresses
from dask import delayed
from distributed import Client, LocalCluster

import daskboost as db
from daskboost.devices.budget import partition
from daskboost.errors import EngineError, WorkerLostError

N_KILLS = int(os.environ.get("DASKBOOST_LOSSES", "3"))
"""How often a worker with a GPU is killed."""
SOON_S = 5.0
N_BLOCKS, N_FEATURES = 4, 12
ROUNDS = 4


@dataclass(frozen=True)
class Place:
    """Where engines run."""

    device: str
    block_rows: int
    max_depth: int
    out_of_core: str = "auto"
    """Trees of certified fits grow with the host, in step."""

    @property
    def params(self) -> dict[str, Any]:
        """Those of a fit there."""
        reduction = "nccl" if self.device == "cuda" else "auto"
        return {"objective": "binary:logistic", "max_depth": self.max_depth, "device": self.device,
                "reduction": reduction, "out_of_core": self.out_of_core}  # fmt: skip


PLACES = {
    "cpu": Place("cpu", 10_000, 6), "emulated": Place("cuda", 300, 3), "cuda": Place("cuda", 250_000, 6),
    "emulated certified": Place("cuda", 300, 3, "certified"), "cuda certified": Place("cuda", 250_000, 6, "certified"),
}  # fmt: skip


def made_block(number: int, n_rows: int) -> tuple[Any, Any]:
    """Return rows and their labels."""
    rng = np.random.default_rng(number)
    x = rng.normal(size=(n_rows, N_FEATURES)).astype(np.float32)
    return x, (x[:, 0] + rng.normal(size=len(x)) > 0).astype(np.float32)


@cache
def expected_bytes(place: Place) -> bytes:
    """Return the model of all blocks, grown in this process on a CPU."""
    x, y = (np.concatenate(each) for each in zip(
        *(made_block(number, place.block_rows) for number in range(N_BLOCKS)), strict=True
    ))  # fmt: skip
    with db.QuantizedDataset.from_dask(x, y, device="cpu") as data:
        return db.train({**place.params, "device": "cpu", "reduction": "auto"}, data, ROUNDS).to_bytes()


@pytest.fixture(scope="module", params=[
    "cpu", *(pytest.param(name, marks=pytest.mark.emulated) for name in ("emulated", "emulated certified")),
    *(pytest.param(name, marks=pytest.mark.gpu) for name in ("cuda", "cuda certified")),
])  # fmt: skip
def cluster(request: pytest.FixtureRequest) -> Iterator[tuple[Place, Client]]:
    """Two workers with nannies, in processes of their own."""
    name, options = request.param, dict[str, Any]()
    cluster_class: Any = LocalCluster
    preload = ["cluster.toys", "cluster.emulated_gpu"] if "emulated" in name else ["cluster.toys"]
    if "cuda" in name:
        cluster_class = pytest.importorskip("dask_cuda").LocalCUDACluster
        options = {"CUDA_VISIBLE_DEVICES": [0, 1]}
        if n_gpus() < 2:
            pytest.skip("one GPU is joined with no other")
    else:
        options = {"n_workers": 2, "memory_limit": WORKER_MEMORY}
    with ExitStack() as stack:
        # Dask ends a nanny if its worker is missing so long after one was lost: another one may just have been killed.
        patience = {"distributed.deploy.lost-worker-timeout": "1h"}
        stack.enter_context(dask.config.set({"distributed.worker.preload": preload, **patience}))
        made = stack.enter_context(cluster_class(threads_per_worker=1, dashboard_address=":0", **options))
        client = stack.enter_context(Client(made))
        client.wait_for_workers(2, timeout=60)
        yield PLACES[name], client


@pytest.fixture(autouse=True)
def spread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small data have an engine on each worker, too."""
    monkeypatch.setattr(partition, "ONE_ENGINE_BYTES", 0)
    monkeypatch.setattr(partition, "SHARE_BYTES", {"cuda": 1, "cpu": 1})


def n_gpus() -> int:
    import cupy

    return int(cupy.cuda.runtime.getDeviceCount())


def quantized(cluster: tuple[Place, Client]) -> db.QuantizedDataset:
    """Return all blocks, on two workers."""
    import dask.array as da

    place, client = cluster
    client.wait_for_workers(2, timeout=60)
    workers = worker_addresses(client)
    blocks = [
        client.submit(made_block, number, place.block_rows, workers=[workers[number % 2]], pure=False)
        for number in range(N_BLOCKS)
    ]
    made = [delayed(each, nout=2) for each in blocks]
    x = da.concatenate([da.from_delayed(each[0], (place.block_rows, N_FEATURES), np.float32) for each in made])
    y = da.concatenate([da.from_delayed(each[1], (place.block_rows,), np.float32) for each in made])
    device = "cuda" if place.block_rows == PLACES["cuda"].block_rows else "cpu"
    dataset = db.QuantizedDataset.from_dask(*client.persist([x, y]), client=client, device=device)
    assert len(set(dataset.shards.owners)) == 2
    return dataset


class Strikes(db.Callback):
    """Does something after the third round, and notes when."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.action, self.at = action, 0.0

    def after_round(self, info: Any) -> bool:
        if info.iteration >= 2 and not self.at:
            self.at = time.monotonic()
            self.action()
        return False


class FailsWhere:
    """Half the squared error's gradients, which cannot be computed in the process that a file names."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, label: Any, margin: Any) -> tuple[Any, Any]:
        if self.file.exists() and self.file.read_text() == str(os.getpid()):
            raise ValueError("one engine of two")
        return (margin - label) / 2, label * 0 + np.float32(0.5)


def used_bytes() -> int:
    """What the worker's own GPU has given away; nothing without one."""
    try:
        import cupy
    except ImportError:
        return 0
    cupy.get_default_memory_pool().free_all_blocks()
    free, total = cupy.cuda.runtime.memGetInfo()
    return int(total - free)


def fit_again(cluster: tuple[Place, Client], dataset: db.QuantizedDataset) -> None:
    """The next fit gives the right bytes."""
    place, client = cluster
    assert all_freed(client)
    assert db.train(place.params, dataset, ROUNDS).to_bytes() == expected_bytes(place)


def strike(cluster: tuple[Place, Client], dataset: db.QuantizedDataset, action: Callable[[], object],
           error: type[BaseException], message: str, objective: Any = None) -> float:  # fmt: skip
    """Have something happen in the midst of a fit, which ends soon with the error; return the seconds it took."""
    place, _ = cluster
    strikes = Strikes(action)
    with pytest.raises(error, match=message) as caught:
        db.train(place.params, dataset, 1_000_000, callbacks=[strikes], objective=objective)
    seconds = time.monotonic() - strikes.at
    print(f"{seconds:.2f} s: {caught.type.__name__}: {str(caught.value)[:200]}", flush=True)
    assert seconds < SOON_S
    return seconds


def restarts(client: Client, pids: dict[str, int], victim: str) -> bool:
    """Whether a nanny has replaced the worker, and that alone."""
    now: dict[str, int] = {}

    def found() -> bool:
        with suppress(OSError):  # one of them is not there yet
            now.update(client.run(os.getpid))
        return len({*now} - {victim} | {*pids} - {victim}) == 2

    return eventually(found, 60) and all(now[each] == pid for each, pid in pids.items() if each != victim)


def test_a_worker_is_killed(cluster: tuple[Place, Client]) -> None:
    place, client = cluster
    for turn in range(N_KILLS if place is PLACES["cuda"] else 2):
        with quantized(cluster) as dataset:
            fit_again(cluster, dataset)  # so that all has been made that stays
            pids = client.run(os.getpid)
            before = client.run(used_bytes)
            victim = sorted(pids)[turn % 2]
            lost = f"worker {victim} .*was lost in "
            strike(cluster, dataset, partial(os.kill, pids[victim], signal.SIGKILL), WorkerLostError, lost)
        assert restarts(client, pids, victim)
        assert all_freed(client)
        after = client.run(used_bytes)
        print({each: after[each] - bytes_ for each, bytes_ in before.items() if each in after}, flush=True)
    with quantized(cluster) as dataset:
        fit_again(cluster, dataset)


def test_an_engine_fails(cluster: tuple[Place, Client], tmp_path: Path) -> None:
    _, client = cluster
    with quantized(cluster) as dataset:
        pids = client.run(os.getpid)
        for number, pid in enumerate(pids.values()):
            file = tmp_path / str(number)
            strike(
                cluster, dataset, partial(file.write_text, str(pid)),
                EngineError, "ValueError: one engine of two", FailsWhere(file)
            )  # fmt: skip
            fit_again(cluster, dataset)
        assert client.run(os.getpid) == pids


def test_a_worker_is_stopped(cluster: tuple[Place, Client]) -> None:
    """The other one does not wait for it, though all its connections stay; then it goes on."""
    _, client = cluster
    with quantized(cluster) as dataset:
        pids = client.run(os.getpid)
        for victim in sorted(pids):
            lost = f"worker {victim} .*was lost in .*no sign of life, and its process is stopped"
            try:
                strike(cluster, dataset, partial(os.kill, pids[victim], signal.SIGSTOP), WorkerLostError, lost)
                (other,) = set(pids) - {victim}
                assert all_freed_on(client, other)
            finally:
                os.kill(pids[victim], signal.SIGCONT)
            fit_again(cluster, dataset)
        assert client.run(os.getpid) == pids


def all_freed_on(client: Client, worker: str) -> bool:
    """Whether no engine runs any more on a worker."""
    from cluster.dask_fixtures import running_fits

    return eventually(lambda: client.run(running_fits, workers=[worker]) == {worker: 0}, SOON_S)


def test_the_client_is_interrupted(cluster: tuple[Place, Client]) -> None:
    _, client = cluster
    with quantized(cluster) as dataset:
        pids = client.run(os.getpid)
        for _ in range(2):
            strike(cluster, dataset, lambda: os.kill(os.getpid(), signal.SIGINT), KeyboardInterrupt, "^$")
            fit_again(cluster, dataset)
        assert client.run(os.getpid) == pids


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_is_lost_that_two_fits_have(cluster: tuple[Place, Client], signum: int) -> None:
    """One of which may wait for its turn."""
    place, client = cluster
    with quantized(cluster) as dataset, ThreadPoolExecutor(1) as pool:
        pids = client.run(os.getpid)
        victim = sorted(pids)[0]
        second: list[Any] = []

        def both() -> None:
            second.append(pool.submit(db.train, place.params, dataset, 1_000_000))
            time.sleep(1.0)
            assert not second[0].done()
            strikes_at.append(time.monotonic())
            os.kill(pids[victim], signum)

        strikes_at: list[float] = []
        try:
            with pytest.raises(WorkerLostError, match=f"worker {victim} .*was lost in "):
                db.train(place.params, dataset, 1_000_000, callbacks=[Strikes(both)])
            with pytest.raises(WorkerLostError, match=f"worker {victim} .*(was lost|cannot be reached)"):
                second[0].result(60)
            assert time.monotonic() - strikes_at[0] < SOON_S
        finally:
            if signum == signal.SIGSTOP:
                os.kill(pids[victim], signal.SIGCONT)
    if signum == signal.SIGKILL:
        assert restarts(client, pids, victim)
    with quantized(cluster) as dataset:
        fit_again(cluster, dataset)
