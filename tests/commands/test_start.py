"""`python -m course_utils start FOLDER`: a learner's own copy of the course's files."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from course_utils import course
from course_utils.__main__ import main
from course_utils.commands.start import course_files, start

NAMES = ("notebooks/00_start_here.ipynb", "kernels/00_start_here/vector_add.cu")


@pytest.fixture
def source(tmp_path):
    """The course's files, as small ones."""
    source = tmp_path / "source"
    for name in (*NAMES, *course.FILES):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(f"{name}, as it came")
    return source


def test_the_links_of_notebooks_and_guides_lead_to_copied_files(tmp_path):
    copied = {path.relative_to(course.SOURCE) for path in course_files(course.SOURCE)}
    known = {folder for path in copied for folder in path.parents} | copied
    for path in (path for path in copied if path.parts[0] in ("notebooks", "exercises")):
        for link in re.findall(r"\]\((\.\.?/[^)#\s?\\]+)", (course.SOURCE / path).read_text(encoding="utf-8")):
            target = (course.SOURCE / path.parent / link).resolve().relative_to(course.SOURCE)
            assert target in known, f"{path} links {link}"


def test_a_second_start_replaces_what_is_as_it_came_and_keeps_what_was_changed(source, tmp_path):
    folder = tmp_path / "folder"
    assert start(folder, source) == (len(NAMES) + len(course.FILES), [])
    assert start(folder, source) == (0, [])
    (folder / NAMES[0]).write_text("with answers")
    (folder / "notebooks" / "own.ipynb").write_text("a notebook of the learner's")
    for name in NAMES:
        (source / name).write_text("the next version")
    assert start(folder, source) == (1, [NAMES[0]])
    assert [(folder / name).read_text() for name in NAMES] == ["with answers", "the next version"]
    assert start(folder, source) == (0, [NAMES[0]]), "a changed file stays the learner's"
    assert (folder / "notebooks" / "own.ipynb").is_file()


def test_a_file_that_lies_there_already_is_kept(source, tmp_path):
    (tmp_path / "README.md").write_text("of another project")
    assert start(tmp_path, source)[1] == ["README.md"]
    assert (tmp_path / "README.md").read_text() == "of another project"


def test_the_command_says_what_it_kept_and_refuses_a_clone(tmp_path, capsys):
    (tmp_path / "README.md").write_text("of another project")
    assert main(["start", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "since you changed them: README.md\n" in said and f"start {tmp_path} --lab" in said
    assert main(["start", str(Path(course.__file__).parents[1])]) == 1
    assert "a clone of the course" in capsys.readouterr().err


def test_what_it_did_is_said_into_a_pipe_too_before_jupyterlab_takes_its_place(tmp_path):
    (tmp_path / "jupyterlab.py").write_text("print('JupyterLab')")
    command = [sys.executable, "-m", "course_utils", "start", str(tmp_path / "folder"), "--lab"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]), "PYTHONUNBUFFERED": ""}
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0].endswith(f"files of the course copied to {tmp_path / 'folder'}") and said[1] == "JupyterLab"


def test_a_process_in_a_learners_folder_takes_its_files(source, tmp_path):
    folder = tmp_path / "folder"
    assert course.started_folder(folder) is None
    start(folder, source)
    assert course.started_folder(folder / "notebooks") == folder
    note = folder / course.STARTED
    note.write_text(note.read_text().replace('"version": "1', '"version": "0'))
    with pytest.warns(UserWarning, match="has the files of version 0"):
        course.started_folder(folder)
