"""Every notebook runs from top to bottom in a new kernel; what is stored of its outputs is what a run prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
KEPT = {"04_categories", "05_ranking"}
"""Notebooks that are stored with their outputs, for those who read them where nothing runs."""


def printed(notebook: Any) -> list[list[str]]:
    """Return what each cell of code prints or shows as text; pictures and warnings are left out."""
    return [
        [
            str(out.get("text") or out["data"]["text/plain"]) for out in cell.outputs
            if "image/png" not in out.get("data", {}) and out.get("name") != "stderr"
        ]
        for cell in notebook.cells if cell.cell_type == "code"
    ]  # fmt: skip


def test_notebooks_are_found() -> None:
    names = ["01_first_model", "02_larger_than_memory", "03_cluster", "04_categories", "05_ranking"]
    assert [path.stem for path in NOTEBOOKS] == names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_all_outputs_or_none(path: Path) -> None:
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    if path.stem in KEPT:
        assert counts == [*range(1, len(counts) + 1)]
        assert any(printed(notebook))
    else:
        assert set(counts) == {None}
        assert not any(cell.get("outputs") for cell in notebook.cells)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # the kernel and its workers use this checkout, installed or not
    notebook = nbformat.read(path, as_version=4)
    stored = printed(notebook)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(path.parent)}}).execute()
    plots = [out for cell in notebook.cells for out in cell.get("outputs", []) if "image/png" in out.get("data", {})]
    assert plots, "a notebook shows at least one picture"
    assert path.stem not in KEPT or printed(notebook) == stored, "the same bytes on every machine"
