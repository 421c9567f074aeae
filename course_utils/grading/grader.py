"""Grades one submission: makes the inputs and the right answers here, runs the student's code in a child, compares."""

from __future__ import annotations

import dataclasses
import math
import os
import pickle
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from course_utils.emulator.profiler import CounterRow, Footprint
from course_utils.emulator.sanitizer import Finding
from course_utils.grading.answers import wrong_answer
from course_utils.grading.catalog import EXERCISE_IDS, all_ids, exercise
from course_utils.grading.diagnosis import Matches, diagnose, most_common, right_in_step, unsettled
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Outcome, Part, Question
from course_utils.grading.hints import hints
from course_utils.grading.job import COUNTED, NOT_SENT, Job, Run, as_run
from course_utils.grading.result import NOT_MEASURED, OPEN, RIGHT, WRONG, PartResult, Result
from course_utils.grading.sandbox.parent import Limits, Message, run_child
from course_utils.grading.submission import Submission, as_released, read_submission
from course_utils.studies.on_cpu import one_thread

MOST_CHILDREN = 4  # a child that dies is replaced, and goes on after what killed it
SEEDS = 2**31
NOT_LAUNCHED = ("missing", "rule", "compile", "undefined", "interface")  # kinds of errors before there is a kernel

_Row = TypeVar("_Row", Finding, CounterRow, Footprint)


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
    isolation, limits: of the child process, see `sandbox.run_child`. Raises GraderError where that cannot start.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device takes 'cpu' or 'cuda', got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but PyTorch finds no GPU here: 'cpu' grades on the emulator")
    if seed is not None and not (isinstance(seed, int) and 0 <= seed < SEEDS):
        raise ValueError(f"seed takes an int from 0 to {SEEDS - 1}, got {seed!r}")
    with one_thread():
        task = task or exercise(submission.exercise)
        return _graded(task, submission, seed, device, isolation, limits or Limits())


def outcome_of(task: Exercise, submission: Submission, case: Case, *, isolation: str = "auto") -> Outcome:
    """What one case of an exercise leaves behind, run on the emulator in a child process. Nothing is judged.

    Raises GraderError where the child cannot start.
    """
    with one_thread():
        outcomes, _ = _Child(task, replace(submission, cells={}), "cpu", isolation, Limits()).run([case])
    return outcomes[0]


def _graded(
    task: Exercise, submission: Submission, seed: int | None, device: str, isolation: str, limits: Limits
) -> Result:
    seed = random.SystemRandom().randrange(SEEDS) if seed is None else seed
    child = _Child(task, submission, device, isolation, limits)

    cases: list[Case] = []
    matches, experiments = Matches(), []

    def first(outcomes: Sequence[Outcome], python: _Python) -> Sequence[Case]:
        cases.extend(case for case in _cases(task, python, seed) if device == "cuda" or not case.reference)
        return cases if submission.kernel is not None else []

    def second(outcomes: Sequence[Outcome], python: _Python) -> Sequence[Case]:
        if outcomes and task.experiments is not None and unsettled(task, cases, outcomes, matches):
            experiments.extend(task.experiments(torch.Generator().manual_seed(seed)))
        return experiments

    if task.collect is None:  # nothing of the cells is needed for the cases
        outcomes, python = child.run(first([], _Python()), second)
    else:
        outcomes, python = child.run([], first, second)
    if submission.kernel is None:
        reason = next((p.name for file, p in submission.problems.items() if file.endswith(".cu")), "no kernel")
        outcomes = {i: Outcome(error=reason, kind="missing") for i in range(len(cases))}

    in_order = [outcomes[i] for i in range(len(cases) + len(experiments))]
    found = diagnose(task, [*cases, *experiments], in_order, child.submission.kernel or "", matches)[: len(cases)]
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
    printed = next((f"{case.name}:\n{outcomes[i].printed}" for i, case in enumerate(cases) if outcomes[i].printed), "")
    return Result(task.id, task.title, *about, tuple(parts), hints=said, notes=submission.notes, printed=printed)


def _cases(task: Exercise, python: _Python, seed: int) -> list[Case]:
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


def _cannot_be_used(python: _Python, task: Exercise, error: Exception) -> None:
    python.tensors = {}
    python.errors = {task.cells[-1]: f"what it gives cannot be used ({type(error).__name__}: {_clean(str(error))})"}


# ---- the child


