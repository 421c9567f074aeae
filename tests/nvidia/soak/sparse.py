"""Forty-five shapes of `sparse_attention`, forward and backward, under patterns of every kind that a Hopper GPU has a
kernel for. It has none for lists of blocks with 64 columns, nor for the deterministic backward pass of lists: there the
portable kernels run. block_sparse_backward_hopper.cu is not here, as the order of its sums is one of chance.

The gradients are those under `torch.use_deterministic_algorithms`. Before anything is launched, each shape's call is
seen to choose the kernels that are named here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from tqdm import tqdm

from course_utils import patterns
from course_utils.bench.timed import compile_ahead
from course_utils.checks import AttentionCase, check_case, make_inputs
from course_utils.cuda import Kernel, ReadyLaunch
from course_utils.operators import hopper_launch, sparse_attention, tensor_core
from course_utils.operators.sparse_hopper import RANGE_FORWARD
from course_utils.operators.sparse_hopper_backward import RANGE_BACKWARD
from course_utils.operators.sparse_hopper_lists import BLOCK_SPARSE_FORWARD
from course_utils.operators.sparse_launch import FOLDER
from course_utils.patterns import Pattern
from tests.helpers.deterministic import told_to_be_deterministic
from tests.nvidia.soak import SEED, Shape, batch_of_many_items, columns

COMMAND, RECORD, LAUNCHES = "python -m tests.nvidia.soak sparse", "sparse_soak", 10_000
RANGES = {RANGE_FORWARD, hopper_launch.BACKWARD, RANGE_BACKWARD}
DENSE = {hopper_launch.FORWARD, hopper_launch.BACKWARD}
PORTABLE_LISTS = {f"{FOLDER}/block_sparse.cu", f"{FOLDER}/block_sparse_backward.cu", tensor_core.BACKWARD}
SPLIT_LISTS = PORTABLE_LISTS | {BLOCK_SPARSE_FORWARD}  # the parts are merged by block_sparse.cu
LISTS = SPLIT_LISTS - {f"{FOLDER}/block_sparse.cu"}

ITEMS = 150  # more than the multiprocessors; with MANY_ITEMS there is nearly twice as much to compute in float64
RAGGED = (1, 300), (129, 257), (700, 1025), (1500, 1100)
EVEN = (130, 300), (200, 258), (1500, 1100)
LONG = (2100, 2100), (2048, 2300)  # at d = 64 for blocks of three consumers
WHOLE = (384, 384), (768, 768), (1152, 1152)
TYPES = (64, torch.float16), (128, torch.bfloat16), (128, torch.float16), (64, torch.bfloat16)
OF_64, OF_128 = ([of for of in TYPES if of[0] == head_dim] for head_dim in (64, 128))


def documents(length: int) -> Pattern:
    """Five documents, one of them of one token."""
    return patterns.document(
        [1, length // 5, length // 2, length // 7, length - 1 - sum(length // n for n in (5, 2, 7))]
    )


# What makes the pattern for a number of keys, the files of the kernels that the operator chooses, lengths, and head
# dimensions with dtypes.
Kind = tuple[Callable[[int], Pattern], set[str], Sequence[tuple[int, int]], Sequence[tuple[int, torch.dtype]]]
KINDS: tuple[Kind, ...] = (
    (lambda _: patterns.sliding_window(33), RANGES, RAGGED, TYPES),
    (lambda _: patterns.sliding_window(200), RANGES, RAGGED, TYPES),
    (lambda _: patterns.sliding_window(2048), RANGES, LONG, TYPES),
    (lambda _: patterns.streaming(4, 300), RANGES, RAGGED, TYPES),
    (lambda _: patterns.streaming(130, 60), RANGES, LONG, TYPES),  # more than a tile of sinks; their columns are cut
    (lambda _: patterns.local(90), RANGES, RAGGED, TYPES),
    (lambda length: documents(length) & patterns.causal(), RANGES, RAGGED, TYPES),
    (documents, RANGES, RAGGED, TYPES),
    (lambda _: patterns.block_diagonal(200), RANGES, RAGGED, TYPES),
    (lambda _: patterns.block_diagonal(300) & patterns.causal(), RANGES, RAGGED, TYPES),  # chunks
    (lambda _: patterns.block_diagonal(384), DENSE, WHOLE, TYPES),
    (lambda _: patterns.dilated(65, 2), RANGES, EVEN, TYPES),
    (lambda _: patterns.bigbird(64), PORTABLE_LISTS, RAGGED, OF_64),
    (lambda _: patterns.bigbird(64), LISTS, RAGGED, OF_128),
    (lambda _: patterns.bigbird(64), SPLIT_LISTS, LONG[:1], OF_128),  # the first queries are global, and see all keys
)


class SparseCase(NamedTuple):
    """kernels: the files of all that a call launches, forward and backward, as for `read_kernel`."""

    pattern: Pattern
    case: AttentionCase
    dtype: torch.dtype
    kernels: set[str]


def cases() -> list[SparseCase]:
    """Three of each kind. Under ranges there are all eight combinations of head dimension, dtype and grouped heads, and
    two of three shapes have ITEMS."""
    chosen = []
    for n, (make, kernels, lengths, types) in enumerate(KINDS):
        for m in range(3):
            query_length, key_length = lengths[(n + m) % len(lengths)]
            head_dim, dtype = types[(n // 4 + m) % len(types)]
            heads, kv_heads = (8, 2) if (n // 2 + m) % 2 and kernels is not DENSE else (4, 4)
            batch = batch_of_many_items(heads, query_length, ITEMS) if (n + m) % 3 else 1
            case = AttentionCase(batch, heads, kv_heads, query_length, key_length, head_dim, False, "planted")
            chosen.append(SparseCase(make(key_length), case, dtype, kernels))
    return chosen


def shapes(device: str = "cuda") -> list[Shape]:
    """Every case, ready. Raises AssertionError where a call chooses other kernels, or a first launch is wrong."""
    chosen = [(one, launch_of(one, device)) for one in tqdm(cases(), desc="inputs")]
    compile_ahead({kernel.module for pair in chosen for kernel in chosen_kernels(*pair)}, device)
    return [ready(*pair) for pair in tqdm(chosen, desc="float64")]


def launch_of(one: SparseCase, device: str) -> Callable[[], tuple[Tensor, ...]]:
    """A forward and a backward pass on inputs made once: out, lse, and the gradients of query, key and value."""
    *inputs, grad_out = make_inputs(one.case, dtype=one.dtype, device=device, seed=SEED)
    inputs = [tensor.requires_grad_() for tensor in inputs]
    return functools.partial(both_passes, inputs, grad_out, one.pattern)


def both_passes(inputs: Sequence[Tensor], grad_out: Tensor, pattern: Pattern) -> tuple[Tensor, ...]:
    """Out, lse and the deterministic gradients."""
    with told_to_be_deterministic():
        out, lse = sparse_attention(*inputs, pattern, enable_gqa=True, return_lse=True)
        return out.detach(), lse, *torch.autograd.grad(out, inputs, grad_out)


def chosen_kernels(one: SparseCase, launch: Callable[[], object]) -> list[Kernel]:
    """The kernels that a call would launch; nothing is launched. Raises AssertionError unless they are the case's."""
    found: list[Kernel] = []
    with mock.patch.object(ReadyLaunch, "__call__", lambda ready, *tensors: found.append(ready.kernel)):
        launch()
    files = {kernel.module.name for kernel in found}
    if files != one.kernels:
        raise AssertionError(
            f"{one.pattern.name}, {one.case}: launches {', '.join(sorted(files))} instead of "
            f"{', '.join(sorted(one.kernels))}"
        )
    return found


class _Found(torch.autograd.Function):
    """An operator whose results and gradients are there already, for `check_case`."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        out, lse, *ctx.gradients = (tensor.clone() for tensor in found)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.gradients, None


def ready(one: SparseCase, launch: Callable[[], tuple[Tensor, ...]]) -> Shape:
    """A shape whose first launch is right. Raises AssertionError where it is wrong by float64."""
    first = launch()
    reports = check_case(
        lambda *inputs, **_: _Found.apply(*inputs, first),
        one.case,
        device=first[0].device,
        dtype=one.dtype,
        gradients=True,
        lse=True,
        attn_mask=one.pattern.mask(one.case.query_length, one.case.key_length),
        seed=SEED,
    )
    wrong = [str(report) for report in reports if not report.passed]
    if wrong:
        raise AssertionError(f"{one.pattern.name}, {one.case}, {one.dtype}: {wrong[0]}")
    of_row = {"pattern": one.pattern.name, "kernels": sorted(one.kernels)}
    return Shape(columns(one.case, one.dtype) | of_row, launch, first)
