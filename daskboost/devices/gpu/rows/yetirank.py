"""Gradients of YetiRank on a GPU, of all queries' rows together: launches of `kernels/yetirank.cu`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from daskboost.devices.cpu.queries import PairRule, Queries
from daskboost.devices.cpu.yetirank import fades_of
from daskboost.devices.gpu.rows.queries import QueryKernels, held
from daskboost.devices.gpu.rows.query_order import THREADS, LargeQueries
from daskboost.devices.gpu.runtime.launches import DeviceArray
from daskboost.devices.losses import Noise, PairWeight


class OrderKernels(QueryKernels):
    """`QueryKernels` for pairs of noisy orders; `OrderLoops` of `devices/cpu/yetirank.py` is its twin."""

    def _tables(self, queries: Queries, rule: PairRule) -> dict[str, npt.NDArray[Any]]:
        fades = fades_of(self._loss, queries.label).astype(np.uint32)
        return held(queries, rule) | {"ids": queries.ids, "fades": fades}

    def fill_next(self, margin: DeviceArray, g: DeviceArray, h: DeviceArray) -> None:
        """Enqueue what `fill` does, with the key that is next."""
        known, loss, orders = self._held, self._loss, self._loss.orders
        assert orders is not None
        names = ("order", "begins", "gains", "steps", "scales", "worths", "factors", "fades")
        for each in self._sorted.blocks:
            self.runtime.kernel("yetirank", "fill_orders", WEIGHT=int(loss.weight))(
                len(each.which), each.threads, each.which, *(known[name] for name in names), loss.top, loss.drawn,
                orders.neighbors, *self._noise, margin, g, h, shared_bytes=each.shared_bytes,
            )  # fmt: skip
        if self._sorted.large is not None:
            self._fill_large(self._sorted.large, margin, g, h)

    @property
    def _noise(self) -> tuple[DeviceArray | float | None, ...]:
        """What kernels draw noise by."""
        orders = self._loss.orders
        assert orders is not None
        return self._held["ids"], self._draw_keys, self._ended, int(orders.noise == Noise.GUMBEL), orders.power

    def _fill_large(self, large: LargeQueries, margin: DeviceArray, g: DeviceArray, h: DeviceArray) -> None:
        """Enqueue the gradients of large queries."""
        known, own, loss, orders = self._held, self._of_large, self._loss, self._loss.orders
        assert orders is not None
        begins, order, gains, steps, fades = (known[name] for name in ("begins", "order", "gains", "steps", "fades"))

        def launch(name: str, *arguments: DeviceArray | float | None) -> None:
            kernel = self.runtime.kernel("yetirank", name, WEIGHT=int(loss.weight))
            kernel(large.n_tiles, THREADS, large.tiles, *arguments)

        firsts, keys = own["firsts"], own["noisy"]
        for number in range(loss.drawn):
            launch("draw_scores", begins, order, *self._noise, margin, number, own["noisy"], own["sums"], firsts)
            keys = large.sorted_keys(begins, order, own["noisy"])
            if loss.weight != PairWeight.NDCG:
                launch("sum_tiles", begins, keys, gains, steps, fades, own["of_tiles"])
                launch("look_down", begins, keys, gains, steps, fades, own["of_tiles"], own["aboves"], firsts)
            launch(
                "add_neighbors", begins, order, keys, gains, steps, known["scales"], known["worths"], own["aboves"],
                firsts, loss.top, orders.neighbors, margin, own["sums"],
            )  # fmt: skip
        launch("write_sums", begins, order, keys, known["scales"], known["factors"], loss.drawn, own["sums"], g, h)
