"""What an exercise is, for the grader: its parts and points, the launches that test a kernel, the mistakes it knows.

An exercise lives in three places: `solutions/NN_slug/name.cu` and `name.ipynb` (what the teacher writes),
`exercises/NN_slug/` (the same without what the student is to find, see release.py), and a module of
`course_utils/grading/tasks/`, whose `EXERCISE` says how it is graded. The student's kernel runs in a child process;
everything here stays in the grader's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from course_utils.emulator.profiler import CounterRow, Footprint
from course_utils.emulator.sanitizer import Finding
from course_utils.emulator.words import WORDS
from course_utils.grading.result import Diagnosis

MOST = 5  # the most that an exercise's difficulty and importance can be


def dots(mark: int) -> str:
    """A mark from 0 to MOST, as a reader sees it: 2 is "●●○○○"."""
    return "●" * mark + "○" * (MOST - mark)


@dataclass(frozen=True)
class Part:
    """One property that earns points: all, none, or half of them (`Exercise.half_in_step`).

    name: short and unique in the exercise ("causal"). title: what the student reads ("Causal mask, L_q ≠ L_k too").
    bonus: earned on top of the exercise's points, and only where the machine can measure it (speed, on a GPU).
    """

    name: str
    points: int
    title: str
    bonus: bool = False


@dataclass(frozen=True)
class Boxes:
    """An argument for `const __grid_constant__ TensorMap`: the tensor of this name, `[heads, L, 64]` in 16 bits. Of it
    the copy engine takes so many rows at once, as kernels/include/copy_engine.cuh has it.
    """

    tensor: str
    rows: int


@dataclass(frozen=True)
class Launch:
    """One launch of the student's kernel.

    arguments: names of the case's tensors (inputs and outputs), boxes of them, or NumPy scalars, in the kernel's order.
    options: compile options such as "-DD=64". shared_mem: bytes of dynamic shared memory. thread_order: which of a
    block's threads the emulator lets go on, as for `emulator.configure`; None: the first that can.
    """

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[str | Boxes | np.generic, ...]
    options: tuple[str, ...] = ()
    shared_mem: int = 0
    thread_order: str | None = None


@dataclass(frozen=True)
class Output:
    """A tensor that the kernel writes, and what it must hold afterwards.

    expected: float64 (or an integer dtype), the right values; minus infinity where a log-sum-exp has no key.
    dtype: that of the tensor the kernel gets. It starts as NaN (integers: the largest value), or as `initial`.
    same_dtype: the same computation in plain torch in `dtype`, if the error may be twice that of it; of several such
    runs the worst counts.
    kind: "values": `course_utils.checks.error_report`'s rule, and −∞ exactly where −∞ is expected. "lse":
    `lse_report`'s. "exact": equal bit for bit. "scratch": not compared (what one launch leaves for the next).
    axes: what its dimensions are ("head", "query", "column"), for words about where it is wrong.
    """

    expected: Tensor
    dtype: torch.dtype = torch.float32
    same_dtype: Tensor | Sequence[Tensor] | None = None
    kind: str = "values"
    initial: Tensor | None = None
    axes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What one case left behind: the outputs by name, what the emulator's sanitizer and profiler said.

    error: why the launch did not finish, in the words of the exception or of the sandbox; then `outputs` is empty.
    kind: of the error: "" (none), "compile", "undefined", "interface", "launch", a `KernelError.kind` ("crash",
    "time limit", "deadlock", ...), or a reason of the sandbox ("memory limit", "died", ...).
    line: of the student's file, if known.
    in_step: of a kernel that lacks a barrier, the outputs where its threads go in step as if none were missing.
    in_reverse: of the first case, the outputs where threads run in reverse order, if they are others.
    footprint: of each array argument, launch by launch in the kernel's order, how many bytes of it were touched.
    exponentials, beside_products, product_flops, most_in_flight: of a kernel for sm_90a, as
    `course_utils.emulator.profiler.Counters` has them.
    unset: the local variable that is used before it has a value, in a sentence, if the compiler sees one.
    serialized: what ptxas says where it has serialized the products of a warpgroup.
    printed: the first lines of what the kernel printed on the emulator.
    seconds: of the launches on a GPU (median), NaN where not timed.
    """

    outputs: Mapping[str, Tensor] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    counters: tuple[CounterRow, ...] = ()
    footprint: tuple[Footprint, ...] = ()
    exponentials: int = 0
    beside_products: int = 0
    product_flops: int = 0
    most_in_flight: int = 0
    unset: str = ""
    serialized: str = ""
    printed: str = ""
    error: str = ""
    kind: str = ""
    line: int | None = None
    in_step: Mapping[str, Tensor] | None = None
    in_reverse: Mapping[str, Tensor] | None = None
    seconds: float = float("nan")
    reference_seconds: float = float("nan")

    @property
    def loaded_bytes(self) -> int:
        """What all threads asked for in loads of global memory; an atomic function loads, too."""
        return sum(row.bytes for row in self.counters if row.space == "global" and row.operation != "store")

    def found(self, kind: str) -> list[Finding]:
        """What the sanitizer found of one of the kinds in emulator/words.py. Raises ValueError for another kind."""
        if kind not in WORDS:
            raise ValueError(f"kind takes a kind of finding, got {kind!r}")
        return [finding for finding in self.findings if finding.kind == kind]


