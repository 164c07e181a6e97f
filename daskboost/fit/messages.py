"""What coordinator and engines say to each other: frozen requests and replies of plain arrays and numbers.

Every request goes to all engines; every engine answers with one reply of the type that the request names. Nothing here
knows how they travel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from daskboost.devices.cpu.gradients import ResidualQuery
from daskboost.devices.cpu.rows import Rounding
from daskboost.devices.cpu.views import WalkArrays
from daskboost.devices.leaf_models import LeafModels
from daskboost.devices.row_order import RowSplits
from daskboost.dtypes import Float32, Float64, Int32, Int64, UInt8
from daskboost.tree.category_sets import CategorySets
from daskboost.tree.split_search import Candidates, OpenNodes
from daskboost.tree.table import JoinedTrees, TreeTable

R = TypeVar("R")


class Request(Generic[R]):
    """A question that every engine answers with an `R`."""


@dataclass(frozen=True)
class Done:
    """A reply with nothing to report."""


@dataclass(frozen=True)
class ExactParts:
    """Exact sums as arrays (`ExactSum.to_array`)."""

    labels: UInt8
    weights: UInt8


@dataclass(frozen=True)
class LabelSums(Request[ExactParts]):
    """Ask for what the base score is made of: exact sums of weighted labels and weights."""


@dataclass(frozen=True)
class ClassSums:
    """Exact sums of the weights of each class; uint8, shape (classes, bytes), rows as `ExactSum.from_array` takes."""

    weights: UInt8


@dataclass(frozen=True)
class TotalWeight(Request[ClassSums]):
    """Sum the weights of all training rows, as if these were of one class."""


@dataclass(frozen=True)
class ClassWeights(Request[ClassSums]):
    """Ask how much the rows of each class weigh; labels are the classes 0 to `n_classes` - 1."""

    n_classes: int


@dataclass(frozen=True)
class Counts:
    """Integer counts of residuals; int64, shape (leaves, 2**next_bits)."""

    counts: Int64


@dataclass(frozen=True)
class ResidualCounts(Request[Counts]):
    """Ask for one round of a radix selection of residuals: exact quantiles of any number of rows in a few rounds of
    integer counts."""

    output: int
    query: ResidualQuery


@dataclass(frozen=True)
class SetBaseMargin(Request[Done]):
    """Start all margins at `margin`, float64 of shape (outputs,), where the data brings no base margin."""

    margin: Float64


@dataclass(frozen=True)
class AddTree(Request[Done]):
    """Add a finished tree of an earlier fit to all margins, by bins."""

    tree: WalkArrays
    output: int


@dataclass(frozen=True)
class GradientRange:
    """Largest |g| and h per output, then per column of the sketch; float64, shape (outputs + columns,).

    Weighted; of small data without the weights, among the rows that have any.
    """

    largest_g: Float64
    largest_h: Float64
    chances: Float32 | None = None
    """What the costs of the round's pairs tell of the chances of clicks, see `Round.chances`."""


@dataclass(frozen=True)
class StartRound(Request[GradientRange]):
    """Compute the gradients of all outputs, and a sketch of them where there is a projection."""

    projection: Float32 | None = None
    """float32, shape (outputs, columns); see `make_projection`."""
    pair_key: int = 0
    """Hash key of the pairs that a ranking loss draws in the round."""


@dataclass(frozen=True)
class RootSums:
    """Integer sums of a tree's root."""

    sums: tuple[int, ...]
    """Sums of g and h of each column."""


@dataclass(frozen=True)
class StartTree(Request[RootSums]):
    """Quantize the gradients that a tree searches, all sampled rows in the root."""

    columns: tuple[int, ...]
    """One output, or all outputs, or all columns of the sketch, which count from the number of outputs on."""
    roundings: tuple[Rounding, ...]
    """One per column; the first one's draws sample the rows."""


@dataclass(frozen=True)
class NodeSums:
    """Integer sums of g and h, of one output after the other; int64, shape (nodes, 2 * outputs)."""

    sums: Int64


