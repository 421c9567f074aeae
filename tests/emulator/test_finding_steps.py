"""Both parties of a finding stand at steps in which they touch the same bytes."""

import pytest

from course_utils.emulator import record
from course_utils.emulator.recorded import COPY_READ, COPY_WRITE, OPS, row_counts
from course_utils.launches.broken import BROKEN


def touched(recording, step):
    """The bytes that a step touches, and its array."""
    columns = recording.columns
    count = row_counts(columns["steps.op"], columns["steps.mask"])[step]
    first, width = columns["steps.first"][step], columns["steps.width"][step]
    offsets = columns["lanes.offset"][first : first + count].tolist()
    return columns["steps.array"][step], {byte for low in offsets for byte in range(low, low + width)}


def of(name):
    """The recording of a broken kernel, and what races there between two of the block."""
    recording = record(BROKEN[name].launch().run)
    return recording, [one for one in recording.findings if one.tool == "racecheck" and one.other_step >= 0]


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("missing_sync_in_reduction", "read"),  # and the second writes over it
        ("missing_sync_after_load", "write"),
        ("missing_syncwarp", "write"),
        ("missing_sync_before_overwrite", "read"),
        ("cp_async_two_buffers", "read"),
    ],
)
def test_the_parties_of_a_race_touch_the_same_bytes_the_second_after_the_first(name, first):
    recording, races = of(name)
    assert races
    for race in races:
        (array, mine), (other_array, its) = touched(recording, race.step), touched(recording, race.other_step)
        assert array == other_array and mine & its and race.other_step < race.step, race
        op, other_op = (OPS[recording.columns["steps.op"][step]] for step in (race.step, race.other_step))
        assert other_op == first and op.split()[-1] == {"read": "write", "write": "read"}[first]


def test_the_other_party_of_a_read_too_early_is_the_copy_that_brings_these_bytes():
    """Nobody waits for it: it lands after the last step, and the line reads another array, too."""
    recording, (race,) = of("cp_async_too_early")
    columns = recording.columns
    (array, mine), (other_array, its) = touched(recording, race.step), touched(recording, race.other_step)
    assert recording.arrays[array].name == "tile" and array == other_array and mine & its
    assert columns["steps.op"][race.other_step] == COPY_WRITE and race.step < race.other_step
    begun = columns["steps.extra"][race.other_step]
    assert columns["steps.op"][begun] == COPY_READ and begun < race.step
    landed = columns["steps.op"] == COPY_WRITE
    assert columns["steps.mask"][landed].tolist() == 4 * [0xFFFFFFFF]  # of each warp, together
    K, tile = recording.arrays[1], recording.arrays[array]
    assert (K.name, K.bytes, tile.bytes) == ("K", 2048, 2048)
    kept = columns["arrays.initial"]
    first = recording.arrays[0].bytes
    assert columns["words.value"][-512:].tobytes() == kept[first : first + 2048].tobytes()


@pytest.mark.exhaustive("copies of a longer kernel, of which the first that meets is looked for in the same way")
def test_of_many_copies_the_one_in_flight_is_named():
    recording, races = of("wait_for_one_group_less")
    assert len(races) == 3
    for race in races:
        begun = recording.columns["steps.extra"][race.other_step]
        assert begun < race.step < race.other_step
        assert touched(recording, race.step)[1] & touched(recording, race.other_step)[1]


def test_a_party_in_another_block_has_no_step():
    recording = record(BROKEN["dq_without_atomics"].launch().run)
    assert [one.other_step for one in recording.findings if "another block" in one.message] == [-1]
