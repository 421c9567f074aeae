"""Shared memory, constant memory, __device__ variables, tensors that overlap, and what a kernel prints."""

import math

import numpy as np
import pytest
import torch

from course_utils.cuda import KernelError, LaunchError, RawModule
from course_utils.emulator import configure

# ---- shared memory


@pytest.mark.parametrize("place", ["file", "function", "extern C block", "namespace"])
@pytest.mark.parametrize("declared", ["float shared[]", "__align__(16) float shared[]", "unsigned char raw[]"])
def test_dynamic_shared_memory_is_declared_anywhere(place, declared, compiler, run_kernel):
    declaration = f"extern __shared__ {declared};"
    body = """(const float* a, float* out) {
        %s
        int i = threadIdx.x;
        shared[i] = a[i];
        __syncthreads();
        out[i] = shared[63 - i];
    }""" % ("float* shared = reinterpret_cast<float*>(raw);" if "raw" in declared else "")
    code = {
        "file": f'{declaration}\nextern "C" __global__ void k{body}',
        "function": f'extern "C" __global__ void k{body.replace("{", "{" + declaration, 1)}',
        "extern C block": f'extern "C" {{\n{declaration}\n__global__ void k{body}\n}}',
        "namespace": f'namespace {{\n{declaration}\n}}\nextern "C" __global__ void k{body}',
    }[place]
    a, out = torch.rand(64), torch.zeros(64)
    run_kernel(code, (3,), (64,), (a, out), shared_mem=256)
    assert torch.equal(out, a.flip(0))


def test_dynamic_shared_memory_in_a_template_takes_the_type_of_the_instance(compiler, run_kernel):
    code = """
        template <typename T> __global__ void k(const T* a, T* out) {
            extern __shared__ unsigned char raw[];
            T* shared = reinterpret_cast<T*>(raw);
            shared[threadIdx.x] = a[threadIdx.x];
            __syncthreads();
            out[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
        }"""
    names = ("k<float>", "k<double>")
    for name, dtype in zip(names, (torch.float32, torch.float64), strict=True):
        a, out = torch.rand(64, dtype=dtype), torch.zeros(64, dtype=dtype)
        run_kernel(code, (1,), (64,), (a, out), name=name, name_expressions=names, shared_mem=512)
        assert torch.equal(out, a.flip(0))


def test_two_arrays_of_dynamic_shared_memory_are_the_same_memory(compiler, run_kernel):
    out = torch.zeros(1, dtype=torch.int32)
    run_kernel(
        """extern __shared__ float f[];
        extern __shared__ int i[];
        extern "C" __global__ void k(int* out) { f[0] = 1.0f; out[0] = i[0]; }""",
        (1,),
        (1,),
        (out,),
        shared_mem=4,
    )
    assert out.item() == 0x3F800000


LARGE = """extern "C" __global__ void k(unsigned char* out, int n) {
    extern __shared__ unsigned char shared[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) shared[i] = i % 251;
    __syncthreads();
    if (threadIdx.x == 0) for (int i = 0; i < n; i++) out[i] = shared[i];
}"""


@pytest.mark.parametrize("size", [48 * 1024 + 4, 100 * 1024, 227 * 1024])
def test_dynamic_shared_memory_goes_up_to_227_kilobytes(size, run_kernel):
    out = torch.zeros(size, dtype=torch.uint8)
    run_kernel(LARGE, (1,), (128,), (out, np.int32(size)), shared_mem=size)
    assert torch.equal(out, (torch.arange(size) % 251).byte())


def test_too_much_shared_memory_names_both_figures(run_kernel):
    out = torch.zeros(1, dtype=torch.uint8)
    with pytest.raises(
        LaunchError, match=r"k\(\) asks for 232,449 bytes of dynamic shared memory .* has 232,448 bytes"
    ):
        run_kernel(LARGE, (1,), (1,), (out, np.int32(1)), shared_mem=227 * 1024 + 1)


def test_too_much_static_and_dynamic_shared_memory_is_one_sum(run_kernel):
    code = """extern "C" __global__ void k(float* out) {
        __shared__ float own[10240];
        extern __shared__ float more[];
        own[threadIdx.x] = more[threadIdx.x] = 0;
        __syncthreads();
        out[threadIdx.x] = own[blockDim.x - 1 - threadIdx.x];
    }
    extern "C" __global__ void other(float* out) {
        __shared__ float large[12000];
        large[threadIdx.x] = 1;
        __syncthreads();
        out[threadIdx.x] = large[blockDim.x - 1 - threadIdx.x];
    }"""
    most = 227 * 1024 - 4 * 10240
    run_kernel(code, (1,), (1,), (torch.zeros(1),), shared_mem=most)
    with pytest.raises(LaunchError, match="191,489 bytes of dynamic and 40,960 bytes of static shared memory"):
        run_kernel(code, (1,), (1,), (torch.zeros(1),), shared_mem=most + 1)


