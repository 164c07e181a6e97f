"""What a tree would take where it was not measured: on more GPUs, hosts and rows than there were.

Everything here extrapolates `scaling_fit.py`: GPUs of a host meet in one step, hosts in log2 of their number of steps,
by what their network is said to do. GPUs of several hosts are not joined today: their histograms meet through the
hosts' processors and Dask's connections (`HostPath`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from benchmarks.scaling_fit import Parameters, Seconds, Shape, by_columns, by_rows, ring_bytes, rows_s
from daskboost import plan
from daskboost.devices.budget.partition import LINK_BYTES_S
from daskboost.params import parse_bytes

BUS_BYTES_S = 55.4e9
"""Bytes that come to a GPU from page-locked memory in a second, measured over PCIe 5 x16."""
STATE_BYTES = 24
"""Bytes that a GPU holds of each row at the least: place and gradients, twice, margin and label. Of more rows than have
room so, no plan is made."""


@dataclass(frozen=True)
class Place:
    """What the GPUs are in; nothing here is fitted."""

    gpus_per_host: int = 8
    network_bytes_s: float = 5e10
    """Bytes that each GPU's network card sends in a second; 5e10 are 400 Gbit/s, as they are sold."""
    network_s: float = 2e-5
    """Seconds of a step between hosts; assumed."""
    device_memory: str = "80GB"
    """Of a GPU."""


class ThroughHosts(NamedTuple):
    """A tree on two GPUs that are not joined, of commit 0f570e0 on two H100s (2026-11-24), beside one GPU's."""

    shape: Shape
    one_gpu_s: float
    seconds: float


THROUGH_HOSTS = (
    ThroughHosts(Shape(44_000_000, 28, 8), 11.5e-3, 37.7e-3), ThroughHosts(Shape(400_000, 2000, 8), 6.0e-3, 1.53),
    ThroughHosts(Shape(30_000_000, 100, 8), 14.0e-3, 105e-3),
)  # fmt: skip


@dataclass(frozen=True)
class HostPath:
    """Sums that meet through the hosts."""

    message_s: float
    """Seconds that each engine adds to a level: a request of the coordinator's and its answer."""
    bytes_s: float
    """Bytes of histograms that an engine copies, sends, receives and adds up in a second."""

    def messages(self, shape: Shape, n_gpus: int) -> float:
        """Seconds of a tree's requests and answers."""
        return shape.depth * n_gpus * self.message_s

    def sums(self, shape: Shape, n_gpus: int) -> float:
        """Seconds of a tree's histograms, of which each engine adds up those of its share of the features."""
        return shape.histogram_bytes * (n_gpus - 1) / n_gpus / self.bytes_s


def fit_host_path() -> HostPath:
    """Fit both parameters to `THROUGH_HOSTS`, by relative errors of what is left without half of one GPU's time."""
    unit = HostPath(1.0, 1.0)
    terms = np.array([[unit.messages(each.shape, 2), unit.sums(each.shape, 2)] for each in THROUGH_HOSTS])
    rest = np.array([each.seconds - each.one_gpu_s / 2 for each in THROUGH_HOSTS])
    message_s, byte_s = np.linalg.lstsq(terms / rest[:, None], np.ones(len(rest)), rcond=None)[0]
    return HostPath(float(message_s), float(1 / byte_s))


class Line(NamedTuple):
    """A tree in one place of the table; seconds."""

    n_gpus: int
    memory: str
    """Share of the GPU's memory that the plan takes; "streams" where rows come in every pass, "none" without room."""
    joined: Seconds
    """By rows, as if all GPUs were joined, those of several hosts too."""
    streaming: float
    """Rows that come from the host's memory in every pass."""
    by_columns: float
    """Likewise joined, by columns; infinite where a GPU has no room for its features of all rows, or has none."""
    today: float
    """By what the package does today, on fewer GPUs where the data are small."""
    longest: str
    """What takes longest of the faster of rows and columns."""
    longest_today: str

    @property
    def by_rows(self) -> float:
        return self.joined.all + self.streaming


