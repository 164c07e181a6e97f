"""Saved data sets whose manifest says of the rows what is not so: refused, here and on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from strategies.saved_dataset import edit

from daskboost import QuantizedDataset
from daskboost.errors import DatasetFormatError

if TYPE_CHECKING:
    from distributed import Client

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(50, 2)), RNG.integers(0, 5, 50).astype(np.float32)
WEIGHT = RNG.integers(1, 4, 50).astype(np.float32)

Change = Callable[[dict[str, Any]], object]


def stat(name: str, value: object) -> Change:
    return lambda root: root["metadata"]["stats"].__setitem__(name, value)


def put(name: str, value: object) -> Change:
    return lambda root: root["metadata"].__setitem__(name, value)


def renumbered(root: dict[str, Any]) -> None:
    chunk = root["chunks"][-1]
    chunk.update(first_row=chunk["first_row"] + 5, file=f"rows-{chunk['first_row'] + 5:019d}.bin")


LIES: dict[str, tuple[Change, str]] = {
    "smaller labels": (stat("maximum", 2.0), r"metadata.stats are .*maximum=2.0.* but the rows have .*maximum=4.0"),
    "larger labels": (stat("minimum", -1.0), "but the rows have"),
    "no labels": (lambda root: root["metadata"]["stats"].update(minimum="inf", maximum="-inf"), "but the rows have"),
    "fractions": (stat("all_integer", False), "but the rows have"),
    "lighter rows": (stat("max_weight", 1e-9), "but the rows have"),
    "rows that count": (stat("positive_weight_rows", 3), "but the rows have"),
    "no rows that count": (stat("positive_weight_rows", 0), "not what daskboost writes: DataError"),
    "rows": (stat("n_rows", 49), "not what daskboost writes: .*n_entries is 100, not from 0 to 98"),
    "more rows": (stat("n_rows", 51), "the manifest has 51 rows, its chunks have 50"),
    "entries": (put("n_entries", 10**400), "n_entries is 10+.*not from 0 to 100"),
    "bins": (put("max_bin", 2**40), "max_bin is .*not from 2 to 65535"),
    "rows of a chunk": (put("chunk_rows", -3), "chunk_rows is -3, not from 1 to"),
    "sizes": (put("feature_sizes", {"n_features": [10**9], "n_entries": [1]}), "more than 50 rows of 2 features"),
    "a long reason": (put("n_entries", "x" * 10**6), "not what daskboost writes"),
    "numbers of rows": (renumbered, "rows are not numbered from 0 to 49|rows-.* is missing"),
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with QuantizedDataset.from_dask(X, Y, weight=WEIGHT, chunk_rows=20) as data:
        data.save(tmp_path / "d")
    return tmp_path / "d"


@pytest.mark.parametrize("name", LIES)
def test_a_manifest_that_lies_is_refused(saved: Path, name: str) -> None:
    change, message = LIES[name]
    edit(saved, change)
    with pytest.raises(DatasetFormatError, match=message) as caught:
        QuantizedDataset.open(saved)
    assert len(str(caught.value)) < 1000


def test_workers_find_lies_too(saved: Path, cluster_client: Client) -> None:
    with QuantizedDataset.open(saved, client=cluster_client) as opened:
        assert opened.n_rows == 50
    edit(saved, LIES["smaller labels"][0])
    with pytest.raises(DatasetFormatError, match=r"metadata\.stats are"):
        QuantizedDataset.open(saved, client=cluster_client)


def test_rows_that_were_moved_are_refused(saved: Path) -> None:
    edit(saved, renumbered)
    last = sorted(saved.glob("rows-*"))[-1]
    last.rename(last.with_name(f"rows-{45:019d}.bin"))
    with pytest.raises(DatasetFormatError, match="the chunks' rows are not numbered from 0 to 49"):
        QuantizedDataset.open(saved)
