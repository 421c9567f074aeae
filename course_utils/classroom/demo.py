"""A class of fictional students, to try the classroom commands on. A seed decides what they hand in.

Most hand in a solution, a wrong kernel or the skeleton. Others are what a teacher meets: nothing, half of a notebook,
no notebook, a file under a browser's name, a neighbour's kernel by a link, a late hand-in, somebody who is not on the
roster.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from course_utils.classroom.class_folder import ClassroomError, writing
from course_utils.classroom.results_store import write_atomically
from course_utils.course import SOURCE
from course_utils.grading.catalog import exercise_ids
from course_utils.grading.examples import Example, examples_of
from course_utils.grading.release import CUDA, PYTHON

CHAPTER = "02_flash_attention_minimal"
DUE = datetime(2025, 11, 28, 18, tzinfo=UTC)
WEIGHTS = {"solution": 3.0, "right": 1.0, "wrong": 5.0, "skeleton": 1.0}
"""How often a kind of submission is drawn."""
NAMES = ("Ada Abel", "Bela Cruz", "Chidi Okoro", "Dana Haas", "Emre Demir", "Hana Mori", "Nils Eklund", "Oya Kaya")


def make_class(folder: Path, *, students: int = 12, exercises: Sequence[str] | None = None, seed: int = 0) -> None:
    """Writes students.csv, assignments.csv, submitted/, run.json, and demo.csv: who handed in what.

    exercises: ids; None takes those of chapter 02. Raises ClassroomError if the folder holds anything.
    """
    if students < 1:
        raise ValueError(f"students takes a number from 1, got {students}")
    if folder.exists() and any(folder.iterdir()):
        raise ClassroomError(f"{folder} is not empty: name another folder for the demo")
    known = SOURCE / "tests" / "grading" / "submissions"
    examples = {one: examples_of(one, known) for one in exercises or exercise_ids(CHAPTER)}
    draw = random.Random(seed)
    ids = [f"s{number:03d}" for number in range(1, students + 1)]
    odd = ["nothing", "late", *ODD_FILES][: students // 2]
    odd += [""] * (students - len(odd))
    draw.shuffle(odd)

    key: list[tuple[str, str, str]] = [("student", "exercise", "handed_in")]
    for student, fate in zip([*ids, "visitor"], [*odd, ""], strict=True):
        for exercise_id, choice in examples.items():
            if fate == "nothing":
                key.append((student, exercise_id, fate))
                continue
            place = folder / "submitted" / student / exercise_id.split("/")[0]
            with writing(place):
                place.mkdir(parents=True, exist_ok=True)
            kind = draw.choices(*zip(*WEIGHTS.items(), strict=True))[0]
            drawn = draw.choice([one for one in choice if one.kind == kind] or choice)
            _without_marks(drawn).write(place)
            if fate in ODD_FILES:
                ODD_FILES[fate](place, exercise_id.split("/")[1])
            key.append((student, exercise_id, f"{drawn.kind}: {drawn.name}" + (f"; {fate}" if fate else "")))
            time = DUE + timedelta(hours=7 if fate == "late" else -7)
            (place / "timestamp.txt").write_text(f"{time:%Y-%m-%d %H:%M:%S} UTC\n", encoding="utf-8")

    roster = [(student, *draw.choice(NAMES).split(), f"{student}@example.org") for student in ids]
    _write_table(folder / "students.csv", [("id", "first_name", "last_name", "email"), *roster])
    due = [(exercise_id, f"{DUE:%Y-%m-%d %H:%M} UTC") for exercise_id in examples]
    _write_table(folder / "assignments.csv", [("assignment", "due"), *due])
    _write_table(folder / "demo.csv", key)
    write_atomically(folder / "run.json", json.dumps({"seed": seed}) + "\n")


def _without_marks(example: Example) -> Example:
    """As a student would have written it: the lines that mark the solution are not there."""

    def unmarked(text: str) -> str:
        marks = (CUDA.begin, CUDA.end, PYTHON.begin, PYTHON.end)
        return "".join(line for line in text.splitlines(keepends=True) if line.strip() not in marks)

    kernel, notebook = example.kernel, example.notebook
    if notebook is not None:
        content = json.loads(notebook)
        for cell in content["cells"]:
            cell["source"] = unmarked("".join(cell["source"]))
        notebook = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    return replace(example, kernel=None if kernel is None else unmarked(kernel), notebook=notebook)


# ---- what is odd about a hand-in: functions of the chapter's folder and the exercise's name


def _bad_json(place: Path, name: str) -> None:
    notebook = place / f"{name}.ipynb"
    notebook.write_text(notebook.read_text(encoding="utf-8")[:-40], encoding="utf-8")


def _no_notebook(place: Path, name: str) -> None:
    (place / f"{name}.ipynb").unlink(missing_ok=True)


def _link(place: Path, name: str) -> None:
    kernel = place / f"{name}.cu"
    kernel.unlink(missing_ok=True)
    kernel.symlink_to(Path("..") / ".." / "visitor" / place.name / kernel.name)


def _browsers_name(place: Path, name: str) -> None:
    kernel = place / f"{name}.cu"
    if kernel.exists():
        kernel.rename(place / f"{name} (1).cu")


ODD_FILES: dict[str, Callable[[Path, str], None]] = {
    "bad JSON": _bad_json,
    "no notebook": _no_notebook,
    "kernel is a link": _link,
    "a browser's name": _browsers_name,
}


def _write_table(path: Path, table: Sequence[Sequence[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(table)
    write_atomically(path, text.getvalue())
