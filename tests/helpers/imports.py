"""Which module of the course imports which, and the circles in that."""

import ast
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = "course_utils"


class Arrow(NamedTuple):
    """One import: `line` of the file `where` makes the module `source` depend on `target` (names below the package)."""

    source: str
    target: str
    where: str
    line: int

    def __str__(self) -> str:
        return f"{self.where}:{self.line}: {self.source} imports {self.target}"


def modules(root: Path) -> dict[str, Path]:
    """Dotted name below course_utils → file; a package by its own name, course_utils itself as ""."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root / PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def arrows(root: Path) -> list[Arrow]:
    """Every import of the course by the course, also those inside functions and for type checkers alone."""
    known = modules(root)
    found = []
    for source, path in known.items():
        for line, name in imports(path.read_text(encoding="utf-8")):
            package, _, inner = name.partition(".")
            if package in ("tests", "exercises", "solutions"):
                found.append(Arrow(source, name, path.relative_to(root).as_posix(), line))
            if package != PACKAGE:
                continue
            target = inner
            while target and target not in known:
                target = target.rpartition(".")[0]
            # A module that is not there keeps its name, which no room allows; the package alone could mean any part.
            target = target or inner or PACKAGE
            if target not in (source, "__version__"):
                found.append(Arrow(source, target, path.relative_to(root).as_posix(), line))
    return list(dict.fromkeys(found))  # one import of three names is one


@functools.cache  # a copy of the tree differs in one file
def imports(text: str) -> list[tuple[int, str]]:
    """Line and full dotted name of all that a file with this text imports."""
    found = []
    for node in statements(ast.parse(text).body):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: imports are absolute here"
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def statements(block: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """A block's statements and those in them, wherever they stand: expressions, which are most nodes, hold none."""
    for node in block:
        yield node
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            inner = getattr(node, field, [])
            yield from statements(inner if isinstance(inner, list) else [])


def room(module: str) -> str:
    return module.partition(".")[0]


def circle(found: list[Arrow]) -> list[Arrow] | None:
    """Imports that lead from a module back to itself, or None. A package's own name stands for its __init__."""
    out: dict[str, list[Arrow]] = {}
    for arrow in found:
        out.setdefault(arrow.source, []).append(arrow)
    done: set[str] = set()

    def walk(module: str, way: list[Arrow]) -> list[Arrow] | None:
        for arrow in out.get(module, ()):
            begin = next((i for i, step in enumerate(way) if step.source == arrow.target), None)
            if begin is not None or arrow.target == module:
                return [*way[begin or 0 :], arrow]
            if arrow.target not in done and (round_ := walk(arrow.target, [*way, arrow])):
                return round_
        done.add(module)
        return None

    return next((round_ for module in sorted(out) if module not in done and (round_ := walk(module, []))), None)
