"""Every question of every chapter, for several seeds: one answer is right, and each wrong one is explained."""

import ast
import functools
import inspect
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from course_utils import course
from course_utils.questions.catalog import question, question_ids, source, title
from course_utils.questions.judging import explained, figures, judge, right_answer
from course_utils.questions.numbers import agrees
from course_utils.questions.question import (
    RIGHT,
    WRONG,
    Aggregate,
    Choice,
    Grid,
    Number,
    TradeOff,
    TrueFalse,
    Votes,
)
from course_utils.questions.sheet import KIND_IN_WORDS, labels, prompt
from tests.helpers.all_of import all_of
from tests.helpers.notebooks import read_notebook

ROOT = Path(__file__).resolve().parents[2]
LEAST_WHY = 20  # characters
CHAPTERS = [chapter.slug for chapter in course.CHAPTERS if not chapter.of]
NOTEBOOK_OF = {one: chapter.slug for chapter in course.CHAPTERS for one in question_ids(chapter.slug)}
IDS = list(NOTEBOOK_OF)
FIGURE_KINDS = (Number, Aggregate, Grid)
DRAW = """import sys
from course_utils.questions.catalog import question
for one in sys.argv[1:]:
    print(repr(question(one, 7)))"""


@pytest.fixture(scope="module")
def drawn(seeds):
    """drawn(id) -> the question for each seed."""
    kept = {}

    def draw(question_id):
        if question_id not in kept:
            kept[question_id] = [question(question_id, seed) for seed in seeds(10, 50)]
        return kept[question_id]

    return draw


def of_chapter(slug):
    """The ids of the questions in all notebooks of a chapter."""
    return [one for one in IDS if one.startswith(f"{slug}/")]


@functools.cache
def headings(slug):
    """The headings of a notebook."""
    notebook = read_notebook(ROOT / "notebooks" / f"{slug}.ipynb")
    found = set()
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            text = re.sub(r"^```.*?^```", "", cell.source, flags=re.DOTALL | re.MULTILINE)
            found |= {heading.strip() for heading in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)}
    return found


def is_distinct(texts):
    return len(set(texts)) == len(texts)


@pytest.mark.parametrize("slug", CHAPTERS)
def test_a_chapter_asks_every_kind_of_question(slug):
    kinds = {question(one, 0).kind for one in of_chapter(slug)}
    assert kinds == set(KIND_IN_WORDS)


@pytest.mark.parametrize("slug", CHAPTERS)
def test_names_and_titles_are_distinct(slug):
    assert is_distinct(of_chapter(slug)) and is_distinct([title(one) for one in of_chapter(slug)])


@all_of("question_id", IDS)
def test_the_title_is_a_few_words(question_id):
    assert 3 <= len(title(question_id)) <= 60


@all_of("question_id", IDS)
def test_what_is_to_be_read_again_is_a_heading_of_the_notebook_that_asks(question_id, drawn):
    assert {one.read_again for one in drawn(question_id)} <= headings(NOTEBOOK_OF[question_id])


@all_of("question_id", IDS)
def test_texts_are_there_distinct_and_well_marked(question_id, drawn):
    for one in drawn(question_id):
        assert len(prompt(one)) >= LEAST_WHY and one.kind in KIND_IN_WORDS
        assert all(label.strip() for label in labels(one)) and is_distinct(labels(one))
        shown = [prompt(one), title(question_id), *labels(one), *(item.said for item in explained(one))]
        for text in shown:
            assert text.count("`") % 2 == 0, text
            assert not re.search(r"\b(nan|inf)\b|\$", re.sub(r"`[^`]*`", "", text)), text


@all_of("question_id", IDS)
def test_options_have_one_right_answer_and_everything_is_explained(question_id, drawn):
    for one in drawn(question_id):
        match one:
            case Choice() | TradeOff():
                assert len(one.options) >= 2
                assert sum(option.right for option in one.options) == 1
                whys = [option.why for option in one.options]
            case Votes():
                assert len(one.statements) >= 3
                assert 0 < sum(statement.right for statement in one.statements) < len(one.statements)
                whys = [statement.why for statement in one.statements]
            case TrueFalse():
                whys = [one.why]
            case _:
                whys = [why for figure in figures(one) for why in (figure.why, *(bad.why for bad in figure.mistakes))]
        assert min(len(why) for why in whys) >= LEAST_WHY, min(whys, key=len)
        if isinstance(one, TradeOff):
            assert one.columns and all(len(option.figures) == len(one.columns) for option in one.options)
            assert all(figure.strip() for option in one.options for figure in option.figures)
        if isinstance(one, Grid):
            assert len(one.cells) == len(one.rows) and all(len(row) == len(one.columns) for row in one.cells)
        if isinstance(one, Aggregate):
            assert len(one.parts) >= 2 and len({figure.unit for _, figure in one.parts}) == 1


