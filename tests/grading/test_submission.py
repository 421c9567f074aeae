"""Reading hand-ins: whatever lies in the folder, reading gives a Submission that says what is wrong with it."""

import json
import os
from pathlib import Path

import pytest

from course_utils.grading import submission as reading
from course_utils.grading.catalog import EXERCISE_IDS
from course_utils.grading.submission import LARGEST_KERNEL, Submission, as_released, read_submission

EXERCISE = "02_flash_attention_minimal/online_softmax"
NAME = "online_softmax"


def notebook(*cells: tuple[str, str | list[str]]) -> str:
    made = [
        {"cell_type": "code", "metadata": {"nbgrader": {"grade_id": name}}, "source": source} for name, source in cells
    ]
    return json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / f"{NAME}.cu").write_text("extern code")
    (tmp_path / f"{NAME}.ipynb").write_text(notebook(("answers", "answers = {}"), ("grade", "cheat()")))
    return tmp_path


def read(folder: Path) -> Submission:
    return read_submission(folder, EXERCISE)


def test_takes_the_kernel_and_only_the_cells_of_the_exercise(folder: Path) -> None:
    submission = read(folder)
    assert (submission.kernel, submission.cells) == ("extern code", {"answers": "answers = {}"})
    assert submission.status == "ok" and not submission.problems


def test_source_as_a_list_of_lines_and_the_last_of_copies(folder: Path) -> None:
    (folder / f"{NAME}.ipynb").write_text(notebook(("answers", "first"), ("answers", ["answers = ", "{'a': 1}"])))
    assert read(folder).cells == {"answers": "answers = {'a': 1}"}


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    submission = read(tmp_path / "nobody")
    assert submission.status == "missing" and submission.kernel is None
    assert submission.problems[f"{NAME}.cu"].name == f"{NAME}.cu is missing"


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"", "empty", "is empty"),
        (b" \n\t", "empty", "is empty"),
        (b"\xff\xfe\x00", "unreadable", "not text in UTF-8"),
        (b"x" * (LARGEST_KERNEL + 1), "unreadable", "at most"),
    ],
)
def test_kernels_that_cannot_be_used(folder: Path, content: bytes, status: str, words: str) -> None:
    (folder / f"{NAME}.cu").write_bytes(content)
    submission = read(folder)
    assert submission.kernel is None and submission.cells
    assert submission.statuses[f"{NAME}.cu"] == status and submission.status == f"partly {status}"
    assert words in submission.problems[f"{NAME}.cu"].name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "bad JSON"),
        ("[" * 100_000, "bad JSON"),
        ("[]", "no list of cells"),
        ('{"cells": 3}', "no list of cells"),
        ("1" * 10_000, "bad JSON"),
    ],
)
def test_notebooks_that_are_none(folder: Path, text: str, words: str) -> None:
    (folder / f"{NAME}.ipynb").write_text(text)
    submission = read(folder)
    assert submission.kernel == "extern code" and not submission.cells
    assert words in submission.problems[f"{NAME}.ipynb"].name


def test_cells_of_any_shape_are_passed_over(folder: Path) -> None:
    odd = [None, 3, {"metadata": 1}, {"metadata": {"nbgrader": []}, "source": {}}, {"cell_type": "code"}]
    (folder / f"{NAME}.ipynb").write_text(json.dumps({"cells": odd}))
    submission = read(folder)
    assert submission.status == "ok"
    assert submission.problems["answers"].name == f"the cell 'answers' is not in {NAME}.ipynb"


def test_links_pipes_and_folders_are_not_followed(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the solution")
    kernel = folder / f"{NAME}.cu"
    kernel.unlink()
    kernel.symlink_to(secret)
    assert "symbolic link" in read(folder).problems[kernel.name].name
    kernel.unlink()
    os.mkfifo(kernel)
    assert "is not a file" in read(folder).problems[kernel.name].name
    kernel.unlink()
    kernel.mkdir()
    assert "is not a file" in read(folder).problems[kernel.name].name


def test_equal_content_has_an_equal_digest(folder: Path) -> None:
    before = read(folder).digest
    assert read(folder).digest == before
    (folder / f"{NAME}.cu").write_text("other code")
    assert read(folder).digest != before


def test_an_unknown_exercise_is_an_error_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="online_softmax"):
        read_submission(tmp_path, "02_flash_attention_minimal/nothing")


def test_line_ends_of_other_systems_are_taken(folder: Path) -> None:
    (folder / f"{NAME}.cu").write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n")
    assert read(folder).kernel == "a\nb\nc\n"
    (folder / f"{NAME}.cu").write_text("code", encoding="utf-16")
    assert "UTF-16" in read(folder).problems[f"{NAME}.cu"].name


def test_a_cell_that_is_too_long_is_not_cut(folder: Path) -> None:
    (folder / f"{NAME}.ipynb").write_text(notebook(("answers", "#" * 70_000)))
    submission = read(folder)
    assert not submission.cells and "at most 65,536 are read" in submission.problems["answers"].name


COPIES = (
    *("{}-1.cu", "{}-2.cu", "{} 2.cu", "{} copy.cu", "{} copy 2.cu"),  # Safari, Finder
    *("{} (1).cu", "{}(1).cu", "{}[1].cu", "{}_1.cu", "{} (1) (1).cu", "{}.cu (1)", "{}.cu.txt", "{}.cu.download"),
    *("{} - Copy.cu", "{} - Copy (3).cu", "{} - Kopie (2).cu", "{} – Kopie.cu", "{} — copie.cu", "Kopie von {}.cu"),
    *("{} (copy).cu", "{} (another copy).cu", "{} (3rd copy).cu", "{} (Kopie).cu", "{} (copy 1).cu", "{}-Copy1.cu"),
)


@pytest.mark.parametrize("copy", COPIES)
def test_names_that_browsers_and_file_managers_give_are_taken_with_a_note(folder: Path, copy: str) -> None:
    (folder / f"{NAME}.cu").rename(folder / copy.format(NAME))
    submission = read(folder)
    assert submission.kernel == "extern code" and submission.status == "ok"
    assert submission.notes == (f"{copy.format(NAME)} was taken as {NAME}.cu",)
    assert all(as_released(copy.format(one.split("/")[1])) == f"{one.split('/')[1]}.cu" for one in EXERCISE_IDS)


@pytest.mark.parametrize(
    "other", ["mini_flash.cu", "mini_flash (1).cu", "{}_v2.cu", "{}_old.cu", "my_{}.cu", "{} 2026.cu", "{}.c", "1.cu"]
)
def test_other_names_are_not_taken(folder: Path, other: str) -> None:
    (folder / f"{NAME}.cu").rename(folder / other.format(NAME))
    submission = read(folder)
    assert submission.kernel is None and submission.statuses[f"{NAME}.cu"] == "missing"


def test_a_name_that_ends_in_a_number_of_its_own_is_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "all_ids", lambda: ("02_x/softmax", "02_x/softmax_1"))
    names = {"softmax_1.cu": "softmax_1.cu", "softmax_1 (2).cu": "softmax_1.cu", "softmax_2.cu": "softmax.cu"}
    assert {name: as_released(name) for name in names} == names