def test_static_shared_memory_of_template_instances_does_not_add_up(run_kernel):
    code = """template <int N> __global__ void k(float* out) {
        __shared__ float own[N], mine[N];
        own[threadIdx.x] = mine[threadIdx.x] = N;
        __syncthreads();
        out[threadIdx.x] = own[N - 1 - threadIdx.x] + mine[0];
    }"""
    names = tuple(f"k<{n}>" for n in (6000, 5500, 5000, 4500))
    out = torch.zeros(4)
    run_kernel(code, (1,), (4,), (out,), name="k<5000>", name_expressions=names, shared_mem=184_000)
    assert out.isnan().all()  # own[4999] was never written
    with pytest.raises(LaunchError, match="48,000 bytes of static"):
        run_kernel(code, (1,), (4,), (out,), name="k<5000>", name_expressions=names, shared_mem=184_500)


def test_aligned_shared_arrays_in_every_spelling(compiler, run_kernel):
    out = torch.zeros(3, dtype=torch.int64)
    run_kernel(
        """extern "C" __global__ void k(long long* out) {
            __shared__ char odd[3];
            __shared__ __align__(128) float a[4];
            __shared__ alignas(64) float b[4];
            alignas(32) __shared__ float c[4];
            odd[0] = a[0] = b[0] = c[0] = 1;
            out[0] = __cvta_generic_to_shared(a) % 128;
            out[1] = __cvta_generic_to_shared(b) % 64;
            out[2] = __cvta_generic_to_shared(c) % 32;
        }""",
        (1,),
        (1,),
        (out,),
    )
    assert not out.any()


