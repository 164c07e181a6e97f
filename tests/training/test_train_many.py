"""Models that grow together are those that grow alone, and read the data as often as one of them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.emulation import EmulatedRuntime
from strategies.pairs import every_pair
from strategies.streams import keep_on_gpu, noted_groups, stream_by_twos
from strategies.trees import PARAMS, Data, make_data, quantized

from daskboost import Callback, QuantizedDataset, train, train_many
from daskboost.devices.budget.plan import SMALL_ROWS
from daskboost.devices.cpu import grow
from daskboost.devices.cpu.growing import Growing
from daskboost.devices.gpu.runtime import cuda
from daskboost.engine import compiled_grower
from daskboost.errors import DataError, ParameterError, StorageError
from daskboost.local.together import shares_of
from daskboost.training.callbacks import RoundInfo
from daskboost.training.train_many import TrainedModel

LOGISTIC = {"objective": "binary:logistic", "max_depth": 3}
CLASSES = {"objective": "multi:softprob", "num_class": 5, "max_depth": 2}
CANDIDATES: dict[str, list[dict[str, Any]]] = {
    "policies": [
        LOGISTIC, {**LOGISTIC, "grow_policy": "symmetric"},
        {**LOGISTIC, "grow_policy": "lossguide", "max_leaves": 6, "max_depth": 0},
    ],
    "samples": [
        {**LOGISTIC, "subsample": 0.6, "colsample_bytree": 0.7, "random_state": seed} for seed in (0, 1)
    ],
    "losses": [{"objective": "reg:absoluteerror", "max_depth": 3}, {"max_depth": 4, "learning_rate": 0.9}],
    "classes": [CLASSES, {**CLASSES, "ignored_features": [0]}],
    "on samples": [
        {**LOGISTIC, "out_of_core": "certified", "certify_tolerance": 0.05},
        {**LOGISTIC, "out_of_core": "sampled", "subsample": 0.4}, LOGISTIC,
    ],
    "vectors": [CLASSES, {**CLASSES, "multi_strategy": "multi_output_tree"}],
}  # fmt: skip
PLACES: dict[str, dict[str, Any]] = {
    "dense": {}, "sparse": {"encoding": "csr"}, "dense on disk": {"disk": True},
    "sparse on disk": {"disk": True, "encoding": "csr"},
}  # fmt: skip


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "get_runtime", lambda *_: EmulatedRuntime(seed=3))


def rows(objective: str, n_rows: int = 1_500, seed: int = 5) -> Data:
    return make_data(np.random.default_rng(seed), objective, n_rows)


def made(data: Data, directory: Path, *, disk: bool = False, chunk_rows: int = 400, **options: Any) -> QuantizedDataset:
    spilled: dict[str, Any] = {"limit": len(data.y), "directory": directory} if disk else {}
    return quantized(data, chunk_rows=chunk_rows, **spilled, **options)


def disk_reads(data: QuantizedDataset) -> int:
    return sum(shard.store.counters().disk_reads for shard in data.shards.shards)


def pairs(n_rows: int, n: int = 2, seed: int = 0) -> list[tuple[Any, Any]]:
    fold = np.random.default_rng(seed).integers(0, n, n_rows)
    return [(np.flatnonzero(fold != k), fold == k) for k in range(n)]


def separate(
    candidates: Sequence[dict[str, Any]], dataset: QuantizedDataset, n_rounds: int, folds: Sequence[Any] | None,
    evals: Sequence[Any] = (), **more: Any,
) -> list[TrainedModel]:  # fmt: skip
    """What `train_many` is: a loop over `train`."""
    found = []
    for candidate, params in enumerate(candidates):
        for fold, (train_rows, held_out) in enumerate(folds or [(None, None)]):
            data, sets = dataset, list(evals)
            if folds is not None:
                data, sets = dataset.subset(train_rows), [*evals, (dataset.subset(held_out), "valid")]
            history: dict[str, dict[str, list[float]]] = {}
            model = train(params, data, n_rounds, evals=sets, evals_result=history, **more)
            found.append(TrainedModel(model, history, candidate, None if folds is None else fold))
    return found


def assert_same(found: Sequence[TrainedModel], expected: Sequence[TrainedModel]) -> None:
    assert [model[1:] for model in found] == [model[1:] for model in expected]
    assert [model.booster.to_bytes() for model in found] == [model.booster.to_bytes() for model in expected]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", CANDIDATES)
def test_models_are_those_of_separate_fits(name: str, place: str, tmp_path: Path) -> None:
    candidates = [{"n_jobs": 2, **params} for params in CANDIDATES[name]]
    data = rows(str(candidates[0].get("objective", "reg:squarederror")))
    with made(data, tmp_path, **PLACES[place]) as dataset, quantized(data, reference=dataset, max_bin=16) as other:
        folds = pairs(len(data.y))
        found = train_many(candidates, dataset, 3, folds=folds, evals=[(other, "other")])
        assert_same(found, separate(candidates, dataset, 3, folds, [(other, "other")]))
    assert len({model.booster.to_bytes() for model in found}) == len(found)


@pytest.mark.emulated
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("name", "place"), [
    ("policies", "dense"), ("policies", "sparse on disk"), ("classes", "dense on disk"), ("samples", "dense on disk"),
])  # fmt: skip
def test_models_on_a_gpu_are_those_of_the_cpu(
    name: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows, but for one case of large data: the emulation is slow. Streamed chunks come by twos."""
    candidates = [{**params, "max_depth": 2} for params in CANDIDATES[name][:2]]
    data = rows(str(candidates[0]["objective"]), SMALL_ROWS + 1 if name == "samples" else 200)
    chunk_rows = len(data.y) // 4 + 1
    with made(data, tmp_path, chunk_rows=chunk_rows, **PLACES[place]) as dataset:
        stream_by_twos(monkeypatch, dataset)
        if "disk" in place:
            keep_on_gpu(monkeypatch, 0)
        noted = noted_groups(monkeypatch)
        folds = pairs(len(data.y))
        found = train_many([{**params, "device": "cuda"} for params in candidates], dataset, 2, folds=folds)
        expected = separate([{**params, "device": "cpu"} for params in candidates], dataset, 2, folds)
    assert_same(found, expected)
    assert noted == ([[2, 2]] if "disk" in place else []), "one stream for all"


