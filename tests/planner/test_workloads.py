"""The workloads of exercise 08.1: drawn from the record, far enough from every limit, and of all kinds."""

from collections import Counter

import pytest

from course_utils import measured
from course_utils.grading.tasks.measure_and_decide import WORKLOADS, choices, is_exact, really
from course_utils.planner.workloads import APART, ROOM, SETTLED, actual, workloads


def test_the_same_seed_gives_the_same_workloads():
    assert workloads(5, seed=1) == workloads(5, seed=1) != workloads(5, seed=2)
    assert workloads(9, seed=1)[:5] == workloads(5, seed=1)


def test_what_a_candidate_takes_is_the_record_at_the_speed_of_the_workload():
    rows = measured.load("08_choosing").select(part="choices")
    for workload in workloads(30, seed=1):
        for one in workload.candidates:
            (there,) = [row for row in rows if (row["name"], row["length"]) == (one.name, one.length)]
            assert one.length <= workload.length and one.choice == there["choice"]
            assert (one.ms * workload.speed, one.extra_bytes) == pytest.approx(
                (there["median_ms"], there["peak_extra_bytes"])
            )
            (then,) = [row for row in rows if (row["name"], row["length"]) == (one.name, workload.length)]
            found = actual(workload, one)
            assert (found is None) == (then["median_ms"] is None)
            assert found is None or found[0] * workload.speed == pytest.approx(then["median_ms"])


def test_no_target_is_near_to_a_time_and_no_memory_to_what_is_taken():
    for workload in WORKLOADS:
        for milliseconds, extra_bytes in filter(None, really(workload).values()):
            assert not 1 / APART < milliseconds / workload.target_ms < APART
            assert not 1 / ROOM < extra_bytes / workload.free_bytes < ROOM
        assert abs(workload.kept_mass - workload.wanted) >= SETTLED


def test_there_are_enough_of_each_kind_and_each_trap():
    kinds = Counter()
    for workload in WORKLOADS:
        right, taken = choices(workload, really(workload)), really(workload)
        kinds["nothing" if not right else "exact" if is_exact(workload, right[0]) else "window"] += 1
        kinds["hides nothing"] += any(one.choice == "sparse" and is_exact(workload, one) for one in right)
        kinds["loses too much"] += workload.kept_mass < workload.wanted
        kinds["does not fit"] += any(found and found[1] > workload.free_bytes for found in taken.values())
        kinds["from another length"] += any(one.length < workload.length for one in right)
    assert len(kinds) == 7 and min(kinds.values()) >= 20, kinds
