"""Training parameters: one frozen, validated value that estimators and `train` both build."""

from __future__ import annotations

import difflib
import inspect
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from daskboost.errors import ParameterError
from daskboost.foreign_words import hint_of, translated

ALL_GPUS = "all"
"""Value of `n_gpus`: all that the process sees."""
GROW_POLICIES = ("depthwise", "lossguide", "symmetric")
MULTI_STRATEGIES = ("one_output_per_tree", "multi_output_tree")
SCORE_FUNCTIONS = ("auto", "newton", "l2")
DEVICES = ("auto", "cpu", "cuda", "gpu")
PARTITIONS = ("auto", "rows", "columns")
REDUCTIONS = ("auto", "coordinator", "peers", "nccl")
OUT_OF_CORE = ("auto", "exact", "certified", "sampled")
ON_SAMPLES = ("certified", "sampled")
"""Values of `out_of_core` whose trees grow on some of the rows."""
REPORT_NAME = "out_of_core"  # in `evals_result`, of what their passes cost: no evaluation set may be named so
UNLIMITED_DEPTH = 512
"""`max_depth=0`: deeper than any tree that integers of 15 bits can justify."""
MAX_DEPTH = {
    "depthwise": (24, ""),  # levels may double: 2**24 leaves is where memory ends
    "symmetric": (16, ", because it grows 2**max_depth leaves whatever the rows"),  # CatBoost's limit
}
"""Largest `max_depth` of growth by levels, and what messages say of the reason."""


