"""How a fit grows its trees: decided once, from its parameters, its objective and its data, and read downstream.

What follows from the memory of a device (chunks that stream, trees that grow together) is in its `Plan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from daskboost.devices.budget.plan import Growth, RowSource
from daskboost.devices.gpu.rows.gradients import has_softmax_kernel
from daskboost.devices.leaf_models import MOST_TERMS
from daskboost.devices.losses import LinkKernel
from daskboost.dtypes import Float32
from daskboost.fit.scales import is_small
from daskboost.hashing import Purpose, draws, key
from daskboost.metrics.metric import AnyMetric
from daskboost.metrics.metric_names import make_metric
from daskboost.objectives.objective import Objective, link_of, scores_weights
from daskboost.params import TrainParams
from daskboost.tree.device_trees import needs_host

# Few random combinations of many outputs' gradients, on which the structure of a vector-leaf tree is searched.
#
# Iosipoi and Vakhrushev, "SketchBoost: Fast Gradient Boosted Decision Tree for Multioutput Problems", NeurIPS 2022: a
# random projection of the gradients whose entries have mean zero. Ours is sparse (the count sketch of Charikar, Chen
# and Farach-Colton, "Finding Frequent Items in Data Streams", 2002): hashes deal the outputs evenly among the columns
# and give each a sign. The squared sums of the columns then estimate those of all outputs, as those of a dense
# projection do, and every column has a second derivative of its own: a step along it moves its outputs by as much up
# or down, which changes the loss by the sum of their hessians. So a column's gain is that of a true Newton step, and
# with as many columns as outputs nothing would be lost. Dense signs share the mean hessian among all columns; with 10
# columns for the 26 classes of the letter set, test log-loss after 30 rounds was .98 with them, .85 so, and .79
# without a sketch.

def make_projection(seed: int, iteration: int, n_outputs: int, n_columns: int) -> Float32:
    """The projection of one round, entries -1, 0 and 1; float32, shape (outputs, columns)."""
    bits = draws(key(seed, Purpose.GRADIENT_SKETCH, iteration), np.arange(n_outputs, dtype=np.uint64))
    column = np.empty(n_outputs, np.int64)
    column[np.argsort(bits, kind="stable")] = np.arange(n_outputs) % n_columns
    projection = np.zeros((n_outputs, n_columns), np.float32)
    projection[np.arange(n_outputs), column] = np.where(bits & np.uint64(1), -1, 1)
    return projection


Searched = Literal["gradients", "weights", "sketch"]
"""What splits are searched on: gradients and hessians; gradients and weights; random combinations of outputs."""
BY_MESSAGES = ("coordinator", "peers")
"""Reductions in which histograms of several engines meet on their hosts."""


@dataclass(frozen=True)
class Recipe:
    """The parts that a fit is made of; see `make_recipe`."""

    n_engines: int
    n_rows: int
    """Training rows of all engines."""
    rows: RowSource
    share: float
    """Share of all rows in the sample that trees grow on; 1 where that is all rows."""
    subsample: float
    """Share of those rows that each tree draws by hash; 1 for all of them."""
    draws_queries: bool
    """Whether it draws whole queries, rather than rows."""
    small_data: bool
    """Whether all rows together are few enough to keep more bits (`SMALL_ROWS`)."""
    searched: Searched
    n_outputs: int
    vector_leaves: bool
    """Whether a round grows one tree of all outputs, rather than one of each."""
    columns: int
    """Columns of gradients that a tree searches side by side: 1, all outputs, or those of a sketch."""
    by_query: bool
    """Whether gradients need the rows of a query together (`Objective.query_loss`)."""
    leaf_terms: int
    """Most features of a leaf's model; 0 where leaves are constant."""
    quantiles: tuple[float, ...] | None
    """Quantile of each output's residuals that leaves are valued by; None where sums of gradients do."""
    growth: Growth
    """What grows trees on a GPU whose memory has room for it; `engine/compiled_grower.py` has the rule of CPUs."""
    splits_one_by_one: bool
    """Whether nodes are split one by one on a GPU, as sorted entries of sparse rows can be searched."""
    interpreted: str
    """Why no compiled call of a CPU grows whole trees whose leaves are vectors, in words; empty where one does."""
    host_reason: str
    """Why the host takes part, in words; empty where it need not."""
    host_rules: str
    """Why it does on any device, in words, whatever grows trees there."""
    metrics_reason: str
    """Why the host waits for metrics in each round, in words; empty where a GPU computes all of them behind the trees,
    if its memory has room."""

    @property
    def refits(self) -> bool:
        """Whether leaves take sums of their own when a tree is grown, as it was searched on something else."""
        return self.searched != "gradients"

    @property
    def on_sample(self) -> bool:
        """Whether trees grow on some of the rows, between passes over all of them."""
        return self.rows != "all"

    def keeps_round(self, has_room: bool) -> bool:
        """Return whether the gradients of a round's rows stay in memory: those of several outputs must, as all start
        from the same margins, which the first one's tree already changes, and those of queries, which are computed
        together."""
        return has_room or self.n_outputs > 1 or self.by_query

    @cached_property
    def tree_outputs(self) -> list[tuple[int, ...]]:
        """The outputs of each tree of a round."""
        every = range(self.n_outputs)
        return [tuple(every)] if self.vector_leaves else [(output,) for output in every]

    @property
    def sketch(self) -> range:
        """The columns of the sketch that trees are searched on, which count from the number of outputs on; none where
        they are searched on outputs."""
        return range(self.n_outputs, self.n_outputs + self.columns if self.searched == "sketch" else self.n_outputs)

    def projection(self, seed: int, iteration: int) -> Float32 | None:
        """Return what makes the sketch of a round; None where trees are searched on outputs."""
        return make_projection(seed, iteration, self.n_outputs, self.columns) if self.sketch else None

    def searched_columns(self, outputs: tuple[int, ...]) -> tuple[int, ...]:
        """Return the columns that a tree of some outputs is searched on."""
        return tuple(self.sketch) or outputs

    def __str__(self) -> str:
        rows = {
            "all": "all rows",
            "certified": f"a sample of {self.share:.3g} of the rows, certified on all",
            "drawn": f"{self.share:.3g} of the rows, drawn by gradients each round",
        }[self.rows]
        unit = "of whose queries" if self.draws_queries else "of which"
        drawn = f", {unit} each tree draws {self.subsample:.3g}" if self.subsample < 1 else ""
        searched = {
            "gradients": "gradients",
            "weights": "gradients and weights",
            "sketch": f"{self.columns} combinations of {self.n_outputs} outputs",
        }[self.searched]
        leaves = "quantiles of residuals" if self.quantiles is not None else "sums of gradients"
        leaves = "linear models" if self.leaf_terms else leaves
        kind = "vector" if self.vector_leaves else "single"
        return f"trees grow on {rows}{drawn}; splits are searched on {searched}; {kind} leaves are {leaves}"


