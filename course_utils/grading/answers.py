"""What a wrong figure says about the way to it."""

from __future__ import annotations

from course_utils.grading.exercise import Diagnosis, Question

POWERS_MIXED = "powers of 1,000 and of 1,024 are mixed"  # where bytes are asked for: "KiB", "MB"
# Ratio of an answer to the right one, either way: the diagnosis' name, and what to look at.
FACTORS = (
    (
        2.0,
        "the answer is off by a factor of 2",
        "what may count twice, or once: a multiply-add (two operations), K and V, the pairs that a causal mask leaves "
        "(half), reading and writing",
    ),
    (
        4.0,
        "the answer is off by a factor of 4",
        "an fp32 number has 4 bytes: numbers or bytes? Two factors of 2 make 4, too: a multiply-add, K and V, a mask",
    ),
    *((1.024**power, POWERS_MIXED, "1 MB is 1,000,000 bytes, 1 MiB is 1024 · 1024") for power in (1, 2, 3)),
    *(
        (factor, "the unit is another one than was asked for", "thousands, millions, or per cent?")
        for base in (1000.0, 1024.0)
        for factor in (base, base**2, base**3, base**4)
    ),
    (100.0, "the unit is another one than was asked for", "a ratio, or per cent?"),
)


def wrong_answer(question: Question, given: float) -> Diagnosis | None:
    """What is wrong with a finite answer; None where it is right.

    A misconception that the exercise knows goes before a factor that many an answer is off by.
    """
    if _is(given, question.value, question.tolerance):
        return None
    unit = f" {question.unit}" if question.unit else ""
    answered = f"answered {given:g}{unit}"
    for figure, name in question.misconceptions:
        if _is(given, figure, question.tolerance):
            return Diagnosis(name, answered, question.read_again)
    for factor, name, look_at in FACTORS:
        if name == POWERS_MIXED and not question.unit.endswith(("B", "bytes")):
            continue
        tolerance = min(question.tolerance, abs(factor - 1) / 10)
        if any(_is(given, question.value * ratio, tolerance) for ratio in (factor, 1 / factor)):
            return Diagnosis(name, f"{answered}: {look_at}", question.read_again)
    return Diagnosis("the figure is wrong", answered, question.read_again)


def _is(given: float, figure: float, tolerance: float) -> bool:
    return abs(given - figure) <= tolerance * abs(figure)
