"""Training on far more data than the workers have memory: 20M x 50 float32 (4 GB of Parquet), 2 workers of 1 GB each.

    python -m benchmarks.memory                       # writes the Parquet once, under --folder
    python -m benchmarks.memory --rows 2000000        # a tenth of it

Two threads per worker quantize and train 5 trees. Watched all along: the resident memory of every worker process,
pauses (a worker past its limit stops taking work) and restarts (the nanny kills it). Exit status 1 if a worker paused,
was restarted or went past `Config.peak_allowed_mb`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import ours
from benchmarks.generators import WORKLOADS, Workload
from benchmarks.harness import record, timed


@dataclass(frozen=True)
class Config:
    """The data, the cluster and what is allowed."""

    n_rows: int = 20_000_000
    n_features: int = 50
    file_rows: int = 250_000
    """Rows of a file, which is a partition: 50 MB."""
    trees: int = 5
    max_depth: int = 6
    workers: int = 2
    threads: int = 2
    memory_limit: str = "1GB"
    peak_allowed_mb: float = 700.0


def parquet(config: Config, folder: Path) -> Path:
    """Folder of the training rows, written piece by piece unless it is already there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / f"higgs_{config.n_rows}x{config.n_features}_by_{config.file_rows}"
    path.mkdir(parents=True, exist_ok=True)
    names = [f"f{j}" for j in range(config.n_features)]
    for number in range(-(-config.n_rows // config.file_rows)):
        file = path / f"part-{number:05d}.parquet"
        if file.exists():
            continue
        first = number * config.file_rows
        x, y = _workload(config).rows(min(config.file_rows, config.n_rows - first), first=first)
        table = pa.table({**{name: x[:, j] for j, name in enumerate(names)}, "label": y})
        pq.write_table(table, file.with_suffix(".tmp"), compression="zstd", use_dictionary=False)
        file.with_suffix(".tmp").rename(file)
    return path


def _workload(config: Config) -> Workload:
    return WORKLOADS["higgs"].wide(config.n_features)


@dataclass
class Watch:
    """A thread that samples the workers of a LocalCluster until the context ends."""

    cluster: Any
    interval_s: float = 0.02
    peak_mb: dict[int, float] = field(default_factory=dict)
    """Largest resident memory seen, per process id of a worker."""
    pauses: int = 0
    """Times that a worker went from running to paused."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def _sample(self) -> None:
        import psutil

        paused: set[str] = set()
        while not self._stop.wait(self.interval_s):
            now = {a for a, w in dict(self.cluster.scheduler.workers).items() if w.status.name == "paused"}
            self.pauses += len(now - paused)
            paused = now
            for nanny in list(self.cluster.workers.values()):
                if nanny.pid is None:
                    continue
                try:
                    resident = psutil.Process(nanny.pid).memory_info().rss / 1e6
                except psutil.NoSuchProcess:
                    continue  # being restarted: its successor has another id
                self.peak_mb[nanny.pid] = max(self.peak_mb.get(nanny.pid, 0.0), resident)


def bench_once(config: Config, path: Path) -> dict[str, Any]:
    """Quantize and train; times, score on unseen rows and what the workers went through."""
    import dask.dataframe as dd
    from distributed import Client, LocalCluster
    from sklearn.metrics import roc_auc_score

    from daskboost import QuantizedDataset, train

    with (
        LocalCluster(
            n_workers=config.workers,
            threads_per_worker=config.threads,
            memory_limit=config.memory_limit,
            dashboard_address=":0",
        ) as cluster,
        Client(cluster),
        Watch(cluster) as watch,
    ):
        frame = dd.read_parquet(path)
        features = [name for name in frame.columns if name != "label"]
        quantize_s, dataset = timed(lambda: QuantizedDataset.from_dask(frame[features], frame["label"], max_bin=256))
        params = {"objective": "binary:logistic", "max_depth": config.max_depth, "device": "cpu"}
        train_s, booster = timed(lambda: train(params, dataset, num_boost_round=config.trees))
    x, y = _workload(config).rows(50_000, first=config.n_rows)
    return {
        "quantize_s": round(quantize_s, 2),
        "train_s": round(train_s, 2),
        "auc": float(roc_auc_score(y, ours.predict(booster, x))),
        "peak_mb": [round(mb, 1) for mb in watch.peak_mb.values()],
        "pauses": watch.pauses,
        "restarts": len(watch.peak_mb) - config.workers,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=Config.n_rows)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "daskboost-benchmarks")
    options = parser.parse_args()
    config = Config(n_rows=options.rows)
    written_s, path = timed(lambda: parquet(config, options.folder))
    print(f"data in {path} ({written_s:.0f} s)", flush=True)
    row = bench_once(config, path)
    record("memory", config, [row])
    print(row)
    if row["auc"] < 0.6:
        raise AssertionError(f"the model learned nothing: AUC {row['auc']}")
    fine = not row["pauses"] and not row["restarts"] and max(row["peak_mb"]) <= config.peak_allowed_mb
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
