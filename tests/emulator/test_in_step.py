"""in_step(): a kernel that lacks a barrier gives what its writer meant, and any other what it gives anyway."""

import numpy as np
import pytest
import torch

from course_utils.cuda import RawModule
from course_utils.emulator import sanitize
from course_utils.emulator.tracing import in_step

# Each kernel reverses or adds up 64 numbers; BARRIER is empty, or one.
SOURCE = r"""
extern "C" __global__ void reverse(const float* x, float* y) {
    __shared__ float s[64];
    for (int turn = 0; turn < 3; turn++) {             // what the first turn reads, the second overwrites
        s[threadIdx.x] = x[threadIdx.x] + turn;
        BARRIER
        y[64 * turn + threadIdx.x] = s[63 - threadIdx.x];
        BARRIER
    }
}
extern "C" __global__ void of_one_lane(const float* x, float* y) {
    __shared__ float of_warp[2];
    float sum = x[threadIdx.x];
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;       // the others do not write
    BARRIER
    y[threadIdx.x] = of_warp[0] + of_warp[1];
}
extern "C" __global__ void tree(const float* x, float* y) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    BARRIER
    for (int step = 32; step > 0; step /= 2) {
        if (threadIdx.x < step) s[threadIdx.x] += s[threadIdx.x + step];
        BARRIER
    }
    if (threadIdx.x == 0) y[0] = s[0];                                // who did nothing in the loop is here before
}
"""
SIZES = {"reverse": 192, "of_one_lane": 64, "tree": 64}


def run(kernel, barrier):
    code = SOURCE.replace("BARRIER", barrier)
    x, y = torch.arange(64.0) ** 2, torch.zeros(SIZES[kernel])
    RawModule(code=code).get_function(kernel)((1,), (64,), (x, y))
    return y.tolist()


@pytest.mark.parametrize("kernel", SIZES)
def test_a_kernel_without_its_barriers_gives_what_was_meant(kernel):
    meant = run(kernel, "__syncthreads();")
    assert run(kernel, "") != meant
    with in_step():
        assert run(kernel, "") == meant
        assert run(kernel, "__syncthreads();") == meant


def test_it_stands_for_itself():
    with sanitize(), pytest.raises(ValueError, match="one after the other"), in_step():
        pass


def test_a_thread_that_nobody_lets_go_is_still_found():
    code = r"""extern "C" __global__ void k(volatile int* x) {
        __shared__ volatile int flag;
        flag = 0;
        if (threadIdx.x == 0) while (flag == 0);
        x[threadIdx.x] = 1;
    }"""
    from course_utils.cuda import KernelError
    from course_utils.emulator import configure

    with in_step(), configure(time_limit=0.2), pytest.raises(KernelError, match="time limit"):
        RawModule(code=code).get_function("k")((1,), (np.int32(32),), (torch.zeros(32, dtype=torch.int32),))
