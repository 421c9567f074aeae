"""`bench PATTERN`: what is counted of a pattern without a GPU."""

import pytest

from course_utils import patterns
from course_utils.bench import one_pattern
from course_utils.bench.subjects import SUBJECTS


def test_counts_are_those_of_the_mask():
    (row,) = one_pattern.counts(patterns.local(40), [200], heads=2, head_dim=64)
    mask = patterns.local(40).mask(200)
    assert row["pairs"] == mask.sum() and row["density"] == mask.sum() / 200**2
    assert (row["blocks"], row["visited"], row["kernel"]) == (16, 10, "range")
    assert row["useful_gflop"] == pytest.approx(4 * 64 * 2 * row["pairs"] / 1e9)


def test_blocks_of_a_dilated_pattern_are_counted_in_its_residue_classes():
    (row,) = one_pattern.counts(patterns.dilated(20, 3), [385], heads=1, head_dim=64)  # classes of 129, 128 and 128
    assert (row["visited"], row["partial"]) == (5 + 3 + 3, 5 + 3 + 3)


def test_every_pattern_of_numbers_is_a_subject():
    numeric = [
        name
        for name in ("causal", "sliding_window", "dilated", "power_of_two", "strided", "fixed", "streaming", "full")
        + ("local", "local_2d", "block_diagonal", "random_blocks", "bigbird", "document", "global_tokens", "tree")
    ]
    assert list(one_pattern.PATTERNS) == numeric and set(numeric) < set(SUBJECTS)
