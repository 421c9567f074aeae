"""How a grade is told."""

from dataclasses import replace

import pytest

from course_utils.grading.exercise import Diagnosis
from course_utils.grading.result import NOT_MEASURED, RIGHT, UNANSWERED, WRONG, PartResult, Result

RACE = "missing barrier between line 3 and line 9"
PARTS = (
    PartResult("rows", "Rows", 2, 0, WRONG, diagnosis=Diagnosis(RACE, "rows: O is wrong\na long report", "chapter 00")),
    PartResult(
        "tail", "Tail <L>", 1, 0, WRONG, diagnosis=Diagnosis(RACE, "tail: O is wrong\na long report", "chapter 00")
    ),
    PartResult("flops", "FLOP", 1, 0, UNANSWERED, diagnosis=Diagnosis("not answered yet", "", "chapter 01")),
    PartResult("lse", "LSE", 1, 1, RIGHT),
    PartResult("speed", "Speed", 2, 2, RIGHT, True, None, 0.74),
)


def result(*parts: PartResult) -> Result:
    return Result("00_start_here/conflict_free_tile", "Title", "d", 0, "cuda", "ok", parts)


@pytest.mark.parametrize("told", [str(result(*PARTS)), result(*PARTS).to_html()])
def test_a_long_report_is_told_once(told: str) -> None:
    assert told.count("a long report") == 1 and told.count(RACE) == 2
    assert "rows: O is wrong" in told and "tail: O is wrong" in told
    assert told.count("chapter 00") == 1 and told.count("chapter 01") == 1
    assert "0.74 times the reference's time" in told


def test_one_compile_error_is_told_once_and_columns_stay_apart() -> None:
    error = Diagnosis("x.cu does not compile, line 3", "line 3: expected ';'", "chapter 00")
    parts = [PartResult(str(n), f"Part, L = {n}", 1, 0, WRONG, diagnosis=error) for n in range(7)]
    for told in (str(result(*parts)), result(*parts).to_html()):
        assert told.count("does not compile") == told.count("expected") == 1
        assert told.count("as for “Part, L = 0”") == 6
    assert "L = 3</td>\n<td>wrong</td>\n<td>0 / 1</td>" in result(*parts).table_html()


def test_notes_are_told_and_kept() -> None:
    noted = replace(result(*PARTS), notes=("x (1).cu was taken as x.cu",))
    assert "x (1).cu was taken as x.cu" in str(noted) and "x (1).cu" in noted.to_html()
    assert Result.from_json(noted.to_json()) == noted and "notes" not in result(*PARTS).to_json()


def test_what_the_kernel_printed_is_told_and_kept() -> None:
    printing = replace(result(*PARTS), printed="n = 3:\n<b>")
    assert "the kernel printed:\n    n = 3:\n    <b>" in str(printing) and "n = 3:\n&lt;b&gt;" in printing.to_html()
    assert Result.from_json(printing.to_json()) == printing and "printed" not in result(*PARTS).to_json()


def test_many_printed_lines_stand_in_columns_and_a_few_below_each_other() -> None:
    few, many = (replace(result(*PARTS), printed="n = 110:\n" + "1.5\n" * count).printed_html() for count in (9, 10))
    assert "<pre>n = 110:" in few and '<pre style="columns: 10ch">n = 110:' in many


def test_html_is_escaped_and_has_no_empty_column() -> None:
    assert "Tail &lt;L&gt;" in result(*PARTS).to_html()
    hostile = Diagnosis("<b>name", "<b>detail", "<b>again")
    page = result(PartResult("rows", "Rows", 2, 0, WRONG, diagnosis=hostile)).to_html()
    assert "<b>" not in page and all(f"&lt;b&gt;{word}" in page for word in ("name", "detail", "again"))
    assert "<th>diagnosis</th>" in result(*PARTS).to_html()
    assert "diagnosis" not in result(PARTS[3]).to_html()


def test_words_of_another_parts_case_count_for_these_words() -> None:
    parts = [
        PartResult(name, name, points, 0, WRONG, diagnosis=Diagnosis(said))
        for name, points, said in (
            ("a", 5, "slow"),
            ("b", 3, "a case: key 63 has no weight"),
            ("c", 4, "key 63 has no weight"),
        )
    ]
    assert result(*parts).diagnosis.name == "key 63 has no weight"


def test_points_and_the_main_diagnosis() -> None:
    whole = result(*PARTS)
    assert (whole.earned, whole.points, whole.full) == (3, 5, False)
    assert whole.diagnosis.name == RACE
    assert result(PARTS[2]).diagnosis.name == "not answered yet"
    unmeasured = PartResult("speed", "Speed", 2, 0, NOT_MEASURED, True, Diagnosis("measured on a GPU only"))
    assert result(PARTS[3], unmeasured).full and result(PARTS[3], unmeasured).diagnosis is None


def test_json_both_ways() -> None:
    assert Result.from_json(result(*PARTS).to_json()) == result(*PARTS)


def test_a_hint_is_told_and_costs_nothing() -> None:
    hinted = replace(result(PARTS[3]), hints=("line 3: <int>",))
    assert hinted.full and Result.from_json(hinted.to_json()) == hinted
    assert str(hinted).endswith("hint, without points: line 3: <int>") and "line 3: &lt;int&gt;" in hinted.to_html()