@pytest.mark.gpu
@every_pair({"name": ["policies", "samples", "classes"], "encoding": ["dense", "csr"], "disk": [False, True]})
def test_models_on_a_real_gpu(
    name: str, encoding: str, disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streamed chunks come by twos."""
    candidates = CANDIDATES[name]
    data = rows(str(candidates[0]["objective"]), 8_000)
    with made(data, tmp_path, chunk_rows=1_800, encoding=encoding, disk=disk) as dataset:
        stream_by_twos(monkeypatch, dataset)
        if name != "classes":  # whose chunks stay
            keep_on_gpu(monkeypatch, 0)
        folds = pairs(len(data.y), 3)
        found = train_many([{**params, "device": "cuda"} for params in candidates], dataset, 3, folds=folds)
        assert_same(found, separate([{**params, "device": "cpu"} for params in candidates], dataset, 3, folds))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.emulated)])
def test_models_read_the_disk_as_often_as_one(
    device: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held-out rows included: their margins come with the training rows'."""
    if device == "cuda":
        request.getfixturevalue("emulated")
        keep_on_gpu(monkeypatch, 0)
    data = rows("binary:logistic", 300)
    with made(data, tmp_path, disk=True, chunk_rows=160) as dataset:
        params = {**LOGISTIC, "device": device, "n_jobs": 2}
        folds = pairs(len(data.y), 2)
        before = disk_reads(dataset)
        train(params, dataset, 2)
        one = disk_reads(dataset) - before
        train_many([params, {**params, "reg_lambda": 3.0}], dataset, 2, folds=folds)
        many = disk_reads(dataset) - before - one
    ahead = 8 if device == "cuda" else 0  # chunks that were read for passes that did not come
    assert 0 < one - ahead <= many <= 1.34 * one + ahead, "no model of a fold is deeper than one level more per tree"


@pytest.mark.emulated
@pytest.mark.usefixtures("emulated")
def test_models_share_chunks_from_disk_that_stay(tmp_path: Path) -> None:
    """A GPU reads each once for all models, held-out rows and evaluation sets included."""
    data = rows("binary:logistic", 300)
    candidates = [{**LOGISTIC, "max_depth": 2, "reg_lambda": penalty, "n_jobs": 2} for penalty in (1.0, 3.0)]
    with made(data, tmp_path, disk=True, chunk_rows=90) as dataset, made(
        rows("binary:logistic", 120), tmp_path, disk=True, chunk_rows=70, reference=dataset
    ) as other:
        folds, evals = pairs(300, 2), [(other, "other")]
        on_gpu = [{**params, "device": "cuda"} for params in candidates]
        found = train_many(on_gpu, dataset, 2, folds=folds, evals=evals)
        for each in (dataset, other):
            (shard,) = each.shards.shards
            n_on_disk = [shard.store.residency(entry.handle) for entry in shard.entries].count("disk")
            assert disk_reads(each) == n_on_disk > 0
        expected = separate([{**params, "device": "cpu"} for params in candidates], dataset, 2, folds, evals)
    assert_same(found, expected)


@pytest.mark.parametrize("mode", [{"out_of_core": "certified"}, {"out_of_core": "sampled", "subsample": 0.4}])
def test_models_whose_trees_grow_on_samples_share_passes(mode: dict[str, Any], tmp_path: Path) -> None:
    params = {**LOGISTIC, **mode, "n_jobs": 2}
    with made(rows("binary:logistic"), tmp_path, disk=True, chunk_rows=160) as dataset:
        reads = [disk_reads(dataset)]
        for candidates in ([params], [params, {**params, "reg_lambda": 3.0}, {**params, "random_state": 1}]):
            found = train_many(candidates, dataset, 4)
            reads.append(disk_reads(dataset))
    most = max(sum(model.evals_result["out_of_core"]["passes"]) for model in found)
    one, many = np.diff(reads).tolist()
    assert 0 < many <= 1.5 * one and many < 2 * most * 10, "of 10 chunks"


def test_fewer_models_at_once_read_more_often(tmp_path: Path) -> None:
    data = rows("binary:logistic", 900)
    with made(data, tmp_path, disk=True) as dataset:
        reads, found = [disk_reads(dataset)], []
        for at_once in (None, 2, 1):
            found.append(train_many(LOGISTIC, dataset, 2, folds=4, models_at_once=at_once))
            reads.append(disk_reads(dataset))
    taken = np.diff(reads).tolist()
    assert taken[1] == pytest.approx(2 * taken[0], abs=taken[0] // 2)
    assert taken[2] == pytest.approx(4 * taken[0], abs=taken[0])
    assert_same(found[1], found[0])
    assert_same(found[2], found[0])


def test_a_model_may_stop_early(tmp_path: Path) -> None:
    """The others go on, and their passes need one model less."""
    data = rows("binary:logistic")
    candidates = [{**LOGISTIC, "learning_rate": rate, "n_jobs": 2} for rate in (1.0, 0.05)]
    with made(data, tmp_path, disk=True) as dataset:
        folds = pairs(len(data.y))
        found = train_many(candidates, dataset, 12, folds=folds, early_stopping_rounds=1)
        expected = separate(candidates, dataset, 12, folds, early_stopping_rounds=1)
    assert_same(found, expected)
    assert len({model.booster.n_iterations for model in found}) > 1
    assert all(model.booster.best_iteration is not None for model in found)


@settings(max_examples=15)
@given(params=st.lists(PARAMS, min_size=1, max_size=3), seed=st.integers(0, 99), on_disk=st.booleans())
def test_any_parameters(
    params: list[dict[str, Any]], seed: int, on_disk: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    candidates = [{"n_jobs": 2, "objective": "binary:logistic", **each} for each in params]
    data = rows("binary:logistic", 120, seed)
    with made(data, tmp_path_factory.mktemp("chunks"), disk=on_disk, chunk_rows=50) as dataset:
        folds = pairs(len(data.y), 2, seed)
        assert_same(train_many(candidates, dataset, 2, folds=folds), separate(candidates, dataset, 2, folds))


def test_without_folds_and_from_an_earlier_model(tmp_path: Path) -> None:
    data = rows("binary:logistic")
    with made(data, tmp_path) as dataset:
        earlier = train(LOGISTIC, dataset, 2)
        candidates = [LOGISTIC, {**LOGISTIC, "random_state": 3, "subsample": 0.5}]
        found = train_many(candidates, dataset, 2, init_model=earlier, evals=[(dataset, "train")])
        assert_same(found, separate(candidates, dataset, 2, None, [(dataset, "train")], init_model=earlier))
        (alone,) = train_many(LOGISTIC, dataset, 2)
        assert alone.booster.to_bytes() == earlier.to_bytes()
        assert (alone.candidate, alone.fold, alone.evals_result) == (0, None, {})


class Note(Callback):
    """Notes rounds, then may fail."""

    def __init__(self, model: int, error: BaseException | None = None) -> None:
        self.model, self.error, self.rounds = model, error, 0

    def after_round(self, info: RoundInfo) -> bool:
        self.rounds += 1
        if self.error is not None:
            raise self.error
        return self.model == 1 and self.rounds == 2


def test_callbacks_are_each_models_own(tmp_path: Path) -> None:
    notes: list[Note] = []

    def of(model: int) -> list[Callback]:
        notes.append(Note(model))
        return [notes[-1]]

    with made(rows("binary:logistic"), tmp_path, disk=True) as dataset:
        found = train_many(LOGISTIC, dataset, 4, folds=3, callbacks=of)
    assert [note.model for note in notes] == [0, 1, 2]
    assert [note.rounds for note in notes] == [4, 2, 4] == [model.booster.n_iterations for model in found]


@pytest.fixture
def no_threads_left() -> Iterator[None]:
    before = set(threading.enumerate())  # those that compile for GPUs are the process's
    yield
    started = set(threading.enumerate()) - before
    assert [thread for thread in started if thread.name.startswith("daskboost-")] == []


@pytest.mark.parametrize(("given", "wanted"), [
    ((16, 5, 5), [4, 3, 3, 3, 3]), ((8, 5, 5), [2, 2, 2, 1, 1]), ((4, 5, 4), [1, 1, 1, 1, 4]),
    ((2, 5, 2), [1, 1, 1, 1, 2]), ((2, 3, 2), [1, 1, 2]), ((1, 3, 1), [1, 1, 1]), ((8, 1, 1), [8]),
])  # fmt: skip
def test_fits_that_have_their_turn_together_have_all_threads(given: tuple[int, int, int], wanted: list[int]) -> None:
    """Threads, fits, and fits at a time."""
    assert shares_of(*given) == wanted


def test_fits_with_a_thread_each_have_all_threads_to_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_threads, n_processes, find = [], [], grow.find_parts

    def note(state: Growing, processes: int) -> None:
        n_threads.append(state.rules.n_threads)
        n_processes.append(processes)
        find(state, processes)

    monkeypatch.setattr(compiled_grower, "find_parts", note)
    with made(rows("binary:logistic"), tmp_path) as dataset:
        train_many({**LOGISTIC, "n_jobs": 3, "device": "cpu"}, dataset, 2, folds=3)
    assert (n_threads, n_processes) == ([1, 1, 1], [3, 3, 3])


@pytest.mark.usefixtures("no_threads_left")
@pytest.mark.parametrize("disk", [False, True], ids=["RAM", "disk"])
@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), KeyboardInterrupt("mine")], ids=["error", "Ctrl-C"])
def test_an_error_of_one_model_ends_all(error: BaseException, disk: bool, tmp_path: Path) -> None:
    notes = [Note(0, error), Note(2), Note(3), Note(4)]
    with made(rows("binary:logistic"), tmp_path, disk=disk) as dataset:
        with pytest.raises(type(error), match="mine") as raised:
            train_many(LOGISTIC, dataset, 1_000, folds=4, callbacks=lambda i: [notes[i]])
        assert "while training model 0 of" in raised.value.__notes__[0]
        assert all(note.rounds < 1_000 for note in notes)
        assert len(train_many(LOGISTIC, dataset, 1, folds=2)) == 2, "the data set serves on"