@dataclass(frozen=True)
class Case:
    """Launches of the student's kernel on one set of inputs, and what they must give. The part needs all its cases.

    facts: what `mistakes` and `compare` want to know (scale, is_causal, ...). They never leave the grader.
    must_be_clean: a finding of the sanitizer fails the case, even if the values are right.
    compare: judges the outputs instead of `Output.kind`; returns a Diagnosis or None. For results that have more than
    one right form.
    review: judges the counters (and findings) of a case whose values are right; returns a Diagnosis or None.
    explain: says what is seen in wrong outputs that no known mistake explains; None where it has no words for them.
    reference: for a bonus part: the launches of the course's own kernel on the same tensors, as (source, Launch) with
    `source` a name for `read_kernel`. Such a case runs on a GPU only, where both are timed in turns; `ratio` is the
    largest of student's time / reference's time that earns the points.
    names: whether known mistakes are looked for in wrong values of this case; False where its values do not tell them.
    given: what mistakes give for this case, as far as somebody has asked.
    """

    part: str
    name: str
    launches: tuple[Launch, ...]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Output]
    facts: Mapping[str, object] = field(default_factory=dict)
    must_be_clean: bool = False
    compare: Callable[[Case, Mapping[str, Tensor]], Diagnosis | None] | None = None
    review: Callable[[Case, Outcome], Diagnosis | None] | None = None
    explain: Callable[[Case, Mapping[str, Tensor]], Diagnosis | None] | None = None
    reference: tuple[tuple[str, Launch], ...] = ()
    ratio: float = 1.0
    names: bool = True
    given: dict[Mistake, Mapping[str, Tensor]] = field(default_factory=dict, compare=False, repr=False)


def judging(case: Case, **outputs: str) -> list[Case]:
    """The case once for each part, by the name of the output that the part looks at."""
    return [
        replace(
            case,
            part=part,
            outputs={name: o if name == wanted else replace(o, kind="scratch") for name, o in case.outputs.items()},
        )
        for part, wanted in outputs.items()
    ]


@dataclass(frozen=True)
class Variant:
    """One way to make a mistake in an exercise's kernel with hooks (see mistakes.py): the file, the hooks that are
    pulled, and a number for those that take one.
    """

    kernel: Path
    hooks: tuple[str, ...]
    number: float = 0.0


@dataclass(frozen=True)
class Mistake:
    """A known mistake: what a kernel that makes it would write. It is given by a `variant`, or by `simulate`.

    simulate: gives the outputs of a kernel with this mistake for a case (float64, by name; a subset of the case's
    outputs will do), or None where the mistake does not show or does not apply. A failing case whose outputs equal
    them is explained. Where several mistakes explain as much, the first in the exercise's list is named.
    shows_in: where what a kernel writes is not the same each time (several threads write different numbers to one
    place, and none to another): whether these outputs of a case are such. Then `simulate` gives one of them.
    """

    diagnosis: Diagnosis
    simulate: Callable[[Case], Mapping[str, Tensor] | None] | None = None
    shows_in: Callable[[Case, Mapping[str, Tensor]], bool] | None = None
    variant: Variant | None = None


