"""What a tree takes on two workers whose link is slow, beside what its bytes and its work take.

    sudo python -m benchmarks.slow_link                     # 1 Gbit/s, 1M x 100, depth 6; Linux, for root
    sudo python -m benchmarks.slow_link --rows 100000 --features 28 --gbits 1,.1

Workers run in network namespaces of their own, joined by a bridge to this process, which has the scheduler, and each
has a /dev/shm of its own, as on two hosts. `tc` limits what each sends. The time of a tree is that by which a longer
fit exceeds a shorter one, the bytes are those that the busiest link carries meanwhile in one direction; the least that
a tree could take is taken to be its time without a limit and its bytes after that.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, Run, comparison_rows, record, scores_agree, take_turns, timed
from benchmarks.many_gpus import Config as Rows
from benchmarks.many_gpus import collections, digest_of

NAMES = ("slow0", "slow1")
BRIDGE, NETWORK = "slowbr", "10.213.7"
ASKED = 1.5
"""The time of a tree over the least, at the most."""
BURST, LATENCY = "256kb", "50ms"


@dataclass(frozen=True)
class Config:
    """A case."""

    n_rows: int = 1_000_000
    n_features: int = 100
    depth: int = 6
    workload: str = "higgs"
    reduction: str = "auto"
    short: int = 2
    trees: int = 8
    repeats: int = 3


def call(*words: str) -> None:
    """Run a command of the system."""
    subprocess.run(words, check=True)


@contextmanager
def links() -> Iterator[None]:
    """Two network namespaces, each with a link to a bridge of this one."""
    with ExitStack() as made:
        call("ip", "link", "add", BRIDGE, "type", "bridge")
        made.callback(call, "ip", "link", "del", BRIDGE)
        call("ip", "addr", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        call("ip", "link", "set", BRIDGE, "up")
        for number, name in enumerate(NAMES):
            call("ip", "netns", "add", name)
            made.callback(call, "ip", "netns", "del", name)
            call("ip", "link", "add", name, "type", "veth", "peer", "name", "inner", "netns", name)
            call("ip", "link", "set", name, "master", BRIDGE, "up")
            inside = ("ip", "-n", name)
            call(*inside, "addr", "add", f"{NETWORK}.{number + 2}/24", "dev", "inner")
            call(*inside, "link", "set", "inner", "up")
            call(*inside, "link", "set", "lo", "up")
        yield


def limit(gbits: float | None) -> None:
    """Let each worker send so many gigabits a second, or as many as it can."""
    for name in NAMES:
        control = ("ip", "netns", "exec", name, "tc", "qdisc")
        subprocess.run((*control, "del", "dev", "inner", "root"), check=False, stderr=subprocess.DEVNULL)
        if gbits is not None:
            rate = f"{round(1e3 * gbits)}mbit"
            call(*control, "add", "dev", "inner", "root", "tbf", "rate", rate, "burst", BURST, "latency", LATENCY)


def carried() -> tuple[int, ...]:
    """Return the bytes that the links have carried, from and to each worker."""
    folders = [Path(f"/sys/class/net/{name}/statistics") for name in NAMES]
    return tuple(int((folder / f"{way}_bytes").read_text()) for folder in folders for way in ("rx", "tx"))


@contextmanager
def workers(address: str) -> Iterator[None]:
    """Worker processes of one thread, each in a namespace of its own, until the end."""
    started = []
    try:
        for name in NAMES:
            worker = f"{sys.executable} -m distributed.cli.dask_worker {address} --nthreads 1 --no-dashboard --no-nanny"
            words = ("ip", "netns", "exec", name, "unshare", "-m", "sh", "-c",
                     f"mount -t tmpfs tmpfs /dev/shm && exec {worker}")  # fmt: skip
            started.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)


class Fits:
    """Fits over rows that lie on the workers, with a limit to what these send."""

    def __init__(self, config: Config, data: Any, gbits: float | None) -> None:
        self._config, self._data, self._gbits = config, data, gbits
        self.tree_bytes = 0.0
        """Of the busiest direction of the last run, a tree."""

    def train(self, n_trees: int) -> Any:
        import daskboost

        config = self._config
        params = {
            "objective": "binary:logistic", "max_depth": config.depth, "reduction": config.reduction, "device": "cpu",
        }  # fmt: skip
        return daskboost.train(params, self._data, num_boost_round=n_trees)

    def run(self) -> Run:
        config = self._config
        limit(self._gbits)
        before = carried()
        few, _ = timed(partial(self.train, config.short))
        between = carried()
        all_, model = timed(partial(self.train, config.trees))
        after, more = carried(), config.trees - config.short
        self.tree_bytes = max(c - 2 * b + a for a, b, c in zip(before, between, after, strict=True)) / more
        return Run((all_ - few) / more, digest_of(model))


def bench(config: Config, speeds: Sequence[float]) -> list[dict[str, Any]]:
    """Measure a case; its rows."""
    from distributed import Client, LocalCluster, wait

    from daskboost import QuantizedDataset

    with ExitStack() as stack:
        stack.enter_context(links())
        cluster = LocalCluster(n_workers=0, host=f"{NETWORK}.1", dashboard_address=":0", protocol="tcp")
        stack.enter_context(cluster)
        client = stack.enter_context(Client(cluster.scheduler_address))
        stack.enter_context(workers(cluster.scheduler_address))
        client.wait_for_workers(len(NAMES), timeout=60)
        rows = Rows("slow", config.workload, config.n_rows, config.n_features, {}, device="cpu")
        x, y = client.persist(collections(rows, 2 * len(NAMES)))
        wait([x, y])
        data = stack.enter_context(QuantizedDataset.from_dask(x, y, client=client))
        sides = {"unlimited": Fits(config, data, None)} | {
            f"{speed:g} Gbit/s": Fits(config, data, speed) for speed in speeds
        }
        contenders = {name: side.run for name, side in sides.items()}
        scores_agree("model", 0.0)({name: run() for name, run in contenders.items()})
        result = take_turns(contenders, config.repeats)
        found = list(comparison_rows("slow_link", result))
        free_s = result.seconds("unlimited")
        for speed in speeds:
            name = f"{speed:g} Gbit/s"
            n_bytes, seconds = sides[name].tree_bytes, result.seconds(name)
            least_s = free_s + 8 * n_bytes / (1e9 * speed)
            print(
                f"  {name}: {1e3 * seconds:.0f} ms a tree, {1e3 * free_s:.0f} without a limit, {n_bytes / 1e6:.2f} MB "
                f"a tree: {seconds / least_s:.2f} of the least (asked {ASKED})", flush=True,
            )  # fmt: skip
            found.append({
                "contender": name, "seconds": seconds, "free_seconds": free_s, "tree_bytes": n_bytes,
                "over_least": round(seconds / least_s, 3), "asked": ASKED,
            })  # fmt: skip
        limit(None)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=Config.n_rows)
    parser.add_argument("--features", type=int, default=Config.n_features)
    parser.add_argument("--depth", type=int, default=Config.depth)
    parser.add_argument("--reduction", default=Config.reduction)
    parser.add_argument("--gbits", default="1", help="what each worker may send a second")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    config = Config(options.rows, options.features, options.depth, reduction=options.reduction)
    print(f"{config.n_rows:,} x {config.n_features}, depth {config.depth}", flush=True)
    record("slow_link", config, bench(config, [float(speed) for speed in options.gbits.split(",")]), options.results)


if __name__ == "__main__":
    main()
