"""The judge of pages without Python (questions/js) says of every answer what Python says."""

import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

import pytest

from course_utils import questions
from course_utils.questions.catalog import question
from course_utils.questions.judging import figures, judge, right_answer
from course_utils.questions.key import key
from course_utils.questions.numbers import write_number
from course_utils.questions.question import Aggregate, Figure, Grid, Number, TrueFalse, Votes
from course_utils.questions.sheet import remarks
from tests.helpers.drawn_questions import IDS
from tests.helpers.large_values import computed

pytestmark = pytest.mark.browser

SCRIPTS = Path(questions.__file__).parent / "js"
SEED = 7
# Typed figures: those that can be read, those that cannot, and one of each way to be wrong.
TYPED = (
    *("", " ", "0", "-3", "1e400", "1/0", "2^513", "0^-1", "1/1e400", "9" * 61, "1,5", "1.5.2", "12,34", "1 000,5"),
    *(
        "abc",
        "3 MB",
        "3 k",
        "3 Ki",
        "3Mi",
        "2^20",
        "2 ** 10 * 3",
        "3×2^4/8",
        "≈ 12",
        "~12",
        "+5",
        "−7",
        "1_024",
        "1’000",
    ),
    *("1e5 bytes", "5 µs", "5 us", "5 sectors", "5 %", "(3)", "3 apples", "1,024 512"),
)
FACTORS = (
    1,
    -1,
    2,
    0.5,
    3,
    1000,
    1024,
    1 / 1024,
    1e6,
    2**20,
    1.024,
    1 / 1.024,
    1.048576,
    1.1,
    1.125,
    12.5,
    0.08,
    7,
    1e13,
)
JUDGE_ALL = """async ([address, asked]) => {
    const { judge } = await import(`${address}/judging.js`);
    return asked.map(([key, answers]) => answers.map((answer) => judge(key, answer)));
}"""


@pytest.fixture(scope="module")
def judge_all(browser):
    """judge_all([(key, answers), ...]) -> the replies of the script to the answers, a list for each key."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SCRIPTS)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    page = browser.new_page()
    page.goto(f"{address}/")
    yield lambda asked: computed(page, JUDGE_ALL, [address, asked])
    page.close()
    server.shutdown()
    server.server_close()


def replies(one, answers):
    """What the widget in JupyterLab is sent."""
    said = [(judge(one, answer), answer) for answer in answers]
    return [{"status": v.status, "summary": v.summary, "items": remarks(one, v)} for v, _ in said]


def answers_to(one, draw):
    """Right, wrong, missing and unreadable answers."""
    right = right_answer(one)
    if isinstance(one, TrueFalse):
        return [None, True, False]
    if isinstance(one, Votes):
        indices = range(len(one.statements))
        return [[], right, list(indices), *([n] for n in indices), *(right[:n] for n in range(1, len(right)))]
    if not isinstance(one, (Number, Aggregate, Grid)):
        return [None, *range(len(one.options))]
    asked = figures(one)
    typed = [[f"{figure.value * factor!r}" for figure in asked] for factor in FACTORS]
    typed += [[f"{figure.value + 1!r}" for figure in asked], [f"{figure.value * 1.003:.4g}" for figure in asked]]
    typed += [[write_number(draw.choice([m.value for m in f.mistakes] or [1])) for f in asked] for _ in range(4)]
    typed += [[draw.choice(TYPED) for _ in asked] for _ in range(8)] + [[text for _ in asked] for text in TYPED]
    if isinstance(one, Aggregate):  # a total that is the sum of wrong parts
        parts = [round(figure.value * 1.5, 3) for figure in asked[:-1]]
        typed.append([*map(str, parts), str(sum(parts))])
    columns = len(one.columns) if isinstance(one, Grid) else len(asked)
    if isinstance(one, Number):
        return [right, *(texts[0] for texts in typed)]
    if isinstance(one, Aggregate):
        return [right, *typed]
    return [right, *([texts[n : n + columns] for n in range(0, len(texts), columns)] for texts in typed)]


def test_every_question_is_judged_as_python_judges_it(judge_all, request):
    """In `make test` a fourth of the many figures that are typed: the test below has every way to write one."""
    asked = [(one, question(one, SEED)) for one in IDS]
    answers = [answers_to(one, Random(name)) for name, one in asked]
    if not request.config.getoption("--exhaustive"):
        answers = [given[::4] if len(given) > len(TYPED) else given for given in answers]
    found = judge_all([(key(one), given) for (_, one), given in zip(asked, answers, strict=True)])
    for (name, one), given, said in zip(asked, answers, found, strict=True):
        for answer, reply, expected in zip(given, said, replies(one, given), strict=True):
            assert reply == expected, (name, answer)


OTHER_UNITS = pytest.mark.exhaustive("another unit that is typed: `make test` has one here, and those of the questions")


@pytest.mark.parametrize("unit", ["MiB", *(pytest.param(unit, marks=OTHER_UNITS) for unit in ("", "µs", "GB/s"))])
def test_every_way_to_write_and_to_miss_a_number_is_judged_as_python_judges_it(judge_all, unit):
    draw = Random(unit)
    values = [4, 12.5, 1024, 3.3e-5, 268.435456, 1e9, -7.25, 0]
    cases = [Number("?", Figure(value, unit, "So.", tolerance), "1") for value in values for tolerance in (0, 0.02)]
    given = []
    for one in cases:
        typed = [*TYPED, *(f"{text} {unit}" for text in TYPED[:20])]
        typed += [repr(one.figure.value * factor) for factor in FACTORS]
        typed += [repr(one.figure.value * 10 ** draw.uniform(-7, 7)) for _ in range(60)]
        given.append([*typed, *(f"{one.figure.value * draw.uniform(0.5, 2):.3g}{unit}" for _ in range(30))])
    found = judge_all([(key(one), texts) for one, texts in zip(cases, given, strict=True)])
    for one, texts, said in zip(cases, given, found, strict=True):
        for text, reply, expected in zip(texts, said, replies(one, texts), strict=True):
            assert reply == expected, (one.figure, text)