@pytest.mark.usefixtures("no_threads_left")
def test_a_chunk_that_is_gone_ends_all(tmp_path: Path) -> None:
    class Remove(Callback):
        def after_round(self, info: RoundInfo) -> bool:
            for path in tmp_path.rglob("*.chunk"):
                path.unlink(missing_ok=True)
            return False

    with made(rows("binary:logistic"), tmp_path, disk=True) as dataset, pytest.raises(StorageError):
        train_many(LOGISTIC, dataset, 5, folds=3, callbacks=lambda i: [Remove()])


@pytest.mark.usefixtures("no_threads_left")
def test_views_in_memory_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from daskboost.devices.cpu import device, views

    made_views: list[int] = []

    class Counted(views.DenseView):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made_views.append(self.nbytes)

    monkeypatch.setattr(device, "DenseView", Counted)
    with made(rows("binary:logistic"), tmp_path) as dataset:
        train_many([LOGISTIC] * 3, dataset, 2, folds=3)
    gc.collect()
    assert len(made_views) == 1


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no candidate": ({"params": []}, "give a mapping, or a list of at least one"),
    "a text": ({"params": "eta=1"}, "params is of type str; give a mapping"),
    "a bad candidate": ({"params": [LOGISTIC, {"etta": 1}]}, "unknown parameter 'etta'"),
    "other bins": ({"params": [LOGISTIC, {**LOGISTIC, "max_bin": 99}]}, "max_bin=99 contradicts dtrain"),
    "threads": ({"params": [{"n_jobs": 1}, {"n_jobs": 2}]}, r"n_jobs differs among the models: \[1, 2\]"),
    "overlap": ({"folds": [([0, 1, 2], [2, 3])]}, r"folds\[0\] has row 2 in both halves"),
    "empty": ({"folds": [([0], [1]), ([], [1])]}, r"folds\[1\]\[0\] has no rows"),
    "beyond": ({"folds": [([0, 1_500], [1])]}, r"folds\[0\]\[0\] has position 1500; the 1500 rows are"),
    "twice": ({"folds": [([0, 3, 3], [1])]}, r"folds\[0\]\[0\] has row 3 more than once"),
    "marks": ({"folds": [(np.ones(7, bool), [1])]}, r"folds\[0\]\[0\] marks rows in an array of shape \(7,\)"),
    "floats": ({"folds": [([0.5], [1])]}, "give positions of rows as integers"),
    "no pair": ({"folds": [[0, 1, 2]]}, r"folds\[0\] must be a pair"),
    "no folds": ({"folds": []}, "folds is empty"),
    "one fold": ({"folds": 1}, "folds=1 must lie between 2 and the number of rows, 1500"),
    "true": ({"folds": True}, "folds=True: give their number"),
    "callbacks": ({"callbacks": [Note(0)]}, "callbacks must be a function of a model's number"),
    "not a callback": ({"callbacks": lambda i: [3]}, "callbacks contains 3"),
    "nothing to stop by": ({"folds": None, "early_stopping_rounds": 3}, "early_stopping_rounds needs an evaluation"),
    "evals": ({"evals": 5}, "evals=5: give a list of pairs"),
    "at once": ({"models_at_once": 0}, "models_at_once=0 must be an integer of at least 1"),
    "rounds": ({"num_boost_round": -1}, "num_boost_round=-1 must be"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_any_work(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given_, message = REFUSED[name]
    monkeypatch.setattr("daskboost.training.train_many.fit_together", lambda *_: pytest.fail("work has begun"))
    arguments: dict[str, Any] = {"params": LOGISTIC, "folds": 3, **given_}
    with made(rows("binary:logistic"), tmp_path) as dataset, pytest.raises(ParameterError, match=message):
        train_many(arguments.pop("params"), dataset, **arguments)


def test_data_sets_that_cannot_be_trained_on(tmp_path: Path) -> None:
    dataset = made(rows("binary:logistic"), tmp_path)
    dataset.close()
    with pytest.raises(DataError, match="was closed"):
        train_many(LOGISTIC, dataset, folds=2)
    with pytest.raises(DataError, match="was closed"):
        train_many(LOGISTIC, dataset)
    with pytest.raises(ParameterError, match="dtrain is ndarray; pass a QuantizedDataset"):
        train_many(LOGISTIC, np.zeros(3))  # type: ignore[arg-type]


def test_rows_on_a_cluster_are_refused(cluster_client: Any) -> None:
    import dask.array as da

    data = rows("binary:logistic")
    X, y = (da.from_array(each, chunks=(700, *each.shape[1:])) for each in (data.X, data.y))
    with QuantizedDataset.from_dask(X, y, client=cluster_client) as dataset:
        with pytest.raises(ParameterError, match="train_many trains models together over rows of this process"):
            train_many(LOGISTIC, dataset, folds=2)
        with pytest.raises(ParameterError, match="subset needs a data set in this process"):
            dataset.subset([0])
