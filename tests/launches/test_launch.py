"""A launch is known again by its description."""

import itertools

import numpy as np
import torch

from course_utils.launches import Launch, sparse_patterns
from course_utils.nvidia.measure import counter_cases
from course_utils.operators import sparse_hopper, sparse_hopper_lists, sparse_hopper_lists_backward
from course_utils.operators.attention import Call
from course_utils.operators.hopper_launch import BackwardTile
from course_utils.operators.sparse_hopper_backward import RANGE_BACKWARD
from course_utils.operators.sparse_hopper_lists import BLOCK_SPARSE_FORWARD
from course_utils.operators.sparse_hopper_lists_backward import BLOCK_SPARSE_BACKWARD
from course_utils.operators.tensor_core import BF16_OPTION, HEAD_DIMS
from course_utils.patterns import Ranges
from tests.helpers.nvidia_output import LAUNCH
from tests.helpers.tensors import random


def test_launches_are_told_apart_by_all_that_decides_their_addresses():
    def describe(**changes: object) -> str:
        return Launch(**{**vars(LAUNCH), **changes}).describe()

    index = torch.arange(8, dtype=torch.int32)
    texts = [
        describe(),
        describe(grid=(2,)),
        describe(options=("-DN=1",)),
        describe(args=(index,)),
        describe(args=(index.flip(0),)),
        describe(args=(np.int32(3),)),
    ]
    assert len(set(texts)) == len(texts)
    assert describe(args=(*torch.ones(3, 256), np.int32(300))) == describe()


def test_every_launch_has_a_name_and_a_description_of_its_own():
    cases = counter_cases()
    assert len({case.name for case in cases}) == len({case.launch.describe() for case in cases}) == len(cases)


def test_the_launch_of_an_operator_as_data_gives_what_the_operator_gives():
    query, key, value = (random(1, 2, 130, 64, dtype=torch.float16, seed=seed) for seed in range(3))
    ready = sparse_hopper.range_forward(
        Call(query.shape, key.shape, query.dtype, query.device, 0.125), Ranges(0, 20, 1)
    )
    out, lse = torch.zeros_like(query), torch.zeros(1, 2, 130)
    launch = Launch.of_ready(ready, query, key, value, out, lse)
    *_, found, found_lse, counter = launch.run()
    assert not out.any() and not counter.any(), "it runs on copies"
    ready(query, key, value, out, lse)
    assert torch.equal(found.view_as(out), out) and torch.equal(found_lse, lse)
    assert (launch.source, launch.grid) == (sparse_hopper.RANGE_FORWARD, ready.grid)


def test_the_kernels_for_hopper_under_patterns_are_watched_with_every_option_of_a_plain_softmax():
    """Those for ranges and those for block lists. The tile of three consumers is left out: its loop is chapter 07's."""
    watched = {(launch.source, frozenset(launch.options)) for launch in sparse_patterns.hard().values()}
    forward = [options for options in sparse_hopper.forward_options() if "-DCONSUMERS=2" in options]
    tiles = itertools.starmap(BackwardTile, itertools.product(HEAD_DIMS, (False, True), (False, True)))
    of_files = (
        (sparse_hopper.RANGE_FORWARD, forward),
        (RANGE_BACKWARD, [tile.options for tile in tiles]),
        (BLOCK_SPARSE_FORWARD, [sparse_hopper_lists.OPTIONS]),
        (BLOCK_SPARSE_BACKWARD, [sparse_hopper_lists_backward.OPTIONS]),
    )
    for file, found in of_files:
        assert {(file, frozenset((*options, BF16_OPTION[torch.bfloat16]))) for options in found} == {
            (source, options) for source, options in watched if source == file
        }
