"""The questions of a chapter in a real JupyterLab: every kind by mouse and by keyboard, in both themes."""

from pathlib import Path

import pytest

from course_utils import progress
from tests.helpers.jupyterlab import NotebookPage, show_cells, wait_until

pytestmark = pytest.mark.browser

DEMO = Path(__file__).resolve().parents[1] / "questions"
# The kernel stays from test to test, and with it a demo that is a chapter.
WITHOUT_DEMO = (
    'from course_utils import course\ncourse.CHAPTERS = [one for one in course.CHAPTERS if one.slug != "99_demo"]'
)
CELL = f"""{WITHOUT_DEMO}
import sys
sys.path.insert(0, {str(DEMO)!r})
import demo_questions
demo_questions.install()
from course_utils import widgets
widgets.ask("99_demo", seed=3)"""
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
SET_THEME = """async (theme) => {
    await jupyterapp.commands.execute("apputils:change-theme", { theme });
    await new Promise((done) => setTimeout(done, 800));
}"""
# The wrong answer, what is said about it, and the right one, as numbers of parts or as texts.
ANSWERS = {
    "concept": ([0], "Then the score matrix would be stored", [1]),
    "scenario": ([1], "A wrong scale would spoil every length", [0]),
    "true_false": ([0], "only the rounding differs", [1]),
    "votes": ([0, 1], "Every product is still computed", [0, 2]),
    "trade_off": ([0], "It stores the whole score matrix", [1]),
    "number": (["134.2"], "That is fp16", ["268.4 MB"]),
    "aggregate": (
        ["25.2", "1", "26.2"],
        "the sum of the parts that you typed",
        ["25.2", "16.8", "41,9".replace(",", ".")],
    ),
    "grid": (["31", "8", "16", "40"], "31 is too small", ["32", "8", "16", "40"]),
}
FINISHED = """(root) => root.getAttribute("aria-busy") === "false"
    && !root.querySelector(".ak-status").textContent.startsWith("Checking")"""


ONE_OF_EACH_INPUT = ("concept", "votes", "number", "grid")  # to choose, to mark, to type once and several times


SEND = """(root, answers) => {
    for (const [id, answer] of Object.entries(answers)) {
        const question = root.querySelector(`fieldset.ak-question[data-id="${id}"]`);
        question.querySelectorAll("input").forEach((input, n) => {
            if (input.type === "text") {
                input.value = answer[n];
                input.dispatchEvent(new Event("input", { bubbles: true }));
            } else if (input.checked !== answer.includes(n) && (answer.includes(n) || input.type === "checkbox")) {
                input.click();
            }
        });
        question.querySelector(".ak-check").click();
    }
}"""
ALL_FINISHED = f"(root) => [...root.querySelectorAll('fieldset.ak-question')].every({FINISHED})"


@pytest.fixture
def some_kinds(request):
    """Kinds of questions for what is the same for all: in `make test` one of each kind of input."""
    return ANSWERS if request.config.getoption("--exhaustive") else ONE_OF_EACH_INPUT


@pytest.fixture(scope="module", autouse=True)
def no_demo_afterwards(only_page):
    yield
    show_cells(only_page, [WITHOUT_DEMO])
    NotebookPage(only_page).assert_every_cell_ran()


@pytest.fixture
def questions(lab, run_cells, monkeypatch):
    """The widget with the demo's questions; nothing has been answered yet."""
    monkeypatch.setenv("XDG_DATA_HOME", str(lab.data))
    progress.reset()
    notebook = run_cells([CELL])
    notebook.assert_every_cell_ran()
    (widget,) = notebook.widgets()
    yield notebook, widget
    progress.reset()


@pytest.fixture
def all_in_view(questions):
    """The same in a window that shows all of it, for pictures and for axe. Chromium paints so large a window slowly."""
    questions[0].page.set_viewport_size({"width": 1300, "height": 3000})
    return questions


def question(widget, name):
    return widget.locator(f'fieldset.ak-question[data-id="99_demo/{name}"]')


def status(root):
    return root.locator(".ak-status").inner_text()


def checked(root, action):
    """Does `action`, which checks or shows an answer, and returns the status that Python replied with."""
    action()
    wait_until(root.page, FINISHED, root.element_handle())
    return status(root)


