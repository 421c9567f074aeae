"""Each widget without a mouse: Tab comes to every control, the one in use is seen, and words say what it did; words in
canvases and around them can be read in both themes."""

import pytest

from course_utils.widgets.player import player
from tests.helpers import recorded
from tests.helpers.by_keyboard import answers, assert_all_controls_answer, every_stop
from tests.helpers.canvas_texts import pale_canvas_texts, watched_canvases
from tests.helpers.chapter_widgets import WIDGETS
from tests.helpers.example_widgets import EXAMPLES
from tests.helpers.look import CONTRAST, LOOK

pytestmark = pytest.mark.browser


def a_scene():
    """A player as it stands between the paragraphs of a chapter, with its folds."""
    meta, data = recorded.swap()
    return player({**meta, "start": {"short": True}}, data)


SAMPLE = ("launch-grid", "dsa-explorer", "barrier")
OTHERS = pytest.mark.exhaustive("in make test three widgets, which have every kind of control but a fold")
ALL = EXAMPLES | {"a scene": a_scene}
NAMES = [name if name in SAMPLE else pytest.param(name, marks=OTHERS) for name in ALL]


@pytest.fixture
def opened(open_widget):
    """opened(name, theme="light") -> the page of a widget in the middle of its steps: it can go either way."""

    def opened_page(name, **options):
        page = open_widget(ALL[name](), **options)
        page.evaluate("() => model.set('step', Math.floor(document.querySelector('.ak-step').max / 2))")
        return page

    return opened_page


GAMES = {"race", "paint", "barrier"}


def test_each_widget_of_the_chapters_and_each_game_has_an_example():
    assert {name for names in WIDGETS.values() for name in names} | GAMES == set(EXAMPLES)


@pytest.mark.parametrize("name", NAMES)
def test_the_keyboard_comes_to_every_control_and_each_says_what_it_did(opened, name):
    assert_all_controls_answer(opened(name).locator(".ak-widget"))


ONE_THEME = pytest.mark.exhaustive("launch-grid has both themes in make test, the others of the three one each")


@pytest.mark.parametrize(
    ("name", "theme"),
    [
        *(("launch-grid", "light"), ("launch-grid", "dark"), ("dsa-explorer", "light"), ("barrier", "dark")),
        ("tile-stepper", "light"),  # its words have the colours of roles
        *(pytest.param(*both, marks=ONE_THEME) for both in (("dsa-explorer", "dark"), ("barrier", "light"))),
        *(pytest.param(name, "light", marks=OTHERS) for name in ALL if name not in (*SAMPLE, "tile-stepper")),
        *(pytest.param(name, "dark", marks=OTHERS) for name in ALL if name not in SAMPLE),
    ],
)
def test_every_word_can_be_read_whatever_the_controls_say(opened, name, theme):
    page = opened(name, theme=theme)
    root = page.locator(".ak-widget")
    with watched_canvases(page):
        for stop in every_stop(root):
            answers(root, stop.kind)
            assert pale_canvas_texts(page, CONTRAST) == [] == page.evaluate(LOOK, CONTRAST)["pale"]
