"""How each kind of case of `out_of_core` is measured: who takes part, what must hold of their answers, and the figures.

Answers come before times: models that must be the same are compared byte by byte, and a case ends where they differ;
scores that are worse than they may be are recorded as the reason why the times do not count.
"""

from __future__ import annotations

import functools
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ours, peers
from benchmarks.fit_callbacks import Clock
from benchmarks.gpu_contenders import Rows, array_module, training
from benchmarks.gpu_speed import complaint, give_back
from benchmarks.harness import Comparison, Contender, Run, take_turns, timed
from benchmarks.out_of_core_cases import Config
from benchmarks.out_of_core_curves import curve
from benchmarks.out_of_core_data import (
    Blocks,
    bin_bytes,
    counters,
    dataset_of,
    device_limit,
    resident_share,
    test_blocks,
    training_blocks,
)

PAGE_BYTES = 10**9
"""Of XGBoost's pages in the host's memory."""
SAMPLE = 0.1
FEW_BINS, FEW_BINS_AUC = 64, 0.002
"""Bins of the case that packs them into 6 bits, and by how much its AUC may be lower than with 256."""
N_FOLDS = 5
HOST_SHARE = 1.15
"""Of a billion rows' bins and state, what has to be free of the host's memory: 0.99 were taken."""
DEVICE_SHARE = 0.95
"""Of what a device has free, for a fit that takes all there is: modules that are loaded later take some, too."""


@dataclass
class Found:
    """What a case has given."""

    figures: dict[str, float]
    """By the names of the case's goals."""
    runs: Comparison = field(default_factory=lambda: Comparison({}))
    answers: dict[str, Mapping[str, float]] = field(default_factory=dict)
    floor_s: float | None = None
    """Least time of a tree of ours."""
    notes: dict[str, Any] = field(default_factory=dict)
    why_not: str = ""
    """Why times do not count; empty if they do."""


@dataclass(frozen=True)
class Bench:
    """A case's config, and what all cases of a call share."""

    config: Config
    bytes_per_s: float
    keep: Path | None
    exact_from: Path | None = None
    """File of recorded rows that tell what exact trees have reached; None has them grown."""

    def dataset(self, **more: Any) -> Any:
        return dataset_of(self.config, keep=self.keep, **more)

    def params(self, data: Any, share: float, *, evals: Any = (), **more: Any) -> dict[str, Any]:
        """Ours, with `share` of the bins on the device."""
        return self.config.params(**more, **device_limit(self.config, data, share, evals=evals, **more))

    def certified(self, data: Any, **more: Any) -> dict[str, Any]:
        """Ours, certified: what is resident is the sample, and all chunks are streamed."""
        return self.params(data, 0.0, **self.of_sample, **more)

    @property
    def of_sample(self) -> dict[str, Any]:
        """Parameters of trees that grow on what is resident."""
        return {"out_of_core": "certified", "resident_share": self.config.resident}

    def contender(self, data: Any, params: Mapping[str, Any]) -> Contender:
        """Ours, of one model."""
        rows = test_rows(self.config)
        fit = functools.partial(ours.train, params, data)
        return training(self.config.trees, rows, fit, lambda m: ours.predict(m, rows.x_test))

    def xgboost(self, trees: int, host_ratio: float, **more: Any) -> Contender:
        """XGBoost's external memory."""
        config, rows = self.config, test_rows(self.config)
        matrix = xgboost_matrix(training_blocks(config), config.max_bin, host_ratio, config.device)
        give_back(config.device)
        fit = functools.partial(peers.xgboost_train_streamed, config.params(**more), matrix)
        return training(trees, rows, fit, lambda m: peers.xgboost_predict(m, rows.x_test))

    def pass_s(self, data: Any, resident: float | None = None) -> float:
        """The least time of one pass over what is not resident: by default all but the config's share."""
        streamed = 1 - (self.config.resident if resident is None else resident)
        return streamed * bin_bytes(data) / self.bytes_per_s


