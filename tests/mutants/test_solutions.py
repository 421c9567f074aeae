"""Changes of the solutions are found everywhere, and each costs points or is listed as one that changes nothing."""

import random

import pytest

from course_utils.grading import children
from tests.helpers.forked_child import run_fork
from tests.mutants.solutions import WITH_A_KERNEL, changes, equivalent, solution, survives

KERNEL = """\
int outside = 1 + 2;
// BEGIN SOLUTION
const int j = threadIdx.x + 32;   // 1 + 1
if (j >= L) return;
S[j] = j < TILE ? x[j] : NEG_INF;
__syncthreads();
// END SOLUTION
"""
TABLE = [change for exercise in WITH_A_KERNEL for change in changes(exercise, solution(exercise))]


def test_each_place_of_a_solution_is_changed_and_nothing_else():
    made = {(change.line, change.old.strip(), change.new) for change in changes("x", KERNEL)}
    assert made >= {
        (3, "+", "-"),
        (3, "32", "33"),
        (3, "32", "31"),
        (3, "threadIdx.x", "threadIdx.y"),
        (4, ">=", ">"),
        (5, "<", "<="),
        (5, "[j]", "[j + 1]"),
        (5, "TILE", "(TILE - 1)"),
        (5, "NEG_INF", "-1e30f"),
        (6, "__syncthreads();", ";"),
    }
    assert {line for line, _, _ in made} == {3, 4, 5, 6}
    one = next(change for change in changes("x", KERNEL) if change.old == "+")
    assert one.apply(KERNEL) == KERNEL.replace("threadIdx.x + 32", "threadIdx.x - 32")


def test_there_are_many_and_those_that_change_nothing_are_still_there():
    assert len(TABLE) >= 400 and {change.exercise for change in TABLE} == set(WITH_A_KERNEL)
    assert set(equivalent()) <= {change.key for change in TABLE}
    assert all(len(why) > 20 for why in equivalent().values())


@pytest.mark.exhaustive("40 drawn changes of the solutions: `make mutants-of-solutions` makes all of them")
@pytest.mark.parametrize("change", random.Random(0).sample(TABLE, 40), ids=str)
def test_a_changed_solution_loses_points(change, monkeypatch):
    monkeypatch.setattr(children, "run_child", run_fork)
    assert change.key in equivalent() or not survives(change, (0,))
