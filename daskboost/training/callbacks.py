"""What happens beside training: progress, logs, schedules, checkpoints.

Callbacks run in the client's process. On a cluster the coordinator does not wait for them: it reports each round
and goes on, so a callback that asks to stop is heeded a round or more later.
"""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from daskboost.errors import ParameterError
from daskboost.model.booster import Booster
from daskboost.model.serialize import format_of
from daskboost.params import shown

EvalsResult = Mapping[str, Mapping[str, Sequence[float]]]


@dataclass(frozen=True)
class RoundInfo:
    """One finished round."""

    iteration: int
    """Number of the round, counted from the first tree of the model."""
    n_rounds: int
    """Number at which the fit ends unless it stops early."""
    evals_result: EvalsResult
    """Data set -> metric -> values so far."""
    snapshot: Callable[[], Booster]
    """Returns the model so far: that of this round while `after_round` runs, of later ones when it is kept."""


class Callback:
    """Base class; override what you need."""

    def before_training(self, n_rounds: int) -> None:
        """Called once before the first round."""

    def after_round(self, info: RoundInfo) -> bool:
        """Called after every round; return True to stop training."""
        return False

    def after_training(self, booster: Booster) -> None:
        """Called once with the finished model; not after an exception."""


class LearningRateSchedule(Callback):
    """A learning rate per round.

    Parameters
    ----------
    rates : sequence of float or callable
        One rate per round, or ``f(round) -> rate`` with rounds of this fit counted from 0.
    """

    def __init__(self, rates: Sequence[float] | Callable[[int], float]) -> None:
        self._rates = rates

    def rates(self, n_rounds: int) -> list[float]:
        """The rates of all rounds, checked."""
        if not callable(self._rates) and (isinstance(self._rates, str) or not isinstance(self._rates, Collection)):
            raise ParameterError(
                f"LearningRateSchedule({self._rates!r}): give a sequence of rates, or a function of the round"
            )
        if not callable(self._rates) and len(self._rates) < n_rounds:
            raise ParameterError(
                f"LearningRateSchedule has {len(self._rates)} rates for {n_rounds} rounds; give one each, or a function"
            )
        chosen = [float(self._rates(i) if callable(self._rates) else self._rates[i]) for i in range(n_rounds)]
        for i, rate in enumerate(chosen):
            if not 0 < rate <= 1:
                raise ParameterError(f"LearningRateSchedule gives {rate} in round {i}; every rate must lie in (0, 1]")
        return chosen


class EvaluationLog(Callback):
    """Prints the metrics of every `period` rounds and of the last, as XGBoost does; nothing without evaluation sets.

    Parameters
    ----------
    period : int, default 1
    stream : text stream, default sys.stdout
    """

    def __init__(self, period: int = 1, stream: TextIO | None = None) -> None:
        _check_period("EvaluationLog", period)
        self._period, self._stream = period, stream
        self._unprinted: str | None = None

    def before_training(self, n_rounds: int) -> None:
        self._unprinted = None

    def after_round(self, info: RoundInfo) -> bool:
        if info.evals_result:
            self._unprinted = f"[{info.iteration}]\t{describe_metrics(info.evals_result)}"
            if info.iteration % self._period == 0:
                self._print()
        return False

    def after_training(self, booster: Booster) -> None:
        self._print()

    def _print(self) -> None:
        if self._unprinted is not None:
            # A text that is written at once: fits in other threads print lines of their own.
            print(f"{self._unprinted}\n", end="", file=self._stream or sys.stdout, flush=True)
        self._unprinted = None


class Checkpoint(Callback):
    """Saves the model every few rounds; resume with ``train(..., init_model=Booster.load_model(path))``.

    Resuming on the same data set and parameters gives the bytes that an uninterrupted fit would have given.

    Parameters
    ----------
    path : str or Path
        A ``.ubj`` or ``.json`` file; replaced atomically, so it is whole at any moment.
    period : int, default 10
        Rounds between two saves.
    """

    def __init__(self, path: str | Path, period: int = 10) -> None:
        _check_period("Checkpoint", period)
        format_of(path)  # refuses other file names before any training
        self.path, self._period = Path(path), period

    def before_training(self, n_rounds: int) -> None:
        """Refuses a directory that is not there, before rounds are trained that could not be saved."""
        if not self.path.parent.is_dir():
            raise ParameterError(f"Checkpoint(path={str(self.path)!r}): there is no such directory; make it first")

    def after_round(self, info: RoundInfo) -> bool:
        if (info.iteration + 1) % self._period == 0:
            info.snapshot().save_model(self.path)
        return False

    def after_training(self, booster: Booster) -> None:
        booster.save_model(self.path)



