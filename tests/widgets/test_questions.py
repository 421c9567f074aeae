"""The questions' Python half: what goes to the browser, what is kept, and what stands where no widget runs."""

import json
import re
import sys
from dataclasses import fields, is_dataclass, replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from course_utils import course, progress
from course_utils.questions.catalog import question_ids
from course_utils.questions.judging import judge, right_answer
from course_utils.questions.pages import to_html, to_text
from course_utils.questions.sheet import draw, remarks
from course_utils.widgets import questions as widget
from course_utils.widgets.questions import Panel, ask

SEED = 3
WRONG = {"number": "1", "aggregate": ["1", "2", "4"], "grid": [["1", "2"], ["3", "4"]], "votes": [1]}


@pytest.fixture(autouse=True)
def demo(monkeypatch, tmp_path):
    """The demo chapter, and progress of its own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("ATTENTION_KERNELS_SEED", raising=False)
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "questions"))
    monkeypatch.setattr(course, "CHAPTERS", course.CHAPTERS)
    import demo_questions

    demo_questions.install()
    yield demo_questions
    sys.modules.pop("course_utils.questions.sources.demo")


@pytest.fixture
def questions():
    return draw(question_ids("99_demo"), SEED)


@pytest.fixture
def panel(questions):
    return Panel(questions, SEED)


def give(panel, asked, answer, action="check"):
    """The reply to one message as the browser sends it."""
    panel._answer({"id": asked.id, "action": action, "answer": answer, "turn": 1})
    return panel.replies[asked.id]


def wrong_answer(asked):
    name = asked.id.partition("/")[2]
    if name in WRONG:
        return WRONG[name]
    right = right_answer(asked.question)
    return not right if isinstance(right, bool) else 1 - min(right, 1)


def explanations(asked):
    """Everything that a question has to say about its parts."""
    return set(re.findall(r"why='([^']+)'", repr(asked.question)))


# ---- what the browser gets


def test_the_browser_gets_no_explanation_and_no_figure_before_an_answer(panel, questions):
    state = json.dumps({name: panel.get_state()[name] for name in ("sheet", "answers", "replies")}, ensure_ascii=False)
    for asked in questions:
        assert explanations(asked) and not any(why in state for why in explanations(asked))
    assert "268" not in state and '"right"' not in state


def test_a_wrong_answer_is_explained_and_a_right_one_too(panel, questions):
    for asked in questions:
        reply = give(panel, asked, wrong_answer(asked))
        assert reply["status"] == "wrong" and reply["summary"].startswith("Not right."), asked.id
        assert any(item["said"] for item in reply["items"])
        assert json.loads(json.dumps(reply)) == reply
        reply = give(panel, asked, right_answer(asked.question))
        assert reply["status"] == "right" and any(item["said"] for item in reply["items"])


def test_each_checked_answer_is_kept_with_its_seed(panel, questions):
    for asked in questions:
        give(panel, asked, wrong_answer(asked))
        give(panel, asked, right_answer(asked.question))
    for kept in progress.overview().questions:
        assert (kept.attempts, kept.last_right, kept.seed) == (2, True, SEED)
    assert {kept.question for kept in progress.overview().questions} == set(question_ids("99_demo"))


def test_the_shown_answer_explains_everything_and_is_kept_as_not_right(panel, questions):
    for asked in questions:
        reply = give(panel, asked, None, action="show")
        assert reply["status"] == "open" and reply["shown"]
        said = " ".join(item["said"] for item in reply["items"])
        assert [why for why in explanations(asked) if why not in said and "fp16" not in why] == []
    assert not any(kept.last_right for kept in progress.overview().questions)


def test_an_open_answer_is_not_kept(panel, questions):
    for asked, answer in zip(questions, [None, None, None, [], None, "", [""] * 3, [[""] * 2] * 2], strict=True):
        assert give(panel, asked, answer)["status"] == "open"
    assert give(panel, questions[0], "another form")["summary"].startswith("The answer cannot be read: ")
    assert progress.overview().questions == ()


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        "check",
        {},
        {"id": "99_demo/number"},
        {"id": "99_demo/none", "action": "check", "answer": "1", "turn": 1},
        {"id": ["99_demo/number"], "action": "check", "answer": "1", "turn": 1},
        {"id": "99_demo/number", "action": "delete", "answer": "1", "turn": 1},
        {"id": "99_demo/number", "action": "check", "turn": 1},
        {"id": "99_demo/number", "action": "check", "answer": "1", "turn": "one"},
    ],
)
def test_a_message_of_another_form_is_left_alone(panel, questions, message):
    panel._handle_custom_msg(message, [])
    assert panel.replies == {} and progress.overview().questions == ()
    assert give(panel, questions[2], False)["status"] == "right"


@pytest.mark.parametrize(
    "answer", [1, -1, 99, 1.5, True, "x" * 10_000, {"a": 1}, [[]], [None], [0, 99], [["1"] * 9] * 9]
)
def test_an_answer_of_another_form_is_replied_to_and_not_raised(panel, questions, answer):
    for asked in questions:
        assert give(panel, asked, answer)["status"] in ("right", "wrong", "open")


def test_progress_that_cannot_be_kept_is_said_and_not_raised(panel, questions, monkeypatch):
    def fail(*_):
        raise progress.ProgressError("the disk is full")

    monkeypatch.setattr(progress, "record_answer", fail)
    reply = give(panel, questions[2], False)
    assert reply["status"] == "right" and reply["summary"].endswith("Not kept: the disk is full.")
    monkeypatch.setattr(progress, "overview", fail)
    assert Panel(questions, SEED).sheet["notes"][-1] == "What you answered before is not known: the disk is full."


def test_a_seed_that_the_file_cannot_hold_is_said_and_not_raised():
    seed = 10**30
    (asked,) = draw(("99_demo/true_false",), seed)
    assert "Not kept: your progress cannot be kept in " in give(Panel((asked,), seed), asked, False)["summary"]


def test_what_was_right_earlier_is_said_with_its_date(panel, questions):
    assert all(form["earlier"] == {} for form in panel.sheet["questions"])
    give(panel, questions[0], right_answer(questions[0].question))
    give(panel, questions[2], wrong_answer(questions[2]))
    earlier = [form["earlier"] for form in Panel(questions, SEED).sheet["questions"]]
    assert re.fullmatch(r"\d{1,2} \w+ \d{4}", earlier[0]["right_at"]) and not earlier[0]["tried"]
    assert earlier[2] == {"right_at": "", "tried": True}


def test_votes_in_words(questions):
    asked = questions[3].question
    words = lambda answer: [one["words"] for one in remarks(asked, judge(asked, answer))]  # noqa: E731
    assert words([0, 1]) == ["holds", "does not hold", "", ""]
    assert words([0, 2]) == ["holds", "rightly left out", "holds", "rightly left out"]


# ---- where no widget runs


class Page(HTMLParser):
    """Which elements a page opens and closes, and its ids."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.stack, self.ids = [], [], []
        self.feed(html)
        assert not self.stack

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.ids += [value for name, value in attributes if name == "id"]
        if tag != "br":
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag


