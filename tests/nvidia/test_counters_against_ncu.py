"""The emulator's counters against those that ncu read on a GPU (course_utils/measured/counters.json), for every
micro-kernel and every kernel of the course. Equal, or different by exactly what is explained here. And the sanitizer
has nothing to say about the kernels of the course."""

from collections import Counter

import pytest
import torch

from course_utils import measured
from course_utils.emulator import sanitize
from course_utils.nvidia.figures import FIGURES, emulated_figures, ncu_figures
from course_utils.nvidia.measure import Case, compulsory_bytes, counter_cases
from course_utils.nvidia.validation import EXPLAINED, differences, explained_differences
from tests.helpers.one_of_each import last_of_each_kernel

CASES = {case.name: case for case in counter_cases()}
MICRO, COURSE, LARGE = ([case for case in CASES.values() if case.group == one] for one in ("micro", "course", "large"))


@pytest.fixture(scope="module")
def recorded() -> dict[str, measured.Row]:
    return {str(row["name"]): row for row in measured.load("counters").rows}


def by_name(cases: list[Case], n: int = 1) -> list:
    """A parameter for each; of those of a kernel, all but every n-th run in `make test-all` only."""
    again = pytest.mark.exhaustive("the same micro-kernels at other strides, pitches and places")
    before: Counter[str] = Counter()
    parameters = []
    for case in cases:
        marks = again if before[case.launch.kernel] % n else ()
        parameters.append(pytest.param(case, id=case.name, marks=marks))
        before[case.launch.kernel] += 1
    return parameters


def test_every_launch_is_recorded_as_it_is_now(recorded):
    assert {name: case.launch.describe() for name, case in CASES.items()} == {
        name: row["launch"] for name, row in recorded.items()
    }


def numbers(case: Case) -> int:
    return sum(arg.numel() for arg in case.launch.args if isinstance(arg, torch.Tensor))


LARGEST_FIRST = sorted(COURSE, key=numbers, reverse=True)


@pytest.mark.parametrize(
    "case", by_name(MICRO, 6) + last_of_each_kernel((case.name, case, case.launch) for case in LARGEST_FIRST)
)
def test_the_emulator_counts_what_ncu_counts(case, recorded):
    ncus = ncu_figures(recorded[case.name]["metrics"])
    assert set(ncus) == set(FIGURES), "ncu has no metric for some figure"
    with sanitize() as report:  # both watch one run, as a learner may let them
        figures = emulated_figures(case.launch)
    assert differences(figures, ncus) == explained_differences(case.name)
    assert case.group == "micro" or not report.findings, str(report)


def test_explanations_are_of_recorded_launches_and_never_of_requests_or_sectors_of_a_micro_kernel():
    explained = [
        (launch, figure, both)
        for reason in EXPLAINED
        for launch, figures in reason.launches.items()
        for figure, both in figures.items()
    ]
    assert len({(launch, figure) for launch, figure, _ in explained}) == len(explained), "explained twice"
    for launch, figure, (ours, ncus) in explained:
        assert CASES[launch].group != "large" and figure in FIGURES and ours != ncus
        if CASES[launch].group == "micro":
            assert not figure.startswith("global"), launch


@pytest.mark.parametrize("case", by_name(LARGE))
def test_no_cache_avoids_the_footprint(case, recorded):
    """From cold caches, every byte that a kernel reads comes from HBM at least once. (What it writes may still be in
    L2 when the kernel ends.)"""
    read, _ = compulsory_bytes(case.launch)
    assert recorded[case.name]["metrics"]["dram__bytes_read"] >= read


def test_a_difference_is_seen():
    same = dict.fromkeys(FIGURES, 7)
    assert differences(same, same) == {}
    assert differences(same, same | {"global load sectors": 8}) == {"global load sectors": (7, 8)}
    assert differences(same, {"global load sectors": 7}) == {}
