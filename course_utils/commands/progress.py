"""`python -m course_utils progress`: what the learner has done, what comes next, and the store as JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from course_utils import course
from course_utils.grading.result import WRONG
from course_utils.progress import pages, store
from course_utils.progress.achievements import achievements
from course_utils.progress.state import ChapterState, chapter_state, chapter_states, counted, next_steps
from course_utils.progress.store import ProgressError, Standing
from course_utils.tables import aligned


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--chapter", metavar="SLUG", help="only this chapter, such as 02_flash_attention_minimal or 02")
    parser.add_argument("--json", metavar="FILE", help="write everything that is kept as JSON; - for the screen")
    parser.add_argument("--reset", action="store_true", help="forget everything (after --json, if both are given)")


def run(options: argparse.Namespace) -> int:
    """Carry out `progress`. Returns 0, 1 if the store cannot be read or written, 2 for an unknown chapter."""
    slug = _slug(options.chapter) if options.chapter else ""
    if slug is None:
        known = ", ".join(one.slug for one in course.CHAPTERS)
        print(f"progress: --chapter: got {options.chapter!r}, takes one of {known}", file=sys.stderr)
        return 2
    try:
        if options.json == "-":
            print(store.export(), end="")
        elif options.json:
            _write(Path(options.json), store.export())
        if options.reset:
            forgotten = store.reset()
            print(f"{_forgotten_in_words(forgotten)} forgotten", file=sys.stderr)
        elif not options.json:
            print(_report(slug))
    except (ProgressError, OSError) as error:
        print(f"progress: {error}", file=sys.stderr)
        return 1
    return 0


def _write(path: Path, text: str) -> None:
    """Writes the whole file or nothing, and never over the store itself."""
    if path.exists() and path.samefile(store.progress_file()):
        raise ProgressError(f"--json: got {path}, where your progress itself is kept; takes another file")
    if path.exists() and not path.is_file():  # a pipe or /dev/stdout
        path.write_text(text, encoding="utf-8")
        return
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _slug(given: str) -> str | None:
    return next((one.slug for one in course.CHAPTERS if given.zfill(2) in (one.slug, one.number)), None)


def _forgotten_in_words(forgotten: store.Forgotten) -> str:
    return (
        f"{counted(forgotten.exercises, 'exercise')}, {counted(forgotten.questions, 'question')}, "
        f"{counted(forgotten.chapters, 'chapter')} and {forgotten.guesses} guess{'es' * (forgotten.guesses != 1)}"
    )


def _report(slug: str) -> str:
    """The whole course, or one chapter."""
    overview = store.overview()
    states = chapter_states(overview)
    steps, guesses = next_steps(states, slug), pages.guesses_in_words(overview)
    if slug:
        state = chapter_state(slug, overview)
        return pages.chapter_text(state, (), steps, [guesses, *_lost([state])])
    return pages.course_text(states, achievements(overview), steps, [guesses, *_exercises(states), *_lost(states)])


def _exercises(states: Sequence[ChapterState]) -> list[str]:
    """The exercises with what was reached."""
    table = [("exercise", "best", "attempts", "last", "next")]
    for exercise_id, standing in _by_id(states).items():
        if standing is None:
            table.append((exercise_id, "", "0", "", "open it"))
            continue
        best = f"{standing.best.earned} of {standing.best.points}"
        table.append((exercise_id, best, str(standing.attempts), pages.day(standing.last_at), _next(standing)))
    return ["", aligned(table)]


def _next(standing: Standing) -> str:
    if standing.best.full:
        return "done"
    diagnosis = standing.last.diagnosis
    return f"read again: {diagnosis.read_again}" if diagnosis and diagnosis.read_again else "mend it and grade again"


def _lost(states: Sequence[ChapterState]) -> list[str]:
    """What the last attempts at unfinished exercises lost points for."""
    lines = []
    for exercise_id, standing in _by_id(states).items():
        if standing is None or standing.best.full:
            continue
        wrong = (part.diagnosis.name for part in standing.last.parts if part.status == WRONG and part.diagnosis)
        lines += [f"  {exercise_id}: {name}" for name in dict.fromkeys(wrong)]
    return ["", "What the last attempts lost points for:", *lines] if lines else []


def _by_id(states: Sequence[ChapterState]) -> dict[str, Standing | None]:
    return {one: standing for state in states for one, standing in state.exercises.items()}
