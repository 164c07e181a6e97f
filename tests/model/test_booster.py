"""A model as a value: equality, slices, pickles, files, and the arguments of predict."""

from __future__ import annotations

import errno
import io
import os
import pickle
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model.random_models import OBJECTIVES, random_booster, random_rows

from daskboost.errors import ModelFormatError, ParameterError, StorageError
from daskboost.model.booster import Booster
from daskboost.objectives.classification import Logistic, SoftProb
from daskboost.objectives.objective import Objective
from daskboost.objectives.regression import QuantileError, SquaredError


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.name)
@pytest.mark.parametrize("names", [False, True])
def test_files_keep_everything(rng: np.random.Generator, tmp_path: Path, objective: Objective, names: bool) -> None:
    booster = replace(
        random_booster(rng, objective, names=names),
        attributes={"best_iteration": "3", "best_score": "0.25", "mine": "ü\n\"'"},
        params={"max_depth": "5", "learning_rate": "0.3"},
    )
    for suffix in ("json", "ubj", "JSON"):
        booster.save_model(tmp_path / f"model.{suffix}")
        read = Booster.load_model(str(tmp_path / f"model.{suffix}"))
        assert read == booster and hash(read) == hash(booster)
        assert read.params == booster.params and read.attributes == booster.attributes
        assert read.schema == booster.schema and read.objective == booster.objective
        for tree, again in zip(booster.trees, read.trees, strict=True):
            for name in ("left_child", "right_child", "feature", "threshold", "default_left", "gain", "cover", "value"):
                assert getattr(again, name).tobytes() == getattr(tree, name).tobytes(), name


def test_extreme_numbers_survive_both_formats(rng: np.random.Generator) -> None:
    booster = random_booster(rng, SquaredError(), n_iterations=1, base_score=1e-45)
    tree = booster.trees[0]
    odd = np.array([0.0, -0.0, 1e-45, -1e-45, 3.4028235e38, -3.4028235e38, np.inf, 1 / 3, 1e20, 16777216], np.float32)
    inner = ~tree.is_leaf
    threshold = np.where(inner, np.resize(odd, tree.n_nodes), 0).astype(np.float32)
    gain = np.where(inner, np.resize(odd[::-1], tree.n_nodes), 0).astype(np.float32)
    booster = replace(booster, trees=(replace(tree, threshold=threshold, gain=gain),))
    for file_format in ("json", "ubj"):
        again = Booster.from_bytes(booster.to_bytes(file_format))
        assert again.trees[0].threshold.tobytes() == threshold.tobytes()
        assert again.trees[0].gain.tobytes() == gain.tobytes()
        assert again.base_score == booster.base_score


def test_bytes_depend_on_the_model_alone(rng: np.random.Generator) -> None:
    booster = replace(random_booster(rng, Logistic()), params={"a": "1", "b": "2"}, attributes={"x": "1", "y": "2"})
    shuffled = replace(booster, params={"b": "2", "a": "1"}, attributes={"y": "2", "x": "1"})
    for file_format in ("json", "ubj"):
        assert booster.to_bytes(file_format) == shuffled.to_bytes(file_format)
    assert booster == shuffled
    assert booster != replace(booster, base_score=(0.41,))
    assert booster != "a model"


def test_pickles_are_files(rng: np.random.Generator) -> None:
    booster = random_booster(rng, SoftProb(3), names=True)
    data = pickle.dumps(booster)
    assert booster.to_bytes() in data
    assert pickle.loads(data) == booster


def test_frozen_and_shown(rng: np.random.Generator) -> None:
    booster = random_booster(rng, SoftProb(3))
    assert repr(booster) == "<Booster multi:softprob, 5 features, 6 iterations, 18 trees>"
    with pytest.raises(FrozenInstanceError):
        booster.base_score = (0.0,)  # type: ignore[misc]


