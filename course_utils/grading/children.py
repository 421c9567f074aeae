"""The child processes in which a submission runs: what they are given, and what they send back.

They may be under the student's control: nothing of what they send is trusted.
"""

from __future__ import annotations

import dataclasses
import math
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from course_utils.emulator.profiler import CounterRow, Footprint
from course_utils.emulator.sanitizer import Finding
from course_utils.grading.exercise import Case, Exercise, Outcome
from course_utils.grading.job import COUNTED, NOT_SENT, Job, Run, as_run
from course_utils.grading.sandbox.parent import Limits, Message, run_child
from course_utils.grading.submission import Submission

MOST_CHILDREN = 4  # a child that dies is replaced, and goes on after what killed it

_Row = TypeVar("_Row", Finding, CounterRow, Footprint)


class GraderError(RuntimeError):
    """The child did not even start: the machine's fault, and no grade of anybody."""


@dataclass
class Python:
    """The results of the Python cells: answers, tensors, and the errors of those that failed."""

    answers: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)  # by cell


Stage = Callable[[Sequence[Outcome], Python], Sequence[Case]]  # gives more cases, by what is known until then


@dataclass
class Children:
    """Runs the cells and cases of one submission in a child process, and goes on in a new one when the student's code
    takes that down.

    cells: those that have not run. stages: those that have not been asked for their cases. begun: the case that the
    child is at. messages_read: the number of its messages that are read.
    """

    task: Exercise
    submission: Submission
    device: str
    isolation: str
    limits: Limits
    cells: tuple[tuple[str, str], ...] = ()
    cases: list[Case] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    python: Python = field(default_factory=Python)
    begun: int | None = None
    messages_read: int = 0

    def run(self, cases: Sequence[Case], *stages: Stage) -> tuple[dict[int, Outcome], Python]:
        """Outcomes by index, and what the cells gave. The cells run first, then the cases, then those of each stage,
        all in one child while it lives: it has imported PyTorch, and compiled the kernels.
        """
        there_are = self.submission.cells
        self.cells = tuple((name, there_are[name]) for name in self.task.cells if name in there_are)
        self.cases, self.stages = list(cases), list(stages)
        while True:
            end = Outcome()
            for _ in range(MOST_CHILDREN):
                runs = self._runs()
                if not runs and not self.cells:
                    break
                end = self._in_a_child(runs, self.device)
            if self.device == "cuda":
                self._without_gpu(end)
            not_run = replace(end, error=f"not run, since the process was ended before: {end.error}")
            for i in range(len(self.cases)):
                self.outcomes.setdefault(i, not_run)
            if not self._add_cases():
                return self.outcomes, self.python

    def _runs(self) -> tuple[Run, ...]:
        """What is left to run."""
        return tuple(as_run(i, case) for i, case in enumerate(self.cases) if i not in self.outcomes)

    def _in_a_child(self, runs: tuple[Run, ...], device: str) -> Outcome:
        """Runs these, the cells that are left and what the stages add in one child. How it ended."""
        job = Job(
            exercise=self.task.id,
            device=device,
            file=f"{self.task.name}.cu",
            kernel=self.submission.kernel or "",
            kernels=self.task.kernels,
            assembly=self.task.assembly,
            runs=runs,
            cells=self.cells,
            questions=tuple(question.name for question in self.task.questions),
            collects=self.task.collect is not None,
        )
        self.begun, self.messages_read = None, 0
        more = self._more if device == self.device else None
        try:
            limits, isolation, gpu = self.limits, self.isolation, device == "cuda"
            last = run_child(pickle.dumps(job), limits=limits, isolation=isolation, gpu=gpu, more=more)
        except RuntimeError as error:  # no such isolation here, or a user who may not read the course
            raise GraderError(str(error)) from error
        if not last.messages or last.messages[0].header.get("kind") != "ready":
            raise GraderError(f"the grader's child process did not start: {last.detail}\n{last.stderr[-2000:]}")
        self._take(last.messages)
        reason = "too long" if last.reason == "time limit" else last.reason
        end = Outcome(error=last.detail or last.reason, kind=reason)
        if self.begun is not None and 0 <= self.begun < len(self.cases) and self.begun not in self.outcomes:
            self.outcomes[self.begun] = end
        elif self.cells:  # it died in the Python cells
            self.python.errors = {name: f"they took their process down: {end.error}" for name, _ in self.cells}
            self.cells = ()
        return end

    def _without_gpu(self, end: Outcome) -> None:
        """What children on a GPU have left out, since each fault there ends one: lost, and the emulator says why."""
        left = tuple(run for run in self._runs() if not run.reference)
        faults = [outcome for outcome in self.outcomes.values() if outcome.kind == "gpu"]
        cause = faults[-1] if faults else end
        if left:
            self._in_a_child(left, "cpu")
        for run in left:
            outcome = self.outcomes.get(run.index, Outcome())
            if not outcome.error:
                error = f"not run on the GPU, since the process was ended before: {cause.error}"
                outcome = replace(outcome, error=error, kind=cause.kind, findings=outcome.findings or cause.findings)
            self.outcomes[run.index] = replace(outcome, outputs={})

    def _add_cases(self) -> bool:
        """Asks the next stages, where all before have their outcomes; whether one gave more."""
        if self.cells or any(i not in self.outcomes for i in range(len(self.cases))):
            return False
        added: Sequence[Case] = ()
        while self.stages and not added:
            added = self.stages.pop(0)([self.outcomes[i] for i in range(len(self.cases))], self.python)
        self.cases.extend(added)
        return bool(added)

    def _take(self, messages: Sequence[Message]) -> None:
        """Reads what is new of a child's messages."""
        for message in messages[self.messages_read :]:
            kind, index = message.header.get("kind"), message.header.get("index")
            if kind == "python" and self.cells:
                self.python, self.cells = _python(message.header, message.blob, self.task.cells), ()
            elif kind == "begin" and isinstance(index, int):
                self.begun, self.cells = index, ()
            elif kind == "case" and isinstance(index, int) and 0 <= index < len(self.cases):
                if index not in self.outcomes:
                    self.outcomes[index] = _outcome(self.cases[index], message.header, message.blob)
                    self.begun = None
        self.messages_read = len(messages)

    def _more(self, messages: list[Message]) -> bytes | None:
        """For a child that has done all: what else there is to run, or None."""
        self._take(messages)
        return pickle.dumps(self._runs()) if self._add_cases() else None


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
        rest |= {name: clean(str(header.get(name, ""))[:5000]) for name in ("unset", "printed", "serialized")}
        rest |= {name: int(header.get(name, 0)) for name in COUNTED}
        there_are = [(name, output.dtype, output.expected.shape) for name, output in case.outputs.items()]
        for other in ("in_step", "in_reverse"):  # one of them at most
            if header.get(other) is True:
                size = sum(math.prod(shape) * dtype.itemsize for _, dtype, shape in there_are)
                rest[other] = _tensors(blob[-size:] if size else b"", there_are)
        if header.get("error"):
            error = clean(str(header["error"])[:4000])
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
        values[field_.name] = clean(value) if isinstance(value, str) else value
    return kind(**values)


def clean(text: str) -> str:
    """Text from the child, fit to be shown and the same each time: no addresses, no control characters."""
    text = re.sub(r"0x[0-9a-f]{5,}", "0x…", text.encode(errors="replace").decode())
    if text.isprintable():
        return text
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


def _python(header: Mapping[str, Any], blob: bytes, cells: Sequence[str]) -> Python:
    python = Python()
    try:
        python.errors = {str(cell): clean(str(words)[:1000]) for cell, words in header.get("errors", {}).items()}
        answers = dict(header.get("answers") or {})
        python.answers = {name: float(x) if isinstance(x, int | float) else x for name, x in answers.items()}
        listed = header.get("tensors", ())
        python.tensors = _tensors(blob, [(name, getattr(torch, dtype), shape) for name, dtype, shape in listed])
    except (TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError) as error:
        python.errors = dict.fromkeys(cells, f"what the Python cells gave cannot be read ({error})")
    return python