@all_of("question_id", IDS)
def test_figures_can_be_typed_and_mistakes_differ_from_them(question_id, drawn):
    for one in drawn(question_id):
        for figure in figures(one) if isinstance(one, FIGURE_KINDS) else ():
            assert math.isfinite(figure.value) and figure.value >= 0 and 0 <= figure.tolerance <= 0.1
            few_digits = float(f"{figure.value:.6g}") == figure.value
            assert figure.tolerance or few_digits or float(figure.value).is_integer(), "no exact value to type"
            values = [mistake.value for mistake in figure.mistakes]
            assert is_distinct(values)
            assert not any(agrees(value, figure.value, figure.tolerance) for value in values)


@all_of("question_id", IDS)
def test_the_right_answer_is_judged_right_and_each_other_option_wrong(question_id, drawn):
    for one in drawn(question_id):
        answer = right_answer(one)
        assert judge(one, json.loads(json.dumps(answer))).status == RIGHT
        if isinstance(one, (Choice, TradeOff)):
            others = [index for index in range(len(one.options)) if index != answer]
            assert all(judge(one, index).status == WRONG for index in others)


@all_of("question_id", IDS)
def test_figures_differ_between_learners(question_id, drawn):
    questions = drawn(question_id)
    if isinstance(questions[0], FIGURE_KINDS):
        assert len({repr(right_answer(one)) for one in questions}) > 1


@pytest.mark.parametrize("slug", CHAPTERS)
def test_the_right_one_does_not_always_stand_at_the_same_place(slug, drawn):
    places = {
        right_answer(one)
        for question_id in of_chapter(slug)
        for one in drawn(question_id)
        if isinstance(one, (Choice, TradeOff))
    }
    assert len(places) > 1


@pytest.mark.exhaustive("every question: test_another_process_draws_the_same_question has one of each kind")
def test_another_process_asks_the_same(drawn):
    there = subprocess.run([sys.executable, "-c", DRAW, *IDS], capture_output=True, text=True, check=True, cwd=ROOT)
    assert there.stdout.splitlines() == [repr(drawn(one)[7]) for one in IDS]


# ---- figures are computed


def syntax(question_id):
    """The module of a question's source, and the source function in it."""
    module = ast.parse(Path(inspect.getsourcefile(source(question_id))).read_text(encoding="utf-8"))
    name = question_id.partition("/")[2]
    return module, next(node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == name)


def typed_values(node):
    """The values of Figure and Mistake in `node` that are computed from nothing but typed numbers."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("Figure", "Mistake"):
            value = next(
                (one.value for one in call.keywords if one.arg == "value"), call.args[0] if call.args else None
            )
            if value is not None and not any(isinstance(part, ast.Name) for part in ast.walk(value)):
                yield ast.unparse(call)[:80]


def used_modules(module, function):
    """The modules that `function` takes names from, also through other functions of its module."""
    imported, defined = {}, {}
    for node in module.body:
        if isinstance(node, ast.ImportFrom):
            imported |= {(one.asname or one.name): f"{node.module}.{one.name}" for one in node.names}
        elif isinstance(node, ast.FunctionDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign):
            defined |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    todo, seen, used = [function], set(), set()
    while todo:
        for part in ast.walk(todo.pop()):
            if isinstance(part, ast.Name) and part.id not in seen:
                seen.add(part.id)
                used |= {imported[part.id]} if part.id in imported else set()
                todo += [defined[part.id]] if part.id in defined else []
    return used


@pytest.mark.parametrize("slug", sorted(set(NOTEBOOK_OF.values())))
def test_no_figure_is_typed(slug):
    for question_id in question_ids(slug)[:1]:
        module, _ = syntax(question_id)
        assert list(typed_values(module)) == []


@all_of("question_id", IDS)
def test_figures_are_computed_by_the_course(question_id):
    if isinstance(question(question_id, 0), FIGURE_KINDS):
        used = {name for name in used_modules(*syntax(question_id)) if not name.startswith("course_utils.questions")}
        assert any(name.startswith("course_utils.") for name in used), "the figures come from no module of the course"


def test_a_typed_figure_is_seen():
    assert list(typed_values(ast.parse("Figure(1024, '', why)"))) and list(
        typed_values(ast.parse("Mistake(value=-2 * 3.0, why=x)"))
    )
    assert not list(typed_values(ast.parse("Figure(costs.ceil_div(n, 4), '', why); Mistake(2 * n, why)")))
    helped = "def helper():\n    return costs.f(N)\ndef helped():\n    helper()\ndef alone():\n    N"
    module = ast.parse(f"from course_utils import costs\nN = 1\n{helped}")
    assert used_modules(module, module.body[3]) == {"course_utils.costs"}
    assert used_modules(module, module.body[4]) == set()
