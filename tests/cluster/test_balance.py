"""Which worker of a cluster takes which partition."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from cluster.dask_fixtures import local_cluster, worker_addresses
from cluster.dask_tables import PARAMS
from distributed import Client, wait
from hypothesis import given
from hypothesis import strategies as st

import daskboost as db
from daskboost.cluster import dask_data
from daskboost.cluster.balance import LEAST_GAIN, balanced_owners, chosen_workers, readers_among
from daskboost.data.chunks.build import most_rows
from daskboost.devices.budget import partition


def n_moved(readers: list[str], owners: list[str]) -> int:
    return sum(reader != owner for reader, owner in zip(readers, owners, strict=True))


@pytest.mark.parametrize(
    ("sizes", "readers", "most", "moved"),
    [
        ([10] * 6, "aaabbc", 20, 1),
        ([10] * 8, "aaaaaaab", 40, 3),
        ([10] * 5, "aabbc", 20, 0),
        ([10, 10, 10, 9], "aabb", 20, 0),
        ([100, 97, 3, 4], "abaa", 107, 0),  # 104 would be less, by less than is worth a move
        ([50, 30, 20, 20], "aaab", 70, 1),
        ([7, 0, 0, 0], "abbb", 7, 0),
        ([0, 0], "ab", 0, 0),
        ([5], "a", 5, 0),
        ([], "", 0, 0),
    ],
)
def test_the_largest_part_is_small_and_few_partitions_move(
    sizes: list[int], readers: str, most: int, moved: int
) -> None:
    owners = balanced_owners(sizes, list(readers))
    assert (most_rows(sizes, owners), n_moved(list(readers), owners)) == (most, moved)


@given(st.lists(st.tuples(st.integers(0, 100), st.sampled_from("abcde")), max_size=40))
def test_no_worker_has_many_more_rows_than_need_be(partitions: list[tuple[int, str]]) -> None:
    sizes, readers = [size for size, _ in partitions], [reader for _, reader in partitions]
    owners = balanced_owners(sizes, readers)
    assert set(owners) <= set(readers)
    most, before = most_rows(sizes, owners), most_rows(sizes, readers)
    assert owners == readers or most * LEAST_GAIN < before
    if partitions:
        # Whoever has the most got the last of it when it had the least, or never had more than its fair share.
        assert most <= LEAST_GAIN * (sum(sizes) / len(set(readers)) + max(sizes))


@given(st.integers(1, 6), st.data())
def test_equal_partitions_are_dealt_out_evenly(n_workers: int, data: st.DataObject) -> None:
    readers = [*"abcdef"[:n_workers], *data.draw(st.lists(st.sampled_from("abcdef"[:n_workers]), max_size=30))]
    owners = balanced_owners([1] * len(readers), readers)
    counts, before = Counter(owners).values(), Counter(readers)
    fair = -(-len(readers) // n_workers)
    assert max(counts) == fair or max(before.values()) <= LEAST_GAIN * fair
    assert n_moved(readers, owners) == (0 if owners == readers else sum(max(0, n - fair) for n in before.values()))


READERS = ["tcp://b:2", "tcp://b:1", "tcp://b:2", "tcp://a:1", "tcp://a:1", "tcp://a:1", "tcp://b:3"]
"""The worker that has each partition at hand: four on host b, three on host a."""


@pytest.mark.parametrize(("most", "beside", "expected"), [
    (1, (), ["tcp://b:2"]), (2, (), ["tcp://b:2", "tcp://b:1"]), (3, (), ["tcp://b:2", "tcp://b:1", "tcp://b:3"]),
    (4, (), sorted(set(READERS))), (9, ("tcp://a:1",), sorted(set(READERS))),
    (1, ("tcp://a:1", "tcp://a:1"), ["tcp://a:1"]), (2, ("tcp://a:1",), ["tcp://a:1"]),
    (1, ("tcp://a:1", "tcp://b:3"), ["tcp://b:2"]),
])  # fmt: skip
def test_few_workers_that_share_rows_are_neighbours(most: int, beside: tuple[str, ...], expected: list[str]) -> None:
    found = chosen_workers(most, READERS, beside)
    assert found == expected
    among = readers_among(found, READERS)
    assert set(among) <= set(found)
    assert all(new == old for new, old in zip(among, READERS, strict=True) if old in found)


@pytest.mark.parametrize(("mebibytes", "expected"), [(1, 1), (63, 1), (64, 2), (100, 3), (1000, 3)])
def test_small_data_of_gpus_lie_on_few(
    mebibytes: int, expected: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner = dask_data.ClusterRunner(cast(Any, None))
    runner._sizes, runner._readers = [1] * 6, ["tcp://a:1", "tcp://a:2", "tcp://a:3"] * 2
    info = cast(Any, SimpleNamespace(nbytes=mebibytes * 2**20))
    with caplog.at_level(logging.INFO, "daskboost.cluster.dask_data"):
        owners = runner._owners(info, None, "cuda")
    assert Counter(owners) == Counter({f"tcp://a:{number + 1}": 6 // expected for number in range(expected)})
    assert len(caplog.messages) == (expected < 3)
    assert len(set(runner._owners(info, None, "cpu"))) == (1 if mebibytes == 1 else 3)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with local_cluster(3) as made:
        yield made


def test_partitions_go_to_workers_that_have_fewer_rows(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    import dask.array as da

    monkeypatch.setattr(partition, "ONE_ENGINE_BYTES", 0)
    workers, rng = worker_addresses(client), np.random.default_rng(0)
    sizes = [300, 200, 250, 250, 300, 200]
    X, y = rng.standard_normal((sum(sizes), 4), np.float32), rng.random(sum(sizes)).astype(np.float32)
    blocks = []
    for index, (start, size) in enumerate(zip(itertools.accumulate(sizes, initial=0), sizes, strict=False)):
        place = [workers[0] if index < 4 else workers[index - 3]]
        blocks.append([
            client.scatter(part[start : start + size], workers=place, hash=False) for part in (X, y)
        ])  # fmt: skip
    wait(blocks)
    features, labels = (
        da.concatenate([da.from_delayed(block[k], (size, *part.shape[1:]), np.float32)
                        for block, size in zip(blocks, sizes, strict=True)])
        for k, part in enumerate((X, y))
    )  # fmt: skip
    readers: list[list[str]] = []
    choose: Any = balanced_owners

    def chosen(sizes: list[int], found: list[str]) -> list[str]:
        readers.append([*[workers[0]] * 4, workers[1], workers[2]])  # an idle worker may have read one of another's
        return list(choose(sizes, readers[-1]))

    monkeypatch.setattr(dask_data, "balanced_owners", chosen)
    with db.QuantizedDataset.from_dask(features, labels) as data:
        assert len(readers) == 1
        assert most_rows(sizes, data.shards.owners) == 550  # of 1,000
        assert n_moved(readers[0], list(data.shards.owners)) == 2
        model = db.train(PARAMS["regression"], data, 3)
    with db.QuantizedDataset.from_dask(X, y) as local:
        assert model == db.train(PARAMS["regression"], local, 3)
