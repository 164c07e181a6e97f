"""Packed symbols become machine integers: launches of `kernels/unpack.cu`, as `devices/cpu/pack.py` does it."""

from __future__ import annotations

from daskboost.devices.gpu.runtime import DeviceArray, Runtime

THREADS = 256
"""Threads of a block, as in `kernels/unpack.cu`."""
TILE_SYMBOLS = 16 * THREADS
"""About so many symbols are a block's work: enough to spread the cost of starting it."""


def unpack_rows(runtime: Runtime, words: DeviceArray, offsets: DeviceArray, stride_bytes: int,
                symbols: DeviceArray) -> None:  # fmt: skip
    """Unpack rows of fixed stride into `symbols`, uint8 or uint16, shape (rows, features), C-contiguous.

    `words` : uint32, with a guard word behind the last symbol. `offsets` : uint32, shape (features + 1,), first bit of
    each feature's symbol within a row, and the end.
    """
    n_rows, n_features = symbols.shape
    if symbols.size == 0:
        return
    tile_rows = max(1, TILE_SYMBOLS // n_features)
    runtime.kernel("unpack", "unpack_rows", SYMBOL_BYTES=symbols.itemsize)(
        -(-n_rows // tile_rows), THREADS, words, offsets, n_features, stride_bytes, n_rows, tile_rows, symbols
    )


def unpack_stream(runtime: Runtime, words: DeviceArray, width: int, bins: DeviceArray) -> None:
    """Unpack one stream of symbols of `width` bits, 1 to 32, into `bins`, uint32.

    `words` : uint32, with a guard word behind the last symbol.
    """
    if bins.size == 0:
        return
    blocks = -(-bins.size // TILE_SYMBOLS)
    runtime.kernel("unpack", "unpack_stream", SYMBOL_BYTES=1)(blocks, THREADS, words, width, bins.size, bins)
