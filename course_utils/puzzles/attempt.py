"""Grades a learner's text for a puzzle, and makes the page with the result."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from urllib.parse import quote

from course_utils.course import CHAPTERS, ROOT
from course_utils.grading.grader import default_device, grade_submission
from course_utils.grading.replay import Replay, replay
from course_utils.grading.result import UNWRITTEN, PartResult, Result
from course_utils.grading.submission import Submission
from course_utils.puzzles.puzzle import Puzzle
from course_utils.puzzles.wrong_lines import known_mistakes
from course_utils.show import FRAME, highlighted

# Colours that can be told apart on a light and on a dark page; the words say the same.
RIGHT, NOT_YET = "#1f9d57", "#d1543f"
BORDER = "border-left: 4px solid; padding: 2px 0 2px 12px; margin: 4px 0; max-width: 60em"
EVIDENCE = "white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere; font-size: 0.9em; margin: 4px 0"
NOTEBOOKS = ROOT / "notebooks"
_PLACE = re.compile(r"(\d\d .+?), (?:section (\d+), )?'(.+)'")
FIRST_LINE = "// below: %%puzzle"  # stands for the cell's first line, so that a message's lines are the cell's


def attempt(puzzle: Puzzle, kernel: str, *, seed: int | None = None, device: str | None = None) -> Result:
    """The grade of a kernel's text, like an exercise's file. seed, device: as for `grade_submission`; by default the
    GPU if there is one."""
    task = replace(puzzle.task, place="this cell", mistakes=known_mistakes(puzzle))
    return grade_submission(_submission(puzzle, kernel), task=task, seed=seed, device=device or default_device())


def run_of(puzzle: Puzzle, kernel: str, result: Result) -> Replay | None:
    """The run of a kernel's text that its grade is about, recorded on the emulator; as `replay`."""
    return replay(_submission(puzzle, kernel), result, puzzle.task)


def _submission(puzzle: Puzzle, kernel: str) -> Submission:
    return Submission(puzzle.task.id, f"{FIRST_LINE}\n{kernel}", statuses={f"{puzzle.task.name}.cu": "ok"})


def page(puzzle: Puzzle, result: Result) -> str:
    """HTML with its styles: what is right or wrong, then a hint and the solution, both folded."""
    is_right = result.full and not result.unset
    if is_right:
        said = f"<p><strong>Right.</strong> {html.escape(puzzle.lesson)}</p>"
    elif result.full:
        said = f"<p><strong>Right here, by luck: {html.escape(result.unset)}.</strong></p>"
        said += "<p>Until then it holds what happens to lie there. Give it a value where it is declared.</p>"
    else:
        diagnosis = result.diagnosis
        assert diagnosis is not None, "a part that is not right says why"
        said = f"<p><strong>Not yet: {html.escape(diagnosis.name)}.</strong></p>"
        said += f'<pre style="{EVIDENCE}">{html.escape(diagnosis.detail)}</pre>' if diagnosis.detail else ""
        if diagnosis.kind == UNWRITTEN:
            said += "<p>Or it is only added to: it holds NaN at first, so that nothing forgotten passes.</p>"
        said += f"<p>Read again: {linked(diagnosis.read_again)}</p>" if diagnosis.read_again else ""
    parts = "".join(f"<li>{_marked(part)}</li>" for part in result.parts)
    return (
        f'<div class="ak-puzzle" style="{BORDER}; border-left-color: {RIGHT if is_right else NOT_YET}">{said}'
        f'<ul style="list-style: none; margin: 0; padding: 0">{parts}</ul>{result.printed_html()}'
        f"<details><summary>Hint</summary><p>{html.escape(puzzle.hint)}</p></details>"
        f'<details><summary>Solution</summary><div style="{FRAME}">{highlighted(puzzle.lines)}</div></details></div>'
    )


def linked(place: str) -> str:
    """A place to read again, such as "03 FlashAttention-2, section 3, 'Step 3: swizzle'", with a link to it, which
    JupyterLab opens beside the chapter."""
    notebook, section, heading = _PLACE.fullmatch(place).groups()
    slug = next(one.slug for one in CHAPTERS if f"{one.number} {one.title}" == notebook)
    text = (NOTEBOOKS / f"{slug}.ipynb").read_text(encoding="utf-8")
    is_numbered = f"## {section} {heading}" in text  # the other headings within a section have no number
    anchor = f"{section} {heading}" if is_numbered else heading
    return f'<a href="{slug}.ipynb#{quote(anchor.replace(" ", "-"))}">{html.escape(place)}</a>'


def _marked(part: PartResult) -> str:
    if not part.ran:
        return f"– {html.escape(part.title)}: not run"
    return f"{'✓' if part.earned == part.points else '✗'} {html.escape(part.title)}"
