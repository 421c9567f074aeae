"""Kernels with hooks where learners err: none pulled they are right, each mistake shows, a new one takes two lines."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from course_utils.emulator import sanitize
from course_utils.grading import mistakes
from course_utils.grading.catalog import EXERCISE_IDS, SOLUTIONS, exercise
from course_utils.grading.diagnosis import diagnose, wrong_values
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Outcome, Output, Part, Variant
from course_utils.grading.job import still_blank
from course_utils.grading.mistakes import give, give_in_places, read_mistakes
from course_utils.grading.release import make_exercises

MINI_FLASH = "02_flash_attention_minimal/mini_flash"
WITH_HOOKS = [one for one in EXERCISE_IDS if (SOLUTIONS / f"{one}_mistakes.cuh").is_file()]

KERNEL = """__constant__ int N;   // an option of the solution
extern "C" __global__ void twice(const float* x, float* out, int n) {
    const Variant variant = variants[variant_number()];
    const int i = blockIdx.x * N + threadIdx.x;
    out += variant_number() * n;
    const float factor = WRONG(KEPT, 2, 1);
    out[i] = factor * x[i];
}
"""
TABLE = """
[read]
why = "01 Attention basics, section 1, 'Why'"

[mistakes]
"KEPT" = ["nothing is doubled", "out is 2 x", "why"]
"""
THE_HOOK = "    out[i] = factor * x[i] + WRONG(ADDED, 0, variant.value);\n"
THE_ROW = '"ADDED 1, ADDED KEPT -1" = ["{} is added", "out is 2 x alone", "why"]\n'


@pytest.fixture
def named(tmp_path):
    """named(kernel, table, *outs) -> what is said of the last of a learner's outputs, a case each, where these are the
    files of an exercise."""
    x = torch.arange(1.0, 65.0)
    launch = Launch("twice", (8,), (8,), ("x", "out", np.int32(64)), ("-DN=8",))
    case = Case("p", "c", (launch,), {"x": x}, {"out": Output(2 * x.double())})

    def name(kernel, table, *outs):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        (folder / "twice_mistakes.cuh").write_text(kernel, encoding="utf-8")
        (folder / "twice_mistakes.toml").write_text(table, encoding="utf-8")
        task = Exercise("twice", "t", (Part("p", 1, "p"),), ("twice",), mistakes=read_mistakes("twice", folder))
        cases = [replace(case, given={}) for _ in outs]
        *_, said = diagnose(task, cases, [Outcome({"out": out(x)}) for out in outs])
        return said and said.name

    return name


def test_a_teacher_adds_a_mistake_in_two_lines(named):
    """One in the kernel, one in the table: two ways to make it."""
    plus_one, minus_one = (lambda x: 2 * x + 1), (lambda x: x - 1)
    assert named(KERNEL, TABLE, plus_one) == "out is wrong"
    kernel = KERNEL.replace("    out[i] = factor * x[i];\n", THE_HOOK)
    assert [named(kernel, TABLE + THE_ROW, out) for out in (plus_one, minus_one)] == ["1 is added", "-1 is added"]
    assert named(kernel, TABLE + THE_ROW, lambda x: x) == "nothing is doubled"
    assert named(kernel, TABLE + THE_ROW, lambda x: 2 * x) is None


def test_a_case_of_nothing_but_infinities_does_not_end_the_search(named):
    not_doubled = torch.clone
    assert named(KERNEL, TABLE, lambda x: torch.full_like(x, math.inf), not_doubled) == "nothing is doubled"
    assert named(KERNEL, TABLE, lambda x: x + 5, not_doubled) == "out is wrong"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ('"A B C D E" = ["a", "b", "why"]', "takes 1 to 4 hooks"),
        ('"3" = ["a", "b", "why"]', "takes 1 to 4 hooks"),
        ('"A" = ["a", "b", "where"]', "a key of \\[read\\]"),
        ('"A" = ["a", "why"]', "takes what is said, why"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(named, row, says):
    with pytest.raises(ValueError, match=rf"twice_mistakes.toml.*{says}"):
        named(KERNEL, f"{TABLE}{row}\n", lambda x: x)


def test_there_are_no_known_mistakes_where_the_solutions_are_not_there_or_must_not_be_read(tmp_path, monkeypatch):
    assert read_mistakes(MINI_FLASH, tmp_path) == ()

    def refuse(*_, **__):
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refuse)
    assert read_mistakes(MINI_FLASH) == ()


def test_mistakes_that_do_not_compile_here_cost_a_warning_and_no_grade(named):
    with pytest.warns(UserWarning, match="known mistakes of twice_mistakes.cuh were not tried"):
        assert named(KERNEL.replace("factor * x[i]", "factor * y[i]"), TABLE, lambda x: x) == "out is wrong"


def test_kernels_with_hooks_and_their_tables_are_not_released(tmp_path):
    make_exercises(SOLUTIONS, tmp_path)
    assert list(tmp_path.rglob("*.cu")) and not list(tmp_path.rglob("*_mistakes*"))


def cases_of(exercise_id):
    task = exercise(exercise_id)
    made = list(task.cases(torch.Generator().manual_seed(3), {}))
    made += task.experiments(torch.Generator().manual_seed(3)) if task.experiments else []
    return [case for case in made if not case.reference and case.names]


def kernel_of(exercise_id):
    return SOLUTIONS / f"{exercise_id}_mistakes.cuh"


@pytest.mark.parametrize("exercise_id", WITH_HOOKS)
def test_with_no_hook_pulled_the_kernel_is_right(exercise_id):
    nothing = Mistake(Diagnosis("nothing"), variant=Variant(kernel_of(exercise_id), ()))
    for case in cases_of(exercise_id):
        give([nothing], case)
        assert wrong_values(case, case.given[nothing]) is None, case.name


@pytest.mark.parametrize("exercise_id", WITH_HOOKS)
def test_a_table_has_the_hooks_of_its_kernel(exercise_id):
    """One that the table lacks does not compile; one that the kernel lacks would never be named."""
    text = kernel_of(exercise_id).read_text(encoding="utf-8")
    assert [hook for hook in mistakes._hooks(kernel_of(exercise_id)) if not re.search(rf"\b{hook}\b", text)] == []


ALL_MISTAKES = pytest.mark.exhaustive("all mistakes: the known submissions of `make test` have one of each kind")


@ALL_MISTAKES
@pytest.mark.parametrize("exercise_id", WITH_HOOKS)
def test_each_way_to_make_a_mistake_shows_in_a_case(exercise_id):
    known, shown = [one for one in exercise(exercise_id).mistakes if one.variant], set()
    for case in cases_of(exercise_id):
        give(known, case)
        shown |= {one for one in known if wrong_values(case, case.given[one]) is not None}
    assert [one.variant for one in known if one not in shown] == []


@ALL_MISTAKES
@pytest.mark.parametrize("exercise_id", WITH_HOOKS)
def test_a_kernel_with_a_mistake_stays_in_its_arrays(exercise_id):
    """Else it would take the others of its launch with it. One case of each part, and of large grids some blocks."""
    known = exercise(exercise_id).mistakes
    for case in {case.part: case for case in cases_of(exercise_id)}.values():
        with sanitize() as report:
            if not give_in_places(known, case):
                give(known, case)
        assert [str(one) for one in report.findings if one.tool == "memcheck"] == [], case.name


def test_a_quick_look_takes_some_blocks_of_the_grid():
    case = next(case for case in cases_of(MINI_FLASH) if math.prod(case.launches[0].grid) >= 6)
    known = exercise(MINI_FLASH).mistakes
    quick = give_in_places(known, case)
    give(known[:1], case)
    some, whole = quick[known[0]]["O"], case.given[known[0]]["O"]
    written = ~still_blank(some)
    assert written.any() and not written.all() and torch.equal(some[written], whole[written])
    assert give_in_places(known[:4], case) == {}  # few are run on all blocks at once