@pytest.mark.parametrize("declared", ["__shared__ %s shared[64];", "extern __shared__ %s shared[];"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_unwritten_shared_memory_is_nan_in_every_block(declared, dtype, run_kernel):
    element = {torch.float16: "half", torch.bfloat16: "__nv_bfloat16", torch.float64: "double"}.get(dtype, "float")
    out = torch.zeros(8, 64, dtype=dtype)
    with configure(threads=1):  # so that every block but the first finds what its predecessor left
        run_kernel(
            f"""#include <cuda_fp16.h>
            #include <cuda_bf16.h>
            extern "C" __global__ void k({element}* out) {{
                {declared % element}
                if (threadIdx.x % 2 == blockIdx.x % 2) shared[threadIdx.x] = 1.0f;
                __syncthreads();
                out[blockIdx.x * 64 + threadIdx.x] = shared[threadIdx.x];
            }}""",
            (8,),
            (64,),
            (out,),
            shared_mem=512,
        )
    for block, row in enumerate(out):
        assert (row[block % 2 :: 2] == 1).all() and row[1 - block % 2 :: 2].isnan().all()


# ---- constant memory and __device__ variables

VARIABLES = """
__constant__ float table[4];
__device__ int counter = 5;
__device__ int* where = &counter;
static __device__ int hidden;
extern "C" __global__ void k(float* out) {
    out[threadIdx.x] = table[threadIdx.x % 4];
    if (threadIdx.x == 0) { atomicAdd(where, 1); out[0] += 100 * hidden++; }
}
extern "C" __global__ void fail(float* out) { counter = -1; out[0] = -1; __trap(); }
"""


def test_get_global_sets_a_constant_and_reads_a_variable(compiler, run_kernel):
    module = RawModule(code=VARIABLES)
    table = module.get_global("table", (4,), torch.float32)
    table.copy_(torch.tensor([1.5, 2.5, 3.5, 4.5]))
    out = torch.zeros(8)
    module.get_function("k")((1,), (8,), (out,))
    assert out.tolist() == [1.5, 2.5, 3.5, 4.5] * 2
    assert module.get_global("counter", (1,), torch.int32).item() == 6


def test_variables_keep_their_values_from_launch_to_launch_also_static_ones():
    module = RawModule(code=VARIABLES)
    counter = module.get_global("counter", (), torch.int32)
    out = torch.zeros(4)
    for launch in range(3):
        module.get_function("k")((2,), (4,), (out,))
        assert counter.item() == 7 + 2 * launch
    assert out[0].item() in (400, 500)  # of the last two blocks, either may be the last to write


def test_each_module_has_variables_of_its_own():
    first, second = RawModule(code=VARIABLES), RawModule(code=VARIABLES)
    first.get_function("k")((1,), (4,), (torch.zeros(4),))
    assert first.get_global("counter", (1,), torch.int32).item() == 6
    assert second.get_global("counter", (1,), torch.int32).item() == 5


def test_a_failed_launch_leaves_variables_as_they_were():
    module = RawModule(code=VARIABLES)
    with pytest.raises(KernelError):
        module.get_function("fail")((1,), (1,), (torch.zeros(1),))
    assert module.get_global("counter", (1,), torch.int32).item() == 5


def test_an_unknown_variable_is_a_key_error_that_lists_those_there_are():
    with pytest.raises(
        KeyError, match=r"no __device__ or __constant__ variable 'tabel'; it has: counter, table, where"
    ):
        RawModule(code=VARIABLES).get_global("tabel", (4,), torch.float32)


def test_a_variable_of_another_size_is_rejected():
    with pytest.raises(ValueError, match=r"'table' has 16 bytes; shape \(5,\) of torch.float32 takes 20"):
        RawModule(code=VARIABLES).get_global("table", (5,), torch.float32)


# ---- tensors

COPY = 'extern "C" __global__ void k(const float* a, float* out) { out[threadIdx.x] = a[threadIdx.x] + 1; }'


def test_views_with_an_offset_are_passed_where_they_begin(run_kernel):
    storage = torch.arange(32.0)
    run_kernel(COPY, (1,), (8,), (storage[3:11], storage[20:28]))
    assert storage[20:28].tolist() == [i + 1.0 for i in range(3, 11)]
    assert storage[:20].tolist() == list(map(float, range(20))) and storage[28:].tolist() == [28, 29, 30, 31]


def test_overlapping_arguments_share_their_memory(run_kernel):
    storage = torch.arange(16.0)
    out = torch.zeros(12)
    run_kernel(
        """extern "C" __global__ void k(float* a, const float* b, float* out) {
            a[threadIdx.x] = 100 + threadIdx.x;
            __syncthreads();
            out[threadIdx.x] = b[threadIdx.x];
        }""",
        (1,),
        (12,),
        (storage[:12], storage[4:], out),
    )
    assert out.tolist() == [104.0 + i for i in range(8)] + [12, 13, 14, 15]
    assert storage.tolist() == [100.0 + i for i in range(12)] + [12, 13, 14, 15]


def test_the_same_tensor_twice_is_one_array(run_kernel):
    a = torch.arange(8.0)
    run_kernel(COPY, (1,), (8,), (a, a))
    assert a.tolist() == [i + 1.0 for i in range(8)]


def test_an_array_behind_a_pointer_to_const_is_not_copied_back(run_kernel):
    a = torch.zeros(4)
    run_kernel('extern "C" __global__ void k(const float* a) { ((float*)a)[0] = 1; }', (1,), (1,), (a,))
    assert a[0] == 0


def test_an_array_behind_a_const_pointer_is_copied_back(run_kernel):
    a = torch.zeros(4)
    run_kernel('extern "C" __global__ void k(float* const __restrict__ a) { a[0] = 1; }', (1,), (1,), (a,))
    assert a[0] == 1


def test_a_wild_access_is_described_alike_wherever_the_arrays_lie_here(run_kernel):
    code = 'extern "C" __global__ void k(float* a, float* b) { a[4LL << 30] = 1; }'  # 16 GiB on, behind both
    first, second = torch.zeros(32).chunk(2)
    errors = []
    for arrays in ((first, second), (second, first)):
        with pytest.raises(KernelError, match="past the end of argument 1") as caught:
            run_kernel(code, (1,), (1,), arrays)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_neighbours_in_one_storage_are_far_apart_for_a_kernel(run_kernel):
    storage = torch.zeros(32)
    with pytest.raises(KernelError, match=r"the first bytes past the end of argument 0 \('a'\)"):
        run_kernel(
            'extern "C" __global__ void k(float* a, float* b) { a[16] = 1; }', (1,), (1,), tuple(storage.chunk(2))
        )
    assert not storage.any()


def test_empty_tensors_can_be_passed(run_kernel):
    out, storage = torch.zeros(4), torch.zeros(8)
    run_kernel(
        'extern "C" __global__ void k(float* a, float* b, float* c, float* out) { out[threadIdx.x] = 1; }',
        (1,),
        (4,),
        (torch.zeros(0), storage[4:4], torch.zeros(3, 0), out),
    )
    assert out.tolist() == [1] * 4


def test_tensors_that_require_grad_and_scalars_of_dimension_zero_can_be_passed(run_kernel):
    a, out = torch.tensor(2.0, requires_grad=True), torch.zeros(())
    run_kernel(COPY, (1,), (1,), (a, out))
    assert out.item() == 3


def test_a_struct_is_passed_by_value(compiler, run_kernel):
    layout = np.dtype([("n", np.int32), ("scale", np.float32), ("end", np.int64)])
    out = torch.zeros(2, dtype=torch.float64)
    run_kernel(
        """struct Shape { int n; float scale; long long end; };
        extern "C" __global__ void k(double* out, Shape s) { out[0] = s.n * s.scale; out[1] = s.end; }""",
        (1,),
        (1,),
        (out, np.array((3, 0.5, 1 << 40), dtype=layout)[()]),
    )
    assert out.tolist() == [1.5, 2.0**40]


def test_every_kind_of_scalar_is_passed_by_value(compiler, run_kernel):
    out = torch.zeros(9, dtype=torch.float64)
    run_kernel(
        """#include <cuda_fp16.h>
        extern "C" __global__ void k(double* out, bool a, signed char b, unsigned char c, short d, int e, unsigned f,
                                     long long g, half h, double i) {
            out[0] = a; out[1] = b; out[2] = c; out[3] = d; out[4] = e; out[5] = f; out[6] = g;
            out[7] = __half2float(h); out[8] = i;
        }""",
        (1,),
        (1,),
        (
            out,
            np.bool_(True),
            np.int8(-3),
            np.uint8(200),
            np.int16(-300),
            np.int32(-70000),
            np.uint32(2**32 - 1),
            np.int64(-(2**40)),
            np.float16(0.5),
            np.float64(math.pi),
        ),
    )
    assert out.tolist() == [1, -3, 200, -300, -70000, 2.0**32 - 1, -(2.0**40), 0.5, math.pi]


# ---- printf


def test_printf_reaches_standard_output_in_order(compiler, run_kernel, capsys):
    run_kernel(
        r"""extern "C" __global__ void k(int n, float x) {
            if (threadIdx.x < 2)
                printf("thread %d: %5.2f %s %c %lld %u%%\n", threadIdx.x, x, "text", 'c', 1ll << 40, n);
        }""",
        (1,),
        (4,),
        (np.int32(7), np.float32(2.5)),
    )
    line = "thread {}:  2.50 text c 1099511627776 7%\n"
    assert capsys.readouterr().out == line.format(0) + line.format(1)


def test_what_a_kernel_printed_before_it_failed_is_shown(run_kernel, capsys):
    with pytest.raises(KernelError):
        run_kernel(r'extern "C" __global__ void k() { printf("before\n"); __trap(); }', (1,), (1,), ())
    assert capsys.readouterr().out == "before\n"


def test_printf_keeps_the_first_mebibyte_and_says_what_is_lost(run_kernel, capsys):
    run_kernel(
        r"""extern "C" __global__ void k(int n) {
            for (int i = 0; i < n; i++) printf("%6d %092d\n", i, 0);
        }""",
        (1,),
        (1,),
        (np.int32(20000),),
    )
    text = capsys.readouterr().out
    lines = text.splitlines()
    kept = 2**20 // 100
    assert [int(line.split()[0]) for line in lines[:kept]] == list(range(kept))
    assert "\0" not in text
    assert lines[-1] == f"[{(20000 - kept) * 100} more bytes were printed and lost]"


def test_output_goes_to_whatever_stands_for_standard_output(run_kernel, monkeypatch):
    """Jupyter's is no file: it has write and flush, and no descriptor."""

    class Stream:
        def __init__(self):
            self.text = ""

        def write(self, text):
            self.text += text

        def flush(self):
            pass

    stream = Stream()
    monkeypatch.setattr("sys.stdout", stream)
    run_kernel(r'extern "C" __global__ void k() { printf("hello\n"); }', (1,), (1,), ())
    assert stream.text == "hello\n"


@pytest.mark.parametrize("vector", ["float2", "float4", "int4", "uchar4", "short2", "double2"])
@pytest.mark.parametrize("body", ["v = *p;", "*p = v;", "*p = *(T*)x;"])
def test_a_vector_that_is_not_at_a_multiple_of_its_size_is_an_error_without_the_sanitizer_too(run_kernel, vector, body):
    """As on a GPU; each at its line."""
    code = f"""typedef {vector} T;
extern "C" __global__ void k(float* x) {{
    T v = {{}}, *p = (T*)((char*)x + sizeof v.x);
    {body}
    *(T*)x = v;
}}"""
    with pytest.raises(KernelError, match=r"kernel\.cu:4: invalid memory access: a misaligned vector"):
        run_kernel(code, (1,), (1,), (torch.zeros(16),))
