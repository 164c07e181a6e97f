"""Milliseconds a tree takes on one and on several GPUs of one host over Dask, beside `xgboost.dask` on the same.

    python -m benchmarks.many_gpus                                   # all cases, on 1 and on 2 GPUs
    python -m benchmarks.many_gpus --gpus 1,2,4 --cases narrow,wide,forty
    python -m benchmarks.many_gpus --gpus 4 --cases billion --peer none
    python -m benchmarks.many_gpus --cases narrow --scale .001 --device cpu --gpus 1,2   # a rehearsal without a GPU
    python -m benchmarks.many_gpus --cases streamed,streamed_certified,streamed_sampled --scale .5 --peer none

A LocalCUDACluster for each number of GPUs, all at the same time; rows are made on the GPUs and persisted there as
CuPy blocks. Those of cases that stream are made when they are read, and kept as bins in the host's memory, of which
no chunk stays on a GPU; cases of the same rows, one after the other, share the bins. Contenders take turns. A run is
two fits, and its time that of the trees by which the longer one exceeds the shorter, which take a second or more, as
the starts of fits on a cluster differ by up to .2 s; what a fit costs from its rows to its first tree is measured
apart, of persisted rows once the workers have done it before. Models of ours must be the same bytes on any number of
GPUs, and score as XGBoost's do.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generators import WORKLOADS, Workload
from benchmarks.gpu_contenders import scores
from benchmarks.harness import RESULTS, Run, beside_row, comparison_rows, record, scores_agree, take_turns, timed
from benchmarks.sparse_rows import SPARSE_WORKLOADS, SparseWorkload

BLOCKS_PER_GPU = 4
"""Persisted blocks of the largest number of GPUs, each; the same blocks for fewer."""
TEST_ROWS, TEST_VALUES = 100_000, 20_000_000
BLOCK_ROWS = 1_000_000
"""Most rows of a block of cases that stream."""
LEEWAY = 0.003
"""How far the AUC of ours may be below XGBoost's."""


@dataclass(frozen=True)
class Config:
    """A case."""

    name: str
    workload: str
    n_rows: int
    n_features: int
    params: Mapping[str, Any]
    trees: int = 20
    repeats: int = 3
    peer_trees: int = 20
    """Rounds of XGBoost's, and of models that are scored."""
    peer: bool = True
    streams: bool = False
    """Whether bins stay in the host's memory, from where every pass over the rows has them anew."""
    asked: tuple[float, ...] = ()
    """Speed-up at least: of two GPUs, or `on` so many, over one; of ours over XGBoost on as many."""
    on: int = 2
    device: str = "cuda"
    scale: float = 1.0
    gpus: tuple[int, ...] = field(default=(1, 2))


LEVELS = {"max_depth": 8}
BEST_FIRST = {"max_depth": 0, "grow_policy": "lossguide", "max_leaves": 255}
CLASSES = {"max_depth": 6, "objective": "multi:softprob", "num_class": 80}
STREAMED: dict[str, Any] = {
    "workload": "higgs", "n_rows": 80_000_000, "n_features": 200, "streams": True, "peer": False, "repeats": 2,
}  # fmt: skip
SAMPLE = {"out_of_core": "certified", "resident_share": 0.25}
DRAWN = {"out_of_core": "sampled", "subsample": 0.1}
CASES = {
    case.name: case
    for case in (
        Config("narrow", "higgs", 44_000_000, 28, LEVELS, trees=1000, asked=(1.85, 4.5)),
        Config("wide", "epsilon", 400_000, 2000, LEVELS, trees=1000, asked=(1.75, 9)),
        Config("thousand", "epsilon", 1_000_000, 1000, LEVELS, trees=500),
        Config("hundred", "skewed", 30_000_000, 100, LEVELS, trees=500, asked=(1.9, 6)),
        Config("forty", "skewed", 40_000_000, 100, LEVELS, trees=500, asked=(3.6, 5), on=4),
        Config("best_first", "higgs", 44_000_000, 28, BEST_FIRST, trees=500, peer_trees=6, asked=(1.6, 100)),
        Config("symmetric", "higgs", 44_000_000, 28, {**LEVELS, "grow_policy": "symmetric"}, trees=1000, peer=False,
               asked=(1.8,)),
        Config("classes", "classes", 4_660_000, 200, CLASSES, trees=10, peer=False, asked=(1.8,)),
        Config("small", "higgs", 1_000_000, 28, {"max_depth": 6}, trees=5000, peer_trees=100, asked=(1.2,)),
        Config("tiny", "higgs", 100_000, 28, {"max_depth": 6}, trees=5000, peer=False, asked=(1.0,)),
        Config("skewed", "skewed", 40_000_000, 39, LEVELS, trees=1000, asked=(1.8, 4)),
        Config("sparse", "words", 2_000_000, 5000, LEVELS, trees=500, peer=False, asked=(1.5,)),
        Config("streamed", params={**LEVELS, "out_of_core": "exact"}, trees=5, peer_trees=5, asked=(1.9,), **STREAMED),
        Config("streamed_certified", params={**LEVELS, **SAMPLE}, trees=20, peer_trees=20, asked=(1.9,), **STREAMED),
        Config("streamed_sampled", params={**LEVELS, **DRAWN}, trees=20, peer_trees=20, **STREAMED),
        Config("billion", params={**LEVELS, **SAMPLE}, trees=10, peer_trees=10,
               **{**STREAMED, "n_rows": 1_000_000_000, "repeats": 1}),
    )
}  # fmt: skip


