"""Every form in which CUDA C++ declares shared memory: what a kernel writes there, it reads again."""

import re

import pytest
import torch

from course_utils.cuda import RawModule
from course_utils.toolchain.nvrtc import compile_kernel

LOCAL = [  # an array `s`, of which every thread writes one element
    "static __shared__ float s[32]; float* p = s;",
    "__shared__ static float s[32]; float* p = s;",
    "float __shared__ s[32]; float* p = s;",
    "static float __shared__ s[32]; float* p = s;",
    "__shared__ __align__(16) float s[32]; float* p = s;",
    "__align__(16) __shared__ float s[32]; float* p = s;",
    "alignas(16) __shared__ float s[32]; float* p = s;",
    "__shared__ alignas(sizeof(float4)) float s[32]; float* p = s;",
    "__shared__ [[maybe_unused]] float s[32]; float* p = s;",
    "volatile __shared__ float s[32]; volatile float* p = s;",
    "__shared__ volatile float s[32]; volatile float* p = s;",
    "__shared__ float before[3], s[32], behind; before[t % 3] = 7; behind = 8; float* p = s;",
    "__shared__ float s[4][8]; float (*rows)[8] = s; float* p = rows[0];",
    "__shared__ struct { char c; float s[32]; } of; float* p = of.s;",
    "__shared__ Plain of; float (&s)[32] = of.s; float* p = s;",
    "__shared__ union { float s[32]; int bits[32]; } of; float* p = of.s;",
    "OF_MACRO(float, s); float* p = s;",
]
DYNAMIC = [  # the same, in dynamic shared memory
    "extern __shared__ float s[]; float* p = s;",
    "extern float __shared__ s[]; float* p = s;",
    "__shared__ extern float s[]; float* p = s;",
    "extern __shared__ float s[][4]; float (*rows)[4] = s; float* p = rows[0];",
    "extern __shared__ float s[][4][2]; float* p = s[0][0];",
    "extern __shared__ float s[], u[]; float* p = u;",
    "extern __shared__ float *q[], s[]; float* p = s;",
    "extern __shared__ float4 s[]; float* p = &s[0].x;",
    "extern __shared__ __align__(16) char s[]; float* p = (float*)s;",
    "extern __align__(16) __shared__ char s[]; float* p = (float*)s;",
    "extern __shared__ char s[] __attribute__((aligned(16))); float* p = (float*)s;",
    "extern __shared__ __align__(sizeof(double)) unsigned char s[]; float* p = (float*)s;",
    "extern volatile __shared__ float s[]; volatile float* p = s;",
    "volatile extern __shared__ float s[]; volatile float* p = s;",
    "extern __shared__ float s[32]; float* p = s;",
    "extern __shared__ float (s)[]; float* p = s;",
    "extern __shared__ float s; float* p = &s;",
    "DYNAMIC_MACRO(float, s); float* p = s;",
    "float* p = dynamic_of<float>();",
    "float* p = (float*)dynamic_of<double>();",
    "float* p = &everywhere[0][0];",
]
PREAMBLE = """
#define OF_MACRO(T, name) \\
    __shared__ T name[32]
#define DYNAMIC_MACRO(T, name) extern __shared__ T name[]
struct Plain { char c; float s[32]; };
extern __shared__ float everywhere[][2];
template <class T> __device__ T* dynamic_of() {
    extern __shared__ __align__(sizeof(T)) unsigned char bytes[];
    return reinterpret_cast<T*>(bytes);
}
"""
KERNEL = """extern "C" __global__ void k%d(float* out) {
    const int t = threadIdx.x;
    %s
    p[t] = t + 1;
    __syncthreads();
    out[t] = p[31 - t];
}
"""
# Dynamic arrays of one name have one type in a file.
OWN_NAMES = [re.sub(r"\b([suq])\b", rf"\g<1>{n}", form) for n, form in enumerate(DYNAMIC)]
KERNELS = "".join(KERNEL % of for of in enumerate([*LOCAL, *OWN_NAMES]))


def test_each_form_of_shared_memory_holds_what_a_kernel_writes():
    module = RawModule(code=PREAMBLE + KERNELS)
    for n, form in enumerate([*LOCAL, *DYNAMIC]):
        out = torch.zeros(32)
        module.get_function(f"k{n}")((1,), (32,), (out,), shared_mem=128 if n >= len(LOCAL) else 0)
        assert out.tolist() == list(range(32, 0, -1)), form


def test_a_destructor_of_a_shared_variable_is_taken_and_never_runs():
    code = """struct S { int v; __device__ ~S() { v = 1; } };
    extern "C" __global__ void k(int* out) { __shared__ S s; s.v = 2; out[0] = s.v; }"""
    out = torch.zeros(1, dtype=torch.int32)
    RawModule(code=code).get_function("k")((1,), (1,), (out,))
    assert out.item() == 2
    compile_kernel(code, "sm_80")


@pytest.mark.exhaustive("what NVRTC takes of them was looked at; each is run by the emulator in make test")
def test_each_form_is_cuda():
    compile_kernel(PREAMBLE + KERNELS, "sm_80")
