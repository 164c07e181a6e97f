"""Fits at every library's defaults on a shipped set, and what mean ranks are made of."""

from __future__ import annotations

import json
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import default_rank
from benchmarks.default_fits import LIBRARIES, run_lengths
from benchmarks.default_rank import (
    at_worst,
    drawn,
    fastest,
    interval,
    loss,
    lost,
    most_behind,
    newest,
    of_all,
    ranks,
    ranks_by_set,
)
from benchmarks.real_sets import SETS, Loaded, Part, load, part_of


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_fit_and_are_scored(
    library: str, tmp_path: Path, bundled_data: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pytest.importorskip({"ours": "daskboost"}.get(library, library))
    monkeypatch.setenv("DASKBOOST_DATA", str(bundled_data))
    monkeypatch.setenv("BENCH_THREADS", "2")
    few = load("california_housing")
    small = Loaded(few.info, part_of(few.train, np.arange(len(few.train.y)) % 20 == 0), few.test, None, 0)
    monkeypatch.setattr(default_rank, "load", lambda name: small)
    arguments = ["--sets", "california_housing", "--libraries", library, "--seeds", "1", "--results", str(tmp_path)]
    default_rank.main(arguments)
    (row,) = map(json.loads, (tmp_path / "default_rank.jsonl").read_text().splitlines())
    assert 0.4 < row["loss"] < 0.75 and row["measure"] == "rmse" and row["seed"] == 1
    assert "mean rank 1.00" in capsys.readouterr().out


def test_draws_keep_queries_whole_and_test_rows() -> None:
    group = np.repeat(np.arange(40), 5)
    part = Part(np.arange(200.0)[:, None], np.zeros(200, np.float32), None, group)
    data = Loaded(SETS["yandex_imat"], part, part, None, 0)
    own = drawn(data, 3)
    assert drawn(data, 0) is data and own.test is part
    assert own.train.group is not None
    kept, sizes = np.unique(own.train.group, return_counts=True)
    assert len(kept) == 36 and set(sizes) == {5}
    np.testing.assert_array_equal(own.train.x[:, 0] // 5, own.train.group)
    assert not np.array_equal(drawn(data, 4).train.x, own.train.x)
    assert run_lengths(np.array([3, 3, 1, 1, 1, 2])).tolist() == [2, 3, 1]


def test_losses_are_of_the_test_rows() -> None:
    y = np.array([0, 1, 1], np.float32)
    part = Part(np.zeros((3, 1)), y)
    two = Loaded(SETS["adult"], part, part, None, 2)
    assert loss(two, np.array([0.5, 0.5, 1.0])) == pytest.approx(2 * np.log(2) / 3)
    three = Loaded(SETS["letter"], part, part, None, 3)
    shares = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 1.0], [0.2, 0.2, 0.0]])
    assert loss(three, shares) == pytest.approx(np.log(8) / 3)
    assert loss(two, np.array([1.0, 1.0, 1.0])) == pytest.approx(-np.log(1e-15) / 3, rel=1e-2)


def test_ranks_share_ties_and_are_means_over_seeds_and_sets() -> None:
    assert ranks({"a": 0.2, "b": 0.1, "c": 0.2}) == {"a": 2.5, "b": 1.0, "c": 2.5}
    one, other = {"a": 1.0, "b": 2.0}, {"a": 2.0, "b": 1.0}
    losses = {("adult", 0): one, ("adult", 1): other, ("letter", 0): one}
    assert ranks_by_set(losses) == {"adult": {"a": 1.5, "b": 1.5}, "letter": {"a": 1.0, "b": 2.0}}
    low, high = interval([1.0, 2.0, 3.0])
    assert 1 <= low < 2 < high <= 3


