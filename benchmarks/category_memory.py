"""Target statistics of columns of millions of levels within a limit of memory: 20M rows x 8 columns, 4 GB.

    python -m benchmarks.category_memory                       # writes the Parquet once, under --folder
    python -m benchmarks.category_memory --rows 2000000 --way dask

Half of the columns are texts, half integers; levels of low numbers are frequent, and the label depends on all columns.
A fresh process quantizes the rows with `host_memory_limit` and trains a few trees. Watched all along: the resident
memory of it and of all processes that it starts, together. `--way dask` reads the rows as a Dask collection, with one
worker in a process of its own. Exit status 1 if the peak is past the limit or the model learned nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import RESULTS, record, timed

WAYS = ("process", "dask")
"""From a path in one process, or from a Dask collection on a cluster of one worker."""
LEAST_AUC = 0.55
"""What a model reaches that has learned something of rows that it has not seen."""


@dataclass(frozen=True)
class Config:
    """The data, and what is allowed."""

    n_rows: int = 20_000_000
    n_levels: tuple[int, ...] = (10_000_000, 10_000_000, 3_000_000, 3_000_000, 1_000_000, 1_000_000, 10_000, 10_000)
    """Levels that each column may have, one of texts and one of integers in turn."""
    file_rows: int = 500_000
    """Rows of a file, which is a partition."""
    trees: int = 5
    max_depth: int = 6
    threads: int = 2
    limit_bytes: int = 4_000_000_000
    way: str = "process"


def parquet(config: Config, folder: Path) -> Path:
    """Folder of the training rows, written file by file unless it is already there."""
    import pyarrow.parquet as pq

    path = folder / f"categories_{config.n_rows}x{len(config.n_levels)}_by_{config.file_rows}"
    path.mkdir(parents=True, exist_ok=True)
    for number, first in enumerate(range(0, config.n_rows, config.file_rows)):
        file = path / f"part-{number:05d}.parquet"
        if not file.exists():
            rows = table(config, number, min(config.file_rows, config.n_rows - first))
            pq.write_table(rows, file.with_suffix(".tmp"), compression="zstd")
            file.with_suffix(".tmp").rename(file)
    return path


def table(config: Config, number: int, n_rows: int) -> Any:
    """The rows of one file as Arrow's table."""
    import pyarrow as pa
    from pyarrow import compute

    random = np.random.default_rng([24, number])
    columns: dict[str, Any] = {}
    margin = random.standard_normal(n_rows)
    for place, most in enumerate(config.n_levels):
        levels = (most * random.random(n_rows) ** 2).astype(np.int64)
        mixed = levels.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # distinct, and in no order
        margin += ((mixed >> np.uint64(40)) % np.uint64(1000) / 999.0 - 0.5) * 2
        integers = pa.array((mixed >> np.uint64(1)).view(np.int64) if place % 2 else (levels * 7919) % (1 << 40))
        if place % 2:
            columns[f"number_{place}"] = integers
        else:
            columns[f"text_{place}"] = compute.binary_join_element_wise("id", integers.cast(pa.string()), "-")
    return pa.table({**columns, "label": (margin > 0).astype(np.float32)})


class Watch:
    """A thread that samples the resident memory of this process and of those that it has started."""

    def __init__(self, interval_s: float = 0.02) -> None:
        self._interval_s, self._peak, self._end = interval_s, 0, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._end.wait(self._interval_s):
            self._peak = max(self._peak, self._now())

    def _now(self) -> int:
        import psutil

        own, total = psutil.Process(), 0
        for process in (own, *own.children(recursive=True)):
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total

    def peak_mb(self) -> float:
        """Return the largest memory since it was last asked for."""
        found, self._peak = max(self._peak, self._now()), 0
        return round(found / 1e6, 1)


def bench_once(config: Config, path: Path) -> dict[str, Any]:
    """Quantize and train; times, peaks of memory, and the score on rows that were not seen."""
    from sklearn.metrics import roc_auc_score

    from benchmarks import ours
    from daskboost import QuantizedDataset, train

    integers = [f"number_{place}" for place in range(1, len(config.n_levels), 2)]
    with ExitStack() as opened:
        watch = opened.enter_context(Watch())
        rows: Any = str(path)
        if config.way == "dask":
            import dask.dataframe as dd
            from distributed import Client, LocalCluster

            cluster = opened.enter_context(LocalCluster(
                n_workers=1, threads_per_worker=config.threads, memory_limit=config.limit_bytes, dashboard_address=":0"
            ))  # fmt: skip
            opened.enter_context(Client(cluster))
            rows = dd.read_parquet(path)
        start_mb = watch.peak_mb()
        quantize_s, dataset = timed(lambda: QuantizedDataset.from_dask(
            rows, "label", categorical_features=integers, n_jobs=config.threads, host_memory_limit=config.limit_bytes
        ))  # fmt: skip
        quantize_mb = watch.peak_mb()
        params = {"objective": "binary:logistic", "max_depth": config.max_depth, "device": "cpu",
                  "n_jobs": config.threads}  # fmt: skip
        train_s, booster = timed(lambda: train(params, dataset, num_boost_round=config.trees))
        train_mb = watch.peak_mb()
        later = table(config, -(-config.n_rows // config.file_rows), min(config.n_rows, 50_000))
        scores = ours.predict(booster, later.drop_columns(["label"]))
        encoder = booster.schema.encoder
        return {
            "case": config.way, "quantize_s": round(quantize_s, 2), "train_s": round(train_s, 2),
            "auc": float(roc_auc_score(later.column("label").to_numpy(), scores)),
            "n_features": booster.n_features,
            "kept_levels": [own.levels.n_levels for own in encoder.encoders],
            "pooled_levels": [own.levels.n_pooled_levels for own in encoder.encoders],
            "start_mb": start_mb, "quantize_peak_mb": quantize_mb, "train_peak_mb": train_mb,
            "predict_peak_mb": watch.peak_mb(),
        }  # fmt: skip


def holds(config: Config, row: dict[str, Any]) -> bool:
    """Whether a fit has kept to the limit; AssertionError if the model learned nothing."""
    if row["auc"] < LEAST_AUC:
        raise AssertionError(f"the model learned nothing: AUC {row['auc']}")
    return bool(max(row["quantize_peak_mb"], row["train_peak_mb"]) * 1e6 <= config.limit_bytes)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=Config.n_rows)
    parser.add_argument("--way", choices=WAYS, default=Config.way)
    parser.add_argument("--limit-bytes", type=int, default=Config.limit_bytes)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "daskboost-benchmarks")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    config = Config(n_rows=options.rows, way=options.way, limit_bytes=options.limit_bytes)
    written_s, path = timed(lambda: parquet(config, options.folder))
    print(f"data in {path} ({written_s:.0f} s)", flush=True)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        row = fresh.submit(bench_once, config, path).result()
    row["holds"] = holds(config, row)
    record("category_memory", config, [row], options.results)
    print(row)
    return 0 if row["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
