"""Plans of fits whose chunks stream in groups: larger ones where there is room, none that makes a fit fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kernels.tracked import TrackedRuntime
from strategies.streams import bytes_of_twos, noted_groups, stream_by_twos
from training.test_device_memory_limit import HOST, PARAMS, chunked, rows, runtime

from daskboost import plan, train
from daskboost.devices.budget import set_size as stream_groups

__all__ = ["rows", "runtime"]


@pytest.mark.emulated
@pytest.mark.parametrize("more", [{}, {"out_of_core": "certified"}], ids=["exact", "certified"])
def test_groups_stay_within_their_plan(
    more: dict[str, Any], rows: dict[str, Any], runtime: TrackedRuntime, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of chunks in RAM and on disk."""
    given = {**PARAMS, "max_depth": 3, **more}
    with chunked(rows, host_memory_limit=70_000, spill_directory=tmp_path) as dataset:
        least = plan({**given, "device_memory_limit": 1}, dataset).total_bytes
        stream_by_twos(monkeypatch, dataset)
        noted = noted_groups(monkeypatch)
        assert plan({**given, "device_memory_limit": least}, dataset).ring_bytes < bytes_of_twos(dataset) * 2
        limit = least + 2 * bytes_of_twos(dataset) + 700 * 40
        planned = plan({**given, "device_memory_limit": limit}, dataset)
        assert planned.resident in ((0,), (1,))
        assert planned.stream_bytes == bytes_of_twos(dataset)
        model = train({**given, "device_memory_limit": limit}, dataset, 1).to_bytes()
        assert 0.65 * planned.total_bytes <= runtime.meter.peak_bytes <= planned.total_bytes
        assert runtime.meter.pool.total_bytes <= planned.total_bytes
        assert runtime.pinned_peak_bytes == planned.host_pinned_bytes
        assert max(noted[0]) == 2
        assert model == train({**given, **HOST}, dataset, 1).to_bytes()


@pytest.mark.parametrize(("more", "passes"), [
    ({}, 3), ({"out_of_core": "sampled", "subsample": 0.2}, 1),
    ({"out_of_core": "certified", "certify_tolerance": 1.0}, 1),
    ({"max_depth": 0, "max_leaves": 5, "grow_policy": "lossguide"}, None),
], ids=["exact", "sampled", "certified", "lossguide"])  # fmt: skip
def test_plans_say_what_is_read_how_often(
    more: dict[str, Any], passes: int | None, rows: dict[str, Any], tmp_path: Path
) -> None:
    """Of files: as often as a tree has levels, exactly; of trees on samples, where none is grown again."""
    given = {**PARAMS, "max_depth": 3, **more, **HOST}
    with chunked(rows, host_memory_limit=70_000, spill_directory=tmp_path) as dataset:
        (shard,) = dataset.shards.shards
        on_disk = [entry for entry in shard.entries if shard.store.residency(entry.handle) == "disk"]
        reads = []
        for n_trees in (1, 3):
            before = shard.store.counters().disk_reads
            train(given, dataset, n_trees)
            reads.append((shard.store.counters().disk_reads - before) // len(on_disk))
        planned = plan(given, dataset).reads
        assert planned is not None
        assert (planned.ram_bytes, planned.passes) == (0, passes)
        assert planned.disk_bytes == sum(entry.handle.nbytes for entry in on_disk)
        assert passes is None or reads[1] - reads[0] == 2 * passes
        assert f"{'read in every pass, from disk':<34}{planned.disk_bytes:>18,}" in str(plan(given, dataset))
        assert f"{'passes of a tree, about':<34}{passes or 'as it grows':>18}" in str(plan(given, dataset))
    with chunked(rows) as dataset:
        assert plan(given, dataset).reads is None


def test_a_gpus_plan_says_what_streams() -> None:
    """From RAM and from files; what stays is not read again."""
    shape: dict[str, Any] = {"n_rows": 80_000_000, "n_features": 200, "memory": "140GB"}
    whole = plan({**PARAMS, "max_bin": 256}, **shape)
    assert whole.reads is None
    given = {**PARAMS, "max_bin": 256, "max_depth": 8, "device_memory_limit": "10GB"}
    planned = plan(given, **shape)
    assert planned.reads is not None
    assert planned.reads.passes == 8
    assert planned.reads.ram_bytes + planned.chunks_bytes == pytest.approx(16e9, rel=0.01)
    given |= {"host_memory_limit": "4GB", "spill_directory": "somewhere"}
    partly = plan(given, **shape)
    assert partly.reads is not None
    assert partly.reads.ram_bytes > 0
    assert partly.reads.disk_bytes > 0


def test_groups_make_no_fit_fail_and_leave_room_for_chunks_that_stay() -> None:
    shape: dict[str, Any] = {"n_rows": 80_000_000, "n_features": 200, "memory": "140GB"}
    given = {**PARAMS, "max_bin": 256}
    least = plan({**given, "device_memory_limit": 1}, **shape)
    assert least.stream_bytes < 2**26, "one chunk at a time"
    chunk_bytes, before = least.ring_bytes // 3, least.stream_bytes
    for more in range(0, 30, 2):
        found = plan({**given, "device_memory_limit": least.total_bytes + more * chunk_bytes}, **shape)
        assert found.fits
        assert found.stream_bytes >= before
        assert found.resident is not None
        assert found.resident[0] == 0 or found.stream_bytes == stream_groups.GROUP_BYTES
        before = found.stream_bytes
    assert found.resident is not None
    assert found.resident[0] > 5
    assert found.ring_bytes == pytest.approx(3 * 4 * chunk_bytes, rel=1e-3)
    few = plan({**given, "device_memory_limit": "330MB"}, n_rows=1_200_000, n_features=200, memory="140GB")
    assert few.resident is not None and few.resident[0] > 1 and few.stream_bytes < 2**26, "few chunks come alone"


def test_what_would_take_longest_to_stream_stays() -> None:
    """Files of evaluation sets before chunks in RAM that are read less than eight times as often."""
    shape: dict[str, Any] = {"n_rows": 30_000_000, "n_features": 200, "evals": [10_000_000], "memory": "20GB"}
    given = {**PARAMS, "max_bin": 256, "host_memory_limit": "1.5GB"}  # of 6 GB, of which 44 chunks are in RAM, and 2 GB
    files_first, rows_first = [(0, 135), (1, 60), (0, 44)], [(0, 179), (1, 60)]
    for more, parts in (
        ({"max_depth": 8}, rows_first), ({"max_depth": 7}, files_first),
        ({"max_depth": 8, "out_of_core": "certified"}, files_first),
    ):  # fmt: skip
        for limit in ("6GB", "8GB", "8.8GB", "9.3GB"):
            kept = plan({**given, **more, "device_memory_limit": limit}, **shape).resident
            assert kept is not None
            expected, left = [0, 0], sum(kept)
            for number, n_chunks in parts:
                expected[number] += min(left, n_chunks)
                left -= min(left, n_chunks)
            assert kept == tuple(expected)
        assert expected[1] > 0
