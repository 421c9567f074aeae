"""What the soak of chapter 07's forward pass launches and counts, and what its record says."""

from collections import defaultdict

import pytest
import torch

from course_utils import measured
from course_utils.checks import AttentionCase
from course_utils.operators.hopper_launch import E4M3
from tests.nvidia import soak

MULTIPROCESSORS = 132  # of an H100 or H200


def test_most_launches_in_each_dtype_give_blocks_a_second_item():
    of_dtype = defaultdict(list)
    for case, dtype in soak.cases():
        of_dtype[dtype].append(case)
    assert {dtype: len(of) for dtype, of in of_dtype.items()} == {torch.float16: 20, torch.bfloat16: 10, E4M3: 10}
    for dtype, found in of_dtype.items():
        with_second = [case for case in found if soak.fewest_items(case) > MULTIPROCESSORS]
        assert len(with_second) >= 0.6 * len(found), dtype
        kinds = {(case.is_causal, case.heads != case.kv_heads, case.head_dim) for case in found}
        assert len(kinds) == 8, dtype


SMALL = [
    (AttentionCase(1, 2, 1, 17, 127, 64, True, "planted"), torch.float16),
    (AttentionCase(1, 1, 1, 1, 65, 64, False, "planted"), E4M3),
]


def test_a_launch_that_differs_in_one_bit_is_counted(monkeypatch):
    operator, calls = soak.flash_attention_hopper, []

    def differs_once(*inputs, **options):
        out, lse = operator(*inputs, **options)
        calls.append(inputs[0].dtype)
        if len(calls) == 5:
            out.view(torch.uint8).view(-1)[0] ^= 1
        return out, lse

    monkeypatch.setattr(soak, "flash_attention_hopper", differs_once)
    rows = soak.soak(4, SMALL, "cpu")
    assert len(calls) == len(SMALL) + 4 and sum(row["launches"] for row in rows) == 4
    assert {row["dtype"]: row["differ"] for row in rows if row["differ"]} == {str(calls[4]).removeprefix("torch."): 1}


def test_a_first_launch_that_is_wrong_is_an_error(monkeypatch):
    operator = soak.flash_attention_hopper

    def wrong(*inputs, **options):
        out, lse = operator(*inputs, **options)
        return out + 1, lse

    monkeypatch.setattr(soak, "flash_attention_hopper", wrong)
    with pytest.raises(AssertionError, match="L_q=17 L_k=127 .* torch.float16: out: WRONG"):
        soak.ready(*SMALL[0], "cpu")


def test_of_the_recorded_launches_of_these_shapes_none_differs():
    found = measured.load("hopper_soak")
    assert found.command == soak.COMMAND and found.device in ("NVIDIA H200", "NVIDIA H100 80GB HBM3")
    assert [(row["query"], row["key"], row["is_causal"], row["dtype"]) for row in found.rows] == [
        (
            [case.batch, case.heads, case.query_length, case.head_dim],
            [case.batch, case.kv_heads, case.key_length, case.head_dim],
            case.is_causal,
            str(dtype).removeprefix("torch."),
        )
        for case, dtype in soak.cases()
    ]
    assert sum(row["launches"] for row in found.rows) == 100_000 and min(row["launches"] for row in found.rows) > 2000
    assert not any(row["differ"] for row in found.rows)
