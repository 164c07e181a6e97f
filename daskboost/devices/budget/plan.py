"""What memory a fit will take, known before it takes any: sizes go in, bytes by purpose come out.

`gpu_memory.py`, which `gpu_plans.py` puts together, and `cpu_memory.py` have the formulas of their devices; tests hold
them to what engines really take.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from daskboost.devices.budget.set_size import SetSize
from daskboost.devices.losses import AnyQueryLoss
from daskboost.errors import DeviceError, format_bytes

if TYPE_CHECKING:
    from daskboost.devices.gpu.runtime.launches import Runtime

SMALL_ROWS = 2**12
"""Most rows of small data. Their nearest rounding shifts a sum by at most rows**2 / 2**31 of the largest gradient, here
by 1/128 of one row's, which matters to no split."""
RowSource = Literal["all", "certified", "drawn"]
"""Which rows trees grow on: all; a uniform sample, by which they are certified on all; rows drawn by gradients."""
Growth = Literal["host", "levels", "best first"]
"""What grows a tree: the loop in which the host chooses splits; a GPU by itself, by levels or best first."""
GpuGradients = Literal["computed", "stored", "expressions", "uploaded"]
"""How a GPU has float gradients: computed by kernels wherever they are needed, stored for a round, made by the array
expressions of an objective without a kernel and stored, or uploaded and stored, where a user's own loss makes them."""


class Reads(NamedTuple):
    """What has no room and is read again in every pass over the training rows."""

    ram_bytes: int
    """Bytes of a GPU, from the host's memory."""
    disk_bytes: int
    passes: int | None
    """Passes of a tree, about: one a level; where trees grow on a sample, one for all of a round, if nothing of them
    has to be grown again. None where they grow best first: it depends on the data."""


class SetSizes(NamedTuple):
    """What the memory of a GPU's search for sets of categories depends on; see `devices/gpu/trees/split_sets.py`."""

    n_coded: int = 0
    """Features of codes that sets may split."""
    n_chunks: int = 0
    """Chunks of their codes."""
    n_ends: int = 0
    """Lists of ends of chunks."""
    most: int = 0
    """Codes of the longest such list."""
    width: int = 0
    """Numbers of a set (`bin_lists.py`); 0 where no feature is of codes."""
    most_tried: int = 0
    """Sets of a feature that are tried at most."""
    n_codes: int = 0
    """Codes of all features that sets may split."""

    @property
    def splits_codes(self) -> bool:
        """Whether any feature is of codes."""
        return self.width > 0


NO_SETS = SetSizes()
"""Sizes of fits without features of codes."""


