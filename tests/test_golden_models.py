"""The trees and scores of many fits are those that were stored, on the CPU and on a GPU.

A refactoring must not change them. `tests/data/golden_models.json` has two digests of each tree, of its splits and of
its numbers (leaf values, gains, covers), so that a failure says in which fit, from which tree on and in what models
differ. Nothing else of a model file counts: names, versions and parameters may change.

Rewrite what is stored only when trees are meant to change: a defect of values or splits is mended, a default changes,
or a fit is new in `tests/strategies/golden_fits.py`. Rewrite those fits alone, and let the commit say which and why:

    python -m pytest tests/test_golden_models.py --rewrite-golden -k 'softprob and automatic'

Only fits on the CPU are written; the same fits on a GPU are held to what these give.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cluster.takes_of_rounds import search_entries
from cluster.test_same_bytes import gpu
from strategies.golden_fits import FITS, ON_CLUSTER, Fit, Outcome, quantized, run
from strategies.streams import keep_on_gpu

from daskboost import Booster, plan

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["gpu"]

STORED = Path(__file__).parent / "data" / "golden_models.json"
Stored = dict[str, Any]
"""A fit's `models`, each with its base score, digests of its trees and rounds, and its `scores`."""
SPLITS = ("left_children", "right_children", "split_indices", "default_left")
NUMBERS = ("split_conditions", "base_weights", "loss_changes", "sum_hessian")


def digest(arrays: Iterable[Any]) -> str:
    """Return 64 bits of the SHA-256 of arrays as 32-bit numbers, in hexadecimal."""
    sha = hashlib.sha256()
    for array in arrays:
        column = np.asarray(array)
        sha.update(column.astype("<f4" if column.dtype.kind == "f" else "<i4").tobytes() + b"|")
    return sha.hexdigest()[:16]


def tree_digest(tree: dict[str, Any]) -> str:
    """Return the digests of a tree of a model file: of its splits, and of its numbers."""
    inner = np.asarray(tree["left_children"]) >= 0
    thresholds = np.asarray(tree["split_conditions"], np.float32)[inner]
    splits = digest([*(np.asarray(tree[name], np.int32) for name in SPLITS), thresholds])
    numbers = [*NUMBERS, *(name for name in ("linear_slopes",) if name in tree)]
    return f"{splits} {digest(np.asarray(tree[name], np.float32) for name in numbers)}"


def model_digest(booster: Booster) -> Stored:
    """Return what is stored of a model, from its file: numbers there read back as the same float32."""
    learner = json.loads(booster.to_bytes("json"))["learner"]
    model = learner["gradient_booster"]["model"]
    return {
        "base_score": [float(score) for score in booster.base_score],
        "rounds": model["iteration_indptr"],
        "outputs": model["tree_info"],
        "trees": [tree_digest(tree) for tree in model["trees"]],
        **{name: booster.attributes[name] for name in ("best_iteration",) if name in booster.attributes},
    }


def stored_form(outcome: Outcome) -> Stored:
    """Return what is stored of a fit; JSON keeps every bit of its scores."""
    form = {"models": [model_digest(model) for model in outcome.models], "scores": outcome.scores}
    plain: Stored = json.loads(json.dumps(form, default=float))
    return plain


def read_stored() -> dict[str, Stored]:
    found: dict[str, Stored] = json.loads(STORED.read_text()) if STORED.exists() else {}
    return found


def store(name: str, form: Stored) -> None:
    """Write a fit's entry, in the order of the table; entries of fits that are no more go."""
    stored = read_stored() | {name: form}
    lines = [f"{json.dumps(each)}: {json.dumps(stored[each])}" for each in FITS if each in stored]
    STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def differences(found: Stored, stored: Stored) -> list[str]:
    """Say what of a fit is not as stored: each model's base score and first trees that differ, and the scores."""
    said = []
    if len(found["models"]) != len(stored["models"]):
        said.append(f"{len(found['models'])} models, not {len(stored['models'])}")
    for i, (new, old) in enumerate(zip(found["models"], stored["models"], strict=False)):
        said += [
            f"model {i}: {part} {new.get(part)}, not {old.get(part)}"
            for part in ("base_score", "rounds", "outputs", "best_iteration") if new.get(part) != old.get(part)
        ]  # fmt: skip
        pairs = [(a.split(), b.split()) for a, b in zip(new["trees"], old["trees"], strict=False)]
        for k, what in enumerate(("splits", "numbers")):
            trees = [tree for tree, (a, b) in enumerate(pairs) if a[k] != b[k]]
            if trees:
                said.append(f"model {i}: {what} differ from tree {trees[0]} on, in {len(trees)} of {len(pairs)} trees")
    if found["scores"] != stored["scores"]:
        said.append(f"scores {found['scores']}, not {stored['scores']}")
    return said


