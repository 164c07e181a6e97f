"""The map from blocks to tiles of nodes' rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from daskboost.devices.gpu.rows.feature_groups import map_tiles
from daskboost.devices.gpu.runtime.launches import to_host


def test_segments_are_cut_into_tiles_and_absent_nodes_have_none(runtime: Any) -> None:
    bounds = runtime.xp.asarray(np.array([[0, 5], [5, 5], [5, 21], [21, 29]], np.int64))
    nodes = np.array([2, -1, 0, 1, -1, 3], np.int32)
    tiles = map_tiles(runtime, bounds, runtime.xp.asarray(nodes), 8, 29)
    assert tiles.starts is not None
    np.testing.assert_array_equal(to_host(tiles.starts), [0, 2, 2, 3, 3, 3, 4])
    assert tiles.most >= 4
