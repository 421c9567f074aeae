"""A class of fictional students, to try the classroom commands on. A seed decides what they hand in.

Most hand in a solution, a wrong kernel or the skeleton. The others are what a teacher meets: nothing, an empty folder,
bad JSON, a file that is not text or under a browser's name, another exercise's, a link to a neighbour's file, a late
hand-in, somebody who is not on the roster.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from course_utils.classroom.class_folder import ClassroomError, writing
from course_utils.classroom.results_store import write_atomically
from course_utils.grading.catalog import EXERCISE_IDS, exercise_ids
from course_utils.grading.examples import Example, examples_of
from course_utils.grading.release import CUDA, PYTHON, ROOT, SOLUTIONS, release
from course_utils.grading.submission import LARGEST_KERNEL, LARGEST_NOTEBOOK

CHAPTER = "02_flash_attention_minimal"
DUE = datetime(2025, 11, 28, 18, tzinfo=UTC)
WEIGHTS = {"solution": 3.0, "right": 1.0, "wrong": 5.0, "skeleton": 1.0}
"""How often a kind of submission is drawn."""
ODD = 0.1
"""Share of the students with an odd hand-in, beyond one of each kind."""
FIRST_NAMES = (
    "Ada Bela Chidi Dana Emre Farah Goran Hana Ines Jonas Kofi Lea Mei Nils Oya Pia Quinn Ravi Sol Tove".split()
)
LAST_NAMES = "Abel Brandt Cruz Demir Eklund Fofana Garcia Haas Ito Jansen Kaya Lund Mori Novak Okoro Park Roth".split()


def make_class(
    folder: Path,
    *,
    students: int = 12,
    exercises: Sequence[str] | None = None,
    seed: int = 0,
    solutions: Path | None = None,
    submissions: Path | None = None,
) -> None:
    """Writes students.csv, assignments.csv, submitted/, run.json, and demo.csv: who handed in what.

    exercises: ids; None takes those of chapter 02. solutions: the course's, None finds them in this clone. submissions:
    the known right and wrong ones, see examples.py. Raises ClassroomError if the folder holds anything.
    """
    if students < 1:
        raise ValueError(f"students takes a number from 1, got {students}")
    if folder.exists() and any(folder.iterdir()):
        raise ClassroomError(f"{folder} is not empty: name another folder for the demo")
    examples = _examples(exercises, solutions or SOLUTIONS, submissions or ROOT / "tests" / "grading" / "submissions")
    chapters = sorted({exercise_id.split("/")[0] for exercise_id in examples})
    draw = random.Random(seed)
    ids = [f"s{number:03d}" for number in range(1, students + 1)]
    fates = _fates(students, draw)

    key: list[tuple[str, str, str]] = [("student", "exercise", "handed_in")]
    for student, fate in zip([*ids, "visitor"], [*fates, ""], strict=True):
        for chapter in chapters:
            if fate == "nothing":
                key += [(student, exercise_id, fate) for exercise_id in examples if exercise_id.startswith(chapter)]
                continue
            place = folder / "submitted" / student / chapter
            with writing(place):
                place.mkdir(parents=True)
            for exercise_id, choice in examples.items():
                if exercise_id.startswith(chapter):
                    drawn = draw.choices(choice, [_weight(example, choice) for example in choice])[0]
                    _without_marks(drawn).write(place)
                    if fate in ODD_FILES:
                        ODD_FILES[fate](place, exercise_id.split("/")[1])
                    key.append((student, exercise_id, f"{drawn.kind}: {drawn.name}" + (f"; {fate}" if fate else "")))
            before = -draw.randrange(1, 50_000) if fate == "late" else draw.randrange(1, 250_000)
            _write_time(place, DUE - timedelta(seconds=before))

    names = [(draw.choice(FIRST_NAMES), draw.choice(LAST_NAMES)) for _ in ids]
    roster = [(student, *name, f"{student}@example.org") for student, name in zip(ids, names, strict=True)]
    _write_table(folder / "students.csv", [("id", "first_name", "last_name", "email"), *roster])
    whole = [chapter for chapter in chapters if {*exercise_ids(chapter)} <= examples.keys()]
    parts = [exercise_id for exercise_id in examples if exercise_id.split("/")[0] not in whole]
    due = [(assignment, f"{DUE:%Y-%m-%d %H:%M} UTC") for assignment in (*whole, *parts)]
    _write_table(folder / "assignments.csv", [("assignment", "due"), *due])
    _write_table(folder / "demo.csv", key)
    write_atomically(folder / "run.json", json.dumps({"seed": seed}) + "\n")


def _examples(exercises: Sequence[str] | None, solutions: Path, submissions: Path) -> dict[str, list[Example]]:
    """What can be drawn, by exercise."""
    wanted = [exercise_id for exercise_id in EXERCISE_IDS if exercise_id.startswith(CHAPTER)]
    try:
        return {exercise_id: examples_of(exercise_id, submissions, solutions) for exercise_id in exercises or wanted}
    except FileNotFoundError as error:
        words = "the demo needs a clone of the course, or --solutions and --submissions"
        raise ClassroomError(f"{error}: {words}") from None


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


def _weight(example: Example, choice: Sequence[Example]) -> float:
    """The weight of a kind is shared by those of that kind."""
    return WEIGHTS[example.kind] / sum(other.kind == example.kind for other in choice)


def _fates(students: int, draw: random.Random) -> list[str]:
    """For each student "" or what is odd; about half have nothing odd even in a small class."""
    kinds = ["nothing", "late", *ODD_FILES]
    fates = kinds[: students // 2]
    more = max(0, students - 2 * len(kinds))
    fates += [draw.choice(kinds) for _ in range(int(ODD * more))]
    fates += [""] * (students - len(fates))
    draw.shuffle(fates)
    return fates


# ---- what is odd about a hand-in: functions of the chapter's folder and the exercise's name


def _bad_json(place: Path, name: str) -> None:
    notebook = place / f"{name}.ipynb"
    notebook.write_text(notebook.read_text(encoding="utf-8")[:-40], encoding="utf-8")


def _empty_folder(place: Path, name: str) -> None:
    for path in place.iterdir():
        path.unlink(missing_ok=True)


def _empty_kernel(place: Path, name: str) -> None:
    (place / f"{name}.cu").write_bytes(b"")


def _no_notebook(place: Path, name: str) -> None:
    (place / f"{name}.ipynb").unlink(missing_ok=True)


def _no_text(place: Path, name: str) -> None:
    (place / f"{name}.cu").write_bytes(b"\xff\xfe" + "__global__".encode("utf-16-le"))


def _too_large(place: Path, name: str) -> None:
    for path, most in ((place / f"{name}.cu", LARGEST_KERNEL), (place / f"{name}.ipynb", LARGEST_NOTEBOOK)):
        with path.open("wb") as file:
            file.truncate(most + 1)


def _folder_for_kernel(place: Path, name: str) -> None:
    (place / f"{name}.cu").unlink(missing_ok=True)
    (place / f"{name}.cu").mkdir()


def _link(place: Path, name: str) -> None:
    kernel = place / f"{name}.cu"
    kernel.unlink(missing_ok=True)
    os.symlink(Path("..") / ".." / "visitor" / place.name / kernel.name, kernel)


def _browsers_name(place: Path, name: str) -> None:
    kernel = place / f"{name}.cu"
    if kernel.exists():
        kernel.rename(place / f"{name} (1).cu")


def _other_name(place: Path, name: str) -> None:
    notebook = place / f"{name}.ipynb"
    if notebook.exists():
        notebook.rename(place / "final_version.ipynb")


def _no_cells(place: Path, name: str) -> None:
    (place / f"{name}.ipynb").write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}\n')


def _other_exercise(place: Path, name: str) -> None:
    other = "mini_flash" if name != "mini_flash" else "online_softmax"
    for suffix in (".cu", ".ipynb"):
        (place / f"{name}{suffix}").write_bytes(release(SOLUTIONS / CHAPTER / f"{other}{suffix}"))


ODD_FILES: dict[str, Callable[[Path, str], None]] = {
    "bad JSON": _bad_json,
    "empty folder": _empty_folder,
    "no notebook": _no_notebook,
    "empty kernel": _empty_kernel,
    "kernel is a link": _link,
    "kernel is no text": _no_text,
    "too large": _too_large,
    "kernel is a folder": _folder_for_kernel,
    "a browser's name": _browsers_name,
    "another name": _other_name,
    "no cells": _no_cells,
    "another exercise": _other_exercise,
}


def _write_time(place: Path, time: datetime) -> None:
    (place / "timestamp.txt").write_text(f"{time:%Y-%m-%d %H:%M:%S} UTC\n", encoding="utf-8")


def _write_table(path: Path, table: Sequence[Sequence[str]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(table)
    write_atomically(path, text.getvalue())
