"""How many rounds an estimator's fit has, and what ends it."""

from __future__ import annotations

from dataclasses import dataclass

from daskboost.errors import ParameterError
from daskboost.estimators.parameters import EstimatorParameters
from daskboost.estimators.presets import LEAST_ROWS, PRESETS, ROUNDS_WITHOUT_STOPPING, Preset
from daskboost.params import check_choice, check_count, shown
from daskboost.training.members import HoldingOut, n_folds_of

REFITS = ("average", "replay", "none")


@dataclass(frozen=True)
class FitShape:
    """What of a fit decides on its rounds, beside parameters.

    Parameters
    ----------
    is_evaluated : bool
        Whether there are evaluation sets.
    other_reason : str
        Why no rows can be held out, an argument of `fit`; empty where they can be.
    has_callbacks, has_queries : bool
    n_classes : int
        Of the labels; 0 where they are numbers.
    """

    is_evaluated: bool = False
    other_reason: str = ""
    has_callbacks: bool = False
    has_queries: bool = False
    n_classes: int = 0


@dataclass(frozen=True)
class Rounds:
    """The rounds of a fit."""

    most: int
    patience: int | None
    """Rounds without improvement on the last evaluation set that end it; None where none do."""
    holding_out: HoldingOut | None
    """Rows to hold out; None where none are."""

    @property
    def stops(self) -> bool:
        """Whether rows tell when to stop."""
        return self.holding_out is not None or self.patience is not None


def rounds_of(chosen: EstimatorParameters, shape: FitShape, n_rows: int) -> Rounds:
    """Return the rounds of a fit of so many rows whose weight is not 0.

    Raises
    ------
    ParameterError
        Parameters of stopping that are out of range, contradict each other, or the fit.
    """
    _check(chosen, shape)
    preset, given = PRESETS[chosen.preset], chosen.early_stopping_rounds
    stops = chosen.early_stopping is True or (
        _may_hold_out(chosen, shape)
        and (chosen.n_estimators is None or given is not None) and (n_rows >= LEAST_ROWS or given is not None)
    )  # fmt: skip
    if shape.is_evaluated and chosen.n_estimators is None and preset.stops and chosen.early_stopping:
        usual = preset.patience(0, has_queries=shape.has_queries)  # the user's rows tell, of which there may be few
        return Rounds(preset.n_estimators, usual if given is None else given, None)
    if shape.is_evaluated or not stops:
        most = ROUNDS_WITHOUT_STOPPING if chosen.n_estimators is None else chosen.n_estimators
        return Rounds(most, given, None)
    most = preset.n_estimators if chosen.n_estimators is None else chosen.n_estimators
    patience = preset.patience(n_rows, has_queries=shape.has_queries) if given is None else given
    return Rounds(most, None, _holding_out(chosen, shape, preset, n_rows, patience))


def _may_hold_out(chosen: EstimatorParameters, shape: FitShape) -> bool:
    """Return whether rows may be held out, if there are enough and no number of rounds was given alone."""
    if chosen.early_stopping == "auto":
        return PRESETS[chosen.preset].stops and not shape.other_reason
    return bool(chosen.early_stopping)


def _holding_out(chosen: EstimatorParameters, shape: FitShape, preset: Preset, n_rows: int, patience: int
                 ) -> HoldingOut:  # fmt: skip
    in_time = bool(chosen.has_time) and not shape.has_queries
    fraction = preset.validation_fraction if chosen.validation_fraction is None else chosen.validation_fraction
    n_members = chosen.n_members
    if n_members is None:
        single = in_time or shape.has_callbacks or chosen.refit in ("replay", "none")
        n_members = 1 if single else min(preset.n_members(n_rows, shape.n_classes), n_folds_of(fraction))
    refit = chosen.refit or ("replay" if in_time else "average" if n_members > 1 else "none")
    return HoldingOut(fraction, n_members, patience, refit, in_time, shape.n_classes > 0, shape.has_queries)


def _check(chosen: EstimatorParameters, shape: FitShape) -> None:
    """Refuse parameters of stopping that are out of range or contradict each other."""
    check_choice("preset", chosen.preset, PRESETS)
    if chosen.n_estimators is not None:
        check_count("n_estimators", chosen.n_estimators, least=0)
    if not isinstance(chosen.early_stopping, bool | str) or chosen.early_stopping not in (True, False, "auto"):
        raise ParameterError(f"early_stopping={shown(chosen.early_stopping)} must be 'auto', True or False")
    if chosen.early_stopping is True and shape.other_reason:
        raise ParameterError(
            f"early_stopping=True holds rows out, which {shape.other_reason} does not allow; pass eval_set, whose rows "
            "tell when to stop, and leave early_stopping out"
        )
    if chosen.early_stopping_rounds is not None and not (shape.is_evaluated or _may_hold_out(chosen, shape)):
        raise ParameterError(
            f"early_stopping_rounds={shown(chosen.early_stopping_rounds)} needs rows that tell when to stop; pass "
            "eval_set=[(X_valid, y_valid)] to fit, or early_stopping=True, which holds some out"
        )
    if chosen.early_stopping_rounds is not None:
        check_count("early_stopping_rounds", chosen.early_stopping_rounds, least=1)
    _check_held_out(chosen)


def _check_held_out(chosen: EstimatorParameters) -> None:
    fraction, n_members, refit = chosen.validation_fraction, chosen.n_members, chosen.refit
    if fraction is not None and not (isinstance(fraction, int | float) and 0.001 <= fraction <= 0.5):
        raise ParameterError(f"validation_fraction={shown(fraction)} must be a number from 0.001 to 0.5")
    if refit is not None:
        check_choice("refit", refit, REFITS)
    if n_members is None:
        return
    check_count("n_members", n_members, least=1)
    most = n_folds_of(fraction or PRESETS[chosen.preset].validation_fraction)
    if n_members > most:
        raise ParameterError(
            f"n_members={n_members} models cannot each hold out another share of the rows where "
            f"validation_fraction={fraction}; give at most {most}, or a smaller share"
        )
    if n_members > 1 and refit in ("replay", "none"):
        raise ParameterError(f"n_members={n_members} models are averaged, and refit={refit!r} is of one; leave one out")
    if n_members > 1 and chosen.has_time:
        raise ParameterError(
            f"n_members={n_members} needs as many shares of rows, and with has_time=True the last rows alone are held "
            "out; leave n_members out"
        )
