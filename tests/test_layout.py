"""The shape of the code: imports follow the flow of the data, files stay readable, CUDA stays in its files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "daskboost"

ORDER = (
    "dtypes", "errors", "files", "tracebacks", "registry", "foreign_words", "params", "hashing", "wire",
    "devices", "exact_sum", "data", "objectives", "metrics", "tree", "model", "fit", "engine", "local",
    "cluster", "training", "estimators",
)  # fmt: skip
"""Imports only go left; `docs/design.md` has the reasons."""

KERNEL_MODULES = ("daskboost/devices/cpu/",)
"""Where numba may be imported at the top of a module."""

DISTRIBUTED_MODULES = ("daskboost/cluster/dask_", "daskboost/cluster/on_dask.py")
"""Where distributed may be imported: what decides and what computes runs without a cluster."""

HEAVY = (
    "numba", "pandas", "dask", "distributed", "sklearn", "pyarrow", "scipy", "matplotlib", "cupy", "cudf", "xgboost",
    "narwhals", "polars",
)  # fmt: skip
"""What `import daskboost` must not load."""

CUDA_MARKS = re.compile(r"__global__|__device__|__shared__|__syncthreads|\bblockIdx\b|\bthreadIdx\b")


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported_modules(path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything a file imports, lazily or not."""
    package = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: -node.level]) if node.level else ""
            module = ".".join(filter(None, [base, node.module or ""]))
            if module == "daskboost":  # `from daskboost import data` names the part in the alias
                yield from ((node.lineno, f"daskboost.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module


def part_of(module: str) -> str | None:
    """The entry of ORDER that a module of ours belongs to; None for foreign modules."""
    names = module.split(".")
    return names[1] if names[0] == "daskboost" and len(names) > 1 else None


def arrow_violations(path: Path, source: str) -> list[str]:
    own = part_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
    if own in (None, "__init__"):
        return []  # the package's face may name everything
    if own not in ORDER:
        return [f"{relative(path)}: {own!r} has no place in ORDER"]
    found = []
    for line, module in imported_modules(path, ast.parse(source)):
        other = part_of(module)
        if other is None or (other in ORDER and ORDER.index(other) <= ORDER.index(own)):
            continue
        found.append(f"{relative(path)}:{line} imports {module}, which does not come before {own!r}")
    return found


@pytest.mark.parametrize("path", python_files("daskboost"), ids=relative)
def test_imports_follow_the_flow(path: Path) -> None:
    assert arrow_violations(path, path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "from daskboost.tree.table import TreeTable",
        "import daskboost.model.booster",
        "def f():\n    from daskboost.training import train",
        "from ..cluster import engine",
        "from daskboost import estimators",
        "from daskboost.nowhere import thing",
    ],
)
def test_an_import_against_the_flow_is_found(source: str) -> None:
    assert len(arrow_violations(PACKAGE / "data" / "cuts.py", source)) == 1


def test_an_import_with_the_flow_is_allowed() -> None:
    source = "from daskboost.dtypes import Float32\nfrom .rows import DenseRows\nimport numpy as np"
    assert arrow_violations(PACKAGE / "data" / "cuts.py", source) == []


@pytest.mark.parametrize("path", python_files("daskboost"), ids=relative)
def test_numba_is_imported_where_the_kernels_are(path: Path) -> None:
    if relative(path).startswith(KERNEL_MODULES):
        return
    top_level = [node for node in ast.parse(path.read_text()).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = [module for node in top_level for _, module in imported_modules(path, ast.Module([node], []))]
    assert [name for name in names if name.split(".")[0] == "numba"] == []


@pytest.mark.parametrize("path", python_files("daskboost"), ids=relative)
def test_distributed_is_imported_where_the_cluster_is(path: Path) -> None:
    if relative(path).startswith(DISTRIBUTED_MODULES):
        return
    names = [module for _, module in imported_modules(path, ast.parse(path.read_text()))]
    assert [name for name in names if name.split(".")[0] in ("distributed", "dask_cuda", "tornado")] == []


def loaded_by(statement: str, *candidates: str) -> list[str]:
    """Which of the candidates a new process has imported after a statement."""
    code = f"import sys\n{statement}\nprint(*sorted(set({candidates!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_importing_the_package_stays_light() -> None:
    assert loaded_by("import daskboost", *HEAVY) == []


def test_engines_and_coordinator_know_nothing_of_dask() -> None:
    statement = "import daskboost.engine.engine, daskboost.fit.coordinator, daskboost.local.in_process"
    assert loaded_by(statement, "dask", "distributed", "pandas", "sklearn") == []


@pytest.mark.parametrize("path", python_files("daskboost", "benchmarks"), ids=relative)
def test_no_cuda_in_python_strings(path: Path) -> None:
    strings = [
        (node.lineno, node.value)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert [line for line, text in strings if CUDA_MARKS.search(text)] == []
