"""python -m tests.nvidia.soak [LAUNCHES]: a hundred thousand launches of chapter 07's forward pass, on a Hopper GPU.

Forty shapes in an order of chance, in 16 and in 8 bits: ragged and tiny lengths, long ones, grouped heads. The first
launch of each is compared with float64, and every later one with that launch's results, bit for bit. In two of three
shapes there are more items than an H100 or H200 has multiprocessors, so that blocks fetch a second item and a third.
Writes course_utils/measured/hopper_soak.json.
"""

from __future__ import annotations

import functools
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from course_utils import measured
from course_utils.checks import AttentionCase, check_case, check_e4m3_case
from course_utils.costs import ceil_div
from course_utils.operators import flash_attention_hopper
from course_utils.operators.hopper_launch import E4M3, E4M3_TILES, TILES

COMMAND = "python -m tests.nvidia.soak"
SEED = 7
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
MANY_ITEMS = 300  # more than twice the 132 multiprocessors of an H100 or H200
BLOCK_ROWS = max(tile.block_rows for tiles in (*TILES.values(), E4M3_TILES.values()) for tile in tiles)


def fewest_items(case: AttentionCase) -> int:
    """Of the largest blocks, how many cover its queries: it has so many items, or more."""
    return case.batch * case.heads * ceil_div(case.query_length, BLOCK_ROWS)


def cases() -> list[tuple[AttentionCase, torch.dtype]]:
    """Forty: each pair of lengths four times. In each dtype there are all eight combinations of mask, grouped heads and
    head dimension, and two of three shapes, or nearly, have many items."""
    chosen = []
    for n, (query_length, key_length) in enumerate(LENGTHS):
        for m, dtype in enumerate(DTYPES):
            is_causal, grouped, wide = ((n + 3 * m) >> bit & 1 for bit in range(3))
            heads, kv_heads = (8, 2) if grouped else (4, 4)
            batch = ceil_div(MANY_ITEMS, heads * ceil_div(query_length, BLOCK_ROWS)) if (n + m) % 3 else 2
            case = AttentionCase(
                batch, heads, kv_heads, query_length, key_length, 128 if wide else 64, bool(is_causal), "planted"
            )
            chosen.append((case, dtype))
    return chosen


class Shape(NamedTuple):
    """launch: on inputs made once. first: what the launch gave that was compared with float64."""

    launch: Callable[[], tuple[Tensor, Tensor]]
    first: tuple[Tensor, Tensor]


def ready(case: AttentionCase, dtype: torch.dtype, device: str = "cuda") -> Shape:
    """A shape whose first launch is right. Raises AssertionError where it is wrong by float64."""
    made: list[Shape] = []

    def launched(*inputs: Tensor, **options: object) -> tuple[Tensor, Tensor]:
        launch = functools.partial(flash_attention_hopper, *inputs, **options)
        made.append(Shape(launch, launch()))
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


def soak(
    launches: int, chosen: Sequence[tuple[AttentionCase, torch.dtype]], device: str = "cuda"
) -> list[measured.Row]:
    """A row for each shape: its launches after the first, and how many of them differ from it."""
    shapes = [ready(*one, device) for one in tqdm(chosen, desc="float64")]
    differ = torch.zeros(len(shapes), dtype=torch.int64, device=device)
    order = random.Random(SEED).choices(range(len(shapes)), k=launches)
    for n in tqdm(order, desc="launches"):
        same = [
            torch.eq(a.view(torch.uint8), b.view(torch.uint8)).all()
            for a, b in zip(shapes[n].launch(), shapes[n].first, strict=True)
        ]
        differ[n] += ~(same[0] & same[1])
    return [
        {
            "dtype": str(dtype).removeprefix("torch."),
            "query": [case.batch, case.heads, case.query_length, case.head_dim],
            "key": [case.batch, case.kv_heads, case.key_length, case.head_dim],
            "is_causal": case.is_causal,
            "launches": order.count(n),
            "differ": int(differ[n]),
        }
        for n, (case, dtype) in enumerate(chosen)
    ]


def main() -> None:
    launches = int(sys.argv[1]) if sys.argv[1:] else 100_000
    started = time.monotonic()
    rows = soak(launches, cases())
    wrong = sum(row["differ"] for row in rows)
    seconds = time.monotonic() - started
    print(f"{launches:,} launches of {len(rows)} shapes in {seconds:.0f} s: {wrong} differ from the first")
    measured.save("hopper_soak", rows, COMMAND)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
