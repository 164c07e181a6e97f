"""QuantizedDataset: quantize once, train often."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar
from weakref import WeakSet

import numpy as np

from daskboost.data.categories.combinations import DEFAULT_COMPLEXITY, check_complexity
from daskboost.data.categories.encode import CategoryOptions, encoded, encoded_without, encodings_of
from daskboost.data.categories.encoder import Encoder
from daskboost.data.chunks.build import BuildOptions, DatasetInfo, describe
from daskboost.data.chunks.row_folds import Dealing, DealtRows, FoldRule, LeftOut, OfSubset, rule_of
from daskboost.data.chunks.tiers import check_spill_directory, spill_path
from daskboost.data.cuts.cut_points import MAX_BIN_LIMIT, Cuts
from daskboost.data.input.kinds import is_lazy
from daskboost.data.input.labels import LabelStats
from daskboost.data.input.queries import qid_of_groups
from daskboost.data.input.row_batch import Features, FeatureSchema
from daskboost.data.input.source import Source, make_source
from daskboost.devices.choose import check_device
from daskboost.devices.cpu.compilers import foresee
from daskboost.devices.cpu.foreseen import foreseen
from daskboost.dtypes import Float32
from daskboost.errors import DataError, DataTypeError, DeviceError, ParameterError
from daskboost.foreign_words import takes_foreign_words
from daskboost.local.in_process import LocalRunner, LocalShards, open_here, quantize_here
from daskboost.model.booster import Booster
from daskboost.model.output import make_request
from daskboost.params import PARAMETERS, as_tuple, check_count, check_flag, parse_bytes, split_device

logger = logging.getLogger(__name__)

# What making a data set and continuing a model refuse before rows are read: options out of range, other columns.

def check_options(max_bin: object, encoding: object, packing: object, chunk_rows: object, n_jobs: object) -> None:
    """Refuse options of quantizing that are out of range."""
    for name, value, low, high in (
        ("max_bin", max_bin, 2, MAX_BIN_LIMIT), ("chunk_rows", chunk_rows, 0, 2**31 - 1), ("n_jobs", n_jobs, -1, 4096),
    ):  # fmt: skip
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
            raise ParameterError(f"{name}={value!r} must be an integer from {low} to {high}")
    for name, value, valid in (
        ("encoding", encoding, ("auto", "dense", "csr")), ("packing", packing, ("aligned", "tight", "common")),
    ):  # fmt: skip
        if value not in valid:
            raise ParameterError(f"{name}={value!r} must be one of {', '.join(map(repr, valid))}")


def of_model(model: Booster, source: Source) -> Source:
    """Return rows that continue a model, with their columns in its order where both are named, and its features where
    some are of categories.

    Raises
    ------
    DataError
        Another number of features; columns that one of the two lacks.
    """
    own, given = model.schema.columns, source.schema.columns
    if own.names is None or given.names is None or own.names == given.names:
        check_same_features(model, source.schema, "X")
    else:
        source = source.in_order_of(own)
    is_categorical = bool(source.schema.categorical) or model.schema.encoder is not None
    return source.with_schema(model.schema) if is_categorical else source


def check_same_features(model: Booster, schema: FeatureSchema, what: str) -> None:
    """Refuse a data set whose columns are not those a model was trained on, in its order: DataError with both numbers
    of features, or the first column that differs."""
    own, given = model.schema.columns, schema.columns
    if own.n_features != given.n_features:
        raise DataError(
            f"init_model has {own.n_features} features, {what} {given.n_features}; pass the same columns"
        )
    ours, theirs = given.names, own.names
    if ours is not None and theirs is not None and ours != theirs:
        at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
        raise DataError(
            f"column {at} of {what} is {ours[at]!r}, but init_model was trained with {theirs[at]!r} there; make the "
            "data set with QuantizedDataset.from_dask(..., init_model=model), which takes columns in the model's order"
        )


T = TypeVar("T")


def current_client() -> Any:
    """The current Dask client, or None; does not import distributed where nobody has."""
    distributed = sys.modules.get("distributed")
    if distributed is None:
        return None
    try:
        return distributed.client.default_client()
    except ValueError:
        return None


def computed_by(client: Any, source: Source) -> Source:
    """Return the source with Dask's objects computed on the client's cluster, by workers that show signs of life; where
    the client is None, by Dask's current scheduler."""
    if client is None or not source.is_dask:
        return source
    from daskboost.cluster.dask_tasks import compute

    return replace(source, compute=partial(compute, client))


