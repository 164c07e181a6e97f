"""Parameters: every bad one is refused by name, with its value and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from daskboost.errors import DaskBoostError, ParameterError
from daskboost.foreign_words import WORDS, our_name
from daskboost.params import _INTEGERS, _RANGES, PARAMETERS, TrainParams, parse_bytes
from daskboost.tree.device_trees import leaf_limit


def build(**values: Any) -> TrainParams:
    return TrainParams.from_mapping(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_dept": 3}, r"unknown parameter 'max_dept'; did you mean 'max_depth'\?"),
        ({"n_estimator": 3}, "unknown parameter 'n_estimator'"),
        ({"zzzzzz": 3}, "unknown parameter 'zzzzzz'; valid names are base_score, "),
        ({"eta": 0.1, "learning_rate": 0.2}, "'eta' and 'learning_rate' are two names of one parameter"),
        ({"grow_policy": "depthwize"}, r"grow_policy='depthwize' must be one of .*did you mean 'depthwise'\?"),
        ({"grow_policy": "lossguide", "max_depth": 0}, "'lossguide' needs max_leaves or max_depth above 0"),
        ({"max_depth": 0}, "max_depth=0 with grow_policy='depthwise' must lie between 1 and 24"),
        ({"max_depth": 25}, "max_depth=25 .* between 1 and 24; use grow_policy='lossguide' with max_leaves"),
        (
            {"max_depth": 17, "grow_policy": "symmetric"},
            r"max_depth=17 .* between 1 and 16, because it grows 2\*\*max_depth leaves whatever the rows; use ",
        ),
        ({"grow_policy": "symmetric", "max_leaves": 7}, r"max_leaves=7 contradicts grow_policy='symmetric'.*max_depth"),
        (
            {"gradient_precision": "packed"},
            "unknown parameter 'gradient_precision'; it was removed, since 'packed' made GPUs .* slower: leave it out",
        ),
        ({"gradient_precision": "exact"}, "'gradient_precision'; it was removed.* 15 bits, as with 'exact'"),
        ({"score_function": "L2"}, r"score_function='L2' must be one of 'auto', 'newton', 'l2'"),
        ({"use_quantized_grad": True}, "'use_quantized_grad'; gradients are always integers of 15 bits.*leave it out"),
        ({"device": "tpu"}, "device='tpu' must be one of 'auto', 'cpu'"),
        ({"iterations": 3}, "unknown parameter 'iterations'; rounds are num_boost_round"),
        ({"lambda_l1": 3}, "unknown parameter 'lambda_l1'; use reg_alpha"),
        ({"enable_categorical": True}, "unknown parameter 'enable_categorical'; columns of texts and categories"),
        ({"early_stopping_rounds": 5}, "unknown parameter 'early_stopping_rounds'; it is an argument of train"),
        ({"nfold": 5}, "unknown parameter 'nfold'; it is folds of cv and train_many"),
        ({"metrics": "auc", "eval_metric": "auc"}, "'metrics' and 'eval_metric' are two names of one parameter"),
        ({"tree_method": "hist"}, "unknown parameter 'tree_method'; trees are always grown from histograms"),
        ({"reduction": "tree"}, "reduction='tree' must be one of 'auto', 'coordinator', 'peers'"),
        ({"out_of_core": "certfied"}, "'exact', 'certified', 'sampled'; did you mean 'certified'?"),
        ({"certify_tolerance": -0.1}, r"certify_tolerance=-0\.1 must lie in \[0, 1\]"),
        ({"resident_share": 0}, r"resident_share=0 must lie in \(0, 1\]"),
        ({"quantile_alpha": [0.5, 1.0]}, "quantile_alpha=.*every quantile must lie between 0 and 1"),
        ({"quantile_alpha": "median"}, "quantile_alpha='median' must be a number between 0 and 1, or a list"),
        ({"objective": 7}, "objective=7 must be a name or a callable"),
        ({"max_bin": 10.5}, "max_bin=10.5 must be an integer"),
        ({"max_depth": True}, "max_depth=True must be a number"),
        ({"learning_rate": np.array([0.1])}, "learning_rate=.* must be a number"),
        ({"subsample": "half"}, "subsample='half' must be a number"),
        ({"subsample": float("nan")}, r"subsample=nan must lie in \(0, 1\]"),
        (
            {"host_memory_limit": "2 parsecs"},
            "host_memory_limit='2 parsecs' is not a size; write bytes or a text such as",
        ),
        ({"host_memory_limit": 0}, "host_memory_limit=0 must be positive"),
        ({"host_memory_limit": ""}, "host_memory_limit='' is not a size"),
        ({"device_memory_limit": "GB"}, "device_memory_limit='GB' is not a size"),
    ],
)
def test_bad_parameters_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message) as caught:
        build(**values)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, DaskBoostError)


@pytest.mark.parametrize(("grow_policy", "deepest"), [("depthwise", 24), ("symmetric", 16)])
def test_the_deepest_tree_of_a_policy_is_taken(grow_policy: str, deepest: int) -> None:
    assert build(grow_policy=grow_policy, max_depth=deepest).depth_limit == deepest


@pytest.mark.parametrize(("max_depth", "max_leaves", "limit"), [
    (0, 7, 7), (3, 0, 8), (3, 7, 7), (3, 9, 8), (200, 0, 0), (200, 5, 5),
])  # fmt: skip
def test_leaves_are_limited_by_the_depth_too(max_depth: int, max_leaves: int, limit: int) -> None:
    assert leaf_limit(build(grow_policy="lossguide", max_depth=max_depth, max_leaves=max_leaves)) == limit


@pytest.mark.parametrize("params", [None, "eta=0.1", [("eta", 0.1)]])
def test_what_is_no_mapping_is_refused(params: Any) -> None:
    with pytest.raises(ParameterError, match=f"params is of type {type(params).__name__}; give a mapping"):
        TrainParams.from_mapping(params)


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(ParameterError, match="parameter name 3 is of type int"):
        TrainParams.from_mapping({3: 4})  # type: ignore[dict-item]


def test_names_of_other_libraries_lead_to_parameters_of_ours() -> None:
    assert not PARAMETERS & set(WORDS)
    for word, meaning in WORDS.items():
        assert our_name(word, PARAMETERS) or meaning.hint, f"{word} is neither taken nor explained"


def test_minus_one_thread_is_all_cores_as_in_scikit_learn() -> None:
    assert build(nthread=-1) == build(n_jobs=0)


@pytest.mark.parametrize("name", sorted(_RANGES))
def test_values_beyond_a_range_are_refused(name: str) -> None:
    low, high, low_open, high_open = _RANGES[name]
    for edge, excluded, step in ((low, low_open, -1), (high, high_open, 1)):
        outside = edge if excluded else edge + step
        with pytest.raises(ParameterError, match=rf"{name}=.* must lie in "):
            build(**{name: outside})


ALIASES = {word: meaning.same for word, meaning in WORDS.items() if meaning.same in _RANGES}


def test_xgboosts_other_names_are_known() -> None:
    assert {"eta", "lambda", "alpha", "min_split_loss", "seed", "nthread"} <= set(ALIASES)


@pytest.mark.parametrize(("alias", "name"), sorted(ALIASES.items()))
def test_aliases_are_the_same_parameter(alias: str, name: str) -> None:
    assert build(**{alias: 1}) == build(**{name: 1})


def test_defaults_are_what_nothing_gives() -> None:
    assert build() == TrainParams()
    assert build(base_score=None, max_delta_step=None, subsample=None) == TrainParams()


def test_what_the_user_gave_is_remembered() -> None:
    assert {"learning_rate", "max_depth"} <= build(eta=0.1, max_depth=4).explicit


def test_metrics_and_quantiles_become_tuples() -> None:
    params = build(eval_metric="auc", quantile_alpha=0.9)
    assert (params.eval_metric, params.quantile_alpha) == (("auc",), (0.9,))
    assert build(eval_metric=["auc", "logloss"]).eval_metric == ("auc", "logloss")


class Backwards(set[Any]):
    """A set in another order than its elements', as those of texts are in other processes."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=str, reverse=True))


