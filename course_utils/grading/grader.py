"""Grades one submission: makes the inputs and the right answers here, runs the student's code in a child, compares."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from course_utils.grading.answers import wrong_answer
from course_utils.grading.catalog import exercise
from course_utils.grading.children import Children, Python, clean
from course_utils.grading.diagnosis import Matches, diagnose, most_common, right_in_step, unsettled
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Outcome, Part, Question
from course_utils.grading.hints import hints
from course_utils.grading.result import NOT_MEASURED, RIGHT, UNANSWERED, WRONG, PartResult, Result
from course_utils.grading.sandbox.parent import Limits
from course_utils.grading.submission import Submission, read_submission
from course_utils.studies.on_cpu import one_thread

SEEDS = 2**31
NOT_LAUNCHED = ("missing", "rule", "compile", "undefined", "interface")  # kinds of errors before there is a kernel


def default_device() -> str:
    """Where a learner's kernel is graded: "cuda" if there is a GPU, else "cpu", the emulator."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def grade(
    path: str | os.PathLike[str],
    exercise_id: str,
    *,
    seed: int | None = None,
    device: str = "cpu",
    isolation: str = "auto",
) -> Result:
    """Grades what the folder `path` holds for an exercise; see `grade_submission`."""
    return grade_submission(read_submission(Path(path), exercise_id), seed=seed, device=device, isolation=isolation)


