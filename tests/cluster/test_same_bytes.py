"""Promise number one: a model's bytes depend on the rows and the parameters, and on nothing else.

Not on engines, partitions, chunks, encodings, packing, threads, reduction, on whether chunks lie in RAM or on disk, or
on the device. CUDA kernels run by their emulation everywhere (tests/kernels), and on a GPU where there is one.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime
from strategies.pairs import every_pair, pairs_of
from strategies.streams import keep_on_gpu
from strategies.trees import Data, fit, make_data, quantized

from daskboost import QuantizedDataset, train
from daskboost.devices.budget.plan import SMALL_ROWS
from daskboost.devices.cpu import rows
from daskboost.devices.gpu.runtime import cuda
from daskboost.local.in_process import LocalShards

PLACES: dict[str, tuple[Any, ...]] = {
    "engines": (1, 2, 3),
    "partitions": (1, 7, 50),
    "encoding": ("dense", "csr"),
    "chunk_rows": (1_000, 65_536),
    "packing": ("aligned", "tight"),
    "reduction": ("coordinator", "peers"),
    "n_jobs": (1, 2, 3),
}
IN_PARAMS = ("reduction", "n_jobs", "device")


def model_bytes(data: Data, params: dict[str, Any], place: dict[str, Any], n_rounds: int) -> bytes:
    where = {name: value for name, value in place.items() if name in IN_PARAMS}
    return fit(
        data, {"device": "cpu", **params, **where}, n_rounds, **{k: v for k, v in place.items() if k not in IN_PARAMS}
    ).to_bytes()


WHOLE: list[dict[str, Any]] = [
    {"encoding": "dense", "n_jobs": 3}, {"encoding": "csr", "n_jobs": 2},
    {"encoding": "dense", "packing": "tight", "n_jobs": 2},
]  # fmt: skip
"""One chunk of all rows: the only one large enough for threads to share."""


SAMPLES = {"subsample": 0.7, "colsample_bytree": 0.8, "colsample_bylevel": 0.9, "colsample_bynode": 0.9}
FITS: dict[str, dict[str, Any]] = {
    "regression": {**SAMPLES, "max_depth": 5},
    "logistic": {**SAMPLES, "objective": "binary:logistic", "max_depth": 5},
    "five classes": {**SAMPLES, "objective": "multi:softprob", "num_class": 5, "max_depth": 3},
    "absolute error": {**SAMPLES, "objective": "reg:absoluteerror", "max_depth": 4},
    "quantiles": {**SAMPLES, "objective": "reg:quantileerror", "quantile_alpha": (0.2, 0.9), "max_depth": 3},
    "poisson": {**SAMPLES, "objective": "count:poisson", "max_depth": 4},
    "lossguide": {**SAMPLES, "grow_policy": "lossguide", "max_leaves": 12, "max_depth": 0},
    "symmetric": {**SAMPLES, "grow_policy": "symmetric", "max_depth": 4},
    "by weight": {
        **SAMPLES, "objective": "binary:logistic", "max_depth": 4, "grow_policy": "symmetric", "scale_pos_weight": 1.7
    },
    "lossguide by weight": {
        **SAMPLES, "grow_policy": "lossguide", "max_leaves": 9, "max_depth": 0, "score_function": "l2",
        "objective": "reg:pseudohubererror",
    },
    "small data": {**SAMPLES, "objective": "binary:logistic", "max_depth": 5},
    "linear leaves": {**SAMPLES, "linear_leaves": True, "objective": "binary:logistic", "max_depth": 5},
    "linear leaves, small": {**SAMPLES, "linear_leaves": True, "grow_policy": "lossguide", "max_leaves": 9,
                             "max_depth": 0},
    "linear leaves by weight": {
        "linear_leaves": True, "objective": "binary:logistic", "max_depth": 4, "grow_policy": "symmetric",
    },
    "monotone": {"monotone_constraints": (1, 0, 0, 0, 0, -1), "interaction_constraints": [[0, 1, 2], [3, 4, 5]]},
}  # fmt: skip


VECTORS: dict[str, dict[str, Any]] = {
    "vectors": {"max_depth": 4},
    "vectors, lossguide": {"grow_policy": "lossguide", "max_leaves": 9, "max_depth": 0},
    "vectors, symmetric": {"grow_policy": "symmetric", "max_depth": 3},
    "sketched vectors": {"sketch_outputs": 2, "max_depth": 4},
    "small sketched vectors": {"sketch_outputs": 3, "max_depth": 4},
    "vectors of quantiles": {"objective": "reg:quantileerror", "quantile_alpha": (0.2, 0.9), "max_depth": 3},
}
"""Trees of all outputs."""
FITS |= {
    name: {**SAMPLES, "multi_strategy": "multi_output_tree", "objective": "multi:softprob",
           "num_class": 0 if "quantile_alpha" in params else 5, **params}
    for name, params in VECTORS.items()
}  # fmt: skip


@pytest.fixture(scope="module", params=FITS)
def case(request: pytest.FixtureRequest) -> tuple[Data, dict[str, Any], bytes]:
    """Rows, parameters, and the bytes that the plainest fit gives."""
    params = FITS[request.param]
    rng, n_rows = np.random.default_rng(8), SMALL_ROWS if "small" in request.param else 13_003
    data = make_data(rng, params.get("objective", "reg:squarederror"), n_rows, 6, n_values=500, missing=0.3)
    plainest = {name: values[0] for name, values in PLACES.items()} | {"chunk_rows": 65_536}
    return data, params, model_bytes(data, params, plainest, 2)


FITS_AND_PLACES = sorted(pairs_of({"case": FITS, **PLACES}), key=lambda choice: list(FITS).index(choice["case"]))


@pytest.mark.parametrize(
    ("case", "place"), [(choice["case"], {k: choice[k] for k in PLACES}) for choice in FITS_AND_PLACES],
    indirect=["case"], ids=["-".join(map(str, choice.values())) for choice in FITS_AND_PLACES],
)  # fmt: skip
def test_any_pair_of_places(case: tuple[Data, dict[str, Any], bytes], place: dict[str, Any]) -> None:
    data, params, expected = case
    assert model_bytes(data, params, place, 2) == expected


@pytest.mark.parametrize("place", WHOLE, ids=lambda place: "-".join(map(str, place.values())))
def test_a_chunk_of_all_rows(case: tuple[Data, dict[str, Any], bytes], place: dict[str, Any]) -> None:
    data, params, expected = case
    assert model_bytes(data, params, place, 2) == expected


@pytest.fixture(params=[
    pytest.param("emulated", marks=pytest.mark.emulated), pytest.param("cuda", marks=pytest.mark.gpu),
])  # fmt: skip
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the device "cuda" is: threads of the emulation run out of order."""
    if request.param == "emulated":
        monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=3))