@dataclass(frozen=True)
class TrainParams:
    """Parameters of a fit; names, meanings and defaults are XGBoost's wherever it has them.

    Build it with `TrainParams.from_mapping`, which knows aliases and refuses unknown names.
    """

    objective: str | Callable[..., Any] = "reg:squarederror"
    """What is minimised: a registered name or a callable ``f(label, margin) -> (gradient, hessian)``, or
    ``f(label, margin, group)`` of whole queries."""
    eval_metric: tuple[Any, ...] = ()
    """Metrics of the evaluation sets; empty means the objective's default. The last one stops early."""
    num_class: int = 0
    """Number of classes of ``multi:*`` objectives."""
    multi_strategy: str = "one_output_per_tree"
    """Trees of objectives with several outputs: ``one_output_per_tree``, or ``multi_output_tree``: one tree per round
    whose leaves are vectors and whose gains are sums over outputs. There, outputs whose hessians in a node sum to less
    than `min_child_weight` stay 0 in it, and a child needs one whose do not."""
    sketch_outputs: int = 0
    """Random combinations of the outputs' gradients on which a ``multi_output_tree`` chooses its splits, fewer than
    outputs; leaf values are exact. 0 chooses them on all outputs."""
    score_function: str = "auto"
    """What splits are scored by: ``newton``, G**2 / (H + reg_lambda) with the sum H of hessians (XGBoost's), or ``l2``,
    G**2 / (N + reg_lambda) with the sum N of weights (CatBoost's L2, whose ``l2_leaf_reg`` is `reg_lambda`). With
    ``l2``, `min_child_weight` is the least N of a child, `gamma` the least gain by this score, and `max_delta_step`
    limits leaves alone. Values, gains and covers of trees are Newton's either way; where hessians are weights (squared
    and absolute errors, quantiles), so is the score. ``auto`` is ``l2`` for ``symmetric`` trees of logistic losses,
    unless monotone constraints bind, and else ``newton``."""
    learning_rate: float = 0.3
    """What leaf values are multiplied by, in (0, 1]."""
    max_depth: int = 6
    """Most splits from root to leaf: at most 24 for ``depthwise``, 16 for ``symmetric`` (as in CatBoost), whose trees
    have 2**max_depth leaves whatever the rows; 0 is unlimited (``lossguide`` only)."""
    max_leaves: int = 0
    """Most leaves of a tree; 0 is unlimited (lossguide needs a limit here or on depth)."""
    max_bin: int = 256
    """Bins per feature, 2 to 65,535; more bins, finer splits, larger histograms."""
    grow_policy: str = "depthwise"
    """``depthwise``, ``lossguide`` (best gain first) or ``symmetric`` (one split for a whole level, CatBoost's)."""
    reg_lambda: float = 1.0
    """L2 penalty of leaf values."""
    reg_alpha: float = 0.0
    """L1 penalty of leaf values."""
    linear_leaves: bool = False
    """Whether a leaf adds to its value slopes times the positions of a row's bins, in the last five distinct features
    on the leaf's path that are no codes of categories: a ridge regression on the leaf's rows (LightGBM's
    ``linear_tree``, on ranks). Splits are chosen as without."""
    linear_lambda: float = 20.0
    """L2 penalty of these slopes, in hessians (rows, for squared error): each is shrunk as if the leaf had so many more
    that tell nothing. Measured, see `docs/growth.md`."""
    gamma: float = 0.0
    """Least gain of a split."""
    min_child_weight: float = 1.0
    """Least sum of hessians in a child, or of weights where splits are scored by these (`score_function`). A node whose
    hessians sum to less, the root too, is worth 0, unless weights score splits. With 0, children whose hessians round
    to 0 are split off as well, unless `reg_lambda` is 0."""
    max_delta_step: float | None = None
    """Largest absolute leaf value before the learning rate; 0 is unlimited, None the objective's default
    (0.7 for Poisson)."""
    subsample: float = 1.0
    """Share of rows that grow a tree, in (0, 1]: drawn uniformly, or by their gradients (``out_of_core="sampled"``)."""
    sampling_unit: str = "object"
    """What `subsample` draws for each tree: rows (``object``), or whole queries (``group``) of data made with `qid`,
    under any objective. CatBoost's."""
    colsample_bytree: float = 1.0
    """Share of features per tree, in (0, 1]."""
    colsample_bylevel: float = 1.0
    """Share of the tree's features per level, in (0, 1]."""
    colsample_bynode: float = 1.0
    """Share of the level's features per node, in (0, 1]."""
    scale_pos_weight: float = 1.0
    """Weight of rows with label 1 in binary objectives."""
    monotone_constraints: Any = None
    """-1, 0 or 1 per feature, as a sequence or by feature name."""
    interaction_constraints: Any = None
    """Groups of features (indices or names) that may meet on one path."""
    ignored_features: tuple[Any, ...] = ()
    """Features (indices or names) that no tree splits on: the model is one without these columns, of the same data set.
    Samples of columns are drawn from the others."""
    base_score: float | None = None
    """Prediction before the first tree, in the label's space; None estimates it from the labels: their weighted mean;
    their lower weighted quantile for absolute and quantile errors; the log-odds of the mean for ``binary:logitraw``;
    for ``multi:*``, where it is a margin, log(share of the weight + 1e-6) of each class less the mean over classes."""
    encodings: Any = "auto"
    """What categorical columns become: ``target`` (statistics of the labels), ``onehot`` (a feature of each level) or
    ``native`` (codes, which trees split by sets), by column or for all; ``auto`` is ``target``, but ``onehot`` of
    columns of three or four levels where there are several classes. It is of data sets, as `max_bin` is."""
    has_time: bool = False
    """Whether rows are given in the order of time: statistics of a row that is trained on are then of the rows before
    it alone, as in CatBoost. It is of data sets, as `max_bin` is."""
    max_cat_to_onehot: int = 4
    """Codes of fewer levels than this are split by one level against all others, codes of as many or more by sets."""
    max_cat_threshold: int = 64
    """Levels that a split by sets may take from either end of their order by leaf values, or by the projections of leaf
    values that are vectors (`docs/categories.md`): fewer than this."""
    cat_smooth: float = 0.0
    """What `reg_lambda` is more in the leaf values by which sets order levels, and the least sum of a node's hessians
    (rows, for squared error; of vectors the largest of any output) of a level that sets choose; LightGBM's is 10. With
    0, as with the next two, sets are those of XGBoost."""
    cat_l2: float = 0.0
    """What `reg_lambda` is more where gains of sets of several levels are compared; LightGBM's is 10."""
    min_data_per_group: float = 0.0
    """Least sum of hessians (rows, for squared error) of levels that are added to a set before it is tried again, and
    of those on the other side; LightGBM's is 100."""
    random_state: int = 0
    """Seed of every draw."""
    quantile_alpha: tuple[float, ...] = (0.5,)
    """Quantile or quantiles of ``reg:quantileerror``, each in (0, 1)."""
    huber_slope: float = 1.0
    """Where ``reg:pseudohubererror`` turns from squares to absolute values."""
    tweedie_variance_power: float = 1.5
    """Variance power of ``reg:tweedie``, in [1, 2)."""
    querysoftmax_beta: float = 1.0
    """What scores are multiplied by in ``querysoftmax``."""
    querysoftmax_lambda: float = 0.01
    """What is added to the second derivative of each row in ``querysoftmax``."""
    lambdarank_pair_method: str = "topk"
    """Pairs of ``rank:*`` objectives: ``topk``, those of a query's rows of highest scores with all that score less; or
    ``mean``, some drawn for each row."""
    lambdarank_num_pair_per_sample: int | None = None
    """How many rows of highest scores (``topk``), or pairs of each row (``mean``); None is 32, or 1."""
    lambdarank_normalization: bool = True
    """Whether gradients of a query are divided by what grows with the number of its pairs."""
    lambdarank_score_normalization: bool = True
    """Whether what a pair counts is divided by the difference of its scores and 0.01."""
    lambdarank_unbiased: bool = False
    """Whether labels of ``rank:*`` are clicks, which depend on the positions that rows were shown at, those of their
    order within the query: pairs are divided by how likely rows there are to be clicked, as rounds estimate it."""
    lambdarank_bias_norm: float = 1.0
    """What evens out these estimates: they are raised to the power 1 / (1 + this)."""
    ndcg_exp_gain: bool = True
    """Whether a label's gain in ``rank:ndcg`` and in ``ndcg`` is 2**label - 1, rather than the label."""
    label_gain: tuple[float, ...] = ()
    """Gains of labels 0, 1, ... there instead, none below the one before; none where `ndcg_exp_gain` tells them."""
    yetirank_mode: str = "classic"
    """What pairs count in ``yetirank``: ``classic``, less from place to place, or how much a metric changes: ``ndcg``,
    ``dcg``, ``mrr``, ``err``, ``map``."""
    yetirank_permutations: int = 10
    """Noisy orders of each query in a round; CatBoost's number, as the next two."""
    yetirank_decay: float = 0.85
    """What a pair counts less from place to place in mode ``classic``, in (0, 1]."""
    yetirank_neighbors: int = 1
    """Places below its own that a row of a noisy order is paired with."""
    yetirank_top: int | None = None
    """First places that the metric of a mode sees; None is all."""
    yetirank_noise: str = "logistic"
    """What is added to scores, of u drawn from (0, 1): ``logistic``, log(u / (1 - u)), which CatBoost calls Gumbel; or
    ``gumbel``, -log(-log(u))."""
    yetirank_noise_power: float = 1.0
    """What noise is multiplied by; 0 is none."""
    device: str = "auto"
    """``cpu``, ``cuda`` (or ``gpu``), ``cuda:1`` for the GPU of that number, or ``auto``: a GPU where CuPy and one are
    there. Without a number it is the GPU that rows lie on, else CuPy's current one. Models do not depend on it."""
    n_gpus: int | str = 1
    """With ``device="cuda"``, to how many GPUs of this process rows are shared out, ``"all"`` for all that it sees
    (CUDA_VISIBLE_DEVICES); of small data to fewer. On a cluster each worker has a GPU. Models do not depend on it."""
    n_jobs: int = 0
    """Threads of the embedded engine; 0 (or -1) is all cores. Workers use their own ``nthreads``."""
    chunk_rows: int = 0
    """Rows per quantized chunk; 0 chooses by bytes. The model does not depend on it. This, `max_bin` and the next two
    are of data sets: `train` refuses other values than its data set was made with."""
    reduction: str = "auto"
    """How histograms meet: ``coordinator``, ``peers``, ``nccl`` (GPUs are joined, or the fit is refused) or ``auto``
    (GPUs are joined where they can be). The model does not depend on it."""
    partition_by: str = "auto"
    """What GPUs that are joined share: ``rows``, ``columns`` or ``auto``. The model does not depend on it."""
    host_memory_limit: int | str | None = None
    """Most RAM (bytes or "2GB") of all chunks on a worker before they go to disk; None is half of the worker's
    memory limit."""
    spill_directory: str | None = None
    """Where chunks that exceed it go; None is the worker's local directory."""
    device_memory_limit: int | str | None = None
    """Most of a GPU's memory (bytes or "40GB") that an engine's fit takes beside bins that lie there already; None is
    what is free. The state of all rows stays there, and of bins what has room, be it in files; others are streamed.
    Models do not depend on it."""
    out_of_core: str = "auto"
    """How trees grow: ``exact``, with a pass over the rows per level; ``certified``: on a sample in memory, drawn anew
    each round by `resident_share`, then held to exact histograms of all rows in one pass, or more where it lost too
    much; or ``sampled``: on the share `subsample` of the rows, drawn anew each round by their gradients, in one pass
    (XGBoost's ``sampling_method="gradient_based"``). ``auto`` is ``exact``."""
    certify_tolerance: float = 0.5
    """Share of a certified tree's gain that may be lost against its nodes' best splits before the worst are replaced,
    in a pass that might grow another tree, which brings more unless half is lost; 0 gives the exact model."""
    resident_share: float = 0.25
    """Share of the rows, chosen by a hash of the round and their ids, that certified trees are grown on; in (0, 1]."""
    explicit: frozenset[str] = field(default=frozenset(), compare=False)
    """Names the user gave: what contradicts a data set made before is told from defaults by them."""

    @classmethod
    def from_mapping(cls, params: Mapping[str, Any]) -> TrainParams:
        """Build from a user's mapping.

        Raises
        ------
        ParameterError
            An unknown name (with the closest valid one), two names of one parameter, a value outside its range,
            or a contradiction.
        """
        if not isinstance(params, Mapping):
            raise ParameterError(
                f"params is of type {type(params).__name__}; give a mapping such as {{'max_depth': 6}}, or {{}} for "
                "defaults"
            )
        values = translated(params, PARAMETERS, lambda word: ParameterError(_unknown(word)))
        values["eval_metric"] = as_tuple(values.get("eval_metric"))
        if "ignored_features" in values:
            values["ignored_features"] = as_tuple(values["ignored_features"])
        if "quantile_alpha" in values:
            values["quantile_alpha"] = _quantiles(values["quantile_alpha"])
        return cls(**{k: v for k, v in values.items() if v is not None or k in _NULLABLE}, explicit=frozenset(values))

    def __post_init__(self) -> None:
        for name, (low, high, low_open, high_open) in _RANGES.items():
            _check_range(name, getattr(self, name), low, high, low_open, high_open)
        for name in _INTEGERS:
            value = getattr(self, name)
            if isinstance(value, bool) or value != int(value):
                raise ParameterError(f"{name}={shown(value)} must be an integer")
            object.__setattr__(self, name, int(value))
        object.__setattr__(self, "n_jobs", max(self.n_jobs, 0))  # -1 is what scikit-learn and XGBoost call all cores
        check_choice("grow_policy", self.grow_policy, GROW_POLICIES)
        check_choice("multi_strategy", self.multi_strategy, MULTI_STRATEGIES)
        _check_gpus(self.n_gpus, self.device)
        check_choice("score_function", self.score_function, SCORE_FUNCTIONS)
        check_choice("sampling_unit", self.sampling_unit, SAMPLING_UNITS)
        check_choice("reduction", self.reduction, REDUCTIONS)
        check_choice("partition_by", self.partition_by, PARTITIONS)
        check_choice("out_of_core", self.out_of_core, OUT_OF_CORE)
        if not self.quantile_alpha or any(not 0 < a < 1 for a in self.quantile_alpha):
            given = shown(self.quantile_alpha)
            raise ParameterError(f"quantile_alpha={given}: every quantile must lie between 0 and 1")
        if not (isinstance(self.objective, str) or callable(self.objective) or hasattr(self.objective, "gradients")):
            raise ParameterError(f"objective={shown(self.objective)} must be a name or a callable f(label, margin)")
        _check_directory("spill_directory", self.spill_directory)
        _check_directions(self.monotone_constraints)
        check_flag("has_time", self.has_time)
        check_flag("linear_leaves", self.linear_leaves)
        if self.linear_lambda != TrainParams.linear_lambda and not self.linear_leaves:
            raise ParameterError(
                f"linear_lambda={self.linear_lambda:g} has no effect without linear_leaves=True, whose slopes it "
                "penalises; leave it out, or set that too"
            )
        object.__setattr__(self, "label_gain", gains_parameter(self.label_gain))
        check_pairs(vars(self))
        check_yetirank(vars(self))
        self._check_growth()
        for name in ("host_memory_limit", "device_memory_limit"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, parse_bytes(name, getattr(self, name)))
        for name, declared in _DECLARED.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, declared(getattr(self, name)))

    def _check_growth(self) -> None:
        if self.grow_policy == "lossguide":
            if self.max_depth == 0 and self.max_leaves == 0:
                raise ParameterError(
                    "grow_policy='lossguide' needs max_leaves or max_depth above 0 to end its trees"
                )
        else:
            deepest, why = MAX_DEPTH[self.grow_policy]
            if not 1 <= self.max_depth <= deepest:
                raise ParameterError(
                    f"max_depth={self.max_depth} with grow_policy={self.grow_policy!r} must lie between 1 and "
                    f"{deepest}{why}; use grow_policy='lossguide' with max_leaves for deeper trees"
                )
        if self.grow_policy == "symmetric" and self.max_leaves:
            raise ParameterError(
                f"max_leaves={self.max_leaves} contradicts grow_policy='symmetric', whose trees have 2**max_depth "
                "leaves; set max_depth instead"
            )

    @property
    def is_monotone(self) -> bool:
        """Whether monotone constraints bind any feature."""
        monotone = self.monotone_constraints
        if monotone is None:
            return False
        if isinstance(monotone, str):
            return "1" in monotone
        return any(value != 0 for value in (monotone.values() if isinstance(monotone, Mapping) else monotone))

    def has_vector_leaves(self, n_outputs: int) -> bool:
        """Whether trees of an objective with so many outputs have one value for each in every leaf."""
        return n_outputs > 1 and self.multi_strategy == "multi_output_tree"

    @property
    def depth_limit(self) -> int:
        return self.max_depth if self.max_depth > 0 else UNLIMITED_DEPTH


