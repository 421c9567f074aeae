"""In which order the threads of a block run between two meetings: seen by who asks, and by no kernel that is right."""

import pytest
import torch

from course_utils.cuda import RawModule
from course_utils.emulator import configure, sanitize
from tests.helpers.all_of import all_of

CODE = """
extern "C" __global__ void tickets(int* out, int* counter) { out[threadIdx.x] = atomicAdd(counter, 1); }

extern "C" __global__ void right(const float* in, float* out, int* flags) {
    __shared__ float s[96];
    const int i = threadIdx.x;
    float v = in[i];
    for (int step = 16; step; step /= 2) v += __shfl_xor_sync(~0u, v, step) * (i + 1);
    if (i % 3 == 1) return;                              // counts as arrived
    s[i] = v;
    __syncthreads();
    v = s[95 - i / 3 * 3];
    __syncthreads();
    if (i == 0) { while (atomicAdd(flags + 1, 0) == 0) {} atomicExch(flags, 1); }      // one waits for the last,
    if (i == 95) { atomicExch(flags + 1, 1); while (atomicAdd(flags, 0) == 0) {} }     // the last for the first
    out[i] = v;
}

extern "C" __global__ void wrong(const float* in, float* out) {
    __shared__ float s[64];
    s[threadIdx.x] = in[threadIdx.x];
    out[threadIdx.x] = s[0] + s[63];
}
"""


@pytest.fixture(scope="module")
def module():
    return RawModule(code=CODE)


def tickets(module, **how):
    out = torch.zeros(64, dtype=torch.int32)
    with configure(**how):
        module.get_function("tickets")((1,), (64,), (out, torch.zeros(1, dtype=torch.int32)))
    return out.tolist()


def test_threads_take_their_turns_in_this_order(module):
    forward = list(range(64))
    assert tickets(module) == tickets(module, thread_order="forward") == forward
    assert tickets(module, thread_order="reverse") == forward[::-1]
    shuffled = [tickets(module, thread_order="random", seed=seed) for seed in (0, 1, 0)]
    assert shuffled[0] == shuffled[2] and len({*map(tuple, [*shuffled, forward, forward[::-1]])}) == 4
    assert sorted(shuffled[0]) == forward


ORDERS = [{"thread_order": "reverse"}, *({"thread_order": "random", "seed": seed} for seed in range(3))]


def results(module, kernel, **how):
    values, out = torch.rand(96, generator=torch.Generator().manual_seed(0)), torch.zeros(96)
    flags = [torch.zeros(2, dtype=torch.int32)] if kernel == "right" else []
    with configure(time_limit=5.0, **how):
        module.get_function(kernel)((1,), (96 if flags else 64,), (values, out, *flags))
    return out


@all_of("how", ORDERS)
def test_a_kernel_that_is_right_gives_the_same_in_each_order_watched_or_not(module, how):
    wanted = results(module, "right")
    assert torch.equal(results(module, "right", **how), wanted)
    with sanitize() as report:
        assert torch.equal(results(module, "right", **how), wanted)
    assert not report.findings, str(report)


def test_a_missing_barrier_shows_in_another_order(module):
    assert not torch.equal(results(module, "wrong", thread_order="reverse"), results(module, "wrong"))


def test_what_is_no_order_is_named():
    message = "thread_order takes one of forward, reverse, random, got 'backward'"
    with pytest.raises(ValueError, match=message), configure(thread_order="backward"):
        pass
