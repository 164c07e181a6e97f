"""What ships: the wheel has every module, the kernels and the licence, and the metadata says what users rely on."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = {"cuda12", "cuda13", "nccl-cuda12", "nccl-cuda13", "cudf", "plot", "test", "bench"}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    section = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert isinstance(section, dict)
    return section


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel as a user would get it, built in isolation from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("daskboost-*.whl")
    return zipfile.ZipFile(path)


def test_every_extra_of_the_documentation_exists(project: dict[str, Any]) -> None:
    assert EXTRAS <= set(project["optional-dependencies"])


def test_cuda_versions_do_not_mix(project: dict[str, Any]) -> None:
    for name, requirements in project["optional-dependencies"].items():
        text = " ".join(requirements)
        majors = {major for major in ("12", "13") if f"cu{major}" in text or f"cuda{major}x" in text}
        assert len(majors) <= 1, f"extra {name!r} asks for CUDA {' and '.join(sorted(majors))}"


def test_version_is_the_same_in_package_and_metadata(project: dict[str, Any]) -> None:
    import daskboost

    assert daskboost.__version__ == project["version"]


def test_wheel_has_every_module(wheel: zipfile.ZipFile) -> None:
    ours = {path.relative_to(ROOT).as_posix() for path in (ROOT / "daskboost").rglob("*.py")}
    assert ours <= set(wheel.namelist())


def test_wheel_has_the_kernels(wheel: zipfile.ZipFile) -> None:
    sources = {path.name for path in (ROOT / "kernels").iterdir() if path.suffix in {".cu", ".cuh", ".md"}}
    shipped = {name.removeprefix("daskboost/kernels/") for name in wheel.namelist()}
    assert sources
    assert sources <= shipped


def test_wheel_has_nothing_else_at_the_top(wheel: zipfile.ZipFile) -> None:
    assert {name.split("/")[0] for name in wheel.namelist()} == {"daskboost", "daskboost-0.1.0.dist-info"}


def test_wheel_is_typed_and_licensed(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert "daskboost/py.typed" in names
    assert "daskboost-0.1.0.dist-info/licenses/LICENSE" in names