LOSSES: dict[str, dict[str, Any]] = {
    "regression": {}, "logistic": {"objective": "binary:logistic"}, "poisson": {"objective": "count:poisson"},
    "five classes": {"objective": "multi:softprob", "num_class": 5},
    "absolute error": {"objective": "reg:absoluteerror"},
    "quantiles": {"objective": "reg:quantileerror", "quantile_alpha": (0.2, 0.9)},
    "vectors": {"objective": "multi:softprob", "num_class": 5, "multi_strategy": "multi_output_tree"},
    "sketched vectors": {
        "objective": "multi:softprob", "num_class": 5, "multi_strategy": "multi_output_tree", "sketch_outputs": 2
    },
}  # fmt: skip
GROWTH: dict[str, dict[str, Any]] = {
    "depthwise": {"max_depth": 4}, "lossguide": {"grow_policy": "lossguide", "max_leaves": 9, "max_depth": 0},
    "symmetric": {"grow_policy": "symmetric", "max_depth": 3},
}  # fmt: skip
RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "by weight": {"score_function": "l2"},
    "linear leaves": {"linear_leaves": True, "max_delta_step": 0},
    "linear leaves by weight": {"linear_leaves": True, "max_delta_step": 0, "score_function": "l2"},
    "monotone": {"monotone_constraints": (1, 0, 0, 0, 0, -1), "interaction_constraints": [[0, 1, 2], [3, 4, 5]]},
}
ROWS: dict[str, tuple[int, dict[str, Any]]] = {
    "large": (13_003, {}), "samples": (13_003, SAMPLES), "small samples": (SMALL_ROWS, SAMPLES)
}  # fmt: skip
"""And what is drawn of them, which objectives' kernels do in ways of their own where data are large."""
STORED: dict[str, dict[str, Any]] = {"dense": {}, "tight": {"packing": "tight"}, "csr": {"encoding": "csr"}}
ENGINES: dict[str, dict[str, Any]] = {
    "alone": {}, "coordinator": {"engines": 2, "partitions": 7}, "peers": {"engines": 2, "partitions": 7},
    "joined": {"engines": 2, "partitions": 7},
}  # fmt: skip


def trains(choice: dict[str, Any]) -> bool:
    """Vectors and quantiles have no constraints and no linear leaves, and vectors no scores by weight."""
    vectors, quantiles = "vectors" in choice["loss"], choice["loss"] in ("quantiles", "absolute error")
    return choice["rules"] in ("plain", "by weight" * (not vectors)) or not (vectors or quantiles)


