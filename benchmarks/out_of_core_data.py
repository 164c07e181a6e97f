"""Rows that are nowhere as a whole: made block by block on the device, kept as bins in the host's memory or in files.

A block is made whenever somebody reads it, which is twice for a data set (sketch, bins) and as often as XGBoost's
iterator asks. On the CPU, where there is no other tier above, what is not resident lies in files.
"""

from __future__ import annotations

import functools
import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generators import WORKLOADS
from benchmarks.gpu_contenders import array_module, host
from benchmarks.out_of_core_cases import Config
from daskboost import QuantizedDataset, plan
from daskboost.data.chunks.store import StoreCounters

LARGE_VALUES = 1 << 32
"""From so many on, a quarter of their bins' bytes is enough to quantize blocks on the device, and too few to stay. Of
fewer rows the bins would stay there: they are quantized on the host."""
COPIES, COPY_BYTES = 32, 1 << 27


@dataclass(frozen=True)
class Blocks:
    """Rows `first` to `first + n_rows` of a workload, in blocks."""

    workload: str
    n_rows: int
    n_features: int
    block_rows: int
    device: str
    first: int = 0

    def __len__(self) -> int:
        return -(-self.n_rows // self.block_rows)

    def sizes(self) -> tuple[int, ...]:
        """Rows of each block."""
        return tuple(min(self.block_rows, self.n_rows - i * self.block_rows) for i in range(len(self)))

    def make(self, i: int) -> tuple[Any, Any]:
        """Features and label of block i, on the device."""
        found = WORKLOADS[self.workload].wide(self.n_features)
        first = self.first + i * self.block_rows
        return found.rows(self.sizes()[i], first=first, xp=array_module(self.device))

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return (self.make(i) for i in range(len(self)))

    def lazily(self, on: str = "host") -> tuple[Any, Any]:
        """Dask Arrays of features and label, whose blocks are made when they are read, once for both.

        A block of features is good until the next one is read. It lies on the device where rows are quantized `on` it,
        as partitions of cuDF do; labels lie on the host.
        """
        import dask.array as da
        from dask import delayed

        last, one_at_a_time = functools.lru_cache(maxsize=1)(self.make), threading.Lock()
        passed_on = on == "device" or self.device == "cpu"
        features: Callable[[Any], Any] = (lambda block: block) if passed_on else HostBuffer()

        def part(i: int, which: int) -> Any:
            with one_at_a_time:  # tasks of both arrays run at the same time
                array = last(i)[which]
            return features(array) if array.ndim == 2 else host(array)

        read = delayed(part, pure=False)
        meta = np.empty((0, self.n_features), np.float32), np.empty(0, np.float32)
        arrays = (
            [da.from_delayed(read(i, which), (n, *of.shape[1:]), meta=of) for i, n in enumerate(self.sizes())]
            for which, of in enumerate(meta)
        )
        x, y = map(da.concatenate, arrays)
        return x, y


class HostBuffer:
    """Copies matrices from the device into pinned memory, each over the last: fresh memory takes ten times as long."""

    def __init__(self) -> None:
        self._buffer: Any = None

    def __call__(self, matrix: Any) -> Any:
        import cupy
        import cupyx

        if self._buffer is None or len(self._buffer) < len(matrix):
            self._buffer = cupyx.empty_pinned(matrix.shape, matrix.dtype)
        cupy.cuda.Device().synchronize()  # what still copies from the buffer
        return matrix.get(out=self._buffer[: len(matrix)])


def training_blocks(config: Config) -> Blocks:
    return Blocks(config.workload, config.n_rows, config.n_features, config.block_rows, config.device)


def test_blocks(config: Config) -> Blocks:
    """Rows that no fit has seen."""
    return Blocks(
        config.workload, config.test_rows, config.n_features, config.block_rows, config.device, first=config.n_rows
    )


@functools.lru_cache(maxsize=2)
def quantized(blocks: Blocks, max_bin: int, packing: str, chunk_rows: int, on: str, ram_bytes: int | None,
              keep: Path | None) -> QuantizedDataset:  # fmt: skip
    """Bins of all blocks; those of the last two calls are kept for the next.

    Parameters
    ----------
    on : str
        "device" or "host": where large data is quantized, and is too large to stay.
    ram_bytes : int, optional
        Of the host's memory for bins, the others go to files; None for no limit.
    keep : path, optional
        A folder to which the data set is saved, or from which it is opened if it is there.
    """
    spill: dict[str, Any] = {} if ram_bytes is None else {
        "host_memory_limit": ram_bytes, "spill_directory": tempfile.gettempdir()
    }  # fmt: skip
    name = f"{blocks.workload}-{blocks.n_rows}x{blocks.n_features}-{max_bin}-{packing}-{chunk_rows}"
    if keep is not None and (keep / name).exists():
        return QuantizedDataset.open(keep / name, **spill)
    n_values = blocks.n_rows * blocks.n_features
    if n_values < LARGE_VALUES:
        on = "host"
    elif on == "device" and blocks.device == "cuda":
        spill.update(device="cuda", device_memory_limit=n_values // 4)
    start = time.perf_counter()
    made = QuantizedDataset.from_dask(
        *blocks.lazily(on), max_bin=max_bin, packing=packing, chunk_rows=chunk_rows, **spill
    )
    print(f"  made {blocks.n_rows} rows twice and quantized them in {time.perf_counter() - start:.1f} s", flush=True)
    if keep is not None:
        made.save(keep / name)
    return made


@functools.lru_cache(maxsize=1)
def quantized_test_rows(config: Config, reference: QuantizedDataset) -> QuantizedDataset:
    """Test rows in the bins of training rows, in the host's memory."""
    blocks = test_blocks(config).lazily()
    return QuantizedDataset.from_dask(*blocks, reference=reference, chunk_rows=config.chunk_rows)


def dataset_of(config: Config, *, share: float | None = None, packing: str = "aligned", keep: Path | None = None
               ) -> QuantizedDataset:  # fmt: skip
    """The training rows. On the CPU `share` of the bins, by default what is resident, is in memory."""
    blocks, share = training_blocks(config), config.resident if share is None else share
    ram_bytes = None
    if config.device == "cpu" and share < 1:
        bits = 8 if packing == "aligned" else math.ceil(math.log2(config.max_bin))
        ram_bytes = 1 + int(share * blocks.n_rows * blocks.n_features * bits / 8)
    return quantized(blocks, config.max_bin, packing, config.chunk_rows, config.quantize_on, ram_bytes, keep)


def device_limit(config: Config, dataset: QuantizedDataset, share: float, *, evals: Any = (), **params: Any
                 ) -> dict[str, Any]:  # fmt: skip
    """Parameters that let `share` of the chunks stay on the device, by the plans that fits make: the largest limit that
    keeps no more of them.

    On the CPU none: there the data set itself is divided.
    """
    if config.device == "cpu":
        return {}

    def kept(limit: int) -> float:
        found = resident_share(dataset, config.params(**params, device_memory_limit=limit), evals)
        return -1.0 if found is None else found

    whole = plan(config.params(**params), dataset, evals=evals).total_bytes
    limit = whole if share == 1 else largest_limit(whole, lambda limit: kept(limit) <= share)
    return {"device_memory_limit": limit}


def largest_limit(whole: int, is_small_enough: Callable[[int], bool]) -> int:
    """Return the largest limit below `whole`, the bytes of a fit that keeps all, that is small enough."""
    low, high = 1, whole
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_small_enough(middle) else (low, middle)
    return low


def resident_share(dataset: QuantizedDataset, params: Mapping[str, Any], evals: Any = ()) -> float | None:
    """Of the chunks, what a fit's plan keeps on the device; None if the fit has no room."""
    found = plan(params, dataset, evals=evals)
    if found.fits is False:
        return None
    return 1.0 if found.resident is None else found.resident[0] / sum(len(s.entries) for s in dataset.shards.shards)


def bin_bytes(dataset: QuantizedDataset) -> int:
    """Of all chunks, packed as they are stored."""
    return sum(entry.handle.nbytes for shard in dataset.shards.shards for entry in shard.entries)


def counters(dataset: QuantizedDataset) -> StoreCounters:
    """Of the chunks of a data set in this process."""
    (shard,) = dataset.shards.shards
    found: StoreCounters = shard.store.counters()
    return found


def bandwidth(device: str) -> float:
    """Bytes per second that reach an engine: from pinned memory to the device; on the CPU from a file just written."""
    return _file_bandwidth() if device == "cpu" else _bus_bandwidth()


def _bus_bandwidth() -> float:
    import cupy

    pinned = cupy.cuda.alloc_pinned_memory(COPY_BYTES)
    there = cupy.empty(COPY_BYTES, cupy.uint8)
    stream = cupy.cuda.Stream(non_blocking=True)
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    for copies in (2, COPIES):  # the first ones warm up
        begin.record(stream)
        for _ in range(copies):
            there.data.copy_from_host_async(pinned.ptr, COPY_BYTES, stream)
        end.record(stream)
        end.synchronize()
    milliseconds: float = cupy.cuda.get_elapsed_time(begin, end)
    return COPIES * COPY_BYTES / milliseconds * 1e3


def _file_bandwidth() -> float:
    import os

    size = COPY_BYTES // 8
    buffer = bytearray(size)
    with tempfile.NamedTemporaryFile() as file:
        file.write(buffer)
        file.flush()
        start = time.perf_counter()
        for _ in range(COPIES):
            os.preadv(file.fileno(), [buffer], 0)
        return COPIES * size / (time.perf_counter() - start)
