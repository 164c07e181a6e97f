"""The model of trees on many GPUs finds the parameters that made-up rows have, and says where it errs."""

from __future__ import annotations

import json
import math
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest
from cluster.test_trees_together import SIZE

from benchmarks import scaling_model
from benchmarks.scaling_fit import (
    Measured,
    Parameters,
    Shape,
    by_columns,
    by_rows,
    errors,
    fit,
    left_out,
    measured,
    tree,
)
from benchmarks.scaling_places import (
    THROUGH_HOSTS,
    HostPath,
    Place,
    fit_host_path,
    half_at,
    joined,
    line_of,
    shared_by_columns,
)
from daskboost.devices.budget.partition import columns_pay

FITTED = Parameters(2.7e-4, 3.4e12, 52.0, 4.3e-5)
"""About what rows of H100s gave in November 2026."""
TRUE = Parameters(4e-4, 2e12, 70.0, 6e-5)
SHAPES = (
    Shape(20_000, 50, 6), Shape(1_000_000, 28, 6), Shape(44_000_000, 28, 8), Shape(30_000_000, 100, 8),
    Shape(4_660_000, 200, 6, 80), Shape(10_000_000, 300, 4), Shape(400_000, 2000, 8),
)  # fmt: skip


def made_up(n_gpus: tuple[int, ...] = (1, 2), off: float = 1.0) -> list[Measured]:
    """Rows of exact times; those of the third case are `off` by a factor."""
    return [
        Measured(str(i), f"{n}", shape, n, tree(shape, n, TRUE).all * (off if i == 2 else 1.0), 0.0, "", "2026")
        for i, shape in enumerate(SHAPES) for n in n_gpus
    ]  # fmt: skip


def test_known_parameters_are_found() -> None:
    assert astuple(fit(made_up())) == pytest.approx(astuple(TRUE), rel=1e-3)
    assert all(abs(error) < 1e-3 for _, error in left_out(made_up()))


def test_gpus_share_what_is_faster() -> None:
    wide, narrow = SHAPES[-1], SHAPES[2]
    assert tree(wide, 2, TRUE) == by_columns(wide, 2, TRUE)
    assert tree(narrow, 2, TRUE) == by_rows(narrow, 2, TRUE)
    assert by_columns(wide, 1, TRUE) == by_rows(wide, 1, TRUE)


def test_a_case_that_is_off_shows_when_it_is_left_out() -> None:
    by_case = {row.case: error for row, error in left_out(made_up(off=2.0))}
    assert by_case["2"] == pytest.approx(-0.5, abs=1e-3)
    assert 0 < errors(fit(made_up(off=2.0)), made_up()[4:5])[0] < 1, "its own rows pull the model"


def row_of(case: str, contender: str, seconds: float, **more: Any) -> dict[str, Any]:
    """A row as `many_gpus` records it."""
    usual = {"workload": "higgs", "n_rows": 10_000_000, "n_features": 9, "params": {"max_depth": 4}, "trees": 100}
    config = {**usual, **more.pop("config", {})}
    return {
        "case": case, "contender": contender, "seconds": seconds, "repeat": 0, "gpu": "NVIDIA H100", "date": "2026-02",
        "config": config, **more,
    }  # fmt: skip


def test_the_newest_rows_that_can_be_told() -> None:
    rows = [
        row_of("a", "daskboost on 2", 9.0, date="2026-01"),
        *(row_of("a", "daskboost on 2", seconds) for seconds in (1.0, 2.0, 4.0)),
        row_of("a", "daskboost alone", 5.0), row_of("a", "xgboost on 2", 7.0),
        row_of("a", "daskboost on 1", 7.0, gpu="NVIDIA H200"),
        row_of("few trees", "daskboost on 1", 1.0, config={"trees": 20}),
        row_of("classes", "daskboost on 1", 8.0,
               config={"trees": 20, "params": {"max_depth": 4, "num_class": 4}}),
        row_of("steps", "daskboost on 1", 1.0, config={"params": {"max_depth": 0, "grow_policy": "lossguide"}}),
        row_of("noise", "daskboost on 1", -1.0),
        row_of("sparse", "daskboost on 1", 1.0, config={"workload": "words"}),
        row_of("streamed", "daskboost on 1", 1.0, config={"streams": True}),
        row_of("small", "daskboost on 2", 3.0, config={"n_rows": 1000}),
        row_of("small", "daskboost on 2", 4.0, config={"n_rows": 1000}, date="2027-01"),
    ]  # fmt: skip
    found = {(row.case, row.where): row for row in measured(rows, [])}
    assert {key: row.seconds for key, row in found.items()} == {
        ("a", "2 GPUs"): 2.0, ("a", "alone"): 5.0, ("classes", "1 GPU"): 2.0, ("small", "2 GPUs"): 3.0,
        ("small", "1 of 2"): 4.0,
    }  # fmt: skip
    assert found["a", "2 GPUs"].spread == 0.75
    assert {key: row.n_gpus for key, row in found.items()} == {
        ("a", "2 GPUs"): 2, ("a", "alone"): 1, ("classes", "1 GPU"): 1, ("small", "2 GPUs"): 2, ("small", "1 of 2"): 1,
    }  # fmt: skip
    assert found["classes", "1 GPU"].shape == Shape(10_000_000, 9, 4, 4)


