"""What a guess holds back: what is captured and in which order, what stands where no widget runs, and what is kept."""

import base64
import io
import json
import re
import sqlite3
from html import unescape

import pytest
from IPython.core.interactiveshell import InteractiveShell
from PIL import Image

from course_utils import progress
from course_utils.plots.look import small_png
from course_utils.widgets import guesses
from course_utils.widgets.guesses import Panel, guess

QUESTION = "How many sectors do the three accesses touch <together>?"
CELL = """
from IPython.display import HTML, display
from course_utils import widgets
with widgets.guess("How many?", unit="sectors") as held:
    print("first")
    display(HTML("<b>second</b>"))
    print("third", end="")
    print(", too")
    held.value = 37
"""


def _png(picture):
    file = io.BytesIO()
    picture.save(file, format="png")
    return file.getvalue()


COLOURFUL = _png(Image.radial_gradient("L").convert("RGB"))  # as a figure comes
PNG = small_png(COLOURFUL)
BASE64 = base64.b64encode(PNG).decode()


@pytest.fixture(autouse=True)
def own_progress(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def shell():
    """IPython in this process, with matplotlib's pictures as a notebook has them."""
    one = InteractiveShell.instance()
    yield one
    InteractiveShell.clear_instance()


@pytest.fixture
def jupyter(shell, monkeypatch):
    """jupyter(cell) -> the result of running it; `shown`: what has come out of guesses."""

    def run(cell):
        return shell.run_cell(cell, store_history=False)

    run.shown = []
    monkeypatch.setattr(guesses, "display", lambda one, **_: run.shown.append(one))
    return run


def page_of(panel):
    return panel._repr_mimebundle_()[0]["text/html"]


# ---- what is held back


def test_all_that_the_block_shows_is_held_back_in_its_order(jupyter, capsys):
    assert jupyter(CELL).success
    assert capsys.readouterr().out == ""
    (panel,) = jupyter.shown
    assert panel.held == "<pre>first</pre><div><b>second</b></div><pre>third, too</pre>"
    assert panel.asked == {
        "question": "How many?",
        "unit": "sectors",
        "form": {"kind": "number"},
        "value": 37,
        "words": "37 sectors",
    }


def test_after_the_block_output_is_shown_again(jupyter, capsys):
    jupyter(CELL + "\nprint('behind')")
    assert capsys.readouterr().out == "behind\n"


def test_a_picture_is_held_back_with_plt_show_and_without(jupyter, monkeypatch):
    import matplotlib_inline.backend_inline as inline

    monkeypatch.setattr(inline, "flush_figures", lambda: guesses.get_ipython().display_pub.publish({"image/png": PNG}))
    jupyter(CELL)
    assert jupyter.shown[0].held.endswith(f'<div><img alt="" src="data:image/png;base64,{BASE64}"></div>')


@pytest.mark.parametrize(
    ("bundle", "html"),
    [
        (
            {"image/png": f"{BASE64}\n", "text/plain": "Figure"},
            f'<div><img alt="" src="data:image/png;base64,{BASE64}"></div>',
        ),
        (
            {"image/svg+xml": "<svg/>", "image/png": COLOURFUL, "width": 540},
            f'<div><img alt="" src="data:image/png;base64,{BASE64}" width="540"></div>',
        ),
        ({"text/plain": "<1 & 2>\n"}, "<pre>&lt;1 &amp; 2&gt;</pre>"),
    ],
)
def test_each_kind_of_output_becomes_html(bundle, html):
    assert guesses._html(bundle) == html


def test_a_widget_shows_the_drawing_that_follows_the_theme():
    both = {"image/svg+xml": "<svg/>", "image/png": PNG}
    assert guesses._html(both, live=True) == '<div><img alt="" src="data:image/svg+xml;base64,PHN2Zy8+"></div>'


def test_an_error_in_the_block_comes_through_after_what_was_shown(jupyter, capsys):
    result = jupyter(CELL.replace("held.value = 37", "1 / 0"))
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert [bundle["text/html"] for bundle in jupyter.shown] == ["<b>second</b>"]
    assert capsys.readouterr().out.startswith("first\nthird, too\n")


@pytest.mark.parametrize(
    ("set_to", "options", "said"),
    [
        ("pass", "", "held.value: not set"),
        ("held.value = float('nan')", "", "takes a finite number"),
        ("held.value = 'much'", "", "takes a finite number"),
        ("held.value = 5", ", options=(1, 2)", r"got 5, takes one of \[1, 2\]"),
    ],
)
def test_a_value_that_is_none_is_named(jupyter, set_to, options, said):
    cell = CELL.replace("held.value = 37", set_to).replace('"sectors"', f'"sectors"{options}')
    with pytest.raises(ValueError, match=said):
        jupyter(cell).raise_error()


@pytest.mark.parametrize("wrong", [{"low": 1}, {"low": 2, "high": 1}, {"low": 0, "high": 1, "options": (1,)}])
def test_a_form_that_is_none_is_named(wrong):
    with pytest.raises(ValueError, match="takes both ends of a slider, or options"), guess("?", **wrong):
        pass


def test_numbers_of_torch_are_taken(jupyter):
    jupyter("import torch\n" + CELL.replace("37", "torch.tensor(1 / 3, dtype=torch.float64)"))
    assert (jupyter.shown[0].asked["value"], jupyter.shown[0].asked["words"]) == (0.333333, "0.333 sectors")


# ---- where no widget runs


def test_outside_jupyter_the_block_runs_as_it_stands(capsys, monkeypatch):
    monkeypatch.setattr(guesses, "get_ipython", lambda: None)
    with guess(QUESTION, unit="sectors") as held:
        print("load: 1")
        held.value = 37.0
    assert capsys.readouterr().out == f"{QUESTION}\nload: 1\nFound: 37 sectors.\n"


def test_the_stored_page_folds_the_answer_and_has_the_question_as_data():
    asked = guesses._Asked(QUESTION, "sectors", {"kind": "number"}, 37, "37 sectors")
    bundle = guesses._bundle(asked, [{"text/plain": "load: 1\n"}, {"text/html": "<table></table>", "text/plain": "a"}])
    page = bundle["text/html"]
    visible = re.sub(r"<details>.*</details>|data-guess=\"[^\"]*\"", "", page)
    assert "&lt;together&gt;?" in visible and "37" not in visible
    assert "<details><summary>Show the answer</summary><p><strong>Found: 37 sectors.</strong></p><pre>load" in page
    assert json.loads(unescape(re.search(r'data-guess="([^"]*)"', page)[1])) == vars(asked)
    assert bundle["text/plain"] == f"{QUESTION}\nload: 1\na\nFound: 37 sectors."


def test_the_widget_brings_the_page_along(jupyter):
    jupyter(CELL)
    panel = jupyter.shown[0]
    bundle, _ = panel._repr_mimebundle_()
    assert "Show the answer" in bundle["text/html"] and "37" in bundle["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" in bundle


# ---- what is kept


def panel(value=37, question=QUESTION):
    return Panel(guesses._Asked(question, "sectors", {"kind": "number"}, value, str(value)), [])


def test_a_guess_is_kept_with_the_value_and_put_in_again():
    first = panel()
    assert first.guess is None and first.stage == "open"
    first._handle_custom_msg({"guessed": 80}, [])
    first._handle_custom_msg({"guessed": 40.5}, [])
    (kept,) = progress.overview().guesses
    assert (kept.asked, kept.times, kept.first, kept.value, kept.last) == (QUESTION, 2, 80, 37, 40.5)
    again = panel()
    assert again.guess == 40.5 and again.stage == "open", "the result must hide again"
    assert panel(question="Another?").guess is None


@pytest.mark.parametrize("message", [None, [], "compare", {}, {"guessed": None}, {"guessed": [1]}, {"skipped": 1}])
def test_a_message_of_another_form_is_left_alone(message):
    panel()._handle_custom_msg(message, [])
    assert progress.overview().guesses == ()


def test_a_store_that_fails_is_said_and_holds_nothing_up():
    panel()._handle_custom_msg({"guessed": 80}, [])
    with sqlite3.connect(progress.progress_file()) as connection:
        connection.execute("PRAGMA user_version = 99")
    one = panel()
    one._handle_custom_msg({"guessed": 80}, [])
    assert one.guess is None and one.note.startswith("Not kept: ") and "newer edition" in one.note


@pytest.mark.parametrize(
    ("first", "value", "close"),
    [(80, 37, False), (74, 37, True), (18, 37, False), (19, 37, True), (-37, 37, False), (0, 0, True), (0, 5, False)]
    + [("K", "K", True), ("K", "Q", False), (5, None, False)],
)
def test_close_is_within_a_factor_of_two_or_the_right_option(first, value, close):
    progress.record_guess("?", first, value)
    assert progress.overview().guesses[0].close is close
