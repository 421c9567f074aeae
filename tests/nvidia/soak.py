"""python -m tests.nvidia.soak [LAUNCHES]: a hundred thousand launches of chapter 07's forward pass, on a Hopper GPU.

Forty shapes in an order of chance, in 16 and in 8 bits: ragged and tiny lengths, long ones, grouped heads. The first
launch of each shape is compared with float64, every later one with the first, bit for bit. Writes
course_utils/measured/hopper_soak.json.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from tqdm import tqdm

from course_utils import measured
from course_utils.checks import AttentionCase, check_case, check_e4m3_case, make_inputs
from course_utils.operators import flash_attention_hopper
from course_utils.reference import quantize_heads

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
DTYPES = (torch.float16, torch.bfloat16, torch.float16, torch.float8_e4m3fn)


def cases() -> list[tuple[AttentionCase, torch.dtype]]:
    """Forty: each pair of lengths four times, with other masks, head dims, heads and dtypes."""
    chosen = []
    for n, (query_length, key_length) in enumerate(LENGTHS):
        for m, dtype in enumerate(DTYPES):
            heads, kv_heads = ((4, 4), (8, 2))[(n + m) % 2]
            head_dim = 128 if dtype == torch.float8_e4m3fn else (64, 128)[(n + m // 2) % 2]
            case = AttentionCase(
                2, heads, kv_heads, query_length, key_length, head_dim, bool((n + m) % 2), "planted", None, False
            )
            chosen.append((case, dtype))
    return chosen


def ready(case: AttentionCase, dtype: torch.dtype) -> Callable[[], tuple[Tensor, Tensor]]:
    """Its launch on inputs made once. Raises AssertionError where the first result is wrong by float64."""
    if dtype == torch.float8_e4m3fn:
        reports = check_e4m3_case(flash_attention_hopper, case, device="cuda", seed=SEED)
    else:
        reports = check_case(flash_attention_hopper, case, device="cuda", dtype=dtype, lse=True, seed=SEED)
    wrong = [str(report) for report in reports if not report.passed]
    if wrong:
        raise AssertionError(f"{case}, {dtype}: {wrong[0]}")
    inputs = make_inputs(case, device="cuda", seed=SEED)[:3]
    options = {"is_causal": case.is_causal, "enable_gqa": case.heads != case.kv_heads, "return_lse": True}
    if dtype == torch.float8_e4m3fn:
        made = [quantize_heads(tensor) for tensor in inputs]
        inputs = [values for values, _ in made]
        options |= dict(zip(("q_scale", "k_scale", "v_scale"), (scale for _, scale in made), strict=True))
    else:
        inputs = [tensor.to(dtype) for tensor in inputs]
    return lambda: flash_attention_hopper(*inputs, **options)


def soak(launches: int) -> list[dict]:
    """A row for each shape: its launches, and how many of them differ from the first."""
    chosen = cases()
    calls = [ready(*one) for one in tqdm(chosen, desc="float64")]
    first = [call() for call in calls]
    differ = torch.zeros(len(calls), dtype=torch.int64, device="cuda")
    order = random.Random(SEED).choices(range(len(calls)), k=launches)
    for n in tqdm(order, desc="launches"):
        same = [
            torch.eq(a.view(torch.uint8), b.view(torch.uint8)).all() for a, b in zip(calls[n](), first[n], strict=True)
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
    rows = soak(launches)
    wrong = sum(row["differ"] for row in rows)
    seconds = time.monotonic() - started
    print(f"{launches:,} launches of {len(rows)} shapes in {seconds:.0f} s: {wrong} differ from the first")
    measured.save("hopper_soak", rows, COMMAND)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