PARAMETERS = frozenset(f.name for f in fields(TrainParams)) - {"explicit"}
"""Names of all training parameters."""
_SCALARS: dict[str, type[float] | type[int] | type[bool]] = {"float": float, "int": int, "bool": bool}
_DECLARED = {
    f.name: _SCALARS[word] for f in fields(TrainParams) for word in [str(f.type).removesuffix(" | None")]
    if word in _SCALARS
}  # fmt: skip
"""Numbers and flags, which are kept as their declared type: models record them as texts, and 1, 1.0 and NumPy's must
not differ there."""
_NULLABLE = {"max_delta_step", "base_score", "monotone_constraints", "interaction_constraints", "host_memory_limit",
             "spill_directory", "device_memory_limit", "lambdarank_num_pair_per_sample", "yetirank_top"}  # fmt: skip
SAMPLING_UNITS = ("object", "group")
PAIR_METHODS = ("topk", "mean")
MOST_FIRST = 10**9
"""Numbers of first rows are less: they are in names of metrics, which take fewer than ten digits (`ndcg@10`)."""
MOST_ORDERS = 10_000
"""Random orders of a query's rows in each round, at most: sums of as many keep bits enough for each."""
LARGEST_GAIN = 2.0**31
"""The exponential gain of the largest label that has one, 31, is just below."""
PAIR_FLAGS = ("lambdarank_normalization", "lambdarank_score_normalization", "ndcg_exp_gain")
"""Flags of ranking objectives that are set by default."""
OF_GAINS = ("ndcg_exp_gain", "label_gain")
"""What gains of labels follow from, which some losses and the metric `ndcg` have."""
YETIRANK_MODES = ("classic", "ndcg", "dcg", "mrr", "err", "map")
YETIRANK_NOISES = ("logistic", "gumbel")
YETIRANK_PARAMETERS = (
    "yetirank_mode", "yetirank_permutations", "yetirank_decay", "yetirank_neighbors", "yetirank_top", "yetirank_noise",
    "yetirank_noise_power", "ndcg_exp_gain", "label_gain",
)  # fmt: skip
_INTEGERS = ("num_class", "sketch_outputs", "max_depth", "max_leaves", "max_bin", "random_state", "n_jobs",
             "chunk_rows", "max_cat_to_onehot", "max_cat_threshold")  # fmt: skip
