"""Running chapters for the site: outputs, what is kept, and what a failing cell says."""

import nbformat
import pytest

from course_utils.site.execute import SiteError, execute

REPORT = "import os\nprint(os.environ['ATTENTION_KERNELS_SEED'], os.environ['XDG_DATA_HOME'], os.getcwd())"


def write(path, *cells):
    path.parent.mkdir(parents=True, exist_ok=True)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)
    return path


def test_cells_run_beside_their_notebook_with_a_fixed_seed_and_nobodys_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", "/a/learners/own")
    path = write(tmp_path / "notebooks" / "a.ipynb", REPORT)
    seed, home, folder = execute(tmp_path, [path], tmp_path / "kept")[path].cells[0].outputs[0].text.split()
    assert (seed, folder) == ("0", str(path.parent))
    assert home != "/a/learners/own"


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
    assert list((tmp_path / "kept").iterdir()) == []
