"""Forty shapes of chapter 07's forward pass, in 16 and in 8 bits: ragged and tiny lengths, long ones, grouped heads."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from tqdm import tqdm

from course_utils.checks import AttentionCase, check_case, check_e4m3_case
from course_utils.operators import flash_attention_hopper
from course_utils.operators.hopper_launch import E4M3
from tests.nvidia.soak import SEED, Shape, batch_of_many_items, columns

COMMAND, RECORD, LAUNCHES = "python -m tests.nvidia.soak", "hopper_soak", 100_000
LENGTHS = (
    (1, 1),
    (1, 65),
    (17, 127),
    (129, 129),
    (128, 300),
    (255, 511),
    (513, 512),
    (700, 1025),
    (1024, 1024),
    (2048, 2048),
)
DTYPES = (torch.float16, torch.bfloat16, torch.float16, E4M3)


def cases() -> list[tuple[AttentionCase, torch.dtype]]:
    """Forty: each pair of lengths four times. In each dtype there are all eight combinations of mask, grouped heads and
    head dimension, and two of three shapes, or nearly, have many items."""
    chosen = []
    for n, (query_length, key_length) in enumerate(LENGTHS):
        for m, dtype in enumerate(DTYPES):
            is_causal, grouped, wide = ((n + 3 * m) >> bit & 1 for bit in range(3))
            heads, kv_heads = (8, 2) if grouped else (4, 4)
            batch = batch_of_many_items(heads, query_length) if (n + m) % 3 else 2
            case = AttentionCase(
                batch, heads, kv_heads, query_length, key_length, 128 if wide else 64, bool(is_causal), "planted"
            )
            chosen.append((case, dtype))
    return chosen


def shapes() -> list[Shape]:
    """Every case, ready. Raises AssertionError where a first launch is wrong."""
    return [ready(*one) for one in tqdm(cases(), desc="float64")]


def ready(case: AttentionCase, dtype: torch.dtype, device: str = "cuda") -> Shape:
    """A shape whose first launch is right. Raises AssertionError where it is wrong by float64."""
    made: list[Shape] = []

    def launched(*inputs: Tensor, **options: object) -> tuple[Tensor, Tensor]:
        launch = functools.partial(flash_attention_hopper, *inputs, **options)
        made.append(Shape(columns(case, dtype) | {"is_causal": case.is_causal}, launch, launch()))
        return made[-1].first

    if dtype == E4M3:
        reports = check_e4m3_case(launched, case, device=device, seed=SEED)
    else:
        reports = check_case(launched, case, device=device, dtype=dtype, lse=True, seed=SEED)
    wrong = [str(report) for report in reports if not report.passed]
    if wrong:
        raise AssertionError(f"{case}, {dtype}: {wrong[0]}")
    (shape,) = made
    return shape