@dataclass(frozen=True)
class Question:
    """A figure to predict before it is measured; the student writes `answers["name"] = ...` in the notebook.

    value: right answer, from `course_utils.costs` or counted. tolerance: relative. unit: as it is printed.
    misconceptions: (figure, diagnosis) of known wrong ways to it.
    """

    name: str
    points: int
    title: str
    value: float
    unit: str = ""
    tolerance: float = 0.01
    misconceptions: tuple[tuple[float, str], ...] = ()
    read_again: str = ""


@dataclass(frozen=True)
class Exercise:
    """One graded task.

    id: "NN_slug/name", also the place of `name.cu` and `name.ipynb` below `solutions/` and `exercises/`.
    place: what messages call the place of the student's kernel, where it is not `name.cu`.
    difficulty, importance: from 1 to `MOST`, relative to the course's other exercises; 0 where nobody has said.
    kernels: the names that `name.cu` must define; empty if there is no kernel to write.
    cases: makes fresh inputs from a generator, and from what the student's Python cells gave (`python`, else empty).
    experiments: cases without points, run where wrong values have no name yet, or more than one: a known mistake must
    give what the kernel gives there, too, and `Case.explain` may read off what no known mistake explains.
    findings: how this exercise calls a finding of a tool ("memcheck": "the last tile reads past L"), or why a launch
    did not end (`Outcome.kind`: "deadlock"); where it says nothing, the finding's own words are the name.
    diagnose_findings: the name of what the sanitizer found, or of why a launch did not end, case by case, where one
    case alone would not say it; None where it has no name. Where nothing was found and the launch ended, it is not
    looked at.
    cells: `grade_id`s of the notebook's cells with the student's Python, run in order in a child process; "answers"
    among them if there are questions. An exception in one does not stop the others.
    collect: runs in that child after the last cell: takes the cells' variables, returns tensors by name for `cases` and
    `judge`. Its exceptions are shown to the student.
    judge: verdicts on what `collect` returned: part name -> Diagnosis, or None where the part is right. Parts that
    it judges need no cases.
    assembly: whether the kernel may hold inline PTX.
    half_in_step: whether parts that would be right but for a missing barrier earn half of their points; or the names of
    the parts that do.
    """

    id: str
    title: str
    parts: tuple[Part, ...]
    kernels: tuple[str, ...] = ()
    cases: Callable[[torch.Generator, Mapping[str, Tensor]], list[Case]] | None = None
    mistakes: tuple[Mistake, ...] = ()
    experiments: Callable[[torch.Generator], list[Case]] | None = None
    findings: Mapping[str, Diagnosis] = field(default_factory=dict)
    diagnose_findings: Callable[[Sequence[Case], Sequence[Outcome]], Sequence[Diagnosis | None]] | None = None
    questions: tuple[Question, ...] = ()
    cells: tuple[str, ...] = ()
    collect: Callable[[Mapping[str, object]], Mapping[str, Tensor]] | None = None
    judge: Callable[[Mapping[str, Tensor], torch.Generator], Mapping[str, Diagnosis | None]] | None = None
    assembly: bool = False
    half_in_step: bool | tuple[str, ...] = True
    place: str = ""
    difficulty: int = 0
    importance: int = 0

    @property
    def name(self) -> str:
        return self.id.split("/")[1]

    def earns_half(self, part: str) -> bool:
        """Whether this part earns half of its points where only a barrier is missing."""
        return self.half_in_step if isinstance(self.half_in_step, bool) else part in self.half_in_step

    @property
    def points(self) -> int:
        """What a right submission earns, without bonuses."""
        return sum(p.points for p in self.parts if not p.bonus) + sum(q.points for q in self.questions)
