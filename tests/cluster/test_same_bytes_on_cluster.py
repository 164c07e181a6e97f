"""Promise number one over real processes: places in which any three properties meet give one model file.

{in this process, 1, 2, 3 workers} x partitions x {dense, CSR} x chunk rows x reductions, for three kinds of label, with
weights, missing values, and samples of rows and columns. `test_same_bytes.py` covers more places, in this process only.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cluster.dask_fixtures import WORKER_MEMORY, map_workers, worker_addresses
from cluster.partition_functions import allow_partitions, chunk_sizes
from strategies.pairs import pairs_of
from strategies.trees import make_data

from daskboost import QuantizedDataset, train
from daskboost.cluster import dask_data
from daskboost.data.chunks.packing import CsrLayout, DenseLayout
from daskboost.devices.budget import partition
from daskboost.fit import rounds
from daskboost.fit.peers import AmongPeers, AtCoordinator, make_reduction

if TYPE_CHECKING:
    from distributed import Client

pytestmark = pytest.mark.slow
ROWS, FEATURES = 3_000, 5
SAMPLES = {"subsample": 0.7, "colsample_bytree": 0.8, "colsample_bynode": 0.7, "max_depth": 3}
KINDS: dict[str, dict[str, Any]] = {
    "regression": {**SAMPLES},
    "logistic": {**SAMPLES, "objective": "binary:logistic", "score_function": "l2", "linear_leaves": True},
    "five classes": {**SAMPLES, "objective": "multi:softprob", "num_class": 5},
    "sketched vectors": {
        **SAMPLES, "objective": "multi:softprob", "num_class": 5, "multi_strategy": "multi_output_tree",
        "sketch_outputs": 2,
    },
}  # fmt: skip
COMPILED = ("regression", "five classes")
"""Kinds whose trees CPUs grow in compiled calls, on any number of engines."""
COMPILED_ALONE = ("logistic",)
"""Kinds whose trees one engine grows in compiled calls, and several with the host: they add up what leaves are of."""
ROUNDS = {"regression": 4, "logistic": 4, "five classes": 2, "sketched vectors": 3}
"""The second round's gradients come from the first's trees."""
WORKERS = (0, 1, 2, 3)  # 0: in this process
PARTITIONS = (1, 7, 50)
LAYOUTS = {"dense": DenseLayout, "csr": CsrLayout}
CHUNK_ROWS = (1_000, 65_536)
REDUCTIONS = {"coordinator": AtCoordinator, "peers": AmongPeers}


@dataclass(frozen=True)
class Place:
    """Where and how the rows of one kind of label are kept."""

    kind: str
    n_workers: int
    n_partitions: int
    encoding: str
    chunk_rows: int

    @property
    def n_engines(self) -> int:
        """Workers that hold rows; in this process there is one engine."""
        return max(min(self.n_workers, self.n_partitions), 1)

    def __str__(self) -> str:
        where = f"{self.n_workers} workers" if self.n_workers else "in process"
        return f"{self.kind}-{where}-{self.n_partitions} partitions-{self.encoding}-{self.chunk_rows}"


PLACES = [Place(**choice) for choice in pairs_of({
    "kind": KINDS, "n_workers": WORKERS, "n_partitions": PARTITIONS, "encoding": LAYOUTS, "chunk_rows": CHUNK_ROWS,
}, together=3)]  # fmt: skip
"""A quarter of all combinations, in which any three values of different properties meet."""


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Of three worker processes among which data stay where they are put, and are not taken for too small to share."""
    import dask
    from distributed import Client, LocalCluster

    with (
        pytest.MonkeyPatch.context() as patch,
        dask.config.set({"distributed.scheduler.work-stealing": False}),
        LocalCluster(
            n_workers=3, threads_per_worker=1, dashboard_address=":0", silence_logs=50, memory_limit=WORKER_MEMORY
        ) as cluster,
        Client(cluster, set_as_default=False) as made,
    ):
        patch.setattr(partition, "ONE_ENGINE_BYTES", 0)
        patch.setitem(partition.SHARE_BYTES, "cuda", 1)
        made.wait_for_workers(3, timeout=60)
        yield made


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    """A pandas frame of features, label and weight for each kind of label."""
    import pandas as pd

    made = {}
    for kind, params in KINDS.items():
        rng = np.random.default_rng(8)
        rows = make_data(rng, params.get("objective", "reg:squarederror"), ROWS, FEATURES, n_values=500, missing=0.4)
        frame = pd.DataFrame(rows.X, columns=[f"x{i}" for i in range(FEATURES)])
        made[kind] = frame.assign(label=rows.y, weight=rows.weight)
    return made


