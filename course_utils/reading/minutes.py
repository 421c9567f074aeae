"""How long it takes to read a chapter, a part of it or a path: counted from what stands in the notebooks.

Reading is words of text, lines of code and questions, at the rates below. What a machine needs for the cells comes on
top, and so do outputs that are looked at and predictions that are thought about.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from course_utils.course import ReadingPath, chapter, notebooks_of
from course_utils.questions import catalog
from course_utils.reading.folded import is_folded
from course_utils.reading.sections import HEAD, Section, chapter_sections

# Most adults read English non-fiction silently at 175 to 300 words a minute (M. Brysbaert, "How many words do we read
# per minute?", Journal of Memory and Language 109, 2019, doi 10.1016/j.jml.2019.104047); this text is slow reading.
WORDS_PER_MINUTE = 180
SECONDS_PER_LINE = 6  # our assumption: a line of code is read, not skimmed
LINES_SHOWN = 15  # of a kernel, by one call of `show`: the mean of the chapters
MINUTES_PER_QUESTION = 1.5  # our assumption: to work a figure out; the words of question and explanations come on top
MINUTES_PER_PUZZLE = 5  # our assumption: to write two to five lines of a kernel, run them, and mend them once
STEP = 5  # minutes: what is stated is rounded to a multiple of this
SEED = 0  # of the questions whose words are counted


@dataclass(frozen=True)
class Reading:
    """What there is to read. lines: of code, in cells that are not folded and shown from kernels, without
    empty ones. puzzles: to solve."""

    words: int = 0
    lines: int = 0
    puzzles: int = 0
    questions: int = 0
    question_words: int = 0

    def __add__(self, other: Reading) -> Reading:
        return Reading(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))

    @property
    def text_minutes(self) -> float:
        """Minutes for text, code and puzzles."""
        reading = self.words / WORDS_PER_MINUTE + self.lines * SECONDS_PER_LINE / 60
        return reading + self.puzzles * MINUTES_PER_PUZZLE

    @property
    def question_minutes(self) -> float:
        """Minutes for the questions that are judged, with their explanations."""
        return self.question_words / WORDS_PER_MINUTE + self.questions * MINUTES_PER_QUESTION

    @property
    def minutes(self) -> float:
        """Minutes for everything."""
        return self.text_minutes + self.question_minutes


def stated(minutes: float) -> int:
    """Minutes as a page states them: rounded to a multiple of `STEP`."""
    return STEP * round(minutes / STEP)


def hours(minutes: float) -> str:
    """Minutes of a path as a page states them: "3 h 25 min"."""
    whole, rest = divmod(stated(minutes), 60)
    return " ".join([f"{whole} h"] * bool(whole) + [f"{rest} min"] * bool(rest))


def path_reading(path: ReadingPath) -> Reading:
    """All that a path asks to read."""
    return sum((chapter_reading(slug, numbers) for slug, numbers in path.legs), Reading())


def path_legs(path: ReadingPath) -> dict[str, int]:
    """The whole minutes of a path in each of its notebooks, by number and title."""
    titles = {slug: f"{chapter(slug).number} {chapter(slug).title}" for slug, _ in path.legs}
    return {titles[slug]: round(chapter_reading(slug, numbers).minutes) for slug, numbers in path.legs}


def chapter_reading(slug: str, numbers: Collection[int] = ()) -> Reading:
    """What there is to read in a chapter, or in its head and the sections with these numbers.

    Raises LookupError for a section that the chapter does not have.
    """
    read = _by_section(slug)
    if not numbers:
        return sum(read.values(), Reading())
    if unknown := [number for number in numbers if str(number) not in read]:
        raise LookupError(f"numbers: got section {unknown[0]}, takes sections of {slug}: {', '.join(read)}")
    return sum((read[str(number)] for number in (HEAD, *numbers)), Reading())


def numbered_reading(number: str, numbers: Collection[int] = ()) -> Reading:
    """The same for the chapter of a number ("02"), whose sections may lie in two notebooks.

    Raises LookupError for a section that none of them has.
    """
    read = Reading()
    left = list(numbers)
    for one in notebooks_of(number):
        here = [section for section in left if str(section) in _by_section(one.slug)]
        left = [section for section in left if section not in here]
        if here or not numbers:
            read += chapter_reading(one.slug, here)
    if left:
        raise LookupError(f"numbers: got section {left[0]}, which chapter {number} does not have")
    return read


@functools.cache
def _by_section(slug: str) -> dict[str, Reading]:
    return section_readings(chapter_sections(slug))


def section_readings(sections: Collection[Section]) -> dict[str, Reading]:
    """What there is to read in each of these sections, by key."""
    return {section.key: _read(section) for section in sections}


def _read(section: Section) -> Reading:
    words = sum(len(_words(text)) for text in section.texts)
    lines = sum(_lines(source) for _, source in section.codes if not is_folded(source))
    lines += LINES_SHOWN * sum(len(_SHOWS.findall(source)) for _, source in section.codes)
    puzzles = sum(source.startswith("%%puzzle ") for _, source in section.codes)
    asked = [slug for _, source in section.codes for slug in re.findall(r'widgets\.ask\("(\w+)"\)', source)]
    ids = [one for slug in asked for one in catalog.question_ids(slug)]
    question_words = sum(len(_texts(catalog.question(one, SEED))) for one in ids)
    return Reading(words, lines, puzzles, len(ids), question_words)


_SHOWS = re.compile(r"\bshow\.(?:source|passage|difference|mistake)\(")
# Folded text is not read, nor is folded code; but a reader who has thought about a question opens its answer.
_FOLDED = re.compile(r"(?s)<details><summary>(?!Answer)(.*?)</summary>.*?</details>")


def _words(markdown: str) -> list[str]:
    """The words of a text as they are seen: without what is folded, addresses, HTML tags and the marks of lists and
    tables."""
    seen = re.sub(r"\]\([^)]*\)|<[^>]+>", " ", _FOLDED.sub(r"\1", markdown))
    return [word for word in seen.split() if re.search(r"\w", word)]


def _lines(source: str) -> int:
    return sum(1 for line in source.splitlines() if line.strip())


def _texts(part: Any) -> list[str]:
    """The words of all texts of a question, but for what names its kind and its section."""
    if isinstance(part, str):
        return part.split()
    if isinstance(part, tuple):
        return [word for one in part for word in _texts(one)]
    if not dataclasses.is_dataclass(part):
        return []
    fields = (field.name for field in dataclasses.fields(part) if field.name not in ("kind", "read_again"))
    return [word for name in fields for word in _texts(getattr(part, name))]