_INF = math.inf
_LARGEST = float(np.finfo(np.float32).max)  # models have base scores in float32
_RANGES: dict[str, tuple[float, float, bool, bool]] = {  # low, high, low excluded, high excluded
    "num_class": (0, 2**16, False, False),
    "sketch_outputs": (0, 2**16, False, False),
    "learning_rate": (0, 1, True, False),
    "max_depth": (0, UNLIMITED_DEPTH, False, False),
    "max_leaves": (0, 2**24, False, False),
    "max_bin": (2, 65_535, False, False),
    "reg_lambda": (0, _INF, False, True),
    "reg_alpha": (0, _INF, False, True),
    "linear_lambda": (0, _INF, False, True),
    "gamma": (0, _INF, False, True),
    "min_child_weight": (0, _INF, False, True),
    "max_delta_step": (0, _INF, False, True),
    "subsample": (0, 1, True, False),
    "colsample_bytree": (0, 1, True, False),
    "colsample_bylevel": (0, 1, True, False),
    "colsample_bynode": (0, 1, True, False),
    "scale_pos_weight": (0, _INF, True, True),
    "base_score": (-_LARGEST, _LARGEST, True, True),
    "random_state": (-(2**63), 2**64, False, True),
    "huber_slope": (0, _INF, True, True),
    "tweedie_variance_power": (1, 2, False, True),
    "lambdarank_bias_norm": (0, 1e6, False, True),
    "querysoftmax_beta": (0, 1e6, True, True),
    "querysoftmax_lambda": (0, 1e6, False, True),
    "yetirank_decay": (0, 1, True, False),
    "yetirank_noise_power": (0, 1e6, False, True),
    "certify_tolerance": (0, 1, False, False),
    "resident_share": (0, 1, True, False),
    "n_jobs": (-1, 4096, False, False),
    "chunk_rows": (0, 2**31, False, True),
    "max_cat_to_onehot": (1, 65_536, False, False),
    "max_cat_threshold": (1, 65_536, False, False),
    "cat_smooth": (0, _INF, False, True),
    "cat_l2": (0, _INF, False, True),
    "min_data_per_group": (0, _INF, False, True),
}


