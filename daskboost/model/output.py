"""What a prediction is asked for, and how margins become it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from daskboost.dtypes import Array, ArrayModule, Bool, Float32, flat, in_columns
from daskboost.errors import DataError, ParameterError
from daskboost.model.placement import ON_CPU, Place, PredictionSize
from daskboost.objectives.classification import Logistic, SoftProb

if TYPE_CHECKING:
    import pandas as pd

    from daskboost.data.input.row_batch import Features
    from daskboost.data.input.uploaded_rows import UploadedRows
    from daskboost.devices.gpu.predict import AnyForest, Values
    from daskboost.devices.gpu.runtime.launches import Runtime
    from daskboost.model.booster import Booster


# Trees as a table.

def trees_to_dataframe(booster: Booster) -> pd.DataFrame:
    """One row per node: XGBoost's ``Booster.trees_to_dataframe``.

    Returns
    -------
    pandas.DataFrame
        ``Tree, Node, ID`` ("tree-node"), ``Feature`` (a name, or "Leaf"), ``Split`` (values below it go to ``Yes``,
        others to ``No``, missing ones to ``Missing``), ``Gain`` (in a leaf its value), ``Cover`` (sum of hessians),
        ``Category`` (the list of categories that go to ``Yes`` where a set of them splits and ``Split`` is NaN; None
        elsewhere, NaN in leaves and in models without sets): texts of their values, or of codes where the model has no
        more. Where leaves are linear, ``Gain`` is a leaf's value at position 0, and ``Slopes`` maps features to slopes
        by position (None in other nodes). Where leaves are vectors, which XGBoost does not tabulate, ``Gain`` is NaN
        in a leaf and its values stand in further columns, ``Value 0`` to ``Value {outputs - 1}``.
    """
    import pandas as pd

    n_nodes = np.array([tree.n_nodes for tree in booster.trees], np.int64)
    index = np.repeat(np.arange(len(n_nodes)), n_nodes)
    nodes = np.arange(len(index)) - np.repeat(np.cumsum(n_nodes) - n_nodes, n_nodes)
    leaf: Bool = _all(booster, "is_leaf", np.bool_)
    has_set = _all(booster, "has_set", np.bool_)
    labels = np.array([*map(booster.schema.label, range(booster.n_features)), "Leaf"], object)
    trees = np.char.add(index.astype(str), "-")
    values = _all(booster, "value", np.float32)
    frame = pd.DataFrame(
        {
            "Tree": index,
            "Node": nodes,
            "ID": _ids(trees, nodes, np.zeros_like(leaf)),
            "Feature": labels[np.where(leaf, booster.n_features, _all(booster, "feature", np.int32))],
            "Split": np.where(leaf | has_set, np.nan, _all(booster, "threshold", np.float32)),
            "Yes": _ids(trees, _all(booster, "yes_child", np.int32), leaf),
            "No": _ids(trees, _all(booster, "no_child", np.int32), leaf),
            "Missing": _ids(trees, _all(booster, "missing_child", np.int32), leaf),
            "Gain": np.where(leaf, np.nan if booster.has_vectors else values, _all(booster, "gain", np.float32)),
            "Cover": _all(booster, "cover", np.float32),
            "Category": _categories(booster) if has_set.any() else np.nan,
        }
    )
    if booster.has_models:
        frame["Slopes"] = _slopes(booster)
    for output in range(booster.n_outputs if booster.has_vectors else 0):
        frame[f"Value {output}"] = np.where(leaf, values[:, output], np.float32(np.nan))
    return frame


def _categories(booster: Booster) -> npt.NDArray[np.object_]:
    """The categories of each node's set, as lists; None where a threshold splits, NaN in leaves."""
    found: list[object] = []
    for tree in booster.trees:
        for node, (feature, leaf) in enumerate(zip(tree.feature.tolist(), tree.is_leaf.tolist(), strict=True)):
            names = [str(booster.schema.category(feature, code)) for code in tree.sets.of(node).tolist()]
            found.append(np.nan if leaf else names or None)
    column = np.empty(len(found), object)
    column[:] = found
    return column


def _slopes(booster: Booster) -> npt.NDArray[np.object_]:
    """The slopes of each node's model, by the names of features; None where it has none."""
    found: list[dict[str, float] | None] = []
    for tree in booster.trees:
        for node in range(tree.n_nodes):
            terms = tree.models.terms(node)
            found.append({booster.schema.label(feature): slope for feature, slope in terms} or None)
    column = np.empty(len(found), object)
    column[:] = found
    return column


def _all(booster: Booster, field: str, dtype: type) -> npt.NDArray[Any]:
    """A field of the nodes of all trees."""
    found = [getattr(tree, field) for tree in booster.trees]
    return np.concatenate(found) if found else np.empty(0, dtype)


