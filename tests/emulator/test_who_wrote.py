"""Who wrote a cell, as a recording says it, against experiments on the kernel itself.

A writer is right if the cell is another as soon as that thread leaves out that execution of that line, and the same
while all others leave it out. Of shared memory that the copy engine writes, the number is another as soon as its source
is, and the same while all else is changed.
"""

import pytest

from tests.helpers.all_of import all_of
from tests.helpers.small_subjects import SUBJECTS
from tests.helpers.who_wrote import ZERO, Trial

SAMPLE = ("softmax", "v2_tensor_cores")


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """A subject's trial, made once."""
    made = {}

    def get(name, **counts):
        key = name, *counts.values()
        if key not in made:
            made[key] = Trial(SUBJECTS[name](), tmp_path_factory.mktemp(name), **counts)
        return made[key]

    return get


def assert_writers(trial):
    wrong = [(trial.name(cell), *trial.objections(cell, trial.claim(cell))) for cell in trial.cells]
    assert not [one for one in wrong if len(one) > 1]


@all_of("name", SAMPLE)
def test_writers_of_some_cells(trial, name):
    assert_writers(trial(name, count=4, shared=1))


def test_a_wrong_writer_is_noticed(trial):
    tried = trial("scores", count=4, shared=1)
    for cell in tried.cells:
        assert tried.objections(cell, tried.claim(cell).shifted())
    one, other = tried.cells[-2:]  # of outputs
    assert tried.objections(one, tried.claim(other))


@pytest.mark.exhaustive("all ten kernels, twenty cells of each")
@pytest.mark.parametrize("name", SUBJECTS)
def test_writers_of_twenty_cells(trial, name):
    tried = trial(name, count=20, shared=6)
    assert len(tried.cells) == 20
    assert_writers(tried)
    for cell in tried.cells:
        wrong = tried.claim(cell).shifted()
        assert wrong == ZERO or tried.objections(cell, wrong), f"{tried.name(cell)}: {wrong} is not refused"