def computed_values(client: object, values: Sequence[object]) -> list[object]:
    """Return values, those that are Dask's computed on the client's cluster, or here where it is None."""
    return [_computed_value(client, value) if is_lazy(value) else value for value in values]


def _computed_value(client: object, value: object) -> object:
    """Compute one collection: those of frames and of arrays are not computed together without a warning."""
    if client is None:
        import dask

        return dask.compute(value)[0]
    from daskboost.cluster.dask_tasks import compute

    return compute(client, [value])[0]  # type: ignore[arg-type]  # Dask's client, a type that is known on clusters alone


def run_or_await(client: Any, call: Callable[[], T]) -> T:
    """Run a blocking call; on the event loop of an asynchronous client, give an awaitable of it instead (`awaited`)."""
    if client is not None and client.asynchronous:
        from daskboost.cluster.awaited import awaited

        return awaited(call)  # type: ignore[return-value]  # typed for the common, synchronous case
    return call()


class QuantizedDataset:
    """Rows as bins, with labels and weights: what fits train on and evaluate on.

    ``QuantizedDataset(X, y, ...)`` and `from_dask` (any input, despite the name) quantize rows and take the same
    arguments; under an asynchronous client only the latter, which is awaited. `open` reads a saved one. On a cluster
    the bins stay on the workers that read the partitions; without one they are in this process. A data set may serve
    any number of fits, also at once.
    """

    _info: DatasetInfo
    _shards: Any
    _n_whole: int | None = None
    """Rows of the whole data set, if this one is a subset."""
    _storage: tuple[int | None, str | None]
    """The memory limit and the spill directory it was made with."""
    _rereading: _Rereading | None = None
    """Reads all rows again, with target statistics that know no labels of some of them; None where there are none by
    folds, and where rows cannot be read again."""
    _has_statistics_of_others: bool = False
    """Whether its target statistics are those of the rows of a reference, which know none of its labels."""
    _has_warned: bool = False
    """Whether the log has said already that rows cannot be read again."""

    def __init__(self, X: Any, y: Any = None, **options: Any) -> None:
        """Read, sketch and quantize rows; arguments and errors are those of `from_dask`.

        Raises
        ------
        ParameterError
            An asynchronous client: await `from_dask`.
        """
        made: Any = self.from_dask(X, y, **options)
        if not isinstance(made, QuantizedDataset):
            made.close()  # a coroutine that has not begun
            raise ParameterError(
                "the client is asynchronous, which a constructor cannot wait for: use "
                "`await QuantizedDataset.from_dask(X, y, ...)`"
            )
        self.__dict__.update(vars(made))

    @classmethod
    def _holding(
        cls, info: DatasetInfo, shards: Any, *, host_memory_limit: int | None = None,
        spill_directory: str | Path | None = None,
    ) -> QuantizedDataset:  # fmt: skip
        """Return a data set of rows that are quantized already."""
        made = cls.__new__(cls)
        made._info, made._shards = info, shards
        made._storage = (host_memory_limit, None if spill_directory is None else str(Path(spill_directory)))
        return made

    @classmethod
    @takes_foreign_words(lambda _: PARAMETERS, "give it to train, in params: {{'{name}': ...}}")
    def from_dask(
        cls, X: Any, y: Any = None, *, weight: Any = None, base_margin: Any = None, missing: float = np.nan,
        max_bin: int = 256, feature_names: Any = None, reference: QuantizedDataset | None = None,
        init_model: Booster | None = None, encoding: str = "auto", packing: str = "aligned", chunk_rows: int = 0,
        n_jobs: int = 0, host_memory_limit: int | str | None = None, spill_directory: str | Path | None = None,
        client: Any = None, device: str | None = None, device_memory_limit: int | str | None = None,
        categorical_features: object = None, max_ctr_complexity: int = DEFAULT_COMPLEXITY, encodings: object = "auto",
        has_time: bool = False, random_state: int = 0, qid: object = None, group: object = None,
    ) -> QuantizedDataset:  # fmt: skip
        """Read, sketch and quantize rows.

        Parameters
        ----------
        X : Dask DataFrame or Array, pandas or polars DataFrame, NumPy array, pyarrow Table, scipy.sparse matrix or path
            A path is Parquet's. Also another eager frame that narwhals or Arrow's C streams read: columns of all frames
            are matched by name. Also a CuPy array (or what has ``__cuda_array_interface__``), cuDF DataFrame,
            cupyx.scipy.sparse matrix, or
            a Dask collection of such: quantized on its GPU, where the bins stay. A fit with ``device="cpu"`` copies
            them, a byte or two per value, to the host.
        y, weight, base_margin : column name of `X`, or an aligned collection
        missing : float, default NaN
            The value that stands for missing; NaN always does.
        max_bin : int, default 256
            Bins per feature, 2 to 65,535. Features with at most so many distinct values are kept exactly.
        reference : QuantizedDataset, optional
            Use the cut points (and columns) of this data set: evaluation sets must.
        init_model : Booster, optional
            Rows start from this model's margins: for continuing its training. `train` must be given the same model.
            Named columns are taken in its order, whatever theirs in `X` is; unnamed ones by position.
        encoding : {"auto", "dense", "csr"}
            "auto" takes the smaller. The model does not depend on it.
        packing : {"aligned", "tight", "common"}
            "aligned" bins are machine integers, fastest on a CPU; "tight" takes as few bits as each feature needs, and
            "common" for all features as many as one needs: fewer bytes to stream to a GPU that they have no room on.
        chunk_rows : int, default 0
            Rows per chunk; 0 chooses chunks of about 32 MB. The model does not depend on it.
        n_jobs : int, default 0
            Threads in this process; 0 and -1 are all cores. Workers use their own.
        host_memory_limit : int or str, optional
            RAM for chunks per process, such as "2GB", those of `reference` included, on a worker those of all data
            sets; what exceeds it goes to files in `spill_directory`. By default half of a worker's memory limit; in
            this process there is no limit. While rows are quantized, levels of categorical columns and what is counted
            of them take beside it a quarter of it at most, and 1 GiB without it, and combinations of these columns as
            much again: rarer levels and further combinations are left out, which the log says. A limit of 4 GiB or more
            changes no model.
        spill_directory : str or Path, optional
            By default a worker's local directory; in this process there is none, and what exceeds the limit is refused.
        client : dask.distributed.Client, optional
            Where rows are quantized. By default Dask collections go to the current client's cluster, if there is one,
            and data in memory stays in this process. Under an asynchronous client the result is an awaitable.
        device : {"cuda", "auto", "cpu"} or "cuda:1", optional
            Where rows on the host are quantized, on a cluster by each worker. By default on the CPU, since a data set
            does not know the fits that it will serve; estimators pass their own. "auto" is a GPU where there is one.
            Rows that lie on a GPU are quantized there. Bins stay on the GPU if they and a fit's rows have room there,
            and go to the host otherwise. Under 2**18 values in all on the host are left to the CPU, which takes less
            time than a GPU's launches. Bins do not depend on it.
        categorical_features : sequence of str or int, optional
            Names or positions of columns of numbers that hold categories; columns of texts and of categories always do.
            They become what `encodings` says.
        max_ctr_complexity : {2, 1, 3, 4}
            Columns that become target statistics and have many levels each become such in pairs as well, with 3 or 4
            also in combinations of up to so many columns, for which rows are read once or twice more; 1 makes them of
            single columns alone.
        encodings : {"auto", "target", "onehot", "native"} or mapping from column to such a word
            What categorical columns become: target statistics of the labels, a feature of each level, or codes, which
            trees split by sets of levels (`docs/categories.md`). "auto" is "target", but
            "onehot" for columns of three or four levels where labels have several statistics. Never "native", as
            estimators' may be: whether trees can split by sets is not known here.
        has_time : bool, default False
            Whether rows are given in the order of time: statistics of a row are then of the rows before it alone, not
            of all but its fold.
        random_state : int, default 0
            Seed of the folds that these statistics go by (`docs/categories.md`).
        qid : column name of `X`, or an aligned collection, optional
            The query of each row, for ranking objectives and metrics (`docs/ranking.md`): integers, whole floats or
            texts. Rows of a query may lie anywhere.
        group : sequence of int, optional
            In place of `qid`, the numbers of rows of the queries, where rows of each follow each other in this process.
        device_memory_limit : int or str, optional
            Memory of a GPU that quantizing and bins may take, those of a `reference` in this process included; by
            default what is free. Partitions may be larger.

        Raises
        ------
        DataError, DataTypeError, ParameterError
            Input that cannot be trained on, named with its remedy.
        DeviceError, MissingDependencyError
            The GPU that `device` names cannot be used, or has too little memory.

        Notes
        -----
        Where categorical columns become target statistics, `cv`, `train_many` and `evaluate_features` read the rows
        again for folds: leave `X`, `y` and what else is given as they are until the data set is closed.
        """
        check_options(max_bin, encoding, packing, chunk_rows, n_jobs)
        _check_kinds(reference, init_model, client)
        if group is not None:
            if qid is not None:
                raise ParameterError("qid and group both say which rows belong together; give one of them")
            qid = qid_of_groups(group, lambda: make_source(X).n_rows)
        source = make_source(
            X, y, weight=weight, base_margin=base_margin, qid=qid, missing=missing, feature_names=feature_names,
            schema=None if reference is None else reference.schema, categorical=as_tuple(categorical_features),
        )  # fmt: skip
        limit, device_limit = (
            None if given is None else parse_bytes(name, given)
            for name, given in (("host_memory_limit", host_memory_limit), ("device_memory_limit", device_memory_limit))
        )  # fmt: skip
        if device is not None:
            split_device(device)
        check_count("random_state", random_state, least=0)
        check_flag("has_time", has_time)
        if reference is None and init_model is None:
            encodings_of(encodings, source.schema)
        categories = CategoryOptions(
            int(random_state), complexity=check_complexity(max_ctr_complexity), encodings=encodings,
            has_time=bool(has_time),
        )
        options = BuildOptions(int(max_bin), encoding, packing, int(chunk_rows), categories=categories)
        return cls.from_source(source, options, reference=reference, init_model=init_model, n_jobs=max(n_jobs, 0),
                               host_memory_limit=limit, spill_directory=spill_directory, client=client, device=device,
                               device_memory_limit=device_limit)  # fmt: skip

    @classmethod
    def from_source(
        cls, source: Source, options: BuildOptions, *, reference: QuantizedDataset | None = None,
        init_model: Booster | None = None, n_jobs: int = 0, host_memory_limit: int | None = None,
        spill_directory: str | Path | None = None, client: Any = None, n_engines: int = 1,
        check: Callable[[DatasetInfo], None] | None = None, device: str | None = None,
        device_memory_limit: int | None = None, lends: bool = True, beside: QuantizedDataset | None = None,
    ) -> QuantizedDataset:  # fmt: skip
        """`from_dask` for input that is a `Source` already. `n_engines` imitates a cluster in this process; `lends` is
        that of `ReadSpec`; `beside` has some of the memory already, as `reference` has where there is one.

        `check` sees what the first read has found, and may refuse it before rows are read again and quantized.
        """
        if init_model is not None:
            if reference is not None:
                check_same_features(init_model, reference.schema, "the reference")
            source = of_model(init_model, source)
        if reference is not None:
            source = source.with_schema(reference.schema)
        directory = spill_path(spill_directory)
        place = _cluster_of(source, reference, client)
        if device is not None and place is None:  # on a cluster the workers know
            check_device(device)
        beside = reference if beside is None else beside
        if device_memory_limit is not None and beside is not None and place is None:
            device_memory_limit -= beside.shards.device_bytes
        making = _Making(
            cls, options, reference, init_model, beside, check, n_engines=n_engines, device=device, lends=lends,
            device_memory_limit=device_memory_limit, host_memory_limit=host_memory_limit, spill_directory=directory,
        )  # fmt: skip
        source = computed_by(current_client(), source.quantized_on(device, device_memory_limit, lends=lends))

        def on_cluster() -> QuantizedDataset:
            from daskboost.cluster.dask_data import ClusterRunner

            cluster = ClusterRunner(place)
            cluster.check_spill_directory(directory)
            return making.make(source, lambda: cluster)

        if place is not None:
            return run_or_await(place, on_cluster)
        if directory is not None:
            check_spill_directory(directory)

        def in_process(source: Source) -> QuantizedDataset:
            if device in (None, "cpu"):
                foresee(foreseen(), LocalRunner(n_jobs).threads)
            return making.make(source, lambda: LocalRunner(n_jobs))

        whole = source.at_once() if n_engines == 1 else None
        if whole is not None:
            try:
                return in_process(whole)
            except (DataError, DeviceError) as error:  # of a data set in parts: what is wrong, and where; or less room
                logger.debug("rows are read again in parts: %s", error)
        return in_process(source)

    def subset(self, rows: Any) -> QuantizedDataset:
        """Some of the rows, as a data set to train or evaluate on that shares this one's bins and cut points.

        Nothing is copied but a truth value per row, and a weight per row while a fit runs. Target statistics stay those
        of all rows, which know the labels of those left out; `cv` and `train_many` make others for each fold. A
        fit on a subset is one of these rows alone: the others have weight 0 in its trees (so their labels must be
        such as the objective takes, and a pass takes as long as one over all rows), and evaluating rows of the same
        data set costs no pass.

        Parameters
        ----------
        rows : int array of positions, or bool array of shape (rows,)
            Rows by their places in the source, each at most once, in any order.

        Returns
        -------
        QuantizedDataset
            Usable as long as this one is not closed.

        Raises
        ------
        ParameterError
            No rows, rows that there are not, rows named twice; a data set on a cluster.
        DataError
            The data set was closed, or all of the rows have weight 0.
        """
        from daskboost.data.saved.subset import row_mask, selected_stats

        if not isinstance(self._shards, LocalShards):
            raise ParameterError("subset needs a data set in this process; rows on a cluster stay whole: divide them "
                                 "before QuantizedDataset.from_dask, or open it without a client")  # fmt: skip
        self._check_open()
        mask = row_mask(rows, self.n_rows)
        if self.is_subset:
            own = self._shards.marks(self.n_numbered_rows)
            whole = np.zeros_like(own)
            whole[np.flatnonzero(own)[mask]] = True
            mask = whole
        shards = self._shards.select(mask)
        stats = selected_stats(shards.shards)
        stats.check_trainable()
        return self._some_of(shards, stats)

    def _some_of(self, shards: object, stats: LabelStats) -> QuantizedDataset:
        """Return some of the rows, which have that summary, as a data set."""
        limit, directory = self._storage
        made = self._holding(
            replace(self._info, stats=stats), shards, host_memory_limit=limit, spill_directory=directory
        )
        made._n_whole, made._rereading = self.n_numbered_rows, self._rereading
        made._has_statistics_of_others = self._has_statistics_of_others
        return made

    def _check_open(self) -> None:
        if self._shards.closed:
            raise DataError("the data set was closed; make it again, or close it after its subsets' fits")

    def dealt(self, dealing: Dealing) -> DealtRows:
        """Return which fold each row belongs to, wherever the rows lie; all rows are asked.

        Raises
        ------
        ParameterError
            Fewer rows, or queries, than folds.
        """
        found = self._shards.known_hashes(dealing)
        if found.fewest < dealing.n_folds:
            what = "queries" if dealing.by == "qid" else "rows"
            raise ParameterError(
                f"folds={dealing.n_folds} must lie between 2 and the number of {what}, {found.fewest}"
            )
        return rule_of(dealing, found)

    def divided(self, rule: FoldRule, folds: Sequence[int]) -> list[tuple[QuantizedDataset, QuantizedDataset]]:
        """For each of some folds the rows of all others, and its own; here or on the workers, which copy nothing.

        As of `subset`, but halves may have no rows.
        """
        self._check_open()
        return [
            (self._some_of(*others), self._some_of(*own)) for others, own in self._shards.divided(rule, folds)
        ]

    def unaware_of(self, rule: FoldRule, fold: int, n_others: int) -> QuantizedDataset:
        """Return these rows with target statistics that know no labels of a fold's rows, nor of rows in no fold, where
        levels have few rows; they themselves where they have no statistics by folds, or those of a reference's rows.

        `n_others` : rows of positive weight in other folds.

        Rows are read again for it, and their bins are there once more. Where they cannot be, as those of a data set
        that was saved, statistics stay as they are, and the log warns of it.
        """
        self._check_open()
        encoder = self.schema.encoder
        if not (isinstance(encoder, Encoder) and encoder.tells_labels) or self._has_statistics_of_others:
            return self
        if self._rereading is None:
            if not self._has_warned:
                logger.warning("target statistics know the labels of rows that are held out, and rows of a data set "
                               "that was saved, or continues a model, cannot be read again without these: metrics of "
                               "rows held out are better than those of new rows will be; for cross-validation make the "
                               "data set of its rows")  # fmt: skip
            self._has_warned = True
            return self
        if not self.is_subset:
            return self._rereading.without(LeftOut(rule, fold), n_others)
        marks = self._shards.marks(self.n_numbered_rows)
        whole = self._rereading.without(LeftOut(OfSubset(rule, marks), fold), n_others)
        return whole._some_of(whole._shards.select(marks), self.info.stats)

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Save the quantized rows as a directory (docs/dataset_format.md), which `open` reads in any process.

        On a cluster every worker writes its own chunks: the path must be on a file system that all share.

        Raises
        ------
        ParameterError
            Something is at `path` already, unless it is a data set and `overwrite` is true.
        StorageError
            The files cannot be written.
        """
        if self.is_subset:
            raise ParameterError("a subset cannot be saved: its bins are the whole data set's; save that")
        from daskboost.data.saved.shard_files import DatasetWriter  # files are for few fits: not loaded with the rest

        info = self._info
        with DatasetWriter(path, overwrite) as writer:
            records = self._shards.write(writer)
            writer.commit(info.cuts, info.schema, info.layout, records, info.to_json())

    @classmethod
    def open(
        cls, path: str | Path, *, host_memory_limit: int | str | None = None, spill_directory: str | Path | None = None,
        client: Any = None,
    ) -> QuantizedDataset:  # fmt: skip
        """Open a saved data set, in this process or, given a client, on the workers of its cluster.

        Parameters
        ----------
        host_memory_limit, spill_directory, client : as in `from_dask`

        Raises
        ------
        DatasetFormatError
            A file is missing, truncated, corrupt, or from a newer version; another process replaced the data set while
            it was read.
        """
        from daskboost.data.saved.manifest import check_numbered
        from daskboost.data.saved.shard_files import read_dataset

        saved = read_dataset(path)
        info = DatasetInfo.from_json(
            saved.cuts, saved.layout, saved.schema, saved.columns, saved.metadata, str(path)
        )
        check_numbered(saved.chunks, info.n_rows, str(path))
        limit = None if host_memory_limit is None else parse_bytes("host_memory_limit", host_memory_limit)
        if client is None:
            return cls._holding(info, open_here(saved, info.stats, limit, spill_directory), host_memory_limit=limit,
                       spill_directory=spill_directory)  # fmt: skip
        from daskboost.cluster.dask_data import ClusterRunner

        cluster, directory = ClusterRunner(client), spill_path(spill_directory)
        cluster.check_spill_directory(directory)
        opened = cluster.open(saved, info.stats, spill_directory=directory, host_memory_limit=limit)
        return cls._holding(info, opened, host_memory_limit=limit, spill_directory=spill_directory)

    @property
    def info(self) -> DatasetInfo:
        """Everything known of the whole data set."""
        return self._info

    @property
    def made_with(self) -> dict[str, Any]:
        """What fits on it can no longer choose, by `TrainParams`' names; None where nothing was given."""
        limit, directory = self._storage
        return {"max_bin": self._info.max_bin, "chunk_rows": self._info.chunk_rows, "host_memory_limit": limit,
                "spill_directory": directory}  # fmt: skip

    @property
    def shards(self) -> Any:
        """Where the rows are."""
        return self._shards

    @property
    def is_subset(self) -> bool:
        """Whether some rows of its chunks do not count."""
        return self._n_whole is not None

    @property
    def cuts(self) -> Cuts:
        """Cut points of all features."""
        return self._info.cuts

    @property
    def schema(self) -> FeatureSchema:
        """Names and kinds of the features."""
        return self._info.schema

    @property
    def n_rows(self) -> int:
        return self._info.n_rows

    @property
    def n_numbered_rows(self) -> int:
        """Rows of the whole data set, whose numbers rows of a subset keep."""
        return self.n_rows if self._n_whole is None else self._n_whole

    @property
    def n_features(self) -> int:
        return self._info.schema.n_features

    def __reduce__(self) -> NoReturn:
        raise DataTypeError(
            "a QuantizedDataset cannot be pickled or copied: its rows stay in the processes that hold them; write it "
            "with save(path) and read it with QuantizedDataset.open(path) where it is needed"
        )

    def __repr__(self) -> str:
        return f"<QuantizedDataset {self.n_rows} rows x {self.n_features} features, {self.cuts.total_bins} bins>"

    def __enter__(self) -> QuantizedDataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the rows' memory and files, here or on the workers; otherwise done when the object is collected."""
        self._rereading = None
        self._shards.close()


