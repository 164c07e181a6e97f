"""Metrics of rankings on a GPU: the states of the host's bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from daskboost.devices.gpu.rows.metrics import MetricKernels
from daskboost.devices.gpu.rows.ranked import RankedLabels
from daskboost.devices.gpu.runtime.launches import DeviceArray, Runtime, to_host
from daskboost.engine.query_rows import QueryRows
from daskboost.errors import DataError
from daskboost.metrics.metric import RatioState
from daskboost.metrics.metric_names import make_metric
from daskboost.metrics.ranking import ExpectedReciprocalRank

NAMES = ("ndcg", "ndcg@1", "ndcg@40", "ndcg@5-", "map", "map@3", "map-", "pre", "pre@7", "mrr", "mrr@2", "recall@9",
         "err", "err@40", "query-auc")  # fmt: skip
OF_CHANCES = ("pfound", "pfound@3", "query-auc")


@dataclass
class Scored:
    """`WatchedRows` of one set."""

    labels: RankedLabels

    def add_values(self, measure: Any, state: DeviceArray) -> None:
        self.labels.add_values(measure, state)


def metric_of(name: str) -> Any:
    metric = make_metric(name)
    return replace(metric, largest=4) if isinstance(metric, ExpectedReciprocalRank) else metric


def states(runtime: Runtime, rows: QueryRows, scores: Any, names: tuple[str, ...] = NAMES) -> list[RatioState]:
    labels = RankedLabels(MetricKernels(runtime), rows.order, rows.begins, rows.label, rows.weights)
    labels.rank(runtime.xp.asarray(scores)[:, 0])
    found = []
    for metric in map(metric_of, names):
        state = MetricKernels(runtime).state()
        metric.measure(Scored(labels), state)
        found.append(metric.measured(to_host(state), rows.label, None))
    return found


@pytest.mark.parametrize("weighted", [False, True], ids=["alike", "weighted"])
@pytest.mark.parametrize("sizes", [(1, 2, 33, 120, 9, 300), (2048, 7, 5000)], ids=["small", "tiles"])
def test_states_are_the_hosts(sizes: tuple[int, ...], weighted: bool, runtime: Runtime) -> None:
    """Ties, a query without a relevant row, and rows that weigh nothing."""
    rng = np.random.default_rng(4)
    qid = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    label = rng.integers(0, 5, len(qid)).astype(np.float32) * (qid != 4)
    scores = rng.normal(size=(len(qid), 2)).astype(np.float32).round(1)
    weight = rng.uniform(0.5, 3, len(sizes)).astype(np.float32)[qid] * (rng.random(len(qid)) < 0.9)
    for names, own in ((NAMES, label), (OF_CHANCES, label / 4)):
        rows = QueryRows.of(qid, own, weight if weighted else None)
        for name, found in zip(names, states(runtime, rows, scores, names), strict=True):
            expected = metric_of(name).of_queries(rows, scores[:, 0]).to_arrays()
            assert np.isfinite(metric_of(name).value(found))
            assert {key: own.tobytes() for key, own in found.to_arrays().items()} == {
                key: own.tobytes() for key, own in expected.items()
            }, name


@pytest.mark.parametrize("n", [20, 2100])
def test_scores_that_are_nan_are_refused(n: int, runtime: Runtime) -> None:
    rows = QueryRows.of(np.zeros(n, np.int64), np.arange(n, dtype=np.float32) % 3, None)
    scores = np.linspace(0, 1, n, dtype=np.float32)[:, None]
    scores[3] = -np.inf
    states(runtime, rows, scores, ("ndcg",))
    scores[n // 2] = np.nan
    with pytest.raises(DataError, match="prediction holds NaN, which metric 'ndcg' cannot rank"):
        states(runtime, rows, scores, ("ndcg",))