def test_the_page_folds_every_answer_away_and_has_no_form(questions):
    html = to_html(questions, SEED)
    page = Page(html)
    assert page.tags.count("details") == page.tags.count("summary") == page.tags.count("h3") == len(questions)
    assert not {"input", "button", "form", "select", "b"} & set(page.tags)
    assert len(page.ids) == len(set(page.ids))
    assert "which it is &lt;b&gt;not&lt;/b&gt;." in html and "<code>online_softmax</code>" in html
    visible = re.sub(r"<details>.*?</details>|<script .*?</script>", "", html, flags=re.DOTALL)
    assert "268.4 MB" in html and "268.4" not in visible
    assert html.count('<th scope="row">') == 3 + 2 and '<th scope="col">' in html
    for asked in questions:
        assert str(SEED) in html and asked.title in html


def test_nothing_in_a_question_is_read_as_html(questions):
    marks = ("&", "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>')
    for mark in marks:
        hostile = [replace(asked, title=mark, id=mark, question=spoilt(asked.question, mark)) for asked in questions]
        html = to_html(hostile, SEED)
        assert "img" not in Page(html).tags
        assert data_in(html)["questions"][0]["title"] == mark
        assert html.count(escape(mark)) > 40


def data_in(html):
    """What the page holds for a script: its only one, which nothing runs."""
    assert Page(html).tags.count("script") == 1
    (data,) = re.findall('<script type="application/json" class="ak-questions-data">([^<]*)</script>', html)
    return json.loads(data)


def test_the_page_holds_forms_and_keys_for_a_script(questions):
    data = data_in(to_html(questions, SEED))
    assert [one["id"] for one in data["questions"]] == list(data["keys"]) == [asked.id for asked in questions]
    assert all(one["labels"] for one in data["questions"])


def spoilt(thing, mark):
    """A question with `mark` in place of each of its texts except its kind."""
    if isinstance(thing, str):
        return mark
    if isinstance(thing, tuple):
        return tuple(spoilt(one, mark) for one in thing)
    if is_dataclass(thing):
        changed = {one.name: spoilt(getattr(thing, one.name), mark) for one in fields(thing) if one.name != "kind"}
        return replace(thing, **changed)
    return thing


def test_the_text_has_the_questions_first_and_then_the_answers(questions):
    asked, _, answers = to_text(questions, SEED).partition("\nAnswers\n")
    assert "268.4 MB" in answers and "268.4" not in asked
    assert "`flash`: ✓ the right one. It is in time" in answers


def test_outside_jupyter_the_questions_are_printed(capsys):
    ask("99_demo", "number", seed=SEED)
    printed = capsys.readouterr().out
    assert "1. The score matrix (type the number)" in printed and "2." not in printed.partition("Answers")[0]


def shown(monkeypatch, *arguments, **options):
    """What `ask` displays in a notebook."""
    displayed = []
    monkeypatch.setattr(widget, "get_ipython", lambda: object())
    monkeypatch.setattr(widget, "display", lambda thing, **_: displayed.append(thing))
    ask(*arguments, **options)
    return displayed[0]


def test_in_a_notebook_the_widget_brings_its_page_along(monkeypatch):
    panel = shown(monkeypatch, "99_demo", seed=SEED)
    bundle, _ = panel._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["text/html"].count("<details>") == 8 and "Answers" in bundle["text/plain"]


def test_the_learners_seed_is_taken_unless_one_is_given(monkeypatch):
    monkeypatch.setenv("ATTENTION_KERNELS_SEED", "41")
    assert "seed 41:" in shown(monkeypatch, "99_demo").sheet["notes"][0]
    assert "seed 3:" in shown(monkeypatch, "99_demo", seed=3).sheet["notes"][0]


def test_without_progress_the_questions_are_asked_all_the_same(monkeypatch):
    def fail():
        raise progress.ProgressError("no such disk")

    monkeypatch.setattr(progress, "learner_seed", fail)
    assert shown(monkeypatch, "99_demo").sheet["notes"][1] == "Your own seed is not known: no such disk."


def test_an_unknown_chapter_or_question_is_a_lookup_error(monkeypatch):
    with pytest.raises(LookupError, match="77_none"):
        ask("77_none")
    with pytest.raises(LookupError, match="99_demo/nothing"):
        ask("99_demo", "nothing", seed=SEED)
    monkeypatch.setattr(course, "CHAPTERS", (course.Chapter("98_empty", "Empty", "nothing yet"),))
    with pytest.raises(LookupError, match="'98_empty', which has no questions yet"):
        ask("98_empty", seed=SEED)
