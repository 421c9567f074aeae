"""Questions of chapter 03's second notebook: gradients in 16 bits, the backward pass. Their ids are the chapter's."""

import math
from random import Random

import torch

from course_utils import measured
from course_utils.questions.question import Choice, Option, Question, Source, Votes


def a_loss_that_stays(draw: Random) -> Question:
    """A factor for the loss"""
    smallest = draw.choice((-40, -38, -36))  # exponents of 2; unscaled, all that is in between is 0 in fp16
    largest = smallest + draw.choice((8, 10))
    half = torch.finfo(torch.float16)
    first, end = round(math.log2(half.smallest_normal)), round(math.log2(half.max))
    fits = first - smallest + 2
    options = [
        Option(
            f"{_power(fits)}",
            f"Scaled, they lie between {_power(smallest + fits)} and {_power(largest + fits)}, where fp16 has all its "
            "digits.",
            right=True,
        ),
        Option(
            f"{_power(fits - 8)}",
            f"The smallest become {_power(smallest + fits - 8)}: subnormal, with few digits left.",
        ),
        Option(
            f"{_power(end - largest + 4)}",
            f"The largest become {_power(end + 4)}: infinity in fp16.",
        ),
        Option(
            f"None: a learning rate {_power(fits)} times as high does the same",
            "The learning rate multiplies gradients that are rounded already. A 0 stays 0.",
        ),
    ]
    draw.shuffle(options)
    return Choice(
        prompt=(
            f"In bf16 a model learns; its gradients in attention lie between {_power(smallest)} and {_power(largest)}. "
            f"In fp16 the loss does not move. fp16 has all its digits from {_power(first)} on and ends just below "
            f"{_power(end)}. By which factor do you scale the loss in fp16?"
        ),
        options=tuple(options),
        read_again="10 Gradients that vanish",
        kind="scenario",
    )


def _power(exponent: int) -> str:
    """A power of two as text: 2⁻³⁰."""
    return "2" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def backward_by_tiles(draw: Random) -> Question:
    """The backward pass, tile by tile"""
    fused = measured.load("03_flash_attention_v2")
    times = [
        [row["median_ms"] for row in fused.select(part="fused", name=name)] for name in ("recomputes P", "reads P")
    ]
    slower = [again / reads for again, reads in zip(*times, strict=True)]
    true = [
        Option(
            "A block that owns a tile of keys keeps dK and dV in registers, and shares only dQ with other blocks.",
            "Every tile of dS adds to one tile of dQ, which belongs to queries that other blocks see too.",
            right=True,
        ),
        Option(
            "With dQ summed by atomics, two runs on the same input may differ in their last bits.",
            "Addition in floating point is not associative, and the order in which blocks arrive is left to chance.",
            right=True,
        ),
        Option(
            "Computing P again saves the memory of a matrix of L × L, and costs one matrix product more than reading P "
            "does.",
            "Five products instead of four. Section 11 timed a fused kernel either way: recomputing took "
            f"{min(slower):.2f} to {max(slower):.2f} times as long as reading.",
            right=True,
        ),
    ]
    false = [
        Option(
            "With a second pass for dQ the backward pass takes as many matrix products as with atomics.",
            "The second pass computes S and dP again: seven products against five.",
        ),
        Option(
            "The atomics add in fp16, since dQ is fp16 in the end.",
            "That would round at each addition. The sums are fp32, and a last kernel rounds them once.",
        ),
        Option(
            "The backward pass needs P from the forward pass, rounded to 16 bits.",
            "It computes P = exp(S − LSE) again. Nothing of size L² was kept.",
        ),
    ]
    statements = draw.sample(true, 2) + draw.sample(false, draw.choice((1, 2)))
    draw.shuffle(statements)
    return Votes(
        prompt="FlashAttention-2's backward pass, with as many key heads as query heads. Which statements hold?",
        statements=tuple(statements),
        read_again="11 Backward",
    )


QUESTIONS: tuple[Source, ...] = (a_loss_that_stays, backward_by_tiles)
