"""Questions of chapter 02's second notebook: recomputation."""

from random import Random

from course_utils.questions.question import Option, Question, Source, Votes


def what_the_log_sum_exp_knows(draw: Random) -> Question:
    """What backward needs"""
    true = [
        Option(
            "If a query sees a key, exp(S − LSE) is its weight: no maximum and no sum are needed again.",
            "exp(S − LSE) = exp(S − m) / l, since LSE = m + ln l. The mask gives hidden keys the weight 0.",
            right=True,
        ),
        Option(
            "exp(S − LSE) of a visible key cannot overflow, however large the scores are.",
            "The log-sum-exp is at least the row's largest visible score, so the exponent is never above 0.",
            right=True,
        ),
        Option(
            "The row sum of P ∘ dP is the row sum of dO ∘ O, and needs no row of P.",
            "Exchange the two sums: the sum over keys gives O.",
            right=True,
        ),
    ]
    false = [
        Option(
            "m and l must both be saved: their combination does not give the weights back.",
            "Only exp(S − m) / l is needed, which is exp(S − (m + ln l)).",
        ),
        Option(
            "Recomputing S saves multiply-adds against keeping P.",
            "It costs one more matrix product. It saves memory, and the traffic of P.",
        ),
        Option(
            "The backward pass must rescale its sums whenever the running maximum rises.",
            "There is no running maximum: the log-sum-exp belongs to the finished row.",
        ),
    ]
    statements = draw.sample(true, draw.choice((2, 3))) + draw.sample(false, 2)
    draw.shuffle(statements)
    return Votes(
        prompt="The forward pass keeps O and one log-sum-exp per row, LSE. Which of these statements hold?",
        statements=tuple(statements),
        read_again="14 What must be kept",
    )


QUESTIONS: tuple[Source, ...] = (what_the_log_sum_exp_knows,)
