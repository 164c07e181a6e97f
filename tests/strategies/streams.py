"""Data sets whose chunks come to a GPU several at a time, though they are small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from daskboost import QuantizedDataset
from daskboost.data.chunks.chunk_stream import StreamedChunks
from daskboost.devices.budget import gpu_plans as plans
from daskboost.devices.budget import set_size as stream_groups
from daskboost.devices.budget.plan import FitSize
from daskboost.engine import chunk_views
from daskboost.engine.fit_size import EnginePlace, engine_size
from daskboost.fit.spec import FitSpec
from daskboost.local import in_process, together


def bytes_of_twos(dataset: QuantizedDataset) -> int:
    """Of groups of two of a data set's chunks, which are of one size but for the last."""
    sizes: list[int] = [entry.handle.nbytes for shard in dataset.shards.shards for entry in shard.entries]
    return 2 * max(sizes) + stream_groups.ALIGNMENT


def stream_by_twos(monkeypatch: pytest.MonkeyPatch, dataset: QuantizedDataset) -> None:
    """From now on its chunks stream by twos where a plan has room for that, however few they are."""
    monkeypatch.setattr(stream_groups, "GROUP_BYTES", bytes_of_twos(dataset))
    monkeypatch.setattr(plans, "GROUPS_SHARE", 0.01)


def keep_on_gpu(monkeypatch: pytest.MonkeyPatch, n_chunks: int) -> None:
    """From now on so many chunks of training sets stay on a GPU, and none of evaluation sets, whatever room it has."""
    for module in (in_process, together):
        monkeypatch.setattr(module, "engine_size", size_with(n_resident=n_chunks))


def size_with(**decided: Any) -> Callable[..., FitSize]:
    """`engine_size` of fits for which this is decided beforehand, see `EnginePlace`."""
    def sized(spec: FitSpec, train: Any, evals: Any, place: EnginePlace = EnginePlace()) -> FitSize:  # noqa: B008
        return engine_size(spec, train, evals, replace(place, **decided))

    return sized


def noted_groups(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Gains the numbers of chunks of the groups of each set that is streamed to a GPU."""
    noted: list[list[int]] = []

    class Noting(StreamedChunks):
        def __init__(self, store: Any, groups: Any, allocate: Any, *, once: bool = False) -> None:
            if not once:  # else they come to stay
                noted.append([len(group) for group in groups])
            super().__init__(store, groups, allocate, once=once)

    monkeypatch.setattr(chunk_views, "StreamedChunks", Noting)
    return noted