class GraderError(RuntimeError):
    """The child did not even start: the machine's fault, and no grade of anybody."""


@dataclass
class _Python:
    """What the Python cells gave: answers, tensors, or why there are none."""

    answers: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)  # by cell


_Stage = Callable[[Sequence[Outcome], _Python], Sequence[Case]]  # gives more cases, by what is known until then


@dataclass(frozen=True)
class _Child:
    """Runs cases and cells in child processes, and goes on in a new one when the student's code takes one down."""

    task: Exercise
    submission: Submission
    device: str
    isolation: str
    limits: Limits

    def run(self, cases: Sequence[Case], *stages: _Stage) -> tuple[dict[int, Outcome], _Python]:
        """Outcomes by index, and what the cells gave. The cells run first, then the cases, then those of each stage,
        all in one child while it lives: it has imported PyTorch, and compiled the kernels.
        """
        work = _Work(self.task, self._cells(), list(cases), list(stages))
        while True:
            end = self._children(work)
            not_run = replace(end, error=f"not run, since the process was ended before: {end.error}")
            for i in range(len(work.cases)):
                work.outcomes.setdefault(i, not_run)
            if not work.add_cases():
                return work.outcomes, work.python

    def _children(self, work: _Work) -> Outcome:
        """Runs what is left, in a few children at most. How the last one ended, as an outcome of what it left out."""
        end = Outcome()
        for _ in range(MOST_CHILDREN):
            if not work.runs() and not work.cells:
                break
            end = self._child(work, work.runs(), self.device, work.more)
        if self.device == "cuda":
            self._without_gpu(work, end)
        return end

    def _child(
        self,
        work: _Work,
        runs: tuple[Run, ...],
        device: str,
        more: Callable[[list[Message]], bytes | None] | None = None,
    ) -> Outcome:
        """One child, for these runs and the cells that are left. How it ended."""
        job = Job(
            exercise=self.task.id,
            device=device,
            file=f"{self.task.name}.cu",
            kernel=self.submission.kernel or "",
            kernels=self.task.kernels,
            assembly=self.task.assembly,
            runs=runs,
            cells=work.cells,
            questions=tuple(question.name for question in self.task.questions),
            collects=self.task.collect is not None,
        )
        work.begin()
        try:
            limits, isolation, gpu = self.limits, self.isolation, device == "cuda"
            last = run_child(pickle.dumps(job), limits=limits, isolation=isolation, gpu=gpu, more=more)
        except RuntimeError as error:  # no such isolation here, or a user who may not read the course
            raise GraderError(str(error)) from error
        if not last.messages or last.messages[0].header.get("kind") != "ready":
            raise GraderError(f"the grader's child process did not start: {last.detail}\n{last.stderr[-2000:]}")
        work.take(last.messages)
        reason = "too long" if last.reason == "time limit" else last.reason
        end = Outcome(error=last.detail or last.reason, kind=reason)
        work.ended(end)
        return end

    def _without_gpu(self, work: _Work, end: Outcome) -> None:
        """What children on a GPU have left out, since each fault there ends one: lost, and the emulator says why."""
        left = tuple(run for run in work.runs() if not run.reference)
        if left:
            self._child(work, left, "cpu")
        for run in left:
            seen = work.outcomes.get(run.index, Outcome())
            error = seen.error or f"not run on the GPU, since the process was ended before: {end.error}"
            work.outcomes[run.index] = replace(seen, outputs={}, error=error, kind=seen.kind or end.kind)

    def _cells(self) -> tuple[tuple[str, str], ...]:
        there_are = self.submission.cells
        return tuple((name, there_are[name]) for name in self.task.cells if name in there_are)