def make_recipe(params: TrainParams, objective: Objective, n_rows: int, n_engines: int) -> Recipe:
    """Decide how a fit grows its trees.

    Parameters
    ----------
    params : TrainParams
        Checked against the objective (`training/checks.py`).
    objective : Objective
    n_rows : int
        Training rows of all engines.
    n_engines : int
        Engines that take part.
    """
    sources: dict[str, RowSource] = {"certified": "certified", "sampled": "drawn"}
    source = sources.get(params.out_of_core, "all")
    by_gradients = source == "drawn"
    vectors = params.has_vector_leaves(objective.n_outputs)
    searched: Searched = "gradients"
    if params.sketch_outputs:
        searched = "sketch"
    elif scores_weights(params, objective):
        searched = "weights"
    quantiles = objective.adaptive_quantiles
    best_first = params.grow_policy == "lossguide"
    of_leaves = {
        "rows of best-first trees do not lie in the order of leaves, which are linear models":
            params.linear_leaves and best_first,
        "leaves that are quantiles take exact sums beside": quantiles is not None and searched != "gradients",
        "leaves that are vectors are quantiles": quantiles is not None and vectors,
        "rows of best-first trees do not lie in the order of leaves, which are quantiles":
            quantiles is not None and best_first,
        "vectors take exact sums beside the combinations of outputs that trees are searched on": searched == "sketch",
        "best-first trees without the host have no leaves that are vectors": vectors and best_first,
    }  # fmt: skip
    of_vectors = {
        "several engines grow trees whose leaves are vectors": n_engines > 1,
        "leaves are vectors of quantiles": quantiles is not None,
        "trees are symmetric, and their leaves are vectors": params.grow_policy == "symmetric",
        "trees are searched on combinations of outputs": searched == "sketch",
    }  # fmt: skip
    host_rules = "" if source == "all" else "trees grow on a sample of the rows"
    of_trees = host_rules or _first_that_holds(of_leaves) or needs_host(params)
    by_messages = n_engines > 1 and params.reduction in BY_MESSAGES
    why_host = f"reduction={params.reduction!r} asks for it" if by_messages else of_trees
    growth: Growth = "best first" if best_first else "levels"
    return Recipe(
        n_engines=n_engines, n_rows=n_rows, rows=source,
        share={"all": 1.0, "certified": params.resident_share, "drawn": params.subsample}[source],
        subsample=1.0 if by_gradients else params.subsample,
        draws_queries=params.sampling_unit == "group" and params.subsample < 1,
        # Weights of rows that stand for others count no rows, so that rows drawn by gradients are never small data.
        small_data=not by_gradients and is_small(n_rows),
        searched=searched, n_outputs=objective.n_outputs, vector_leaves=vectors,
        columns=(params.sketch_outputs or objective.n_outputs) if vectors else 1,
        by_query=objective.query_loss is not None, leaf_terms=MOST_TERMS if params.linear_leaves else 0,
        quantiles=quantiles, interpreted=_first_that_holds(of_vectors) if vectors else "",
        growth="host" if why_host else growth, host_reason=why_host, host_rules=host_rules,
        splits_one_by_one=not (why_host or vectors or params.grow_policy == "symmetric"),
        metrics_reason="trees grow with the host" if why_host else _metrics_reason(params, objective),
    )  # fmt: skip


