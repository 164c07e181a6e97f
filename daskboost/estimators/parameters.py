"""The constructor's parameters, declared once for all estimators.

`EstimatorParameters` is a dataclass, so that scikit-learn's `get_params`, `set_params` and `clone` find every parameter
in the signature of the constructor that the dataclass writes; defaults are those of `TrainParams`, or of `preset`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, ClassVar, Self, TypeVar, cast, dataclass_transform

import numpy as np
from sklearn.base import BaseEstimator

from daskboost.data.categories.combinations import DEFAULT_COMPLEXITY
from daskboost.errors import ParameterError
from daskboost.estimators.presets import PRESETS, ROUNDS_WITHOUT_STOPPING, Facts
from daskboost.foreign_words import hint_of, translated, unexpected
from daskboost.params import PARAMETERS, TrainParams, check_choice

C = TypeVar("C", bound=type)

SHARED_PARAMETERS = """
    preset : {"balanced", "fast", "best", "xgboost"}
        What holds for parameters that are not given (`docs/defaults.md`): five models, each of which stops by another
        fifth of the rows, averaged; one model that stops by a fifth; ten of half the learning rate; or XGBoost's
        defaults: 100 rounds of rate 0.3 over all rows.
    n_estimators : int, optional
        Rounds; one tree per output and round, or one of all outputs. Given alone, one model has exactly so many.
        By default rows tell when to stop, see `early_stopping`; where none do, 100.
    early_stopping : {"auto", True, False}
        Whether rows are held out from training, which tell after how many rounds to stop. "auto" is true where
        `n_estimators` is not given, or `early_stopping_rounds` is, for 500 rows or more; but not beside an `eval_set`,
        which tells instead, an `init_model`, `pairs` or ``preset="xgboost"``.
    validation_fraction : float in (0, 0.5], optional
        Share of the rows that is held out, rounded to one of 1/2, 1/3, 1/4, ...; by default a fifth. Rows are drawn by
        hashes: of each class the same share, whole queries; with `has_time`, and no queries, they are the last ones.
    n_members : int, optional
        Models that hold different rows out. By default five, three for three classes or more, and one for a million
        rows or more or beside `callbacks`.
    refit : {"average", "replay", "none"}, optional
        What becomes of models that stopped: they are averaged; or all rows are trained on for as many rounds as the
        one model found best; or that one is kept. By default several are averaged, one is kept, and with `has_time`
        replayed.
    multi_strategy : {"one_output_per_tree", "multi_output_tree"}, optional
        With several classes or quantiles: a tree for each per round, or one for all, whose leaves hold a value for
        each: several times faster, and a better fit where outputs need different splits takes more rounds. By default
        the latter for classes where rows tell when to stop and no other parameter needs the former, as
        `monotone_constraints` do; of several models over at most 2**25 rows times features times classes whichever
        of the two held-out rows prefer.
    sketch_outputs : int, default 0
        Random combinations of the outputs on which a ``multi_output_tree`` chooses its splits; 0 is all outputs.
    score_function : {"auto", "newton", "l2"}
        What splits are scored by: squared sums of gradients over sums of hessians (XGBoost's) or over sums of weights
        (CatBoost's L2). Leaf values are Newton's either way; "auto" is "l2" for symmetric trees of two classes.
    learning_rate : float in (0, 1], optional
        What leaf values are multiplied by. By default 0.1 where rows tell when to stop; of a given number of rounds
        one by this number, 0.3 of 30, 0.17 of 100, 0.03 of 1,000.
    max_depth, max_leaves : int, optional
        Most splits from root to leaf (at most 24 for depthwise, 16 for symmetric growth), by default 6, and 8 for
        depthwise growth over 10,000 rows or more of which some are held out; most leaves, 0 for no limit.
    max_bin : int, default 256
        Bins per feature, 2 to 65,535.
    grow_policy : {"depthwise", "lossguide", "symmetric"}
        Level by level; best gain first; one split for a whole level, hence 2**max_depth leaves whatever the rows.
    reg_lambda, reg_alpha : float, default 1 and 0
        L2 and L1 penalty of leaf values.
    linear_leaves : bool, default False
        Whether leaves are linear in the ranks of features on their path (LightGBM's ``linear_tree``).
    linear_lambda : float, default 20
        L2 penalty of their slopes, in rows of hessian 1.
    gamma : float, default 0
        Least gain of a split.
    min_child_weight : float, optional
        Least sum of hessians in a child, by default 1, and 0.01 for classes where rows are held out; of weights where
        `score_function` is "l2". A node whose hessians sum to less is worth 0.
    max_delta_step : float, optional
        Largest absolute leaf value before the learning rate; None is the objective's default.
    subsample : float in (0, 1], optional
        Share of rows that grow a tree; by default 0.8 where rows are held out, else 1.
    sampling_unit : {"object", "group"}
        What `subsample` draws: rows, or whole queries, which `fit` then needs as `qid`.
    colsample_bytree, colsample_bylevel, colsample_bynode : float in (0, 1]
        Share of features per tree, 1 by default, of those per level, as `subsample`, of those per node, 1.
    scale_pos_weight : float, default 1
        Weight of rows of the second class in binary classification.
    monotone_constraints : sequence or mapping, optional
        -1, 0 or 1 per feature, or by name.
    interaction_constraints : sequence of groups, optional
        Features (indices or names) that may meet on one path.
    ignored_features : sequence, optional
        Features (indices or names) that no tree splits on.
    base_score : float, optional
        Prediction before the first tree, in the label's space (a margin where there are several classes); None
        estimates it from the labels, see `TrainParams.base_score`.
    objective : str or callable, optional
        What is minimised, by default that of the kind of estimator: a registered name, or
        ``f(label, margin) -> (gradient, hessian)``, or ``f(label, margin, group)`` of whole queries.
    eval_metric : str, callable or a list of them, optional
        Metrics of `eval_set`, by default the objective's; a callable is ``f(y_true, y_pred) -> value``, smaller being
        better unless it has a true attribute ``maximize`` or is one of scikit-learn's ``..._score``.
    early_stopping_rounds : int, optional
        Stop after so many rounds without improvement of the last metric on the last set of `eval_set`, or on rows that
        are held out; 30 where `n_estimators` is not given, 60 of rows that have a `qid`.
    callbacks : sequence of Callback, optional
        Progress bars, schedules, checkpoints.
    quantile_alpha : float or sequence of float, default 0.5
        Quantiles of ``reg:quantileerror``; several give several columns of predictions.
    huber_slope : float, default 1
        Of ``reg:pseudohubererror``.
    tweedie_variance_power : float in [1, 2), default 1.5
        Of ``reg:tweedie``.
    querysoftmax_beta : float, default 1
        What scores are multiplied by in ``querysoftmax``.
    querysoftmax_lambda : float, default 0.01
        What is added to the second derivative of each row in ``querysoftmax``.
    lambdarank_pair_method : {"topk", "mean"}
        Pairs of rows in rankings: of each of the rows with the highest scores of a query with all that score less, or
        some drawn for each row.
    lambdarank_num_pair_per_sample : int, optional
        How many rows of highest scores, by default 32, or pairs of each row, by default 1.
    lambdarank_normalization, lambdarank_score_normalization : bool, default True
        Whether gradients of a query are divided by what grows with the number of its pairs; whether what a pair counts
        is divided by the difference of its scores and 0.01.
    lambdarank_unbiased : bool, default False
        Whether labels of ``rank:*`` are clicks on rows that were shown in their order within the query, which depend on
        their positions: rounds estimate how, and pairs are divided by it.
    lambdarank_bias_norm : float, default 1
        What evens out these estimates: they are raised to the power ``1 / (1 + lambdarank_bias_norm)``.
    ndcg_exp_gain : bool, default True
        Whether a label's gain in NDCG is ``2**label - 1``, rather than the label.
    label_gain : sequence of float, optional
        Gains of labels 0, 1, ... in NDCG instead, none below the one before.
    yetirank_mode : {"classic", "ndcg", "dcg", "mrr", "err", "map"}
        What a pair of rows counts in ``yetirank``: less from place to place, or how much that metric changes.
    yetirank_permutations : int, default 10
        Noisy orders of each query in a round.
    yetirank_decay : float in (0, 1], default 0.85
        What a pair counts less from place to place in mode ``classic``.
    yetirank_neighbors : int, default 1
        Places below its own that a row of a noisy order is paired with.
    yetirank_top : int, optional
        First places that the metric of a mode sees, by default all.
    yetirank_noise : {"logistic", "gumbel"}
        What is added to scores, of u drawn from (0, 1): ``log(u / (1 - u))`` or ``-log(-log(u))``.
    yetirank_noise_power : float, default 1
        What noise is multiplied by.
    missing : float, default NaN
        A further value that stands for missing; NaN always does.
    categorical_features : sequence of str or int, optional
        Names or positions of columns of numbers that hold categories; columns of texts and of categories always do.
        They become what `encodings` says.
    max_ctr_complexity : {2, 1, 3, 4}
        Columns that become target statistics and have many levels each become such in pairs as well, with 3 or 4 also
        in combinations of up to so many columns, for which rows are read once or twice more; 1 makes them of single
        columns alone.
    cross_features : bool, default True
        Whether differences and products of the numerical columns that gain most are tried as further features, where
        several models are averaged, over at most 2**25 rows times features times classes: they are kept where the
        loss of held-out rows is 1 % lower by them. All rows are read once more to try them. The model makes them of its
        columns; other libraries that read its file want the made features. Not where most values are missing.
    encodings : {"auto", "target", "onehot", "native"} or mapping from column to such a word
        What categorical columns become: statistics of the labels by level; a feature of each level; or codes, which
        trees split by sets of levels (`docs/categories.md`). "auto" is "target", but "onehot" for columns of three
        or four levels where there are several classes or counts, and "native" for columns of 2,048 rows a level or
        more where there are 131,072 rows or more, a single output, and parameters that take sets of levels on any
        device.
    has_time : bool, default False
        Whether rows are given in the order of time. Statistics of a row that is trained on are then of the rows before
        it alone, not of all but its fold; of several partitions the first one comes first. Rows that are predicted have
        those of all training rows.
    max_cat_to_onehot, max_cat_threshold : int, default 4 and 64
        Codes of fewer levels than the first are split by one level against all others, of as many or more by sets; the
        second is one more than the levels that a set, or all that is no part of it, may have.
    cat_smooth, cat_l2, min_data_per_group : float, default 0
        LightGBM's limits of sets of several levels (its defaults are 10, 10 and 100): what `reg_lambda` is more where
        levels are ordered, and the least sum of a node's hessians (rows, for squared error) of a level that is chosen;
        what it is more where gains of sets are compared; and the least sum of hessians of levels that are added before
        a set is tried again, and of those on the other side. With 0 sets are those of XGBoost.
    random_state : int, RandomState or Generator, optional
        Seed of every draw; None is 0, so fits repeat unless asked not to.
    n_jobs : int, optional
        Threads in this process; None, 0 and -1 are all cores. Workers of a cluster use their own.
    device : {"auto", "cpu", "cuda", "cuda:1"}
        Where rows are quantized and worked on; "auto" is a GPU where CuPy and one are there. A number chooses among
        several GPUs; without one it is the GPU that rows lie on, else CuPy's current one. The model does not depend on
        it, nor does a prediction, which takes place there if it pays, see `predict`.
    n_gpus : int or "all", default 1
        With ``device="cuda"``, to how many GPUs of this process rows are shared out; "all" are those that it sees
        (CUDA_VISIBLE_DEVICES). Small data go to fewer, where fits are faster. On a Dask cluster each worker has a GPU.
        The model does not depend on it.
    chunk_rows : int, default 0
        Rows per quantized chunk; 0 chooses by bytes. The model does not depend on it.
    reduction : {"auto", "coordinator", "peers", "nccl"}
        How histograms of several workers meet: at the coordinator; shared out among the workers by feature; or on their
        GPUs, which "nccl" joins, one of each worker, or refuses with a `DeviceError` that says why they cannot be.
        "auto" joins GPUs where they can be, and takes the faster of the other two elsewhere. The model does not depend
        on it.
    partition_by : {"auto", "rows", "columns"}
        What several GPUs share: the rows, as they have them, or the features, of which each then has some of all rows.
        "auto" takes what takes less time. The model does not depend on it.
    host_memory_limit : int or str, optional
        Most RAM (bytes, or a text such as "2GB") for a process's chunks, those of evaluation sets included, before they
        go to disk. Categorical columns take beside it at most a quarter for their levels and counts, and as much again
        for combinations of them; see `QuantizedDataset.from_dask`.
    spill_directory : str, optional
        Where chunks go that exceed it.
    device_memory_limit : int or str, optional
        Most of a GPU's memory that quantizing or a fit takes beside bins that lie there already; None is what is free.
        Bins without room are streamed through it; others are read once, be they in files. The model does not depend on
        it.
    out_of_core : {"auto", "exact", "certified", "sampled"}
        A pass over the rows per level, which is also what "auto" does; or trees grown on a sample of them and held to
        exact histograms of all rows in one pass, or more where they lost too much; or trees grown on the share
        `subsample` of the rows, drawn by their gradients, one pass per round.
    certify_tolerance : float in [0, 1], default 0.5
        Share of a certified tree's gain that may be lost before it takes another pass; 0 gives the exact model. A pass
        that grows another tree instead brings more, unless half of the gain is lost.
    resident_share : float in (0, 1], default 0.25
        Share of the rows, others each round, on which certified trees are grown.
    importance_type : {"gain", "weight", "cover", "total_gain", "total_cover"}
        What `feature_importances_` measures.
"""

SHARED_ATTRIBUTES = """
    booster_ : Booster
    evals_result_ : dict
        Evaluation set -> metric -> a value per round; "out_of_core" -> what passes over all rows cost and lost, where
        trees grow on samples.
    best_iteration, best_score : int, float
        Where early stopping ran.
    feature_importances_ : float32 array, shape (features,)
    n_features_in_ : int
    feature_names_in_ : object array of str
        Where the training data had column names, all of them texts.
"""


@dataclass_transform(kw_only_default=True, eq_default=False)
def estimator(cls: C) -> C:
    """A class decorator: fields become keyword parameters of the constructor, and docs of shared ones are filled in.

    The constructor takes XGBoost's other names of parameters, such as ``eta``. An unknown keyword raises Python's usual
    TypeError, with the closest parameter, or what the word of another library means here.
    """
    made: Any = dataclasses.dataclass(kw_only=True, eq=False, repr=False)(cls)
    made.__init__ = _with_hint(made, made.__init__)
    made.__doc__ = (
        (cls.__doc__ or "")
        .replace("{parameters}", SHARED_PARAMETERS.strip())
        .replace("{attributes}", SHARED_ATTRIBUTES.strip())
    )
    return cast(C, made)


def _with_hint(cls: type, init: Callable[..., None]) -> Callable[..., None]:
    """Let a constructor take other names of its parameters, and hint at what others mean."""
    names = parameter_names(cls)

    @wraps(init)  # scikit-learn reads the parameters from the signature of what is wrapped
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        refuse = partial(_unexpected, cls.__name__, names)
        init(self, *args, **translated(kwargs, names, refuse))

    return __init__


def parameter_names(cls: Any) -> frozenset[str]:
    """Return the names of an estimator's parameters."""
    return frozenset(cls._get_param_names())


def _unexpected(owner: str, names: frozenset[str], word: str) -> TypeError:
    return unexpected(owner, word, hint_of(word, names, "parameters"))


@estimator
class EstimatorParameters(BaseEstimator):  # type: ignore[misc]
    """The parameters of every estimator.

    Parameters
    ----------
    {parameters}
    """

    _names: ClassVar[tuple[str, ...]]
    preset: str = "balanced"
    n_estimators: int | None = None
    early_stopping: bool | str = "auto"
    validation_fraction: float | None = None
    n_members: int | None = None
    refit: str | None = None
    multi_strategy: str | None = None
    sketch_outputs: int = TrainParams.sketch_outputs
    score_function: str = TrainParams.score_function
    learning_rate: float | None = None
    max_depth: int | None = None
    max_leaves: int = TrainParams.max_leaves
    max_bin: int = TrainParams.max_bin
    grow_policy: str = TrainParams.grow_policy
    reg_lambda: float = TrainParams.reg_lambda
    reg_alpha: float = TrainParams.reg_alpha
    linear_leaves: bool = TrainParams.linear_leaves
    linear_lambda: float = TrainParams.linear_lambda
    gamma: float = TrainParams.gamma
    min_child_weight: float | None = None
    max_delta_step: float | None = TrainParams.max_delta_step
    subsample: float | None = None
    sampling_unit: str = TrainParams.sampling_unit
    colsample_bytree: float = TrainParams.colsample_bytree
    colsample_bylevel: float | None = None
    colsample_bynode: float = TrainParams.colsample_bynode
    scale_pos_weight: float = TrainParams.scale_pos_weight
    monotone_constraints: Any = None
    interaction_constraints: Any = None
    ignored_features: Any = None
    base_score: float | None = None
    objective: Any = None
    eval_metric: Any = None
    early_stopping_rounds: int | None = None
    callbacks: Any = None
    quantile_alpha: Any = TrainParams.quantile_alpha
    huber_slope: float = TrainParams.huber_slope
    tweedie_variance_power: float = TrainParams.tweedie_variance_power
    querysoftmax_beta: float = TrainParams.querysoftmax_beta
    querysoftmax_lambda: float = TrainParams.querysoftmax_lambda
    lambdarank_pair_method: str = TrainParams.lambdarank_pair_method
    lambdarank_num_pair_per_sample: int | None = TrainParams.lambdarank_num_pair_per_sample
    lambdarank_normalization: bool = TrainParams.lambdarank_normalization
    lambdarank_score_normalization: bool = TrainParams.lambdarank_score_normalization
    lambdarank_unbiased: bool = TrainParams.lambdarank_unbiased
    lambdarank_bias_norm: float = TrainParams.lambdarank_bias_norm
    ndcg_exp_gain: bool = TrainParams.ndcg_exp_gain
    label_gain: Sequence[float] = TrainParams.label_gain
    yetirank_mode: str = TrainParams.yetirank_mode
    yetirank_permutations: int = TrainParams.yetirank_permutations
    yetirank_decay: float = TrainParams.yetirank_decay
    yetirank_neighbors: int = TrainParams.yetirank_neighbors
    yetirank_top: int | None = TrainParams.yetirank_top
    yetirank_noise: str = TrainParams.yetirank_noise
    yetirank_noise_power: float = TrainParams.yetirank_noise_power
    missing: float = np.nan
    categorical_features: Sequence[str | int] | str | int | None = None
    max_ctr_complexity: int = DEFAULT_COMPLEXITY
    cross_features: bool = True
    encodings: Any = "auto"
    has_time: bool = TrainParams.has_time
    max_cat_to_onehot: int = TrainParams.max_cat_to_onehot
    max_cat_threshold: int = TrainParams.max_cat_threshold
    cat_smooth: float = TrainParams.cat_smooth
    cat_l2: float = TrainParams.cat_l2
    min_data_per_group: float = TrainParams.min_data_per_group
    random_state: Any = None
    n_jobs: int | None = None
    device: str = TrainParams.device
    n_gpus: int | str = TrainParams.n_gpus
    chunk_rows: int = TrainParams.chunk_rows
    reduction: str = TrainParams.reduction
    partition_by: str = TrainParams.partition_by
    host_memory_limit: int | str | None = None
    spill_directory: str | None = None
    device_memory_limit: int | str | None = None
    out_of_core: str = TrainParams.out_of_core
    certify_tolerance: float = TrainParams.certify_tolerance
    resident_share: float = TrainParams.resident_share
    importance_type: str = "gain"

    def set_params(self, **params: Any) -> Self:
        """Set parameters, under any name that the constructor takes.

        Raises
        ------
        ParameterError
            A name that it does not take.
        """
        names = parameter_names(type(self))

        def refuse(word: str) -> ParameterError:
            return ParameterError(f"Invalid parameter {word!r} for {type(self).__name__}; "
                                  f"{hint_of(word, names, 'parameters')}")  # fmt: skip

        super().set_params(**translated(params, names, refuse))
        return self

    @classmethod
    def _get_param_names(cls) -> list[str]:
        """Return the parameters' names; scikit-learn reads them from the constructor's signature, here once."""
        if "_names" not in vars(cls):
            cls._names = tuple(super()._get_param_names())
        return list(cls._names)

    def train_params(self, objective: Any, num_class: int = 0) -> TrainParams:
        """What the fit goes by: the parameters that `TrainParams` knows, checked; ParameterError for values out of
        range and contradictions."""
        values = {name: value for name, value in self.get_params(deep=False).items() if name in PARAMETERS}
        values |= self.unset_values(Facts(self.n_estimators or ROUNDS_WITHOUT_STOPPING))
        values |= {"objective": objective, "num_class": num_class}
        values |= {"random_state": _seed(self.random_state), "n_jobs": self.n_threads}
        return TrainParams.from_mapping(values)

    def unset_values(self, facts: Facts) -> dict[str, Any]:
        """Return by name what training parameters that are not given are, see `Preset.values`."""
        check_choice("preset", self.preset, PRESETS)
        values = PRESETS[self.preset].values(facts)
        return {name: value for name, value in values.items() if getattr(self, name) is None}

    def also_tried(self, facts: Facts) -> dict[str, Any]:
        """Return by name what differs in other parameters that members are trained by too, see `Preset.also_tried`."""
        values = PRESETS[self.preset].also_tried(facts)
        return {name: value for name, value in values.items() if getattr(self, name) is None}

    @property
    def n_threads(self) -> int:
        """`n_jobs` as `TrainParams` has it: 0 for all cores."""
        if self.n_jobs is None or (isinstance(self.n_jobs, int | np.integer) and self.n_jobs == -1):
            return 0
        return self.n_jobs


def _seed(random_state: Any) -> Any:
    if random_state is None:
        return 0
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(np.iinfo(np.int32).max))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(np.iinfo(np.int32).max))
    return random_state
