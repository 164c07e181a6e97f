"""Symbols unpacked on the GPU, its emulation and the CPU against their naive twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.runtimes import RUNTIMES
from reference import pack as reference

from daskboost.data.chunks.packing import (
    CsrLayout,
    DenseLayout,
    n_words,
    pack_csr,
    pack_dense,
    unpack_csr,
    unpack_dense,
)
from daskboost.devices.gpu.quantize.symbols import unpack_rows, unpack_stream
from daskboost.devices.gpu.runtime.launches import Runtime, to_host

LAYOUTS = {
    **{f"common width {width}": [width] * 5 for width in range(1, 17)},
    "own widths": [1, 16, 5, 8, 3, 7, 13, 2, 1],
    "narrow": [1, 2, 3, 4, 5, 6, 7, 8],
    "one feature": [6],
    "more features than a tile": [3] * 4099,
}


def tight_words(symbols: Any, layout: DenseLayout) -> Any:
    """Packed by the naive rule, for aligned layouts too."""
    if not layout.is_aligned:
        return pack_dense(symbols, layout)
    words = np.zeros(n_words(8 * len(symbols) * layout.row_stride_bytes), np.uint32)
    words.view(symbols.dtype)[: symbols.size] = symbols.ravel()
    return words


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("make_runtime", [pytest.param(None, id="cpu"), *RUNTIMES])
def test_rows(make_runtime: Any, name: str, rng: np.random.Generator) -> None:
    layout = DenseLayout(np.array(LAYOUTS[name], np.uint8))
    n_rows = 3 if layout.n_features > 100 else 1100
    symbols = rng.integers(0, 1 << layout.bits.astype(np.int64), (n_rows, layout.n_features))
    symbols[0], symbols[-1] = 0, (1 << layout.bits.astype(np.int64)) - 1
    words = tight_words(symbols.astype(layout.symbol_dtype), layout)
    if make_runtime is None:
        found = unpack_dense(words, n_rows, layout)
    else:
        runtime: Runtime = make_runtime()
        out = runtime.xp.full((n_rows, layout.n_features), 77, layout.symbol_dtype)
        offsets = runtime.xp.asarray(reference.bit_offsets(layout).astype(np.uint32))
        unpack_rows(runtime, runtime.xp.asarray(words), offsets, layout.row_stride_bytes, out)
        found = to_host(out)
    np.testing.assert_array_equal(found, symbols)
    for row, f in ((0, 0), (n_rows - 1, layout.n_features - 1), (n_rows // 2, layout.n_features // 2)):
        bit = 8 * row * layout.row_stride_bytes + int(reference.bit_offsets(layout)[f])
        assert reference.symbol(words, bit, int(layout.bits[f])) == symbols[row, f]


@pytest.mark.parametrize("width", [1, 5, 8, 11, 16, 17, 24, 31, 32])
@pytest.mark.parametrize("make_runtime", [pytest.param(None, id="cpu"), *RUNTIMES])
def test_stream(make_runtime: Any, width: int, rng: np.random.Generator) -> None:
    layout = CsrLayout(width)
    bins = rng.integers(0, 1 << width, 9001, np.int64).astype(np.uint32)
    bins[-1] = (1 << width) - 1
    words = pack_csr(bins, layout)
    if make_runtime is None:
        found = unpack_csr(words, len(bins), layout)
    else:
        runtime: Runtime = make_runtime()
        out = runtime.xp.zeros(len(bins), np.uint32)
        unpack_stream(runtime, runtime.xp.asarray(words), width, out)
        found = to_host(out)
    np.testing.assert_array_equal(found, bins)
    assert [reference.symbol(words, i * width, width) for i in (0, 1, 8999, 9000)] == bins[[0, 1, -2, -1]].tolist()
