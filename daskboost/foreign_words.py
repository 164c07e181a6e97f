"""Words of other libraries: which are other names of ours, and what to say of those that are not.

One table serves training parameters, constructors and functions. What a word means does not depend on where it is
given: a place that has our word of the same meaning takes it, and any other place says what to do instead.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from daskboost.errors import ParameterError

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Meaning:
    """What a word of another library means here."""

    same: str = ""
    """Our word of the same meaning, if there is one."""
    hint: str = ""
    """What to do where `same` is not taken."""


_ROUNDS = Meaning(hint="rounds are num_boost_round of train and n_estimators of the estimators")
_HISTOGRAMS = Meaning(hint="trees are always grown from histograms, so leave it out")
_PRINTING = "metrics are printed by train and fit with verbose=True, or by the callbacks EvaluationLog and ProgressBar"
_CHILD_WEIGHT = Meaning(hint="use min_child_weight, which limits the sum of hessians (rows, for squared error)")
_OF_TRAIN = Meaning(hint="it is an argument of train")
_OF_DATA = Meaning(hint="it is an argument of QuantizedDataset.from_dask")
_CATEGORIES = Meaning(hint="use encodings={'column': 'onehot'}; columns are target statistics by default")
_OF_CATEGORIES = Meaning(hint="it is a parameter of the estimators and of QuantizedDataset.from_dask")
_INTEGERS = Meaning(hint="gradients are always integers of 15 bits, rounded without bias, so leave it out")
_GROUPS = Meaning("qid", "give qid, the query of each row, to fit of DaskBoostRanker or to QuantizedDataset.from_dask")
_SIZES = Meaning(hint="give the query of each row in its place: qid=np.repeat(np.arange(len(group)), group)")

WORDS: Mapping[str, Meaning] = {
    # Other names of the same parameters and arguments
    "eta": Meaning("learning_rate"),
    "lambda": Meaning("reg_lambda"),
    "alpha": Meaning("reg_alpha"),
    "min_split_loss": Meaning("gamma"),
    "seed": Meaning("random_state"),
    **dict.fromkeys(("nthread", "n_threads"), Meaning("n_jobs")),
    "pairs_weight": Meaning("pair_weight", "it is pair_weight of train and of fit of DaskBoostRanker"),
    **dict.fromkeys(("linear_tree", "linear_trees"), Meaning("linear_leaves")),
    "xgb_model": Meaning("init_model", "it is init_model of train and fit"),
    "nfold": Meaning("folds", "it is folds of cv and train_many"),
    "metrics": Meaning("eval_metric", "it is eval_metric"),
    "verbose_eval": Meaning("verbose", _PRINTING),
    "eval_sample_weight": Meaning("sample_weight_eval_set", "give weights to the evaluation set"),
    "eval_init_score": Meaning("base_margin_eval_set", "give base margins to the evaluation set"),
    **dict.fromkeys(("init_score", "baseline"), Meaning("base_margin", "give base_margin with the rows")),
    # Parameters
    **dict.fromkeys(("n_estimators", "num_boost_round", "num_iterations", "iterations", "nrounds", "max_iter"),
                    _ROUNDS),
    **dict.fromkeys(("tree_method", "booster", "boosting", "boosting_type"), _HISTOGRAMS),
    **dict.fromkeys(("verbosity", "verbose", "silent", "logging_level"), Meaning(hint=_PRINTING)),
    **dict.fromkeys(("num_leaves", "max_leaf_nodes"), Meaning(hint="use max_leaves, with grow_policy='lossguide'")),
    **dict.fromkeys(("lambda_l1",), Meaning(hint="use reg_alpha")),
    **dict.fromkeys(("lambda_l2", "l2_leaf_reg", "l2_regularization"), Meaning(hint="use reg_lambda")),
    **dict.fromkeys(("min_split_gain", "min_gain_to_split"), Meaning(hint="use gamma")),
    **dict.fromkeys(("min_data_in_leaf", "min_child_samples", "min_samples_leaf", "min_sum_hessian_in_leaf"),
                    _CHILD_WEIGHT),
    **dict.fromkeys(("bagging_fraction", "subsample_freq", "bagging_freq"),
                    Meaning(hint="use subsample, drawn for every tree")),
    "bagging_by_query": Meaning(hint="use sampling_unit='group', with subsample"),
    **dict.fromkeys(("feature_fraction", "rsm"), Meaning(hint="use colsample_bytree")),
    "ignore_column": Meaning(hint="use ignored_features"),
    "depth": Meaning(hint="use max_depth"),
    **dict.fromkeys(("loss", "loss_function"), Meaning(hint="use objective")),
    "metric": Meaning(hint="use eval_metric"),
    "class_weight": Meaning(hint="it is a parameter of DaskBoostClassifier"),
    **dict.fromkeys(("use_quantized_grad", "num_grad_quant_bins", "quant_train_renew_leaf", "stochastic_rounding"),
                    _INTEGERS),
    "gradient_precision": Meaning(
        hint="it was removed, since 'packed' made GPUs 7 to 9 % slower: leave it out, and splits are chosen on "
             "gradients of 15 bits, as with 'exact'"
    ),
    "sampling_method": Meaning(hint="'uniform' is the default; out_of_core='sampled' draws rows by their gradients, on "
                                    "data in memory as well"),
    "num_parallel_tree": Meaning(hint="random forests are not part of this version"),
    **dict.fromkeys(("cat_features", "categorical_feature"), Meaning("categorical_features", _OF_CATEGORIES.hint)),
    **dict.fromkeys(("categorical_features", "max_ctr_complexity"), _OF_CATEGORIES),
    "enable_categorical": Meaning(hint="columns of texts and categories are always taken as such, so leave it out"),
    "feature_types": Meaning(hint="name columns of numbers that hold categories in categorical_features"),
    "one_hot_max_size": _CATEGORIES,
    # Arguments
    **dict.fromkeys(("early_stopping_rounds", "callbacks", "evals_result"), _OF_TRAIN),
    **dict.fromkeys(("missing", "encoding", "packing"), _OF_DATA),
    **dict.fromkeys(("qid", "group_id"), _GROUPS),
    **dict.fromkeys(("group", "eval_group"), _SIZES),
    **dict.fromkeys(("evals", "eval_set", "valid_sets"),
                    Meaning(hint="evaluation sets are evals=[(data, 'valid')] of train, eval_set=[(X, y)] of fit")),
    **dict.fromkeys(("valid_names", "eval_names"),
                    Meaning(hint="evals=[(data, 'valid')] of train names sets; those of fit are validation_0, ...")),
    **dict.fromkeys(("obj", "fobj"),
                    Meaning(hint="use objective, a function f(label, margin) -> (gradient, hessian)")),
    "feval": Meaning(hint="use custom_metric of train, or eval_metric: a function f(y_true, y_pred) -> value"),
    "eval_at": Meaning(hint="places are named with metrics, as in eval_metric=['ndcg@1', 'ndcg@3']"),
    "maximize": Meaning(hint="metrics know their direction; a function's is its attribute maximize"),
    **dict.fromkeys(("as_pandas", "show_stdv"),
                    Meaning(hint="the result is a pandas.DataFrame, means beside deviations")),
    "use_best_model": Meaning(hint="predictions end at the best iteration where early stopping ran"),
}  # fmt: skip
"""Words that spelling alone would guide wrongly, and other names of ours."""


def our_name(word: str, known: Collection[str]) -> str | None:
    """Return the name, among those that a place knows, that a word stands for; None where there is none."""
    if word in known:
        return word
    same = WORDS[word].same if word in WORDS else ""
    return same if same in known else None


def hint_of(word: str, known: Collection[str], noun: str) -> str:
    """Return what to say of a word that a place does not know; `noun` is what it calls those that it does."""
    meaning = WORDS.get(word)
    if meaning is not None and (meaning.hint or meaning.same):
        return meaning.hint or f"it is {meaning.same}"
    close = difflib.get_close_matches(word, sorted({*known, *(w for w in WORDS if our_name(w, known))}), n=1)
    return f"did you mean {close[0]!r}?" if close else f"{noun} are {', '.join(sorted(known))}"


def translated(given: Mapping[str, Any], known: Collection[str], refuse: Callable[[str], Exception], *,
               noun: str = "parameter") -> dict[str, Any]:  # fmt: skip
    """Return what was given under our names.

    Parameters
    ----------
    given : mapping
        Values by any words.
    known : collection of str
        Our names that the place has.
    refuse : callable
        Gives the exception for a word that is none of these.
    noun : str
        What messages call them.

    Raises
    ------
    ParameterError
        Two names of one thing. A second name whose value is None counts as not given.
    """
    found: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for word, value in given.items():
        name = our_name(word, known)
        if name is None:
            raise refuse(word)
        if name in found:
            if value is None:
                continue
            if found[name] is not None:
                raise ParameterError(f"{spelled[name]!r} and {word!r} are two names of one {noun}; give one of them")
        found[name], spelled[name] = value, word
    return found


def unexpected(owner: str, word: str, hint: str) -> TypeError:
    """Return Python's own error for a keyword, with a hint."""
    return TypeError(f"{owner}() got an unexpected keyword argument {word!r}; {hint}")


def takes_foreign_words(
    elsewhere: Callable[[Any], Collection[str]], remedy: str
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function take keywords of other libraries that mean the same, and hint at what to do with the others.

    Parameters
    ----------
    elsewhere : callable
        Of the first argument (None without one): our names that belong somewhere else than into this function.
    remedy : str
        What to do with one of these, a template with ``{name}``.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        names = list(inspect.signature(function).parameters)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if kwargs.keys() <= set(names):
                return function(*args, **kwargs)

            def refuse(word: str) -> TypeError:
                belongs = our_name(word, elsewhere(args[0] if args else None))
                known = [name for name in names if name not in ("self", "cls")]
                hint = hint_of(word, known, "arguments") if belongs is None else remedy.format(name=belongs)
                return unexpected(function.__name__, word, hint)

            return function(*args, **translated(kwargs, names, refuse, noun="argument"))

        return call

    return decorate