def _ids(trees: npt.NDArray[Any], nodes: npt.NDArray[Any], absent: Bool) -> npt.NDArray[Any]:
    """Texts "tree-node", NaN where there is none."""
    return np.where(absent, np.nan, np.char.add(trees, nodes.astype(str)).astype(object))


Output = Literal["prediction", "margin", "class", "leaf", "contributions"]
DEVICE_FORESTS = 4
"""Copies of a model on GPUs, one per range of trees, kind of result and device, that are kept for the next call."""


@dataclass(frozen=True)
class PredictRequest:
    """One call of predict: the same for all partitions."""

    booster: Booster
    output: Output
    trees: tuple[int, int]
    """First tree and the one after the last."""
    n_threads: int | None
    """Threads for a batch; None for all the process may run on."""
    place: Place = ON_CPU
    """Where rows of the host's memory are predicted."""

    @property
    def threads(self) -> int:
        """Threads for a batch."""
        from daskboost.model.predict_rows import thread_count

        return thread_count(self.n_threads)

    def size_of(self, rows: Sequence[UploadedRows]) -> PredictionSize:
        """What the time of predicting batches follows from."""
        n_bytes = sum(each.n_rows * each.row_bytes for each in rows)
        n_rows = sum(each.n_rows for each in rows)
        return PredictionSize(n_rows, n_bytes / max(n_rows, 1), self.trees[1] - self.trees[0], self.threads)

    def run_on_host(self, features: Features, base_margin: Float32 | None) -> npt.NDArray[Any]:
        """Predict rows on the CPU."""
        from daskboost.model.predict_rows import add_margins, find_leaves

        if self.output == "leaf":
            return find_leaves(self.booster.forest, features, self.trees, self.n_threads)
        start = self.start(features.n_rows, base_margin)
        if self.output == "contributions":
            from daskboost.model.explain import contributions

            found = contributions(self.booster, features, start, self.trees)
            return found.reshape(len(found), *self.empty().shape[1:])
        if self.booster.has_models:
            from daskboost.model.predict_models import add_modelled_margins

            forest, models = self.booster.forest, self.booster.leaf_models
            add_modelled_margins(forest, models, features, self.trees, start, self.n_threads)
        else:
            add_margins(self.booster.forest, features, self.trees, start, self.n_threads)
        return self.finish(start)

    def forest_on(self, runtime: Runtime) -> AnyForest:
        """The trees on a device, as `run_on_device` takes them.

        Raises
        ------
        ParameterError
            Contributions, which are computed on the host alone.
        """
        if self.output == "contributions":
            raise ParameterError(
                "output='contributions' is computed on the CPU: pass X in the host's memory, e.g. X.get() of a CuPy "
                "array, X.to_pandas() of a cudf DataFrame"
            )
        return device_forest(self.booster, runtime, self.trees, leaves=self.output == "leaf")

    def run_on_device(
        self, forest: AnyForest, rows: Values, base_margin: Float32 | None, infinite: Array
    ) -> Array:
        """Predict rows on a GPU, without waiting for it.

        Parameters
        ----------
        forest : AnyForest
            See `forest_on`.
        base_margin : float32 array of the device, shape (rows, outputs), or None
        infinite : uint8 array of the device, shape (features,)
            Becomes 1 for features with infinite values, for which the prediction means nothing.

        Returns
        -------
        array of the device
            As `run_on_host` gives it.
        """
        xp = forest.runtime.xp
        if self.output == "leaf":
            found = xp.empty((rows.n_rows, self.trees[1] - self.trees[0]), np.int32)
            forest.run(rows, found, infinite)
            return found
        margins = self.start(rows.n_rows, base_margin, xp)
        forest.run(rows, margins, infinite)
        return self.finish(margins, xp)

    def start(self, n_rows: int, base_margin: Float32 | None, xp: ArrayModule = np) -> Float32:
        """Margins before the first tree; float32 array of `xp`, shape (rows, outputs)."""
        shape = (n_rows, self.booster.n_outputs)
        if base_margin is None:
            start = xp.empty(shape, np.float32)
            start[...] = xp.asarray(self.booster.base_margin)
            return start
        if base_margin.shape != shape:
            raise DataError(
                f"base_margin has shape {base_margin.shape}, but X has {shape[0]} rows and the model {shape[1]} "
                "outputs; give one number per row and output"
            )
        return xp.array(base_margin, np.float32, order="C")

    def finish(self, margins: Float32, xp: ArrayModule = np) -> Array:
        """Margins of shape (rows, outputs) to what was asked for."""
        if self.output == "class":
            return class_codes(margins).astype(np.int32)
        if self.output == "margin":
            return flat(margins)
        return self.booster.objective.prediction(margins, xp)

    def empty(self) -> npt.NDArray[Any]:
        """The result for no rows: dtype and shape of what `run_on_host` returns."""
        n_outputs, n_columns = self.booster.n_outputs, self.booster.schema.columns.n_features + 1
        if self.output == "leaf":
            return np.empty((0, self.trees[1] - self.trees[0]), np.int32)
        if self.output == "contributions":
            return np.empty((0, n_columns) if n_outputs == 1 else (0, n_outputs, n_columns), np.float32)
        return self.finish(np.empty((0, n_outputs), np.float32))

    def column_names(self) -> list[str]:
        """Names of the columns of a two-dimensional result, for data frames."""
        width = self.empty().shape[1]
        if self.output == "leaf":
            return [f"tree_{tree}" for tree in range(*self.trees)]
        if self.output == "contributions":
            return [*map(self.booster.schema.columns.label, range(width - 1)), "bias"]
        return [f"{self.output}_{k}" for k in range(width)]


