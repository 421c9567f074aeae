"""A kernel without one of its parts: its calls are gone, and nothing else is."""

import pytest

from course_utils.cuda import KernelSource, read_kernel
from course_utils.launches.ablations import PARTS, without
from course_utils.launches.hopper import LADDER
from course_utils.toolchain.source import statement_calls

LOOP = """    start_scores(S, shared.Q[w], f(next));
    wait_for_product<1>(S);
    if (j >= whole) mask(S, i_w, j * B_C);
    exponentials(S, rows, factor);
"""


def test_calls_of_the_part_are_left_out_and_their_statements_stay():
    source = KernelSource(LOOP, "folder/name.cu", "name.cu")
    kernel = without(source, "softmax")
    assert str(kernel) == LOOP.replace("mask(S, i_w, j * B_C);", ";").replace("exponentials(S, rows, factor);", ";")
    assert (kernel.path, kernel.name) == ("folder/name.cu", "name.cu")


@pytest.mark.parametrize("part", PARTS)
def test_every_step_calls_each_function_of_a_part_and_none_is_left(part):
    for step in LADDER:
        source = read_kernel(step.file)
        assert {call[1] for call, _ in statement_calls(source, PARTS[part])} == {*PARTS[part]}
        assert not [*statement_calls(without(source, part), PARTS[part])]
