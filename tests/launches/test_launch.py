"""A launch is known again by its description."""

import numpy as np
import torch

from course_utils.launches import Launch
from course_utils.nvidia.measure import counter_cases
from tests.helpers.nvidia_output import LAUNCH


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
