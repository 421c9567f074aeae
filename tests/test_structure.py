"""The rooms of course_utils and the arrows between them are those of structure.toml; no arrow runs up."""

import ast
import functools
import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from glob import glob
from pathlib import Path

import pytest

from tests.helpers.imports import PACKAGE, Arrow, arrows, circle, imports, modules, room, statements

ROOT = Path(__file__).resolve().parents[1]
LAYOUT = tomllib.loads((ROOT / "tests" / "structure.toml").read_text(encoding="utf-8"))
ROOMS: dict[str, list[str]] = LAYOUT["rooms"]


def wrong_arrows(found: list[Arrow]) -> list[str]:
    """What structure.toml does not allow, a line each."""
    wrong = []
    for arrow in found:
        here, there = room(arrow.source), room(arrow.target)
        allowed = ROOMS.get(here, ()) if here else ()
        if here != there and there not in allowed:
            wrong.append(f"{arrow} ({here or PACKAGE} may import {', '.join(allowed) or 'no other room'})")
    return wrong


def wrong_siblings(found: list[Arrow]) -> list[str]:
    """Imports between the modules of a room that must not know each other."""
    wrong = []
    for name, rule in LAYOUT["siblings"].items():
        for arrow in found:
            parts = arrow.source.split("."), arrow.target.split(".")
            if [part[0] for part in parts] != [name, name] or any(len(part) < 2 for part in parts):
                continue
            source, target = parts[0][1], parts[1][1]
            if target not in rule["shared"] and target not in rule["allowed"].get(source, ()):
                wrong.append(f"{arrow}: what siblings share is in {' and '.join(rule['shared'])}")
    return wrong


@functools.cache  # here and not above: each process that collects tests would read all files
def arrows_here() -> list[Arrow]:
    return arrows(ROOT)


def test_every_import_is_one_that_the_layout_allows():
    assert not (wrong := wrong_arrows(arrows_here())), "\n".join(wrong)


def test_no_arrow_runs_up():
    order = list(ROOMS)
    for name, allowed in ROOMS.items():
        for other in allowed:
            below = order[: order.index(name)]
            assert other in below, f"structure.toml: {name} may import {other}, which is not below it"


def test_no_modules_import_each_other_in_a_circle():
    round_ = circle(arrows_here())
    assert round_ is None, "\n".join(map(str, round_))


def test_siblings_share_by_the_modules_made_for_it():
    assert not (wrong := wrong_siblings(arrows_here())), "\n".join(wrong)


def test_a_chapter_imports_no_other_chapter():
    """What several chapters call lies beside their folders."""
    folders = {name for name, path in modules(ROOT).items() if path.parent.parent.name == "chapters"}
    folder_of = {name: ".".join(name.split(".")[:2]) for name in folders}
    found = [a for a in arrows_here() if {a.source, a.target} <= folders]
    assert found and not [str(a) for a in found if folder_of[a.source] != folder_of[a.target]]


def test_every_allowed_arrow_is_used():
    """A permission that nobody needs would let the next wrong import through."""
    used = {(room(arrow.source), room(arrow.target)) for arrow in arrows_here()}
    unused = [f"{name} → {other}" for name, allowed in ROOMS.items() for other in allowed if (name, other) not in used]
    assert not unused, unused


def test_every_folder_is_a_room_that_says_what_it_is_for():
    folders = {path.parent.name: path for path in (ROOT / PACKAGE).glob("*/__init__.py")}
    for name, path in folders.items():
        assert name in ROOMS, f"{path.relative_to(ROOT)}: structure.toml has no room of that name"
        words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert words and words.partition("\n")[0].endswith("."), f"{path.relative_to(ROOT)} begins with a sentence"


def test_few_modules_lie_loose_at_the_top():
    loose = sorted(path.stem for path in (ROOT / PACKAGE).glob("*.py") if path.stem != "__init__")
    assert loose == sorted(LAYOUT["loose"])
    assert len(loose) + 1 <= LAYOUT["most_loose"]


def imported_with(starts: Iterable[str]) -> dict[str, str]:
    """All that is imported with these modules of the course, and by which module."""
    known, found, waiting = modules(ROOT), {}, [(start, start) for start in starts]
    while waiting:
        name, by = waiting.pop()
        if name and name not in found:
            found[name] = by
            waiting.append((name.rpartition(".")[0], name))
            if name in known:
                text = known[name].read_text(encoding="utf-8")
                later = [lines for node in statements(ast.parse(text).body) if (lines := runs_later(node))]
                names = [target for line, target in imports(text) if not any(line in lines for lines in later)]
                waiting += [(target.removeprefix(f"{PACKAGE}."), name) for target in names]
    return found


