"""What sm_90a adds: products of a warpgroup in each form, barriers of some threads, and what is said of wrong ones."""

import numpy as np
import pytest
import torch

from course_utils.cuda import CompileError, KernelError, LaunchError, RawModule
from course_utils.emulator import configure, profile, sanitize
from course_utils.emulator.tracing import in_step
from tests.nvidia.silicon.case import MBARRIER
from tests.nvidia.silicon.others import BARRIERS
from tests.nvidia.silicon.products import (
    BF16,
    E4M3,
    E5M2,
    HALF,
    IMAGE,
    Form,
    depth_of,
    exact_before,
    exact_factors,
    multiply,
    of_threads,
    product_arguments,
    stored,
)

ARCH = "// arch: sm_90a only\n"


# ---- wgmma

FORMS = [
    *((Form((HALF, HALF), n), (128, 128), False) for n in (8, 24, 64, 176, 256)),
    (Form((BF16, BF16), 32, signs=(-1, 1)), (128, 128), False),
    (Form((HALF, HALF), 16, signs=(1, -1)), (128, 128), True),
    *((Form(pair, 40), (128, 128), False) for pair in ((E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2))),
    *((Form((HALF, HALF), 72), swizzles, False) for swizzles in ((64, 32), (32, 16), (16, 64))),
    *((Form((BF16, BF16), 128, transposed=(True, True)), (n, n), False) for n in (128, 64)),
    *((Form((HALF, HALF), 32, transposed=(True, True)), (n, n), False) for n in (32, 16)),
    (Form((HALF, HALF), 128, transposed=(False, True)), (128, 128), True),
    *((Form((one, one), 48, in_registers=True), (128, 128), True) for one in (HALF, E4M3)),
    (Form((BF16, BF16), 64, in_registers=True, transposed=(False, True)), (128, 128), False),
]


@pytest.mark.parametrize(("form", "row_bytes", "add"), FORMS, ids=str)
def test_a_warpgroup_multiplies_the_factors_where_its_descriptors_say_they_are(form, row_bytes, add):
    arguments, (d,) = multiply(form, row_bytes, 2, add, "cpu")
    RawModule(code=form.code()).get_function("k")((1,), (128,), arguments, shared_mem=2 * IMAGE)
    a, b = exact_factors(form, 2)
    expected = form.signs[0] * form.signs[1] * (a.float() @ b.float().T) + add * exact_before(form)
    assert torch.equal(d, of_threads(expected))


def added(*terms, before=0.0, dtype=E4M3, exact=False):
    """D of one instruction whose terms are these, as products with 1."""
    form = Form((dtype, dtype), 8)
    a, b = torch.zeros(64, depth_of(dtype)), torch.ones(8, depth_of(dtype)).to(dtype)
    a[:, : len(terms)] = torch.tensor(terms)
    images = (stored(a.to(dtype), 32, False), stored(b, 32, False))
    arguments, (d,) = product_arguments(*images, None, torch.full((64, 8), float(before)), add=True, device="cpu")
    with configure(exact_sums=exact):
        RawModule(code=form.code()).get_function("k")((1,), (128,), arguments, shared_mem=2 * IMAGE)
    assert (d == d[0, 0]).all()
    return d[0, 0].item()


def test_of_eight_bits_13_behind_the_greatest_exponent_are_added_and_14_kept():
    assert added(256, 2.0**-5) == 256 + 2**-5
    assert added(256, 2.0**-6, 2.0**-6) == 256  # each is cut before they meet
    assert added(256, -(2.0**-6)) == 256  # toward zero
    assert added(256, 256, 2.0**-5) == 512  # their sum has one bit less for what is small
    assert added(2.0**-5, before=256) == 256 + 2**-5 and added(2.0**-6, before=256) == 256
    assert added(256, 2.0**-6, 2.0**-6, exact=True) == 256 + 2**-5


def test_of_sixteen_bits_25_are_added_and_24_kept():
    assert added(256, 2.0**-15, dtype=HALF) == 256 + 2**-15
    assert added(256, 2.0**-17, 2.0**-17, 2.0**-17, 2.0**-17, dtype=HALF) == 256 + 2**-15
    assert added(256, 2.0**-18, 2.0**-18, 2.0**-18, 2.0**-18, dtype=HALF) == 256
    assert added(256, 2.0**-15, 2.0**-16, 2.0**-17, dtype=HALF) == 256 + 2**-15  # toward zero, not to the nearest
    assert added(256, 2.0**-15, 2.0**-16, 2.0**-17, dtype=HALF, exact=True) == 256 + 2**-14


