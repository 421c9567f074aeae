"""Where a class stands: how many have each part right, which diagnoses were given how often, and a picture of both.

Counts whoever handed in; nobody is named, so that the picture can be shown in class.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from course_utils.classroom.class_folder import ClassroomError, read_class, writing
from course_utils.classroom.gradebook import write_csv
from course_utils.classroom.results_store import ResultsStore
from course_utils.grading.result import NOT_MEASURED, RIGHT, Result
from course_utils.plots.look import BLUE, GREY, SKY, VERMILION

MOST_SHOWN = 3  # diagnoses in the picture, for each exercise
WIDTH = 44  # letters of a label


@dataclass(frozen=True)
class PartCount:
    """One part in a class: how many have all of its points, some, or none; and what all of them earned together."""

    exercise: str
    name: str
    title: str
    points: int
    handed_in: int
    right: int
    some: int
    none: int
    earned: int


@dataclass(frozen=True)
class DiagnosisCount:
    """One diagnosis of an exercise: how many students got it, in how many it is the main one, points lost with it."""

    exercise: str
    name: str
    students: int
    main: int
    points_lost: int


def overview(folder: str | os.PathLike[str]) -> list[Path]:
    """Writes class_by_part.csv, class_by_diagnosis.csv and class_overview.svg; returns their paths.

    Raises ClassroomError where nothing is graded.
    """
    classroom, store = read_class(folder), ResultsStore(folder)
    results = []
    for student in classroom.students:
        for exercise_id in classroom.released:
            record = store.read(student.id, exercise_id)
            if record is not None and record.result is not None and record.status not in ("missing", "empty"):
                results.append(record.result)
    if not results:
        raise ClassroomError(f"nothing is graded in {folder} yet: run `classroom grade` first")
    parts, diagnoses = count_parts(results), count_diagnoses(results)
    paths = [classroom.path / name for name in ("class_by_part.csv", "class_by_diagnosis.csv", "class_overview.svg")]
    write_csv(paths[0], PartCount, parts, classroom.delimiter)
    write_csv(paths[1], DiagnosisCount, diagnoses, classroom.delimiter)
    figure = draw(parts, diagnoses, len(classroom.students))
    with writing(paths[2]):
        figure.savefig(paths[2], metadata={"Date": None})
    return paths


def count_parts(results: Sequence[Result]) -> list[PartCount]:
    """In the order of the results and of their parts. A bonus that was not measured is left out."""
    found: dict[tuple[str, str], list] = {}
    for result in results:
        for part in result.parts:
            if part.status != NOT_MEASURED:
                found.setdefault((result.exercise, part.name), []).append(part)
    counts = []
    for (exercise_id, name), mine in found.items():
        right = sum(part.status == RIGHT for part in mine)
        some = sum(part.status != RIGHT and part.earned > 0 for part in mine)
        earned = sum(part.earned for part in mine)
        none = len(mine) - right - some
        counts.append(PartCount(exercise_id, name, mine[0].title, mine[0].points, len(mine), right, some, none, earned))
    order = {exercise_id: place for place, exercise_id in enumerate(dict.fromkeys(one.exercise for one in results))}
    return sorted(counts, key=lambda count: order[count.exercise])


def count_diagnoses(results: Sequence[Result]) -> list[DiagnosisCount]:
    """By exercise; of these, that of most students first."""
    students: Counter[tuple[str, str]] = Counter()
    main: Counter[tuple[str, str]] = Counter()
    lost: Counter[tuple[str, str]] = Counter()
    for result in results:
        mine = [part for part in result.parts if part.diagnosis is not None and part.status != NOT_MEASURED]
        students.update({(result.exercise, part.diagnosis.name) for part in mine})
        for part in mine:
            lost[result.exercise, part.diagnosis.name] += 0 if part.bonus else part.points - part.earned
        if result.diagnosis is not None:
            main[result.exercise, result.diagnosis.name] += 1
    order = {exercise_id: place for place, exercise_id in enumerate(dict.fromkeys(one.exercise for one in results))}
    places = sorted(students, key=lambda place: (order[place[0]], -students[place], -main[place], place[1]))
    return [DiagnosisCount(*place, students[place], main[place], lost[place]) for place in places]


def draw(parts: Sequence[PartCount], diagnoses: Sequence[DiagnosisCount], students: int) -> Figure:
    """For each exercise the shares of right and wrong, part by part, and below them the diagnoses given most often."""
    exercises = list(dict.fromkeys(part.exercise for part in parts))
    shown = {
        one: ([p for p in parts if p.exercise == one], [d for d in diagnoses if d.exercise == one and d.main])
        for one in exercises
    }
    heights = [len(mine) + min(MOST_SHOWN, len(named)) + 2.2 for mine, named in shown.values()]
    figure = Figure(figsize=(9, 0.27 * sum(heights) + 0.7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(exercises), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, one in zip(axes, exercises, strict=True):
        mine, named = shown[one]
        named = sorted(named, key=lambda diagnosis: -diagnosis.main)[:MOST_SHOWN]
        _bars(axis, mine, named)
        handed_in = max(part.handed_in for part in mine)
        of_all = sum(p.earned for p in mine) / max(1, sum(p.points * p.handed_in for p in mine))
        axis.set_title(f"{one}: {handed_in} of {students} handed in, {of_all:.0%} of their points", fontsize=10)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=8)
    return figure


def _bars(axis: object, parts: Sequence[PartCount], named: Sequence[DiagnosisCount]) -> None:
    labels = [*(_short(part.title) for part in parts), *(_short(diagnosis.name) for diagnosis in named)]
    left = [0.0] * len(parts)
    for field, colour, words in (("right", BLUE, "right"), ("some", SKY, "in part"), ("none", VERMILION, "no points")):
        widths = [100 * getattr(part, field) / part.handed_in for part in parts]
        axis.barh(range(len(parts)), widths, left=left, color=colour, label=words, height=0.75)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    places = range(len(parts), len(labels))
    most = max(part.handed_in for part in parts)
    axis.barh(places, [100 * d.main / most for d in named], color=GREY, label="main diagnosis", height=0.5)
    for at, diagnosis in zip(places, named, strict=True):
        axis.text(100 * diagnosis.main / most + 1, at, str(diagnosis.main), va="center", fontsize=8)
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set_xlim(0, 100)
    axis.set_xticks([0, 25, 50, 75, 100], [f"{share} %" for share in (0, 25, 50, 75, 100)], fontsize=8)
    axis.invert_yaxis()


def _short(text: str) -> str:
    text = text.replace("$", r"\$")
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1].rstrip()}…"
