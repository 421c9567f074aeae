"""Badges and the set-up cell: where they go, that they are replaced, and that nobody else's repository is named."""

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from course_utils.site import badges

VARIABLES = ("COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE")


def notebook():
    cells = [nbformat.v4.new_markdown_cell(text) for text in ("a bar", "# 01 · Title", "text")]
    return nbformat.v4.new_notebook(cells=cells)


def test_both_cells_follow_the_title_and_a_second_run_replaces_them():
    chapter = notebook()
    for name in ("someone/old", "someone-else/new.course"):
        badges.put_into_notebook(chapter, name, "01_attention_basics")
    nbformat.validate(chapter)
    assert [cell.cell_type for cell in chapter.cells] == ["markdown", "markdown", "markdown", "code", "markdown"]
    text = "\n".join(cell.source for cell in chapter.cells)
    assert "someone/old" not in text
    assert "github/someone-else/new.course/blob/main/notebooks/01_attention_basics.ipynb" in text
    assert "?src=https://github.com/someone-else/new.course/blob/main/notebooks/01_attention_basics.ipynb" in text
    assert "https://github.com/someone-else/new.course" in chapter.cells[3].source


def test_the_readme_gets_one_row_below_its_title():
    text = "# Title\n\nIt is a course.\n"
    once = badges.put_into_readme(text, "someone/old")
    again = badges.put_into_readme(once, "someone/new")
    assert again == badges.put_into_readme(text, "someone/new")
    assert again.startswith("# Title\n\n<!-- badges") and again.endswith("\n\nIt is a course.\n")


@pytest.mark.parametrize("name", ["", "name", "a/b/c", "https://github.com/a/b", 'a/b"; import os', "a/b)", "-a/b"])
def test_only_owner_and_name_are_taken(name):
    with pytest.raises(ValueError, match="takes owner/name"):
        badges.setup_cell(name, badges.START)


def test_elsewhere_the_set_up_cell_does_nothing(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    command = [sys.executable, "-c", badges.setup_cell("someone/name", badges.START)]
    done = subprocess.run(command, cwd=tmp_path, env=environment | {"PATH": ""}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["me/a", f"{'o' * 39}/{'n' * 100}"])
def test_the_set_up_cell_is_as_make_test_wants_every_cell(tmp_path, name):
    path = tmp_path / "cell.py"
    path.write_text(badges.setup_cell(name, badges.START) + "\n")
    for task in (["check"], ["format", "--check"]):
        settings = ["--config", str(Path(__file__).resolve().parents[2] / "pyproject.toml")]
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *task, *settings, str(path)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout


def run_set_up_cell(folder, machine):
    """Runs the cell as on Colab or Kaggle, with the `git` in this folder, which also takes the place of `/`."""
    code = badges.setup_cell("someone/name", badges.START)
    for name in ("/content", "/kaggle"):
        code = code.replace(f'"{name}', f'"{folder}{name}')
    environment = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    environment |= {name: "release" for name in machine} | {"PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


# Kaggle has Colab's variable, too.
@pytest.mark.parametrize("machine, place", [(VARIABLES[:1], "content"), (VARIABLES, "kaggle/working")])
def test_the_set_up_cell_fetches_the_course_once_and_runs_its_set_up(tmp_path, machine, place):
    git = tmp_path / "git"
    set_up = "main = lambda slug: print('set up', slug)"
    git.write_text(f'#!/bin/sh\necho "$1 $3"\nmkdir -p "$4/.ci"\necho "{set_up}" > "$4/.ci/colab_setup.py"\n')
    git.chmod(0o755)
    said = [run_set_up_cell(tmp_path, machine).stdout for _ in range(2)]
    assert said == [f"clone https://github.com/someone/name\nset up {badges.START}\n", f"set up {badges.START}\n"]
    assert (tmp_path / place / "name" / ".ci").is_dir()


def test_without_internet_the_set_up_cell_says_what_to_switch_on(tmp_path):
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\necho 'Could not resolve host: github.com' >&2\nexit 128\n")
    git.chmod(0o755)
    said = run_set_up_cell(tmp_path, VARIABLES).stderr
    assert "Could not resolve host" in said and "On Kaggle, switch Internet on" in said.splitlines()[-1]
