"""Which engine a fit's parameters ask for, and on which device it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from daskboost.cluster.certified_rows import CertifiedEngine
from daskboost.cluster.coordinator import FitSpec
from daskboost.cluster.engine import Engine, EngineSetup
from daskboost.cluster.links import Peers
from daskboost.cluster.sampled_rows import SampledEngine
from daskboost.cluster.shared_views import SharedViews
from daskboost.data.shard import Shard
from daskboost.devices.cpu.threads import Threads
from daskboost.devices.device import Device


def engine_kind(spec: FitSpec) -> Callable[..., Engine]:
    """What makes the engines of a fit."""
    params = spec.params
    if params.out_of_core == "certified":
        return partial(CertifiedEngine, share=params.resident_share)
    return SampledEngine if params.out_of_core == "sampled" else Engine


def engine_on(make_device: Callable[[Threads], Device], threads: Threads, setup: EngineSetup, train: Shard,
              evals: Sequence[Shard], peers: Peers | None = None, shared: SharedViews | None = None,
              kind: Callable[..., Engine] = Engine) -> Engine:  # fmt: skip
    """An engine of a kind on a device of these threads, which end at once if either cannot be made; so does what the
    device streams, since a sample is taken in a pass."""
    device: Device | None = None
    try:
        device = make_device(threads)
        return kind(setup, train, evals, device, peers, shared)
    except BaseException:
        (threads if device is None else device).close()
        raise