def parse_bytes(name: str, value: int | float | str) -> int:
    """Bytes from a number or a text such as ``"2GB"`` or ``"512 MiB"``."""
    from dask.utils import parse_bytes as dask_parse_bytes

    try:
        if isinstance(value, bool) or (isinstance(value, str) and not any(map(str.isdigit, value))):
            raise TypeError("a truth value, or a text without a number, which Dask takes for 1")
        size = int(value if isinstance(value, np.integer) else dask_parse_bytes(value))
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ParameterError(f"{name}={shown(value)} is not a size; write bytes or a text such as '2GB'") from error
    if not 0 < size < 2**63:
        raise ParameterError(f"{name}={shown(value)} must be positive, and less than 2**63 bytes")
    return size


def as_tuple(value: object) -> tuple[Any, ...]:
    """Return one value or several as a tuple; None is none. Sets are sorted: their order may differ from run to run."""
    if value is None:
        return ()
    if isinstance(value, np.ndarray):
        return tuple(np.atleast_1d(value))
    if isinstance(value, str) or not isinstance(value, Iterable):
        return (value,)
    if isinstance(value, set | frozenset):
        try:
            return tuple(sorted(value))
        except TypeError:  # names and functions, say
            return tuple(sorted(value, key=lambda each: str(getattr(each, "__name__", each))))
    return tuple(value)