def send_all(widget, place):
    """Sends the answers at a place in ANSWERS, all at once: for tests of what follows, not of mouse and keyboard."""
    answers = {f"99_demo/{name}": answer[place] for name, answer in ANSWERS.items()}
    widget.evaluate(SEND, answers)
    wait_until(widget.page, ALL_FINISHED, widget.element_handle())


def click_in(root, answer):
    """Chooses, marks or types by mouse; what was marked before and does not belong to the answer is unmarked."""
    inputs = root.locator("input")
    for index, part in enumerate(answer):
        if isinstance(part, str):
            inputs.nth(index).click(click_count=3)
            root.page.keyboard.type(part)
    if isinstance(answer[0], int):
        for index in range(inputs.count()):
            if inputs.nth(index).is_checked() != (index in answer) and (
                index in answer or inputs.nth(index).get_attribute("type") == "checkbox"
            ):
                inputs.nth(index).click()


def key_in(root, answer):
    """The same with keys only, from the question's first input on; leaves the focus in the question."""
    press, inputs = root.page.keyboard.press, root.locator("input")
    radio = inputs.first.get_attribute("type") == "radio"
    if radio:
        inputs.first.focus()
        press("Space")
        for _ in range(answer[0]):
            press("ArrowDown")
        return
    inputs.first.focus()
    for index in range(inputs.count()):
        if isinstance(answer[0], str):
            press("Control+a")
            root.page.keyboard.type(answer[index])
        elif inputs.nth(index).is_checked() != (index in answer):
            press("Space")
        if index + 1 < inputs.count():
            press("Tab")


def explanations(root):
    return " ".join(root.locator(".ak-why").all_inner_texts())


def answer_by_mouse(widget, name, answer, sign):
    root = question(widget, name)
    click_in(root, answer)
    assert checked(root, root.locator(".ak-check").click).startswith(sign), name


def answer_by_keyboard(widget, name, answer, sign):
    root, page = question(widget, name), widget.page
    key_in(root, answer)
    focused = page.evaluate_handle("document.activeElement")
    assert checked(root, lambda: page.keyboard.press("Enter")).startswith(sign), name
    assert page.evaluate("(node) => node === document.activeElement", focused), "the focus was taken away"


EACH_WAY = pytest.mark.exhaustive(
    "both answers by one of them: in make test wrong ones by mouse, right ones by keyboard"
)


@pytest.mark.parametrize(
    "answer_wrong, answer_right",
    [
        pytest.param(answer_by_mouse, answer_by_keyboard, id="mouse-keyboard"),
        pytest.param(answer_by_mouse, answer_by_mouse, id="mouse", marks=EACH_WAY),
        pytest.param(answer_by_keyboard, answer_by_keyboard, id="keyboard", marks=EACH_WAY),
    ],
)
def test_every_kind_is_answered_wrong_then_right_by_mouse_and_keyboard(questions, answer_wrong, answer_right):
    _, widget = questions
    for name, (wrong, said, _) in ANSWERS.items():
        root = question(widget, name)
        assert status(root) == "" and explanations(root).strip() == ""
        assert root.locator(".ak-reveal").is_hidden()
        answer_wrong(widget, name, wrong, "✗ Not right.")
        assert said in explanations(root)
        assert root.locator(".ak-reveal").is_visible()
    kept = {one.question: one for one in progress.overview().questions}
    assert kept.keys() == {f"99_demo/{name}" for name in ANSWERS} and not any(one.last_right for one in kept.values())
    for name, (_, _, right) in ANSWERS.items():
        answer_right(widget, name, right, "✓ Right.")
        assert question(widget, name).locator('.ak-mark[data-status="wrong"], [aria-invalid="true"]').count() == 0
    assert all(one.last_right and one.attempts == 2 for one in progress.overview().questions)
    question(widget, "concept").locator(".ak-check").focus()
    widget.page.keyboard.press("Tab")
    focused = widget.page.evaluate("document.activeElement.tagName")
    assert focused == "INPUT", "the next question's input follows the button"


