"""Names for what is wrong, from made-up outcomes: no kernel runs here."""

from dataclasses import replace

import pytest
import torch

from course_utils.emulator.sanitizer import Finding
from course_utils.grading.diagnosis import Matches, diagnose, unsettled
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Mistake, Outcome, Output, Part
from course_utils.grading.job import blank
from tests.helpers.all_of import all_of

RIGHT = torch.arange(1.0, 9.0, dtype=torch.float64)
DOUBLED = Mistake(Diagnosis("everything is doubled"), lambda case: {"out": 2 * case.outputs["out"].expected})
NEGATED = Mistake(Diagnosis("the sign is wrong"), lambda case: {"out": -case.outputs["out"].expected})
EXERCISE = Exercise(
    "00_start_here/conflict_free_tile", "made up", (Part("p", 1, "p"),), mistakes=(NEGATED, DOUBLED), kernels=("k",)
)


def case(name: str = "case", *, clean: bool = False, **rest) -> Case:
    return Case("p", name, (), {}, {"out": Output(RIGHT)}, must_be_clean=clean, **rest)


def name_of(outcome: Outcome, made: Case | None = None) -> str | None:
    found = diagnose(EXERCISE, [made or case()], [outcome])[0]
    return found and found.name


def out(values: torch.Tensor, *findings: Finding) -> Outcome:
    return Outcome({"out": values.float()}, findings=findings)


def finding(tool: str, kind: str, line: int | None = 7, **data) -> Finding:
    return Finding(tool, "...", "k", "k.cu", line, "code", (0, 0, 0), (1, 0, 0), kind=kind, **data)


RACE = finding("racecheck", "read after write", 38, other_line=31, space="shared")
PAST = finding("memcheck", "out of bounds", space="global", bytes=4, array="K", side="past", numbers=(0, 1, 64))


def test_right_values_have_no_diagnosis() -> None:
    assert name_of(out(RIGHT)) is None


def test_a_known_mistake_is_named() -> None:
    assert name_of(out(2 * RIGHT)) == "everything is doubled"
    assert name_of(out(-RIGHT)) == "the sign is wrong"


def test_one_mistake_in_many_cases_goes_before_several() -> None:
    zeros = Case("p", "zeros", (), {}, {"out": Output(torch.zeros(8, dtype=torch.float64))})
    found = diagnose(EXERCISE, [case(), case(), zeros], [out(2 * RIGHT), out(-RIGHT), out(RIGHT)])
    assert [d and d.name for d in found] == ["everything is doubled", "the sign is wrong", "out is wrong"]


def test_a_simulated_mistake_is_looked_for_in_every_case_of_a_part() -> None:
    zeros = Case("p", "zeros", (), {}, {"out": Output(torch.zeros(8, dtype=torch.float64))})
    found = diagnose(EXERCISE, [zeros, case()], [out(RIGHT), out(2 * RIGHT)])
    assert [d and d.name for d in found] == ["out is wrong", "everything is doubled"]


def test_a_mistake_that_would_show_where_the_kernel_is_right_is_not_named() -> None:
    other = Case("p", "other", (), {}, {"out": Output(RIGHT)})
    assert [d and d.name for d in diagnose(EXERCISE, [case(), other], [out(2 * RIGHT), out(RIGHT)])] == [
        "out is wrong",
        None,
    ]
    hidden_there = replace(
        EXERCISE, mistakes=(replace(DOUBLED, simulate=lambda c: None if c is other else DOUBLED.simulate(c)),)
    )
    found = diagnose(hidden_there, [case(), other], [out(2 * RIGHT), out(RIGHT)])
    assert [d and d.name for d in found] == ["everything is doubled", None]