def _quantiles(value: object) -> tuple[float, ...]:
    alphas = as_tuple(value)
    try:
        if not all(isinstance(alpha, str | int | float | np.integer | np.floating) for alpha in alphas):
            raise TypeError("no numbers")
        return tuple(map(float, alphas))
    except (TypeError, ValueError, OverflowError) as error:
        raise ParameterError(
            f"quantile_alpha={shown(value)} must be a number between 0 and 1, or a list of such numbers"
        ) from error


def gains_parameter(value: object) -> tuple[float, ...]:
    """Return `label_gain` as a tuple; ParameterError unless it is a list of numbers, none below 0 or the one before."""
    is_scalar = isinstance(value, int | float | np.number)
    gains = () if is_scalar else as_tuple(value)
    are_numbers = not is_scalar and all(
        isinstance(gain, int | float | np.integer | np.floating) and not isinstance(gain, bool) for gain in gains
    )
    if not (are_numbers and all(0 <= low <= high <= LARGEST_GAIN for low, high in pairwise([0.0, *gains]))):
        raise ParameterError(
            f"label_gain={shown(value)} must be a list of the gains of labels 0, 1, 2 and so on, numbers from 0 to "
            "2**31, none below the one before, such as [0, 1, 3, 7]"
        )
    return tuple(map(float, gains))


