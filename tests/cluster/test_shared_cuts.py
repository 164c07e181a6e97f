"""Workers that share out the features make the cut points that one process makes, and say so when one was lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster.dask_fixtures import worker_addresses

from daskboost import QuantizedDataset
from daskboost.cluster import dask_sums
from daskboost.cluster.context import WorkerPlace, WorkerShards
from daskboost.cluster.dask_sums import MOST_OWNERS, PART_BYTES, Shares, part_of_sketch, search_on
from daskboost.data.cuts import sketch
from daskboost.data.cuts.cell_counts import Refinement
from daskboost.data.cuts.sketch import refine_batch, sketch_batch
from daskboost.data.input.row_batch import DenseRows
from daskboost.devices.cpu import threads
from daskboost.dtypes import Float32
from daskboost.errors import WorkerLostError

SHARES = Shares(("here",), (0, 5), (1,))


def values(n: int, rng: np.random.Generator) -> Float32:
    """Features of which some must be counted again: a narrow band beside far outliers."""
    found = rng.standard_normal((n, 5)).astype(np.float32)
    found[:, 1] = np.where(rng.random(n) < 0.95, 1 + 1e-4 * rng.random(n), 1e20 * found[:, 1])
    found[:, 3] = rng.integers(0, 5, n)
    found[rng.random(n) < 0.1, 4] = np.nan
    return found


def spread_out(client: Any, array: Float32) -> Any:
    """Parts of an array on the workers in turn."""
    import dask.array as da

    workers, parts = worker_addresses(client), np.array_split(array, 9)
    lazy = [client.submit(np.copy, part, workers=[workers[i % len(workers)]]) for i, part in enumerate(parts)]
    return da.concatenate([
        da.from_delayed(each, part.shape, np.float32) for each, part in zip(lazy, parts, strict=True)
    ])  # fmt: skip


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_owners", [1, 5])
def test_cut_points_on_a_cluster(
    cluster_client: Any, weighted: bool, n_owners: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    if n_owners > 1:
        monkeypatch.setattr(dask_sums, "PART_BYTES", 1)
    monkeypatch.setattr(sketch, "_FEWEST_CELLS", 64)
    monkeypatch.setattr(sketch, "_LEAST_CAPACITY", 256)
    monkeypatch.setattr(sketch, "_SKETCH_BYTES", 1)
    x, reads = values(6000, rng), []
    y, weight = (x[:, 0] > 0).astype(np.float32), rng.random(6000).astype(np.float32) if weighted else None
    search = dask_sums.Shares.of

    def shared(workers: Any, n_features: int, sketch_bytes: int) -> Shares:
        reads.append(search(workers, n_features, sketch_bytes))
        return reads[-1]

    monkeypatch.setattr(dask_sums.Shares, "of", shared)
    chunked = [None if each is None else spread_out(cluster_client, each) for each in (x, y, weight)]
    options: dict[str, Any] = {"max_bin": 30}
    with (
        QuantizedDataset.from_dask(x, y, weight=weight, **options) as alone,
        QuantizedDataset.from_dask(
            chunked[0], chunked[1], weight=chunked[2], client=cluster_client, **options
        ) as spread,
    ):  # fmt: skip
        for name in ("values", "offsets", "has_missing"):
            assert getattr(spread.cuts, name).tobytes() == getattr(alone.cuts, name).tobytes()
        assert spread.info.feature_sizes == alone.info.feature_sizes
    assert [len(shares.owners) for shares in reads] == [n_owners]


@pytest.fixture
def place(tmp_path: Path) -> WorkerPlace:
    return WorkerPlace("here", 1, None, str(tmp_path), WorkerShards())


def test_a_read_counts_once_and_none_may_be_lost(place: WorkerPlace, rng: np.random.Generator) -> None:
    rows = DenseRows(values(3000, rng))
    parts = [sketch_batch(DenseRows(rows.values[own]), capacity=64) for own in (slice(1000), slice(1000, None))]
    with pytest.raises(WorkerLostError, match="call again"):
        search_on(place, 0, parts, "cuts", 1, 16, SHARES)
    answer = search_on(place, 0, parts, "cuts", 0, 16, SHARES)
    assert isinstance(answer, Refinement)
    assert search_on(place, 0, parts, "cuts", 0, 16, SHARES) is answer
    finer = [refine_batch(rows, None, answer)]
    with pytest.raises(WorkerLostError, match="call again"):
        search_on(place, 0, finer, "cuts", 2, 16, SHARES)
    assert search_on(place, 0, finer, "cuts", 1, 16, SHARES) is search_on(place, 0, finer, "cuts", 1, 16, SHARES)
    with pytest.raises(WorkerLostError, match="call again"):
        part_of_sketch(place, 0, "fold", SHARES)


@pytest.mark.parametrize(("n_workers", "n_features", "n_parts", "n_owners"), [
    (1, 9, 100, 1), (4, 9, 0, 1), (4, 9, 3, 3), (4, 9, 100, 9), (2, 99, 100, 8), (8, 3, 100, 3),
    (100, 1000, 1000, MOST_OWNERS),
])  # fmt: skip
def test_features_are_shared_out_among_as_many_as_are_worth_it(
    n_workers: int, n_features: int, n_parts: int, n_owners: int
) -> None:
    workers = [str(worker) for worker in range(n_workers)]
    shares = Shares.of(workers, n_features, n_parts * PART_BYTES + 5)
    assert shares.owners == tuple(workers[share % n_workers] for share in range(n_owners))
    assert len(shares.edges) == n_owners + 1
    assert (shares.edges[0], shares.edges[-1]) == (0, n_features)
    assert (np.diff(shares.edges) > 0).all()


@pytest.mark.parametrize(("cores", "n_threads", "neighbours", "expected"), [
    (32, 1, 2, 8), (8, 1, 2, 4), (8, 1, 8, 1), (2, 1, 4, 1), (4, 16, 1, 16),
])  # fmt: skip
def test_workers_of_a_host_share_its_idle_cores(
    place: WorkerPlace, cores: int, n_threads: int, neighbours: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda: cores)
    workers = [f"tcp://10.0.0.1:{port}" for port in range(neighbours)]
    shares = Shares.of(["tcp://10.0.0.2:1", *workers], 3, 1 << 40)
    assert shares.neighbours == (1, *[neighbours] * len(shares.owners[1:]))
    assert shares.threads(replace(place, n_threads=n_threads), 1) == expected


@pytest.mark.parametrize(("n_shares", "expected"), [(1, 8), (2, 4), (3, 2), (9, 1)])
def test_shares_of_a_worker_have_its_threads_together(
    place: WorkerPlace, n_shares: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda: 32)
    shares = Shares(("one", *["other"] * n_shares), tuple(range(n_shares + 2)), (2,) * (n_shares + 1))
    assert shares.threads(place, 0) == 8
    assert {shares.threads(place, index) for index in range(1, n_shares + 1)} == {expected}