@dataclass(frozen=True)
class LeafSums(Request[NodeSums]):
    """Ask for exact sums over the rows of leaves of a tree that was searched on something else: on a sketch of its
    outputs, or on weights in place of hessians."""

    outputs: tuple[int, ...]
    """All of them, or a tree's only one."""
    leaves: Int32
    roundings: tuple[Rounding, ...]
    """One per output."""


@dataclass(frozen=True)
class LeafEquations(Request[NodeSums]):
    """Apply the last splits, then ask for the normal equations of the leaves' models (`devices/leaf_models.py`), in
    place of sums of g and h: int64, shape (leaves, `n_sums`)."""

    splits: RowSplits | None
    output: int
    rounding: Rounding
    leaves: Int32
    terms: Int32
    """Features of each leaf's model, shape (leaves, terms); -1 behind them."""


@dataclass(frozen=True)
class PartialHistograms:
    """An engine's own histograms: pairs, int32 or int64, shape (built nodes, entries, 2), or words, int64, shape (built
    nodes, entries)."""

    sums: Int64 | Int32


@dataclass(frozen=True)
class Build(Request[PartialHistograms]):
    """Apply splits and build the histograms of nodes, which are answered as they are."""

    splits: RowSplits | None
    built: Int32
    """Nodes whose histograms are built."""
    compact: bool
    """Whether to send sums in as few bytes as hold them: worth it between processes only. The only engine of a fit need
    not, and may answer words (see `devices/cpu/histogram.py`)."""


@dataclass(frozen=True)
class Search(Request[Candidates]):
    """Apply splits and build histograms, reduce these among the engines by feature, and search each engine's share."""

    splits: RowSplits | None
    nodes: OpenNodes


@dataclass(frozen=True)
class ApplySplits(Request[Done]):
    """Apply splits without building anything."""

    splits: RowSplits


@dataclass(frozen=True)
class FinishTree(Request[Done]):
    """Apply the last splits and add the leaf values to the margins of all data sets."""

    splits: RowSplits | None
    tree: WalkArrays
    output: int
    """The margin that values are added to; vectors, of shape (nodes, outputs), are added to all."""
    following: StartTree | None = None
    """What the next round is expected to start its first tree with, so that an engine whose chunks are streamed can
    build that root in the same pass. Wrong where the scale of its gradients turns out to be another one."""


@dataclass(frozen=True)
class MetricParts:
    """Partial states by (evaluation set, metric), as arrays by their names."""

    states: list[list[dict[str, Any]]]


@dataclass(frozen=True)
class Evaluate(Request[MetricParts]):
    """Ask for the metrics' partial states on all evaluation sets."""


@dataclass(frozen=True)
class OnSample(Request[R]):
    """A request to the trees that grow on a sample of the rows, answered as these answer it."""

    request: Request[R]


@dataclass(frozen=True)
class StartBelow(Request[NodeSums]):
    """On the sample: quantize the gradients of an output and move its rows to nodes 0 to `n_places`, those whose
    numbers the leaves of `tree` hold as values."""

    output: int
    rounding: Rounding
    tree: WalkArrays
    n_places: int


@dataclass(frozen=True)
class CertifiedTree:
    """A tree whose leaves' histograms are wanted."""

    output: int
    rounding: Rounding
    tree: WalkArrays
    """A leaf's value is its place, -1 where it is not wanted."""
    n_places: int
    first_node: int
    """What `Build` and `Search` add to the tree's nodes when they name leaves, or nodes with leaves below."""


@dataclass(frozen=True)
class Certified:
    """What a pass has found, apart from the histograms."""

    range: GradientRange
    """Range of all outputs."""
    sums: tuple[Int64, ...]
    """Sums of each tree's places."""


@dataclass(frozen=True)
class Certify(Request[Certified]):
    """Pass over all rows: margins of the trees finished since the last pass, gradients, histograms of these trees, and
    the sample that others are grown on."""

    trees: tuple[CertifiedTree, ...]
    next_key: int | None
    """Hash key of that sample; None to keep the one that is there."""