def joined(shape: Shape, n_gpus: int, found: Parameters, place: Place) -> Seconds:
    """A tree on GPUs that are all joined: sums meet within a host, then between hosts, each of whose GPUs has its share
    of them."""
    of_host, n_hosts = min(n_gpus, place.gpus_per_host), -(-n_gpus // place.gpus_per_host)
    alone = by_rows(shape, of_host, found)
    steps = shape.n_meetings * math.log2(n_hosts) * place.network_s / shape.n_outputs
    sent_s = ring_bytes(shape.histogram_bytes, n_hosts) / of_host / place.network_bytes_s
    of_rows = rows_s(shape, found, shape.n_rows / n_gpus)
    return alone._replace(rows=of_rows, meetings=alone.meetings + steps, sums=alone.sums + sent_s)


def shared_by_columns(shape: Shape, n_gpus: int, found: Parameters, place: Place) -> Seconds:
    """A tree on GPUs that are all joined, and share the features."""
    rate = LINK_BYTES_S if n_gpus <= place.gpus_per_host else place.network_bytes_s
    return by_columns(shape, n_gpus, found, rate)._replace(meetings=joined(shape, n_gpus, found, place).meetings)


@cache
def memory_of(shape: Shape, n_gpus: int, device_memory: str) -> tuple[str, float, bool]:
    """How the rows of a GPU lie there by the fit's plan, bytes that stream a tree, and whether trees grow without the
    host."""
    room = parse_bytes("device_memory", device_memory)
    if shape.n_rows / n_gpus * STATE_BYTES > room:
        return "none", math.inf, False
    params = {"device": "cuda", "max_depth": shape.depth, "device_memory_limit": device_memory}
    found = plan(params, n_rows=shape.n_rows, n_features=shape.n_features, n_workers=n_gpus)
    if not found.fits:
        return "none", math.inf, False
    if found.reads is not None:
        return "streams", found.reads.ram_bytes * (found.reads.passes or 1), False
    return f"{found.total_bytes / room:.1%}", 0.0, found.without_host


def line_of(shape: Shape, n_gpus: int, found: Parameters, hosts: HostPath, place: Place) -> Line:
    """What a tree of that shape takes on so many GPUs."""
    memory, streamed, without_host = memory_of(shape, n_gpus, place.device_memory)
    streaming = streamed / BUS_BYTES_S
    parts, of_columns = joined(shape, n_gpus, found, place), shared_by_columns(shape, n_gpus, found, place)
    own = shape.share_of_features(n_gpus)
    has_room = 1 < n_gpus <= shape.n_features and memory_of(own, 1, place.device_memory)[2]
    columns_s = of_columns.all if has_room else math.inf
    best = {"streaming": streaming, **parts._asdict()}
    if columns_s < sum(best.values()):
        best = of_columns._asdict()
    now = best
    if n_gpus > 1 and not (without_host and n_gpus <= place.gpus_per_host):
        of_hosts = {"messages": hosts.messages(shape, n_gpus), "sums": hosts.sums(shape, n_gpus)}
        now = {"streaming": streaming, **parts._asdict(), "meetings": 0.0, **of_hosts}
    names = [longest(each) if memory != "none" else "memory" for each in (best, now)]
    line = Line(n_gpus, memory, parts, streaming, columns_s, sum(now.values()), *names)
    n_used = shape.gpus_that_share(n_gpus)
    if n_used == n_gpus:
        return line
    fewer = line_of(shape, n_used, found, hosts, place)
    return line._replace(today=fewer.today, longest_today=fewer.longest_today)


def longest(seconds: Mapping[str, float]) -> str:
    """What takes longest."""
    return max(seconds, key=seconds.__getitem__)


def half_at(shape: Shape, found: Parameters, place: Place) -> int:
    """Return the fewest GPUs, a power of two, on which less than half of a tree's time by rows goes into rows."""
    n_gpus = 1
    while 2 * (parts := joined(shape, n_gpus, found, place)).rows >= parts.all:
        n_gpus *= 2
    return n_gpus