def test_joined_hosts_add_steps_and_bytes() -> None:
    shape, place = Shape(10**9, 100, 8), Place(gpus_per_host=4)
    one, two = (joined(shape, n, TRUE, place) for n in (4, 8))
    assert one == tree(shape, 4, TRUE) == by_rows(shape, 4, TRUE)
    assert two.rows == one.rows / 2 and two.launches == one.launches
    assert two.meetings == one.meetings + 10 * place.network_s
    assert two.sums == one.sums + shape.histogram_bytes / 4 / place.network_bytes_s
    n = half_at(shape, TRUE, place)
    assert joined(shape, n, TRUE, place).rows < joined(shape, n, TRUE, place).all / 2
    assert joined(shape, n // 2, TRUE, place).rows >= joined(shape, n // 2, TRUE, place).all / 2


def test_what_ends_scaling_is_named() -> None:
    hosts, place = HostPath(1e-3, 1e9), Place()
    huge = line_of(Shape(10**12, 28, 8), 8, TRUE, hosts, place)
    assert (huge.memory, huge.longest) == ("none", "memory")
    streamed = line_of(Shape(10**9, 100, 8), 1, TRUE, hosts, place)
    assert (streamed.memory, streamed.longest) == ("streams", "streaming") and streamed.today == streamed.by_rows
    far = line_of(Shape(44_000_000, 28, 8), 32, TRUE, hosts, place)
    assert (far.longest, far.longest_today) == ("meetings", "messages")
    assert far.today > 32 * 8 * 1e-3 and far.by_columns == math.inf
    few = line_of(Shape(2**20 * 4, 32, 8), 1024, TRUE, hosts, place)
    assert few.today == line_of(Shape(2**20 * 4, 32, 8), 4, TRUE, hosts, place).today, "each has 32 MB of bins"
    wide = line_of(Shape(400_000, 2000, 8), 2, TRUE, hosts, place)
    assert wide.today == wide.by_columns < wide.by_rows


@pytest.mark.parametrize(("shape", "n_gpus"), [
    (Shape(400_000, 2_000, 8), 2), (Shape(44_000_000, 28, 8), 2), (Shape(30_000_000, 100, 8), 2),
    (Shape(400_000, 2_000, 8), 8), (Shape(4_660_000, 200, 6), 2),
])  # fmt: skip
def test_rows_and_columns_go_by_the_rule_of_fits(shape: Shape, n_gpus: int) -> None:
    place = Place()
    size = replace(
        SIZE, n_slots=256 * shape.n_features, depth=shape.depth, n_engines=n_gpus, all_rows=shape.n_rows, max_leaves=0,
        grow_policy="depthwise",
    )  # fmt: skip
    pays = shared_by_columns(shape, n_gpus, FITTED, place).all < joined(shape, n_gpus, FITTED, place).all
    assert pays == columns_pay(size)


def test_sums_through_hosts_have_known_parameters() -> None:
    found = fit_host_path()
    for each in THROUGH_HOSTS:
        model = found.messages(each.shape, 2) + found.sums(each.shape, 2) + each.one_gpu_s / 2
        assert model == pytest.approx(each.seconds, rel=0.25)


def test_the_command_prints_parameters_errors_and_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scaling_model.main(["--results", str(tmp_path)])
    printed = capsys.readouterr().out
    for text in ("meeting_s", "case left out", "rows left out:", "1,000,000,000,000 x 28", " 1,024 ", "; messages"):
        assert text in printed
    rows = [json.loads(text) for text in (tmp_path / "scaling_model.jsonl").read_text().splitlines()]
    assert rows[0]["contender"] == "model" and rows[0]["meeting_s"] > 0
    assert all({"case", "ms", "error", "spread", "date", "commit"} <= set(row) for row in rows[1:])
