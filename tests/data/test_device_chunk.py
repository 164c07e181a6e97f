"""Quantizing on a GPU, or its emulation: the naive twin's symbols, and on the host the CPU's chunks to the byte."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from kernels.emulation import EmulatedRuntime
from reference import quantize as reference
from strategies.device_rows import device_dense, device_sparse

from daskboost.data.chunks import device_chunk
from daskboost.data.chunks.chunk import CsrChunk
from daskboost.data.chunks.device_chunk import DenseDeviceChunk, DeviceChunk, is_whole, joined_runs
from daskboost.data.chunks.packing import CsrLayout, DenseLayout, Layout
from daskboost.data.chunks.quantizer import Quantizer, quantize_on_gpu
from daskboost.data.cuts.cut_points import Cuts
from daskboost.data.input.row_batch import DenseRows, SparseRows
from daskboost.devices.gpu.quantize.symbols import DeviceSymbols
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.search_tables import SearchTables
from daskboost.dtypes import Float32
from daskboost.errors import DataError

N_CUTS = (0, 1, 2, 3, 7, 8, 254, 255, 30)


def make_cuts(n_cuts: tuple[int, ...], rng: np.random.Generator) -> Cuts:
    values = [np.sort(rng.choice(4000, n, replace=False)).astype(np.float32) / 7 - 250 for n in n_cuts]
    offsets = np.concatenate([[0], np.cumsum(n_cuts)]).astype(np.int32)
    return Cuts(np.concatenate([*values, np.empty(0, np.float32)]), offsets, np.ones(len(n_cuts), np.bool_))


def make_values(n_rows: int, cuts: Cuts, rng: np.random.Generator) -> Float32:
    """Values between cut points, on them, beyond them, and none."""
    values = rng.uniform(-300, 400, (n_rows, cuts.n_features)).astype(np.float32)
    for feature in range(cuts.n_features):
        on_cuts = rng.random(n_rows) < 0.3
        if len(cuts.of(feature)):
            values[on_cuts, feature] = rng.choice(cuts.of(feature), on_cuts.sum())
    values[rng.random(values.shape) < 0.2] = np.nan
    return values


def sparse(values: Float32) -> SparseRows:
    present = ~np.isnan(values)
    indptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int64)
    return SparseRows(indptr, np.nonzero(present)[1].astype(np.int32), values[present], values.shape[1])


LAYOUTS: dict[str, Layout] = {
    "aligned": DenseLayout(np.full(len(N_CUTS), 16, np.uint8)),
    "tight": DenseLayout(np.array([1, 2, 3, 3, 4, 4, 8, 9, 5], np.uint8)),
    "csr": CsrLayout(32),
    "tight csr": CsrLayout(11),
}


def chunks_of(runtime: Runtime, quantizer: Quantizer, features: Any, step: int) -> list[DeviceChunk]:
    edges = [*range(0, features.n_rows, step), features.n_rows]
    made = quantize_on_gpu(quantizer, features, 70, list(itertools.pairwise(edges)))
    return [chunk for chunk in made if isinstance(chunk, DeviceChunk)]


class Recording:
    """A device that returns what its views would be made of, in the host's memory."""

    threads = SimpleNamespace(count=2)

    def dense_view(self, parts: Iterable[Any], n_rows: int, *, copy_columns: bool) -> list[tuple[Any, ...]]:
        found = [(to_host(part),) for part in parts]
        assert sum(len(symbols) for (symbols,) in found) == n_rows
        return found

    def sparse_view(self, parts: Iterable[Any], *, copy_columns: bool) -> list[tuple[Any, ...]]:
        return [(to_host(indptr), to_host(slots)) for indptr, slots in parts]


