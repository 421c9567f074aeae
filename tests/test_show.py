"""What a chapter puts on the page: passages of kernels, predictions."""

import html
import re

import pytest

from course_utils import show
from course_utils.launches.broken import BROKEN

PLAIN = "02_flash_attention_minimal/forward_plain.cu"


@pytest.fixture
def shown(monkeypatch):
    """The (first, last) lines that `passage` hands to `source`."""
    calls = []
    monkeypatch.setattr(show, "source", lambda name, first, last: calls.append((first, last)))
    return calls


def test_passage_stops_before_a_text_or_at_the_end_of_the_function(shown):
    lines = show.read_kernel(PLAIN).splitlines()
    show.passage(PLAIN, 'extern "C"', "// S = scale")
    show.passage(PLAIN, 'extern "C"')
    (first, last), (same, end) = shown
    assert lines[first - 1].startswith('extern "C"') and same == first
    assert lines[last - 1].strip() == "__syncthreads();"
    assert (lines[last], lines[last + 1].strip()[:12]) == ("", "// S = scale")
    assert lines[end - 1] == "}"
    assert not any(line.startswith("}") for line in lines[first : end - 1])


@pytest.mark.parametrize("start, end, named", [("no such text", None, "start"), ('extern "C"', "no such text", "end")])
def test_passage_says_which_text_is_not_there(start, end, named, shown):
    with pytest.raises(ValueError, match=f"^{named}: no line of {PLAIN}"):
        show.passage(PLAIN, start, end)


@pytest.mark.parametrize(
    "predicted, found, words",
    [
        (None, 3.86, "Found: 3.86 times."),
        (60, 3.0, "You predicted 60 times; found: 3 times. You are off by 20×."),
        (3.0, 60, "You are off by 20×."),
        (0, 5, "You predicted 0 times; found: 5 times."),
    ],
)
def test_prediction_is_set_beside_the_figure(predicted, found, words, capsys):
    show.prediction(predicted, found, "times")
    assert words in capsys.readouterr().out


def test_difference_names_the_lines_that_changed(monkeypatch):
    shown = []
    monkeypatch.setattr(show, "display", lambda data, raw: shown.append(data))
    kernel = show.read_kernel(PLAIN)
    show.difference(kernel, kernel.replace("__syncthreads();", "/* <none> */", 1), context=0)
    (data,) = shown
    changed = [line[0] for line in data["text/plain"].splitlines() if not line.startswith(("---", "+++"))]
    assert changed == ["@", "-", "+"]
    assert PLAIN in data["text/html"] and "/* &lt;none&gt; */" in data["text/html"]


def test_difference_of_equal_texts_is_a_mistake():
    with pytest.raises(ValueError, match="^before and after are equal"):
        show.difference("a\n", "a")


def test_difference_skips_the_headers_and_keeps_the_line_numbers_of_the_files(monkeypatch):
    shown = []
    monkeypatch.setattr(show, "display", lambda data, raw: shown.append(data))
    before, after = "// one\n// two\nint a;\nint b;\n", "// three\nint a;\nint c;\n// no header\n"
    show.difference(before, after, context=0, skip_header=True)
    lines = shown[0]["text/plain"].splitlines()[2:]
    assert lines == ["@@ -4 +3,2 @@", "-int b;", "+int c;", "+// no header"]


def test_mistake_shows_the_lines_that_a_finding_names(monkeypatch):
    shown = []
    monkeypatch.setattr(show, "display", lambda data, raw: shown.append(data))
    broken = BROKEN["half_accumulation"]  # of several hunks, and with a line more than the right kernel from line 11 on
    show.mistake(broken)
    page = re.sub(r'</?span( class="[^"]*")?>', "<>", shown[0]["text/html"])
    numbered = re.findall(r"<span [^>]*>(.{4}) (.{4}) <>([-+ ])(.*)\n", page)
    numbered = [(old, new, kind, line.replace("<>", "")) for old, new, kind, line in numbered]
    assert [kind for *_, kind, _ in numbered].count("+") == 5
    right, wrong = (show.read_kernel(launch.source).splitlines() for launch in (broken.mended(), broken.launch()))
    for old, new, kind, line in numbered:
        assert old.strip() == "" if kind == "+" else right[int(old) - 1] == html.unescape(line)
        assert new.strip() == "" if kind == "-" else wrong[int(new) - 1] == html.unescape(line)


def test_a_folded_table_shows_its_caption_alone_and_keeps_its_text(monkeypatch):
    shown = []
    monkeypatch.setattr(show, "display", lambda bundle, raw: shown.append(bundle))
    for folded in (False, True):
        show.table([{"L": 64, "ms": 1.5}], "a < b", folded=folded)
    plain, folded = shown
    assert plain["text/plain"] == folded["text/plain"] == "a < b\n L   ms\n64  1.5"
    closed = re.fullmatch(r"<details><summary[^>]*>The figures: a &lt; b</summary>(.*)</details>", folded["text/html"])
    assert closed[1].startswith("<table>") and plain["text/html"].endswith(closed[1])


def test_the_floats_of_a_column_may_have_one_number_of_decimals(monkeypatch):
    shown = []
    monkeypatch.setattr(show, "display", lambda bundle, raw: shown.append(bundle))
    rows = [{"L": 64, "ms": 1.0, "GB": 1.2345}, {"L": 128, "ms": 1200.16, "GB": 1.0}, {"L": 256, "ms": "-", "GB": 2.5}]
    show.table(rows, decimals={"L": 1, "ms": 2})
    assert [line.split() for line in shown[0]["text/plain"].splitlines()] == [
        ["L", "ms", "GB"],
        ["64", "1.00", "1.23"],
        ["128", "1,200.16", "1"],
        ["256", "-", "2.5"],
    ]