def _check_directions(value: object) -> None:
    """Refuse monotone constraints of another kind; `monotone_directions` reads them once the features are known."""
    if value is None or isinstance(value, str):
        return
    is_listed = isinstance(value, Collection) and not isinstance(value, bytes) and getattr(value, "shape", None) != ()
    entries = as_tuple(value.values() if isinstance(value, Mapping) else value) if is_listed else ()
    if not is_listed or not all(isinstance(entry, str | int | float | np.integer | np.floating) for entry in entries):
        raise ParameterError(
            f"monotone_constraints={shown(value)} must be a sequence with -1, 0 or 1 per feature, or a mapping from "
            "feature name to direction"
        )


def as_path(name: str, value: object, what: str = "a file") -> Path:
    """Return a path that a user gives; ParameterError, naming the argument, for what is none, and for characters that
    the operating system takes in no path.

    `what` : what the path should be of.
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str):
        raise ParameterError(f"{name}={shown(value)} must be the path of {what}")
    try:
        is_possible = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        is_possible = False
    if not is_possible:
        raise ParameterError(
            f"{name}={shown(value)} has a null byte or a lone surrogate, which no path can have; leave it out"
        )
    return Path(text)


def _check_directory(name: str, value: object) -> None:
    if value is not None:
        as_path(name, value, "a directory")


def shown(value: object) -> str:
    """Return a value as messages show it: in one line, cut short."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a number of thousands of digits, for instance
        return f"<{type(value).__name__}>"
    return text if len(text) <= 160 else f"{text[:150]}..."


def own_signature(function: Callable[..., object]) -> inspect.Signature | None:
    """Return how a function may be called; None where that is not known, as of functions in C.

    The signature that `functools.wraps` copies from another function counts only where nothing else is known, as of
    Numba's, and of scikit-learn's, which pass all arguments on: other decorators may add some to a call, or take some
    away.
    """
    passes_on = str(getattr(function, "__globals__", {}).get("__name__")).startswith("sklearn.")
    for follow_wrapped in (passes_on, True):
        try:
            return inspect.signature(function, follow_wrapped=follow_wrapped)
        except (TypeError, ValueError):
            continue
    return None


def keyword_of(function: Callable[..., object], name: str) -> inspect.Parameter | None:
    """Return the parameter of this name that a function has, or one that it wraps and gives its keywords to; None for
    none."""
    own = own_signature(function)
    if own is None:
        return None
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.parameters.values())
    if name in own.parameters or not takes_any:
        return own.parameters.get(name)
    return inspect.signature(function).parameters.get(name)


def check_call(name: str, function: Callable[..., object], form: str, *keywords: str, remedy: str) -> None:
    """Refuse a function that cannot be called with two arguments and these keywords, before it would be.

    Raises
    ------
    ParameterError
        Naming the parameter `name`, the `form` of the call, which argument does not fit, and the remedy.
    """
    signature = own_signature(function)
    if signature is None:
        return
    try:
        signature.bind(None, None, **dict.fromkeys(keywords))
    except TypeError as error:
        raise ParameterError(f"{name}={shown(function)} cannot be called as {form}: {error}; {remedy}") from error


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False: ParameterError naming it."""
    if not isinstance(value, bool | np.bool_):
        raise ParameterError(f"{name}={shown(value)} must be True or False")


def check_pairs(params: Mapping[str, Any]) -> None:
    """Refuse parameters of ranking objectives that are no method, count or flag: ParameterError naming one."""
    check_choice("lambdarank_pair_method", params["lambdarank_pair_method"], PAIR_METHODS)
    pairs = params["lambdarank_num_pair_per_sample"]
    if pairs is not None:
        check_count("lambdarank_num_pair_per_sample", pairs, least=1, below=MOST_FIRST)
    for name in (*PAIR_FLAGS, "lambdarank_unbiased"):
        check_flag(name, params[name])
    norm = params["lambdarank_bias_norm"]
    _check_range("lambdarank_bias_norm", norm, *_RANGES["lambdarank_bias_norm"])
    if norm != TrainParams.lambdarank_bias_norm and not params["lambdarank_unbiased"]:
        raise ParameterError(
            f"lambdarank_bias_norm={norm:g} has no effect without lambdarank_unbiased=True, whose estimates it evens "
            "out; leave it out, or set that too"
        )


def check_yetirank(params: Mapping[str, Any]) -> None:
    """Refuse parameters of ``yetirank`` that are no mode, noise, count or share: ParameterError naming one."""
    mode = params["yetirank_mode"]
    check_choice("yetirank_mode", mode, YETIRANK_MODES)
    check_choice("yetirank_noise", params["yetirank_noise"], YETIRANK_NOISES)
    check_count("yetirank_permutations", params["yetirank_permutations"], least=1, below=MOST_ORDERS + 1)
    check_count("yetirank_neighbors", params["yetirank_neighbors"], least=1, below=MOST_FIRST)
    if params["yetirank_top"] is not None:
        check_count("yetirank_top", params["yetirank_top"], least=1, below=MOST_FIRST)
    for name in ("yetirank_decay", "yetirank_noise_power"):
        _check_range(name, params[name], *_RANGES[name])
    check_flag("ndcg_exp_gain", params["ndcg_exp_gain"])
    if mode == "classic" and params["yetirank_top"] is not None:
        raise ParameterError(
            f"yetirank_top={params['yetirank_top']} has no effect with yetirank_mode='classic'; use a mode that is a "
            "metric, such as 'ndcg', or a smaller yetirank_decay"
        )
    if mode != "classic" and params["yetirank_decay"] != TrainParams.yetirank_decay:
        raise ParameterError(
            f"yetirank_decay={params['yetirank_decay']:g} has no effect with yetirank_mode={mode!r}; leave it out, or "
            "use yetirank_mode='classic'"
        )


def check_count(name: str, value: object, *, least: int, below: int = 2**31, hint: str = "") -> None:
    """Refuse what is no whole number of at least `least` and less than `below`.

    Raises
    ------
    ParameterError
        Naming it; `hint` ends the sentence.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value < below:
        limit = f" and less than {below:,}" if below < 2**31 else ""
        raise ParameterError(f"{name}={shown(value)} must be an integer of at least {least}{limit}{hint}")


