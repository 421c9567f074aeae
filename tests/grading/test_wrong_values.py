"""Words for wrong values, and for weights that are read off an output."""

import pytest
import torch

from course_utils.grading.wrong_values import first_of, one_hot_values, places, weights_in, wrong_weights

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


CAUSAL_RANDOM = torch.softmax(WEIGHTS.repeat(9, 1)[:50].log().masked_fill(CAUSAL == 0, -torch.inf), dim=1)
SWAPPED = "neighbouring keys are swapped: 0 with 1, 2 with 3, …"


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
        (WEIGHTS[:, [1, 0, *range(2, 50)]], WEIGHTS, "keys 0 to 1 have each other's weights"),
        (WEIGHTS[:, torch.arange(50) ^ 1], WEIGHTS, SWAPPED),
        (without(WEIGHTS[:, [*(torch.arange(48) ^ 1), 49, 48]], slice(None), [48])[:, :49], WEIGHTS[:, :49], SWAPPED),
        (CAUSAL_RANDOM[:, torch.arange(50) ^ 1], CAUSAL_RANDOM, SWAPPED),
        (WEIGHTS.roll(-1, dims=1), WEIGHTS, "each key has the weight of the next one"),
        (WEIGHTS[:1].roll(1, dims=1), WEIGHTS[:1], "each key has the weight of the one before"),
        (WEIGHTS[:, [*range(1, 50), 49]], WEIGHTS, "each key has the weight of the next one"),
        (WEIGHTS.flip(1), WEIGHTS, "the keys have their weights in the opposite order"),
        (
            WEIGHTS[:, [*range(5), 9, 5, 7, 8, 6, *range(10, 50)]],
            WEIGHTS,
            "keys 5 to 6 and 9 have each other's weights",
        ),
        (WEIGHTS - 0.5, WEIGHTS, None),
        (torch.ones(50, 50).tril(1).double() / 50, CAUSAL, "for query 0, key 1 has a weight, and must have none"),
    ],
)
def test_wrong_weights_have_words(got, expected, name):
    found = wrong_weights(got, expected)
    assert (found and found.name) == name


def test_weights_that_are_twice_as_large_by_chance_do_not_count_twice(request):
    """Each key has its neighbour's weight, larger by a third, but for the ends of groups of 50."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(200 if request.config.getoption("--exhaustive") else 40):
        weights = torch.softmax(0.3 * torch.randn(1, 250, generator=generator), dim=1).double()
        groups = weights.unflatten(1, (-1, 50))
        found = wrong_weights(torch.cat([groups[..., 1:] * 1.3, groups[..., -1:]], dim=2).flatten(1), weights)
        assert "twice" not in found.name


def test_a_key_besides_the_pairs_is_told_in_the_detail():
    weights = WEIGHTS[:1, :49].clone()
    got = torch.cat([weights[:, torch.arange(48) ^ 1], torch.zeros(1, 1)], dim=1)
    found = wrong_weights(got, weights)
    assert found.name == SWAPPED
    assert "which is that of key 1" in found.detail and found.detail.endswith("key 48 has no weight")


def test_wrong_weights_may_be_those_of_places_in_a_list():
    found = wrong_weights(without(WEIGHTS, 3, slice(32, None)), WEIGHTS, ("head", "place"))
    assert found.name == "for head 3, places 32 and later have no weight"
    assert found.detail.endswith("1 of 6 heads have such places")


def test_weights_are_read_off_the_output_of_one_hot_values():
    V = one_hot_values(50, 16)
    assert V.shape == (1, 4, 50, 16)
    output = WEIGHTS.float()[None, None].expand(1, 4, 6, 50) @ V
    assert torch.equal(weights_in(output, 50), WEIGHTS.float())
