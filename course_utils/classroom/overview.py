"""A picture of where a class stands: how many have each part right, and which diagnoses were given most often.

It counts the students who handed in, and names none, so that it can be shown in class.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from course_utils.classroom.class_folder import ClassroomError, read_class, writing
from course_utils.classroom.results_store import ResultsStore
from course_utils.grading.result import NOT_MEASURED, RIGHT, PartResult, Result
from course_utils.plots.look import BLUE, GREY, SKY, VERMILION

MOST_SHOWN = 3  # diagnoses in the picture, for each exercise
WIDTH = 44  # letters of a label


def overview(folder: str | os.PathLike[str]) -> Path:
    """Writes class_overview.svg; returns its path. Raises ClassroomError where nothing is graded."""
    classroom, store = read_class(folder), ResultsStore(folder)
    results: dict[str, list[Result]] = {}
    for exercise_id in classroom.released:
        for student in classroom.students:
            record = store.read(student.id, exercise_id)
            if record is not None and record.result is not None and record.status not in ("missing", "empty"):
                results.setdefault(exercise_id, []).append(record.result)
    if not results:
        raise ClassroomError(f"nothing is graded in {folder} yet: run `classroom grade` first")
    path = classroom.path / "class_overview.svg"
    with writing(path):
        draw(results, len(classroom.students)).savefig(path, metadata={"Date": None})
    return path


def part_results(results: Sequence[Result]) -> dict[str, list[PartResult]]:
    """By the title of a part of one exercise, what each student got; a bonus that was not measured is left out."""
    found: dict[str, list[PartResult]] = {}
    for part in (part for result in results for part in result.parts if part.status != NOT_MEASURED):
        found.setdefault(part.title, []).append(part)
    return found


def draw(results: Mapping[str, Sequence[Result]], students: int) -> Figure:
    """For each exercise the shares of right and wrong, part by part, and below them the diagnoses given most often."""
    shown = {}
    for exercise_id, mine in results.items():
        named = Counter(result.diagnosis.name for result in mine if result.diagnosis is not None)
        shown[exercise_id] = part_results(mine), named.most_common(MOST_SHOWN)
    heights = [len(parts) + len(named) + 2.2 for parts, named in shown.values()]
    figure = Figure(figsize=(9, 0.27 * sum(heights) + 0.7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (exercise_id, (parts, named)) in zip(axes, shown.items(), strict=True):
        handed_in = len(results[exercise_id])
        _bars(axis, parts, named, handed_in)
        every = [part for mine in parts.values() for part in mine]
        of_all = sum(part.earned for part in every) / max(1, sum(part.points for part in every))
        axis.set_title(f"{exercise_id}: {handed_in} of {students} handed in, {of_all:.0%} of their points", fontsize=10)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=8)
    return figure


def _bars(
    axis: Axes, parts: Mapping[str, Sequence[PartResult]], named: Sequence[tuple[str, int]], handed_in: int
) -> None:
    labels = [_short(label) for label in (*parts, *(name for name, _ in named))]
    left = [0.0] * len(parts)
    for colour, words, belongs in (
        (BLUE, "right", lambda part: part.status == RIGHT),
        (SKY, "in part", lambda part: part.status != RIGHT and part.earned > 0),
        (VERMILION, "no points", lambda part: part.status != RIGHT and part.earned == 0),
    ):
        widths = [100 * sum(map(belongs, mine)) / len(mine) for mine in parts.values()]
        axis.barh(range(len(parts)), widths, left=left, color=colour, label=words, height=0.75)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    places = range(len(parts), len(labels))
    axis.barh(places, [100 * count / handed_in for _, count in named], color=GREY, label="main diagnosis", height=0.5)
    for at, (_, count) in zip(places, named, strict=True):
        axis.text(100 * count / handed_in + 1, at, str(count), va="center", fontsize=8)
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set_xlim(0, 100)
    axis.set_xticks([0, 25, 50, 75, 100], [f"{share} %" for share in (0, 25, 50, 75, 100)], fontsize=8)
    axis.invert_yaxis()


def _short(text: str) -> str:
    text = text.replace("$", r"\$")
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1].rstrip()}…"
