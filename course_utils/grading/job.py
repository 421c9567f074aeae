"""What the grader hands to the child process: plain data, no part of which says what is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from course_utils.grading.exercise import Case, Launch

LAUNCH_SECONDS = 5.0  # for one launch on the emulator, a hundred times a solution's; for a case on a GPU
LATER_SECONDS = 2.0  # for one after a launch of the same kernel that did not end
PYTHON_SECONDS = 30.0  # for the student's Python cells
PYTHON_BYTES = 2 << 30  # of memory for them
COUNTED = ("exponentials", "beside_products", "product_flops", "most_in_flight")  # of `Counters` and of `Outcome`
NOT_SENT = ("events", "waits")  # of what the sanitizer finds: the message and the other fields say enough


@dataclass(frozen=True)
class Run:
    """One case, as the child sees it. index: its place among the exercise's cases. tensors: inputs and outputs by name,
    in their first state. outputs: which of them to send back. reference: kernels of the course to time beside.
    """

    index: int
    launches: tuple[Launch, ...]
    tensors: dict[str, Tensor]
    outputs: tuple[str, ...]
    reference: tuple[tuple[str, Launch], ...] = ()


@dataclass(frozen=True)
class Job:
    """kernel: the student's source, under `file` in messages. cells: (grade_id, source) of the Python to run.
    collects: whether the exercise takes tensors from them.
    """

    exercise: str
    device: str = "cpu"
    file: str = ""
    kernel: str = ""
    kernels: tuple[str, ...] = ()
    assembly: bool = False
    runs: tuple[Run, ...] = ()
    cells: tuple[tuple[str, str], ...] = ()
    questions: tuple[str, ...] = ()
    collects: bool = False


_NAN = {torch.float16: 0x7EEF, torch.bfloat16: 0x7FEF, torch.float32: 0x7FC0BEEF, torch.float64: 0x7FF800000000BEEF}
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _blank_bits(dtype: torch.dtype) -> int:
    return _NAN[dtype] if dtype.is_floating_point else torch.iinfo(dtype).max


def blank(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An output that nobody has written yet: a NaN of bits that no computation gives, or the largest integer."""
    if not dtype.is_floating_point:
        return torch.full(shape, _blank_bits(dtype), dtype=dtype)
    return torch.full(shape, _blank_bits(dtype), dtype=_BITS[dtype.itemsize]).view(dtype)


def still_blank(tensor: Tensor) -> Tensor:
    """Bool, where a tensor still holds what `blank` put there."""
    bits = tensor.view(_BITS[tensor.dtype.itemsize]) if tensor.dtype.is_floating_point else tensor
    return bits == _blank_bits(tensor.dtype)


def as_run(index: int, case: Case) -> Run:
    """The case as a child sees it."""
    tensors = {name: tensor.contiguous() for name, tensor in case.inputs.items()}
    for name, output in case.outputs.items():
        first = output.initial
        tensors[name] = blank(output.expected.shape, output.dtype) if first is None else first.to(output.dtype)
    return Run(index, case.launches, tensors, tuple(case.outputs), case.reference)
