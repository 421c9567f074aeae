"""Questions of chapter 02's second notebook: recomputation, and what waits for the backward pass."""

from random import Random

from course_utils import costs
from course_utils.questions.question import Aggregate, Figure, Mistake, Option, Question, Source, Votes


def what_the_log_sum_exp_knows(draw: Random) -> Question:
    """What backward needs"""
    true = [
        Option(
            "Where a row sees a key, Q, K and the log-sum-exp give its weights back as exp(S − LSE), with no maximum "
            "or sum.",
            "LSE = m + ln l, so exp(S − LSE) = exp(S − m) / l, which is the weight itself.",
            right=True,
        ),
        Option(
            "exp(S − LSE) cannot overflow, however large the scores are.",
            "The log-sum-exp is at least the largest score of the row, so the exponent is never above 0.",
            right=True,
        ),
        Option(
            "The row sum of P ∘ dP is the row sum of dO ∘ O, and needs no row of P.",
            "Exchange the two sums: what is summed over keys is O itself.",
            right=True,
        ),
    ]
    false = [
        Option(
            "m and l must both be saved: their combination alone does not give the weights back.",
            "Only exp(S − m) / l is needed, and in it m and l occur as m + ln l.",
        ),
        Option(
            "Recomputing S saves multiply-adds against keeping P.",
            "It costs one matrix product more. What it saves is memory, and the traffic of P.",
        ),
        Option(
            "The backward pass must rescale its sums whenever the running maximum rises.",
            "There is no running maximum any more: the log-sum-exp belongs to the finished row.",
        ),
    ]
    statements = draw.sample(true, draw.choice((2, 3))) + draw.sample(false, 2)
    draw.shuffle(statements)
    return Votes(
        prompt="The forward pass keeps O and one log-sum-exp per row, LSE. Which of these statements hold?",
        statements=tuple(statements),
        read_again="14 What must be kept",
    )


def what_waits_for_backward(draw: Random) -> Question:
    """Memory that waits for the backward pass"""
    batch, heads, length = draw.choice((2, 4, 8)), draw.choice((8, 16)), draw.choice((2048, 4096, 8192))
    weights = costs.score_matrix_bytes(batch, heads, length, length, 2) / 2**20
    numbers = costs.lse_bytes(batch, heads, length) / 2**20
    rows = batch * heads * length
    return Aggregate(
        prompt=(
            f"One attention layer, {batch} sequences of {length:,} tokens, {heads} heads, in fp16; the log-sum-exp is "
            "in fp32. How many MiB (2²⁰ bytes) wait for the backward pass if P is stored, and if one number per "
            "row is?"
        ),
        parts=(
            (
                "P stored",
                Figure(
                    weights,
                    "MiB",
                    f"{batch} · {heads} · {length:,} · {length:,} weights of 2 bytes.",
                    0.01,
                    (
                        Mistake(2 * weights, "An fp16 number takes two bytes."),
                        Mistake(weights / batch, "Each sequence of the batch has matrices of its own."),
                        Mistake(weights / heads, "Each head has a matrix of its own."),
                    ),
                ),
            ),
            (
                "log-sum-exp kept",
                Figure(
                    numbers,
                    "MiB",
                    f"{rows:,} rows, a number of 4 bytes for each.",
                    0.01,
                    (
                        Mistake(numbers / 2, "The log-sum-exp is in fp32."),
                        Mistake(2 * numbers, "Not m and l: their combination m + ln l is one number."),
                    ),
                ),
            ),
        ),
        read_again="14 What must be kept",
    )


QUESTIONS: tuple[Source, ...] = (what_the_log_sum_exp_knows, what_waits_for_backward)
