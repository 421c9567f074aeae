"""The table of planted mistakes can be run as it stands, and its runner tells the three verdicts apart."""

import ast
import collections
import functools
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.all_of import all_of
from tests.mutants.runner import BROKEN, KILLED, SEES_EVERY_ROW, SURVIVED, Runner
from tests.mutants.table import ROOT, Mutant, plant, read_table

TABLE = read_table()
LEAST = {  # rows of a kind, or of several together
    ("kernels", "headers"): 12,
    ("operators",): 8,
    ("serving",): 8,
    ("patterns",): 6,
    ("translation",): 3,
    ("memory",): 3,
    ("races",): 3,
    ("asynccheck",): 30,
    ("counters",): 3,
    ("recording",): 6,
    ("grader",): 8,
    ("questions",): 4,
    ("progress",): 4,
    ("javascript",): 4,
    ("site",): 4,
}


def test_each_kind_has_enough_rows():
    counts = collections.Counter(row.kind for row in TABLE)
    assert len(TABLE) >= 60
    for kinds, least in LEAST.items():
        assert sum(counts[kind] for kind in kinds) >= least, kinds


@all_of("row", TABLE)
def test_a_mistake_can_be_planted(row):
    """Its text occurs once in its file."""
    assert plant(row, (ROOT / row.file).read_text(encoding="utf-8"))


def test_the_whole_of_make_test_is_judged_without_the_test_above():
    file, _, name = SEES_EVERY_ROW.partition("::")
    assert ROOT / file == Path(__file__).resolve() and name == test_a_mistake_can_be_planted.__name__


@functools.cache
def marked(file):
    """Of each test in a file its marks, in Python's words, with those of the file."""
    module = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assigned = [node for node in module.body if isinstance(node, ast.Assign)]
    of_file = [ast.unparse(node.value) for node in assigned if ast.unparse(node.targets[0]) == "pytestmark"]
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    return {one.name: [*map(ast.unparse, one.decorator_list), *of_file] for one in functions}


@all_of("test", sorted({row.test for row in TABLE}))
def test_the_test_of_a_row_is_in_make_test(test):
    file, _, name = test.partition("::")
    assert (ROOT / file).is_file()
    if file.endswith(".ipynb"):
        return
    # A mark on one of its parameters leaves the others in `make test`.
    marks = marked(file)[name.partition("[")[0]]
    assert not any(mark.startswith("pytest.mark.exhaustive") for mark in marks)


def test_ruff_sees_no_planted_mistake(tmp_path):
    """Or the whole of `make test` would fail before the tests begin."""
    for row in TABLE:
        if row.file.endswith(".py"):
            text = plant(row, (ROOT / row.file).read_text(encoding="utf-8"))
            (tmp_path / f"{row.name}.py").write_text(text, encoding="utf-8")
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        run = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--config", str(ROOT / "pyproject.toml"), str(tmp_path)],
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, run.stdout


def row(name, old, new, test="tests/test_sums.py::test_sums", **more):
    return Mutant(name, "sums", "sums.py", old, new, test, **more)


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """A runner over a small tree with one module and its tests."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # most of the time of a small run
    tree = tmp_path / "tree"
    files = {
        "sums.py": "def plus(a, b):\n    return a + b\n\n\ndef unused(a):\n    return a + 1\n",
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\naddopts = "--import-mode=importlib"\n',
        "tests/test_sums.py": "import sums\n\n\ndef test_sums():\n    assert sums.plus(1, 2) == 3\n",
        "tests/test_wrong.py": "def test_wrong():\n    assert False\n",
        "tests/test_skipped.py": "import pytest\n\n\n@pytest.mark.skip\ndef test_skipped():\n    pass\n",
    }
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    (tmp_path / "runs").mkdir()
    yield Runner(tree, files, tmp_path / "runs")
    assert {name: (tree / name).read_text() for name in files} == files
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["unchanged"]


def test_the_three_verdicts(runner):
    outcomes = {
        mutant.name: runner.judge(mutant).outcome
        for mutant in (
            row("seen", "a + b", "a - b"),
            row("not_seen", "a + 1", "a - 1"),
            row("does_not_compile", "return a + b", "return a +"),
            row("no_such_test", "a + b", "a - b", "tests/test_sums.py::test_others"),
        )
    }
    assert outcomes == {
        "seen": KILLED,
        "not_seen": SURVIVED,
        "does_not_compile": BROKEN,
        "no_such_test": BROKEN,
    }


@pytest.mark.parametrize(
    ("mutant", "why"),
    [
        (row("gone", "a * b", "a - b"), "'a * b' 0 times"),
        (row("twice", "return a", "return 0"), "'return a' 2 times"),
        (row("no_change", "a + b", "a + b"), "old and new are the same"),
        (row("fails_anyway", "a + b", "a - b", "tests/test_wrong.py::test_wrong"), "without the mistake"),
        (row("never_runs", "a + b", "a - b", "tests/test_skipped.py::test_skipped"), "without the mistake"),
    ],
    ids=lambda value: value.name if isinstance(value, Mutant) else "",
)
def test_a_broken_row_says_why(runner, mutant, why):
    verdict = runner.judge(mutant)
    assert verdict.outcome == BROKEN and why in verdict.reason


def test_a_text_that_occurs_twice_is_told_apart_by_what_stands_before_it():
    mutant = row("second", "return a", "return 0", after="def unused")
    assert plant(mutant, "def plus\nreturn a\ndef unused\nreturn a\n") == "def plus\nreturn a\ndef unused\nreturn 0\n"


def test_a_row_with_an_unknown_or_missing_entry_is_named(tmp_path):
    (tmp_path / "sums.toml").write_text('[a]\nfile = "sums.py"\nold = "a"\nnew = "b"\n')
    with pytest.raises(ValueError, match="sums.toml: a takes file, old, new, test"):
        read_table(Path(tmp_path))
