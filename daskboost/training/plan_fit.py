"""`plan`: the memory that a fit will take, before it takes any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from daskboost.data.chunks.build import DatasetInfo, default_chunk_rows, most_rows
from daskboost.data.chunks.packing import CsrLayout, DenseLayout, Layout, smaller
from daskboost.data.chunks.tiers import spill_path
from daskboost.data.input.kinds import entries_per_row
from daskboost.data.input.source import make_source
from daskboost.devices.budget.cpu_memory import cpu_plan
from daskboost.devices.budget.gpu_plans import gpu_plan
from daskboost.devices.budget.plan import FitSize, Plan
from daskboost.devices.budget.set_size import FeatureSizes, SetSize
from daskboost.devices.choose import check_device, check_n_gpus, gpu_of, gpus_meant, told_of_gpus
from daskboost.devices.cpu.threads import Threads
from daskboost.engine.fit_size import EnginePlace, FitOutline, engine_size, equal_chunks, fit_size
from daskboost.engine.setup import COLUMN_BYTES
from daskboost.errors import DaskBoostError, ParameterError
from daskboost.fit.recipe import make_recipe
from daskboost.local.several_gpus import gpus_that_pay, largest_part
from daskboost.objectives.objective import Objective
from daskboost.params import TrainParams, parse_bytes, split_device
from daskboost.training.checks import check_rounds
from daskboost.training.dataset import QuantizedDataset
from daskboost.training.train import checked_objective, is_on_cluster, make_spec


def plan(
    params: Mapping[str, Any] | TrainParams, data: Any = None, *, n_rows: int | None = None,
    n_features: int | None = None, nonzeros_per_row: float | None = None, missing: bool = False, weight: bool = False,
    evals: Sequence[Any] = (), num_boost_round: int = 100, n_workers: int = 1, memory: int | str | None = None,
) -> Plan:  # fmt: skip
    """State the bytes that a fit will take, by purpose, before anything is read or allocated.

    A fit stays within its plan. With ``device="cuda"`` it makes the same plan of its own rows, and refuses to start
    where the GPU has less memory free.

    Parameters
    ----------
    params : mapping or TrainParams
        As for `train`; ``num_class`` gives the number of classes, ``max_bin`` the bins of features that are not
        quantized yet.
    data : QuantizedDataset, or any input of `QuantizedDataset.from_dask`, optional
        What would be trained on. A `QuantizedDataset` knows its bins, which makes the plan exact; of other input only
        the shape is looked at, and every feature is taken to have `max_bin` bins.
    n_rows, n_features : int, optional
        The shape, instead of `data`; `n_rows` also beside a Dask collection that does not know its length. What
        contradicts `data` is refused.
    nonzeros_per_row : float, optional
        Present entries of a row, of sparse data that is not given.
    missing : bool, default False
        Whether features of dense data that is not quantized yet have missing values: a slot each in histograms, and
        two bytes a bin where `max_bin` is 256. Sparse data always has some.
    weight : bool, default False
        Whether rows that are not given have weights.
    evals : sequence, default ()
        Evaluation sets: `QuantizedDataset`, (`QuantizedDataset`, name) as for `train`, other input, or numbers of rows.
    num_boost_round : int, default 100
        As for `train`.
    n_workers : int, default 1
        Among how many workers rows that are not quantized yet are divided evenly.
    memory : int or str, optional
        What the device has, such as ``"80GB"``. By default what it has free here and now; unknown for a GPU where there
        is none, and for workers of a cluster. Such a GPU is taken to have at least 160 KiB of shared memory for a
        block, on which some copies depend, as those of data centers have.

    Returns
    -------
    Plan
        Of one engine, that with most rows (one of `n_gpus` GPUs has one): its parts in bytes, `total_bytes`, `fits`
        and `remedy`; `print` it for a table.

    Raises
    ------
    ParameterError, DataError, DataTypeError
        Parameters that `train` would refuse, `data` whose shape cannot be seen, or numbers that are none.
    """
    chosen = params if isinstance(params, TrainParams) else TrainParams.from_mapping(params)
    room = None if memory is None else parse_bytes("memory", memory)
    spill_path(chosen.spill_directory)
    _check_numbers(n_rows=n_rows, n_features=n_features)
    _check_number("n_workers", n_workers)
    _check_kinds(nonzeros_per_row, missing=missing, weight=weight)
    check_rounds(num_boost_round, None, ())
    objective = checked_objective(chosen)
    if not isinstance(evals, list | tuple):
        raise ParameterError(f"evals={evals!r}: give a list of evaluation sets or of their numbers of rows")
    if isinstance(data, QuantizedDataset):
        if (n_rows, n_features, nonzeros_per_row) != (None, None, None):
            raise ParameterError("a QuantizedDataset knows its rows: leave out n_rows, n_features and nonzeros_per_row")
        named = [_named(each, f"evals[{i}]") for i, each in enumerate(evals)]
        size = _size_of_dataset(chosen, objective, data, named, num_boost_round)
        here = not is_on_cluster(data)
    else:
        shape = _shape(data, n_rows, n_features, nonzeros_per_row)
        rows = [
            _shape(_bare(each), None, shape[1], shape[2], f"evals[{i}]", "give its number of rows instead")
            for i, each in enumerate(evals)
        ]
        if n_workers > 1:
            check_n_gpus(chosen.n_gpus, is_on_cluster=True)
        size = _size_of_shapes(chosen, objective, [shape, *rows], missing, weight, num_boost_round, n_workers)
        here = n_workers == 1
    found = _plan_on(chosen.device, size, room, here)
    return replace(found, sharing=told_of_gpus(chosen.n_gpus, size.n_engines))


def _plan_on(device: str, size: FitSize, room: int | None, here: bool) -> Plan:
    """The plan on the device of that name; "auto" takes what a fit would take here."""
    kind, number = split_device(device)
    if kind == "cpu":
        return cpu_plan(size, _free_ram() if room is None and here else room, COLUMN_BYTES)
    try:
        check_device("cuda" if kind == "auto" else device)
        found = _plan_on_gpu(gpu_of(device, number, size.gpus), size, room) if here else gpu_plan(size, room)
    except DaskBoostError:  # no GPU here
        if kind != "auto":
            return gpu_plan(size, room)
        return _plan_on("cpu", size, room, here)
    return _plan_on("cpu", size, None, here) if kind == "auto" and found.fits is False else found


def _size_of_dataset(params: TrainParams, objective: Objective, data: QuantizedDataset,
                     evals: Sequence[tuple[QuantizedDataset, str]], n_rounds: int) -> FitSize:  # fmt: skip
    """Return the size of the fit of the engine with most rows."""
    spec = make_spec(params, objective, data, n_rounds, evals, None, None, ())
    place = EnginePlace(n_threads=_n_threads(params))
    sets = [data, *(each for each, _ in evals)]
    if not is_on_cluster(data) and spec.recipe.n_engines == len(data.shards.shards):
        shards = data.shards.shards
        rank = max(range(len(shards)), key=lambda i: shards[i].n_rows)
        return engine_size(spec, shards[rank], [each.shards.shards[rank] for each in sets[1:]], place)
    if is_on_cluster(data):
        most = [
            most_rows(np.diff([*each.info.first_rows, each.info.n_rows]).tolist(), each.shards.owners) for each in sets
        ]
    else:
        most = [largest_part(each.shards, spec.recipe.n_engines) for each in sets]
    train, *others = (_share_of(each.info, n_rows) for each, n_rows in zip(sets, most, strict=True))
    has_weight = any(each.info.has("weight") or each.is_subset for each in sets)
    return fit_size(FitOutline.of(spec), train, others, has_weight=has_weight, place=place)


def _share_of(info: DatasetInfo, n_rows: int) -> SetSize:
    """Return the size of so many rows of a data set, in chunks in memory."""
    stored = info.layout.nbytes(n_rows, -(-info.n_entries * n_rows // max(info.n_rows, 1)))
    chunk_rows = min(n_rows, info.chunk_rows)
    found = info.layout.set_size(n_rows, info.cuts.n_features, stored, chunk_rows=chunk_rows, stored_bytes=stored)
    chunks = equal_chunks(info.layout, n_rows, found.n_entries, chunk_rows, n_rows)
    return replace(found, chunks=chunks, feature_sizes=info.feature_sizes)


Shape = tuple[int, int, float | None]
"""Rows, features, and present entries of a row; None for dense rows."""


def _shape(data: Any, n_rows: int | None, n_features: int | None, nonzeros_per_row: float | None,
           name: str = "data", remedy: str = "pass n_rows") -> Shape:  # fmt: skip
    """Return the shape of an input, of a number of rows, or of what is given instead; messages call it `name`."""
    if isinstance(data, int | np.integer) and not isinstance(data, bool):
        _check_numbers(n_rows=data)
        data, n_rows = None, int(data)
    if isinstance(data, QuantizedDataset):
        _check_same(name, n_features=(n_features, data.n_features))
        return data.n_rows, data.n_features, nonzeros_per_row
    if data is not None:
        source = make_source(data)
        _check_same(name, n_rows=(n_rows, source.n_rows), n_features=(n_features, source.schema.n_features))
        n_rows = source.n_rows if n_rows is None else n_rows
        n_features = source.schema.n_features + len(source.schema.categorical)  # a statistic and a frequency of each
        found = entries_per_row(data)
        nonzeros_per_row = nonzeros_per_row if found is None else found
    if n_rows is None or n_features is None:
        what = f"the rows of {name} cannot be counted without computing it: {remedy}" if data is not None else (
            "pass data, or both n_rows and n_features")  # fmt: skip
        raise ParameterError(f"a plan needs the shape of the data; {what}")
    if nonzeros_per_row is not None and not 0 <= nonzeros_per_row <= n_features:
        raise ParameterError(f"nonzeros_per_row={nonzeros_per_row!r} must lie between 0 and n_features={n_features}")
    return n_rows, n_features, nonzeros_per_row


def _check_same(name: str, **sizes: tuple[int | None, int | None]) -> None:
    """Refuse a size, the first of each pair, that is not what an input has."""
    for size, (given, found) in sizes.items():
        if given is not None and found is not None and given != found:
            raise ParameterError(f"{size}={given} contradicts {name}, which has {found}")


def _size_of_shapes(params: TrainParams, objective: Objective, shapes: Sequence[Shape], missing: bool, weight: bool,
                    n_rounds: int, n_workers: int) -> FitSize:  # fmt: skip
    """Return the size of a fit over rows that are not quantized yet, the first of them for training; every feature has
    all bins it may have."""
    n_rows, n_features, per_row = shapes[0]
    bins = min(params.max_bin, n_rows)
    total = n_features * bins if per_row is None else min(n_features * bins, int(n_rows * per_row) + n_features)
    has_missing = missing or per_row is not None
    sets: list[SetSize] = []
    n_bytes = _layout(shapes[0], bins + has_missing).nbytes(n_rows, _n_entries(shapes[0]))
    n_engines = max(n_workers, gpus_that_pay(gpus_meant(params.n_gpus), n_bytes, n_rows))
    for shape in shapes:  # evaluation sets take what is left of the budget
        taken = sum(each.stored_bytes for each in sets)
        sets.append(_share(shape, bins + has_missing, params, n_engines, taken))
    train, *others = sets
    recipe, n_slots = make_recipe(params, objective, n_rows, n_engines), total + n_features * has_missing
    outline = FitOutline(params, objective, recipe, n_slots, bins + has_missing, n_rounds)
    return fit_size(outline, train, others, has_weight=weight, place=EnginePlace(n_threads=_n_threads(params)))


def _n_entries(shape: Shape) -> int:
    """Return the present entries of rows of a shape."""
    return shape[0] * shape[1] if shape[2] is None else int(shape[0] * shape[2])


def _layout(shape: Shape, n_symbols: int) -> Layout:
    """Return the layout of a data set that takes fewer bytes."""
    return smaller(
        DenseLayout.aligned(np.full(shape[1], n_symbols)), CsrLayout(32), shape[0], _n_entries(shape)
    )


def _share(shape: Shape, n_symbols: int, params: TrainParams, n_workers: int, taken_bytes: int) -> SetSize:
    """Return the size of a worker's rows, in the layout that takes fewer bytes; chunks beyond `host_memory_limit`, of
    which others have taken some, lie on disk."""
    n_rows, n_features = -(-shape[0] // n_workers), shape[1]
    own = n_rows, n_features, shape[2]
    entries, layout = _n_entries(own), _layout(own, n_symbols)
    stored = layout.nbytes(n_rows, entries)
    chunk_rows = min(n_rows, params.chunk_rows or default_chunk_rows(layout, n_rows, entries))
    ram_rows, limit = n_rows, params.host_memory_limit
    if limit is not None:
        chunk_bytes = layout.nbytes(chunk_rows, -(-entries * chunk_rows // n_rows))
        ram_rows = min(n_rows, max(0, int(limit) - taken_bytes) // chunk_bytes * chunk_rows)
    found = layout.set_size(
        n_rows, n_features, stored, chunk_rows=chunk_rows, stored_bytes=stored * ram_rows // n_rows
    )
    chunks = equal_chunks(layout, n_rows, entries, chunk_rows, ram_rows)
    return replace(found, chunks=chunks, feature_sizes=FeatureSizes.even(n_features, entries))


def _named(given: object, otherwise: str) -> tuple[QuantizedDataset, str]:
    """An evaluation set as `train` takes it; `otherwise` names one without a name."""
    data = _bare(given)
    if not isinstance(data, QuantizedDataset):
        raise ParameterError(
            f"evaluation set of type {type(data).__name__} beside a QuantizedDataset: pass evals=[(dataset, name)], "
            "data sets that were made with reference=data"
        )
    return (data, given[1]) if isinstance(given, list | tuple) else (data, otherwise)


def _bare(given: Any) -> object:
    """An evaluation set without its name."""
    pair = isinstance(given, list | tuple) and len(given) == 2 and isinstance(given[1], str)
    return given[0] if pair else given


def _check_numbers(**numbers: object) -> None:
    for name, value in numbers.items():
        if value is not None:
            _check_number(name, value)


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ParameterError(f"{name}={value!r} must be an integer of at least 1")


def _check_kinds(nonzeros_per_row: object, **flags: object) -> None:
    """Refuse a share that is no number, and flags that are none: rows' weights, for instance."""
    number = isinstance(nonzeros_per_row, int | float | np.integer | np.floating)
    if nonzeros_per_row is not None and (isinstance(nonzeros_per_row, bool) or not number):
        raise ParameterError(f"nonzeros_per_row={nonzeros_per_row!r} must be a number")
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise ParameterError(f"{name} is of type {type(value).__name__}; a plan needs True or False")


def _n_threads(params: TrainParams) -> int:
    threads = Threads(params.n_jobs)
    threads.close()
    return threads.count


def _plan_on_gpu(number: int | None, size: FitSize, room: int | None) -> Plan:
    """The plan on a GPU that is here, as an engine makes it."""
    from daskboost.devices.gpu.runtime.cuda import get_runtime

    runtime = get_runtime(number)
    return gpu_plan(size.on_gpu(runtime), runtime.free_bytes if room is None else room)


def _free_ram() -> int:
    import psutil  # distributed needs it, so it is there

    return int(psutil.virtual_memory().available)