def _check_kinds(reference: Any, init_model: Any, client: Any) -> None:
    """Refuse objects of another kind than the argument's."""
    if reference is not None and not isinstance(reference, QuantizedDataset):
        raise ParameterError(f"reference is {type(reference).__name__}; pass the QuantizedDataset that is trained on")
    if init_model is not None and not isinstance(init_model, Booster):
        raise ParameterError(
            f"init_model is {type(init_model).__name__}; pass a Booster, such as estimator.booster_ or "
            "Booster.load_model(path)"
        )
    if client is not None and not (hasattr(client, "scheduler") and hasattr(client, "asynchronous")):
        raise ParameterError(f"client is {type(client).__name__}; pass a dask.distributed.Client")


def _cluster_of(source: Source, reference: QuantizedDataset | None, client: Any) -> Any:
    """The client whose workers shall hold the rows, or None for this process.

    Evaluation sets go where their training set is. Other data stays where it lies: Dask collections with the cluster,
    if a client runs, data in memory in this process.
    """
    if reference is not None:
        return getattr(reference.shards, "client", None)
    if client is not None:
        return client
    return current_client() if source.is_dask else None


@dataclass(frozen=True, eq=False)
class _Making:
    """How rows become a data set: what `QuantizedDataset.from_source` is given."""

    kind: type[QuantizedDataset]
    options: BuildOptions
    reference: QuantizedDataset | None
    init_model: Booster | None
    beside: QuantizedDataset | None
    check: Callable[[DatasetInfo], None] | None
    n_engines: int
    device: str | None
    lends: bool
    device_memory_limit: int | None
    host_memory_limit: int | None
    spill_directory: Path | None

    def make(self, source: Source, new_runner: Callable[[], Any]) -> QuantizedDataset:
        """Read rows, quantize them and hold their bins; `new_runner` gives what does it, here or on a cluster."""
        has_own_statistics = self.reference is None and self.init_model is None
        goes_on, runner = self.init_model is not None and self.reference is None, new_runner()
        categories = replace(self.options.categories, memory_limit=self.host_memory_limit, goes_on=goes_on)
        source = encoded(source, categories, runner)
        info = describe(source, self.options, runner, None if self.reference is None else self.reference.info)
        if self.check is not None:
            self.check(info)
        info = replace(info, init_model_digest=None if self.init_model is None else self.init_model.digest)
        data = self.hold(source, info, runner, None if self.beside is None else self.beside.shards)
        data._has_statistics_of_others = self.reference is not None
        encoder = info.schema.encoder
        if has_own_statistics and isinstance(encoder, Encoder) and encoder.tells_labels:
            making = replace(self, beside=None, check=None)
            data._rereading = _Rereading(making, new_runner, source, info, encoder, data.shards)
        return data

    def hold(self, source: Source, info: DatasetInfo, runner: Any, beside: object) -> QuantizedDataset:
        """Quantize rows that are described, and hold their bins; what `beside` takes of the memory is not there."""
        quantize: Callable[..., object] = runner.quantize if not runner.is_here else partial(
            quantize_here, runner=runner, n_engines=self.n_engines
        )  # fmt: skip
        shards = quantize(
            source, info, margin_of=None if self.init_model is None else MarginOfModel(self.init_model),
            spill_directory=self.spill_directory, host_memory_limit=self.host_memory_limit, beside=beside,
        )  # fmt: skip
        return self.kind._holding(
            info, shards, host_memory_limit=self.host_memory_limit, spill_directory=self.spill_directory
        )


