"""The size of the house: lines and imports of each room, arrows that run up, circles, long functions.

    python -m tests.counts [CHECKOUT]

counts what git tracks in CHECKOUT, this one if none is named, by the rooms of its own tests/structure.toml.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

from tests.helpers.imports import PACKAGE, arrows, modules, room

CODE = (".py", ".js", ".cpp", ".h", ".cuh", ".cu")
MOST_LINES = 80  # of a function


def lines_by_folder(root: Path) -> Counter[tuple[str, str]]:
    """Lines of code of each (package or tests, room), with ("course_utils", "") for the file above the rooms."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True).stdout
    lines: Counter[tuple[str, str]] = Counter()
    for name in listed.split("\0"):
        top, _, rest = name.partition("/")
        if top in (PACKAGE, "tests") and name.endswith(CODE):
            inner = rest.partition("/")[0].removesuffix(".py").removeprefix("test_")
            lines[top, "" if inner == "__init__" else inner] += len((root / name).read_bytes().splitlines())
    return lines


def circles(edges: set[tuple[str, str]]) -> list[list[str]]:
    """The largest groups of modules in which each imports, perhaps by way of others, each other one."""
    out: dict[str, set[str]] = {}
    for source, target in edges:
        out.setdefault(source, set()).add(target)

    def reached(start: str) -> set[str]:
        found, todo = set(), [start]
        while todo:
            new = out.get(todo.pop(), set()) - found
            found |= new
            todo += new
        return found

    reach = {module: reached(module) for module in out}
    groups = {frozenset(n for n in reach[module] if module in reach.get(n, ())) for module in out}
    return sorted(sorted(group) for group in groups if group)


def long_functions(root: Path) -> list[str]:
    """Python functions of the package with more than `MOST_LINES` lines, one line each."""
    found = []
    for path in modules(root).values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = node.end_lineno - node.lineno + 1
                if lines > MOST_LINES:
                    found.append(f"{path.relative_to(root)}:{node.lineno}: {node.name}, {lines} lines")
    return found


def report(root: Path) -> str:
    """A Markdown table of the rooms from low to high, and the sums."""
    rooms = list(tomllib.loads((root / "tests" / "structure.toml").read_text(encoding="utf-8"))["rooms"])
    lines, found = lines_by_folder(root), arrows(root)
    between = {(room(a.source), room(a.target)) for a in found if room(a.source) != room(a.target)}
    up = [pair for pair in between if set(pair) <= set(rooms) and rooms.index(pair[0]) < rooms.index(pair[1])]
    table = ["| room | lines | tests | imports rooms |", "|---|--:|--:|--:|"]
    for name in rooms:
        out = sum(source == name for source, _ in between)
        table.append(f"| {name} | {lines[PACKAGE, name]} | {lines['tests', name]} | {out} |")
    package, tests = (sum(count for (top, _), count in lines.items() if top == there) for there in (PACKAGE, "tests"))
    long = long_functions(root)
    sums = {
        "lines of the package": package,
        "lines of the tests": tests,
        "rooms": len(rooms),
        "arrows between rooms": len(between),
        "arrows between modules": len({(a.source, a.target) for a in found}),
        "arrows upward": len(up),
        "circles of modules": len(circles({(a.source, a.target) for a in found})),
        f"functions over {MOST_LINES} lines": len(long),
    }
    return "\n".join([*table, "", *(f"{name}: {count}" for name, count in sums.items()), *(f"  {one}" for one in long)])


if __name__ == "__main__":
    here = Path(__file__).resolve().parents[1]
    print(report(Path(sys.argv[1]).resolve() if sys.argv[1:] else here))
