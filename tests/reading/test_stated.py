"""The reading times that notebooks and pages state are those that are counted from the notebooks as they are now."""

import json
import re
from pathlib import Path

import nbformat
import pytest

from course_utils.commands import reading as command
from course_utils.course import CHAPTERS, PATHS, chapter, notebooks_of
from course_utils.reading import minutes, stated
from course_utils.reading.minutes import Reading
from course_utils.reading.sections import HEAD, Section, chapter_path, chapter_sections, missing, sections
from tests.helpers.notebooks import read_notebook

ROOT = Path(__file__).resolve().parents[2]
WRITE = "run: .venv/bin/python -m course_utils reading --write"
TEACHING = (ROOT / stated.TEACHING).read_text(encoding="utf-8")
# A number of minutes or hours. Those of exercises, of machines and of breaks are no reading times.
A_TIME = re.compile(r"\b(?:\d+|two|three|four|eight) (?:to \d+ )?(?:minutes|hours|min|h)\b", re.IGNORECASE)


def markdown(slug):
    notebook = read_notebook(chapter_path(slug))
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda one: one.slug)
def test_the_times_of_a_chapter_are_those_counted(chapter):
    text = markdown(chapter.slug)
    times = stated.times(text, chapter.slug)
    assert chapter.slug in {one.slug for one in times if not one.numbers}, "the chapter states no time"
    assert [one for one in times if not one.holds] == [], WRITE
    assert len(A_TIME.findall(text.partition("**Contents**")[0])) == len(times), "a time in a form that is not counted"


@pytest.mark.parametrize("page", [stated.README, stated.TEACHING])
def test_the_times_of_a_page_are_those_counted(page):
    times = stated.times((ROOT / page).read_text(encoding="utf-8"))
    assert len(times) >= 7
    assert [one for one in times if not one.holds] == [], WRITE


def test_a_part_that_is_offered_has_every_name_that_its_cells_use():
    pages = [stated.times((ROOT / page).read_text(encoding="utf-8")) for page in (stated.README, stated.TEACHING)]
    parts = [one for page in [*pages, *(stated.times(markdown(c.slug), c.slug) for c in CHAPTERS)] for one in page]
    assert len(parts := [one for one in parts if one.numbers]) >= 8
    for one in parts:
        for notebook in notebooks_of(chapter(one.slug).number):
            lacks = missing(chapter_sections(notebook.slug), {HEAD, *map(str, one.numbers)})
            assert [str(name) for name in lacks] == [], (notebook.slug, one.numbers)


def test_the_readme_states_the_time_of_each_chapter():
    times = stated.times((ROOT / "README.md").read_text(encoding="utf-8"))
    assert [one.slug for one in times] == [one.slug for one in CHAPTERS]


def test_the_paths_of_chapter_00_are_those_of_the_course_with_their_times():
    """Times of paths are sums of counted ones: each may be off by a step for each chapter."""
    text = markdown("00_start_here")
    assert len(rows := stated.table_rows(text)) == len(PATHS)
    for (shown, time), path in zip(rows, PATHS, strict=True):
        assert shown == stated.path_words(path), WRITE
        hours, rest = re.fullmatch(r"(?:(\d+) h)? ?(?:(\d+) min)?", time).groups()
        off = 60 * int(hours or 0) + int(rest or 0) - minutes.path_reading(path).minutes
        assert abs(off) <= minutes.STEP * len(path.legs), WRITE


def test_the_course_is_read_in_less_than_eleven_hours_with_its_questions():
    assert sum(round(minutes.chapter_reading(one.slug).minutes) for one in CHAPTERS) < 11 * 60


def test_the_way_to_the_end_of_chapter_01_is_counted():
    text = (ROOT / "docs" / "first_steps.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\d+) \|.*\| (\d*) ?\|$", text, re.MULTILINE))
    basics = minutes.chapter_reading("01_attention_basics")
    steps = {"4": minutes.numbered_reading("00").text_minutes, "6": basics.text_minutes, "7": basics.question_minutes}
    for step, counted in steps.items():
        assert abs(int(rows[step]) - counted) <= minutes.STEP, (step, counted)
    together = re.search(r"\*\*together\*\* \| \*\*(\d+)\*\* \| \*\*(\d+)\*\*", text)
    assert int(together[2]) == sum(int(cell) for cell in rows.values() if cell)
    assert "plan four hours" in text and 210 <= int(together[1]) + int(together[2]) <= 240
    assert f"{minutes.WORDS_PER_MINUTE} words of text a minute" in text
    assert f"{minutes.SECONDS_PER_LINE} s a line of code" in text
    assert f"{minutes.MINUTES_PER_QUESTION} minutes to work it out" in text
    assert f"{minutes.MINUTES_PER_PUZZLE} minutes a puzzle" in text