@dataclass
class _Work:
    """What children are to do for one submission, and what they have said so far.

    cells: those that have not run. stages: those that have not been asked for their cases. begun: the case that the
    child is at. seen: so many of its messages are read.
    """

    task: Exercise
    cells: tuple[tuple[str, str], ...]
    cases: list[Case]
    stages: list[_Stage]
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    python: _Python = field(default_factory=_Python)
    begun: int | None = None
    seen: int = 0

    def runs(self) -> tuple[Run, ...]:
        return tuple(as_run(i, case) for i, case in enumerate(self.cases) if i not in self.outcomes)

    def add_cases(self) -> bool:
        """Asks the next stages, where all before have their outcomes; whether one gave more."""
        if self.cells or any(i not in self.outcomes for i in range(len(self.cases))):
            return False
        added: Sequence[Case] = ()
        while self.stages and not added:
            added = self.stages.pop(0)([self.outcomes[i] for i in range(len(self.cases))], self.python)
        self.cases.extend(added)
        return bool(added)

    def begin(self) -> None:
        """A child begins."""
        self.begun, self.seen = None, 0

    def take(self, messages: Sequence[Message]) -> None:
        """Reads what is new of a child's messages."""
        for message in messages[self.seen :]:
            kind, index = message.header.get("kind"), message.header.get("index")
            if kind == "python" and self.cells:
                self.python, self.cells = _python(message.header, message.blob, self.task.cells), ()
            elif kind == "begin" and isinstance(index, int):
                self.begun, self.cells = index, ()
            elif kind == "case" and isinstance(index, int) and 0 <= index < len(self.cases):
                if index not in self.outcomes:
                    self.outcomes[index] = _outcome(self.cases[index], message.header, message.blob)
                    self.begun = None
        self.seen = len(messages)

    def more(self, messages: list[Message]) -> bytes | None:
        """For a child that has done all: what else there is to run, or None."""
        self.take(messages)
        return pickle.dumps(self.runs()) if self.add_cases() else None

    def ended(self, end: Outcome) -> None:
        """A child is over: what it was at has its end as outcome."""
        if self.begun is not None and 0 <= self.begun < len(self.cases) and self.begun not in self.outcomes:
            self.outcomes[self.begun] = end
        elif self.cells:  # it died in the Python cells
            self.python.errors = {name: f"they took their process down: {end.error}" for name, _ in self.cells}
            self.cells = ()


def _outcome(case: Case, header: Mapping[str, Any], blob: bytes) -> Outcome:
    """A frame of the child as an Outcome. The child may be under the student's control: nothing in it is trusted."""
    try:
        findings = tuple(_record(Finding, fields) for fields in header.get("findings", ()))
        counters = tuple(_record(CounterRow, fields) for fields in header.get("counters", ()))
        if any(row.requests < 1 or (row.space == "shared" and row.ideal_wavefronts < 1) for row in counters):
            raise ValueError("a line without a request")
        footprint = tuple(_record(Footprint, fields) for fields in header.get("footprint", ()))
        line = header.get("line") if isinstance(header.get("line"), int) else None
        rest = {"findings": findings, "counters": counters, "footprint": footprint, "line": line}
        rest |= {name: _clean(str(header.get(name, ""))[:5000]) for name in ("unset", "printed", "serialized")}
        rest |= {name: int(header.get(name, 0)) for name in COUNTED}
        there_are = [(name, output.dtype, output.expected.shape) for name, output in case.outputs.items()]
        for other in ("in_step", "in_reverse"):  # one of them at most
            if header.get(other) is True:
                size = sum(math.prod(shape) * dtype.itemsize for _, dtype, shape in there_are)
                rest[other] = _tensors(blob[-size:] if size else b"", there_are)
        if header.get("error"):
            error = _clean(str(header["error"])[:4000])
            return Outcome(error=error, kind=str(header.get("error_kind", "died")), **rest)
        outputs = _tensors(blob, there_are)
        seconds = {key: float(header.get(key, math.nan)) for key in ("seconds", "reference_seconds")}
        if any(time <= 0 for time in seconds.values()):
            raise ValueError("no time at all")
        return Outcome(outputs=outputs, **rest, **seconds)
    except (TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError) as error:
        return Outcome(error=f"what the child sent back cannot be read ({error})", kind="died")


def _tensors(blob: bytes, wanted: Sequence[tuple[str, torch.dtype, Sequence[int]]]) -> dict[str, Tensor]:
    """Tensors of these dtypes and shapes, one after the other in `blob`; raises ValueError or RuntimeError."""
    tensors, at = {}, 0
    for name, dtype, shape in wanted:
        size = math.prod(shape) * dtype.itemsize
        piece = bytearray(blob[at : at + size])
        flat = torch.frombuffer(piece, dtype=dtype) if size else torch.empty(0, dtype=dtype)
        tensors[name] = flat.reshape(shape)
        at += size
    return tensors


_TYPES = {int: ("int",), str: ("str",), bool: ("bool",), tuple: ("Index3", "Numbers"), type(None): ("None",)}


