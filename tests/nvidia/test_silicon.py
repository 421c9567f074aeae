"""The emulator's sm_90a beside a Hopper GPU (course_utils/measured/silicon.json): kernels leave the same bytes."""

import pytest

from course_utils import measured
from course_utils.nvidia.hopper import EXPLAINED
from tests.nvidia import silicon
from tests.nvidia.silicon import maps

# One of every n cases of a group, so that each kind of kernel is in the proof; `exhaustive` runs all.
EVERY = {"products": 30, "layouts": 23, "sums": 6, "copies": 12, "others": 3, "clusters": 5}


@pytest.fixture(scope="module")
def record():
    return measured.load("silicon")


def test_what_is_recorded_are_cases_of_every_group(record):
    recorded = {(row["group"], row["name"]) for row in record.rows if row["group"] != "maps"}
    assert recorded <= {(case.group, case.name) for case in silicon.cases()}
    assert {group for group, _ in recorded} == EVERY.keys() and len(recorded) >= 60
    assert EXPLAINED <= recorded


def test_a_tensor_map_is_the_drivers_byte_for_byte(record):
    driver = {row["name"]: row["driver"] for row in record.rows if row["group"] == "maps"}
    tried = [one for one in maps.maps() if not driver[str(one)].startswith("CUDA_ERROR")]
    assert len(tried) >= 60
    assert {str(one): one.by_us() for one in tried} == {str(one): driver[str(one)] for one in tried}


def different(record, chosen):
    return {
        (row["group"], row["case"]): row["difference"]
        for row in silicon.compare(record.rows, chosen)
        if row["difference"]
    }


def test_the_same_bytes_or_an_explained_difference(record):
    chosen = [
        case for group, n in EVERY.items() for case in [case for case in silicon.cases() if case.group == group][::n]
    ]
    assert different(record, chosen).keys() <= EXPLAINED


@pytest.mark.exhaustive("one of every few cases: test_the_same_bytes_or_an_explained_difference")
def test_all_leave_the_same_bytes_or_an_explained_difference(record):
    assert different(record, None).keys() == EXPLAINED
