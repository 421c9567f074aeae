"""What the tile stepper shows is what forward_plain.cu computes, after every tile and at the end."""

import numpy as np
import pytest
import torch

from course_utils.costs import ceil_div
from course_utils.cuda import RawModule, read_kernel
from course_utils.widgets import tile_steps

D, B_R, B_C = 16, 16, 8
SHARED = 4 * (B_R * (D + 1) + 2 * B_C * D + B_R * (B_C + 1))  # the kernel's own header
# Both are fp32 and sum the dot products in different orders: an error of D·2⁻²⁴·|score| (about 1e-5 for these scores,
# up to 9) in the exponent. Not bitwise equality, but the course's floor for fp32.
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture(scope="module")
def kernel():
    code = read_kernel("02_flash_attention_minimal/forward_plain.cu")
    return RawModule(code=code, options=(f"-DD={D}", f"-DB_R={B_R}", f"-DB_C={B_C}")).get_function("forward_plain")


def run(kernel, query, key, value, is_causal):
    out, lse = torch.full_like(query, torch.nan), torch.full((query.shape[0],), torch.nan)
    lengths = (np.int32(query.shape[0]), np.int32(key.shape[0]))
    arguments = (query, key, value, out, lse, *lengths, np.float32(D**-0.5), np.int32(is_causal))
    kernel((ceil_div(query.shape[0], B_R), 1, 1), (B_R,), arguments, shared_mem=SHARED)
    return out, lse


def inputs(L_q, L_k):
    generator = torch.Generator().manual_seed(L_q)
    return (1.5 * torch.randn(length, D, generator=generator) for length in (L_q, L_k, L_k))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("lengths", [(1, 1), (3, 5), (40, 40), (50, 41), (41, 50)])
def test_the_end_is_the_kernel_s_output(kernel, lengths, is_causal):
    query, key, value = inputs(*lengths)
    out, lse = run(kernel, query, key, value, is_causal)
    steps = tile_steps(query, key, value, block_rows=B_R, block_cols=B_C, is_causal=is_causal)
    written = [step for step in steps if step.kind == "write"]
    torch.testing.assert_close(torch.cat([step.O for step in written]), out, **TOLERANCE)
    torch.testing.assert_close(torch.cat([step.LSE for step in written]), lse, **TOLERANCE)


def test_after_each_tile_the_state_is_the_kernel_s_over_the_keys_so_far(kernel):
    query, key, value = inputs(40, 29)
    for step in tile_steps(query, key, value, block_rows=B_R, block_cols=B_C):
        if step.kind == "tile":
            rows, right = slice(*step.rows), step.cols[1]
            out, lse = run(kernel, query, key[:right].clone(), value[:right].clone(), is_causal=False)
            torch.testing.assert_close(step.O / step.l[:, None], out[rows], **TOLERANCE)
            torch.testing.assert_close(step.m + torch.log(step.l), lse[rows], **TOLERANCE)