@pytest.mark.exhaustive("asynccheck knows where each form reads: tests/emulator/test_asynccheck.py has three of them")
@pytest.mark.parametrize(("form", "row_bytes", "add"), FORMS, ids=str)
def test_asynccheck_has_nothing_to_say_of_a_product(form, row_bytes, add):
    with sanitize() as report:
        test_a_warpgroup_multiplies_the_factors_where_its_descriptors_say_they_are(form, row_bytes, add)
    assert not report.findings, str(report)


RUNNING = """// arch: sm_90a only
extern "C" __global__ void k(const uint4* zeros_and_ones, float* out) {
    extern __shared__ __align__(1024) unsigned shared[];   // A and B, each [64, 16] or [8, 16] in rows of 128 bytes
    const int i = threadIdx.x;
    for (int n = i; n < 16384 / 4; n += 128) shared[n] = 0x3c003c00;   // ones
    unsigned long long a = (unsigned)__cvta_generic_to_shared(shared) / 16 | 64ull << 32 | 1ull << 62;
    const unsigned long long b = a + 8192 / 16;
    float d[4] = {7, 7, 7, 7};
    __syncthreads();
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
    asm volatile("wgmma.commit_group.sync.aligned;");
    out[i] = d[0];                                          // too early
    CHANGE
    asm volatile("wgmma.wait_group.sync.aligned WAIT;");
    out[128 + i] = d[0];
}"""


@pytest.mark.parametrize(
    ("wait", "change", "after"),
    [
        ("0", "", 23),
        ("1", "", 7),  # one group may still run
        ("0", "__syncthreads(); for (int n = i; n < 4096; n += 128) shared[n] = 0; __syncthreads();", 7),
    ],
    ids=["waited for", "not waited for", "a factor is overwritten"],
)
def test_a_product_is_done_as_late_as_it_may_be(run_kernel, wait, change, after):
    out = torch.zeros(256)
    code = RUNNING.replace("WAIT", wait).replace("CHANGE", change)
    run_kernel(code, (1,), (128,), (torch.zeros(4, dtype=torch.int32), out), shared_mem=16384)
    assert (out[:128] == 7).all() and (out[128:] == after).all()


def test_in_other_orders_a_product_is_done_before(run_kernel):
    """Nothing waits for it here: what a race reads depends on the order, and of a random one on the seed."""
    code, unused, seen = RUNNING.replace("CHANGE", "").replace("WAIT", "1"), torch.zeros(4, dtype=torch.int32), {}
    for order in ({"order": "early"}, *({"order": "random", "seed": seed} for seed in range(8))):
        out = torch.zeros(256)
        with configure(**order):
            run_kernel(code, (1,), (128,), (unused, out), shared_mem=16384)
        assert set(out.tolist()) <= {7, 23}
        seen.setdefault(order["order"], []).append(out)
    assert (seen["early"][0] == 23).all()
    assert len({tuple(out.tolist()) for out in seen["random"]}) > 1


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"order": "latest"}, "order takes one of late, early, random, got 'latest'"),
        ({"seed": -1}, r"seed takes an int from 0 to 2\*\*32 - 1, got -1"),
        ({"seed": 0.5}, "seed takes an int"),
    ],
    ids=str,
)
def test_an_order_that_cannot_be(setting, message):
    with pytest.raises(ValueError, match=message), configure(**setting):
        pass


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("| 1ull << 62", "| 1ull << 62 | 1ull << 52", "bits that mean nothing"),
        ("| 1ull << 62", "| 1ull << 62 | 1ull << 15", "bits that mean nothing"),
        ("| 1ull << 62", "| 1ull << 62 | 0x3fff", "past the end of shared memory"),
        ("/ 16 |", "/ 16 + i % 2 |", "the lanes of a warp have different descriptors"),
        ("float d[4] = {", "if (i == 3) return; float d[4] = {", "needs all 32 lanes of the warp"),
    ],
)
def test_a_product_that_makes_no_sense_is_an_error_with_its_line(run_kernel, old, new, message):
    code = RUNNING.replace("CHANGE", "").replace("WAIT", "0")
    assert code.count(old) == 1
    with pytest.raises(KernelError, match=rf"kernel\.cu:10: wgmma.*{message}"):
        run_kernel(
            code.replace(old, new),
            (1,),
            (128,),
            (torch.zeros(4, dtype=torch.int32), torch.zeros(256)),
            shared_mem=16384,
        )


