"""The sample that a pass draws: rows by their hashes, wherever they lie, with what they have at the time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cluster.test_certified import is_sampled
from cluster.test_same_bytes import gpu
from strategies.trees import make_data, quantized

from daskboost.devices.budget.cpu_memory import sample_rows
from daskboost.devices.gpu.runtime.launches import to_host
from daskboost.engine import certifying
from daskboost.engine.certifying import CertifiedTrees
from daskboost.training.train import train

__all__ = ["gpu"]
SHARE = 0.3


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, dict[str, Any]]]:
    """Keys of what engines draw, and the rows that each has drawn, in numpy's arrays."""
    found: list[tuple[int, dict[str, Any]]] = []

    drawing = CertifiedTrees._drawing

    def watched(self: CertifiedTrees, key: int | None) -> Iterator[Any]:
        yield from drawing(self, key)
        if key is None:
            return
        rows, every = self._sample.gradients.rows.train, self._sets.train
        for group, margin in zip(rows.groups, rows.margins, strict=True):
            own: dict[str, Any] = {
                "ids": group.pieces, "label": group.rows.label, "weight": group.rows.weight, "margin": margin
            }  # fmt: skip
            all_margins = np.concatenate([to_host(each) for each in every.margins])
            all_ids = np.concatenate([
                np.arange(first, first + part.stop - part.start)
                for each in every.groups for part, first in each.parts()
            ])  # fmt: skip
            found.append((key, {name: to_host(values).copy() for name, values in own.items()} | {
                "all_margins": all_margins.copy(), "all_ids": all_ids
            }))  # fmt: skip

    monkeypatch.setattr(CertifiedTrees, "_drawing", watched)
    return found


@pytest.mark.parametrize("partitions", [1, 5])
def test_rows_come_with_what_they_have(samples: list[tuple[int, dict[str, Any]]], partitions: int) -> None:
    check_samples(samples, "cpu", partitions)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("partitions", [1, 5])
def test_gpu(samples: list[tuple[int, dict[str, Any]]], partitions: int) -> None:
    check_samples(samples, "cuda", partitions)


def check_samples(samples: list[tuple[int, dict[str, Any]]], device: str, partitions: int) -> None:
    """Those of a fit of three rounds."""
    data = make_data(np.random.default_rng(3), "binary:logistic", 11_003, 5)
    params = {"objective": "binary:logistic", "max_depth": 3, "out_of_core": "certified", "resident_share": SHARE,
              "device": device, "n_jobs": 2, "random_state": 5}  # fmt: skip
    with quantized(data, partitions=partitions) as dataset:
        train(params, dataset, 3)
    assert len({key for key, _ in samples}) == len(samples) == 4
    for key, rows in samples:
        ids = rows["ids"].astype(np.int64)
        assert (ids == np.flatnonzero(is_sampled(key, SHARE, np.arange(len(data.y), dtype=np.uint64)))).all()
        assert (rows["label"] == data.y[ids]).all()
        assert data.weight is not None and (rows["weight"] == data.weight[ids]).all()
        order = np.argsort(rows["all_ids"])
        assert (rows["margin"] == rows["all_margins"][order][ids]).all()
    first, *_, last = samples
    assert (first[1]["margin"] == first[1]["margin"][0]).all() and not (last[1]["margin"] == last[1]["margin"][0]).all()


def test_a_sample_may_have_more_rows_than_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any round: memory grows with all that goes with the rows."""
    data, models = make_data(np.random.default_rng(4), "multi:softprob", 5_003, 4), []
    params = {"objective": "multi:softprob", "num_class": 5, "max_depth": 3, "out_of_core": "certified", "n_jobs": 1,
              "device": "cpu", "certify_tolerance": 0.01}  # fmt: skip
    for expected in (sample_rows, lambda *_: 10):
        monkeypatch.setattr(certifying, "sample_rows", expected)
        with quantized(data, partitions=3) as dataset:
            models.append(train(params, dataset, 4).to_bytes())
    assert models[0] == models[1]