def test_sets_are_sorted() -> None:
    """The last metric stops a fit early, and models record them."""
    assert build(eval_metric=Backwards({"rmse", "mae", "mape"})).eval_metric == ("mae", "mape", "rmse")
    assert build(eval_metric=Backwards({"rmse", "mae", max})).eval_metric == ("mae", max, "rmse")
    assert build(quantile_alpha=Backwards({0.5, 0.00001})).quantile_alpha == (0.00001, 0.5)


@pytest.mark.parametrize("name", sorted(name for name in _RANGES if name not in _INTEGERS))
def test_numbers_are_kept_as_their_declared_type(name: str) -> None:
    """Models record parameters as texts, where 1, 1.0 and NumPy's must not differ."""
    beside = {"linear_lambda": {"linear_leaves": True}, "lambdarank_bias_norm": {"lambdarank_unbiased": True}}
    for given in (1, 1.0, np.float32(1), np.float64(1), np.int8(1)):
        kept = getattr(build(**{name: given}, **beside.get(name, {})), name)
        assert type(kept) is float and kept == 1


def test_counts_and_flags_are_kept_as_their_declared_type() -> None:
    given = build(max_depth=np.float64(3), yetirank_top=np.int16(5), yetirank_mode="ndcg", has_time=np.True_)
    assert [type(each) for each in (given.max_depth, given.yetirank_top, given.has_time)] == [int, int, bool]
    assert given.max_delta_step is None and build(random_state=np.uint64(2**64 - 1)).random_state == 2**64 - 1


def test_sizes_are_read_as_dask_reads_them() -> None:
    assert build(host_memory_limit="2GB").host_memory_limit == 2 * 10**9
    assert parse_bytes("x", "512 MiB") == 2**29


def test_parameters_are_frozen() -> None:
    params = build()
    with pytest.raises(AttributeError):
        params.max_depth = 3  # type: ignore[misc]
    assert len(fields(params)) > 30