def runs_later(node: ast.AST) -> range | None:
    """The lines of a function, or of what is for type checkers alone; None for another statement."""
    is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    return range(node.lineno, node.end_lineno + 1) if is_function or is_for_types else None


def unused_private_names(text: str) -> list[str]:
    """Private constants, functions and classes of a module that nothing in it uses."""
    made = set()
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        made |= {target.id for target in targets if isinstance(target, ast.Name)} | {getattr(node, "name", "")}
    words = Counter(re.findall(r"\w+", text))
    return sorted(name for name in made if re.fullmatch(r"_[A-Za-z]\w*", name) and words[name] == 1)


def test_every_private_name_is_used_in_its_module():
    found = {str(path): unused_private_names(path.read_text(encoding="utf-8")) for path in modules(ROOT).values()}
    assert not any(found.values()), {path: names for path, names in found.items() if names}
    assert unused_private_names("_A = 1\n_B: int = 2\n\ndef _c(): return _A\n") == ["_B", "_c"]


def test_an_operator_is_imported_without_matplotlib():
    """Whoever calls an operator does not wait for it, nor for another room below the pictures."""
    found = imported_with(list(ROOMS)[: list(ROOMS).index("plots")])
    assert "operators.sparse_launch" in found and "matplotlib" not in found, found["matplotlib"]


def test_a_chapter_is_imported_without_what_measures():
    """It shows a record, and imports `bench` in the function that measures on a GPU."""
    found = imported_with(module for module in modules(ROOT) if room(module) == "chapters")
    assert "plots.look" in found and "bench" not in found, found["bench"]


def test_no_test_imports_from_another_test():
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for line, name in imports(path.read_text(encoding="utf-8")):
            shared = (
                name.startswith(
                    (
                        *("tests.aarch64", "tests.container", "tests.corpus", "tests.counts"),
                        *("tests.helpers", "tests.mutants", "tests.nvidia"),
                    )
                )
                and ".test_" not in name
            )
            assert shared or not name.startswith("tests."), f"{path.relative_to(ROOT)}:{line}: imports {name}"


def test_an_import_by_a_string_stays_in_its_room():
    """But for the command line, which imports one command."""
    for module, path in modules(ROOT).items():
        if module != "__main__":
            by_string = r"""(?:import_module|__import__)\(f?["']course_utils\.(\w+)"""
            for name in re.findall(by_string, path.read_text(encoding="utf-8")):
                assert name == room(module), f"{path.relative_to(ROOT)} imports {name} by a string"


PLANTED = [
    ("costs.py", "from course_utils.operators import naive", "costs imports operators.naive"),
    ("questions/judging.py", "def f():\n    from course_utils import widgets", "questions.judging imports widgets"),
    ("operators/naive.py", "import course_utils.operators.sparse", "what siblings share is in attention and library"),
    ("show.py", "from tests.helpers import anything", "show imports tests.helpers"),
    ("__init__.py", "from course_utils import widgets", "course_utils may import no other room"),
    ("timing.py", "from course_utils.errors import KernelError", "timing imports errors"),
    ("timing.py", "def f():\n    import course_utils", "timing imports course_utils"),
]
IN_A_CIRCLE = [
    ("emulator/profiler.py", "from course_utils.emulator import pages", "emulator.profiler imports emulator.pages")
]


@pytest.mark.parametrize("planted", [PLANTED, IN_A_CIRCLE], ids=["not allowed", "in a circle"])
def test_planted_imports_are_found_and_printed(tmp_path, planted):
    for path in modules(ROOT).values():
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    for file, line, _ in planted:
        with (tmp_path / PACKAGE / file).open("a", encoding="utf-8") as target:
            target.write(f"\n{line}\n")
    found = arrows(tmp_path)
    said = [*wrong_arrows(found), *wrong_siblings(found), *map(str, circle(found) or ())]
    missing = [says for _, _, says in planted if not any(says in words for words in said)]
    assert not missing, said


def test_every_file_of_the_package_is_installed():
    """Kernels include some that have no ending, as <cuda/atomic>."""
    root = ROOT / PACKAGE
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["setuptools"]["package-data"][PACKAGE]
    installed = {file for pattern in patterns for file in glob(pattern, root_dir=root, recursive=True)}
    files = (file for file in root.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc"))
    assert {file.relative_to(root).as_posix() for file in files} <= installed
