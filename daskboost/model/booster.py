"""The model: trees, what their sums mean, and everything one can ask of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from daskboost.data.input.row_batch import FeatureSchema
from daskboost.dtypes import Float32
from daskboost.errors import ParameterError
from daskboost.files import write_whole
from daskboost.model.leaf_scale import LeafScale
from daskboost.model.output import Output
from daskboost.objectives.objective import Objective
from daskboost.params import as_path
from daskboost.tree.table import TreeTable

if TYPE_CHECKING:
    import pandas as pd

    from daskboost.devices.cpu.predict import PackedForest
    from daskboost.devices.cpu.predict_models import PackedModels
    from daskboost.devices.gpu.predict import AnyForest
    from daskboost.model.explain import ImportanceType
    from daskboost.model.serialize import Format


@dataclass(frozen=True, eq=False, repr=False)
class Booster:
    """A trained model; frozen.

    Two boosters are equal if their files are. A booster pickles as the bytes of its own file format, so what a
    file does not keep (the bins of splits, a custom objective's function) is lost on the way to another process.

    Parameters
    ----------
    trees : tuple of TreeTable
        In the order in which their values are added.
    tree_outputs : tuple of int
        The output each tree adds to: XGBoost's ``tree_info``; 0 where leaves are vectors, which add to all.
    iteration_indptr : tuple of int
        Iteration ``i`` made trees ``iteration_indptr[i]`` to ``iteration_indptr[i + 1]``.
    objective : Objective
        Turns margins into predictions.
    base_score : tuple of float, or float
        Prediction without trees, in the user's space (a probability for logistic losses, a mean for log links): one
        number for all outputs or one for each. Rounded to float32, which files hold.
    schema : FeatureSchema
    attributes : mapping of str to str
        Kept in files: ``best_iteration`` and ``best_score`` from early stopping, and the user's own.
    params : mapping of str to str
        The training parameters, for the record; kept in files.
    leaf_scale : LeafScale, optional
        Cut points of the features that models of leaves have, where some leaf has one.
    """

    trees: tuple[TreeTable, ...]
    tree_outputs: tuple[int, ...]
    iteration_indptr: tuple[int, ...]
    objective: Objective
    base_score: tuple[float, ...]
    schema: FeatureSchema
    attributes: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    leaf_scale: LeafScale | None = None

    def __post_init__(self) -> None:
        scores = np.atleast_1d(np.asarray(self.base_score, np.float32))
        object.__setattr__(self, "base_score", tuple(scores.tolist()))
        pointers = self.iteration_indptr
        if not len(self.trees) == len(self.tree_outputs) == pointers[-1] or pointers[0] != 0:
            raise ParameterError(
                f"{len(self.trees)} trees with {len(self.tree_outputs)} tree_outputs and iteration_indptr from "
                f"{pointers[0]} to {pointers[-1]}: all must be as many as the trees"
            )
        widths, n_outputs = {tree.leaf_width for tree in self.trees}, self.n_outputs
        if len(widths) > 1 or not widths <= {1, n_outputs}:
            raise ParameterError(
                f"trees have leaves of {sorted(widths)} values for {n_outputs} outputs; all must have one value, "
                "or all one per output"
            )
        if len(scores) not in (1, n_outputs):
            raise ParameterError(f"base_score has {len(scores)} numbers for {n_outputs} outputs; give one or all")

    def __repr__(self) -> str:
        return (
            f"<Booster {self.objective.name}, {self.n_features} features, {self.n_iterations} iterations, "
            f"{len(self.trees)} trees>"
        )

    @property
    def n_features(self) -> int:
        return self.schema.n_features

    @property
    def n_iterations(self) -> int:
        return len(self.iteration_indptr) - 1

    @cached_property
    def n_outputs(self) -> int:
        """Margins per row; more than the objective's where one loss is applied to several targets."""
        of_leaves = max((tree.leaf_width for tree in self.trees), default=1)
        return max(self.objective.n_outputs, len(self.base_score), max(self.tree_outputs, default=0) + 1, of_leaves)

    @cached_property
    def has_vectors(self) -> bool:
        """Whether leaves hold a value per output (``multi_strategy="multi_output_tree"``)."""
        return any(tree.has_vectors for tree in self.trees)

    @cached_property
    def has_models(self) -> bool:
        """Whether some leaf has a model (``linear_leaves=True``)."""
        return any(tree.models for tree in self.trees)

    @property
    def best_iteration(self) -> int | None:
        """The iteration that early stopping found best; None where it did not run, or the model does not contain it."""
        text = self.attributes.get("best_iteration", "")
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) < self.n_iterations):
            return None
        return int(text)

    @property
    def best_score(self) -> float | None:
        """The evaluation metric at `best_iteration`; None where it is not known."""
        if self.best_iteration is None:
            return None
        try:
            return float(self.attributes["best_score"])
        except (KeyError, ValueError):  # attributes are anybody's to write
            return None

    @property
    def base_margin(self) -> Float32:
        """Margin without trees; float32, shape (outputs,)."""
        return np.broadcast_to(self.objective.to_margin(self.base_score), (self.n_outputs,)).astype(np.float32)

    @cached_property
    def forest(self) -> PackedForest:
        """The trees as prediction reads them; made on first use and kept."""
        from daskboost.model.predict_rows import pack_forest

        return pack_forest(self.trees, self.tree_outputs)

    @cached_property
    def leaf_models(self) -> PackedModels:
        """The models of leaves as prediction reads them, where there are some; made on first use and kept."""
        from daskboost.model.predict_models import pack_models

        assert self.leaf_scale is not None
        return pack_models(self.trees, self.tree_outputs, self.leaf_scale)

    @cached_property
    def device_forests(self) -> dict[Any, AnyForest]:
        """The trees as GPUs have them, see `daskboost.model.output.device_forest`."""
        return {}

    def __len__(self) -> int:
        """Return the number of iterations: ``booster[0]`` to ``booster[len(booster) - 1]``."""
        return self.n_iterations

    def __bool__(self) -> bool:
        """Return True: a model of no iterations is a model, which predicts its base score."""
        return True

    def __getitem__(self, iterations: SupportsIndex | slice) -> Booster:
        """The model of some iterations, e.g. ``booster[:10]``; what early stopping found does not apply to it.

        Raises
        ------
        IndexError
            A number that no iteration has, which is also what ends ``for iteration in booster``.
        ParameterError
            A slice with a step other than 1, or of no iteration.
        """
        if isinstance(iterations, slice):
            wanted = range(self.n_iterations)[iterations]
        else:
            number = index(iterations)
            if not -self.n_iterations <= number < self.n_iterations:
                raise IndexError(f"booster[{number}]: the model has {self.n_iterations} iterations, numbered from 0")
            wanted = range(self.n_iterations)[number : number + 1 or None]
        if not wanted or wanted.step != 1:
            raise ParameterError(
                f"booster[{iterations}] of {self.n_iterations} iterations: give a range of existing ones with step 1"
            )
        pointers = self.iteration_indptr[wanted.start : wanted.stop + 1]
        trees = slice(pointers[0], pointers[-1])
        return replace(
            self,
            trees=self.trees[trees],
            tree_outputs=self.tree_outputs[trees],
            iteration_indptr=tuple(pointer - pointers[0] for pointer in pointers),
            attributes={k: v for k, v in self.attributes.items() if k not in ("best_iteration", "best_score")},
        )

    def predict(
        self,
        X: Any,
        *,
        output: Output = "prediction",
        iteration_range: tuple[int, int] | None = None,
        base_margin: Any = None,
        missing: float = np.nan,
        n_threads: int | None = None,
        device: str = "auto",
    ) -> Any:
        """Predict rows; lazily for a Dask collection.

        Parameters
        ----------
        X : numpy array, scipy.sparse matrix, pandas DataFrame, pyarrow Table, or a Dask Array or DataFrame of such
            Shape (rows, features). NaN, null and absent sparse entries are missing. Frames are matched by column name
            where the model knows names; further columns are ignored. CuPy arrays, cupyx.scipy.sparse matrices, cudf
            DataFrames and Dask collections of them are predicted on their GPU, to the CPU's last bit.
        output : {"prediction", "margin", "class", "leaf", "contributions"}, default "prediction"
            ``"prediction"``: the mean, the quantiles, the probability of class 1, or of each class; ``"margin"``: raw
            scores; ``"class"``: the class with the highest probability, for classification; ``"leaf"``: the node of
            each tree in which a row ends; ``"contributions"``: SHAP values of the margin, and last the bias, but
            not of rows on a GPU.
        iteration_range : (int, int), optional
            First iteration and the one after the last, 0 for all. Default: up to the best iteration where early
            stopping found one, else all.
        base_margin : array, shape (rows,) or (rows, outputs), optional
            Replaces the base score; for Dask input a collection with the same partitions.
        missing : float, default NaN
            A further value that means missing.
        n_threads : int, optional
            Threads for local input; as many as the process may run on by default. Dask input uses one per task.
        device : {"auto", "cpu", "cuda", "cuda:1"}, default "auto"
            Where rows of the host's memory are predicted, to the same bits. "auto" takes them to a GPU, block by block,
            where CuPy and one are there and that takes less time than the CPU: of 300 trees and 16 cores from some
            10,000 rows on, in a process's first use of a GPU millions; with too little memory there the CPU predicts,
            and the log says so. A GPU that is named takes any rows. Rows on a GPU are predicted there whatever is
            given, and contributions on the CPU.

        Returns
        -------
        numpy array for local input, CuPy array for such on a GPU; Dask Series or DataFrame with X's partitions and
        index for a DataFrame; Dask Array with X's row chunks for an Array; their partitions are of the kind of X's.
        Float32 of shape (rows,) or (rows, outputs); int32 of shape (rows,) for classes, (rows, trees) for leaves;
        contributions of shape (rows, features + 1), or (rows, outputs, features + 1) for several outputs.

        Raises
        ------
        ParameterError
            An unknown output or device, classes of a regression, iterations the model does not have, or contributions
            of rows on a GPU.
        DataError
            Columns that are missing or not numbers, infinite values, another number of features or base margins.
        MissingDependencyError, DeviceError
            A GPU was named that this process cannot use, or whose memory is full.
        """
        from daskboost.model.output import make_request
        from daskboost.model.placement import Place
        from daskboost.model.route import predict

        place = Place.of_call(device)
        return predict(make_request(self, output, iteration_range, n_threads, place), X, base_margin, missing)

    def save_model(self, path: str | Path) -> None:
        """Write the model to a file whose name ends in ``.json`` or ``.ubj``; see `to_bytes`.

        Raises
        ------
        StorageError
            The file cannot be written, such as for a full disk; one that was there before is as it was.
        """
        from daskboost.model.serialize import format_of

        write_whole(path, self.to_bytes(format_of(path)))

    @classmethod
    def load_model(cls, path: str | Path) -> Booster:
        """Read a model file of daskboost or XGBoost; see `from_bytes`."""
        return cls.from_bytes(as_path("path", path).read_bytes())

    def to_bytes(self, format: Format = "ubj") -> bytes:
        """The model in XGBoost's schema; equal models give equal bytes."""
        from daskboost.model.serialize import to_bytes

        return to_bytes(self, format)

    save_raw = to_bytes

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Booster:
        """Read what `to_bytes` or XGBoost's ``save_raw`` gave, JSON or UBJSON.

        Raises
        ------
        ParameterError
            Data that is no bytes.
        ModelFormatError
            Data that is truncated, corrupt, hostile, from a newer version, or a model that this library cannot
            represent (linear boosters).

        Notes
        -----
        Features of categories in XGBoost's files (``feature_types`` of "c") are predicted from their codes: numbers
        from 0 on, NaN where missing. Dictionaries, which XGBoost 3.1 keeps of data frames, are not read.
        """
        from daskboost.model.serialize import from_bytes

        return from_bytes(data)

    def get_score(self, importance_type: ImportanceType = "weight") -> dict[str, float]:
        """Importance by name of the columns that some split uses; see `daskboost.model.explain.importance`."""
        from daskboost.model.explain import importance

        used, values = np.flatnonzero(importance(self, "weight")), importance(self, importance_type)
        return {self.schema.columns.label(int(i)): float(values[i]) for i in used}

    def trees_to_dataframe(self) -> pd.DataFrame:
        """One row per node, with XGBoost's columns; see `daskboost.model.output.trees_to_dataframe`."""
        from daskboost.model.output import trees_to_dataframe

        return trees_to_dataframe(self)

    def __eq__(self, other: object) -> bool:
        return self.to_bytes() == other.to_bytes() if isinstance(other, Booster) else NotImplemented

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what `to_bytes` gives, in 64 lower-case hexadecimal digits; saved data sets keep it."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def __hash__(self) -> int:
        return hash(self.digest)

    def __dask_tokenize__(self) -> tuple[str, str]:
        return ("daskboost.Booster", self.digest)

    def __reduce__(self) -> tuple[Callable[[bytes], Booster], tuple[bytes]]:
        return Booster.from_bytes, (self.to_bytes(),)
