"""Workloads to choose an attention for, made from what chapter 08 measured: some ways to compute it, each with its time
and memory at a length that is not always the workload's, and what the model can afford.

Each workload is of a made-up GPU, so many times as fast as the one that was measured. So what its candidates take at
the workload's own length stands in no table; `actual` knows it, and the grader holds predictions and choices to it.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass

from course_utils import measured

WINDOW = 4096  # keys of the window that was measured
LONGEST_TRIED = 8192  # workloads up to this length were measured as they are
APART = 1.35  # how far a workload's target is from each time, at least: a ratio
STORED = 2.0  # so many times its real time is written-out attention predicted to take from a shorter length, at most
ROOM = 1.2  # likewise, the free memory from what a candidate takes
SETTLED = 0.02  # how far the share of attention that a window keeps is from the one that is wanted
MOST_BYTES = 141e9  # the memory of the measured GPU
WANTED, LOST = (0.8, 0.9, 0.95), 0.1  # shares; how far below the wanted one the kept one goes
NAMES = (
    "dense, written out",
    "flash_attention_v2",
    "torch FLASH",
    "torch cuDNN",
    "sliding window of 4096",
    "window of 4096, FLASH",
    "window of 4096, Flex",
)


@dataclass(frozen=True)
class Candidate:
    """One way to compute attention that runs on the workload's GPU.

    choice: "dense" (S and P stored), "flash" (the same function, neither stored) or "sparse" (a sliding window).
    length: tokens at which it was measured; ms: its time there; extra_bytes: its memory there beyond Q, K and V.
    """

    name: str
    choice: str
    length: int
    ms: float
    extra_bytes: float


@dataclass(frozen=True)
class Workload:
    """What is asked for: one layer, forward, causal, 16 heads of d = 128, fp16.

    length: tokens. target_ms: the time that a layer may take. free_bytes: the memory beyond Q, K and V.
    kept_mass: the share of attention that a window of `window` keys keeps on this model's own texts, as measured.
    wanted: the least share that it must keep. candidates: what is installed and runs. speed: how many times the
    measured GPU's this GPU's is.
    """

    length: int
    target_ms: float
    free_bytes: float
    window: int
    kept_mass: float
    wanted: float
    candidates: tuple[Candidate, ...]
    speed: float


@functools.cache
def _recorded() -> dict[tuple[str, int], Candidate]:
    """Each way at each length where it ran, on the GPU that was measured."""
    rows = measured.load("08_choosing").select(part="choices")
    return {
        (row["name"], row["length"]): Candidate(
            row["name"], row["choice"], row["length"], row["median_ms"], row["peak_extra_bytes"]
        )
        for row in rows
        if row["name"] in NAMES and row["median_ms"] is not None
    }


def actual(workload: Workload, candidate: Candidate) -> tuple[float, float] | None:
    """Milliseconds and bytes beyond Q, K and V of a candidate at the workload's length; None where it did not run."""
    found = _recorded().get((candidate.name, workload.length))
    return found and (found.ms / workload.speed, found.extra_bytes)


def workloads(count: int, seed: int) -> tuple[Workload, ...]:
    """`count` workloads, the same for the same seed."""
    draw, found = random.Random(seed), []
    while len(found) < count:
        if (one := _drawn(draw)) is not None:
            found.append(one)
    return tuple(found)


def _drawn(draw: random.Random) -> Workload | None:
    """A random workload; None if a figure lies too near to a limit for a prediction to decide."""
    length = draw.choice(sorted({length for _, length in _recorded()}))
    speed = 2 ** draw.uniform(-1, 1)
    fused, windows = NAMES[1:4], NAMES[4:]
    names = [NAMES[0], *draw.sample(fused, draw.randint(0, 3)), *draw.sample(windows, draw.randint(1, 3))]
    draw.shuffle(names)
    candidates = tuple(_measured(name, length, speed, draw) for name in names)
    wanted = draw.choice(WANTED)
    kept_mass = draw.uniform(wanted - LOST, 1.0) if length > WINDOW else 1.0
    ran = [_recorded()[name, length] for name in names if (name, length) in _recorded()]
    times = [one.ms / speed for one in ran]
    slack = [STORED if one.choice == "dense" else 1.0 for one in ran]
    bytes_taken = [one.extra_bytes for one in ran]
    target = min(times) * 2 ** draw.uniform(-1, 5)
    free = min(MOST_BYTES, draw.choice(bytes_taken) * 2 ** draw.uniform(-1, 3))
    one = Workload(length, target, free, WINDOW, kept_mass, wanted, candidates, speed)
    near = any(time / APART < target < APART * most * time for time, most in zip(times, slack, strict=True))
    near |= any(1 / ROOM < taken / free < ROOM for taken in bytes_taken)
    return None if near or abs(kept_mass - wanted) < SETTLED else one


def _measured(name: str, length: int, speed: float, draw: random.Random) -> Candidate:
    """A candidate measured at the workload's length, or for a long one at a half or a quarter of it; a candidate that
    ran out of memory there, at the longest length where it ran."""
    tried = min(length, max(LONGEST_TRIED, length // draw.choice((2, 4))))
    at = max(one for other, one in _recorded() if other == name and one <= tried)
    found = _recorded()[name, at]
    return Candidate(name, found.choice, at, found.ms / speed, found.extra_bytes)