def test_the_newest_rows_of_seeds_that_all_have_count() -> None:
    def row(name: str, seed: int, library: str, value: float) -> dict[str, Any]:
        return {"case": name, "seed": seed, "contender": library, "loss": value, "seconds": 1, "config": {"threads": 2}}

    rows = [row("adult", 0, "ours", 3.0), row("adult", 0, "chimeraboost", 2.0), row("adult", 0, "ours", 1.0),
            row("adult", 1, "ours", 1.0), row("yandex_imat", 0, "ours", 0.5)]  # fmt: skip
    found, seconds = newest(rows, 2, ["ours", "chimeraboost"])
    assert found[("adult", 1)] == {"ours": 1.0}
    assert of_all(found, ["ours", "chimeraboost"]) == {
        ("adult", 0): {"ours": 1.0, "chimeraboost": 2.0},
        ("yandex_imat", 0): {"ours": 0.5},
    }
    assert seconds[("adult", 0)] == {"ours": 1, "chimeraboost": 1}
    assert newest(rows, 16, ["ours"])[0] == {}


def test_the_fastest_seed_of_each_set_counts() -> None:
    seconds = {
        ("a9a", 0): {"ours": 3.0}, ("a9a", 1): {"ours": 2.0, "catboost": 9.0}, ("otto", 0): {"ours": 5.0},
        ("yandex_imat", 0): {"ours": 1.0, "catboost": 4.0},
    }  # fmt: skip
    assert fastest(seconds, "ours", ["ours"]) == {"a9a": 2.0, "otto": 5.0, "yandex_imat": 1.0}
    assert fastest(seconds, "ours", ["ours", "catboost"]) == {"a9a": 2.0, "yandex_imat": 1.0}
    assert fastest(seconds, "catboost", ["ours", "catboost", "chimeraboost"]) == {"yandex_imat": 4.0}
    rows = [
        {"config": {"threads": 2}, "contender": "ours", "case": "a9a", "seed": 0, "loss": 0.5, "seconds": seconds}
        for seconds in (3.0, None)
    ]
    assert newest(rows, 2, ["ours"]) == ({("a9a", 0): {"ours": 0.5}}, {("a9a", 0): {"ours": 3.0}})


def test_sets_that_are_lost_are_told_by_mean_losses_and_by_ratios() -> None:
    losses = {
        ("even", 0): {"ours": 1.0, "xgboost": 1.0}, ("worse", 0): {"ours": 1.02, "xgboost": 1.0},
        ("one seed", 0): {"ours": 1.0, "xgboost": 2.0}, ("one seed", 1): {"ours": 1.0, "xgboost": 0.25},
    }  # fmt: skip
    assert lost(losses, of_seeds=False) == {"worse": "+2.0 %"}
    assert lost(losses, of_seeds=True) == {"worse": "+2.0 %", "one seed": "+125.0 %"}


@pytest.mark.parametrize("known", [each for n in range(5) for each in combinations(("ours", "a", "b", "c"), n)])
def test_missing_fits_are_taken_at_their_worst(known: tuple[str, ...]) -> None:
    libraries = ["ours", "a", "b", "c"]
    for values in product((1.0, 2.0, 3.0), repeat=len(known)):
        losses = dict(zip(known, values, strict=True))
        missing = [name for name in libraries if name not in losses]

        def behind(own: dict[str, float]) -> float:
            found = ranks(own)
            return found["ours"] - found["a"]

        every = product(np.arange(0.5, 4, 0.25).tolist(), repeat=len(missing))
        worst = max(behind(losses | dict(zip(missing, each, strict=True))) for each in every)
        assert behind(at_worst(losses, "a", libraries)) == worst


def test_what_missing_fits_can_change_is_a_mean_over_sets_and_seeds() -> None:
    libraries = list(LIBRARIES)
    whole: dict[tuple[str, int], dict[str, float]] = {
        (name, seed): dict(zip(libraries, (1.0, 2.0, 3.0, 4.0, 5.0), strict=True)) for name in SETS for seed in range(5)
    }
    assert most_behind(whole, "xgboost", libraries) == pytest.approx(-1.0)
    del whole["adult", 0]["xgboost"]  # second of five behind ours, or first before it
    assert most_behind(whole, "xgboost", libraries) == pytest.approx(-1 + 2 / 5 / len(SETS))
    del whole["adult", 0]  # first, and ours the last
    assert most_behind(whole, "xgboost", libraries) == pytest.approx(-1 + 5 / 5 / len(SETS))
