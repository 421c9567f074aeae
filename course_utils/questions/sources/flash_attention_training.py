"""Questions of chapter 03's second notebook: half precision, gradients. Their ids are the chapter's."""

from random import Random

from course_utils import measured
from course_utils.questions.question import Choice, Option, Question, Source, Votes


def a_loss_that_stays(draw: Random) -> Question:
    """A loss that does not move"""
    batch, length, width = draw.choice(((16, 2048, 768), (8, 4096, 1024), (32, 2048, 1024)))
    options = [
        Option(
            "Scale the loss by a power of two, and unscale the gradients in fp32",
            "All gradients are linear in the loss. Scaled, they lie where fp16 has all its digits; fp32 holds them "
            "after the "
            "division.",
            right=True,
        ),
        Option(
            "Raise the learning rate by as many powers of two as the gradients are too small",
            "The gradients are exactly 0 by then. No factor afterwards brings back what was rounded away.",
        ),
        Option(
            "Clip the gradients, as they overflow",
            "Overflow would give infinities and NaN. Exact zeros are the other end of the format.",
        ),
        Option(
            "Keep the log-sum-exp in float64",
            (
                "The log-sum-exp is fp32 already, and P comes out right. What is too small is dO, before attention "
                "sees it."
            ),
        ),
    ]
    draw.shuffle(options)
    return Choice(
        prompt=(
            "A model that predicts vectors is trained in fp16. The loss is a mean of squares over "
            f"{batch} · {length:,} tokens of {width} numbers each, so that an element of dO is about "
            f"{1 / (batch * length * width):.0e}. The loss does not move, and "
            "nearly all elements of dQ are exactly 0. In bf16 the same model learns. What do you do?"
        ),
        options=tuple(options),
        read_again="10 Gradients that vanish",
        kind="scenario",
    )


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
            "Computing P again saves the memory of a matrix of L × L, and costs a matrix product that reading it "
            "would not.",
            "Five products instead of four. Section 11 timed a fused kernel either way: recomputing took "
            f"{min(slower):.2f} to {max(slower):.2f} times as long as reading.",
            right=True,
        ),
    ]
    false = [
        Option(
            "With a second pass for dQ the backward pass takes as many matrix products as with atomics.",
            "It computes S and dP once more: seven products against five.",
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
