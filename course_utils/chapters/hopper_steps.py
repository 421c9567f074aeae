"""Chapter 07's ladder: how fast each step is, and how far from cuDNN."""

from __future__ import annotations

import functools

import torch

from course_utils import measured
from course_utils.bench import hopper as bench
from course_utils.chapters.timed_ladder import TimedLadder
from course_utils.launches.hopper import LADDER
from course_utils.measured import Measurement
from course_utils.operators.tensor_core import takes_wgmma

CHAPTER = "07_hopper"
LENGTH = 16384  # of the timed ladder


def figures() -> Measurement:
    """The times of the ladder: measured here on a Hopper, elsewhere recorded, on other GPUs too."""
    if takes_wgmma(torch.device("cuda" if torch.cuda.is_available() else "cpu")):
        return measured.live_or_recorded(CHAPTER, functools.partial(bench.rungs, lengths=(LENGTH,)))
    return measured.load(CHAPTER)


TIMED = TimedLadder(
    figures,
    "rungs",
    LADDER,
    (bench.CUDNN, bench.FLASH),
    LENGTH,
    f"B · L = {bench.TOKENS}, H · d = {bench.WIDTH}, fp16",
)
speed, gain, climb, whole_ladder = TIMED.speed, TIMED.gain, TIMED.climb, TIMED.whole_ladder
