"""The progress bar: a line that a terminal redraws, or an output that a notebook updates."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from daskboost.model.booster import Booster
from daskboost.training.callbacks import Callback, RoundInfo, describe_metrics

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
