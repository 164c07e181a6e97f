"""Dividing weighted cells into bins: the decision behind cut points, on plain arrays.

Quantiles alone would spend several of a feature's bins on one heavy value (a zero that half of the rows share), of
which all but one stay empty. So heavy cells get a bin each, and the other bins divide what is left equally.
"""

from __future__ import annotations

import heapq

import numpy as np

from daskboost.dtypes import Bool, Int64


def choose_borders(weights: Int64, max_bin: int) -> Int64:
    """Divide more than `max_bin` cells into `max_bin` bins.

    Parameters
    ----------
    weights : int64 array, shape (cells,)
        Positive; they sum to less than 2**63.
    max_bin : int

    Returns
    -------
    int64 array, shape (bins - 1,)
        Cells below each border: strictly increasing, within 1 and cells - 1.
    """
    # Quantiles are rounded to integers: weights that count rows must be the same ones as counts to round alike.
    if weights.min() > 1:
        weights = weights // np.gcd.reduce(weights)
    heavy = _heavy_cells(weights, max_bin)
    running = np.zeros(len(weights) + 1, np.int64)
    np.cumsum(weights, out=running[1:])
    if not heavy.any():
        return _equal_weights(running, max_bin)[1:-1]
    # Runs of light cells lie between heavy ones; a run is [start, stop).
    bounds = np.flatnonzero(np.diff(np.concatenate([[True], heavy, [True]])))
    starts, stops = bounds[0::2], bounds[1::2]
    bins = _apportion(running[stops] - running[starts], stops - starts, max_bin - int(heavy.sum()))
    borders = [np.flatnonzero(heavy), np.flatnonzero(heavy) + 1]
    for start, stop, count in zip(starts.tolist(), stops.tolist(), bins.tolist(), strict=True):
        if count > 0:
            borders.append(start + _equal_weights(running[start : stop + 1] - running[start], count))
    chosen = np.unique(np.concatenate(borders))
    # A run without a bin joins the heavy cell above it, or the one below if it is the last.
    empty = bins == 0
    joined = np.where(stops[empty] < len(weights), stops[empty], starts[empty])
    return np.setdiff1d(chosen, [0, len(weights), *joined])


def _heavy_cells(weights: Int64, max_bin: int) -> Bool:
    """Which cells weigh at least the mean bin of what remains once heavier ones have bins of their own."""
    heavy = np.zeros(len(weights), bool)
    if weights.max() < -(-weights.sum() // max_bin):
        return heavy
    order = np.argsort(-weights, kind="stable")[:max_bin]
    heaviest = weights[order]
    rest = weights.sum() - (np.cumsum(heaviest) - heaviest)
    light = np.flatnonzero(heaviest < -(-rest // np.arange(max_bin, 0, -1)))
    heavy[order[: light[0]]] = True  # the last of max_bin cells cannot hold the rest of more than max_bin
    return heavy


def _apportion(weights: Int64, cells: Int64, bins: int) -> Int64:
    """Share bins among runs of cells so that the heaviest bin is as light as can be (Adams's method).

    No run gets more bins than it has cells; if the runs outnumber the bins, the lightest get none.
    """
    shares = np.zeros(len(weights), np.int64)
    if len(weights) == 1:
        shares[0] = bins
        return shares
    shares[np.argsort(-weights, kind="stable")[:bins]] = 1
    queue = [(-weight, run) for run, weight in enumerate(weights.tolist())] if len(weights) < bins else []
    heapq.heapify(queue)
    for _ in range(bins - len(weights)):
        while queue and shares[queue[0][1]] == cells[queue[0][1]]:
            heapq.heappop(queue)
        run = queue[0][1]
        shares[run] += 1
        heapq.heapreplace(queue, (-weights[run] / shares[run], run))
    return shares


def _equal_weights(running: Int64, bins: int) -> Int64:
    """Borders of `bins` bins of about equal weight, both ends included, given the running weight at each border."""
    last, total = len(running) - 1, int(running[-1])
    inner = np.arange(1, bins)
    targets = inner * (total // bins) + inner * (total % bins) // bins
    above = np.searchsorted(running, targets)
    nearest = np.where(targets - running[above - 1] <= running[above] - targets, above - 1, above)
    # Strictly increasing, and room for the cells of every bin on either side.
    spread = np.maximum.accumulate(np.maximum(nearest - inner, 0)) + inner
    return np.concatenate([[0], np.minimum(spread, last - bins + inner), [last]])