class QueryCounts(NamedTuple):
    """Queries of a data set."""

    of_sizes: tuple[tuple[int, int], ...]
    """Rows of a query, and how many queries have so many."""

    def joined(self, n_engines: int) -> QueryCounts:
        """Return as many rows of fewer queries, where other engines have as many rows of each."""
        return QueryCounts(tuple((size * n_engines, -(-n // n_engines)) for size, n in self.of_sizes))

    @property
    def n_rows(self) -> int:
        return sum(size * n for size, n in self.of_sizes)

    @property
    def n_queries(self) -> int:
        return sum(n for _, n in self.of_sizes)

    @property
    def most(self) -> int:
        """Rows of the largest query."""
        return max((size for size, _ in self.of_sizes), default=0)


USUAL_QUERY_ROWS = 64
"""Rows of a query where these are not known yet."""


@dataclass(frozen=True)
class FitSize:
    """All that the memory of one engine's fit depends on."""

    train: SetSize
    evals: tuple[SetSize, ...]
    n_slots: int
    """Slots of a histogram: bins, and one more for each feature with missing values."""
    most_slots: int
    """Most slots of a feature."""
    n_outputs: int
    grow_policy: str
    depth: int
    """Most splits from the root to a leaf."""
    max_leaves: int
    """Most leaves of a tree, as many as the depth allows at most; 0 for any number."""
    n_rounds: int
    small_data: bool
    """Whether pairs take 64 bits and weights lie beside them."""
    has_weight: bool
    keep_gradients: bool
    """Whether float gradients of all rows stay in memory between their range and their quantizing, on the CPU and where
    they are made by expressions."""
    gpu_gradients: GpuGradients
    query_row_bytes: int = 0
    """Bytes of a training row for gradients that are computed by query, on the CPU; 0 where they are not."""
    ranked_row_bytes: int = 0
    """Bytes of a row of an evaluation set for metrics of queries, on the host; 0 where there are none."""
    leaf_count_bytes: int = 0
    """Bytes of a leaf's counts of residuals, from which its value is found, where it is a quantile."""
    growth: Growth = "host"
    """What grows trees on a GPU; without the host, with room for nodes that are not there."""
    samples_rows: bool = False
    """Whether trees leave rows out, so that those of a root are not in their own order."""
    draws_queries: bool = False
    """Whether these are whole queries."""
    query_loss: AnyQueryLoss | None = None
    """The loss, where it is of queries."""
    queries: QueryCounts | None = None
    """Queries of the training rows that such a loss has."""
    ranked: tuple[QueryCounts, ...] = ()
    """Queries of each evaluation set whose metrics are of queries."""
    sets: SetSizes = NO_SETS
    """What a search for sets of categories takes, where trees split by such."""
    mixed_row_bytes: int = 0
    """Bytes of a row whose features of few slots have symbols of one byte beside some of two (`DenseView`); 0 where no
    such view is made."""
    drawn_sets: int = 1
    """Sets of features that are drawn for a tree."""
    own_features: bool = False
    """Whether nodes may use other features than the rest of their level."""
    n_groups: int = 0
    """Groups of features that constraints let interact."""
    may_sort_entries: bool = False
    """Whether nodes are split one by one, as sorted entries can be searched, and no other fit has the same views."""
    shares_views: bool = False
    """Whether other fits have the same views, which thus stay as they are."""
    prefers_entries: bool = False
    """Whether those are searched even where histograms would be faster, for which there is no room."""
    trees_together: int = 1
    """Trees of a round that grow together on a GPU without the host."""
    n_threads: int = 1
    evaluates_margins: bool = False
    """Whether metrics see margins as they are, so that no predictions are made of them."""
    counts_scores: bool = False
    """Whether a metric is an area under a curve, for which scores are counted."""
    n_metrics: int = 0
    """Metrics of an evaluation set."""
    watched: bool = False
    """Whether metrics may be computed on a GPU behind the trees of a round, with room for those of some rounds."""
    metrics_reason: str = ""
    """Why the host waits for metrics in each round, in words; empty where it need not."""
    width: int = 1
    """Entries of a slot: outputs, or columns of a sketch of them, that a tree of vector leaves searches."""
    sketch_columns: int = 0
    """Columns of the sketch of the gradients that trees are searched on; 0 where they are not."""
    leaf_vector: int = 0
    """Values of a leaf that is a vector; 0 where leaves are single values."""
    summed_outputs: int = 0
    """Outputs of a tree whose sums its leaves take when it is grown, as it was searched on something else; 0 where they
    do not."""
    leaf_terms: int = 0
    """Most features of a leaf's model; 0 where leaves are constant."""
    refits: bool = False
    """Whether they are searched on weights in place of the hessians that value leaves."""
    block_bytes: int | None = None
    """Bytes of shared memory that a block of the GPU may have; None of a GPU that is not there (`room_bytes`)."""
    multiprocessors: int | None = None
    """Multiprocessors of that GPU."""
    device_memory_limit: int | None = None
    """Most bytes of a GPU's memory that it may take."""
    resident: tuple[int, ...] | None = None
    """What is decided already of the chunks that a GPU keeps, see `Plan`."""
    n_engines: int = 1
    all_rows: int = 0
    """Training rows of all engines; 0 where there is no other one."""
    rows: RowSource = "all"
    """Which rows grow a tree."""
    share: float = 1.0
    """Share of all rows that these are."""
    recipe: str = ""
    """How trees grow, in words."""
    host_reason: str = ""
    """Why the host takes part in that, in words; empty where it need not."""

    def reading_files(self) -> FitSize:
        """See `SetSize.reading_files`."""
        train, *evals = (rows.reading_files() for rows in (self.train, *self.evals))
        return replace(self, train=train, evals=tuple(evals))

    def on_gpu(self, runtime: Runtime) -> FitSize:
        """The same fit, on that GPU."""
        found = replace(self, block_bytes=runtime.shared_bytes, multiprocessors=runtime.multiprocessors)
        apart = runtime.why_apart() if self.n_engines > 1 and self.without_host else ""
        return replace(found.with_host(), host_reason=apart) if apart else found

    def with_host(self) -> FitSize:
        """The same fit, whose trees grow with the host: one at a time, by histograms."""
        return replace(self, growth="host", watched=False, trees_together=1, may_sort_entries=False)

    def keeping(self, n_chunks: int | None) -> FitSize:
        """The same fit, for which a GPU keeps so many chunks of the training set, and none of evaluation sets; None
        where that is not decided."""
        return replace(self, resident=None if n_chunks is None else (n_chunks, *(0 for _ in self.evals)))

    def streaming(self, stream_bytes: int | None) -> FitSize:
        """The same fit, whose streamed chunks come in groups of up to so many bytes; None where that is not decided."""
        train, *evals = (replace(rows, stream_bytes=stream_bytes) for rows in (self.train, *self.evals))
        return replace(self, train=train, evals=tuple(evals))

    @property
    def reads(self) -> Reads | None:
        """What passes read of the chunks that do not stay, once that is decided: what passes read of the others; None
        if there are none."""
        if not self.train.streamed:
            return None
        ram_bytes, disk_bytes = (self.train.streamed_bytes(on_disk=there) for there in (False, True))
        return Reads(ram_bytes, disk_bytes, self.passes)

    @property
    def without_host(self) -> bool:
        """Whether trees grow on a GPU without the host."""
        return self.growth != "host"

    @property
    def gathers_roots(self) -> bool:
        """Whether a GPU looks up rows of a root by their numbers: trees grow with the host, or leave rows out."""
        return self.samples_rows or not self.without_host

    @property
    def by_expressions(self) -> bool:
        """Whether array expressions make float gradients on a GPU, so that those of a chunk can be made at its turn."""
        return self.gpu_gradients in ("expressions", "uploaded")

    @property
    def on_sample(self) -> bool:
        """Whether trees grow on some of the rows, between passes over all of them."""
        return self.rows != "all"

    def shares_margins(self, rows: SetSize) -> bool:
        """Whether an evaluation set has the margins that are kept for training rows: those are its rows, and trees grow
        on all of them, so that no margins wait for the next pass."""
        return rows.of_training and not self.on_sample

    @property
    def passes(self) -> int | None:
        """Passes of a tree, see `Reads`."""
        if self.on_sample:
            return 1
        return None if self.grow_policy == "lossguide" else self.depth

    @property
    def gpus(self) -> frozenset[int]:
        """Numbers of the GPUs that rows lie on already."""
        return self.train.gpus.union(*(each.gpus for each in self.evals))

    @property
    def n_trees(self) -> int:
        """Trees of a round: one for each output, or one whose leaves are vectors."""
        return self.n_outputs // max(self.leaf_vector, 1)

    @property
    def n_entries(self) -> int:
        """Sums of a histogram."""
        return self.n_slots * self.width

    @property
    def open_histograms(self) -> int:
        """Histograms in memory at the same time where only nodes that are there have some: those of a level and of the
        level above, from which half of them are subtracted, or those of all leaves."""
        return open_histograms(self.depth, self.grow_policy, self.most_rows, self.max_leaves)

    @property
    def most_leaves(self) -> int:
        """Most leaves of a tree."""
        return self._nodes_at(self.depth)

    @property
    def deepest_nodes(self) -> int:
        """Most nodes that are searched at a time."""
        return 2 if self.grow_policy == "lossguide" else self._nodes_at(self.depth - 1)

    def _nodes_at(self, depth: int) -> int:
        """Most nodes of a level, which other engines may have rows of."""
        return most_nodes(depth, self.grow_policy, self.most_rows, self.max_leaves)

    @property
    def most_rows(self) -> int:
        """Training rows of all engines."""
        return max(self.all_rows, self.train.n_rows)


def most_nodes(depth: int, grow_policy: str, n_rows: int, max_leaves: int) -> int:
    """Return the most nodes at a depth, which have rows unless trees are symmetric; `max_leaves` : 0 for any number."""
    if grow_policy == "symmetric":
        return 1 << depth
    return max(1, min(1 << depth, n_rows, max_leaves or n_rows))


def open_histograms(depth: int, grow_policy: str, n_rows: int, max_leaves: int) -> int:
    """Return how many histograms a tree of that depth has at the same time, see `FitSize.open_histograms`."""
    if grow_policy == "lossguide":
        return most_nodes(depth, grow_policy, n_rows, max_leaves) + 1
    levels = (depth - 1, depth - 2) if depth > 1 else (depth - 1,)
    return sum(most_nodes(each, grow_policy, n_rows, max_leaves) for each in levels)


NO_PARTS = ("free_bytes", "host_pinned_bytes", "stream_bytes")
"""Fields of `Plan` that are not bytes that it takes of the device's memory."""


@dataclass(frozen=True)
class Plan:
    """Bytes that a fit takes on one device, by purpose; `print` it for a table.

    On a cluster they are those of one engine, the one with most rows.
    """

    device: str
    """"cpu" or "cuda"."""
    free_bytes: int | None
    """What the device has left, or may be taken of it; None where that is not known."""
    chunks_bytes: int
    """Rows of bins, which every pass over the data reads; on a GPU without those that are streamed."""
    columns_bytes: int
    """Column-major copies of them, which make splitting faster; left out where there is no room."""
    order_bytes: int
    """Rows in the order of nodes with their quantized gradients, twice, since moving rows needs both."""
    gradients_bytes: int
    """Float gradients of all rows, between their range and their quantizing."""
    margins_bytes: int
    """Raw scores of all rows and outputs."""
    labels_bytes: int
    """Labels and weights, and on a GPU codes of queries, where trees draw these."""
    histograms_bytes: int
    """Bytes of the level that is searched and of the one above it, or of all leaves of a tree that grows by gain; or
    what has their place where splits are found in sorted entries."""
    evaluation_bytes: int
    """Bins and margins of evaluation sets."""
    scratch_bytes: int
    """The largest of what only some steps need: temporary arrays of gradients, flags of splits, candidates, uploads."""
    ring_bytes: int = 0
    """On a GPU, buffers that packed chunks are copied to, from the host's memory or from disk."""
    planes_bytes: int = 0
    """On a GPU, the bins of a group of such chunks, unpacked."""
    samples_bytes: int = 0
    """Bytes of the sample that trees grow on: its bins, and those of candidates for it. Models that are trained
    together share chunks, ring and planes; samples each has of its own."""
    turned_bytes: int = 0
    """On a GPU, a copy of narrow rows that makes histograms of all rows faster; the first to be left out."""
    ordered_bytes: int = 0
    """On a GPU, a copy of the rows in the order of the first tree's leaves, for the trees that come later; left out
    before that."""
    pool_bytes: int = 0
    """On a GPU, what CuPy's pool holds beyond that: it rounds up, and pieces that it has cut do not join for others."""
    without_host: bool = False
    """Whether there is room for trees that grow on a GPU without the host."""
    watched: bool = False
    """Whether metrics of evaluation sets are computed behind these trees, so that the host does not wait for them."""
    mixes_widths: bool = False
    """Whether features of few slots have symbols of one byte on a GPU where others have two."""
    by_entries: bool = False
    """Whether these find their splits in the sorted entries of sparse rows, without histograms."""
    trees_together: int = 1
    """Trees of a round that grow together there, each with its own order and histograms."""
    frontier: tuple[int, int] = (0, 0)
    """Nodes that have histograms at a time where trees are certified on a GPU: those of all trees of a round, and of
    one, that have histograms at a time."""
    drawn: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    """Rows that memory is taken for where trees grow on rows drawn by gradients on a GPU: rows of candidates, and
    entries if they are CSR, that memory is taken for at once; then the same of the sample, which certified trees have
    too."""
    resident: tuple[int, ...] | None = None
    """Chunks in the host's memory or on disk, of the training set and of each evaluation set, that a GPU keeps, the
    first of each set by the order of `kept_first`; None where it keeps all."""
    stream_bytes: int = 0
    """Most packed bytes of streamed chunks that come to a GPU together, unless one alone has more."""
    limited: bool = False
    """Whether `free_bytes` is what `device_memory_limit` allows."""
    host_pinned_bytes: int = 0
    """Bytes of the host's memory, page-locked: chunks that stream from it, and where chunks from disk are read to."""
    reads: Reads | None = None
    """What trees read again in every pass; None where all rows have room."""
    recipe: str = ""
    """How trees grow, in words."""
    sharing: str = ""
    """How many GPUs of this process share the rows, in words; empty where one has them."""
    growth: str = ""
    """What grows them on a GPU, in words; empty on the CPU."""
    evaluation: str = ""
    """How metrics of evaluation sets are computed on a GPU, in words; empty where there are none, and on the CPU."""

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by purpose, in the order in which they are taken."""
        names = [each.name for each in fields(self) if each.name.endswith("_bytes") and each.name not in NO_PARTS]
        return {name.removesuffix("_bytes"): getattr(self, name) for name in names}

    @property
    def total_bytes(self) -> int:
        """All parts together: what the fit stays within."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool | None:
        """Whether there is room for all parts; None where it is not known how much there is."""
        return None if self.free_bytes is None else self.total_bytes <= self.free_bytes

    @property
    def remedy(self) -> str:
        """What makes the fit smaller, by its largest part; empty where it fits."""
        if self.fits is not False:
            return ""
        shapes = {
            "chunks": "fewer rows per worker (more workers), or chunks on disk, which are streamed: "
            "QuantizedDataset.from_dask(..., host_memory_limit=..., spill_directory=...)",
            "histograms": "a smaller max_depth or max_bin, or grow_policy='lossguide' with max_leaves",
            "evaluation": "fewer rows in evaluation sets",
            "samples": "a smaller resident_share (for sampled trees, subsample), fewer rows per worker (more workers)",
        }
        largest = max(self.parts, key=lambda name: self.parts[name])
        on_cpu = ", or device='cpu'" if self.device == "cuda" else ""
        return shapes.get(largest, "fewer rows per worker (more workers)") + on_cpu

    def check(self) -> None:
        """Refuse a fit that has no room.

        Raises
        ------
        DeviceError
            What it needs, what is there, and what to do.
        """
        if self.fits is False and self.free_bytes is not None:
            where = "the GPU's memory" if self.device == "cuda" else "memory"
            largest = max(self.parts, key=lambda name: self.parts[name])
            least = "" if self.resident is None else f" ({self.total_bytes:,} bytes) even with all chunks streamed"
            room = "are allowed by device_memory_limit" if self.limited else "are free"
            more = "a larger device_memory_limit, " if self.limited else ""
            raise DeviceError(
                f"the fit needs {format_bytes(self.total_bytes)} of {where}{least}, of which {largest} take "
                f"{format_bytes(self.parts[largest])}, and {format_bytes(self.free_bytes)} {room}: use {more}"
                f"{self.remedy}"
            )

    def __str__(self) -> str:
        taken, lines = 0, [f"{'memory of a fit on ' + self.device:<36}{'bytes':>18}"]
        told = {name: n_bytes for name, n_bytes in self.parts.items() if n_bytes or name not in _SOMETIMES}
        for name, n_bytes in told.items():
            taken += n_bytes
            no_room = self.free_bytes is not None and taken > self.free_bytes and n_bytes
            lines.append(f"  {name:<34}{n_bytes:>18,}{'  does not fit' if no_room else ''}")
        lines.append(f"  {'all':<34}{self.total_bytes:>18,}")
        if self.free_bytes is not None:
            lines.append(f"  {'allowed' if self.limited else 'free':<34}{self.free_bytes:>18,}")
        if self.host_pinned_bytes:
            lines.append(f"  {'page-locked, of the host':<34}{self.host_pinned_bytes:>18,}")
        if self.reads is not None:
            lines.append(f"  {'read in every pass, from RAM':<34}{self.reads.ram_bytes:>18,}")
            lines.append(f"  {'read in every pass, from disk':<34}{self.reads.disk_bytes:>18,}")
            lines.append(f"  {'passes of a tree, about':<34}{self.reads.passes or 'as it grows':>18}")
        lines += [line for line in (self.sharing, self.recipe, self.growth, self.evaluation) if line]
        if self.free_bytes is not None:
            lines.append("it fits" if self.fits else f"it does not fit: use {self.remedy}")
        return "\n".join(lines)


_SOMETIMES = {each.name.removesuffix("_bytes") for each in fields(Plan) if each.default == 0}
"""Parts that are not told of where there are none."""
