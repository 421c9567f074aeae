"""Correct kernels for sm_90a of many kinds, in three orders of what is asynchronous: nothing is found, and they leave
what a GPU left. (test_asynccheck.py has larger ones.)
"""

import pytest

from course_utils import measured
from course_utils.emulator import configure, sanitize
from course_utils.nvidia.hopper import EXPLAINED
from tests.nvidia import silicon

ORDERS = [{"order": "late"}, {"order": "early"}, {"order": "random", "seed": 3}]
RECORD = measured.load("silicon").rows
RIGHT = {(row["group"], row["name"]) for row in RECORD if row["group"] != "maps" and "error" not in row}
CASES = {
    (case.group, case.name): case
    for case in silicon.cases()
    if (case.group, case.name) in RIGHT and (case.group, case.name) not in EXPLAINED
}
INTEGERS = {
    "products of bytes",
    "integers",
    "pairs and quads of small integers",
    "a matrix moved",
}  # nothing waits here
SHARES = 6


def chosen():
    """One for each body of `others` and `clusters` (of 2, 4 and 8 blocks in turn), and a few copies and products."""
    bodies = [key for key in CASES if key[0] == "others" and key[1] not in INTEGERS]
    clusters = [key for key in CASES if key[0] == "clusters"]
    bodies += [group[i % 3] for i, group in enumerate(zip(*[iter(clusters)] * 3, strict=True))]
    for name, step in (("copies", 80), ("products", 180)):
        bodies += [key for key in CASES if key[0] == name][5::step]
    return bodies


def noticed(key):
    """What is wrong, order by order."""
    problems = []
    for order in ORDERS:
        with configure(**order), sanitize() as report:
            (row,) = silicon.compare(RECORD, [CASES[key]])
        problems += [str(finding) for finding in report.findings]
        problems += [f"{order}: {row['difference']}"] if row["difference"] else []
    return problems


def test_at_least_20_kernels_are_varied():
    assert len(chosen()) >= 30


@pytest.mark.parametrize("key", chosen(), ids=": ".join)
def test_a_correct_kernel_is_clean_and_right_in_each_order(key):
    assert not noticed(key)


@pytest.mark.exhaustive("some of each group: test_a_correct_kernel_is_clean_and_right_in_each_order")
@pytest.mark.parametrize("share", range(SHARES))
def test_all_are_clean_and_right_in_each_order(share):
    """In shares, each well within a test's time on a busy machine, too."""
    assert not {key: problems for key in list(CASES)[share::SHARES] if (problems := noticed(key))}