def test_an_unknown_form_is_a_compile_error_with_its_line(run_kernel):
    code = RUNNING.replace("CHANGE", "").replace("WAIT", "0").replace("m64n8k16.f32.f16.f16", "m64n8k8.f32.tf32.tf32")
    code = code.replace("1, 1, 1, 0, 0", "1, 1, 1")
    with pytest.raises(CompileError, match=r"does not know this PTX instruction: wgmma\.mma_async\S*tf32"):
        run_kernel(code, (1,), (128,), (torch.zeros(4, dtype=torch.int32), torch.zeros(256)), shared_mem=16384)


# ---- barriers of some threads

ASK = """
__device__ inline bool any(int id, int threads, bool mine) {
    int result;
    asm volatile("{ .reg .pred p, q; setp.ne.b32 p, %3, 0; bar.red.or.pred q, %1, %2, p; selp.b32 %0, 1, 0, q; }"
                 : "=r"(result) : "r"(id), "r"(threads), "r"((int)mine) : "memory");
    return result;
}
"""
HAND_OVER = """
extern "C" __global__ void k(int* out, int rounds) {
    __shared__ int box[32];
    const int lane = threadIdx.x % 32;
    for (int n = 0; n < rounds; n++) {
        if (threadIdx.x < 32) {
            if (n > 0) asm volatile("bar.sync 2, 64;" ::: "memory");
            box[lane] = 100 * n + lane;
            asm volatile("bar.arrive %0, %1;" :: "r"(1), "r"(64) : "memory");
        } else {
            asm volatile("bar.sync 1, 64;" ::: "memory");
            out[32 * n + lane] = box[lane ^ 1];
            if (n < rounds - 1) asm volatile("bar.arrive 2, 64;" ::: "memory");
        }
    }
}
"""


def test_two_warps_hand_over_through_named_barriers(run_kernel):
    out = torch.zeros(4, 32, dtype=torch.int32)
    run_kernel(ARCH + HAND_OVER, (1,), (64,), (out, np.int32(4)))
    assert torch.equal(out, (100 * torch.arange(4)[:, None] + (torch.arange(32) ^ 1)).int())


def test_a_named_barrier_says_whether_any_thread_has_something(run_kernel):
    out = torch.zeros(128, dtype=torch.int32)
    code = (
        ARCH
        + ASK
        + 'extern "C" __global__ void k(int* out) { const int i = threadIdx.x; out[i] = any(1 + i / 64, 64, i == 70); }'
    )
    run_kernel(code, (1,), (128,), (out,))
    assert out.tolist() == [0] * 64 + [1] * 64


@pytest.mark.parametrize(
    ("barrier", "message"),
    [
        (
            'asm volatile("bar.sync 1, 96;");',
            r"deadlock: .*64 threads in barrier 1 \(64 of 96 threads have arrived\) at line 3",
        ),
        ('asm volatile("bar.sync 1, 40;");', "a multiple of 32, got 40"),
        ('asm volatile("bar.sync 16, 64;");', "barriers 0 to 15, got 16"),
        (
            'if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;"); else asm volatile("bar.sync 1, 96;");',
            "for 96 threads here",
        ),
    ],
)
def test_a_named_barrier_that_is_used_wrongly(without_nvrtc, run_kernel, barrier, message):
    code = f'{ARCH}extern "C" __global__ void k(int* out) {{\n{barrier}\n}}'
    with pytest.raises(KernelError, match=message):
        run_kernel(code, (1,), (64,), (torch.zeros(1, dtype=torch.int32),))


# ---- mbarriers


def barrier_kernel(body):
    return (
        f'{ARCH}{MBARRIER}extern "C" __global__ void k(int* out) {{\n__shared__ unsigned long long bar[2];\n'
        f"const int i = threadIdx.x;\n{body}\n}}"
    )