@dataclass(frozen=True)
class DrawShare(Request[Done]):
    """Pass over all rows for the first sample."""

    key: int


@dataclass(frozen=True)
class Norms:
    """What is known of all rows' norms."""

    counts: Int64
    """By cell; int64, shape (N_CELLS,)."""
    n_drawn: int
    """Candidates."""


@dataclass(frozen=True)
class CountNorms(Request[Norms]):
    """Count the norms of all rows' gradients (`devices/sampling.py`), for which margins alone are wanted."""


@dataclass(frozen=True)
class DrawRows(Request[Norms]):
    """Pass over all rows: margins of the trees finished since the last pass, gradients, norms; rows with
    draw < norm / threshold are candidates of the round's sample."""

    key: int
    """Hash key of the round's draws."""
    threshold: float
    most_rows: int
    """An engine that finds more candidates keeps none."""


@dataclass(frozen=True)
class SampleSize:
    """How many rows an engine has in the sample."""

    n_rows: int


@dataclass(frozen=True)
class TakeSample(Request[SampleSize]):
    """Take the candidates with draw < norm / threshold, a larger threshold than they were drawn with."""

    threshold: float


@dataclass(frozen=True)
class PassReport:
    """What certified trees of a round cost and lost."""

    n_passes: int
    """Over all rows."""
    gain_lost: float
    """Share of the gain."""
    n_redone: int
    """Splits replaced and grown again below."""

    @property
    def values(self) -> dict[str, float]:
        """The figures by the names that users see."""
        return {"passes": self.n_passes, "gain_lost": self.gain_lost, "splits_redone": self.n_redone}


@dataclass(frozen=True)
class SampleReport:
    """What trees of a round cost that grow on rows drawn by their gradients."""

    n_passes: int
    """Over all rows."""
    n_rows: int
    """Rows of the sample."""

    @property
    def values(self) -> dict[str, float]:
        """The figures by the names that users see."""
        return {"passes": self.n_passes, "rows": self.n_rows}


@dataclass(frozen=True)
class Round:
    """What a round has grown."""

    trees: tuple[TreeTable, ...]
    """One per output, or one of vector leaves."""
    metrics: tuple[MetricParts, ...]
    """Metrics of all engines, after the round; empty without evaluation sets."""
    report: PassReport | SampleReport | None = None
    """Where trees are grown on a sample."""
    chances: Float32 | None = None
    """Chances of clicks by position as the next round takes them, of a loss that estimates them
    (`devices/cpu/positions.py`); float32, shape (2, positions)."""


@dataclass(frozen=True)
class Rounds:
    """Rounds in their order."""

    rounds: tuple[Round, ...]


@dataclass(frozen=True)
class SentRounds:
    """The same, for another process."""

    trees: JoinedTrees
    """The trees of all rounds."""
    others: tuple[Round, ...]
    """The rounds without their trees."""
    n_trees: tuple[int, ...]
    """Trees of each round."""

    @classmethod
    def of(cls, rounds: tuple[Round, ...]) -> SentRounds:
        """Return rounds in their order."""
        trees = JoinedTrees.of([tree for each in rounds for tree in each.trees])
        return cls(trees, tuple(replace(each, trees=()) for each in rounds), tuple(len(each.trees) for each in rounds))

    @property
    def rounds(self) -> tuple[Round, ...]:
        """Return the rounds with their trees."""
        trees = iter(self.trees.trees)
        return tuple(
            replace(each, trees=tuple(islice(trees, n))) for each, n in zip(self.others, self.n_trees, strict=True)
        )


@dataclass(frozen=True)
class GrowRounds(Request[Rounds | SentRounds]):
    """Grow the next `n` rounds whole, in step with the other engines. The first one's reply has the trees, each one's
    the metrics of its own rows."""

    n: int


@dataclass(frozen=True)
class Reason:
    """Why something is not done; empty where it is."""

    text: str
    is_for_now: bool = False
    """Whether it may be done when it is asked for again."""


