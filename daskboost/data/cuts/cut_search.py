"""The search for cut points, of all features or of some: each read of the data makes heavy cells finer, until all are
sure.

A feature's cut points depend on its own cells alone, so features may be shared out among searches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from daskboost.data.cuts.cell_counts import CellCounts, Refinement
from daskboost.data.cuts.cut_points import Cuts, make_cuts
from daskboost.data.cuts.sketch import DataSketch

Answer = Refinement | Cuts
"""The cells to count again, or, once there are none, the cut points."""


class CutSearch:
    """The cells that some features have so far.

    Parameters
    ----------
    max_bin : int
        As for :func:`make_cuts`.
    threads : int, default 1
        That may share in the work; the answers do not depend on them.
    """

    def __init__(self, max_bin: int, threads: int = 1) -> None:
        self._max_bin, self._threads = max_bin, threads
        self._cells: CellCounts | None = None
        self._asked: Refinement | None = None
        self._found: Cuts | None = None

    def add(self, sketch: DataSketch) -> Answer:
        """Take the sums of a read of the whole data: first of all keys, then of those that the last answer asked for.

        Once cut points are found, they stay the answer.
        """
        if self._found is not None:
            return self._found
        if self._cells is None or self._asked is None:
            self._cells = sketch.cells()
        else:
            self._cells = self._cells.refined(self._asked, sketch, self._threads)
        self._asked = self._cells.heavy(self._max_bin, self._threads)
        if self._asked is not None:
            return self._asked
        self._found, self._cells = make_cuts(self._cells, self._max_bin, self._threads), None
        return self._found


def find_cuts(sketch: DataSketch, refine: Callable[[Refinement], DataSketch], max_bin: int, threads: int = 1) -> Cuts:
    """Choose cut points from a sketch, and from as many further reads as the guarantee needs: mostly none, up to three.

    Parameters
    ----------
    sketch : DataSketch
        Of the whole data.
    refine : callable
        Reads the whole data again and counts it in the finer cells that it is given.
    max_bin, threads
        As for :class:`CutSearch`.
    """
    search = CutSearch(max_bin, threads)
    answer = search.add(sketch)
    while isinstance(answer, Refinement):
        answer = search.add(refine(answer))
    return answer


def answer_of_all(answers: Sequence[Answer]) -> Answer:
    """Return the answer for all features from those of searches that each had some of them, in order.

    Features whose cut points are found are not counted again.
    """
    cuts = [answer for answer in answers if isinstance(answer, Cuts)]
    if len(cuts) == len(answers):
        return Cuts.concatenate(cuts)
    return Refinement.concatenate([
        Refinement.empty(answer.n_features) if isinstance(answer, Cuts) else answer for answer in answers
    ])  # fmt: skip