def test_values_without_a_name_are_told_by_the_place_or_by_a_case_that_can_read_them() -> None:
    got = torch.arange(12.0).reshape(1, 3, 4)
    made = Case("p", "c", (), {}, {"out": Output(got.double(), axes=("head", "query", "column"))})
    got[0, 1:, 2] = -1
    (seen,) = diagnose(EXERCISE, [made], [Outcome({"out": got})])
    assert seen.name == "out is wrong"
    assert seen.detail.startswith(
        "c: 2 of 12 elements differ: queries 1 and later; column 2\n"
        "the first at query 1, column 2: expected 6, got -1\nout: WRONG ("
    )
    assert "max error" in seen.detail.splitlines()[2]
    reads = replace(made, name="reading", explain=lambda case, outputs: Diagnosis("column 2 is lost", "see"))
    found = diagnose(EXERCISE, [made, reads], [Outcome({"out": got})] * 2)
    assert [(d.name, d.detail) for d in found] == [("column 2 is lost", "reading: see")] * 2


def test_words_of_a_case_of_another_part_carry_its_name() -> None:
    made = Case("q", "of q", (), {}, {"out": Output(RIGHT)})
    reads = replace(case("reading"), explain=lambda case, outputs: Diagnosis("for query 0, key 1 has no weight", "see"))
    found = diagnose(EXERCISE, [made, reads, replace(made, part="p")], [out(RIGHT + 1)] * 3)
    words = "for query 0, key 1 has no weight"
    assert [d.name for d in found] == [f"reading: {words}", words, words]


def test_an_exercise_may_tell_its_findings_and_errors_from_all_cases_together() -> None:
    """Not where nothing was found, and in place of a known mistake."""
    said = Diagnosis("one barrier too few", "Look at the ring.")
    task = replace(EXERCISE, diagnose_findings=lambda cases, outcomes: [said] * len(cases))
    stuck = Outcome(error="deadlock: nobody goes on", kind="deadlock")
    found = diagnose(task, [case() for _ in range(3)], [out(2 * RIGHT), out(2 * RIGHT, RACE), stuck])
    assert [one.name for one in found] == ["everything is doubled", "one barrier too few", "one barrier too few"]
    assert diagnose(task, [case()], [out(RIGHT)]) == [None]
    assert found[2].detail == "Look at the ring.\ncase: deadlock: nobody goes on"


def test_experiments_are_asked_where_there_is_no_name_or_more_than_one() -> None:
    assert unsettled(EXERCISE, [case()], [out(RIGHT + 1)], Matches())
    assert not unsettled(EXERCISE, [case()], [out(2 * RIGHT)], Matches())
    assert not unsettled(EXERCISE, [case()], [out(RIGHT)], Matches())
    assert not unsettled(EXERCISE, [case()], [out(RIGHT + 1, RACE)], Matches())
    twin = Mistake(Diagnosis("2 is added to the power"), DOUBLED.simulate)
    assert unsettled(replace(EXERCISE, mistakes=(DOUBLED, twin)), [case()], [out(2 * RIGHT)], Matches())


def test_other_wrong_values_are_described() -> None:
    assert name_of(out(torch.full((8,), float("nan")))) == "out is NaN everywhere"
    assert name_of(out(blank((8,), torch.float32))) == "out is never written"
    assert name_of(out(torch.zeros(8))) == "out is all zeros"
    assert name_of(out(RIGHT / 0)) == "out is infinite everywhere"
    assert name_of(out(torch.cat([RIGHT[:4], RIGHT[4:] / 0]))) == "out is infinite in places"
    assert name_of(out(RIGHT + 1)) == "out is wrong"
    half = RIGHT.clone()
    half[3] = float("nan")
    assert name_of(out(half)) == "out is NaN in places"
    half[3] = blank((1,), torch.float32)
    assert name_of(out(half)) == "out is never written in places"


def test_exact_outputs_must_not_differ_by_one_element_up_or_down() -> None:
    expected = torch.arange(8, dtype=torch.int32)
    exact = Case("p", "exact", (), {}, {"out": Output(expected, dtype=torch.int32, kind="exact")})
    for step in (1, 0, -1):
        got = expected.clone()
        got[3] += step
        assert name_of(Outcome({"out": got}), exact) == ("out is wrong" if step else None)


