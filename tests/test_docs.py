"""The documents: every path they name exists, and their Python compiles and imports names that exist."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "benchmarks" / "README.md",
]
PATH = re.compile(r"`((?:daskboost|tests|docs|benchmarks|notebooks|kernels)/[\w./-]*)`")
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"python -m (benchmarks\.\w+)")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_named_paths_exist(document: Path) -> None:
    named = PATH.findall(document.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_readme_imports_names_that_exist() -> None:
    blocks = PYTHON.findall((ROOT / "README.md").read_text())
    assert len(blocks) == 2
    imports = [node for block in blocks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ImportFrom)]
    ours = [(node.module, alias.name) for node in imports if node.module == "daskboost" for alias in node.names]
    assert len(ours) >= 3
    module = importlib.import_module("daskboost")
    assert [name for _, name in ours if not hasattr(module, name)] == []


def test_the_ten_line_example_has_ten_lines() -> None:
    example = PYTHON.findall((ROOT / "README.md").read_text())[0]
    assert len([line for line in example.splitlines() if line.strip()]) == 10


def test_every_benchmark_command_has_its_module() -> None:
    modules = set(COMMAND.findall((ROOT / "benchmarks" / "README.md").read_text()))
    runnable = {
        f"benchmarks.{path.stem}" for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()
    }
    assert modules == runnable