def _check_period(what: str, period: object) -> None:
    if isinstance(period, bool) or not isinstance(period, int | np.integer) or period < 1:
        raise ParameterError(f"{what}(period={period!r}) must be an integer of at least 1")


def describe_metrics(evals_result: EvalsResult) -> str:
    """The last value of every metric: ``valid-logloss:0.51234``."""
    return "\t".join(
        f"{name}-{metric}:{values[-1]:.5f}"
        for name, metrics in evals_result.items()
        for metric, values in metrics.items()
    )


def evaluation_log(verbose: object) -> list[Callback]:
    """Return what prints metrics as an argument `verbose` asks for it: every round, every so many, or not at all.
    ParameterError where it is neither a truth value, nor a number of rounds, nor None."""
    if verbose is None:
        return []
    if not isinstance(verbose, int | np.integer | np.bool_) or verbose < 0:
        raise ParameterError(f"verbose={shown(verbose)} must be True, False or a number of rounds of at least 1")
    return [EvaluationLog(int(verbose))] if verbose else []


def check_callbacks(callbacks: object) -> None:
    """Refuse anything that is not a sequence of Callbacks."""
    if not isinstance(callbacks, list | tuple):
        raise ParameterError(f"callbacks={shown(callbacks)} must be a list of callbacks, such as [ProgressBar()]")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ParameterError(
                f"callbacks contains {shown(callback)}, which is not a Callback; derive it from daskboost.Callback"
            )


# The progress bar: a line that a terminal redraws, or an output that a notebook updates.

WIDTH = 24
"""Characters of the bar in a terminal."""


class ProgressBar(Callback):
    """A bar with rounds, speed and the last metrics, in terminals and notebooks.

    Parameters
    ----------
    stream : text stream, optional
        Where to draw lines of text; by default a notebook's output where one runs, else sys.stderr.
    interval_s : float, default 0.2
        Least seconds between two redraws.
    """

    def __init__(self, stream: TextIO | None = None, interval_s: float = 0.2) -> None:
        self._stream, self._interval_s = stream, interval_s
        self._show: Callable[[_State, bool], None] = _Terminal(sys.stderr)
        self._started_s = self._drawn_s = 0.0
        self._first: int | None = None
        self._state = _State()

    def before_training(self, n_rounds: int) -> None:
        notebook = None if self._stream is not None else _notebook_display()
        self._show = _Terminal(self._stream or sys.stderr) if notebook is None else _Notebook(notebook)
        self._started_s, self._drawn_s, self._first = time.monotonic(), 0.0, None
        self._state = _State(n_rounds=n_rounds)
        self._draw()

    def after_round(self, info: RoundInfo) -> bool:
        self._first = info.iteration if self._first is None else self._first
        elapsed_s = max(time.monotonic() - self._started_s, 1e-9)
        speed = (info.iteration + 1 - self._first) / elapsed_s
        self._state = _State(info.iteration + 1, info.n_rounds, speed, describe_metrics(info.evals_result))
        if time.monotonic() - self._drawn_s >= self._interval_s:
            self._draw()
        return False

    def after_training(self, booster: Booster) -> None:
        self._draw(last=True)

    def _draw(self, last: bool = False) -> None:
        self._drawn_s = time.monotonic()
        self._show(self._state, last)


@dataclass(frozen=True)
class _State:
    """What a bar shows."""

    done: int = 0
    n_rounds: int = 0
    rounds_per_s: float = 0.0
    metrics: str = ""

    @property
    def text(self) -> str:
        return f"{self.done}/{self.n_rounds} {self.rounds_per_s:.1f} rounds/s {self.metrics}".rstrip()


class _Terminal:
    """Draws over the same line; the last time ends it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._length = stream, 0

    def __call__(self, state: _State, last: bool) -> None:
        filled = WIDTH * state.done // max(state.n_rounds, 1)
        line = f"{'█' * filled}{'·' * (WIDTH - filled)} {state.text}"
        print("\r" + line.ljust(self._length), end="\n" if last else "", file=self._stream, flush=True)
        self._length = len(line)


class _Notebook:
    """Updates one output of the cell."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display, self._handle = display, None

    def __call__(self, state: _State, last: bool) -> None:
        bundle = {
            "text/html": f'<progress value="{state.done}" max="{max(state.n_rounds, 1)}"></progress> '
            f"<code>{html.escape(state.text)}</code>",
            "text/plain": state.text,
        }
        if self._handle is None:
            self._handle = self._display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def _notebook_display() -> Callable[..., Any] | None:
    """IPython's `display` where a kernel runs this process; IPython is not imported otherwise."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import display

    return display
