"""Who wrote a cell, and from which inputs, as a recording says it, against experiments on the kernel itself.

A writer is right if the cell is another as soon as that thread leaves out that execution of that line, and the same
while all others leave it out. Of shared memory that the copy engine writes, the number is another as soon as its source
is, and the same while all else is changed. An input is missing from the origins if the cell is another once it alone is
changed.
"""

import numpy as np
import pytest

from tests.helpers.all_of import all_of
from tests.helpers.small_subjects import SUBJECTS
from tests.helpers.who_wrote import ZERO, Trial

# Of the inputs that are said, so many alter the cell, at least. The others are said because names do not tell elements
# apart: of arrays in registers all are taken, so all columns of V, and all lanes that a shuffle or a product joins, so
# other rows of Q, keys of other lanes. In the indexer a ReLU hides some, too.
SHARES = {
    "matmul_tiled": 1,
    "scores": 1,
    "softmax": 1,
    "minimal_forward": 0.4,
    "v2_tensor_cores": 0.3,
    "v2_forward": 0.3,
    "csr_gather": 0.35,
    "lightning_indexer": 0.09,
    "paged_cache": 0.5,
    "copy_engine": 0.4,
}
SAMPLE = ("softmax", "scores", "v2_tensor_cores")


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


def missing(said, alter):
    """Of each cell the inputs that alter it and are not said. said: of each cell; alter: of each input the cells."""
    return {cell: [one for one, cells in alter.items() if cells[cell] and one not in said[cell]] for cell in said}


def of_outputs(trial):
    """The inputs that each cell of outputs is said to come from."""
    return {cell: trial.origins(cell) for cell in trial.cells if cell.reader is None}


@all_of("name", SAMPLE)
def test_writers_and_inputs_of_some_cells(trial, name):
    tried = trial(name, count=4, shared=1)
    assert_writers(tried)
    rng, elements, said = np.random.default_rng(0), tried.elements(), of_outputs(tried)
    for cell, origins in said.items():
        assert origins and not tried.altered(set(elements) - origins)[cell]
    alter = {elements[n]: tried.altered([elements[n]]) for n in rng.choice(len(elements), 10, replace=False)}
    assert not any(missing(said, alter).values())


def test_a_wrong_writer_and_a_missing_input_are_noticed(trial):
    tried = trial("scores", count=4, shared=1)
    for cell in tried.cells:
        assert tried.objections(cell, tried.claim(cell).shifted())
    one, other = tried.cells[-2:]  # of outputs
    assert tried.objections(one, tried.claim(other))
    cell, *_ = said = of_outputs(tried)
    left_out = min(said[cell])
    said[cell].remove(left_out)
    assert missing(said, {left_out: tried.altered([left_out])})[cell] == [left_out]


@pytest.mark.exhaustive("all ten kernels, twenty cells of each, and each number of their inputs in turn")
@pytest.mark.parametrize("name", SUBJECTS)
def test_writers_and_inputs_of_twenty_cells(trial, name):
    tried = trial(name, count=20, shared=6)
    assert len(tried.cells) == 20
    assert_writers(tried)
    for cell in tried.cells:
        wrong = tried.claim(cell).shifted()
        assert wrong == ZERO or tried.objections(cell, wrong), f"{tried.name(cell)}: {wrong} is not refused"
    said, alter = of_outputs(tried), {one: tried.altered([one]) for one in tried.elements()}
    assert not any(missing(said, alter).values())
    share = np.mean([np.mean([alter[one][cell] for one in said[cell] if one in alter]) for cell in said])
    are_all = np.mean([tried.recording.origins(cell.array, cell.byte).is_all for cell in said])
    print(f"{name}: {share:.1%} of the {np.mean([len(one) for one in said.values()]):.0f} inputs of a cell alter it")
    print(f"{name}: of {are_all:.0%} of the cells these are said to be all")
    assert share >= SHARES[name]