@dataclass(frozen=True)
class WhyNotWhole(Request[Reason]):
    """Ask why an engine does not grow whole rounds (`GrowRounds`); several that do have joined their GPUs then."""


@dataclass(frozen=True)
class InStepWith:
    """What an engine tells the others, which decide alike whether all grow rounds in step."""

    gpu: str
    """What tells its GPU from all others; empty where there is none."""
    host: str
    reason: str
    """Why it does not grow rounds in step; empty where it can."""
    without_host: bool
    """Whether its trees grow on its GPU alone."""


@dataclass(frozen=True)
class Replies:
    """The replies to several requests, in their order."""

    replies: tuple[Any, ...]


@dataclass(frozen=True)
class Several(Request[Replies]):
    """Requests in one message: saves round trips."""

    requests: tuple[Request[Any], ...]


WIRE_TYPES = (
    Done, ExactParts, LabelSums, ClassSums, TotalWeight, ClassWeights, Counts, ResidualQuery, ResidualCounts,
    SetBaseMargin, AddTree, GradientRange,
    StartRound, RootSums, StartTree, NodeSums, LeafSums, LeafEquations, PartialHistograms, Build, Search, ApplySplits,
    FinishTree,
    MetricParts, Evaluate, OnSample, StartBelow, CertifiedTree, Certified, Certify, DrawShare, Norms, CountNorms,
    DrawRows, SampleSize, TakeSample, PassReport, SampleReport, Round, Rounds, SentRounds, GrowRounds, Reason,
    WhyNotWhole, InStepWith, Replies, Several, Rounding,
    RowSplits, WalkArrays, LeafModels, OpenNodes, Candidates, CategorySets, TreeTable, JoinedTrees,
)  # fmt: skip
"""Everything that travels between processes."""


# Saves round trips: requests whose replies nobody waits for yet travel with the next one that somebody does.

class AsksEngines(Protocol):
    """The coordinator's side of the engines (see `links.Engines`)."""

    @property
    def n_engines(self) -> int: ...

    def ask(self, message: Request[R], /) -> list[R]: ...


class Answers(Generic[R]):
    """The replies of all engines to a request, in engine order, once they have come (`Outbox.get`).

    It does not know its outbox, so that requests which nobody waits for keep no engine alive.
    """

    replies: list[R] | None = None


class Outbox:
    """Engines with a queue in front of them."""

    def __init__(self, engines: AsksEngines) -> None:
        self._engines = engines
        self._waiting: list[tuple[Request[Any], Answers[Any]]] = []

    @property
    def n_engines(self) -> int:
        """How many engines answer."""
        return self._engines.n_engines

    def later(self, request: Request[R]) -> Answers[R]:
        """Send a request before, or with, the next one whose replies somebody waits for."""
        answers: Answers[R] = Answers()
        self._waiting.append((request, answers))
        return answers

    def get(self, answers: Answers[R]) -> list[R]:
        """Return the replies to a request; sends what waits if they have not come yet."""
        if answers.replies is None:
            self.flush()
        assert answers.replies is not None
        return answers.replies

    def ask(self, request: Request[R], /) -> list[R]:
        """Return the replies of all engines to one request, in engine order."""
        return self.get(self.later(request))

    def flush(self) -> None:
        """Send what waits, in one round trip."""
        waiting, self._waiting = self._waiting, []
        if len(waiting) == 1:
            request, answers = waiting[0]
            answers.replies = self._engines.ask(request)
        elif waiting:
            replies = self._engines.ask(Several(tuple(request for request, _ in waiting)))
            for (_, answers), found in zip(waiting, zip(*(each.replies for each in replies), strict=True), strict=True):
                answers.replies = list(found)


class SampleOutbox(Outbox):
    """Asks engines about their samples; requests go in the order of `outbox`, with the next that it sends."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__(outbox)
        self._outbox = outbox

    def later(self, request: Request[R]) -> Answers[R]:
        return self._outbox.later(OnSample(request))

    def flush(self) -> None:
        self._outbox.flush()