def test_slices(rng: np.random.Generator) -> None:
    booster = replace(random_booster(rng, SoftProb(3)), attributes={"best_iteration": "4", "mine": "1"})
    rows = random_rows(rng, 30)
    part = booster[1:4]
    assert part.n_iterations == 3 and len(part.trees) == 9 and part.attributes == {"mine": "1"}
    np.testing.assert_array_equal(part.predict(rows), booster.predict(rows, iteration_range=(1, 4)))
    np.testing.assert_array_equal(booster[-1].predict(rows), booster.predict(rows, iteration_range=(5, 6)))
    np.testing.assert_array_equal(booster[2].predict(rows), booster[2:3].predict(rows))
    assert booster[np.int64(2)] == booster[2]
    assert booster[-6] == booster[0]
    for wrong in (slice(3, 3), slice(0, 4, 2), slice(6, 9), slice(None, None, -1)):
        with pytest.raises(ParameterError, match="of 6 iterations: give a range of existing ones with step 1"):
            booster[wrong]
    for beyond in (6, -7, 10**30):
        with pytest.raises(IndexError, match=rf"booster\[{beyond}\]: the model has 6 iterations, numbered from 0"):
            booster[beyond]


def test_iterating_gives_every_iteration_and_ends(rng: np.random.Generator) -> None:
    booster = random_booster(rng, SoftProb(3))
    assert list(booster) == [booster[i] for i in range(6)]  # type: ignore[call-overload]
    assert len(booster) == booster.n_iterations == 6
    nothing = random_booster(rng, Logistic(), n_iterations=0)
    assert len(nothing) == 0 and list(nothing) == []  # type: ignore[call-overload]
    assert nothing  # a model is one, however few its trees: `model or default` keeps it


def test_margins_add_up_over_slices(rng: np.random.Generator) -> None:
    booster, rows = random_booster(rng, QuantileError((0.2, 0.8)), base_score=(0.1, 0.7)), random_rows(rng, 40)
    first = booster[:2].predict(rows, output="margin")
    np.testing.assert_array_equal(booster[2:].predict(rows, output="margin", base_margin=first), booster.predict(rows))


def test_best_iteration_is_the_default_range(rng: np.random.Generator) -> None:
    booster = random_booster(rng, Logistic())
    stopped = replace(booster, attributes={"best_iteration": "2", "best_score": "0.5"})
    rows = random_rows(rng, 30)
    assert (stopped.best_iteration, stopped.best_score) == (2, 0.5)
    assert (booster.best_iteration, booster.best_score) == (None, None)
    np.testing.assert_array_equal(stopped.predict(rows), booster.predict(rows, iteration_range=(0, 3)))
    np.testing.assert_array_equal(stopped.predict(rows, iteration_range=(0, 0)), booster.predict(rows))
    assert stopped.predict(rows, output="leaf").shape == (30, 3)
    for text in ("6", "-1", "two", "²", "", "9" * 30):
        odd = replace(booster, attributes={"best_iteration": text, "best_score": "0.5"})
        assert odd.best_iteration is None and odd.best_score is None
    assert replace(booster, attributes={"best_iteration": "2", "best_score": "x"}).best_score is None


def test_classes(rng: np.random.Generator) -> None:
    rows = random_rows(rng, 50)
    binary = random_booster(rng, Logistic())
    np.testing.assert_array_equal(binary.predict(rows, output="class"), binary.predict(rows) > 0.5)
    several = random_booster(rng, SoftProb(4))
    classes = several.predict(rows, output="class")
    assert classes.dtype == np.int32 and set(classes) <= {0, 1, 2, 3}
    np.testing.assert_array_equal(classes, several.predict(rows).argmax(axis=1))
    assert several.predict(rows).sum(axis=1) == pytest.approx(1)


