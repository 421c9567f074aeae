"""Grades what a learner wrote for a puzzle, and says how it went."""

from __future__ import annotations

import html

from course_utils.grading.grader import default_device, grade_submission
from course_utils.grading.result import Result
from course_utils.grading.submission import Submission
from course_utils.puzzles.puzzle import Puzzle
from course_utils.show import highlighted

FIRST_LINE = "// below: %%puzzle"  # stands for the cell's first line, so that a message's lines are the cell's


def attempt(puzzle: Puzzle, kernel: str, *, seed: int | None = None, device: str | None = None) -> Result:
    """The grade of a kernel's text, as of an exercise's file. seed, device: as for `grade_submission`; by default the
    GPU where there is one.
    """
    name = f"{puzzle.task.name}.cu"
    submission = Submission(puzzle.task.id, f"{FIRST_LINE}\n{kernel}", statuses={name: "ok"})
    return grade_submission(submission, task=puzzle.task, seed=seed, device=device or default_device())


def page(puzzle: Puzzle, result: Result) -> str:
    """HTML: what is right or wrong, then a hint and the solution to open."""
    said = "<p><strong>Right.</strong> The emulator found nothing to say against it, either.</p>"
    if not result.full:
        diagnosis = result.diagnosis
        assert diagnosis is not None, "a part that is not right says why"
        name = html.escape(diagnosis.name)
        said = f"<p><strong>Not yet: {name[:1]}{name[1:]}.</strong></p>"
        said += f"<pre>{html.escape(diagnosis.detail)}</pre>" if diagnosis.detail else ""
        said += f"<p>Read again: {html.escape(diagnosis.read_again)}</p>" if diagnosis.read_again else ""
    right = sum(part.earned == part.points for part in result.parts)
    parts = "".join(f"<li>{'✓' if p.earned == p.points else '·'} {html.escape(p.title)}</li>" for p in result.parts)
    count = f"{right} of {len(result.parts)}"
    return (
        f'<div class="ak-puzzle {"ak-right" if result.full else "ak-not-yet"}">{said}'
        f'<ul aria-label="{count} right">{parts}</ul>'
        f"<details><summary>Hint</summary><p>{html.escape(puzzle.hint)}</p></details>"
        f"<details><summary>Solution</summary>{highlighted(puzzle.lines)}</details></div>"
    )