def test_a_course_of_two_hours_and_one_of_a_day_fit():
    two, day = (re.search(rf"\*\*{name}.*?(?=\n\n)", TEACHING, re.DOTALL)[0] for name in ("Two hours", "A day"))
    in_class, _ = two.split("Exercise to take home")
    assert sum(map(int, re.findall(r"\((\d+) min\)", in_class))) <= 120
    spare = int(re.search(r"leaves (\d+) minutes", day)[1])
    assert sum(map(int, re.findall(r"\((\d+) min\)", day))) + spare == 8 * 60 and spare >= 30


@pytest.mark.parametrize(("name", "time"), sorted(set(re.findall(r"`(\w+)` \((\d+) min\)", TEACHING))))
def test_the_times_of_exercises_are_those_that_they_state(name, time):
    (path,) = (ROOT / "solutions").glob(f"*/{name}.ipynb")
    first = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    assert f"**Time** {time} minutes" in first


# ---- counting


def test_a_reading_is_words_lines_and_questions_at_the_stated_rates():
    read = Reading(words=360, lines=20) + Reading(questions=2, question_words=180)
    assert (read.text_minutes, read.question_minutes, read.minutes) == (2 + 2, 1 + 3, 8)


def test_words_lines_and_shown_kernels_are_counted():
    chapter = sections(
        nbformat.v4.new_notebook(
            cells=[
                nbformat.v4.new_markdown_cell("# A title\n\n**Five** [words](https://a.b/c) <br> more."),
                nbformat.v4.new_markdown_cell("## 1 Three words\n\n| a | b |\n|---|---|"),
                nbformat.v4.new_code_cell('show.source("00_start_here/vector_add.cu", first=2, last=4)\n\nx = 1'),
            ]
        )
    )
    head, one = minutes.section_readings(chapter).values()
    assert (head.words, head.lines) == (5, 0)
    assert (one.words, one.lines) == (5, 2 + minutes.LINES_SHOWN)


@pytest.mark.parametrize("text, numbers", [("1 to 4, 8 and 10", (1, 2, 3, 4, 8, 10)), ("1 and 2", (1, 2)), ("7", (7,))])
def test_sections_are_read_as_they_are_listed(text, numbers):
    assert stated.section_numbers(text) == numbers
    assert stated.listed(numbers) == f"section{'s' * (len(numbers) > 1)} {text}"


def test_the_notebooks_of_a_path_take_whole_minutes_that_add_up_to_its_own():
    for path in PATHS:
        legs = minutes.path_legs(path).values()
        assert all(isinstance(leg, int) for leg in legs)
        assert abs(sum(legs) - minutes.path_reading(path).minutes) <= 0.5 * len(legs)


def test_hours_are_rounded_to_five_minutes():
    assert [minutes.hours(one) for one in (50, 57.6, 62, 323)] == ["50 min", "1 h", "1 h", "5 h 25 min"]


def test_a_wrong_time_is_found_and_put_right():
    text = "**Time** 45 minutes; sections 1 to 6, the heart of it: 90 minutes. Then it takes 7 minutes."
    slug = "02_flash_attention_minimal"
    assert [one.holds for one in stated.times(text, slug)] == [False, False]
    mended = stated.with_times(text, slug)
    assert all(one.holds for one in stated.times(mended, slug)) and mended.endswith("it takes 7 minutes.")
    page = "chapter 01, sections 1 and 2 (500 min), chapter 05 (1 min), `mini_flash` (90 min)"
    assert [one.holds for one in stated.times(page)] == [False, False]
    assert all(one.holds for one in stated.times(stated.with_times(page)))


def test_a_section_that_is_not_there_is_named():
    with pytest.raises(LookupError, match="section 99"):
        stated.times("chapter 01, sections 1 and 99 (5 min)")


def test_the_command_prints_chapters_paths_and_rates(capsys):
    assert command.run(_options(write=False)) == 0
    printed = capsys.readouterr().out
    assert all(one.slug in printed for one in CHAPTERS) and all(one.reader in printed for one in PATHS)
    assert "180 words a minute" in printed


def _options(**given):
    return type("Options", (), given)()


def test_what_is_folded_is_not_counted_but_an_answer_is():
    folded = "one two <details><summary>three four</summary>\n\nfive six\n</details> seven"
    answer = folded.replace("three four", "Answer")
    counted = [minutes.section_readings([Section("1", "", (text,), ())])["1"].words for text in (folded, answer)]
    assert counted == [5, 6]
