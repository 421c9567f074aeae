"""Hints from the text of a kernel: offsets that overflow, and nothing said of a kernel that is right."""

from pathlib import Path

import pytest

from course_utils.grading.catalog import EXERCISE_IDS
from course_utils.grading.examples import examples_of
from course_utils.grading.hints import hints

SUBMISSIONS = Path(__file__).parent / "submissions"
KERNEL = """extern "C" __global__ void k(const float* Q, float* O, int L, float scale) {
    const int head = blockIdx.y, i = threadIdx.x;
    const long long row = blockIdx.x;
    LINE
}
"""


@pytest.mark.parametrize(
    "line, flagged",
    [
        ("Q += head * L * 64;", True),
        ("Q += head * L * 64, O += (long long)head * L * 64;", True),
        ("O[i * L + 3] = scale;", True),
        ("const float* q = Q + (head * L + i) * 64;", True),
        ("Q += (long long)head * L * 64;", False),
        ("Q += (size_t)head * L * 64;", False),
        ("O[row * L + i] = Q[i];", False),
        ("O[i * 64] = Q[i + 32];   // head * L", False),
        ("float s[8]; s[i * L] = 0;", False),
    ],
)
def test_an_offset_of_32_bits_is_told_with_its_line(line, flagged):
    found = hints(KERNEL.replace("LINE", line))
    assert [hint.partition(":")[0] for hint in found] == (["line 4"] if flagged else [])


@pytest.mark.parametrize("exercise_id", EXERCISE_IDS)
def test_solutions_and_skeletons_need_none(exercise_id):
    for example in examples_of(exercise_id, SUBMISSIONS):
        if example.kind in ("solution", "skeleton"):
            assert hints(example.kernel or "") == ()
