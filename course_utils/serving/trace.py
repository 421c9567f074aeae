"""A day's requests, and how many of them fit into a memory at a time: in pages, and with room reserved for each.

Lengths of real requests have a heavy tail: most are short, a few are very long. A cache without pages must reserve room
for the longest that may come, since it is not known how much a model will say. `simulate` runs the loop and only
counts pages, without keys, values and kernels; the real model runs the same loop.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from course_utils.measured import Row
from course_utils.serving.loop import Loop
from course_utils.serving.pages import PagedCache

REQUESTS, SHORTEST, LONGEST, TAIL = 200, 16, 512, 1.1


class Lengths(NamedTuple):
    """Tokens of a request: in its prompt, and new ones in its answer."""

    prompt: int
    new: int


def lengths(
    requests: int = REQUESTS, *, shortest: int = SHORTEST, longest: int = LONGEST, seed: int = 0
) -> list[Lengths]:
    """Lengths of requests, prompts and answers each from a Pareto law: P(length > n) = (shortest / n)^1.1, cut off at
    `longest`."""
    draw = random.Random(seed)

    def one() -> int:
        return min(int(shortest * (1 - draw.random()) ** (-1 / TAIL)), longest)

    return [Lengths(one(), one()) for _ in range(requests)]


def prompts(trace: Sequence[Lengths], text: str, *, seed: int = 0) -> list[list[int]]:
    """Tokens for the prompts of a trace, each a piece of a text from a place drawn at random; a text that is too short
    begins again."""
    draw, tokens = random.Random(seed), text.encode()
    starts = (draw.randrange(len(tokens)) for _ in trace)
    return [
        [tokens[(start + j) % len(tokens)] for j in range(one.prompt)] for start, one in zip(starts, trace, strict=True)
    ]


def counted(cache: PagedCache, batch: Sequence[tuple[int, Sequence[int]]]) -> list[int]:
    """Stands in for a model's `next_tokens`: the length of each sequence."""
    return [cache.length(sequence) for sequence, _ in batch]


def simulate(
    trace: Sequence[Lengths], *, pages: int, page_size: int = 16, reserve: int | None = None, **options: int
) -> Loop:
    """A loop after it has served a trace without a model; all requests are there from the start. reserve, options: as
    for `Loop`. Its `history` says what happened."""
    loop = Loop(counted, PagedCache(pages, page_size), reserve=reserve, **options)
    for prompt, new in trace:
        loop.submit([0] * prompt, new)
    loop.run()
    return loop


def summary(loop: Loop) -> Row:
    """The steps of a loop in figures, as a row.

    steps; tokens: new ones; at_once, most_at_once: requests in a step, mean and most; preempted: how
    often; again: share of all computed tokens that had been computed before, and lost; waste: share of the taken rows
    of the cache that hold no token, mean over the steps.
    """
    batches = [len(step.batch) for step in loop.history]
    computed = sum(count for step in loop.history for _, count in step.batch)
    new = sum(len(request.said) for request in loop.requests)
    needed = sum(len(request.prompt) + len(request.said) - 1 for request in loop.requests)
    return {
        "steps": len(batches),
        "tokens": new,
        "at_once": statistics.fmean(batches),
        "most_at_once": max(batches),
        "preempted": sum(request.preemptions for request in loop.requests),
        "again": 1 - needed / computed,
        "waste": statistics.fmean(step.usage.waste for step in loop.history),
    }
