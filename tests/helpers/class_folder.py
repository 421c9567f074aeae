"""The folder of a class that a test grades: one exercise, with kernels for the stand-in of tests/classroom."""

import csv
import json
import os
from datetime import UTC, datetime
from pathlib import Path

from course_utils.grading.catalog import exercise

CHAPTER, NAME = "01_attention_basics", "coalesced_scores"
EXERCISE = f"{CHAPTER}/{NAME}"
AFTERWARDS = datetime(2026, 12, 24, tzinfo=UTC)  # all is due
METHOD = "distributed.worker.multiprocessing-method"  # how Dask starts workers: "spawn" where nobody says otherwise


def notebook() -> str:
    cells = [
        {"cell_type": "code", "metadata": {"nbgrader": {"grade_id": name}}, "source": "answers = {}"}
        for name in exercise(EXERCISE).cells
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def hand_in(folder: Path, student: str, kernel: str | bytes = "right", when: str = "2026-11-01 12:00:00 UTC") -> Path:
    place = folder / "submitted" / student / CHAPTER
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{NAME}.cu").write_bytes(kernel.encode() if isinstance(kernel, str) else kernel)
    (place / f"{NAME}.ipynb").write_text(notebook())
    (place / "timestamp.txt").write_text(when)
    return place


def make(folder: Path, *students: str) -> Path:
    """A class folder with this roster, nothing handed in, the chapter released, and a seed."""
    (folder / "submitted").mkdir(parents=True)
    lines = "".join(f"{student},First {student},Last,{student}@example.org\n" for student in students)
    (folder / "students.csv").write_text("id,first_name,last_name,email\n" + lines)
    (folder / "assignments.csv").write_text(f"assignment,due\n{CHAPTER},2026-11-02 12:00 UTC\n")
    (folder / "run.json").write_text('{"seed": 7}')
    return folder


def table(folder: Path, name: str = "grades.csv", by: str = "student_id") -> dict[str, dict[str, str]]:
    with (folder / name).open(encoding="utf-8-sig", newline="") as file:
        return {row[by]: row for row in csv.DictReader(file)}


def tables(folder: Path) -> tuple[bytes, bytes]:
    return (folder / "grades.csv").read_bytes(), (folder / "grades_by_student.csv").read_bytes()


def asked() -> list[str]:
    return Path(os.environ["STAND_IN_LOG"]).read_text().splitlines()
