"""The C preprocessor, as far as `kernels/` uses it: what a source declares once its constants are known.

Knows `#include "..."` (each header once), `#define` of names without parameters, `#undef`, and conditionals over whole
numbers. Compilers see the original source; this serves reading signatures and budgets.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_NUMBER = re.compile(r"\b(0x[0-9a-fA-F]+|\d+)[uUlL]+\b")
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
_OPERATORS: dict[type, Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.Eq: operator.eq,
    ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
}  # fmt: skip


def preprocess(text: str, folder: Path, macros: dict[str, str]) -> str:
    """The lines that remain, macros unexpanded; `macros` gains what the source and its headers define."""
    return "\n".join(_lines(text, folder, macros, set()))


def _lines(text: str, folder: Path, macros: dict[str, str], seen: set[str]) -> list[str]:
    kept: list[str] = []
    active: list[tuple[bool, bool]] = []  # of each open conditional: is this branch taken, was any
    for line in _COMMENT.sub(" ", text).replace("\\\n", " ").splitlines():
        words = line.strip().removeprefix("#").split(maxsplit=1)
        if not line.lstrip().startswith("#"):
            if all(taken for taken, _ in active):
                kept.append(line)
            continue
        directive, rest = words[0], words[1] if len(words) > 1 else ""
        if directive in ("if", "ifdef", "ifndef", "elif", "else", "endif"):
            _branch(directive, rest, active, macros)
        elif all(taken for taken, _ in active):
            if directive == "include" and rest.startswith('"') and rest not in seen:
                seen.add(rest)
                kept += _lines((folder / rest.strip('"')).read_text(), folder, macros, seen)
            elif directive == "define" and (found := re.fullmatch(r"(\w+)(?:\s+(.*))?", rest)):
                macros[found[1]] = (found[2] or "").strip()
            elif directive == "undef":
                macros.pop(rest.strip(), None)
    return kept


def _branch(directive: str, rest: str, active: list[tuple[bool, bool]], macros: Mapping[str, str]) -> None:
    """Open, change or close a conditional."""
    if directive in ("if", "ifdef", "ifndef"):
        outer = all(taken for taken, _ in active)
        holds = outer and (
            bool(evaluate(rest, macros)) if directive == "if" else (rest.strip() in macros) == (directive == "ifdef")
        )
        active.append((holds, holds or not outer))  # inside a branch not taken, no branch is
    else:
        _, was_any = active.pop()
        if directive != "endif":
            holds = not was_any and (directive == "else" or bool(evaluate(rest, macros)))
            active.append((holds, was_any or holds))


def expand(text: str, macros: Mapping[str, str]) -> str:
    """Replace macros until none is left."""
    for _ in range(20):
        expanded = _NAME.sub(lambda found: macros.get(found[0], found[0]), text)
        if expanded == text:
            return text
        text = expanded
    raise ValueError(f"macros without end in {text!r}")


def evaluate(expression: str, macros: Mapping[str, str]) -> int:
    """A whole number; `/` divides as C does for positive ones, and unknown names are 0."""
    text = re.sub(r"defined\s*\(?\s*(\w+)\s*\)?", lambda found: str(int(found[1] in macros)), expression)
    text = _NUMBER.sub(r"\1", _NAME.sub("0", _NUMBER.sub(r"\1", expand(text, macros))))
    text = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or ")).replace("/", "//")

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int() as number):
                return number
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return int(_OPERATORS[type(op)](value(left), value(right)))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
                return int(_OPERATORS[type(op)](value(left), value(right)))
            case ast.BoolOp(op=op, values=values):
                return int((all if isinstance(op, ast.And) else any)(value(each) for each in values))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return int(not value(operand))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
        raise ValueError(f"cannot evaluate {expression!r}")

    try:
        return value(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError as error:
        raise ValueError(f"cannot evaluate {expression!r}") from error
