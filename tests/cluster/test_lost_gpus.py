"""GPUs that are joined: a worker that dies ends the fit with the cause, soon, and the next one works."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from daskboost import QuantizedDataset, train
from daskboost.errors import DaskBoostError

N_TIMES = int(os.environ.get("DASKBOOST_LOSSES", "3"))
"""How often a worker dies."""
MOST_SECONDS = 5.0
PARAMS = {"objective": "binary:logistic", "max_depth": 6, "device": "cuda", "reduction": "nccl"}


N_BLOCKS, BLOCK_ROWS, N_FEATURES = 8, 50_000, 20


def made_block(number: int) -> tuple[Any, Any]:
    """Return rows and their labels."""
    rng = np.random.default_rng(number)
    x = rng.normal(size=(BLOCK_ROWS, N_FEATURES)).astype(np.float32)
    return x, (x[:, 0] + rng.normal(size=len(x)) > 0).astype(np.float32)


def made_blocks() -> tuple[Any, Any]:
    """Return them as Dask arrays."""
    import dask.array as da
    from dask import delayed

    made = [delayed(made_block, nout=2)(number) for number in range(N_BLOCKS)]
    features = [da.from_delayed(x, (BLOCK_ROWS, N_FEATURES), np.float32) for x, _ in made]
    return da.concatenate(features), da.concatenate([da.from_delayed(y, (BLOCK_ROWS,), np.float32) for _, y in made])


def n_gpus() -> int:
    import cupy

    return int(cupy.cuda.runtime.getDeviceCount())


@pytest.mark.gpu
def test_a_worker_dies_in_mid_tree() -> None:
    dask_cuda, distributed = pytest.importorskip("dask_cuda"), pytest.importorskip("distributed")
    if n_gpus() < 2:
        pytest.skip("one GPU is joined with no other")

    cluster = dask_cuda.LocalCUDACluster(CUDA_VISIBLE_DEVICES=[0, 1], dashboard_address=":0")
    with cluster, distributed.Client(cluster, set_as_default=False) as client, ThreadPoolExecutor(1) as pool:
        for turn in range(N_TIMES):
            client.wait_for_workers(2, timeout=60)
            before = client.run(used_bytes)
            with client.as_current():
                blocks = client.persist(made_blocks())
            dataset = QuantizedDataset.from_dask(*blocks, client=client, device="cuda")
            assert len(set(dataset.shards.owners)) == 2
            fit = pool.submit(train, PARAMS, dataset, 1_000_000)
            time.sleep(2.0 + 0.37 * turn % 1)
            assert not fit.done()
            victim, pid = list(client.run(os.getpid).items())[turn % 2]
            start = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(DaskBoostError) as caught:
                fit.result(timeout=60)
            seconds = time.monotonic() - start
            print(f"{seconds:.2f} s: {type(caught.value).__name__}: {str(caught.value)[:150]}", flush=True)
            assert seconds < MOST_SECONDS
            dataset.close()
            client.wait_for_workers(2, timeout=60)
            after = client.run(used_bytes)
            print([after[each] - before[each] for each in after if each in before and each != victim], flush=True)
        with client.as_current():
            blocks = client.persist(made_blocks())
        with QuantizedDataset.from_dask(*blocks, client=client, device="cuda") as dataset:
            assert len(set(dataset.shards.owners)) == 2
            found = train(PARAMS, dataset, 20).to_bytes()
    features, labels = zip(*(made_block(number) for number in range(N_BLOCKS)), strict=True)
    with QuantizedDataset.from_dask(np.concatenate(features), np.concatenate(labels), device="cpu") as dataset:
        assert train({**PARAMS, "device": "cpu", "reduction": "auto"}, dataset, 20).to_bytes() == found


def used_bytes() -> int:
    """What the worker's own GPU has given away."""
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    free, total = cupy.cuda.runtime.memGetInfo()
    return int(total - free)