@functools.lru_cache(maxsize=1)
def xgboost_matrix(blocks: Blocks, max_bin: int, host_ratio: float, device: str) -> Any:
    """Its pages, kept for the next case."""
    return peers.xgboost_streamed(
        blocks, max_bin=max_bin, host_ratio=host_ratio, page_bytes=PAGE_BYTES, folder=tempfile.mkdtemp(), device=device
    )


@functools.lru_cache(maxsize=1)
def test_rows(config: Config) -> Rows:
    """Rows for scores, on the device, and no others."""
    xp, blocks = array_module(config.device), list(test_blocks(config))
    x, y = (xp.concatenate([block[i] for block in blocks]) for i in range(2))
    return Rows(None, None, x, y, (lambda: None) if xp is np else xp.cuda.Device().synchronize)


def compared(contenders: Mapping[str, Contender], repeats: int, complaint_of: Callable[[Mapping[str, Run]], str]
             ) -> Found:  # fmt: skip
    """Contenders that ran once, were checked and then took turns."""
    first = {}
    for name, contender in contenders.items():
        first[name] = contender()
        print(f"  {name}: {dict(first[name].answer)}", flush=True)
    why_not = complaint_of(first)
    turns = take_turns(contenders, repeats)
    if min(turns.seconds(name) for name in contenders) <= 0:
        why_not = why_not or "the fits are too short to be told apart"
    return Found({}, turns, {name: run.answer for name, run in first.items()}, why_not=why_not)


def checked_before(_: Mapping[str, Run]) -> str:
    """Nothing to complain of: for contenders whose models or scores were compared already, or are figures."""
    return ""


def not_worse(runs: Mapping[str, Run]) -> str:
    """What makes a model of ours worse than XGBoost's."""
    return complaint(runs["daskboost"].answer, runs["xgboost"].answer)


def same_bytes(*models: Any) -> None:
    """Refuse models that differ."""
    if len({ours.as_bytes(model) for model in models}) != 1:
        raise AssertionError("models that must be the same differ")


