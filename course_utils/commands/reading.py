"""`python -m course_utils reading`: how long chapters and paths take to read, and what a section needs first."""

from __future__ import annotations

import argparse

from course_utils.course import CHAPTERS, PATHS
from course_utils.reading import minutes, stated
from course_utils.tables import aligned


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--write", action="store_true", help="put them into notebooks and pages, for authors")


def run(options: argparse.Namespace) -> int:
    """Carry out `reading`. Returns 0."""
    if options.write:
        for path in stated.write():
            print(f"written: {path}")
        return 0
    table = [("chapter", "words", "lines of code", "puzzles", "questions", "minutes", "with questions")]
    for one in CHAPTERS:
        read = minutes.chapter_reading(one.slug)
        table.append(
            (one.slug, f"{read.words:,}", str(read.lines), str(read.puzzles), str(read.questions))
            + (f"{read.text_minutes:.0f}", f"{read.minutes:.0f}")
        )
    paths = [("path", "time"), *((one.reader, minutes.hours(minutes.path_reading(one).minutes)) for one in PATHS)]
    rates = (
        f"{minutes.WORDS_PER_MINUTE} words a minute, {minutes.SECONDS_PER_LINE} s a line of code, "
        f"{minutes.MINUTES_PER_PUZZLE} minutes a puzzle, {minutes.MINUTES_PER_QUESTION} a question besides its words; "
        "cells that run come on top."
    )
    print("\n".join([aligned(table), "", aligned(paths), "", rates]))
    return 0
