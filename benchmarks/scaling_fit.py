"""A model of the seconds that a tree takes on several GPUs: its terms, and its parameters fitted to measured rows.

A tree of d levels on n GPUs, each with 1/n of the rows, takes

    tree_s                                            launches and Python, whatever the rows
  + rows / n * (bins * (d + 1) / 2 + row_bytes * (d + 1)) / bytes_s    memory that its rows are read from
  + HISTOGRAM_PASSES * histogram bytes / bytes_s                       memory that its histograms are read from
  + meeting_s * (d + 2), where n > 1                  the GPUs meet: gradients' range, the root's sums, d levels
  + histogram bytes / link rate                       sums of all built nodes

`bins` are the bytes of a row's bins as they lie, in groups of 32 features. Of a level below the root half of the rows
are added up, since the other half follows by subtraction; all are moved to their nodes. The trees of a round grow
together where a loss has several outputs, so that a meeting serves them all, and each GPU has the sums of its share of
them alone: half the bytes travel, and 1/n of the histograms are searched. Where it is faster, as for wide data, GPUs
share the features instead: each moves all rows, and what travels is one bit of a row and level.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from benchmarks.sparse_rows import SPARSE_WORKLOADS
from daskboost.devices.budget.partition import LINK_BYTES_S, PAIR_BYTES, SHARE_BYTES, SIDES_S
from daskboost.devices.gpu.rows.feature_groups import MOST_COLUMNS

FEWEST_TREES = 50
"""Trees that make the difference of a row's two fits, at the fewest. What a fit begins with differs by up to .1 s from
one to the next: less than 2 ms of each of fifty trees."""
DEVICE = "H100"
SHARED_SINCE = "2026-11-26T12:05:02+00:00"
"""Since then only as many GPUs share a data set as have `SHARE_BYTES` of bins each; rows before are of all GPUs."""
HISTOGRAM_PASSES = 6
"""Bytes of memory for each byte of a histogram that is built: it and its sibling are written, its parent's and its own
read for that, and both are read by the search. Counted, not fitted: only wide data could tell it."""


class Shape(NamedTuple):
    """What trees grow on."""

    n_rows: int
    n_features: int
    depth: int
    n_outputs: int = 1
    """Trees of a round."""
    n_bins: int = 256

    @property
    def bin_bytes(self) -> int:
        """Bytes of a row's bins on a GPU."""
        return MOST_COLUMNS * -(-self.n_features // MOST_COLUMNS)

    def gpus_that_share(self, n_gpus: int) -> int:
        """Return how many of so many GPUs a fit takes: fewer where the data are small."""
        return min(n_gpus, max(1, self.n_rows * self.n_features // SHARE_BYTES["cuda"]))

    def share_of_features(self, n_gpus: int) -> Shape:
        """Return what each of so many GPUs has where they share the features."""
        return self._replace(n_features=-(-self.n_features // n_gpus))

    @property
    def n_meetings(self) -> int:
        """How often the GPUs of a round of trees meet."""
        return self.depth + 2

    @property
    def histogram_bytes(self) -> int:
        """Bytes of a tree's histograms that are built, and added up over GPUs: of the root and of half of the nodes of
        each level."""
        return (1 << max(self.depth - 1, 0)) * self.n_features * self.n_bins * PAIR_BYTES


class Measured(NamedTuple):
    """A tree of a case, measured."""

    case: str
    where: str
    """"1 GPU", "2 GPUs", "1 of 2" where small data are not shared, or "alone", without a cluster."""
    shape: Shape
    n_gpus: int
    """GPUs that share the rows."""
    seconds: float
    """Median over the repeats, of one tree."""
    spread: float
    """Half of what lies between the fastest and the slowest repeat, as a share of the median; 0 of one repeat."""
    gpu: str
    date: str


@dataclass(frozen=True)
class Parameters:
    """What is fitted."""

    tree_s: float
    """Launches, and Python's share, of a tree: seconds."""
    bytes_s: float
    """Bytes of a GPU's memory that a tree reads and writes in a second."""
    row_bytes: float
    """Bytes of a row at each level beside its bins: its place and gradients read and written, its bin of the split's
    feature (a sector of memory), and a level's share of what a tree does once."""
    meeting_s: float
    """Seconds in which two GPUs meet, whatever they tell each other: NCCL's latency, launches around it, and waiting
    for the slower one."""


UNITS = {"tree_s": "s", "bytes_s": "bytes/s", "row_bytes": "bytes", "meeting_s": "s"}
START = Parameters(3e-4, 3e12, 50.0, 3e-5)


class Seconds(NamedTuple):
    """What a tree takes, by what it is spent on."""

    rows: float
    """Work on a GPU's own rows."""
    searches: float
    """Reading and writing the histograms of all nodes."""
    launches: float
    meetings: float
    """Latency."""
    sums: float
    """Bytes that travel: histograms, or sides of rows."""

    @property
    def all(self) -> float:
        return sum(self)


def rows_s(shape: Shape, found: Parameters, n_rows: float) -> float:
    """Seconds that a GPU's memory takes with so many rows."""
    levels = shape.depth + 1
    return n_rows * levels * (shape.bin_bytes / 2 + found.row_bytes) / found.bytes_s


def searches_s(shape: Shape, found: Parameters) -> float:
    """Seconds that a GPU's memory takes with histograms."""
    return HISTOGRAM_PASSES * shape.histogram_bytes / found.bytes_s


def by_rows(shape: Shape, n_gpus: int, found: Parameters) -> Seconds:
    """What a tree takes on GPUs of one host that share the rows."""
    shares_trees = 1 < n_gpus <= shape.n_outputs
    sums = ring_bytes(shape.histogram_bytes, n_gpus) / LINK_BYTES_S / (1 + shares_trees)
    searches = searches_s(shape, found) / (n_gpus if shares_trees else 1)
    return Seconds(
        rows_s(shape, found, shape.n_rows / n_gpus), searches, found.tree_s, meetings_s(shape, n_gpus, found), sums
    )  # fmt: skip


def by_columns(shape: Shape, n_gpus: int, found: Parameters, link_bytes_s: float = LINK_BYTES_S) -> Seconds:
    """What a tree takes on GPUs that share the features, and tell each other the sides of rows at that rate."""
    own = shape.share_of_features(n_gpus)
    sides = shape.depth * (ring_bytes(shape.n_rows / 8, n_gpus) / link_bytes_s + SIDES_S * (n_gpus > 1))
    return Seconds(
        rows_s(own, found, own.n_rows), searches_s(own, found), found.tree_s, meetings_s(shape, n_gpus, found), sides
    )  # fmt: skip


def meetings_s(shape: Shape, n_gpus: int, found: Parameters) -> float:
    """Seconds of a tree's share of what the meetings of a round take: a switch joins GPUs of a host, and four of them
    met as fast as two."""
    return shape.n_meetings * (n_gpus > 1) * found.meeting_s / shape.n_outputs


def tree(shape: Shape, n_gpus: int, found: Parameters) -> Seconds:
    """What a tree takes on GPUs of one host, which share what is faster."""
    return min(by_rows(shape, n_gpus, found), by_columns(shape, n_gpus, found), key=lambda each: each.all)


def ring_bytes(n_bytes: float, n: int) -> float:
    """Bytes that each of n members of a ring sends for the sum of n arrays of that size."""
    return n_bytes * 2 * (n - 1) / n


def errors(found: Parameters, rows: Iterable[Measured]) -> list[float]:
    """By how much the model is above each row, as a share of it."""
    return [tree(row.shape, row.n_gpus, found).all / row.seconds - 1 for row in rows]


def fit(rows: Sequence[Measured]) -> Parameters:
    """The parameters, all positive, whose logarithms of seconds have the least squares."""

    def differences(logs: Any) -> Any:
        return np.log1p(errors(Parameters(*np.exp(logs)), rows))

    return Parameters(*map(float, np.exp(least_squares(differences, np.log(astuple(START))).x)))


def left_out(rows: Sequence[Measured]) -> list[tuple[Measured, float]]:
    """Each row with the model's error where all rows of its case were left out of the fit."""
    found: list[tuple[Measured, float]] = []
    for case in dict.fromkeys(row.case for row in rows):
        own = [row for row in rows if row.case == case]
        others = fit([row for row in rows if row.case != case])
        found += zip(own, errors(others, own), strict=True)
    return found


def measured(many_gpus: Iterable[Mapping[str, Any]], gpu_speed: Iterable[Mapping[str, Any]]) -> list[Measured]:
    """The newest row of each case and number of GPUs that can be told, of one kind of GPU."""
    newest: dict[tuple[str, str], Measured] = {}
    for row in (*of_clusters(many_gpus), *of_one_gpu(gpu_speed)):
        before = newest.get((row.case, row.where))
        if before is None or before.date <= row.date:
            newest[row.case, row.where] = row
    return list(newest.values())


def of_clusters(rows: Iterable[Mapping[str, Any]]) -> Iterator[Measured]:
    """Ours of `many_gpus`, the repeats of a run together: dense rows that stay on GPUs, trees by levels, fits that are
    long enough."""
    repeats: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["contender"].startswith("daskboost") and "repeat" in row and DEVICE in row["gpu"]:
            repeats.setdefault((row["case"], row["contender"], row["date"]), []).append(row)
    for (case, contender, date), of_run in repeats.items():
        config = of_run[0]["config"]
        params, trees = config["params"], config["trees"]
        n_outputs = params.get("num_class", 1)
        is_odd = params.get("grow_policy") == "lossguide" or config["workload"] in SPARSE_WORKLOADS
        if is_odd or config.get("streams") or (trees - max(1, trees // 5)) * n_outputs < FEWEST_TREES:
            continue
        shape = Shape(config["n_rows"], config["n_features"], params["max_depth"], n_outputs)
        n_gpus = 1 if contender.endswith("alone") else int(contender.split()[-1])
        n_used = n_gpus if date < SHARED_SINCE else shape.gpus_that_share(n_gpus)
        where = f"{n_gpus} GPU{'s' * (n_gpus > 1)}" if n_used == n_gpus else f"{n_used} of {n_gpus}"
        where = "alone" if contender.endswith("alone") else where
        seconds = [row["seconds"] / n_outputs for row in of_run]
        middle = statistics.median(seconds)
        if middle > 0:
            spread = (max(seconds) - min(seconds)) / 2 / middle
            yield Measured(case, where, shape, n_used, middle, spread, of_run[0]["gpu"], date)


def of_one_gpu(rows: Iterable[Mapping[str, Any]]) -> Iterator[Measured]:
    """Rows of `gpu_speed` beside XGBoost of plain trees: dense rows, one output, no metrics, nothing left out."""
    for row in rows:
        config = row["config"]
        if row["contender"] != "daskboost beside xgboost" or DEVICE not in row["gpu"] or config["kind"] != "train":
            continue
        extras = any(config[name] for name in ("more", "eval_rows", "quantiles", "per_row"))
        if config["grow_policy"] == "depthwise" and config["n_classes"] == 2 and not extras:
            shape = Shape(config["n_rows"], config["n_features"], config["max_depth"], 1, config["max_bin"])
            yield Measured(row["case"], "alone", shape, 1, row["ms"] / 1e3, 0.0, row["gpu"], row["date"])