def memory_of(bench: Bench, data: Any, params: Mapping[str, Any], fit: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """What `fit` gives, its plan, and on a GPU what CuPy's pool took beyond what it had."""
    import resource

    from daskboost import plan

    planned = plan(dict(params), data).total_bytes
    if bench.config.device == "cpu":
        return fit(), {"plan_bytes": planned}
    import cupy

    give_back(bench.config.device)
    pool = cupy.get_default_memory_pool()
    before = pool.total_bytes()
    found = fit()
    host_peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found, {"plan_bytes": planned, "device_bytes": pool.total_bytes() - before, "host_peak_bytes": host_peak}


def over_plan(memory: Mapping[str, Any]) -> dict[str, float]:
    """The figure of what was taken of a GPU, where there is one."""
    return {"device_over_plan": memory["device_bytes"] / memory["plan_bytes"]} if "device_bytes" in memory else {}


def exact(bench: Bench) -> Found:
    """All bins are streamed, and the model is that of bins that stay on the device."""
    config, data = bench.config, bench.dataset()
    params = bench.params(data, 0.0)
    streamed, memory = memory_of(bench, data, params, lambda: ours.train(params, data, 1))
    same_bytes(streamed, ours.train(config.params(), bench.dataset(share=1.0), 1))
    give_back(config.device)
    found = compared({"daskboost": bench.contender(data, params)}, config.repeats, checked_before)
    found.floor_s = config.max_depth * bench.pass_s(data)
    found.figures["times_floor"] = found.runs.seconds("daskboost") / found.floor_s
    found.figures.update(over_plan(memory))
    found.notes.update(memory)
    return found


def xgboost(bench: Bench) -> Found:
    """All bins are streamed, by both."""
    config, data = bench.config, bench.dataset()
    both = {
        "daskboost": bench.contender(data, bench.params(data, 0.0)), "xgboost": bench.xgboost(config.trees, 1.0)
    }  # fmt: skip
    found = compared(both, config.repeats, not_worse)
    found.floor_s = config.max_depth * bench.pass_s(data)
    found.figures["speedup"] = found.runs.ratio("xgboost", "daskboost")
    return found


def bits(bench: Bench) -> Found:
    """Symbols of six bits against bytes."""
    few = replace(bench, config=replace(bench.config, max_bin=FEW_BINS))
    wide, narrow = bench.dataset(), few.dataset(packing="tight")
    both = {
        "daskboost": few.contender(narrow, few.params(narrow, 0.0)),
        "daskboost 256 bins": bench.contender(wide, bench.params(wide, 0.0)),
    }

    def check(runs: Mapping[str, Run]) -> str:
        auc, of_256 = (run.answer["auc"] for run in runs.values())
        return f"64 bins have an AUC of {auc:.5f}, 256 {of_256:.5f}" if auc < of_256 - FEW_BINS_AUC else ""

    found = compared(both, bench.config.repeats, check)
    found.floor_s = bench.config.max_depth * few.pass_s(narrow)
    found.figures["times_256"] = found.runs.ratio("daskboost", "daskboost 256 bins")
    found.notes["bytes_of_256"] = bin_bytes(narrow) / bin_bytes(wide)
    return found


def certified(bench: Bench) -> Found:
    """A share of the bins is resident, of both; trees are certified, and as good as exact ones."""
    config, data, peer_trees = bench.config, bench.dataset(), 5
    whole = curve(bench)
    own = curve(bench, whole.auc[-1])
    auc_below = whole.auc[-1] - own.auc[config.rounds - 1]
    params = bench.certified(data)
    _, memory = memory_of(bench, data, params, lambda: ours.train(params, data, 1))
    both = {
        "daskboost": bench.contender(data, params),
        "xgboost": bench.xgboost(min(peer_trees, config.trees), 1 - config.resident),
    }
    found = compared(both, config.repeats, checked_before)
    found.floor_s = bench.pass_s(data)
    found.figures = {
        "speedup": found.runs.ratio("xgboost", "daskboost"), "auc_below": auc_below,
        "passes": statistics.fmean(own.passes[: config.rounds]),
    }  # fmt: skip
    found.figures.update(over_plan(memory))
    found.notes.update({**memory, **whole.notes})
    return found


def score(bench: Bench) -> Found:
    """Passes until the AUC is reached that exact trees end with."""
    whole = curve(bench)
    goal = whole.auc[-1]
    own = curve(bench, goal)
    reached = next((i for i, auc in enumerate(own.auc) if auc >= goal), None)
    notes = {
        "goal_auc": goal, "best_auc": max(own.auc), "trees": None if reached is None else reached + 1,
        "exact_passes": sum(whole.passes), "passes_by_tree": own.passes, **whole.notes,
    }  # fmt: skip
    spent = sum(own.passes[: reached + 1]) if reached is not None else float("inf")
    return Found({"passes_of_exact": spent / sum(whole.passes)}, notes=notes)


def sampled(bench: Bench) -> Found:
    """A tenth of the rows grows each tree, drawn by gradients, by both."""
    config, data = bench.config, bench.dataset()
    both = {
        "daskboost": bench.contender(data, bench.params(data, 0.0, out_of_core="sampled", subsample=SAMPLE)),
        "xgboost": bench.xgboost(config.trees, 1.0, subsample=SAMPLE, sampling_method="gradient_based"),
    }
    found = compared(both, config.repeats, checked_before)
    found.floor_s = bench.pass_s(data)
    found.figures = {
        "times_pass": found.runs.seconds("daskboost") / found.floor_s,
        "auc_below": found.answers["xgboost"]["auc"] - found.answers["daskboost"]["auc"],
    }
    found.notes["speedup"] = found.runs.ratio("xgboost", "daskboost")
    return found


def in_core(bench: Bench) -> Found:
    """Everything fits on the device: with the machinery of streaming, and without."""
    config, data = bench.config, bench.dataset()
    streaming = bench.params(data, 1.0, out_of_core="exact")
    same_bytes(ours.train(streaming, data, 1), ours.train(config.params(), data, 1))
    both = {"daskboost": bench.contender(data, streaming), "daskboost in core": bench.contender(data, config.params())}
    found = compared(both, config.repeats, checked_before)
    found.figures["times_in_core"] = found.runs.ratio("daskboost", "daskboost in core")
    return found


def many(bench: Bench) -> Found:
    """Five folds that are trained together against the first of them alone."""
    config, data, rows = bench.config, bench.dataset(), test_rows(bench.config)
    fold = np.arange(config.n_rows, dtype=np.int64) % N_FOLDS
    folds = [(fold != k, fold == k) for k in range(N_FOLDS)]
    of_fold, held_out = (data.subset(some) for some in folds[0])
    params = bench.params(of_fold, 0.0, evals=[(held_out, "valid")])
    reads: dict[str, int] = {}

    def fit(name: str, some: Any, n: int) -> Any:
        before = counters(data).disk_read_bytes
        models = ours.train_folds(params, data, n, some)
        reads[name] = counters(data).disk_read_bytes - before
        return models

    fits = {"daskboost": functools.partial(fit, "daskboost", folds),
            "daskboost one fold": functools.partial(fit, "daskboost one fold", folds[:1])}  # fmt: skip
    together, alone = (each(1) for each in fits.values())
    same_bytes(together[0].booster, alone[0].booster)
    found = compared({
        name: training(config.trees, rows, each, lambda models: ours.predict(models[0].booster, rows.x_test))
        for name, each in fits.items()
    }, config.repeats, checked_before)  # fmt: skip
    found.floor_s = config.max_depth * bench.pass_s(data)
    found.figures["times_one"] = found.runs.ratio("daskboost", "daskboost one fold")
    if on_disk := counters(data).disk_bytes:
        found.notes["passes"] = {name: n_bytes / on_disk / config.trees for name, n_bytes in reads.items()}
        found.notes["disk_read_bytes"] = reads
    return found


def billion(bench: Bench) -> Found:
    """As many rows as a host's memory holds: one certified fit, which keeps on the device what has room there."""
    import psutil

    config = bench.config
    needed = int(HOST_SHARE * config.n_rows * (config.n_features + 24))
    if (free := int(1e9 * config.host_gb) or psutil.virtual_memory().available) < needed:
        raise MemoryError(f"{config.n_rows} rows need {needed / 1e9:.0f} GB of the host, {free / 1e9:.0f} are free")
    quantizing_s, data = timed(bench.dataset)
    params, resident = config.params(**bench.of_sample), config.resident
    if config.device == "cuda":
        from daskboost.devices.gpu.runtime.cuda import get_runtime

        params["device_memory_limit"] = int(DEVICE_SHARE * get_runtime().free_bytes)
        resident = resident_share(data, params) or 0.0
    history: dict[str, Any] = {}
    clock = Clock()
    model, memory = memory_of(bench, data, params, lambda: ours.train(
        params, data, config.trees, evals_result=history, callbacks=[clock]
    ))  # fmt: skip
    rows = test_rows(config)
    answer = training(config.trees, rows, lambda _: model, lambda m: ours.predict(m, rows.x_test), draw=1)().answer
    report = history["out_of_core"]
    figures = {"seconds_per_tree": clock.per_round, "passes": statistics.fmean(report["passes"])}
    notes = {**memory, "quantizing_s": round(quantizing_s, 1), "report": report, "streamed": round(1 - resident, 4),
             "rounds_s": clock.rounds_s}  # fmt: skip
    figures.update(over_plan(memory))
    return Found(figures, answers={"daskboost": answer}, floor_s=bench.pass_s(data, resident), notes=notes)


KINDS: dict[str, Callable[[Bench], Found]] = {
    "exact": exact, "xgboost": xgboost, "bits": bits, "certified": certified, "score": score, "sampled": sampled,
    "in_core": in_core, "many": many, "billion": billion,
}  # fmt: skip
