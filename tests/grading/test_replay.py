"""A wrong submission recorded: at the finding, or where the number that is furthest from right was written."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from course_utils.grading.examples import examples_of
from course_utils.grading.grader import grade_submission
from course_utils.grading.replay import replay
from course_utils.grading.result import Result
from course_utils.widgets import recorded
from course_utils.widgets.own_run import own_run, words_of
from tests.helpers.one_seed import exercise_once

ID = "02_flash_attention_minimal/online_softmax"
SUBMISSIONS = Path(__file__).parent / "submissions"


@pytest.fixture
def replayed(no_child):
    def of(name, task=ID):
        example = next(one for one in examples_of(task, SUBMISSIONS) if one.name == name)
        submission = example.submission()
        return replay(submission, grade_submission(submission, task=exercise_once(task), seed=1))

    return of


def test_a_race_opens_at_its_finding(replayed):
    found = replayed("no barrier before of_warp is read")
    finding = found.recording.findings[found.finding]
    assert finding.tool == "racecheck" and {finding.line, finding.other_line} == {54, 55}
    assert finding.step >= 0 and found.step is None


def test_a_wrong_number_opens_where_it_was_written_last(replayed):
    found = replayed("LSE in base 2")
    assert found.finding is None and found.part == "The log-sum-exp"
    assert found.recording.arrays[found.array].name == "LSE"
    meta, data = found.recording.packed()
    held, _ = recorded.bytes_before(meta, recorded.columns(meta, data), found.array, found.recording.steps)
    place = found.offset - found.recording.arrays[found.array].low
    assert held[place : place + 4].view("f4") == found.got and abs(found.got - found.expected) > 0.1
    assert found.recording.writer(found.array, found.offset).step == found.step


def test_a_number_that_is_rounded_is_not_taken_for_a_wrong_one(replayed):
    found = replayed("0 / 0 without a key", "06_serving/merge_parts")
    assert found.recording.arrays[found.array].name == "O"  # its LSE, which comes first, is right
    assert math.isnan(found.got) and found.expected == 0


def test_a_number_that_nobody_writes_is_chosen_at_the_end(replayed):
    found = replayed("four scores per thread in registers")
    name, last = found.recording.arrays[found.array].name, found.recording.steps - 1
    assert (name, found.offset % 4, found.step, found.recording.failure) == ("P", 0, None, "")
    assert found.recording.writer(found.array, found.offset) is None
    player = own_run(found)
    assert player.step == last
    assert player.meta["start"]["cell"] == {"array": found.array, "offset": found.offset}
    assert "with a wrong number of P chosen" in words_of(found)


def test_the_block_that_writes_it_is_looked_for(replayed):
    found = replayed("0 / 0 in a row without keys")
    assert found.recording.index != (0, 0, 0)
    assert found.recording.writer(found.array, found.offset).step == found.step


@pytest.mark.parametrize("name", ["l in fp64", "three passes"])  # right; and lost by what the counters say
def test_where_no_run_goes_wrong_the_first_case_opens_where_an_output_gets_its_first_number(replayed, name):
    found = replayed(name)
    assert (found.finding, found.got, found.expected) == (None, None, None)
    assert found.recording.arrays[found.array].name in ("P", "LSE")
    assert found.recording.writer(found.array, found.offset).step == found.step
    assert "Its numbers are right" in words_of(found) and own_run(found).step == found.step


def test_a_right_kernel_whose_output_begins_as_zeros_opens_where_it_gets_its_value():
    example = next(one for one in examples_of(ID, SUBMISSIONS) if one.name == "l in fp64")
    submission = example.submission()
    begin = "    // 4. The results"
    zeros = submission.kernel.replace(begin, f"    if (threadIdx.x == 0) LSE[row] = 0;\n{begin}")
    assert zeros != submission.kernel
    right = Result(ID, "", "", seed=1, device="cpu", status="ok", parts=())
    found = replay(replace(submission, kernel=zeros), right, exercise_once(ID))
    recording = found.recording
    assert recording.arrays[found.array].name == "LSE"
    assert recording.writer(found.array, found.offset).step == found.step
    assert recording.writer(found.array, found.offset, found.step) is not None  # the zero