def test_the_answer_is_shown_only_after_a_wrong_one_and_counts_as_not_right(questions, some_kinds):
    notebook, widget = questions
    send_all(widget, 0)
    for name in some_kinds:
        root = question(widget, name)
        before = [node.input_value() for node in root.locator("input[type=text]").all()]
        assert checked(root, root.locator(".ak-reveal").click).startswith("The answer is shown.")
        assert [node.input_value() for node in root.locator("input[type=text]").all()] == before
        assert explanations(root).strip()
    assert "268.4 MB" in explanations(question(widget, "number"))
    kept = {one.question.removeprefix("99_demo/"): one for one in progress.overview().questions}
    assert kept.keys() == ANSWERS.keys() and not any(one.last_right for one in kept.values())
    assert all(kept[name].last_answer == {"shown": True} for name in some_kinds)


def test_nothing_is_recorded_while_the_answer_is_missing_or_unreadable(questions, some_kinds):
    _, widget = questions
    for name in some_kinds:
        root = question(widget, name)
        assert checked(root, root.locator(".ak-check").click)[0] not in "✓✗"
    root = question(widget, "number")
    click_in(root, ["1,5"])
    assert checked(root, root.locator(".ak-check").click).startswith("The figure cannot be read.")
    assert "two ways" in explanations(root)
    assert progress.overview().questions == ()


def test_what_was_typed_and_said_survives_a_redraw_and_a_second_run_says_what_was_right(questions):
    notebook, widget = questions
    page = widget.page
    number, concept = question(widget, "number"), question(widget, "concept")
    click_in(number, ["268.4"])
    checked(number, number.locator(".ak-check").click)
    click_in(concept, [2])
    page.evaluate("""() => { const cell = jupyterapp.shell.currentWidget.content.widgets[0];
        cell.outputHidden = true; cell.outputHidden = false; }""")
    assert number.locator("input").input_value() == "268.4"
    assert concept.locator("input").nth(2).is_checked()
    # A second view of the same output is drawn from what the notebook's model keeps.
    page.evaluate("() => jupyterapp.commands.execute('notebook:create-output-view')")
    copy = page.locator(".jp-LinkedOutputView fieldset[data-id='99_demo/number']")
    copy.wait_for()
    assert copy.locator("input").input_value() == "268.4"
    assert copy.locator(".ak-status").inner_text().startswith("✓ Right.")
    ids = page.locator(".ak-question [id]").evaluate_all("(all) => all.map((node) => node.id)")
    assert len(ids) == len(set(ids))
    page.evaluate("() => jupyterapp.commands.execute('notebook:run-all-cells')")
    page.locator(".jp-Notebook .ak-earlier").wait_for()
    assert page.locator(".jp-Notebook .ak-earlier").inner_text().startswith("✓ answered right on ")


@pytest.mark.parametrize(
    "themes",
    [
        pytest.param(["light"], id="light"),
        pytest.param(
            ["dark", "light"], id="both", marks=pytest.mark.exhaustive("the dark theme: the light one in make test")
        ),
    ],
)
def test_axe_finds_nothing_serious(all_in_view, themes):
    from axe_playwright_python.sync_playwright import Axe

    notebook, widget = all_in_view

    def look(state):
        for theme in themes:
            widget.page.evaluate(SET_THEME, THEMES[theme])
            found = Axe().run(widget.page, context='.ak-widget[data-widget="questions"]').response["violations"]
            assert [(one["id"], one["nodes"]) for one in found if one["impact"] in ("serious", "critical")] == []
            notebook.screenshot(f"questions-{state}-{theme}", widget)

    look("asked")
    for state, place, sign in (("wrong", 0, "✗"), ("right", 2, "✓")):
        send_all(widget, place)
        assert {status(question(widget, name))[0] for name in ANSWERS} == {sign}
        look(state)


def test_the_browser_holds_no_answer_before_it_is_asked_for(questions):
    _, widget = questions
    said = widget.evaluate("(root) => root.innerHTML")
    for text in ("268.4", "Every product is still computed", "With those, earlier parts can be rescaled"):
        assert text not in said
    root = question(widget, "concept")
    assert "<b>not</b>" in checked(
        root, lambda: (click_in(root, [0]), root.locator(".ak-check").click())
    ) + explanations(root)
    assert root.locator("b").count() == 0, "text of a question was read as HTML"