def _record(kind: type[_Row], fields: Mapping[str, Any]) -> _Row:
    """A row from JSON; raises TypeError or ValueError unless each field is what it must be."""
    values = {}
    for field_ in dataclasses.fields(kind):
        if field_.name in NOT_SENT:
            continue
        value = fields.get(field_.name)
        if isinstance(value, list):
            value = tuple(value)
        if not any(name in field_.type for name in _TYPES.get(type(value), ())):
            raise TypeError(f"{field_.name} is {value!r}")
        if isinstance(value, tuple) and not all(type(n) is int and abs(n) < 2**64 for n in value):
            raise TypeError(f"{field_.name} is {value!r}")
        if isinstance(value, int) and not 0 <= value < 2**62:
            raise ValueError(f"{field_.name} is {value}")
        values[field_.name] = _clean(value) if isinstance(value, str) else value
    return kind(**values)


def _clean(text: str) -> str:
    """Text from the child, fit to be shown and the same each time: no addresses, no control characters."""
    text = re.sub(r"0x[0-9a-f]{5,}", "0x…", text.encode(errors="replace").decode())
    if text.isprintable():
        return text
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


def _python(header: Mapping[str, Any], blob: bytes, cells: Sequence[str]) -> _Python:
    python = _Python()
    try:
        python.errors = {str(cell): _clean(str(words)[:1000]) for cell, words in header.get("errors", {}).items()}
        answers = dict(header.get("answers") or {})
        python.answers = {name: float(x) if isinstance(x, int | float) else x for name, x in answers.items()}
        listed = header.get("tensors", ())
        python.tensors = _tensors(blob, [(name, getattr(torch, dtype), shape) for name, dtype, shape in listed])
    except (TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError) as error:
        python.errors = dict.fromkeys(cells, f"what the Python cells gave cannot be read ({error})")
    return python


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
    task: Exercise, submission: Submission, python: _Python, cases: Sequence[Case], seed: int
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


def _python_problem(submission: Submission, python: _Python, cells: Sequence[str]) -> Diagnosis | None:
    """Why there is nothing to judge: a bad notebook, a missing cell, an exception in one."""
    for name in (*(file for file in submission.problems if file.endswith(".ipynb")), *cells):
        if name in submission.problems:
            return submission.problems[name]
    for name in cells:
        if name in python.errors:
            return Diagnosis(f"the cell {name!r} fails", python.errors[name])
    return None


def _answer(submission: Submission, question: Question, python: _Python) -> PartResult:
    def result(diagnosis: Diagnosis | None, lost: str = WRONG) -> PartResult:
        earned, status = (question.points, RIGHT) if diagnosis is None else (0, lost)
        return PartResult(question.name, question.title, question.points, earned, status, diagnosis=diagnosis)

    given = python.answers.get(question.name)
    problem = _python_problem(submission, python, ("answers",))
    if given is None and problem is not None:
        return result(problem)
    if given is None:
        todo = Diagnosis("not answered yet", f"answers[{question.name!r}] takes a number", question.read_again)
        return result(todo, OPEN)
    if not isinstance(given, float) or not math.isfinite(given):
        return result(Diagnosis("the answer is not a number", f"answers[{question.name!r}] is {_clean(str(given))}"))
    return result(wrong_answer(question, given))


def exercises_in(path: Path) -> list[tuple[Path, str]]:
    """(folder, exercise id) of what a path means: the exercises/ folder, one chapter in it, or one file of an exercise.

    Raises ValueError where there is none.
    """
    if path.is_dir():
        chapters = [path] if any(_exercises_of(path)) else sorted(child for child in path.iterdir() if child.is_dir())
        found = [(chapter, exercise_id) for chapter in chapters for exercise_id in _exercises_of(chapter)]
    else:
        found = [(path.parent, exercise_id) for exercise_id in all_ids() if exercise_id.split("/")[1] in _names([path])]
    if not found:
        raise ValueError(f"{path} is no exercise: give a folder such as exercises/{EXERCISE_IDS[2].split('/')[0]}")
    return found


def _exercises_of(folder: Path) -> list[str]:
    """The exercises that have a file in this folder."""
    names = _names(folder.iterdir())
    return [exercise_id for exercise_id in all_ids() if exercise_id.split("/")[1] in names]


def _names(files: Iterable[Path]) -> set[str]:
    """What the files would be of, "online_softmax (1).cu" of online_softmax."""
    released = (Path(as_released(path.name)) for path in files)
    return {name.stem for name in released if name.suffix in (".cu", ".ipynb")}