def run_barriers(run_kernel, body, threads=64):
    out = torch.zeros(threads, dtype=torch.int32)
    run_kernel(barrier_kernel(body), (1,), (threads,), (out,))
    return out


def test_a_ring_of_two_buffers_hands_over_by_the_parity_of_the_phases(run_kernel):
    assert run_barriers(run_kernel, BARRIERS["a ring"]).tolist() == [0] * 32 + [21 * (63 - i) for i in range(32, 64)]


def test_bytes_that_are_expected_hold_a_phase_open(run_kernel):
    body = """
    if (i == 0) init(&bar[0], 1);
    __syncthreads();
    __shared__ int seen;
    if (i == 0) { seen = 0; arrive_expecting(&bar[0], 48); complete(&bar[0], 16); }
    __syncthreads();
    if (i == 32) { for (int n = 0; n < 50; n++) __nanosleep(10); seen = 1; complete(&bar[0], 32); }
    else { wait(&bar[0], 0); out[i] = 1 + seen; }"""
    out = run_barriers(run_kernel, body)
    assert out[32] == 0 and (out[:32] == 2).all() and (out[33:] == 2).all()


def test_a_state_says_in_which_phase_its_arrival_was(run_kernel):
    body = """
    if (i == 0) init(&bar[0], 2);
    __syncthreads();
    if (i == 0) {
        const unsigned long long first = arrive(&bar[0]);
        out[0] = over(&bar[0], first);
        const unsigned long long second = arrive(&bar[0]);
        out[1] = over(&bar[0], first), out[2] = over(&bar[0], second);
        const unsigned long long third = arrive(&bar[0]);
        out[3] = over(&bar[0], third);
    }"""
    assert run_barriers(run_kernel, body)[:4].tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "init(&bar[0], 3); wait(&bar[0], 0);",
            r"deadlock: .*parity 0 of an mbarrier in phase 0 \(3 of 3 arrivals and 0 bytes",
        ),
        ("init(&bar[0], 1); arrive_expecting(&bar[0], 64); wait(&bar[0], 0);", "1 arrivals and 64 bytes are to come"),
        ("arrive(&bar[0]);", "this mbarrier was not initialised"),
        ("init(&bar[0], 0);", "a phase takes 1 to 1048575 arrivals, got 0"),
        ("init((char*)bar + 4, 1);", "lies at a multiple of 8 in shared memory"),
        ("init(&bar[0], 2); arrive_expecting(&bar[0], 1 << 20);", "more than 1048575 bytes to come"),
        ('asm volatile("setmaxnreg.inc.sync.aligned.u32 100;");', "a multiple of 8 from 24 to 256"),
    ],
)
def test_an_mbarrier_that_is_used_wrongly(without_nvrtc, run_kernel, body, message):
    with pytest.raises(KernelError, match=message):
        run_barriers(run_kernel, f"if (i == 0) {{ {body} }}")


# ---- what it is for


def test_such_a_kernel_sees_an_sm_90a_and_others_go_on_seeing_an_sm_80(run_kernel):
    out = torch.zeros(2, dtype=torch.int32)
    body = """extern "C" __global__ void k(int* out) {
        out[0] = __CUDA_ARCH__;
        #ifdef __CUDA_ARCH_FEAT_SM90_ALL
        out[1] = 1;
        #endif
    }"""
    run_kernel(ARCH + body, (1,), (1,), (out,))
    assert out.tolist() == [900, 1]


def test_without_that_line_in_the_header_its_instructions_are_an_error_that_says_so(run_kernel):
    with pytest.raises(
        CompileError, match=r"bar\.arrive %0, %1, but in a kernel whose header says `arch: sm_90a only`"
    ):
        run_kernel(HAND_OVER, (1,), (64,), (torch.zeros(4, 32, dtype=torch.int32), np.int32(4)))


def test_nothing_watches_it_in_silence(run_kernel):
    with pytest.raises(LaunchError, match=r"in_step\(\) does not know its asynchronous instructions"), in_step():
        run_barriers(run_kernel, "out[i] = 1;")
    with pytest.raises(LaunchError, match="use one after the other"), sanitize(), profile():
        run_barriers(run_kernel, "out[i] = 1;")
