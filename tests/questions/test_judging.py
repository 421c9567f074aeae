"""How typed numbers are read, and what is said about right, wrong and missing answers of every kind."""

import json
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_utils.questions.catalog import question, question_ids
from course_utils.questions.judging import explained, judge, right_answer
from course_utils.questions.numbers import UnreadableNumber, agrees, how_far_off, read_number, write_number
from course_utils.questions.question import (
    RIGHT,
    UNANSWERED,
    WRONG,
    Aggregate,
    Figure,
    Grid,
    Mistake,
    Number,
    Option,
    TrueFalse,
    Votes,
)

SIZES = st.floats(1e-9, 1e15)


def number(value, unit="", tolerance=0.0, mistakes=()):
    return Number("How many?", Figure(value, unit, "This is how it is computed.", tolerance, mistakes), "1 Here")


def said(asked, text):
    (item,) = judge(asked, text).items
    return item


# ---- reading


@pytest.mark.parametrize(
    "text, value",
    [
        ("1,024", 1024),
        ("1 024", 1024),
        ("1_024", 1024),
        ("1\u202f024", 1024),
        ("1,048,576.5", 1048576.5),
        ("1024.0", 1024),
        (" 1024 ", 1024),
        (".5", 0.5),
        ("5.", 5),
        ("-3", -3),
        ("−3", -3),
        ("+3", 3),
        ("1.5e9", 1.5e9),
        ("1.5E+9", 1.5e9),
        ("2e-3", 0.002),
        ("2^20", 2**20),
        ("2**20", 2**20),
        ("2^-2", 0.25),
        ("3*2^20/8", 3 * 2**17),
        ("4096 × 4096 · 2", 4096 * 4096 * 2),
        ("4,096*2/1e3", 8.192),
        ("16 Ki", 16384),
        ("2Mi", 2**21),
    ],
)
def test_a_number_is_read(text, value):
    assert read_number(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("text", ["1,5", "0,125", "1.024,5", "12,34", "1,0245", "1'024"])
def test_a_comma_that_can_be_read_in_two_ways_is_asked_about(text):
    with pytest.raises(UnreadableNumber, match="can be read in two ways: use a point as the decimal sign"):
        read_number(text)


@pytest.mark.parametrize(
    "text", ["", "abc", "2^0.5", "1-3", "5 5", "2^3^2", "--1", "1/", "(1)", "1 or 2", "1..2", "nan", "inf"]
)
def test_what_is_no_number_is_not_guessed(text):
    with pytest.raises(UnreadableNumber):
        read_number(text)


@pytest.mark.parametrize("text", ["1/0", "1e999", "1e400", "9^400", "0^-1", "9e300*9e300"])
def test_no_finite_number(text):
    with pytest.raises(UnreadableNumber, match="no finite number"):
        read_number(text)


@pytest.mark.parametrize(
    "text",
    ["2^99999", "9**9**9", "-inf", "٣٤", "１２", "2²", "\x00", "\ud800", "__import__('os')", "1e5e5", "2^-99999"],
)
def test_hostile_text_is_no_number(text):
    with pytest.raises(UnreadableNumber):
        read_number(text)


@pytest.mark.parametrize("part", ["1", "1*", "1^", "1,000", "1 ", "-", "1e", ".9", "(", "2^2*"])
def test_a_long_text_is_refused_at_once_and_not_repeated(part):
    begun = time.perf_counter()
    with pytest.raises(UnreadableNumber, match="too long for a number: type at most 60 characters") as refused:
        read_number(part * (10_000 // len(part)))
    assert time.perf_counter() - begun < 1 and len(str(refused.value)) < 100


@given(st.text(max_size=20))
def test_any_text_is_a_finite_number_or_said_to_be_unreadable(text):
    try:
        assert math.isfinite(read_number(text, "MB"))
    except UnreadableNumber as error:
        assert str(error).endswith(".")


@pytest.mark.parametrize(
    "typed, unit",
    [
        ("MB", "MB"),
        ("mb", "MB"),
        ("sector", "sectors"),
        ("B", "bytes"),
        ("us", "µs"),
        ("μs", "µs"),
        ("KiB", "KiB per block"),
    ],
)
def test_the_figures_own_unit_may_follow(typed, unit):
    assert read_number(f"16.5 {typed}", unit) == read_number(f"16.5{typed}", unit) == 16.5


@pytest.mark.parametrize(
    "text, unit, words",
    [
        ("16 MiB", "MB", "asked in MB, not in MiB"),
        ("16 m", "ms", "asked in ms, not in m"),
        ("16 MB", "", "asked as a bare number, without MB"),
        ("16 Ki", "MB", "asked in MB, not in Ki"),
        ("16 K", "", "K can mean a power of 1000 or of 1024"),
    ],
)
def test_another_unit_is_open_and_the_right_one_named(text, unit, words):
    item = said(number(16, unit), text)
    assert item.status == UNANSWERED and words in item.said


@given(SIZES, st.sampled_from([0.0, 0.001, 0.01, 0.05]))
def test_a_right_number_as_we_write_it_is_accepted(value, tolerance):
    assert judge(number(value, "MB", tolerance), f"{write_number(value, tolerance)} MB").status == RIGHT


def test_numbers_are_written_with_the_digits_that_they_need():
    assert [write_number(value, 0.01) for value in (16.777216, 1234.5678, 1024.0, 0.0001234)] == [
        "16.78",
        "1,235",
        "1,024",
        "0.0001234",
    ]
    assert write_number(2.5) == "2.5" and write_number(123456.789) == "123,456.789"


# ---- figures


@given(SIZES, st.floats(0.001, 0.05), st.floats(-0.99, 0.99))
def test_within_the_tolerance_is_right(value, tolerance, part):
    assert agrees(value * (1 + part * tolerance), value, tolerance)


@given(st.integers(0, 10**15), st.integers(1, 1000))
def test_without_a_tolerance_a_whole_number_must_be_exact(value, off):
    assert agrees(value, value, 0) and not agrees(value + off, value, 0)


def test_a_right_number_is_explained():
    item = said(number(16.777216, "MB", 0.01), "16.8")
    assert item.status == RIGHT and item.said == "16.78 MB. This is how it is computed."


def test_a_wrong_number_does_not_give_the_right_one_away():
    for text in ("3", "1000", "0", "-16.8"):
        item = said(number(16.777216, "MB", 0.01), text)
        assert item.status == WRONG and "16.78" not in item.said and "computed" not in item.said


def test_the_nearest_mistake_is_named():
    asked = number(
        240,
        mistakes=(
            Mistake(239, "Rounded down, not up."),
            Mistake(120, "That is half of it."),
            Mistake(121, "Half, and one."),
        ),
    )
    assert [said(asked, text).said for text in ("239", "120", "121")] == [
        "Rounded down, not up.",
        "That is half of it.",
        "Half, and one.",
    ]
    assert "by one" in said(asked, "241").said, "nearer to the right number than to the mistake"


def test_a_rounded_mistake_is_still_named():
    asked = number(268.435456, "MB", 0.01, (Mistake(134.217728, "That is fp16."),))
    assert said(asked, "134").said == said(asked, "134.2 MB").said == "That is fp16."


@pytest.mark.parametrize(
    "typed, value, unit, words",
    [
        (8, 16, "", "too small, by a factor of 2."),
        (128, 16, "", "too large, by a factor of 8 (2^3)."),
        (49, 16, "", "too large, by a factor of about 3.1."),
        (100, 110, "", "too small, by about 9.1 %."),
        (17, 16, "", "too large by one."),
        (16777.216, 16.777216, "MB", "a factor of 1,000: one step of the prefixes k, M, G."),
        (16.777216e6, 16.777216, "MB", "a factor of 1,000,000: 2 steps of the prefixes k, M, G."),
        (16384, 16, "MiB", "a factor of 2^10: one step of the prefixes Ki, Mi, Gi."),
        (16, 16.777216, "MB", "the number of MiB, and MB are asked (1 MiB is 2^20 bytes, 1 MB is 10^6 bytes)."),
        (16.8, 16, "MiB", "the number of MB, and MiB are asked"),
        (16, 16.777216, "GB", "by about 4.6 %."),
        (-2, 16, "", "too small."),
        (0, 16, "", "too small."),
        (1e308, 1e-6, "s", "too large by far."),
        (1e-320, 3e15, "FLOP", "too small by far."),
        (1e308, 16.8, "MB", "too large by far."),
    ],
)
def test_a_wrong_number_is_told_how_far_off_it_is(typed, value, unit, words):
    assert words in how_far_off(typed, value, unit)


@given(SIZES, SIZES, st.sampled_from(["", "MB", "GiB", "sectors"]))
def test_too_large_and_too_small_are_never_exchanged(typed, value, unit):
    if typed != value:
        assert ("too large" if typed > value else "too small") in how_far_off(typed, value, unit)


def test_an_empty_and_an_unreadable_figure_are_open():
    assert judge(number(3), "  ").summary == "Nothing is typed yet."
    verdict = judge(number(3), "1,5")
    assert verdict.status == UNANSWERED and verdict.summary == "The figure cannot be read."


# ---- several figures


PARTS = Aggregate(
    "Add up.",
    tuple((name, Figure(value, "MB", "Why it is so many.", 0.01)) for name, value in (("a", 10.0), ("b", 20.0))),
    "1 Here",
)


def test_the_total_is_the_sum_of_the_true_parts():
    verdict = judge(PARTS, ["10", "20", "30"])
    assert verdict.status == RIGHT and verdict.items[2].said == "30 MB. It is the sum of the parts: 10 + 20."


@given(st.floats(-0.99, 0.99), st.floats(-0.99, 0.99))
def test_the_sum_of_accepted_parts_is_accepted(first, second):
    parts = (10 * (1 + 0.01 * first), 20 * (1 + 0.01 * second))
    assert judge(PARTS, [repr(parts[0]), repr(parts[1]), repr(sum(parts))]).status == RIGHT


def test_the_right_sum_of_wrong_parts_is_said_to_be_that():
    verdict = judge(PARTS, ["10", "5", "15"])
    assert [item.status for item in verdict.items] == [RIGHT, WRONG, WRONG]
    assert "the sum of the parts that you typed" in verdict.items[2].said
    assert verdict.summary == "Not right. 1 of 3 figures is right. Read again: “1 Here”."
    assert "sum of the parts" not in judge(PARTS, ["10", "5", "16"]).items[2].said
    assert "sum of the parts" not in judge(PARTS, ["10", "20", "15"]).items[2].said


def test_an_exact_total_stays_exact():
    asked = Aggregate(
        "Add up.", (("a", Figure(10, "", "Ten of them.")), ("b", Figure(20, "", "Twenty of them."))), "1 Here"
    )
    assert judge(asked, ["10", "20", "30"]).status == RIGHT
    assert judge(asked, ["10", "20", "30.001"]).status == WRONG


GRID = Grid(
    "Fill in.",
    ("r", "s"),
    ("c", "d"),
    tuple(tuple(Figure(n, "", "Counted one by one.") for n in row) for row in ((7, 8), (9, 10))),
    "1 Here",
)


def test_a_grid_is_judged_cell_by_cell():
    verdict = judge(GRID, [["7", "8"], ["9", "1"]])
    assert [item.status for item in verdict.items] == [RIGHT, RIGHT, RIGHT, WRONG]
    assert verdict.summary.startswith("Not right. 3 of 4 figures are right.")


def test_a_grid_with_gaps_is_open_and_says_what_is_there():
    verdict = judge(GRID, [["7", ""], ["1,5", "1"]])
    assert verdict.status == UNANSWERED
    assert verdict.summary == "Not complete: 1 of 4 figures missing, 1 that cannot be read, 1 right, 1 not right."


# ---- options and statements


def test_a_wrong_choice_explains_only_itself(demo):
    asked = question("99_demo/concept", 0)
    verdict = judge(asked, 0)
    assert verdict.status == WRONG and verdict.summary == "Not right. Read again: “1 The only section”."
    assert [item.said for item in verdict.items] == [asked.options[0].why, "", ""]
    assert judge(asked, 1).items[1].said == asked.options[1].why


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("answer", [True, False])
def test_true_or_false_is_explained_either_way(holds, answer):
    verdict = judge(TrueFalse("It is so.", holds, "Because of this.", "1 Here"), answer)
    assert verdict.status == (RIGHT if holds == answer else WRONG)
    assert f"The statement {'holds' if holds else 'does not hold'}." in verdict.summary
    assert verdict.items[0 if answer else 1].said == "Because of this." and verdict.items[answer].said == ""


VOTES = Votes(
    "Which hold?", tuple(Option(f"s{n}", f"Why {n} is as it is.", right=n in (0, 2)) for n in range(4)), "1 Here"
)


@given(st.sets(st.integers(0, 3), min_size=1))
def test_votes_give_away_no_unmarked_statement(marked):
    verdict = judge(VOTES, sorted(marked))
    if marked == {0, 2}:
        assert verdict.status == RIGHT and all(item.said for item in verdict.items)
        return
    assert verdict.status == WRONG
    for index, item in enumerate(verdict.items):
        assert (item.status == UNANSWERED) == (index not in marked)
        assert bool(item.said) == (index in marked - {0, 2})
    found, missing = len(marked & {0, 2}), len({0, 2} - marked)
    assert f"{found} of the 2 statements that hold" in verdict.summary
    assert (f"{missing} " in verdict.summary.partition("marked")[2]) == (missing > 0)


def test_no_mark_at_all_is_no_answer():
    assert judge(VOTES, []).status == UNANSWERED


# ---- every kind


def kinds(demo):
    return [question(one, 3) for one in question_ids(demo.SLUG)]


def test_the_right_answer_is_right_and_survives_json(demo):
    for asked in kinds(demo):
        answer = json.loads(json.dumps(right_answer(asked)))
        verdict = judge(asked, answer)
        assert verdict.status == RIGHT, asked
        assert len(verdict.items) == len(explained(asked))


def test_no_answer_is_open_and_gives_nothing_away(demo):
    empty = [None, None, None, [], None, "", ["", "", ""], [["", ""], ["", ""]]]
    for asked, answer in zip(kinds(demo), empty, strict=True):
        verdict = judge(asked, answer)
        assert verdict.status == UNANSWERED and not any(item.said for item in verdict.items)


@pytest.mark.parametrize("answer", [True, 7, -1, "text", [9], [1, 2], {"a": 1}, [["1"]], 1.5])
def test_an_answer_of_another_form_is_a_value_error(demo, answer):
    for asked in kinds(demo):
        try:
            verdict = judge(asked, answer)
        except ValueError as error:
            assert str(error).startswith("answer: got ")
        else:  # of this kind after all
            assert verdict.status in (RIGHT, WRONG, UNANSWERED)
            assert (asked.kind, type(answer)) in (("true-false", bool), ("number", str), ("votes", list))