def check_mixed_views(chunks: list[DeviceChunk], symbols: Any, cuts: Cuts) -> None:
    """Views of chunks of which some lie on the host have the rows of all, those together that follow one another."""
    layout, device, slots = chunks[0].layout, Recording(), np.arange(cuts.total_bins, dtype=np.int32)[::-1].copy()
    for order, joined in (((0, 2, 1), [(0,), (2,), (1,)]), ((1, 2, 0), [(1, 2), (0,)])):
        mixed: list[Any] = [chunks[i] if i != order[-1] else chunks[i].on_host() for i in order]
        found: Any = layout.view(cast(Any, device), joined_runs(mixed), lambda: slots, copy_columns=True)
        if isinstance(layout, DenseLayout):
            rows = [np.concatenate([symbols[300 * i : 300 * (i + 1)] for i in run]) for run in joined]
            expected: list[Any] = [(each.astype(layout.symbol_dtype),) for each in rows]
        else:
            expected = [cast(CsrChunk, chunks[i].on_host()).slots(slots, 1) for i in order]
        assert [len(part[0]) for part in found] == [len(part[0]) for part in expected]
        for part, wanted in zip(found, expected, strict=True):
            assert [(a.dtype, a.tobytes()) for a in part] == [(a.dtype, a.tobytes()) for a in wanted]