def test_bad_arguments(rng: np.random.Generator, tmp_path: Path) -> None:
    booster, rows = random_booster(rng, SquaredError()), random_rows(rng, 5)
    with pytest.raises(ParameterError, match="output='proba' is unknown; give one of 'prediction', 'margin', 'class'"):
        booster.predict(rows, output="proba")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="output='class': objective 'reg:squarederror' has no classes"):
        booster.predict(rows, output="class")
    for wrong in ((0, 7), (3, 2), (-1, 2), (2, 2)):
        with pytest.raises(ParameterError, match="the model has iterations 0 to 6; give 0 <= first < stop <= 6"):
            booster.predict(rows, iteration_range=wrong)
    with pytest.raises(ParameterError, match=r"iteration_range=5: give two integers, \(first, stop\)"):
        booster.predict(rows, iteration_range=5)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"iteration_range=\(0.5, 2\): give two integers"):
        booster.predict(rows, iteration_range=(0.5, 2))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="n_threads=0: give at least 1"):
        booster.predict(rows, n_threads=0)
    with pytest.raises(ParameterError, match=r"model.bin': the name of a model file ends in .json or .ubj"):
        booster.save_model(tmp_path / "model.bin")
    with pytest.raises(ParameterError, match="format='xml' is unknown"):
        booster.to_bytes("xml")  # type: ignore[arg-type]
    with pytest.raises(ModelFormatError, match="neither JSON nor UBJSON"):
        Booster.from_bytes(b"<xml/>")
    with pytest.raises(ParameterError, match="6 trees with 5 tree_outputs"):
        replace(booster, tree_outputs=booster.tree_outputs[:5])
    with pytest.raises(ParameterError, match="base_score has 2 numbers for 3 outputs; give"):
        replace(random_booster(rng, SoftProb(3)), base_score=(1.0, 2.0))


class FullDisk(io.FileIO):
    """A file on a disk that has room for half of what is written."""

    def write(self, data: Any) -> int:
        super().write(bytes(data)[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("suffix", ["json", "ubj"])
def test_a_full_disk_leaves_the_old_model(
    suffix: str, rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = random_booster(rng, Logistic()), random_booster(rng, SquaredError())
    path = tmp_path / f"model.{suffix}"
    old.save_model(path)
    monkeypatch.setattr("builtins.open", lambda file, mode: FullDisk(file, mode))
    with pytest.raises(StorageError, match=rf"No space left on device: '.*model\.{suffix}'") as caught:
        new.save_model(path)
    monkeypatch.undo()
    assert caught.value.errno == errno.ENOSPC
    assert Booster.load_model(path) == old
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


def test_a_saved_model_replaces_what_a_link_leads_to(rng: np.random.Generator, tmp_path: Path) -> None:
    old, new = random_booster(rng, Logistic()), random_booster(rng, SquaredError())
    (tmp_path / "models").mkdir()
    old.save_model(tmp_path / "models" / "first.ubj")
    (tmp_path / "latest.ubj").symlink_to(tmp_path / "models" / "first.ubj")
    new.save_model(tmp_path / "latest.ubj")
    assert (tmp_path / "latest.ubj").is_symlink()
    assert Booster.load_model(tmp_path / "models" / "first.ubj") == new


def test_a_missing_value_of_the_users(rng: np.random.Generator) -> None:
    booster, rows = random_booster(rng, SquaredError()), random_rows(rng, 50)
    marked = np.where(np.isnan(rows), -999, rows)
    np.testing.assert_array_equal(booster.predict(marked, missing=-999), booster.predict(rows))
    assert (booster.predict(marked) != booster.predict(rows)).any()


def test_no_trees(rng: np.random.Generator) -> None:
    booster = Booster.from_bytes(random_booster(rng, Logistic(), n_iterations=0).to_bytes())
    rows = random_rows(rng, 3)
    assert booster.predict(rows) == pytest.approx(0.4)
    assert booster.predict(rows, output="leaf").shape == (3, 0)
    assert booster.get_score() == {} and booster.trees_to_dataframe().empty


@pytest.mark.parametrize("data", ["{}", 10**12, None, ["{"]])
def test_what_is_no_bytes_is_refused_by_its_type(data: Any) -> None:
    with pytest.raises(ParameterError, match=rf"data is of type {type(data).__name__}; pass the bytes of a model"):
        Booster.from_bytes(data)
