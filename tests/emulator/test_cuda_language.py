"""Small parts of CUDA C++ that many files use, each by what it gives: masks of active lanes, atomics of every scope,
hints of memory, address spaces, clocks, qualifiers, printf and assert."""

import warnings

import numpy as np
import pytest
import torch

from course_utils.cuda import KernelError, RawModule
from course_utils.emulator import sanitize

CODE = r"""
#if defined(__linux__) || defined(__unix__) || defined(__x86_64__) || defined(__aarch64__) || defined(__GNUC__)
#error "NVRTC has no macro of the host's system"
#endif
struct __align__(16) Wide { char c; };
typedef float (*Function)(float);
__device__ __noinline__ float twice(float x) { return 2 * x; }
__device__ Function table[] = {twice};
__device__ __managed__ int managed = 3;
template <class... T> __device__ __forceinline__ int sum(T... all) { return (0 + ... + all); }
__device__ int taken(int&) { return 10; }
__device__ int taken(int&&) { return 20; }
template <class T> __device__ int forwarded(T&& x) { return taken(std::forward<T>(x)); }  // no header is needed

KERNEL active(unsigned* out) {
    const int t = threadIdx.x;
    if (t % 2) out[t] = __activemask();
    else if (t > 20) out[t] = __activemask();
    else out[t] = t < 10 ? __activemask() : 0;
    __syncwarp();
    out[t + 32] = __activemask();
}
// A lane waits for a flag that lanes set behind their __activemask().
KERNEL waits(volatile int* flag, unsigned* out) {
    if (threadIdx.x == 31) while (!*flag) __nanosleep(10);
    else {
        out[threadIdx.x] = __activemask();
        *flag = 1;
    }
}
KERNEL scopes(int* x, unsigned long long* y, double* z) {
    atomicAdd_block(x, 1), atomicAdd_system(x, 1), atomicSub_block(x, 3), atomicMax_system(x + 1, 7);
    atomicMin_block(x + 2, -1), atomicExch_block(x + 3, 5), atomicCAS_system(x + 4, 0, 6), atomicOr_block(x + 5, 8);
    atomicAnd_system(x + 6, 0), atomicXor_block(x + 7, 0), atomicInc_system((unsigned*)x + 8, 1u);
    atomicAdd_system(y, 1ull), atomicAdd_block(z, 0.5);
}
KERNEL builtins(int* x) {
    __nv_atomic_fetch_add(x, 1, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
    __nv_atomic_store_n(x + 1, 4, __NV_ATOMIC_RELEASE, __NV_THREAD_SCOPE_BLOCK);
    if (threadIdx.x == 0) {
        int expected = 1;
        x[2] = __nv_atomic_load_n(x + 1, __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_DEVICE);
        x[3] = __nv_atomic_compare_exchange_n(x + 4, &expected, 9, false, __NV_ATOMIC_RELAXED, __NV_ATOMIC_RELAXED);
        x[5] = expected;
        x[6] = __nv_atomic_exchange_n(x + 7, 3, __NV_ATOMIC_RELAXED);
    }
}
KERNEL hints(const float4* in, float* out) {
    const float4 v = __ldca(in);
    __stwb(out, v.x), __stwt(out + 1, __ldlu(in).y), __stcg(out + 2, __ldcv(&in->z)), __stcs(out + 3, __ldg(in).w);
}
KERNEL spaces(int* out, const float* in) {
    __shared__ int s;
    int local = 0;
    s = 1, out[0] = 0;
    const void* pointers[] = {&s, &local, out, in};
    for (int i = 0; i < 4; i++)
        out[i] = __isShared(pointers[i]) + 2 * __isLocal(pointers[i]) + 4 * __isGlobal(pointers[i]);
    out[4] = *(int*)__cvta_shared_to_generic(__cvta_generic_to_shared(&s));
    out[5] = __cvta_global_to_generic(__cvta_generic_to_global(out)) == out;
}
KERNEL __maxnreg__(64) others(int* out) {
    const clock_t first = clock();
    const long long then = clock64();
    out[0] = clock() > first && clock64() > then;
    __prof_trigger(1);
    out[1] = __fns(0b10110, 0, 2) + 100 * __fns(0b10110, 31, -1);
    out[2] = __uni_sync(~0u, threadIdx.x < 40) + 2 * __uni_sync(~0u, threadIdx.x < 3);
    __barrier_sync(0), __barrier_sync_count(1, 32);
    out[3] = alignof(Wide), out[4] = (int)table[0](4) + managed, out[5] = sum(1, 2, 3);
    typedef unsigned long long uint64_t;
    out[6] = sizeof(uint64_t) + alignof(double4_32a) + (make_long4(1, 2, 3, 4).w == 4l);
    int seven = 7;
    out[7] = std::move(seven) + forwarded(seven) + forwarded(1);
}
KERNEL partial(int* out) {
    if (threadIdx.x < 32) __barrier_sync_count(1, 32);
}
KERNEL prints(int* out) {
    out[0] = printf("%d %s %5.2f %lld %% %c %x\n", 1, "two", 3.0, 4ll, '5', 255u);
    out[1] = printf("alone\n"), out[2] = printf(nullptr);
}
KERNEL prints_what_is_no_number(float* x) {
    printf("%f %e %f", sqrtf(x[0] - 1), (x[0] + 1e300) * 1e300 * 0, 1.0);
}
KERNEL wraps(int* out, int one, int h) {
    for (int i = one; i > 0; i *= 2) out[0]++;
    for (int i = 0x7fffffff - 4; i >= 0; i += one) out[1]++;
    const long long sum = (long long)(h * h) + h * h;
    out[2] = (int)(sum >> 32), out[3] = (int)sum;
}
struct Shape {
    float side;
    __device__ explicit Shape(float side) : side(side) {}
    __device__ virtual float area() const { return side * side; }
    __device__ virtual ~Shape() {}
};
KERNEL takes_memory(float* out) {
    Shape* shapes[2] = {new Shape(2), nullptr};
    alignas(Shape) char place[sizeof(Shape)];
    shapes[1] = new (place) Shape(3);
    float* sums = new float[2];
    sums[1] = shapes[0]->area() + shapes[1]->area();
    out[threadIdx.x] = sums[1];
    shapes[1]->~Shape();
    delete shapes[0];
    delete[] sums;
}
KERNEL asserts(int* out) {
    assert(threadIdx.x < 5 && "few threads");
}
""".replace("KERNEL", 'extern "C" __global__ void')