def check(name: str, found: Stored) -> None:
    stored = read_stored()
    assert name in stored, f"{name!r} is not stored; see the top of {Path(__file__).name}"
    said = differences(found, stored[name])
    assert not said, f"{name!r}: " + "; ".join(said)
    assert found == stored[name]


@pytest.mark.parametrize("name", FITS)
def test_trees_on_the_cpu(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Two threads: models do not depend on their number."""
    found = stored_form(run(FITS[name], tmp_path, "cpu", n_jobs=2))
    if request.config.getoption("--rewrite-golden"):
        store(name, found)
    check(name, found)


def values_of(fit: Fit) -> pytest.MarkDecorator:
    """Return the mark that says what a fit is made of, so that one is left out whose every value others have."""
    values = {each.name: getattr(fit, each.name) for each in fields(fit)}
    values |= {f"params: {name}": value for name, value in values.pop("params").items()}
    return pytest.mark.values(**{name: repr(value) for name, value in values.items()})


@pytest.mark.large  # the same launches as of other fits
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", [pytest.param(name, marks=values_of(fit)) for name, fit in FITS.items()])
def test_trees_on_a_gpu(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = FITS[name]
    if fit.n_resident is not None:
        keep_on_gpu(monkeypatch, fit.n_resident)
    if fit.by_entries:
        search_entries(monkeypatch)
    check(name, stored_form(run(fit, tmp_path, "cuda")))


@pytest.mark.parametrize("name", ON_CLUSTER)
def test_trees_on_a_cluster(name: str, cluster_client: Client, tmp_path: Path) -> None:
    """Two workers, whatever the number of engines with which they were stored."""
    check(name, stored_form(run(FITS[name], tmp_path, "cpu", client=cluster_client)))


@pytest.mark.parametrize("name", [name for name, fit in FITS.items() if fit.on_disk or fit.n_chunks > 1])
def test_chunks_are_where_the_table_says(name: str, tmp_path: Path) -> None:
    fit = FITS[name]
    with quantized(fit, tmp_path) as dataset:
        shards = dataset.shards.shards
        tiers = [shard.store.residency(entry.handle) for shard in shards for entry in shard.entries]
    assert len(shards) == fit.n_engines
    assert len(tiers) >= fit.n_chunks * fit.n_engines
    assert ("disk" in tiers) == fit.on_disk


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", [name for name, fit in FITS.items() if fit.by_entries])
def test_sorted_entries_are_searched(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search_entries(monkeypatch)
    with quantized(FITS[name], tmp_path) as dataset:
        assert plan({**FITS[name].params, "device": "cuda"}, dataset).by_entries


def test_what_is_stored_is_what_the_table_has() -> None:
    stored = read_stored()
    assert list(stored) == list(FITS)
    trees = {name: sum(len(model["trees"]) for model in form["models"]) for name, form in stored.items()}
    assert all(trees[name] or fit.how == "cv" for name, fit in FITS.items())


def test_a_difference_is_told(tmp_path: Path) -> None:
    """A value that differs in its last bit, a tree that is missing and another score do not pass."""
    fit = Fit({"max_depth": 2, "eval_metric": "rmse"}, how="evaluate")
    form = stored_form(run(fit, tmp_path, "cpu"))
    tree: dict[str, Any] = {name: [1, -1, -1] if name == "left_children" else [2, 1, 1] for name in SPLITS}
    tree |= {name: [0.5, 0.25, 0.1] for name in NUMBERS}
    bent = {**tree, "base_weights": [0.5, 0.25, float(np.nextafter(np.float32(0.1), np.float32(1)))]}
    moved = {**tree, "split_conditions": [0.75, 0.25, 0.1]}
    (splits, numbers), (same, other), (unlike, _) = (tree_digest(each).split() for each in (tree, bent, moved))
    assert splits == same != unlike and numbers != other
    (model,) = form["models"]
    short = {**form, "models": [{**model, "trees": model["trees"][:-1], "rounds": model["rounds"][:-1]}]}
    changed = {**form, "models": [{**model, "trees": [model["trees"][0], f"{splits} {numbers}", model["trees"][2]]}]}
    scored = {**form, "scores": {"train": {"rmse": [0.0]}}}
    assert not differences(form, form)
    assert "rounds" in differences(short, form)[0]
    assert differences(changed, form) == [
        f"model 0: {what} differ from tree 1 on, in 1 of 3 trees" for what in ("splits", "numbers")
    ]
    assert differences(scored, form)[0].startswith("scores")