@pytest.mark.usefixtures("gpu")
@every_pair(
    {"loss": LOSSES, "growth": GROWTH, "rules": RULES, "rows": ROWS, "stored": STORED,
     "chunks": ["whole", "in chunks", "on disk", "streamed"], "engines": ENGINES, "evaluated": [False, True]},
    possible=trains,
)  # fmt: skip
def test_gpu(loss: str, growth: str, rules: str, rows: str, stored: str, chunks: str, engines: str, evaluated: bool,
             tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Metrics, early stopping and continued training see the same margins; chunks on disk come once, or all but one in
    every pass."""
    if chunks == "streamed":
        keep_on_gpu(monkeypatch, 1)
    n_rows, samples = ROWS[rows]
    objective = LOSSES[loss].get("objective", "reg:squarederror")
    data = make_data(np.random.default_rng(8), objective, n_rows, 6, n_values=500, missing=0.3)
    params = {**LOSSES[loss], **GROWTH[growth], **RULES[rules], **samples, "n_jobs": 1}
    place = {**STORED[stored], **ENGINES[engines], "directory": tmp_path}
    if chunks != "whole":
        place |= {"chunk_rows": n_rows // 4, "limit": None if chunks == "in chunks" else 2 * len(data.y)}
    reduction = "auto" if engines in ("alone", "joined") else engines
    with quantized(data) as plain, quantized(data, **place) as dataset:
        assert isinstance(dataset.shards, LocalShards)
        tiers = {shard.store.residency(each.handle) for shard in dataset.shards.shards for each in shard.entries}
        assert ("disk" in tiers) == (chunks in ("on disk", "streamed"))
        expected = outcome({**params, "device": "cpu"}, plain, data, evaluated)
        assert outcome({**params, "device": "cuda", "reduction": reduction}, dataset, data, evaluated) == expected


def outcome(params: dict[str, Any], dataset: QuantizedDataset, data: Data, evaluated: bool) -> tuple[bytes, Any]:
    """A model's bytes; if it is evaluated, those of one that went on, and its metrics."""
    model = train(params, dataset, 2)
    if not evaluated:
        return model.to_bytes(), None
    results: Any = {}
    assert isinstance(dataset.shards, LocalShards)
    n_engines = len(dataset.shards.shards)
    with quantized(data, reference=dataset, encoding="csr", partitions=3, engines=n_engines) as other:
        evals = [(dataset, "a"), (other, "b")]
        again = train(params, dataset, 3, evals=evals, evals_result=results, early_stopping_rounds=1, init_model=model)
    return again.to_bytes(), results


def test_chunks_on_disk(case: tuple[Data, dict[str, Any], bytes], tmp_path: Path) -> None:
    data, params, expected = case
    options: dict[str, Any] = {"engines": 2, "partitions": 3, "chunk_rows": 1_000, "directory": tmp_path}
    with quantized(data, limit=2 * len(data.y), **options) as dataset:
        tiers = {
            shard.store.residency(entry.handle) for shard in dataset.shards.shards for entry in shard.entries
        }
        assert tiers == {"ram", "disk"}
        assert train({**params, "n_jobs": 2, "device": "cpu"}, dataset, 2).to_bytes() == expected


@pytest.mark.parametrize("n_jobs", [1, 3])
@pytest.mark.parametrize("rows_of_words", [0, 700, 3_000], ids=lambda rows: f"words of {rows} rows")
def test_histograms_of_words_pairs_or_both(
    case: tuple[Data, dict[str, Any], bytes], rows_of_words: int, n_jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees whose large nodes have pairs and whose small ones have words, and all mixtures among relatives."""
    monkeypatch.setattr(rows, "WORD_ROWS", rows_of_words)
    data, params, expected = case
    assert model_bytes(data, params, {"encoding": "dense", "n_jobs": n_jobs}, 2) == expected


@pytest.mark.parametrize("grow_policy", ["depthwise", "lossguide", "symmetric"])
@pytest.mark.parametrize("vectors", [
    {}, {"multi_strategy": "multi_output_tree"}, {"multi_strategy": "multi_output_tree", "sketch_outputs": 1},
    {"multi_strategy": "multi_output_tree", "sketch_outputs": 2},
], ids=["scalars", "vectors", "sketch of one", "sketch of two"])  # fmt: skip
def test_every_place_of_a_tiny_fit(grow_policy: str, vectors: dict[str, Any], rng: np.random.Generator) -> None:
    """The full product where it is cheap: chunks of 16 rows, some engines without any."""
    if vectors:
        vectors = {**vectors, "objective": "multi:softprob", "num_class": 5}
    data = make_data(rng, vectors.get("objective", "reg:squarederror"), n_rows=70, missing=0.5)
    params = {"max_depth": 3, "grow_policy": grow_policy, "subsample": 0.8, "min_child_weight": 0.5, **vectors}
    places = {**PLACES, "partitions": (1, 2, 5), "chunk_rows": (16, 64), "n_jobs": (1,), "packing": ("tight",)}
    found = {
        model_bytes(data, params, dict(zip(places, values, strict=True)), 1)
        for values in itertools.product(*places.values())
    }
    assert len(found) == 1


def test_the_bytes_do_tell_models_apart(rng: np.random.Generator) -> None:
    data = make_data(rng)
    seeds = [fit(data, {"subsample": 0.5, "random_state": seed}).to_bytes() for seed in (0, 0, 1)]
    assert seeds[0] == seeds[1] != seeds[2]
    weight = np.ones_like(data.y)
    weight[7] = 2
    assert fit(Data(data.X, data.y, weight), {}).to_bytes() != fit(Data(data.X, data.y), {}).to_bytes()