def test_minus_infinity_belongs_exactly_where_it_is_expected() -> None:
    expected = RIGHT.clone()
    expected[2] = -torch.inf
    hidden = Case("p", "hidden", (), {}, {"out": Output(expected)})
    assert name_of(out(expected), hidden) is None
    assert name_of(out(RIGHT), hidden) == "out is not −∞ where it must be"
    assert name_of(out(expected.roll(1)), hidden) == "out is −∞ in the wrong places"


def test_a_finding_names_wrong_values_that_no_mistake_explains() -> None:
    assert name_of(out(RIGHT + 1, RACE)) == "missing barrier between line 31 and line 38"
    assert name_of(out(2 * RIGHT, RACE)) == "everything is doubled"


def test_a_mistake_that_leaves_only_infinities_is_named_by_their_signs_and_nan_is_no_evidence() -> None:
    def named(values: torch.Tensor, got: torch.Tensor) -> str:
        mistake = Mistake(Diagnosis("the sum stays 0"), lambda case: {"out": values})
        return diagnose(replace(EXERCISE, mistakes=(mistake,)), [case()], [out(got)])[0].name

    signs = torch.tensor([1.0, -1.0] * 4).double()
    assert named(signs / 0, signs / 0) == "the sum stays 0"
    assert named(signs / 0, -signs / 0) == "out is infinite everywhere"
    assert named(RIGHT / 0, RIGHT / 0) == "out is infinite everywhere"  # one infinity is no evidence, either
    assert named(RIGHT * float("nan"), RIGHT * float("nan")) == "out is NaN everywhere"


def test_a_local_variable_of_an_outputs_name_is_named_where_the_output_is_never_written() -> None:
    source = (
        "__global__ void k(const float* a, float* out) {\n  if (a[0]) {\n    float out = 0;\n    out += a[0];\n  }\n}"
    )
    (said,) = diagnose(EXERCISE, [case()], [out(blank((8,), torch.float32))], source)
    assert said.name == "a variable out hides the parameter out (line 3)" and said.detail.startswith("case: ")
    elsewhere = diagnose(EXERCISE, [case()], [out(blank((8,), torch.float32))], source.replace("float out", "float o"))
    assert elsewhere[0].name == "out is never written"
    assert diagnose(EXERCISE, [case()], [out(RIGHT + 1)], source)[0].name == "out is wrong"


def test_a_variable_without_a_value_names_wrong_values_unless_there_is_a_finding() -> None:
    unset = "z is used before its value is set (line 4)"
    assert name_of(replace(out(RIGHT + 9), unset=unset)) == unset
    assert name_of(replace(out(2 * RIGHT), unset=unset)) == unset
    assert name_of(replace(out(RIGHT), unset=unset)) is None
    assert name_of(replace(out(RIGHT + 9, RACE), unset=unset)) != unset


def test_a_race_goes_around_the_loop_only_where_a_barrier_surely_stands_between_its_lines() -> None:
    def said(*between: str) -> str | None:
        race = replace(RACE, line=1, other_line=len(between) + 2)
        source = "\n".join(["tile[x] = 1;", *between, "sum += tile[y];"])
        return diagnose(EXERCISE, [case()], [out(RIGHT + 1, race)], source)[0].name

    straight, around = (
        "missing barrier between line 1 and line {}",
        "missing barrier between line {} and line 1, around",
    )
    for between in (
        ["__syncthreads();"],
        ["}", "__syncthreads();", "for (int c = 0; c < 4; ++c) {"],
        ["{", "__syncthreads();"],
        ["if (n > 32) x = 1;", "__syncthreads();"],
    ):
        assert said(*between).startswith(around.format(len(between) + 2)), between
    for between in (
        ["// __syncthreads();"],
        ["if (n > 32) __syncthreads();"],
        ["if (n > 32) { __syncthreads(); }"],
        ["if (n > 32) {", "    __syncthreads();", "}"],
        ["for (int i = 0; i < n; ++i) {", "if (i) {", "__syncthreads();", "}", "} {"],
    ):
        assert said(*between) == straight.format(len(between) + 2), between


