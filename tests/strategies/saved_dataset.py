"""A small saved data set, and a way to tamper with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from daskboost.data.chunks.packing import Encoding, Layout, Packing, choose_layout
from daskboost.data.chunks.shard import Shard, ShardBuilder
from daskboost.data.chunks.store import ChunkStore
from daskboost.data.cuts.cut_points import Cuts
from daskboost.data.input.row_batch import DenseRows, FeatureSchema
from daskboost.data.input.row_columns import ChunkRows, RowBatch, RowColumns
from daskboost.data.saved.manifest import digest
from daskboost.data.saved.shard_files import DatasetWriter, open_chunks, read_dataset, write_chunk_files

CUTS = Cuts(np.array([-1, 0, 1, 0.5], np.float32), np.array([0, 3, 4, 4], np.int32), np.array([True, True, False]))
SCHEMA = FeatureSchema(("a", "b", "ö"), ("float", "int", "i"))
N_ROWS = 40


def layout_for(encoding: Encoding, packing: Packing) -> Layout:
    return choose_layout(CUTS, CUTS.has_missing, n_rows=40, n_entries=99, encoding=encoding, packing=packing)


def batch(n_rows: int = N_ROWS, seed: int = 0) -> RowBatch:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n_rows, 3)).astype(np.float32)
    values[:, :2][rng.random((n_rows, 2)) < 0.3] = np.nan
    label, weight, margin = rng.random(n_rows), rng.random(n_rows), rng.normal(size=(n_rows, 2))
    numbers = {"label": label, "weight": weight, "base_margin": margin}
    beside = {name: array.astype(np.float32) for name, array in numbers.items()}
    return RowBatch(DenseRows(values), RowColumns(**beside, qid=rng.integers(-(2**63), 2**63 - 1, n_rows)))


def save(
    path: Path, encoding: Encoding = "dense", packing: Packing = "tight", chunk_rows: int = 15, **options: Any
) -> Layout:
    layout = layout_for(encoding, packing)
    with ChunkStore() as store:
        shard = build_shard([(0, batch())], CUTS, layout, chunk_rows, store)
        write_dataset(path, CUTS, SCHEMA, layout, [shard], **options)
    return layout


def build_shard(batches: Iterable[tuple[int, RowBatch]], cuts: Cuts, layout: Layout, chunk_rows: int, store: ChunkStore
                ) -> Shard:  # fmt: skip
    """Quantize batches given with the global ids of their first rows."""
    with ShardBuilder(cuts, layout, chunk_rows, store) as builder:
        for first_row, each in batches:
            builder.add(first_row, each)
            del each  # a generator makes the next one then
        return builder.finish()


def write_dataset(path: Path, cuts: Cuts, schema: FeatureSchema, layout: Layout, shards: Sequence[Shard],
                  metadata: dict[str, Any] | None = None, overwrite: bool = False) -> None:  # fmt: skip
    """Save a data set of shards that are all at hand, as a cluster's engines do."""
    with DatasetWriter(path, overwrite) as writer:
        chunks = [record for shard in shards for record in write_chunk_files(writer.directory, shard)]
        writer.commit(cuts, schema, layout, chunks, metadata)


def read_all(path: Path) -> list[ChunkRows]:
    return [rows for _, rows in open_chunks(read_dataset(path))]


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest as someone would who also mends its digest."""
    manifest = json.loads((path / "manifest.json").read_bytes())
    change(manifest)
    text = json.dumps(manifest).encode()
    (path / "manifest.json").write_bytes(text)
    (path / "manifest.blake2b").write_bytes(digest(text))