class _Bins(Protocol):
    """Rows that are quantized, in this process or on workers."""

    @property
    def device_bytes(self) -> int:
        """Memory of this process's GPU that they take."""


@dataclass(frozen=True, eq=False)
class _Rereading:
    """Reads a data set's rows again, for target statistics that know fewer labels."""

    making: _Making
    new_runner: Callable[[], Any]
    source: Source
    info: DatasetInfo
    encoder: Encoder
    shards: _Bins
    """Where the data set's bins lie."""
    others: WeakSet[_Bins] = field(default_factory=WeakSet)
    """Where the bins lie of the rows that were read again."""

    def without(self, left_out: LeftOut, n_counted: int) -> QuantizedDataset:
        """Return the data set whose statistics do not know the labels left out; `n_counted` rows count there."""
        making, runner, limit = self.making, self.new_runner(), self.making.device_memory_limit
        if limit is not None and runner.is_here:
            limit -= self.shards.device_bytes + sum(each.device_bytes for each in self.others)
        rows = self.source.quantized_on(making.device, limit, lends=making.lends)
        seed = making.options.categories.seed
        rows = encoded_without(rows, self.encoder, left_out, n_counted, self.info, seed, runner)
        found = making.hold(rows, replace(self.info, schema=rows.schema), runner, self.shards)
        self.others.add(found.shards)
        return found


class MarginOfModel:
    """The margins of a model, as a function of one batch's features."""

    def __init__(self, model: Booster) -> None:
        self._request = make_request(model, "margin", (0, model.n_iterations), None)

    def __call__(self, features: Features, base_margin: Float32 | None) -> Float32:
        margins: Float32 = self._request.run_on_host(features, base_margin)
        return margins.reshape(features.n_rows, -1)
