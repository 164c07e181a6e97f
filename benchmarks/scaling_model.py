"""What a tree would take on up to 1,024 GPUs and 10^12 rows, and what ends its scaling: a model of measured rows.

    python -m benchmarks.scaling_model                 # parameters, errors of rows left out, the table
    python -m benchmarks.scaling_model --network-gbytes-s 25 --device-memory 141GB

`scaling_fit.py` has what is fitted, to rows of one and of two H100s, and `scaling_places.py` what is extrapolated.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import RESULTS, record
from benchmarks.scaling_fit import UNITS, Measured, Parameters, Seconds, Shape, errors, fit, left_out, measured
from benchmarks.scaling_places import THROUGH_HOSTS, HostPath, Line, Place, fit_host_path, half_at, line_of

ASKED = 0.15
"""How far from the model rows that were left out may be."""
SHAPES = (
    Shape(44_000_000, 28, 8), Shape(400_000, 2000, 8), Shape(10**9, 100, 8), Shape(10**10, 100, 8),
    Shape(10**11, 100, 8), Shape(10**12, 28, 8),
)  # fmt: skip
GPUS = (1, 2, 8, 64, 256, 1024)


def print_fit(rows: Sequence[Measured], found: Parameters) -> list[dict[str, Any]]:
    """Print parameters and errors; the latter as rows, too."""
    print(f"fitted to {len(rows)} rows, each a case on so many GPUs:")
    for name, value in asdict(found).items():
        print(f"  {name:<10} {value:10.3g} {UNITS[name]}")
    print(f"\n{'case left out':<16} {'where':<8} {'measured':>9} {'model':>7}   repeats  {'(its own rows in)':>18}")
    checked = left_out(rows)
    for (row, error), own in zip(checked, errors(found, [row for row, _ in checked]), strict=True):
        worse = f"   not within {ASKED:.0%}" if abs(error) > ASKED else ""
        spread = f"+-{row.spread:.0%}" if row.spread else "one"
        at = f"{row.case:<16} {row.where:<8} {row.seconds * 1e3:6.3f} ms"
        print(f"{at} {error:+7.0%}   {spread:<8} {own:+18.0%}{worse}")
    sizes = [abs(error) for _, error in checked]
    n_held = sum(size <= ASKED for size in sizes)
    print(f"rows left out: {np.mean(sizes):.1%} on average, {max(sizes):.0%} at most; {n_held} of {len(sizes)} are "
          f"within {ASKED:.0%}, as all should be")  # fmt: skip
    return [
        {"case": row.case, "contender": row.where, "ms": round(row.seconds * 1e3, 4), "error": round(error, 4),
         "spread": round(row.spread, 4)} for row, error in checked
    ]  # fmt: skip


def as_ms(seconds: float) -> str:
    """Milliseconds, or a dash where there is no room."""
    return "-" if math.isinf(seconds) else f"{seconds * 1e3:,.2f}"


def print_table(shape: Shape, lines: Sequence[Line], half: int) -> None:
    """Print what trees of a shape take."""
    where = f"less than half of a tree by rows is work on rows from {half:,} GPU{'s' * (half > 1)} on"
    print(f"\n{shape.n_rows:,} x {shape.n_features}; {where}")
    heads = ("GPUs", "memory", *Seconds._fields, "streaming", "by rows", "by columns", "today")
    print(" ".join(f"{head:>10}" for head in heads), " longest; today")
    for each in lines:
        times = [*each.joined, each.streaming, each.by_rows, each.by_columns, each.today]
        shown = [as_ms(seconds) if each.memory != "none" else "-" for seconds in times]
        names = "; ".join(dict.fromkeys((each.longest, each.longest_today)))
        print(" ".join(f"{text:>10}" for text in (f"{each.n_gpus:,}", each.memory, *shown)), f" {names}")


def print_places(found: Parameters, hosts: HostPath, place: Place) -> None:
    """Print the table."""
    print(f"\nms a tree of depth 8, extrapolated: hosts of {place.gpus_per_host} GPUs of {place.device_memory}, joined "
          f"by {place.network_bytes_s / 1e9:.0f} GB/s a GPU and {place.network_s * 1e6:.0f} us a step (assumed).\n"
          f"\"today\": GPUs of several hosts, and rows that stream, meet through the hosts, "
          f"{hosts.message_s * 1e3:.2f} ms a level and engine,\n{hosts.bytes_s / 1e9:.2f} GB/s "
          f"({len(THROUGH_HOSTS)} figures of two GPUs)")  # fmt: skip
    for shape in SHAPES:
        print_table(shape, [line_of(shape, n, found, hosts, place) for n in GPUS], half_at(shape, found, place))


def read(name: str, folder: Path) -> list[dict[str, Any]]:
    """Rows of a benchmark."""
    return [json.loads(text) for text in (folder / f"{name}.jsonl").read_text().splitlines()]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--measured", type=Path, default=RESULTS, help="where rows of many_gpus and gpu_speed lie")
    parser.add_argument("--gpus-per-host", type=int, default=Place.gpus_per_host)
    parser.add_argument("--network-gbytes-s", type=float, default=Place.network_bytes_s / 1e9, help="of each GPU")
    parser.add_argument("--network-us", type=float, default=Place.network_s * 1e6, help="a step between hosts")
    parser.add_argument("--device-memory", default=Place.device_memory)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    place = Place(
        options.gpus_per_host, options.network_gbytes_s * 1e9, options.network_us / 1e6, options.device_memory
    )  # fmt: skip
    rows = measured(read("many_gpus", options.measured), read("gpu_speed", options.measured))
    found, hosts = fit(rows), fit_host_path()
    checked = print_fit(rows, found)
    print_places(found, hosts, place)
    model = {"contender": "model", **asdict(found), "host_message_s": hosts.message_s, "host_bytes_s": hosts.bytes_s}
    record("scaling_model", place, [model, *checked], options.results)


if __name__ == "__main__":
    main()
