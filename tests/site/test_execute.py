"""Running chapters for the site: outputs, what is kept, what nbval has run, and what a failing cell says."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from course_utils.plots import look
from course_utils.puzzles.puzzle import find_puzzle
from course_utils.site import execute as execution
from course_utils.site import places
from course_utils.site.execute import SiteError, execute
from tests.helpers import small_site
from tests.helpers.forked_kernels import kernels_as_forks

ROOT = Path(__file__).resolve().parents[2]
# What a run writes about its paths is made neutral: whether they are as expected is asked inside.
REPORT = """import os
print(os.environ["ATTENTION_KERNELS_SEED"], os.environ["XDG_DATA_HOME"] != "/a/learners/own", os.getcwd())"""

# In the place of the puzzles' own %%puzzle, which grades: tests/puzzles.
SAYS_WHAT_IT_IS_GIVEN = """from IPython.core.magic import register_cell_magic
@register_cell_magic
def puzzle(line, cell):
    print(line, cell, sep="\\n")"""


@pytest.fixture(scope="module", autouse=True)
def quick_kernels():
    """Those of `execute` here. The site's own, and nbval's, start as a learner's."""
    with kernels_as_forks("ipykernel.kernelapp", "matplotlib"):
        yield


def write(path, *cells):
    path.parent.mkdir(parents=True, exist_ok=True)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)
    return path


def test_cells_run_beside_their_notebook_with_a_fixed_seed_and_outputs_name_no_path_of_this_machine(
    tmp_path, tmp_path_factory, monkeypatch
):
    monkeypatch.setenv("XDG_DATA_HOME", "/a/learners/own")
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    source = f"""import os, sys
from IPython.display import HTML, display
print({str(tmp_path)!r} + "/kernels/a.cu", os.path.expanduser("~/x"), sys.prefix + "/bin", os.environ["XDG_DATA_HOME"])
display(HTML("<b>" + {str(tmp_path)!r} + "</b>"))"""
    path = write(tmp_path / "notebooks" / "a.ipynb", REPORT, source)
    report, paths = (cell.outputs for cell in execute(tmp_path, [path], tmp_path / "kept")[path].cells)
    assert report[0].text.split() == ["0", "True", "…/notebooks"]
    text, page = paths
    assert text.text.split() == ["…/kernels/a.cu", "~/x", ".venv/bin", "~/.local/share"]
    assert page.data["text/html"] == "<b>…</b>"


def test_a_solved_puzzle_is_run_and_shown_as_it_is_given(tmp_path):
    puzzle = find_puzzle("00_start_here/guard")
    solved = f"%%puzzle {puzzle.task.id}\n{puzzle.solved}"
    path = write(tmp_path / "notebooks" / "a.ipynb", SAYS_WHAT_IT_IS_GIVEN, solved)
    *_, cell = execute(tmp_path, [path], tmp_path / "kept")[path].cells
    assert cell.source == f"%%puzzle {puzzle.task.id}\n{puzzle.given}".strip()
    assert f"{cell.outputs[0].text}".strip() == f"{puzzle.task.id}\n{puzzle.given}".strip()


def test_a_root_directory_as_home_replaces_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert places.neutral("/proc/self, 1 / 2", places.private(tmp_path)) == "/proc/self, 1 / 2"


@pytest.mark.parametrize("what", ["package", "variable", "kernel's file name"])
def test_what_outputs_depend_on_asks_for_another_run(tmp_path, monkeypatch, what):
    kernel = tmp_path / "kernels" / "a.cu"
    kernel.parent.mkdir()
    kernel.write_text("// a")
    before = execution._digest(tmp_path)
    assert execution._digest(tmp_path) == before
    if what == "package":
        monkeypatch.setattr(execution, "distributions", lambda: [])
    elif what == "variable":
        monkeypatch.setenv("COURSE_EMULATOR_CXX", "another++")
    else:
        kernel.rename(kernel.with_name("b.cu"))
    assert execution._digest(tmp_path) != before


def test_a_run_is_kept_until_code_changes_and_text_is_always_new(tmp_path):
    path = write(tmp_path / "notebooks" / "a.ipynb", "import uuid\nprint(uuid.uuid4())")

    def run():
        return execute(tmp_path, [path], tmp_path / "kept")[path]

    first = run().cells[0].outputs[0].text
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[0].metadata.alt = "A new alt text"
    notebook.cells.append(nbformat.v4.new_markdown_cell("A new text"))
    nbformat.write(notebook, path)
    again = run()
    assert again.cells[0].outputs[0].text == first
    assert again.cells[0].metadata.alt == "A new alt text"
    assert again.cells[1].source == "A new text"
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "a.cu").write_text("// another kernel")
    assert run().cells[0].outputs[0].text != first
    assert len(list((tmp_path / "kept").iterdir())) == 1, "an old run is left behind"


def test_a_failing_cell_is_named_with_its_code_and_error_and_nothing_is_kept(tmp_path):
    path = write(tmp_path / "notebooks" / "a.ipynb", "1 + 1", "x = 0\n1 / x")
    with pytest.raises(SiteError, match=r"(?s)a\.ipynb, cell 1 .*1 / x.*ZeroDivisionError"):
        execute(tmp_path, [path], tmp_path / "kept")
    assert list((tmp_path / "kept").glob("*/executed/*")) == []


NBVAL = "-p tests.helpers.keep_outputs --small-site --nbval-lax --nbval-current-env -p no:cacheprovider".split()


def run_by_nbval(root):
    """Runs the notebooks of the course in `root` as `make test` does; returns nbval's exit status and what it says."""
    (root / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", *NBVAL, f"--rootdir={root}", str(root / "notebooks")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout


IS_UNSEEN = f"import os\nassert os.environ[{look.UNSEEN!r}]"


def test_the_site_shows_what_nbval_has_run_and_leaves_out_a_notebook_that_failed(tmp_path):
    seen, also_seen = (tmp_path / "notebooks" / f"{slug}.ipynb" for slug in small_site.CHAPTERS)
    good = write(seen, "import uuid\nprint(uuid.uuid4())", REPORT, "x = 1\nx;")
    write(also_seen, "1 + 1", f"{IS_UNSEEN}, 'it is seen'", "2 + 2")
    write(tmp_path / "notebooks" / "unseen.ipynb", IS_UNSEEN)
    status, said = run_by_nbval(tmp_path)
    assert (status, "1 failed, 6 passed" in said, "it is seen" in said) == (1, True, True), said
    kept = tmp_path / "build" / "site-run"
    assert len(list(kept.glob("*/executed/*"))) == 1
    first, report, silent = (cell.outputs for cell in execute(tmp_path, [good], kept)[good].cells)
    again = execute(tmp_path, [good], kept)[good].cells[0].outputs
    assert first == again, "it was run once more"
    assert report[0].text.split() == ["0", "True", "…/notebooks"]
    assert silent == [], "a semicolon hides a cell's value, as in JupyterLab"
