"""Views of rows that are taken from other views: launches of `kernels/take_rows.cu`.

A view need not outlive its turn: all that reads it is queued up before the next one is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from daskboost.devices.gpu.runtime import DeviceArray, Runtime, to_device, to_host
from daskboost.devices.gpu.symbols import DeviceSymbols
from daskboost.devices.gpu.views import DenseView, DeviceLayout, GpuView, SparseView
from daskboost.dtypes import Int64

THREADS = 256
"""As in `kernels/take_rows.cu`."""
BLOCKS_PER_MULTIPROCESSOR = 8
"""Of as many as fit; threads stride over the rest."""
WORD_BYTES = (16, 4, 2)
"""As the kernel is compiled, the widest first; rows of a plane have powers of two of bytes."""

Entries = tuple[DeviceArray, DeviceArray]
"""Row pointers, int64, and slots, int32, of CSR rows."""


def sample_view(layout: DeviceLayout, parts: Iterable[tuple[GpuView, Int64]], n_rows: int, *, copy_columns: bool
                ) -> GpuView:  # fmt: skip
    """The view of some rows of several views, in order; for the parameters see `CertifyingDevice`.

    Row numbers may lie on the device or the host. Nothing is waited for but the number of entries of CSR rows.
    """
    symbols: DeviceSymbols | None = None
    entries: list[Entries] = []
    begin = 0
    for view, rows in parts:
        chosen = _on_device(layout.runtime, rows)
        if isinstance(view, DenseView):
            if symbols is None:
                places = layout.places(view.planes[0].dtype)
                symbols = DeviceSymbols.empty(layout.runtime, places, n_rows)
            _take_rows(view, chosen, symbols, begin)
            begin += len(chosen)
        elif isinstance(view, SparseView):
            entries.append(_entries_of(view, chosen))
    if symbols is not None:
        return DenseView(layout, [symbols], n_rows, copy_columns=copy_columns)
    indptr, slots = _joined(layout.runtime, entries)
    del entries  # before they are sorted by feature
    return SparseView(layout, indptr, slots, copy_columns=copy_columns)


def _on_device(runtime: Runtime, rows: Int64) -> DeviceArray:
    """Row numbers as kernels take them."""
    words = rows.astype(np.uint32)
    return to_device(runtime, words) if isinstance(words, np.ndarray) else words


def _blocks(runtime: Runtime, n_threads: int) -> int:
    return min(-(-n_threads // THREADS), BLOCKS_PER_MULTIPROCESSOR * runtime.multiprocessors)


def _take_rows(view: DenseView, rows: DeviceArray, symbols: DeviceSymbols, begin: int) -> None:
    """Enqueue: rows of a view become those of `symbols` from `begin` on."""
    runtime = view.runtime
    for own, to in zip(view.planes if len(rows) else [], symbols.planes, strict=False):
        n_planes, from_rows, columns = own.shape
        row_bytes = columns * own.itemsize
        word_bytes = next(width for width in WORD_BYTES if row_bytes % width == 0)
        shift = (row_bytes // word_bytes).bit_length() - 1
        runtime.kernel("take_rows", "take_rows", WORD_BYTES=word_bytes)(
            _blocks(runtime, len(rows) << shift), THREADS, own.view(np.uint8), from_rows, rows, len(rows), n_planes,
            shift, to.view(np.uint8), symbols.n_rows, begin,
        )  # fmt: skip


def _entries_of(view: SparseView, rows: DeviceArray) -> Entries:
    """Copies of some rows."""
    runtime, xp = view.runtime, view.runtime.xp
    slots, indptr = view.symbols[:2]
    own = xp.zeros(len(rows) + 1, np.int64)
    own[1:] = xp.cumsum(indptr[rows + 1] - indptr[rows])
    taken = xp.empty(int(to_host(own[-1:])[0]), np.int32)
    if len(taken):
        blocks = _blocks(runtime, 32 * len(rows))
        runtime.kernel("take_rows", "take_entries", WORD_BYTES=16)(
            blocks, THREADS, indptr, slots, rows, len(rows), own, taken
        )
    return own, taken


def _joined(runtime: Runtime, parts: Sequence[Entries]) -> Entries:
    """Rows of all parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    xp, ends = runtime.xp, np.cumsum([0, *(len(slots) for _, slots in parts)]).tolist()
    pointers = [indptr[1:] + end for (indptr, _), end in zip(parts, ends, strict=False)]
    return xp.concatenate([xp.zeros(1, np.int64), *pointers]), xp.concatenate([slots for _, slots in parts])