@pytest.fixture(scope="module")
def launch():
    module = RawModule(code=CODE)

    def run(name, *arguments, threads=32):
        module.get_function(name)((1,), (threads,), arguments)

    return run


def ints(count):
    return torch.zeros(count, dtype=torch.int32)


def test_the_mask_of_the_lanes_that_are_active_together(launch):
    out = ints(64)
    launch("active", out)
    odd, late, early = 0xAAAAAAAA - (1 << 32), 0x55400000, 0b101010101
    expected = [odd if t % 2 else late if t > 20 else early if t < 10 else 0 for t in range(32)]
    assert out.tolist() == expected + [-1] * 32
    with sanitize() as report:
        launch("active", out)
    assert out.tolist() == expected + [-1] * 32 and not report.findings


def test_active_lanes_do_not_wait_for_one_that_waits_for_them(launch):
    flag, out = ints(1), ints(32)
    launch("waits", flag, out)
    assert out.tolist() == [0x7FFFFFFF] * 31 + [0]


def test_atomics_of_the_block_and_of_the_system(launch):
    x, y, z = ints(9), torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.float64)
    x[6] = 3
    launch("scopes", x, y, z, threads=4)
    assert x.tolist() == [-4, 7, -1, 5, 6, 8, 0, 0, 0] and y.item() == 4 and z.item() == 2


def test_the_compilers_own_atomics(launch):
    x = ints(8)
    launch("builtins", x)
    assert x.tolist() == [32, 4, 4, 0, 0, 0, 0, 3]


def test_hints_of_loads_and_stores_move_what_plain_ones_do(launch):
    out = torch.zeros(4)
    launch("hints", torch.arange(4.0), out, threads=1)
    assert out.tolist() == [0, 1, 2, 3]


def test_spaces_of_addresses(launch):
    out = ints(6)
    launch("spaces", out, torch.ones(1), threads=1)
    assert out.tolist() == [1, 2, 4, 4, 1, 1]


def test_clocks_barriers_by_number_and_qualifiers(launch):
    out = ints(8)
    launch("others", out)
    assert out.tolist() == [1, 402, 1, 16, 11, 6, 41, 37]


def test_a_barrier_of_some_threads_says_which_kernels_may_have_it(launch):
    with pytest.raises(KernelError, match=r"the emulator has it in kernels whose header says `arch: sm_90a only`"):
        launch("partial", ints(1), threads=64)


def test_printf_returns_the_number_of_its_values(launch, capsys):
    out = ints(3)
    launch("prints", out, threads=1)
    assert out.tolist() == [6, 0, -1]
    assert capsys.readouterr().out == "1 two  3.00 4 % 5 ff\nalone\n"


def test_printf_shows_nan_as_a_gpu_does(launch, capsys):
    launch("prints_what_is_no_number", torch.zeros(1), threads=1)
    assert capsys.readouterr().out == "nan nan 1.000000"


def test_integers_wrap(launch):
    out = ints(4)
    launch("wraps", out, np.int32(1), np.int32(100_000), threads=1)
    assert out.tolist()[:3] == [31, 5, 0] and out[3].item() % 2**32 == 2 * (100_000**2 % 2**32)


def test_kernels_take_memory_by_new_and_build_in_place(launch):
    out = torch.zeros(32)
    launch("takes_memory", out)
    assert (out == 13).all()


def test_a_failed_assertion_has_a_gpus_words(launch):
    words = r"void asserts\(int ?\*\): block: \[0,0,0\], thread: \[5,0,0\] Assertion `threadIdx.x < 5 && .*` failed\."
    with pytest.raises(KernelError, match=words) as caught:
        launch("asserts", ints(1))
    assert caught.value.line == 1 + CODE[: CODE.index("assert(")].count("\n")
    RawModule(code=CODE, options=("-DNDEBUG",)).get_function("asserts")((1,), (32,), (ints(1),))


def test_no_compiler_takes_an_assert_out_unasked(each_compiler, run_kernel):
    code = 'extern "C" __global__ void k(int* out) { assert(threadIdx.x < 5); }'
    with pytest.raises(KernelError, match="Assertion `threadIdx.x < 5` failed"):
        run_kernel(code, (1,), (32,), (ints(1),))
    run_kernel(code, (1,), (32,), (ints(1),), options=("-DNDEBUG",))


def test_options_about_arithmetic_that_only_a_gpu_follows_are_named():
    code = 'extern "C" __global__ void k(float* x) { x[0] *= 0.25f; }'
    for option in ("--use_fast_math", "-use_fast_math", "-ftz=true", "--prec-div=false"):
        with pytest.warns(UserWarning, match=f"does not follow {option}, a GPU does"):
            RawModule(code=code, options=(option, "-DN=1")).compile()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RawModule(code=code, options=("-ftz=false", "-lineinfo")).compile()
