"""The self-check at the end of an exercise's notebook: runs the grader on the saved files and shows its result.

In Jupyter it is a widget with a button that checks again. Outside Jupyter the grade is printed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import traitlets
from IPython import get_ipython
from IPython.display import display

from course_utils import progress
from course_utils.grading.catalog import exercise
from course_utils.grading.comparison import Comparison, compare_with_solution
from course_utils.grading.grader import default_device, grade_submission
from course_utils.grading.replay import replay
from course_utils.grading.result import RIGHT, UNANSWERED, Result
from course_utils.grading.submission import Submission, read_submission
from course_utils.widgets.frame import HERE, esm
from course_utils.widgets.own_run import WatchesRun


class Check:
    """One exercise in one folder. After `run`, `result` holds the grade, `notes` what else there is to say, and
    `comparison`, once everything is right, the kernel beside the course's."""

    def __init__(self, exercise_id: str, folder: str | os.PathLike[str], device: str) -> None:
        self.exercise, self.folder, self.device = exercise(exercise_id), Path(folder), device
        self.submission: Submission | None = None
        self.result: Result | None = None
        self.comparison: Comparison | None = None
        self.notes: list[str] = []

    @property
    def waiting(self) -> str:
        """What to say while a check runs."""
        return f"Checking {self._files()}: this takes a few seconds."

    def run(self) -> None:
        """Grades the saved files, and keeps the result."""
        self.submission = submission = read_submission(self.folder, self.exercise.id)
        self.result = grade_submission(submission, device=self.device)
        self.comparison = compare_with_solution(submission) if self.result.full else None
        those = "them" if self.exercise.kernels and self.exercise.cells else "it"
        again = "" if self.result.full else f" Change {those}, save, and check again."
        self.notes = [f"Checked {self._files()}.{again}"]
        self.notes += [_unsaved(cell) for cell in _stale_cells(submission)]
        try:
            progress.record_exercise(self.result)
        except progress.ProgressError as error:
            self.notes.append(f"Not kept: {error}")

    @property
    def can_be_played(self) -> bool:
        """Whether the kernel can be launched again."""
        ran = any(part.ran and not part.bonus for part in self.result.parts)
        return ran and bool(self.exercise.kernels) and self.exercise.collect is None

    @property
    def summary(self) -> str:
        """The result in a sentence, which a screen reader reads aloud, and the notes."""
        assert self.result is not None
        words = f"{self.result.earned} of {self.result.points} points."
        lost = [part for part in self.result.parts if part.status != RIGHT and not part.bonus]
        if not lost:
            words += " Everything is right."
        elif all(part.status == UNANSWERED for part in lost):
            words += f" Nothing is wrong. Not answered yet: {', '.join(part.title for part in lost)}."
        else:
            wrong = tuple(part for part in lost if part.status != UNANSWERED)  # says nothing of the kernel
            first = replace(self.result, parts=wrong).diagnosis or self.result.diagnosis
            words += f" To begin with: {first.name}." if first else ""
        return "\n".join([words, *self.notes])

    @property
    def page(self) -> str:
        """The grade as HTML and, once everything is right, the section below it."""
        assert self.result is not None
        return self.result.to_html() + (self.comparison.to_html() if self.comparison else "")

    def __str__(self) -> str:
        return "\n".join([str(self.result), *([str(self.comparison)] if self.comparison else []), *self.notes])

    def _files(self) -> str:
        """The files that are read, with the time when they were saved."""
        suffixes = [".cu"] * bool(self.exercise.kernels) + [".ipynb"] * bool(self.exercise.cells)
        paths = [self.folder / f"{self.exercise.name}{suffix}" for suffix in suffixes]
        saved = [f"{path.name} ({_saved(path)})" for path in paths]
        return " and ".join(saved)


def _saved(path: Path) -> str:
    try:
        return f"saved at {datetime.fromtimestamp(path.stat().st_mtime):%H:%M:%S}"
    except OSError:
        return "missing"


def _stale_cells(submission: Submission) -> list[str]:
    """The cells whose last run here differs from the saved text; a cell is named by its first line."""
    shell = get_ipython()
    ran = {source.strip().split("\n")[0]: source.strip() for source in (shell.user_ns.get("In", ()) if shell else ())}
    saved = {name: source.strip() for name, source in submission.cells.items()}
    return [name for name, source in saved.items() if ran.get(source.split("\n")[0], source) != source]


def _unsaved(cell: str) -> str:
    return f"The cell {cell!r} was run with other text than is saved: save the notebook (Ctrl+S) and check again."


class Panel(WatchesRun):
    """The widget: a button, the state of the check in words, and the grade as HTML."""

    _esm = esm("grade_panel.js")
    _css = (HERE / "widgets.css").read_text(encoding="utf-8")
    title = traitlets.Unicode().tag(sync=True)
    subject = traitlets.Unicode().tag(sync=True)
    page = traitlets.Unicode().tag(sync=True)
    asked = traitlets.Int(0).tag(sync=True)
    can_play = traitlets.Bool(False).tag(sync=True)

    def __init__(self, checked: Check) -> None:
        subject = "my kernel" if checked.exercise.kernels else "my answers"
        super().__init__(
            lambda: replay(checked.submission, checked.result), title=checked.exercise.title, subject=subject
        )
        self._check = checked
        self._show()
        self.observe(self._again, "asked")

    def _show(self) -> None:
        self.status, self.page = self._check.summary, self._check.page
        self.can_play = self._check.can_be_played

    def _again(self, _: object) -> None:
        with self.at_work(self._check.waiting, "The check did not run"):
            self.play_below(None)
            self._check.run()
            self._show()

    def _repr_mimebundle_(self, **_: object) -> tuple[dict, dict]:
        live, metadata = super()._repr_mimebundle_()
        return {**live, "text/html": self.page, "text/plain": f"{self._check}\n{self.status}"}, metadata


def check(exercise_id: str, folder: str | os.PathLike[str] = ".", *, device: str | None = None) -> None:
    """Grade the exercise whose files lie in `folder`, show the grade, and keep it (`python -m course_utils progress`).

    device: "cpu" (the emulator) or "cuda"; None takes the GPU if there is one. Reads what is saved, not what an editor
    shows. Whatever is wrong with the files is part of the grade. Raises LookupError for an unknown exercise.
    """
    checked = Check(exercise_id, folder, device or default_device())
    if get_ipython() is None:
        checked.run()
        print(checked)
        return
    # Words first, since a check takes seconds; then the panel in their place.
    handle = display({"text/plain": checked.waiting}, raw=True, display_id=True)
    checked.run()
    panel = Panel(checked)
    handle.update(panel)
    display(panel.below)