def workload_of(name: str, n_features: int) -> Workload | SparseWorkload:
    """Return what makes rows, of so many features where there is a choice."""
    return SPARSE_WORKLOADS[name] if name in SPARSE_WORKLOADS else WORKLOADS[name].wide(n_features)


def make_block(workload: str, n_features: int, first: int, n_rows: int, device: str) -> tuple[Any, Any]:
    """Rows of a workload in the memory of the worker's GPU."""
    if device == "cpu":
        return workload_of(workload, n_features).rows(n_rows, first=first)
    import cupy

    found = workload_of(workload, n_features).rows(n_rows, first=first, xp=cupy)
    cupy.get_default_memory_pool().free_all_blocks()
    return found


def collections(config: Config, n_blocks: int) -> tuple[Any, Any]:
    """Features and labels as Dask arrays whose blocks the workers make."""
    import dask.array as da
    from dask import delayed

    meta = np.empty((0,), np.float32)
    if config.device != "cpu":
        import cupy

        meta = cupy.empty((0,), np.float32)
    of_features = meta[:, None]
    if config.workload in SPARSE_WORKLOADS:
        of_features, _ = make_block(config.workload, config.n_features, 0, 0, config.device)
    size, features, labels = -(-config.n_rows // n_blocks), [], []
    for first in range(0, config.n_rows, size):
        n_rows = min(size, config.n_rows - first)
        block = delayed(make_block, nout=2)(config.workload, config.n_features, first, n_rows, config.device)
        features.append(da.from_delayed(block[0], (n_rows, config.n_features), meta=of_features))
        labels.append(da.from_delayed(block[1], (n_rows,), meta=meta))
    return da.concatenate(features), da.concatenate(labels)


@dataclass
class Side:
    """A library on a cluster, over persisted rows."""

    client: Any
    config: Config
    x: Any
    y: Any
    data: Any = None

    @property
    def n_trees(self) -> int:
        """Trees of the longer fit: as many as tell it from the shorter one."""
        return self.config.trees

    @property
    def params(self) -> dict[str, Any]:
        return {"objective": "binary:logistic", "learning_rate": 0.1, "device": self.config.device,
                **self.config.params}  # fmt: skip

    def open(self) -> None:
        """Quantize."""

    def train(self, n_trees: int) -> Any:
        """Return a model of so many rounds."""

    def predict(self, model: Any, x: Any) -> Any:
        """Return probabilities of host rows."""

    def start(self) -> float:
        """Seconds from persisted rows to the first tree."""
        if hasattr(self.data, "close"):
            self.data.close()
        self.data = None
        return timed(self._begin)[0]

    def _begin(self) -> None:
        self.open()
        self.train(1)

    def run(self, found: dict[str, float], test: tuple[Any, Any]) -> Run:
        """Time trees; the first model is scored."""
        n = self.n_trees
        short = max(1, n // 5)
        few = timed(lambda: self.train(short))[0]
        all_, model = timed(lambda: self.train(n))
        if not found:
            model = model if n == self.config.peer_trees else self.train(self.config.peer_trees)
            found.update(scores(test[1], np.asarray(self.predict(model, test[0]), np.float64)), **digest_of(model))
        return Run((all_ - few) / (n - short), found)


def digest_of(model: Any) -> dict[str, float]:
    """A number that tells models of ours apart; XGBoost's have none."""
    return {"model": float(int(model.digest[:12], 16))} if hasattr(model, "digest") else {}


class Ours(Side):
    """daskboost."""

    def open(self) -> None:
        from daskboost import QuantizedDataset

        self.data = QuantizedDataset.from_dask(self.x, self.y, client=self.client, device=self.config.device)

    def train(self, n_trees: int) -> Any:
        import daskboost

        return daskboost.train(self.params, self.data, num_boost_round=n_trees)

    def predict(self, model: Any, x: Any) -> Any:
        return model.predict(x, device="cpu")


BINS: dict[tuple[Any, ...], Any] = {}
"""Data sets of the last case that streams, by cluster and rows."""


def bins_of(client: Any, config: Config, x: Any, y: Any) -> Any:
    """Quantize rows where they are made, in memory that is too small for their bins: these go to the host, or to files
    where the host is the device."""
    from daskboost import QuantizedDataset

    rows = config.workload, config.n_rows, config.n_features, config.device
    for name in [name for name in BINS if name[1:] != rows]:
        BINS.pop(name).close()
    if (id(client), *rows) not in BINS:
        n_bytes = config.n_rows * config.n_features
        limits: dict[str, Any] = {
            "host_memory_limit": 1} if config.device == "cpu" else {"device_memory_limit": n_bytes // 4
        }  # fmt: skip
        BINS[id(client), *rows] = QuantizedDataset.from_dask(x, y, client=client, device=config.device, **limits)
    return BINS[id(client), *rows]


class Streamed(Ours):
    """daskboost, with nothing on the GPUs but what a fit takes beside bins; they must be joined."""

    limit: Mapping[str, int] | None = None
    """What a GPU's memory is limited to."""

    def start(self) -> float:
        return timed(self._begin)[0]

    def open(self) -> None:
        self.data = bins_of(self.client, self.config, self.x, self.y)

    @property
    def params(self) -> dict[str, Any]:
        if self.config.device == "cpu":
            return super().params
        if self.limit is None:
            self.limit = {"device_memory_limit": self._largest_limit()}
        return {"reduction": "nccl", **super().params, **self.limit}

    def _largest_limit(self) -> int:
        """Return the largest limit of a GPU's memory with which no chunk stays there."""
        from benchmarks.out_of_core_data import largest_limit
        from daskboost import plan

        given = super().params

        def keeps_none(limit: int) -> bool:
            found = plan({**given, "device_memory_limit": limit}, self.data)
            return found.fits is False or (found.resident is not None and found.resident[0] == 0)

        return largest_limit(plan(given, self.data).total_bytes, keeps_none)


class Alone(Ours):
    """daskboost without a cluster, on the first GPU."""

    def open(self) -> None:
        from daskboost import QuantizedDataset

        self.data = QuantizedDataset.from_dask(self.x, self.y, device=self.config.device)


class Xgboost(Side):
    """`xgboost.dask`."""

    @property
    def n_trees(self) -> int:
        return self.config.peer_trees

    def open(self) -> None:
        from xgboost import dask as dxgb

        with self.client.as_current():
            self.data = dxgb.DaskQuantileDMatrix(self.client, self.x, self.y, max_bin=256)

    def train(self, n_trees: int) -> Any:
        from xgboost import dask as dxgb

        params = {**self.params, "tree_method": "hist", "max_bin": 256}
        with self.client.as_current():
            return dxgb.train(self.client, params, self.data, num_boost_round=n_trees)["booster"]

    def predict(self, model: Any, x: Any) -> Any:
        import xgboost

        return model.predict(xgboost.DMatrix(x))


def open_cluster(n_gpus: int, device: str, stack: ExitStack) -> Any:
    """A client of so many workers, with a GPU each."""
    from distributed import Client

    if device == "cpu":
        from distributed import LocalCluster

        cluster = LocalCluster(n_workers=n_gpus, threads_per_worker=1, dashboard_address=":0")
    else:
        from dask_cuda import LocalCUDACluster

        cluster = LocalCUDACluster(CUDA_VISIBLE_DEVICES=list(range(n_gpus)), dashboard_address=":0")
    stack.enter_context(cluster)
    return stack.enter_context(Client(cluster, set_as_default=False))


def as_good(runs: Mapping[str, Run]) -> None:
    """Raise where the AUC of ours is below the mean of XGBoost's by more than the leeway: XGBoost's models depend on
    how many GPUs there are."""
    scored = {name: run.answer["auc"] for name, run in runs.items()}
    peers = [auc for name, auc in scored.items() if name.startswith("xgboost")]
    ours = min(auc for name, auc in scored.items() if name.startswith("daskboost"))
    if peers and ours < statistics.fmean(peers) - LEEWAY:
        raise AssertionError(f"ours score less than XGBoost's by more than {LEEWAY}: {scored}")


def rows_of(config: Config, clients: Mapping[int, Any], *, has_peer: bool, has_alone: bool) -> list[dict[str, Any]]:
    """Measure a case; its rows."""
    return list(bench(config, clients, has_peer=has_peer, has_alone=has_alone))


def bench(config: Config, clients: Mapping[int, Any], *, has_peer: bool, has_alone: bool
          ) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Give the rows of a case."""
    from distributed import wait

    sides: dict[str, Side] = {}
    kinds: dict[str, type[Side]] = {"daskboost": Streamed if config.streams else Ours}
    kinds |= {"xgboost": Xgboost} if has_peer and config.peer else {}
    n_blocks = BLOCKS_PER_GPU * max(clients)
    if config.streams:
        n_blocks = max(n_blocks, -(-config.n_rows // BLOCK_ROWS))
    for n_gpus, client in clients.items():
        with client.as_current():
            x, y = collections(config, n_blocks)
            if not config.streams:
                x, y = client.persist([x, y])
                wait([x, y])
        sides |= {f"{name} on {n_gpus}": kind(client, config, x, y) for name, kind in kinds.items()}
    if has_alone and not config.streams:
        rows = make_block(config.workload, config.n_features, 0, config.n_rows, config.device)
        sides["daskboost alone"] = Alone(None, config, *rows)
    starts: dict[str, list[float]] = {}
    for _ in range(1 if config.streams else 2):  # the first one compiles
        for name, side in sides.items():
            starts.setdefault(name, []).append(side.start())
    for name, seconds in starts.items():
        first, last = seconds[0], seconds[-1]
        print(f"  {name}: {first:.2f} s, then {last:.2f} s from rows to the first tree", flush=True)
        yield {"contender": name, "what": "start", "first_seconds": first, "seconds": last}
    n_test = min(TEST_ROWS, TEST_VALUES // config.n_features)
    x_test, y_test = workload_of(config.workload, config.n_features).rows(n_test, first=config.n_rows)
    found: dict[str, dict[str, float]] = {name: {} for name in sides}
    contenders: dict[str, Callable[[], Run]] = {
        name: partial(side.run, found[name], (x_test, y_test)) for name, side in sides.items()
    }  # fmt: skip
    warm = {name: run() for name, run in contenders.items()}
    scores_agree("model", 0.0)({name: run for name, run in warm.items() if name.startswith("daskboost")})
    if config.params.get("num_class") is None:
        as_good(warm)
    result = take_turns(contenders, config.repeats)
    yield from comparison_rows(config.name, result)
    fewest, most = min(clients), max(clients)
    pairs = [(f"daskboost on {n}", f"daskboost on {fewest}") for n in clients if n != fewest]
    pairs += [("daskboost alone", "daskboost on 1")] if "daskboost alone" in sides and 1 in clients else []
    pairs += [(f"daskboost on {n}", f"xgboost on {n}") for n in clients if f"xgboost on {n}" in sides]
    for own, other in pairs:
        row = beside_row(config.name, result, own, other)
        print(f"  {own}: {1e3 * row['seconds']:.2f} ms a tree; {other} takes {row['ratio']} times as long", flush=True)
        yield row
    spread = [run.seconds for run in result.runs[f"daskboost on {most}"]]
    yield {"contender": f"daskboost on {most}", "what": "spread", "seconds": statistics.pstdev(spread)}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--gpus", default="1,2", help="numbers of GPUs, each a cluster")
    parser.add_argument("--peer", choices=("xgboost", "none"), default="xgboost")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows")
    parser.add_argument("--trees", type=int, default=0)
    parser.add_argument("--alone", action="store_true", help="ours on one GPU without a cluster, too")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    gpus = tuple(int(n) for n in options.gpus.split(","))
    with ExitStack() as stack:
        clients = {n: open_cluster(n, options.device, stack) for n in gpus}
        for name in options.cases.split(","):
            case = CASES[name]
            config = replace(
                case, device=options.device, scale=options.scale, n_rows=int(case.n_rows * options.scale),
                trees=options.trees or case.trees, gpus=gpus,
            )  # fmt: skip
            print(f"{name}: {config.n_rows:,} x {config.n_features}", flush=True)
            measure = partial(rows_of, config, clients, has_peer=options.peer != "none", has_alone=options.alone)
            seconds, rows = timed(measure)
            about = {"case": name, "gpu": gpu_name(options.device), "case_s": round(seconds, 1)}
            record("many_gpus", config, [{**about, **row} for row in rows], options.results)


def gpu_name(device: str) -> str:
    from benchmarks.gpu_speed import gpu_name as name_of

    return name_of(device)


if __name__ == "__main__":
    main()