@pytest.mark.parametrize("storage", ["rows", "columns", "entries"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_cpus_chunks(runtime: Runtime, name: str, storage: str, rng: np.random.Generator) -> None:
    cuts = make_cuts(N_CUTS, rng)
    quantizer = Quantizer.of(cuts, LAYOUTS[name])
    values = make_values(700, cuts, rng)
    host: Any = sparse(values) if storage == "entries" else DenseRows(values)
    features: Any = device_sparse(runtime, host) if storage == "entries" else device_dense(
        runtime, np.asfortranarray(values) if storage == "columns" else values
    )  # fmt: skip
    chunks = chunks_of(runtime, quantizer, features, 300)
    assert [(chunk.first_row, chunk.n_rows) for chunk in chunks] == [(70, 300), (370, 300), (670, 100)]
    for chunk, start in zip(chunks, (0, 300, 600), strict=True):
        stop = start + chunk.n_rows
        part = DenseRows(values[start:stop])
        expected, found = quantizer.quantize(part, 70 + start), chunk.on_host()
        assert [array.tobytes() for array in found.arrays] == [array.tobytes() for array in expected.arrays]
        assert chunk.nbytes == expected.nbytes
        assert (found.first_row, found.n_rows, found.layout) == (expected.first_row, expected.n_rows, expected.layout)
        if isinstance(chunk, DenseDeviceChunk):
            np.testing.assert_array_equal(to_host(chunk.values), reference.symbols(part, cuts))
    check_mixed_views(chunks, reference.symbols(DenseRows(values), cuts), cuts)
    dense = [chunk for chunk in chunks if isinstance(chunk, DenseDeviceChunk)]
    if dense:
        ((first, *_),) = joined_runs(dense)
        joined = first.symbols_of(700, 1)
        assert joined is dense[0].whole and isinstance(joined, DeviceSymbols)
        everything = to_host(joined.rows(0, 700))
        assert np.count_nonzero(everything) == np.count_nonzero(to_host(joined.flat))  # padding stays zero


@pytest.mark.parametrize("name", LAYOUTS)
def test_parts_and_copies_on_another_gpu(runtime: Runtime, name: str, rng: np.random.Generator,
                                         monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """Parts of several chunks become those of one array, some rows at a time."""
    monkeypatch.setattr(device_chunk, "MOVED_BYTES", 500)
    cuts = make_cuts(N_CUTS, rng)
    quantizer = Quantizer.of(cuts, LAYOUTS[name])
    values = make_values(700, cuts, rng)
    first, second, third = chunks_of(runtime, quantizer, device_dense(runtime, values), 300)
    parts = [first.part(64, 300), second, third.part(0, 64)]
    assert [(part.first_row, part.n_rows) for part in parts] == [(134, 236), (370, 300), (670, 64)]
    there = EmulatedRuntime(sm=90) if isinstance(runtime, EmulatedRuntime) else runtime
    copies = parts[0].with_others_on(there, parts[1:], cuts.n_slots)
    for part, copy, start in zip(parts, copies, (64, 300, 600), strict=True):
        expected = quantizer.quantize(DenseRows(values[start : start + part.n_rows]), 70 + start)
        for chunk in (part, copy):
            found = chunk.on_host()
            assert [array.tobytes() for array in found.arrays] == [array.tobytes() for array in expected.arrays]
            assert (chunk.first_row, chunk.n_rows, chunk.nbytes) == (70 + start, part.n_rows, expected.nbytes)
        assert copy.device_bytes == part.device_bytes and copy.gpu == there.device
    assert [len(run) for run in joined_runs(copies)] == [3]
    assert is_whole(copies) == isinstance(copies[0], DenseDeviceChunk)


@pytest.mark.parametrize("n_cuts", [(255,) * 3, (254,) * 40, (5000, 3, 9000), (60_000, 2), (0,)])
def test_tables_of_any_size(runtime: Runtime, n_cuts: tuple[int, ...], rng: np.random.Generator) -> None:
    """In shared memory for many columns, for few, for none."""
    offsets = np.concatenate([[0], np.cumsum(n_cuts)]).astype(np.int32)
    values = [np.sort(rng.choice(70_000, n, replace=False)).astype(np.float32) for n in n_cuts]
    cuts = Cuts(np.concatenate([*values, np.empty(0, np.float32)]), offsets, np.ones(len(n_cuts), np.bool_))
    quantizer = Quantizer.of(cuts, DenseLayout.aligned(cuts.n_bins + 1))
    rows = rng.integers(-5, 70_005, (150, len(n_cuts))).astype(np.float32)
    (chunk,) = quantize_on_gpu(quantizer, device_dense(runtime, rows), 0, [(0, 150)])
    assert chunk.on_host().words.tobytes() == quantizer.quantize(DenseRows(rows), 0).words.tobytes()


def test_a_further_value_stands_for_missing(runtime: Runtime, rng: np.random.Generator) -> None:
    cuts = make_cuts((3, 5), rng)
    values = rng.integers(-3, 3, (90, 2)).astype(np.float32)
    hidden = DenseRows(np.where(values == -1, np.float32(np.nan), values))
    for layout in (DenseLayout.aligned(cuts.n_bins + 1), CsrLayout(32)):
        quantizer = Quantizer.of(cuts, layout)
        (chunk,) = quantize_on_gpu(quantizer, device_dense(runtime, values, missing=-1.0), 0, [(0, 90)])
        assert chunk.on_host().words.tobytes() == quantizer.quantize(hidden, 0).words.tobytes()


def test_refusals(runtime: Runtime, rng: np.random.Generator) -> None:
    cuts = make_cuts((255, 3), rng)
    quantizer = Quantizer.of(cuts, DenseLayout(np.array([8, 8], np.uint8)))
    values = make_values(50, cuts, rng)
    with pytest.raises(DataError, match="feature 0 has missing values, but the layout was chosen without a symbol"):
        list(quantize_on_gpu(quantizer, device_dense(runtime, values), 0, [(0, 50)]))
    with pytest.raises(DataError, match="the rows have 1 features, the cuts have 2"):
        list(quantize_on_gpu(quantizer, device_dense(runtime, values[:, :1]), 0, [(0, 50)]))


def test_no_rows(runtime: Runtime, rng: np.random.Generator) -> None:
    cuts = make_cuts((3, 5), rng)
    for layout in (DenseLayout.aligned(cuts.n_bins + 1), CsrLayout(32)):
        nothing = device_dense(runtime, np.empty((0, 2), np.float32))
        assert list(quantize_on_gpu(Quantizer.of(cuts, layout), nothing, 0, [])) == []


def test_groups_of_columns_have_room_for_their_tables() -> None:
    offsets, depths = np.array([0, 255, 510, 513, 513]), np.array([8, 8, 2, 0], np.uint8)
    search = SearchTables(np.empty(0, np.float32), offsets, depths, np.full(4, -1, np.int32))
    assert [search.group_bytes(columns) for columns in (1, 2, 3, 4, 8)] == [1020, 2040, 2052, 2052, 2052]
