"""Counts of what makes the code harder to read, held to no more than there are now: lower them, never raise them.

`python tests/test_shape.py` prints them for a checkout, and `--list NAME` the places of one.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
KINDS = {
    "scalar or vector leaves": r"vector|\bwidth\b|sketch|n_outputs|n_columns|\.ndim",
    "CPU or GPU": r"gpu|cuda|cupy|metric_kernels|split_kernels|DeviceChunk|on_device|\blent\b|StreamingDevice|"
                  r"device_loss|SamplingDevice|CertifyingDevice|GpuRows|LossRows|losses|kernel_of|device_bytes|"
                  r"join_room|reads_device_chunks",
    "dense or sparse": r"sparse|dense|Sparse|Dense|csr|CSR|symbol_bytes|indptr|n_entries",
    "resident or streamed": r"stream|resident|on_disk|spill|residency",
    "exact, certified or sampled": r"out_of_core|certif|sampled|on_sample|resident_share|drawn_share|recipe\.rows",
    "graph or host": r"without_host|needs_host|host_reason|\.growth\b",
}  # fmt: skip
"""What conditions mention that tell kinds apart."""
FRAGMENT = re.compile(r"(Of|That|And|Whose|Those|Theirs?|But|As|Beside|Behind|Likewise) [a-z`]")
"""How texts begin that are no sentence on their own; see `docs/design.md` and CONTRIBUTING.md, "Style"."""
ANYTHING = {"Any", "View", "GradientColumn"}
"""`Any` and what is another word for it."""
MOST = {
    "scalar or vector leaves": 30, "CPU or GPU": 17, "dense or sparse": 19, "resident or streamed": 15,
    "exact, certified or sampled": 6, "graph or host": 4, "fragments": 0, "long signatures": 8, "anything": 299,
}  # fmt: skip
"""How many there may be. On commit 0f570e0 they were 60, 40, 45, 22, 12, 6, 386, 59 and 1,010, where arrays on devices
were another word for `Any`."""


def sources() -> Iterator[tuple[str, str]]:
    """Path and text of each file of the package."""
    for path in sorted((ROOT / "daskboost").rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path.read_text()


def conditions(tree: ast.AST) -> Iterator[str]:
    """What decides between branches."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            yield ast.unparse(node.test)
        elif isinstance(node, ast.comprehension):
            yield from map(ast.unparse, node.ifs)
        elif isinstance(node, ast.Match):
            yield ast.unparse(node.subject)
        elif isinstance(node, ast.BoolOp):
            yield ast.unparse(node)


@cache
def all_conditions() -> dict[str, list[str]]:
    """Conditions by file, parsed once for all kinds."""
    return {path: list(conditions(ast.parse(text))) for path, text in sources()}


def telling(kind: str) -> list[str]:
    """Files that tell this kind apart."""
    pattern = re.compile(KINDS[kind])
    return [path for path, found in all_conditions().items() if any(map(pattern.search, found))]


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of docstrings, of texts below fields, and of comments, these as far as they begin."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value.strip()
    before = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != before + 1:
                yield token.start[0], token.string.lstrip("# ")
            before = token.start[0]


def fragments() -> list[str]:
    """Texts that are no sentence on their own."""
    return [
        f"{path}:{line} {text.splitlines()[0]}" for path, source in sources() for line, text in texts(source)
        if FRAGMENT.match(text)
    ]  # fmt: skip


def functions(tree: ast.AST) -> Iterator[tuple[str, list[ast.arg], ast.expr | None]]:
    """Name, parameters but for oneself, and what is returned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = node.args
            given = [*own.posonlyargs, *own.args, *own.kwonlyargs, own.vararg, own.kwarg]
            yield node.name, [arg for arg in given if arg is not None and arg.arg not in ("self", "cls")], node.returns


def long_signatures() -> list[str]:
    """Functions of more than eight parameters."""
    return [
        f"{path} {name}: {len(given)}" for path, text in sources() for name, given, _ in functions(ast.parse(text))
        if len(given) > 8
    ]  # fmt: skip


def annotations_of(text: str) -> Iterator[str]:
    """All of a file's."""
    tree = ast.parse(text)
    for _, given, returned in functions(tree):
        yield from (ast.unparse(each) for each in (*(arg.annotation for arg in given), returned) if each is not None)
    yield from (ast.unparse(node.annotation) for node in ast.walk(tree) if isinstance(node, ast.AnnAssign))


def anything() -> list[str]:
    """Annotations that allow anything."""
    return [path for path, text in sources() for each in annotations_of(text) if each.strip("'\"") in ANYTHING]


COUNTED: dict[str, Callable[[], list[str]]] = {
    "fragments": fragments, "long signatures": long_signatures, "anything": anything,
}  # fmt: skip


def places(name: str) -> list[str]:
    """Where the things of that name are."""
    return COUNTED[name]() if name in COUNTED else telling(name)


@pytest.mark.parametrize("name", MOST)
def test_there_are_no_more(name: str) -> None:
    found = places(name)
    assert len(found) <= MOST[name], f"{len(found)} for {MOST[name]}: python tests/test_shape.py --list {name!r}"


def test_a_fragment_is_found() -> None:
    assert FRAGMENT.match("Of the chunk, whose symbols are there.")
    assert FRAGMENT.match("And this part of arrays that come and go")
    assert not FRAGMENT.match("Return the chunk's symbols, unpacked to uint8, shape (rows, features).")


if __name__ == "__main__":
    if "--list" in sys.argv:
        print(*places(sys.argv[-1]), sep="\n")
    else:
        total = sum(len(list(annotations_of(text))) for _, text in sources())
        n_lines = [len(text.splitlines()) for _, text in sources()]
        sizes = f"{total:>7} annotations, {len(n_lines)} files, {sum(n_lines)} lines"
        print(*(f"{len(places(name)):>7} {name}" for name in MOST), sizes, sep="\n")