def _first_that_holds(reasons: dict[str, bool]) -> str:
    """Return the first reason that holds; empty where none does."""
    return next((reason for reason, holds in reasons.items() if holds), "")


def evaluated_metrics(params: TrainParams, objective: Objective) -> list[AnyMetric]:
    """Return the metrics of each evaluation set: those that are named, or the objective's own."""
    defaults = metric_defaults(params, objective)
    return [make_metric(metric, defaults) for metric in params.eval_metric or (objective.default_metric,)]


class Gains(Protocol):
    """Parameters that say what labels are worth."""

    @property
    def ndcg_exp_gain(self) -> bool:
        """See `TrainParams`."""
        ...

    @property
    def label_gain(self) -> Sequence[float]:
        """See `TrainParams`."""
        ...


def metric_defaults(params: Gains, objective: Objective) -> dict[str, object]:
    """Return the defaults of metrics' arguments: the objective's, and the gains of `ndcg` beside any objective."""
    return {"ndcg_exp_gain": params.ndcg_exp_gain, "label_gain": params.label_gain, **objective.parameters()}


def _metrics_reason(params: TrainParams, objective: Objective) -> str:
    """Why the host waits for metrics of trees that grow without it."""
    on_host = [metric.name for metric in evaluated_metrics(params, objective) if not metric.is_watched]
    link = link_of(objective)
    if on_host:
        return f"{on_host[0]!r} is computed on the host"
    if link is None or (link == LinkKernel.SOFTMAX and not has_softmax_kernel(objective.n_outputs)):
        return f"predictions of {objective.name!r} have no kernel"
    return ""
