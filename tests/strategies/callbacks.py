"""Callbacks that watch a fit."""

from __future__ import annotations

from daskboost import Callback
from daskboost.training.callbacks import RoundInfo


class Rounds(Callback):
    """Counts finished rounds."""

    def __init__(self) -> None:
        self.finished = 0

    def after_round(self, info: RoundInfo) -> bool:
        self.finished += 1
        return False
