"""Who wrote a cell, and from which inputs, as a recording says it, against experiments on the kernel itself.

A writer is right if the cell is another as soon as that thread leaves out that execution of that line, and the same
while all others leave it out. An input is missing from the origins if the cell is another once it alone is changed.
"""

import numpy as np
import pytest

from tests.helpers.all_of import all_of
from tests.helpers.small_subjects import SUBJECTS
from tests.helpers.who_wrote import Trial

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
    "csr_gather": 0.4,
    "lightning_indexer": 0.1,
    "paged_cache": 0.5,
    "copy_engine": 0.4,
}
SAMPLE = ("softmax", "scores", "v2_tensor_cores")


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """The trial of a subject, made once."""
    made = {}

    def get(name, outputs, shared):
        if (name, outputs, shared) not in made:
            made[name, outputs, shared] = Trial(
                SUBJECTS[name](), tmp_path_factory.mktemp(name), outputs=outputs, shared=shared
            )
        return made[name, outputs, shared]

    return get


def assert_writers(trial):
    wrong = [(trial.name(cell), *trial.objections(cell, *trial.claim(cell))) for cell in trial.cells]
    assert not [one for one in wrong if len(one) > 1]


def missing(said, alter):
    """Of each cell the inputs that alter it and are not said. said: of each cell; alter: of each input the cells."""
    return {cell: [one for one, cells in alter.items() if cells[cell] and one not in said[cell]] for cell in said}


def of_outputs(trial):
    """The inputs that each cell of outputs is said to come from."""
    return {cell: trial.origins(cell) for cell in trial.cells if cell.reader is None}


@all_of("name", SAMPLE)
def test_writers_and_inputs_of_some_cells(trial, name):
    tried = trial(name, outputs=3, shared=1)
    assert_writers(tried)
    rng, elements, said = np.random.default_rng(0), tried.elements(), of_outputs(tried)
    for cell, origins in said.items():
        assert origins and not tried.altered(set(elements) - origins)[cell]
    alter = {elements[n]: tried.altered([elements[n]]) for n in rng.choice(len(elements), 10, replace=False)}
    assert not any(missing(said, alter).values())


def test_a_wrong_writer_and_a_missing_input_are_noticed(trial):
    tried = trial("scores", outputs=3, shared=1)
    for cell in tried.cells:
        step, thread = tried.claim(cell)
        assert tried.objections(cell, step, thread ^ 1)
    one, other = tried.cells[:2]
    assert tried.objections(one, *tried.claim(other))
    cell, *_ = said = of_outputs(tried)
    left_out = min(said[cell])
    said[cell].remove(left_out)
    assert missing(said, {left_out: tried.altered([left_out])})[cell] == [left_out]


@pytest.mark.exhaustive("all ten kernels, twenty cells of each, and each number of their inputs in turn")
@pytest.mark.parametrize("name", SUBJECTS)
def test_writers_and_inputs_of_twenty_cells(trial, name, record_property):
    shared = 6 if trial(name, outputs=0, shared=1).cells else 0  # threads read shared memory
    tried = trial(name, outputs=20 - shared, shared=shared)
    assert len(tried.cells) == 20
    assert_writers(tried)
    for cell in tried.cells:
        step, thread = tried.claim(cell)
        assert tried.objections(cell, step, thread ^ 1), (
            f"{tried.name(cell)}: thread {thread ^ 1} could have written it"
        )
    said, alter = of_outputs(tried), {one: tried.altered([one]) for one in tried.elements()}
    assert not any(missing(said, alter).values())
    shares = [np.mean([alter[one][cell] for one in origins if one in alter]) for cell, origins in said.items()]
    record_property("share of the origins that alter a cell", float(np.mean(shares)))
    assert np.mean(shares) >= SHARES[name]
