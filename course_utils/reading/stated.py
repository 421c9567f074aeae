"""The places where the course states reading times, paths and what a section needs: what they say, and what is counted.

`python -m course_utils reading --write` writes the counted figures; tests/reading/test_stated.py checks the pages.
A text says which chapter and sections it means in one of these forms, and the number of minutes is put in:

    **Time** 100 minutes                                       in a chapter: all of it, with its questions
    sections 1 to 6, the heart of it: 45 minutes               in a chapter: these, and what stands above section 1
    01, sections 1 to 5 and 8 (30 min), chapter 01 (115 min)   on a page
    | [01 Attention basics](notebooks/01_attention_basics.ipynb) | 115 min |    in a table of chapters
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat

from course_utils.course import CHAPTERS, PATHS, ReadingPath, chapter, notebooks_of
from course_utils.reading.minutes import STEP, chapter_reading, hours, numbered_reading, path_reading, stated
from course_utils.reading.sections import HEAD, ROOT, chapter_path, chapter_sections, needs

README, TEACHING = "README.md", "docs/teaching.md"
START = "00_start_here"
BRACKETS = (  # a second notebook's first section has another number
    "You may begin with any section: run the cells above section {first} first, and those of the sections in brackets "
    "behind its name."
)
PATHS_HEAD = "| path | read | time |\n|---|---|---|\n"
_NUMBERS = r"\d+(?:(?:, | and | to )\d+)*"
_LIST = rf"sections? (?P<sections>{_NUMBERS})"


@dataclass(frozen=True)
class Time:
    """A reading time in a text. slug: the chapter that it is about; numbers: of its sections, none for all of it;
    minutes: what stands there; counted: unrounded."""

    slug: str
    numbers: tuple[int, ...]
    minutes: int
    counted: float

    @property
    def holds(self) -> bool:
        """Whether it is rounded, and within a step of what is counted: a sentence more is no reason to change it."""
        return self.minutes % STEP == 0 and abs(self.minutes - self.counted) <= STEP


def times(text: str, slug: str = "") -> list[Time]:
    """The reading times that a text states. slug: of the chapter whose notebook it stands in, "" for a page."""
    return [_time(match, slug) for match in _places(text, slug)]


def with_times(text: str, slug: str = "") -> str:
    """The text with each of its reading times as it is counted now."""
    for match in sorted(_places(text, slug), key=lambda one: -one.start("minutes")):
        begin, end = match.span("minutes")
        text = text[:begin] + str(stated(_time(match, slug).counted)) + text[end:]
    return text


def _places(text: str, slug: str) -> Iterator[re.Match[str]]:
    forms = [
        rf"(?:[Cc]hapter )?\b(?P<chapter>\d\d), {_LIST} \((?P<minutes>\d+) min\)",
        r"[Cc]hapter (?P<chapter>\d\d) \((?P<minutes>\d+) min\)",
        r"\]\(notebooks/(?P<slug>\w+)\.ipynb\) \| (?P<minutes>\d+) min \|",
    ]
    if slug:
        forms = [r"\*\*Time\*\* (?P<minutes>\d+) minutes", rf"\b{_LIST}[^.;:()]*: (?P<minutes>\d+) minutes"]
    for form in forms:
        yield from re.finditer(form, text)


def _time(match: re.Match[str], slug: str) -> Time:
    named = match.groupdict()
    numbers = section_numbers(named["sections"]) if named.get("sections") else ()
    if number := named.get("chapter"):
        slug, read = notebooks_of(number)[0].slug, numbered_reading(number, numbers)
    else:
        slug = slug or chapter(named["slug"]).slug
        read = chapter_reading(slug, numbers)
    return Time(slug, numbers, int(match["minutes"]), read.minutes)


def section_numbers(text: str) -> tuple[int, ...]:
    """The sections that "1 to 5, 8 and 10" lists."""
    found: list[int] = []
    for separator, number in re.findall(r"(to )?(\d+)", text):
        found += range(found[-1] + 1, int(number) + 1) if separator else [int(number)]
    return tuple(found)


def listed(numbers: tuple[int, ...]) -> str:
    """Sections as a text lists them: "sections 1 to 5 and 8"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else " and ".join(map(str, run)) for run in runs]
    return f"section{'s' if len(numbers) > 1 else ''} " + " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


# ---- a chapter's first cell, and the paths of chapter 00


def with_needs(text: str, slug: str) -> str:
    """The text of a chapter's first cell, whose contents say in brackets which sections' cells a section needs."""
    head, contents, after = text.partition("**Contents**\n")
    if not contents:
        return text
    links, _, rest = after.partition("\n\n")
    sections = chapter_sections(slug)
    required = needs(sections)
    first = next((section.key for section in sections if section.key.isdecimal() and section.key != HEAD), "1")
    brackets = BRACKETS.format(first=first)
    links = "\n".join(_with_brackets(line, required) for line in links.splitlines())
    rest = rest.removeprefix(brackets).lstrip("\n")
    told = brackets if any(required.values()) else ""
    return head + contents + "\n\n".join(filter(None, [links, told, rest]))


def _with_brackets(line: str, required: dict[str, tuple[str, ...]]) -> str:
    link, key = re.match(r"(\[(\S+)[^\]]*\]\(#[^)\s]*\))", line).groups()
    first = required.get(key, ())
    brackets = f" ({', '.join(first)})" if first else ""
    return f"{link}{brackets}{' ·' if line.endswith('·') else ''}"


def path_words(path: ReadingPath) -> str:
    """For whom a path is and what it reads, as the first two columns of the table of chapter 00."""
    return f"{path.reader} | {'; '.join(_leg(*leg) for leg in path.legs)}"


def table_rows(text: str) -> list[tuple[str, str]]:
    """The rows of the table of paths in a text: (path and what it reads, its time)."""
    _, _, after = text.partition(PATHS_HEAD)
    rows = re.match(r"(?:\|.*\n)*", after)[0].splitlines()
    return [tuple(row.removeprefix("| ").removesuffix(" |").rsplit(" | ", 1)) for row in rows]


def _leg(slug: str, numbers: tuple[int, ...]) -> str:
    if slug == START:
        return f"here {listed(numbers)}" if numbers else "all of this chapter"
    one = chapter(slug)
    link = f"[{one.words}]({slug}.ipynb)"
    return f"{link}, {listed(numbers)}" if numbers else link


def with_paths(text: str) -> str:
    """The text with the table of paths as it is now, if it has one."""
    rows = (f"| {path_words(path)} | {hours(path_reading(path).minutes)} |\n" for path in PATHS)
    table = PATHS_HEAD + "".join(rows)
    return re.sub(re.escape(PATHS_HEAD) + r"(?:\|.*\n)*", lambda _: table, text)


# ---- all of them


def write(root: Path = ROOT) -> list[Path]:
    """Writes the counted figures into all pages and chapters of a checkout; returns the files that changed."""
    changed = [root / page for page in (README, TEACHING) if _rewrite(root / page, with_times)]
    for one in CHAPTERS:
        path = chapter_path(one.slug, root)
        notebook = nbformat.read(path, as_version=4)
        before = [cell.source for cell in notebook.cells]
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = with_paths(with_needs(with_times(cell.source, one.slug), one.slug))
        if before != [cell.source for cell in notebook.cells]:
            nbformat.write(notebook, path)
            changed.append(path)
    return changed


def _rewrite(path: Path, change: Callable[[str], str]) -> bool:
    text = path.read_text(encoding="utf-8")
    changed = change(text)
    if changed != text:
        path.write_text(changed, encoding="utf-8")
    return changed != text
