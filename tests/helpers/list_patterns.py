"""Patterns that block lists are made of, by name: whole, partial and missing tiles in every arrangement."""

from course_utils import patterns


def strewn(b, h, i, j):
    return (7 * i + 3 * j) % 11 < 2


def far_apart(b, h, i, j):
    """The second 64 rows see the first tile and one far behind, the first ones all between."""
    return ((i // 64) % 2 == 0) | (j < 5) | (j >= 64 * 8)


def every_second(b, h, i, j):
    return (i // 64) % 2 == 0


def diagonal(b, h, i, j):
    return i // 64 == j // 64


PATTERNS = {
    "BigBird": lambda: patterns.bigbird(block=64, global_blocks=1, window_blocks=1, random_blocks=2, seed=5),
    "BigBird, blocks of 16": lambda: patterns.bigbird(block=16, global_blocks=1, seed=5),
    "global tokens": lambda: patterns.global_tokens([0, 70]),
    "strewn": lambda: patterns.from_mask_mod(strewn),
    "far apart": lambda: patterns.from_mask_mod(far_apart),
    "every second 64 rows": lambda: patterns.from_mask_mod(every_second),
    "blocks on the diagonal": lambda: patterns.from_mask_mod(diagonal),
    "full": patterns.full,
    "causal": patterns.causal,
    "window": lambda: patterns.sliding_window(20),
}
