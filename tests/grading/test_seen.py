"""Words for wrong values, and for weights that are read off an output."""

import pytest
import torch

from course_utils.grading.seen import first_of, one_hot_values, places, weights_in, wrong_weights

AXES = ("head", "query", "column")


def at(shape, *indices):
    wrong = torch.zeros(shape, dtype=torch.bool)
    for index in indices:
        wrong[index] = True
    return wrong


@pytest.mark.parametrize(
    "wrong, words",
    [
        (at((2, 4, 3), (1,)), "head 1; all queries; all columns"),
        (at((1, 8, 3), (0, slice(2, 5), 1)), "queries 2 to 4; column 1"),
        (at((1, 8, 3), (0, slice(6, 8))), "queries 6 and later; all columns"),
        (at((1, 8, 1), (0, 0), (0, 2), (0, 3)), "queries 0 and 2 to 3"),
        (at((1, 40, 1), (0, slice(0, 40, 3))), "14 of 40 queries, from 0 to 39"),
    ],
)
def test_places_have_names(wrong, words):
    assert places(wrong, AXES) == words
    assert places(at((3, 2), (0, 1))) == "axis 0 0; axis 1 1"


def test_the_first_wrong_value_stands_beside_the_right_one():
    expected = torch.zeros(1, 4, 2)
    assert first_of(at((1, 4, 2), (0, 2)), expected + 0.5, expected, AXES) == "query 2, column 0: expected 0, got 0.5"


WEIGHTS = torch.softmax(torch.randn(6, 50, generator=torch.Generator().manual_seed(0)), dim=1).double()
CAUSAL = torch.softmax(torch.zeros(50, 50).masked_fill(~torch.ones(50, 50).tril().bool(), -torch.inf), dim=1).double()


def without(weights, rows, keys):
    changed = weights.clone()
    changed[rows, keys] = 0
    return changed / changed.sum(dim=1, keepdim=True)


def twice(weights, keys):
    changed = weights.clone()
    changed[:, keys] *= 2
    return changed / changed.sum(dim=1, keepdim=True)


@pytest.mark.parametrize(
    "got, expected, name",
    [
        (WEIGHTS, WEIGHTS, None),
        (3 * WEIGHTS, WEIGHTS, None),
        (WEIGHTS * torch.nan, WEIGHTS, None),
        (without(WEIGHTS, slice(None), slice(32, None)), WEIGHTS, "keys 32 and later have no weight"),
        (without(WEIGHTS, 3, 7), WEIGHTS, "for query 3, key 7 has no weight"),
        (without(CAUSAL, slice(20, None), slice(3, 5)), CAUSAL, "for query 20, keys 3 to 4 have no weight"),
        (twice(WEIGHTS, [5]), WEIGHTS, "key 5 counts twice"),
        (WEIGHTS[:, [1, 0, *range(2, 50)]], WEIGHTS, "keys 0 to 1 have wrong weights"),
        (torch.ones(50, 50).tril(1).double() / 50, CAUSAL, "for query 0, key 1 has a weight, and must have none"),
    ],
)
def test_wrong_weights_have_words(got, expected, name):
    found = wrong_weights(got, expected)
    assert (found and found.name) == name


def test_wrong_weights_may_be_those_of_places_in_a_list():
    found = wrong_weights(without(WEIGHTS, 3, slice(32, None)), WEIGHTS, ("head", "place"))
    assert found.name == "for head 3, places 32 and later have no weight"
    assert found.detail.endswith("1 of 6 heads have such places")


def test_weights_are_read_off_the_output_of_one_hot_values():
    V = one_hot_values(50, 16)
    assert V.shape == (1, 4, 50, 16)
    output = WEIGHTS.float()[None, None].expand(1, 4, 6, 50) @ V
    assert torch.equal(weights_in(output, 50), WEIGHTS.float())