def grade_submission(
    submission: Submission,
    *,
    task: Exercise | None = None,
    seed: int | None = None,
    device: str = "cpu",
    isolation: str = "auto",
    limits: Limits | None = None,
) -> Result:
    """Grades one submission. Whatever it does, the result has every part of the exercise, with a reason for each loss.

    task: how it is graded; None: as the exercise that the submission is for. seed: of the inputs; None draws a fresh
    one. The same seed gives the same result. device: "cpu" runs kernels on the emulator, "cuda" on the GPU (what the
    sanitizer and the profiler say comes from the emulator even then).
    isolation, limits: of the child process, see `sandbox.parent.run_child`. Raises GraderError where that cannot start.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device takes 'cpu' or 'cuda', got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but PyTorch finds no GPU here: 'cpu' grades on the emulator")
    if seed is not None and not (isinstance(seed, int) and 0 <= seed < SEEDS):
        raise ValueError(f"seed takes an int from 0 to {SEEDS - 1}, got {seed!r}")
    task = task or exercise(submission.exercise)
    seed = random.SystemRandom().randrange(SEEDS) if seed is None else seed
    children = Children(task, submission, device, isolation, limits or Limits())

    cases: list[Case] = []
    matches, experiments = Matches(), []

    def first(outcomes: Sequence[Outcome], python: Python) -> Sequence[Case]:
        cases.extend(case for case in _cases(task, python, seed) if device == "cuda" or not case.reference)
        return cases if submission.kernel is not None else []

    def second(outcomes: Sequence[Outcome], python: Python) -> Sequence[Case]:
        if outcomes and task.experiments is not None and unsettled(task, cases, outcomes, matches):
            experiments.extend(task.experiments(torch.Generator().manual_seed(seed)))
        return experiments

    with one_thread():
        if task.collect is None:  # nothing of the cells is needed for the cases
            outcomes, python = children.run(first([], Python()), second)
        else:
            outcomes, python = children.run([], first, second)
        if submission.kernel is None:
            reason = next((p.name for file, p in submission.problems.items() if file.endswith(".cu")), "no kernel")
            outcomes = {i: Outcome(error=reason, kind="missing") for i in range(len(cases))}

        in_order = [outcomes[i] for i in range(len(cases) + len(experiments))]
        found = diagnose(task, [*cases, *experiments], in_order, submission.kernel or "", matches)[: len(cases)]
        judged = _judged(task, submission, python, cases, seed)
        parts = [_part(task, part, cases, outcomes, found, judged) for part in task.parts]
        parts = _with_halves(task, parts, cases, outcomes, found)
        if any(part.status == WRONG for part in parts if not part.bonus):
            parts = [_too_early(part) if part.status == RIGHT and part.bonus else part for part in parts]
        parts += [_answer(submission, question, python) for question in task.questions]
        said = hints(submission.kernel or "")
        if unset := next((outcome.unset for outcome in in_order if outcome.unset), ""):
            said += (f"{unset}: what it holds until then is left to chance",)
        about = (submission.digest, seed, device, submission.status)
        printed = next(
            (f"{case.name}:\n{outcomes[i].printed}" for i, case in enumerate(cases) if outcomes[i].printed), ""
        )
        said_besides = {"hints": said, "notes": submission.notes, "printed": printed, "unset": unset}
        return Result(task.id, task.title, *about, tuple(parts), **said_besides)


def outcome_of(task: Exercise, submission: Submission, case: Case) -> Outcome:
    """What one case of an exercise leaves behind, run on the emulator in a child process. Nothing is judged.

    Raises GraderError where the child cannot start.
    """
    with one_thread():
        outcomes, _ = Children(task, replace(submission, cells={}), "cpu", "auto", Limits()).run([case])
    return outcomes[0]


def _cases(task: Exercise, python: Python, seed: int) -> list[Case]:
    """The exercise's cases. What the Python cells gave is the student's, and may be of any shape."""
    if task.cases is None:
        return []
    try:
        return task.cases(torch.Generator().manual_seed(seed), python.tensors)
    except Exception as error:
        if not python.tensors:
            raise
        _cannot_be_used(python, task, error)
        return task.cases(torch.Generator().manual_seed(seed), {})


def _cannot_be_used(python: Python, task: Exercise, error: Exception) -> None:
    python.tensors = {}
    python.errors = {task.cells[-1]: f"what it gives cannot be used ({type(error).__name__}: {clean(str(error))})"}


# ---- points


def _part(
    task: Exercise,
    part: Part,
    cases: Sequence[Case],
    outcomes: Mapping[int, Outcome],
    found: Sequence[Diagnosis | None],
    judged: Mapping[str, Diagnosis | None],
) -> PartResult:
    mine = [i for i, case in enumerate(cases) if case.part == part.name]
    wrong = [found[i] for i in mine if found[i] is not None]
    diagnosis = most_common(wrong) if wrong else None
    if part.name in judged:
        diagnosis = judged[part.name]
    elif not mine and part.bonus:
        words = Diagnosis("measured on a GPU only")
        return PartResult(part.name, part.title, part.points, 0, NOT_MEASURED, part.bonus, words)
    elif not mine:
        raise AssertionError(f"{task.id}: no case and no verdict for the part {part.name!r}")
    timed = [i for i in mine if cases[i].reference]
    ratio = max((round(outcomes[i].seconds / outcomes[i].reference_seconds, 3) for i in timed), default=None)
    if diagnosis is None:
        diagnosis = next((slow for i in timed if (slow := _too_slow(cases[i], outcomes[i]))), None)
    earned, status = (part.points, RIGHT) if diagnosis is None else (0, WRONG)
    ratio = ratio if ratio is not None and math.isfinite(ratio) else None
    ran = not mine or any(outcomes[i].kind not in NOT_LAUNCHED for i in mine)
    return PartResult(part.name, part.title, part.points, earned, status, part.bonus, diagnosis, ratio, ran)


def _with_halves(
    task: Exercise,
    parts: Sequence[PartResult],
    cases: Sequence[Case],
    outcomes: Mapping[int, Outcome],
    found: Sequence[Diagnosis | None],
) -> list[PartResult]:
    """The parts, where those that would be right but for a missing barrier earn half of their points, together."""
    lost = {case.part for i, case in enumerate(cases) if found[i] is not None and not right_in_step(case, outcomes[i])}
    halves, so_far = [], 0
    for part in parts:
        if (
            part.status == WRONG
            and not part.bonus
            and part.name not in lost
            and task.earns_half(part.name)
            and any(c.part == part.name for c in cases)
        ):
            before, so_far = so_far, so_far + part.points
            part = replace(part, earned=so_far // 2 - before // 2)
        halves.append(part)
    return halves


def _too_early(part: PartResult) -> PartResult:
    return replace(part, earned=0, status=WRONG, diagnosis=Diagnosis("a bonus counts once all parts are right"))


def _too_slow(case: Case, outcome: Outcome) -> Diagnosis | None:
    ratio = outcome.seconds / outcome.reference_seconds
    if ratio <= case.ratio:
        return None
    words = f"{case.name}: {ratio:.2f} times the reference's time; {case.ratio:g} times earns the points"
    return Diagnosis("the kernel is slower than the reference allows", words)


def _judged(
    task: Exercise, submission: Submission, python: Python, cases: Sequence[Case], seed: int
) -> Mapping[str, Diagnosis | None]:
    """Verdicts on the parts that have no cases."""
    if task.judge is None:
        return {}
    cells = [name for name in task.cells if name != "answers"]
    problem = _python_problem(submission, python, cells)
    if problem is None:
        try:
            return task.judge(python.tensors, torch.Generator().manual_seed(seed))
        except Exception as error:
            _cannot_be_used(python, task, error)
            problem = _python_problem(submission, python, cells)
    with_cases = {case.part for case in cases}
    return {part.name: problem for part in task.parts if part.name not in with_cases}


def _python_problem(submission: Submission, python: Python, cells: Sequence[str]) -> Diagnosis | None:
    """Why there is nothing to judge: a bad notebook, a missing cell, an exception in one."""
    for name in (*(file for file in submission.problems if file.endswith(".ipynb")), *cells):
        if name in submission.problems:
            return submission.problems[name]
    for name in cells:
        if name in python.errors:
            return Diagnosis(f"the cell {name!r} fails", python.errors[name])
    return None


def _answer(submission: Submission, question: Question, python: Python) -> PartResult:
    def result(diagnosis: Diagnosis | None, lost: str = WRONG) -> PartResult:
        earned, status = (question.points, RIGHT) if diagnosis is None else (0, lost)
        return PartResult(question.name, question.title, question.points, earned, status, diagnosis=diagnosis)

    given = python.answers.get(question.name)
    problem = _python_problem(submission, python, ("answers",))
    if given is None and problem is not None:
        return result(problem)
    if given is None:
        todo = Diagnosis("not answered yet", f"answers[{question.name!r}] takes a number", question.read_again)
        return result(todo, UNANSWERED)
    if not isinstance(given, float) or not math.isfinite(given):
        return result(Diagnosis("the answer is not a number", f"answers[{question.name!r}] is {clean(str(given))}"))
    return result(wrong_answer(question, given))