def _unknown(name: object) -> str:
    if not isinstance(name, str):
        return f"parameter name {name!r} is of type {type(name).__name__}; names are texts such as 'max_depth'"
    return f"unknown parameter {name!r}; {hint_of(name, PARAMETERS, 'valid names')}"


def split_device(device: object) -> tuple[str, int | None]:
    """A device's kind, "auto", "cpu" or "cuda", and its number: None where none is given.

    Raises
    ------
    ParameterError
        For anything but these, "gpu", which means "cuda", and "cuda:1" or "gpu:1", a number behind either.
    """
    kind, _, number = (device if isinstance(device, str) else "").partition(":")
    is_gpu = kind in ("cuda", "gpu")
    if is_gpu and number.isascii() and number.isdigit():
        return "cuda", int(number)
    check_choice("device", device, DEVICES)
    return ("cuda" if is_gpu else kind), None


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Refuse what is none of the words that a parameter takes, naming the closest."""
    if not (isinstance(value, str) and value in choices):
        close = difflib.get_close_matches(value, choices, n=1) if isinstance(value, str) else []
        hint = f"; did you mean {close[0]!r}?" if close else ""
        more = " (or 'cuda:1' for the GPU of that number)" if name == "device" else ""
        raise ParameterError(f"{name}={shown(value)} must be one of {', '.join(map(repr, choices))}{more}{hint}")


def _check_gpus(n_gpus: object, device: str) -> None:
    """Refuse numbers of GPUs that are none, and several where the device may be another one."""
    kind, number = split_device(device)
    is_number = isinstance(n_gpus, int | np.integer) and not isinstance(n_gpus, bool)
    if not (isinstance(n_gpus, str) and n_gpus == ALL_GPUS) and not (is_number and n_gpus >= 1):  # type: ignore[operator]
        raise ParameterError(f"n_gpus={shown(n_gpus)} must be an integer of at least 1, or {ALL_GPUS!r}")
    if n_gpus != 1 and (kind != "cuda" or number is not None):
        raise ParameterError(
            f"n_gpus={shown(n_gpus)} contradicts device={device!r}, which "
            f"{'is' if number is not None or kind == 'cpu' else 'may be'} one device: use device='cuda'"
        )


def _check_range(name: str, value: object, low: float, high: float, low_open: bool, high_open: bool) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ParameterError(f"{name}={shown(value)} must be a number")
    number = int(value) if isinstance(value, int | np.integer) else float(value)  # beyond 2**53 integers stay exact
    inside = (low < number if low_open else low <= number) and (number < high if high_open else number <= high)
    if not inside or abs(number) > sys.float_info.max:
        interval = f"{'(' if low_open else '['}{low:g}, {high:g}{')' if high_open else ']'}"
        raise ParameterError(f"{name}={shown(value)} must lie in {interval}")
