"""`make demo`: train on real data through a two-process cluster and write a model and a learning curve.

The data is Forest CoverType (20,000 hillsides, 54 features, 7 kinds of forest), which ships in tests/data; its file is
read by the workers, partition by partition, like a set of any size would be.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from daskboost import DaskBoostClassifier, plot_learning_curve

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data" / "covtype_20k.parquet"
OUTPUT = ROOT / "demo_output"
TARGET = "Cover_Type"


def draw(history: dict[str, dict[str, list[float]]], path: Path) -> None:
    """Save the learning curves."""
    import matplotlib

    matplotlib.use("Agg")  # no display needed
    axes = plot_learning_curve(history)
    axes.set_title("Forest CoverType: 20,000 rows, two worker processes")
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.savefig(path, dpi=120, bbox_inches="tight")


def read(split: str) -> Any:
    """One split of the set as a Dask DataFrame, a partition per row group."""
    import dask.dataframe as dd

    frame = dd.read_parquet(DATA, filters=[("split", "==", split)], split_row_groups=True)
    return frame.drop(columns="split")


def main() -> None:
    from distributed import Client, LocalCluster

    OUTPUT.mkdir(exist_ok=True)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        train, test = read("train"), read("test")
        features = [name for name in train.columns if name != TARGET]
        workers = len(client.nthreads())
        print(f"{workers} worker processes, {train.npartitions} partitions, {len(features)} features")

        start = time.perf_counter()
        model = DaskBoostClassifier(n_estimators=100, max_depth=6, learning_rate=0.2)
        sets = [(data[features], data[TARGET]) for data in (train, test)]
        model.fit(*sets[0], eval_set=sets)
        print(f"trained 100 rounds of 7 trees in {time.perf_counter() - start:.1f} s")

        predicted = model.predict(test[features])  # lazy, in the input's partitions, until turned into an array
        accuracy = float(np.mean(np.asarray(predicted) == np.asarray(test[TARGET])))
    history = {"train": model.evals_result_["validation_0"], "test": model.evals_result_["validation_1"]}
    model.booster_.save_model(OUTPUT / "model.ubj")
    draw(history, OUTPUT / "learning_curve.png")
    print(f"test accuracy {accuracy:.4f}")
    print(f"test log-loss {history['test']['mlogloss'][-1]:.4f}, train {history['train']['mlogloss'][-1]:.4f}")
    print(f"wrote {OUTPUT / 'model.ubj'} and {OUTPUT / 'learning_curve.png'}")


if __name__ == "__main__":
    main()