@pytest.fixture(scope="module")
def expected(tables: dict[str, Any]) -> dict[str, bytes]:
    """The model file of each kind's plainest fit: from memory, in one dense chunk."""
    files = {}
    for kind, table in tables.items():
        with QuantizedDataset.from_dask(table, "label", weight="weight", max_bin=16, encoding="dense") as data:
            files[kind] = model_file(data, kind, "coordinator")
    assert len(set(files.values())) == len(KINDS)
    return files


@pytest.fixture(scope="module")
def partitioned(client: Client, tables: dict[str, Any]) -> Callable[[Place], Any]:
    """Makes Dask DataFrames whose partitions go round a place's workers, if it has any."""
    import dask.dataframe as dd
    from dask import delayed

    @functools.cache  # it also holds the futures, without which the workers would forget the partitions
    def parts(kind: str, n_workers: int, n_partitions: int) -> list[Any]:
        edges = partition_edges(n_partitions)
        local = [tables[kind][a:b] for a, b in itertools.pairwise(edges)]
        workers = itertools.cycle(worker_addresses(client)[:n_workers])
        return [client.scatter(part, workers=[next(workers)], hash=False) for part in local] if n_workers else local

    def make(place: Place) -> Any:
        lazy = [delayed(part) for part in parts(place.kind, place.n_workers, place.n_partitions)]
        return dd.from_delayed(lazy, meta=tables[place.kind][:0], verify_meta=False)

    return make


def partition_edges(n_partitions: int) -> list[int]:
    return [ROWS * i // n_partitions for i in range(n_partitions + 1)]


@pytest.fixture(scope="module", params=PLACES, ids=str)
def kept(
    request: pytest.FixtureRequest, client: Client, partitioned: Callable[[Place], Any]
) -> Iterator[tuple[Place, QuantizedDataset]]:
    """A place and the data set that is kept there: all its tests use it before the next is made."""
    place: Place = request.param
    for rank, worker in enumerate(worker_addresses(client)):  # others may read no partition, wherever it lies
        client.run(allow_partitions, int(rank < place.n_workers), workers=[worker])
    with QuantizedDataset.from_dask(
        partitioned(place), "label", weight="weight", max_bin=16, encoding=place.encoding,
        chunk_rows=place.chunk_rows, n_jobs=1, client=client if place.n_workers else None,
    ) as data:  # fmt: skip
        yield place, data


def model_file(data: QuantizedDataset, kind: str, reduction: str) -> bytes:
    return train({**KINDS[kind], "reduction": reduction, "n_jobs": 1}, data, ROUNDS[kind]).to_bytes()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_every_place_gives_the_same_file(
    kept: tuple[Place, QuantizedDataset], reduction: str, expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, data = kept
    made: list[tuple[type, int]] = []

    def spy(name: str, engines: Any, *rest: Any) -> Any:
        strategy = make_reduction(name, engines, *rest)
        made.append((type(strategy), engines.n_engines))
        return strategy

    monkeypatch.setattr(rounds, "make_reduction", spy)  # the scheduler, too, is in this process
    assert model_file(data, place.kind, reduction) == expected[place.kind]
    alone = place.n_workers > 0 and place.n_engines == 1  # then the worker makes its own, in its process
    compiled = COMPILED + COMPILED_ALONE * (place.n_engines == 1)
    in_step = place.kind in compiled and (place.n_engines == 1 or reduction != "coordinator")  # within compiled calls
    assert made == ([] if alone or in_step else [(REDUCTIONS[reduction], place.n_engines)])


def test_the_places_are_what_they_are_called(kept: tuple[Place, QuantizedDataset]) -> None:
    """Else the fits above might all be of one kind."""
    place, data = kept
    assert isinstance(data.shards, dask_data.ClusterShards) == (place.n_workers > 0)
    assert isinstance(data.info.layout, LAYOUTS[place.encoding])
    chunks = chunks_of_engines(data)
    assert len(chunks) == place.n_engines
    expected = Counter[int]()
    for start, stop in itertools.pairwise(partition_edges(place.n_partitions)):
        expected.update(min(place.chunk_rows, stop - first) for first in range(start, stop, place.chunk_rows))
    assert sum(map(Counter, chunks), Counter()) == expected


def chunks_of_engines(data: QuantizedDataset) -> list[list[int]]:
    """Rows of each chunk, for each engine of a fit."""
    shards = data.shards
    if isinstance(shards, dask_data.ClusterShards):
        found = map_workers(shards.client, chunk_sizes, shards.name, workers=sorted(set(shards.owners)))
        return list(found.values())
    return [[entry.n_rows for entry in shard.entries] for shard in shards.shards]
