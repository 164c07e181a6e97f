"""Packed chunks become what training views read: against the symbols that were packed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference import pack as reference

from daskboost.data.chunks.chunk import CsrChunk
from daskboost.data.chunks.packing import CsrLayout, DenseLayout, pack_csr, pack_dense
from daskboost.devices.budget.set_size import places_in_group
from daskboost.devices.cpu.views import SlotLayout
from daskboost.devices.gpu.rows.streamed import DenseChunks, SparseChunks, UnpackedDense, UnpackedSparse
from daskboost.devices.gpu.rows.views import DeviceLayout
from daskboost.devices.gpu.runtime.launches import Runtime, to_host
from daskboost.devices.gpu.runtime.ring import PackedGroup, PackedRows

WIDTHS = {
    "aligned": [8] * 5, "aligned 16": [16] * 3, "6 bits": [6] * 37, "own widths": [1, 8, 5, 7, 3, 2, 1, 4, 8],
    "own wide ones": [1, 16, 9, 12, 5], "one feature": [3],
}  # fmt: skip
MOST_ROWS = 200
GROUPS = [(MOST_ROWS,), (131,), (70, 1, 60), (3, 197)]
"""Rows of the chunks of groups, which follow each other in the same memory."""


def layout_of(runtime: Runtime, n_symbols: Any) -> DeviceLayout:
    offsets = np.concatenate([[0], np.cumsum(n_symbols)]).astype(np.int64)
    return DeviceLayout(runtime, SlotLayout(offsets, np.asarray(n_symbols, np.int32)))


def copied(runtime: Runtime, group: PackedGroup) -> Any:
    """What copies make of a buffer that held other bytes."""
    begins, n_bytes = places_in_group([rows.memory.nbytes for rows in group])
    memory = np.full(n_bytes, 0xA5, np.uint8)
    for rows, begin in zip(group, begins, strict=True):
        memory[begin : begin + rows.memory.nbytes] = rows.memory
    return runtime.xp.asarray(memory)


def unpacked(made: Any, runtime: Runtime, group: PackedGroup, n_times: int) -> Any:
    """The view of a group that comes at once, as one that streams, or of its halves one behind the other."""
    made.clear()
    for half in np.array_split(np.arange(len(group)), n_times):
        own = [group[number] for number in half]
        made.add(own, copied(runtime, own))
    return made.view()


@pytest.mark.parametrize("name", WIDTHS)
def test_dense_chunks(runtime: Runtime, name: str, rng: np.random.Generator) -> None:
    """Groups of fewer rows too: what lies in the planes is read by the views' own places."""
    layout = DenseLayout(np.array(WIDTHS[name], np.uint8))
    n_symbols = 1 << layout.bits.astype(np.int64)
    device_layout = layout_of(runtime, n_symbols)
    made = UnpackedDense(
        device_layout, DenseChunks(layout.bits, layout.row_stride_bytes, layout.symbol_dtype, MOST_ROWS)
    )
    places = device_layout.places(layout.symbol_dtype)
    where = places.of(MOST_ROWS)
    for sizes in GROUPS:
        n_rows = sum(sizes)
        symbols = rng.integers(0, n_symbols, (n_rows, layout.n_features)).astype(layout.symbol_dtype)
        symbols[-1] = n_symbols - 1
        packed = [pack_dense(own, layout) for own in np.split(symbols, np.cumsum(sizes)[:-1])]
        group = [PackedRows(n, 0, words.view(np.uint8)) for n, words in zip(sizes, packed, strict=True)]
        view = unpacked(made, runtime, group, n_times=1 + len(sizes) % 2)
        flat = to_host(view.symbols[0])
        np.testing.assert_array_equal(flat[where[:, 0] + where[:, 1] * np.arange(n_rows)[:, None]], symbols)
        assert flat.sum(dtype=np.int64) >= symbols.sum(dtype=np.int64)
        f = layout.n_features // 2
        bit = 8 * (sizes[-1] - 1) * layout.row_stride_bytes + int(reference.bit_offsets(layout)[f])
        assert reference.symbol(packed[-1], bit, int(layout.bits[f])) == symbols[-1, f]
    of_features = np.zeros(len(flat), np.bool_)
    of_features[(where[:, 0] + where[:, 1] * np.arange(MOST_ROWS)[:, None]).ravel()] = True
    assert not flat[~of_features].any(), "columns without a feature are zero"


@pytest.mark.parametrize("width", [5, 17, 32])
def test_sparse_chunks(runtime: Runtime, width: int, rng: np.random.Generator) -> None:
    layout, n_bins = CsrLayout(width), 30
    slot_of_bin = (np.arange(n_bins) + np.arange(n_bins) // 10).astype(np.int32)
    made = UnpackedSparse(layout_of(runtime, [11] * 3), SparseChunks(width, slot_of_bin, MOST_ROWS, 1_000))
    for sizes in [*GROUPS, (1,), (4, 2, 5)]:
        group, all_bins, counts = [], [], []
        for number, n_rows in enumerate(sizes):
            counts.append(rng.integers(0, 4, n_rows) * (number != 1))  # the second has no entries
            indptr = np.concatenate([[0], np.cumsum(counts[-1])]).astype(np.uint32)
            bins = rng.integers(0, n_bins, int(indptr[-1])).astype(np.uint32)
            chunk = CsrChunk(0, n_rows, layout, pack_csr(bins, layout), indptr)
            memory = np.empty(chunk.nbytes, np.uint8)
            moved = chunk.moved_to(memory)
            np.testing.assert_array_equal(moved.global_bins()[1], bins)
            group.append(PackedRows(n_rows, len(bins), memory))
            all_bins.append(bins)
        view = unpacked(made, runtime, group, n_times=1 + len(sizes) % 2)
        slots, pointers = (to_host(array) for array in view.symbols[:2])
        np.testing.assert_array_equal(slots, slot_of_bin[np.concatenate(all_bins)])
        np.testing.assert_array_equal(pointers, np.concatenate([[0], np.cumsum(np.concatenate(counts))]))
        assert pointers.dtype == np.int64