def class_codes(margins: Array) -> Array:
    """Return the most probable class of every row.

    Parameters
    ----------
    margins : array of NumPy or CuPy, shape (rows,) or (rows, outputs)
        A single output's is that of class 1.

    Returns
    -------
    intp array, shape (rows,)
    """
    scores = in_columns(margins)
    found: Array = scores.argmax(axis=1) if scores.shape[1] > 1 else (scores[:, 0] > 0).astype(np.intp)
    return found


def class_probabilities(margins: Array, xp: ArrayModule) -> Array:
    """Return the probability of every class, float32 of shape (rows, classes); `margins` as `class_codes` takes them.

    `xp` : the arrays' module.
    """
    scores = xp.ascontiguousarray(in_columns(margins))
    if scores.shape[1] > 1:
        found: Array = SoftProb(scores.shape[1]).prediction(scores, xp)
        return found
    p = Logistic().prediction(scores, xp)
    both: Array = xp.stack([1 - p, p], axis=1)
    return both


def device_forest(
    booster: Booster, runtime: Runtime, trees: tuple[int, int], *, leaves: bool
) -> AnyForest:
    """Some of a model's trees on a device; made on first use, and kept with the model."""
    from daskboost.devices.gpu.predict import DeviceForest, ModelForest, VectorForest
    from daskboost.model.predict_models import pack_models
    from daskboost.model.predict_rows import gpu_heap_depths, pack_forest

    kept, key = booster.device_forests, (runtime, trees, leaves)
    found = kept.get(key)
    if found is None:
        chosen = list(range(*trees))
        if not leaves:  # a sum does not see which trees of other outputs lie between its own
            chosen.sort(key=lambda tree: booster.tree_outputs[tree])
        outputs = [booster.tree_outputs[tree] for tree in chosen]
        forest = pack_forest([booster.trees[tree] for tree in chosen], outputs, gpu_heap_depths)
        while len(kept) >= DEVICE_FORESTS:
            kept.pop(next(iter(list(kept)), None), None)
        if booster.has_vectors and not leaves:
            found = VectorForest(runtime, forest)
        elif booster.leaf_scale is not None and not leaves:
            models = pack_models([booster.trees[tree] for tree in chosen], outputs, booster.leaf_scale)
            found = ModelForest(runtime, forest, models)
        else:
            found = DeviceForest(runtime, forest, range(len(chosen)) if leaves else outputs, leaves=leaves)
        kept[key] = found
    return found  # another thread may have forgotten it meanwhile


def make_request(
    booster: Booster, output: str, iteration_range: tuple[int, int] | None, n_threads: int | None,
    place: Place = ON_CPU,
) -> PredictRequest:  # fmt: skip
    """Check the arguments of a call of predict; ParameterError with the argument, its value and what is valid."""
    if output not in get_args(Output):
        raise ParameterError(f"output={output!r} is unknown; give one of {', '.join(map(repr, get_args(Output)))}")
    if output == "class" and not booster.objective.name.startswith(("binary:", "multi:")):
        raise ParameterError(f"output='class': objective {booster.objective.name!r} has no classes; use 'prediction'")
    if n_threads is not None and n_threads < 1:
        raise ParameterError(f"n_threads={n_threads!r}: give at least 1, or None for all")
    trees = tree_range(booster, iteration_range)
    return PredictRequest(booster, output, trees, n_threads, place)  # type: ignore[arg-type]


def tree_range(booster: Booster, iteration_range: tuple[int, int] | None) -> tuple[int, int]:
    """Trees of a range of iterations; by default those up to the best iteration."""
    if iteration_range is None:
        best = booster.best_iteration
        iteration_range = (0, booster.n_iterations if best is None else best + 1)
    n = booster.n_iterations
    try:
        first, stop = (index(i) for i in iteration_range)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"iteration_range={iteration_range!r}: give two integers, (first, stop)") from error
    stop = stop or n
    if not 0 <= first <= stop <= n or (first == stop and n > 0):
        raise ParameterError(
            f"iteration_range={iteration_range!r}: the model has iterations 0 to {n}; give 0 <= first < stop <= {n}"
        )
    return booster.iteration_indptr[first], booster.iteration_indptr[stop]
