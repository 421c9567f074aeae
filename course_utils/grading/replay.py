"""A case of a submission once more, recorded: the moment in the learner's own kernel that the grade is about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from course_utils.cuda import KernelSource, RawModule
from course_utils.emulator import Recording, configure, record, sanitize
from course_utils.emulator.recorded import WRITING
from course_utils.grading.catalog import exercise
from course_utils.grading.diagnosis import wrong_values
from course_utils.grading.exercise import Case, Exercise
from course_utils.grading.job import LATER_SECONDS, LAUNCH_SECONDS, Run, as_run, still_blank
from course_utils.grading.result import WRONG, Result
from course_utils.grading.runner import arguments, copies
from course_utils.grading.submission import Submission
from course_utils.toolchain.errors import CompileError, KernelError, LaunchError

MOST_BLOCKS = 8  # that are recorded in search of the one that writes a wrong number

Block = tuple[int, int, int]


@dataclass(frozen=True)
class Replay:
    """One block of the first wrong case of a part. `finding`: the place in `recording.findings` of what the sanitizer
    found; where it found nothing, `array` and `offset` are the first byte of the number that is furthest from right,
    `step` the last write of it, and `got` and `expected` the number and the right one. None where there is no such
    thing.

    Where no case goes wrong: the first case, and the same of the number that its block writes first to an output."""

    part: str
    case: str
    recording: Recording
    finding: int | None = None
    array: int | None = None
    offset: int | None = None
    step: int | None = None
    got: float | None = None
    expected: float | None = None


def replay(submission: Submission, result: Result, task: Exercise | None = None) -> Replay | None:
    """Launches the submission's kernel again, on the emulator and with the inputs of that grade: the first part that
    its kernel loses, the first case in which that shows; or, where no run goes wrong, the first case.

    task: as for `grade_submission`. None: the kernel cannot be launched, or its inputs come from the submission's
    Python cells, which run in the grader's child only.
    """
    task = task or exercise(submission.exercise)
    if submission.kernel is None or task.cases is None or task.collect is not None:
        return None
    source = KernelSource(submission.kernel, Path.cwd() / f"{task.name}.cu", f"{task.name}.cu")
    cases = task.cases(torch.Generator().manual_seed(result.seed), {})
    lost = [part for part in result.parts if part.status == WRONG and part.ran and not part.bonus]
    for part in lost:
        for case in cases:
            if case.part == part.name and not case.reference and (found := _of_case(case, source)):
                return replace(found, part=part.title)
    return next((_of_right(case, source, task) for case in cases if not case.reference), None)


def _of_case(case: Case, source: KernelSource) -> Replay | None:
    run = as_run(0, case)
    tensors = copies(run)
    try:
        with configure(time_limit=LAUNCH_SECONDS), sanitize() as report:
            failed = _launched(run, source, tensors)
    except (CompileError, LaunchError):
        return None
    blocks = [finding.block for finding in report.findings if finding.block is not None]
    if blocks:
        return _of_finding(case, source, blocks[0])
    if failed:
        return Replay("", case.name, _recorded(run, source, (0, 0, 0)))
    return _of_values(case, source, tensors) if wrong_values(case, tensors) else None


def _of_right(case: Case, source: KernelSource, task: Exercise) -> Replay | None:
    try:
        recording = _recorded(as_run(0, case), source, (0, 0, 0))
    except (CompileError, LaunchError):
        return None
    part = next(part.title for part in task.parts if part.name == case.part)
    found, columns = Replay(part, case.name, recording), recording.columns
    outputs = [n for n, array in enumerate(recording.arrays) if array.name in case.outputs]
    writes = np.isin(columns["steps.op"], WRITING) & np.isin(columns["steps.array"], outputs)
    if not writes.any():
        return found
    first = int(writes.argmax())
    array, offset = int(columns["steps.array"][first]), int(columns["lanes.offset"][columns["steps.first"][first]])
    access = recording.writer(array, offset)  # the last write: a kernel may begin with zeros in its output
    assert access is not None
    return replace(found, array=array, offset=offset, step=access.step)


def _of_finding(case: Case, source: KernelSource, block: Block) -> Replay:
    recording = _recorded(as_run(0, case), source, block)
    found = next((n for n, finding in enumerate(recording.findings) if finding.step >= 0), None)
    return Replay("", case.name, recording, finding=found)


def _of_values(case: Case, source: KernelSource, tensors: Mapping[str, Tensor]) -> Replay | None:
    """The block that writes a wrong number, or the first block and a number that is wrong where none of those that are
    tried writes one."""
    run, first = as_run(0, case), None
    for block in _blocks(run):
        recording = _recorded(run, source, block)
        first = first or Replay("", case.name, recording)
        for name, offsets in _wrong_bytes(case, tensors):
            array = next((n for n, one in enumerate(recording.arrays) if one.name == name), None)
            for offset in offsets if array is not None else ():
                if access := recording.writer(array, offset):
                    place = offset // tensors[name].element_size()
                    got, right = (one.flatten()[place].item() for one in (tensors[name], case.outputs[name].expected))
                    found = replace(first, recording=recording, got=got, expected=right)
                    return replace(found, array=array, offset=offset, step=access.step)
                if first.array is None and recording is first.recording:
                    first = replace(first, array=array, offset=offset)
    return first


def _blocks(run: Run) -> Iterator[Block]:
    x, y, z = (*run.launches[-1].grid, 1, 1)[:3]
    for n in range(min(x * y * z, MOST_BLOCKS)):
        yield n % x, n // x % y, n // (x * y)


def _wrong_bytes(case: Case, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, list[int]]]:
    """Each output that is judged wrong: where its wrong numbers begin, the worst first, at most 64 of them. Of the
    others nobody knows which are no more than rounded: those that are off a tenth as much count."""
    for name, output in case.outputs.items():
        got, expected = tensors[name], output.expected
        if output.kind == "scratch" or got.shape != expected.shape:
            continue
        if case.compare is None and wrong_values(replace(case, outputs={name: output}), tensors) is None:
            continue
        off = (got.double() - expected.double()).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
        off = torch.where((got == expected) & ~still_blank(got), 0.0, off).flatten()
        worst = off.argsort(descending=True, stable=True)[:64]
        least = off.max() / 10
        yield name, [int(n) * got.element_size() for n in worst if off[n] > 0 and off[n] >= least]


def _recorded(run: Run, source: KernelSource, block: Block) -> Recording:
    """A recording of the case's last launch, whose outputs are judged. An earlier launch may have a smaller grid."""
    tensors = copies(run)
    with configure(time_limit=LATER_SECONDS + LAUNCH_SECONDS):
        return record(lambda: _launch(run, source, tensors), block=block, launch=len(run.launches) - 1)


def _launched(run: Run, source: KernelSource, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a launch failed. Raises CompileError and LaunchError."""
    try:
        _launch(run, source, tensors)
    except KernelError:
        return True
    return False


def _launch(run: Run, source: KernelSource, tensors: Mapping[str, Tensor]) -> None:
    for launch in run.launches:
        function = RawModule(code=source, options=launch.options).get_function(launch.kernel)
        function(launch.grid, launch.block, arguments(launch, tensors), shared_mem=launch.shared_mem)