def test_a_finding_fails_right_values_only_where_the_case_must_be_clean() -> None:
    assert name_of(out(RIGHT, RACE)) is None
    assert name_of(out(RIGHT, RACE), case(clean=True)) == "missing barrier between line 31 and line 38"


def test_one_of_several_writers_is_enough_only_where_the_values_are_right() -> None:
    same_line = finding("racecheck", "write after write", other_line=7, space="global")
    said = "several threads write the same place (line 7)"
    assert name_of(out(RIGHT, same_line), case(clean=True)) == f"{said}: one of them is enough"
    assert name_of(out(RIGHT + 1, same_line), case(clean=True)) == said


VECTOR = finding("memcheck", "misaligned", name="const struct float4", alignment=16, numbers=(4,))
OF_ANOTHER_BLOCK = {"other_line": 9, "other_block": (1, 0, 0), "space": "global"}
IN_PLAIN_WORDS = (
    (PAST, "K is read past its end"),
    (replace(PAST, side="over", bytes=16), "K is read past its end"),
    (replace(PAST, is_write=True, side="before"), "K is written before its start"),
    (replace(PAST, is_write=True, array="", side=""), "memory that belongs to no argument is written"),
    (VECTOR, "float4 at an address that is no multiple of 16 bytes"),
    (replace(VECTOR, by="an atomic", name=""), "an atomic at an address that is no multiple of 16 bytes"),
    (finding("initcheck", "uninitialised", space="shared"), "shared memory is read before it is written"),
    (finding("synccheck", "lane has left", numbers=(5, 21)), "a shuffle reads a lane that has left the kernel"),
    (finding("racecheck", "write after write", **OF_ANOTHER_BLOCK), "several blocks write the same memory"),
    (finding("racecheck", "read after write", **OF_ANOTHER_BLOCK), "a block needs what another writes"),
    (finding("synccheck", "divergent barrier"), "synccheck: ..."),
)


@all_of("one", IN_PLAIN_WORDS)
def test_findings_in_plain_words(one) -> None:
    found, said = one
    assert name_of(out(RIGHT, found), case(clean=True)) == f"{said} (line 7)"


def test_an_index_outside_of_an_array_of_the_kernel() -> None:
    for index, where in ((8, "past its end"), (-1, "before its start")):
        outside = finding("memcheck", "index out of bounds", name="float [8]", numbers=(index,))
        assert name_of(out(RIGHT, outside), case(clean=True)) == f"an array of the kernel is used {where} (line 7)"


def test_errors_have_names_of_their_own() -> None:
    assert name_of(Outcome(error="x.cu:3: boom", kind="crash", line=3)) == "the kernel crashes, line 3"
    failed = Outcome(error="illegal address", kind="gpu", findings=(PAST,))
    assert name_of(failed) == "K is read past its end (line 7)"
    outside = finding("memcheck", "index out of bounds", name="float [8]", numbers=(8,))
    assert (
        name_of(replace(failed, kind="died", findings=(outside,)))
        == "an array of the kernel is used past its end (line 7)"
    )
    assert name_of(Outcome(error="...", kind="time limit", line=9)) == "the kernel does not end in time, line 9"
    assert name_of(Outcome(error="killed", kind="memory limit")).startswith("the kernel took its process down")
    assert name_of(Outcome(error="no kernel", kind="missing")) == "no kernel"


def test_the_review_of_counters_comes_last() -> None:
    slow = case(review=lambda case, outcome: Diagnosis("too many sectors"))
    assert name_of(out(RIGHT), slow) == "too many sectors"
    assert name_of(out(2 * RIGHT), slow) == "everything is doubled"


def test_findings_are_asked_for_by_a_kind_that_there_is() -> None:
    outcome = out(RIGHT, RACE, PAST)
    assert outcome.found("out of bounds") == [PAST] and not outcome.found("misaligned")
    with pytest.raises(ValueError, match="kind takes a kind of finding, got 'missaligned'"):
        outcome.found("missaligned")
