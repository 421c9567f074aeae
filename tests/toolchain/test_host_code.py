"""A file with a program around its kernels: what of it is the host's, how it is left out, and what `RawModule` says."""

import re

import numpy as np
import pytest
import torch

from course_utils.cuda import CompileError, RawModule, device_part, read_kernel
from course_utils.emulator.module import EmulatedModule
from course_utils.toolchain.host_launches import find_launches, instances, python_lines
from course_utils.toolchain.nvrtc import compile_kernel
from course_utils.toolchain.program import about_program
from course_utils.toolchain.source import KernelSource, find_kernels
from tests.helpers.all_of import all_of

# Programs of ours, each in a way that public files have. {what it is about: (the code, what of it is left out)}
PROGRAMS = {
    "a first program": (
        """#include <stdio.h>
#include <stdlib.h>
#define COUNT 1000
#define CHECK(call) do { cudaError_t e = call; if (e != cudaSuccess) exit(1); } while (0)

__global__ void add_one(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 1;
}

int main(int argc, char** argv) {
    const int threads = 256;
    float *x, *y;
    CHECK(cudaMalloc(&x, COUNT * sizeof(float)));
    CHECK(cudaMalloc(&y, COUNT * sizeof(float)));
    add_one<<<(COUNT + threads - 1) / threads, threads>>>(x, y, COUNT);
    CHECK(cudaDeviceSynchronize());
    return 0;
}
""",
        ["stdio.h", "stdlib.h", "CHECK", "main()"],
    ),
    "namespaces and linkage": (
        """namespace first {
inline int blocks_for(int n) { return (n + 31) / 32; }
__host__ __device__ inline float half_of(float x) { return x / 2; }
namespace second {
static void run(float* x, int n);
__global__ void halve(float* x) { x[threadIdx.x] = half_of(x[threadIdx.x]); }
static void run(float* x, int n) { halve<<<blocks_for(n), 32>>>(x); }
}  // namespace second
}  // namespace first
extern "C" {
__global__ void twice(float* x) { x[threadIdx.x] *= 2; }
void twice_on_host(float* x) { x[0] *= 2; }
}
extern "C" void run_twice(float* x) { twice<<<1, 32>>>(x); }
""",
        ["blocks_for()", "run()", "run()", "twice_on_host()", "run_twice()"],
    ),
    "macros that mark and launch": (
        """#define ON_DEVICE __device__ __forceinline__
#define BOTH_SIDES __host__ ON_DEVICE
#define LAUNCH(kernel, blocks) \\
    kernel<<<blocks, 32>>>(nullptr); \\
    cudaDeviceSynchronize()
BOTH_SIDES float third_of(float x) { return x / 3; }
ON_DEVICE float ninth_of(float x) { return third_of(third_of(x)); }
__global__ void __launch_bounds__(32) ninth(float* x) { x[threadIdx.x] = ninth_of(x[threadIdx.x]); }
void run_ninth() { LAUNCH(ninth, 4); }
""",
        ["LAUNCH", "run_ninth()"],
    ),
    "templates": (
        """template <typename T, int TIMES>
__global__ void scale(T* x) { x[threadIdx.x] *= TIMES; }
template <typename T>
void run_scale(T* x, int times) {
    switch (times) {
        case 2: scale<T, 2><<<1, 32>>>(x); break;
        case 4: scale<T, 4><<<1, 32>>>(x); break;
    }
}
template void run_scale<float>(float*, int);
""",
        ["run_scale()", "run_scale()"],
    ),
    "types": (
        """#include <vector>
#include "chrono"
using std::vector;
typedef vector<float> Floats;
struct Timer { cudaEvent_t begin; Timer() { cudaEventCreate(&begin); } float seconds() { return 0; } };
class Log { public: void say(); };
struct Shape { int rows, columns; };
enum Order { ROWS, COLUMNS };
using Real = float;
__global__ void first_column(Real* x, Shape shape) { if (threadIdx.x < shape.rows) x[threadIdx.x] = COLUMNS; }
static Timer timer;
""",
        ["vector", "chrono", "vector", "Floats", "Timer", "Log", "timer"],
    ),
    "strings and comments": (
        """/* int main() { kernel<<<1, 1>>>(); */
// void host() {
__global__ void braces(int* x) { /* } */ x[0] = '{'; x[1] = '}'; x[2] = 1'000; }  // }
const char* text = R"(int main() { "{{{" )";
const char* other = "void f() {";
void host_with_braces() { const char* s = "}"; char c = '}'; (void)s; (void)c; }
""",
        ["text", "other", "host_with_braces()"],
    ),
    "branches of the preprocessor": (
        """static void inner(int n) {
#ifdef FIRST
    if (n > 1) {
#else
    if (n > 2) {
#endif
        cudaDeviceSynchronize();
    }
}
__global__ void after(int* x) { x[0] = 3; }
""",
        ["inner()"],
    ),
    "variables": (
        """float *h_x, *h_y = nullptr;
int n = 12, sizes[] = {1, 2};
dim3 grid(4, 4);
const int WIDTH = 8;
constexpr float HALF = 0.5f;
__constant__ float table[WIDTH];
__device__ int counter;
__global__ void fill(float* x, int n) {
    int sizes = n < WIDTH ? n : WIDTH;
    if (threadIdx.x < sizes) x[threadIdx.x] = HALF + table[threadIdx.x];
    counter = n;
}
""",
        ["h_x", "n", "grid"],
    ),
    "names from the host's headers": (
        """#include <float.h>
#include <cmath>
#include <cstdint>
__global__ void lowest(float* x, uint32_t* n) { x[0] = -FLT_MAX; x[1] = -INFINITY; n[0] = (uint)INT_MAX; }
""",
        ["float.h", "cmath", "cstdint"],
    ),
    "several on a line": (
        """int before() { return 1; } __global__ void between(int* x) { x[0] = 1; } int behind() { return 2; }
""",
        ["before()", "behind()"],
    ),
}


def what(cut):
    return re.match(r"[\w.]+(?:\(\))?", cut.reason)[0]


@all_of("about", PROGRAMS)
def test_the_host_s_part_is_left_out_and_lines_keep_their_numbers(about):
    code, left_out = PROGRAMS[about]
    part = device_part(code)
    assert sorted(map(what, part.cuts)) == sorted(left_out)
    assert part.code.count("\n") == code.count("\n")
    before, after = find_kernels(code), find_kernels(part.code)
    assert {name: k.line for name, k in before.items()} == {name: k.line for name, k in after.items()}
    for cut in part.cuts:
        line = part.code.splitlines()[cut.line - 1]
        assert "left out (" in line or "in place of" in line
    assert device_part(part.code) == (part.code, ())


@all_of("about", PROGRAMS)
def test_nvrtc_takes_what_is_left(about):
    code, _ = PROGRAMS[about]
    with pytest.raises(CompileError):
        compile_kernel(code, "sm_90")
    kernels = find_kernels(code).values()
    compile_kernel(device_part(code).code, "sm_90", (), [n for k in kernels if k.template for n in instances(code, k)])


def test_the_emulator_takes_what_is_left():
    parts = "".join(device_part(code).code for code, _ in PROGRAMS.values())
    EmulatedModule(parts, (), ("scale<float, 2>", "scale<float, 4>"))


# ---- what stays

STAYS = {
    "a helper that lacks __device__": "float f(float x) { return x; }\n__global__ void k(float* x) { f(x[0]); }\n",
    "a variable that lacks __device__": "float* table;\n__global__ void k(float* x) { x[0] = table[0]; }\n",
    "half of a branch": "#if A\nvoid f(int n) {\n#else\nvoid f(long n) {\n#endif\n}\n",
    "a macro from elsewhere": "MY_DEVICE float f(float x) { return x; }\n",
    "a header from elsewhere": '#include "my_device_functions.h"\n',
    "CUDA's own headers": "#include <cuda_runtime.h>\n#include <cuda_fp16.h>\n#include <cuda/std/limits>\n",
    "a brace that is missing": "__global__ void k(float* x) { if (x) { x[0] = 1; }\nint main() {}\n",
    "host code under a guard": "#ifndef __CUDACC_RTC__\n#define HOST 1\n#endif\n__global__ void k(int* x) {}\n",
    "what the course's kernels have": read_kernel("00_start_here/vector_add.cu"),
}


@all_of("about", STAYS)
def test_what_is_not_certain_stays_so_that_the_compiler_speaks(about):
    assert device_part(STAYS[about]) == (STAYS[about], ())


# ---- headers


def test_of_a_header_with_both_parts_a_copy_is_included(tmp_path, monkeypatch):
    (tmp_path / "both.h").write_text(
        "#include <stdlib.h>\n#include <float.h>\n#define WIDTH 4\nfloat* random_floats(int n);\n"
        "__device__ inline float low() { return -FLT_MAX; }\nint used(int n) { return n; }\n"
    )
    (tmp_path / "host_only.h").write_text("#pragma once\n#include <string>\nvoid read_file(const std::string& name);\n")
    code = '#include "host_only.h"\n#include "both.h"\n__global__ void k(float* x) { x[WIDTH] = low(); }\n'
    (tmp_path / "mine.cu").write_text(code)
    part = device_part(read_kernel(tmp_path / "mine.cu"))
    assert isinstance(part.code, KernelSource) and part.code.path == tmp_path / "mine.cu"
    assert [str(cut) for cut in part.cuts] == ["line 1: host_only.h has nothing for the device"]
    copy = re.search(r'#include "(/.*both\.h)"', part.code)[1]
    text = open(copy, encoding="utf-8").read()
    assert text.splitlines()[2] == "#define WIDTH 4" and "// left out (random_floats(), host code)" in text
    compile_kernel(part.code, "sm_90")
    assert device_part(read_kernel(tmp_path / "mine.cu")) == part
    assert device_part(code, [tmp_path]).code == part.code


# ---- launches


def test_launches_are_read_with_the_sizes_that_the_file_says():
    found = find_launches(
        "#define N (1 << 10)\nconst int threads = 128;\n"
        "void run(int n) {\n"
        "  dim3 grid(N / threads, 2), block(16, 8);\n"
        "  a<<<grid, block>>>(x);\n"
        "  ns::b<float, 4><<<dim3(n), dim3(32, 4, 1), 48 * 1024, stream>>>(x);\n"
        "  c<<<(N + threads - 1) / threads, n, n * sizeof(float)>>>(x);\n"
        "  int blocks = 4; blocks *= 2;\n"
        "  d<<<blocks, 256u, 2 * threads * sizeof(float)>>>(x); // e<<<1, 1>>>()\n"
        "}\n"
    )
    assert [launch[:5] for launch in found] == [
        ("a", (), (8, 2), (16, 8), 0),
        ("ns::b", ("float", "4"), None, (32, 4, 1), 48 * 1024),
        ("c", (), (8,), None, None),
        ("d", (), None, (256,), 1024),
    ]
    assert [launch.line for launch in found] == [5, 6, 7, 9]


def test_instances_of_a_template_are_those_that_the_file_launches():
    code = (
        "struct Pair { float a, b; };\n#define SIZE 64\n"
        "template <typename T, int N, bool CAUSAL = true> __global__ void k(T* x) {}\n"
        "template <class T> void run() { k<T, SIZE><<<1, 1>>>(x); k<Pair, n, false><<<1, 1>>>(x); }\n"
        "template <class T> void again() { k<T, SIZE><<<2, 1>>>(x); }\n"
        "template <int N> __global__ void lonely(float* x) {}\n"
    )
    kernels = find_kernels(code)
    assert instances(code, kernels["k"]) == ["k<float, SIZE, true>", "k<Pair, 32, false>"]
    assert instances(code, kernels["lonely"]) == ["lonely<32>"]


# ---- what RawModule says


def lines_of(message):
    return "\n".join(line.strip() for line in message.splitlines() if line.startswith("    "))


def test_raw_module_names_the_kernels_and_the_lines_that_launch_the_first():
    code, _ = PROGRAMS["a first program"]
    with pytest.raises(CompileError) as caught:
        RawModule(code=code)
    message = str(caught.value)
    assert "kernel.cu is a program around its kernels: main() in line 11" in message
    assert "launches kernels from Python" in message and "add_one (line 6)" in message
    assert "torch.float32 for x, y" in message and "lines 11-19: main(), host code" in message
    x, y = torch.arange(1000.0), torch.zeros(1000)
    names = {"code": code, "x": x, "y": y, "n": 1000, "RawModule": RawModule, "device_part": device_part, "np": np}
    assert lines_of(message).splitlines()[2] == "kernel((4,), (256,), (x, y, np.int32(n)))"
    exec(lines_of(message), names)
    assert torch.equal(y, x + 1)


def test_the_lines_for_a_template_have_its_instance(tmp_path):
    path = tmp_path / "scale.cu"
    path.write_text(PROGRAMS["templates"][0])
    with pytest.raises(CompileError) as caught:
        RawModule(code=read_kernel(path))
    assert lines_of(str(caught.value)).splitlines() == [
        f'module = RawModule(code=device_part(read_kernel("{path}")).code, name_expressions=("scale<T, 2>",))',
        'kernel = module.get_function("scale<T, 2>")',
        "kernel((1,), (32,), (x,))",
    ]


@all_of(
    "launched",
    (
        ("k<<<1, 1>>>(x)", "k<T, N>"),
        ("k<float><<<1, 1>>>(x)", "k<float, N>"),
        ("ns::k<T, SIZE><<<1, 1>>>(x)", "ns::k<T, SIZE>"),
        ("k<Pair, n, false><<<1, 1>>>(x)", "k<Pair, N, false>"),
        ("", "k<T, N>"),
    ),
)
def test_of_an_instance_the_lines_say_what_the_file_tells_and_no_more(launched):
    host, instance = launched
    code = (
        "struct Pair { float a, b; };\n#define SIZE 64\n"
        "template <typename T, int N, bool CAUSAL = true> __global__ void k(T* x) {}\n"
        f"template <class T> void run(int n) {{ {host}; }}\n"
    )
    assert python_lines(code, find_kernels(code)["k"], "code")[1] == f'kernel = module.get_function("{instance}")'


PLAIN = "__global__ void k(int* x) { x[0] = 1; }\n"
UNDER_A_GUARD = f"{PLAIN}#ifndef __CUDACC_RTC__\n#include <cstdio>\nint main() {{ k<<<1, 1>>>(nullptr); }}\n#endif\n"


def test_a_file_of_kernels_is_no_program():
    assert about_program(PLAIN) is None
    assert about_program(UNDER_A_GUARD) is None
    assert about_program(f"{PLAIN}// int main() {{ k<<<1, 1>>>(x); }}\n") is None
    assert about_program(f"{PLAIN}int main() {{}}\n", ("-default-device",)) is None
    assert about_program(PLAIN, log="kernel.cu(1): error: expected a ;") is None
    assert about_program(UNDER_A_GUARD, log="kernel.cu(1): error: expected a ;") is None
    x = torch.zeros(1, dtype=torch.int32)
    RawModule(code=UNDER_A_GUARD).get_function("k")((1,), (1,), (x,))
    assert x.item() == 1


def test_host_code_that_the_compiler_refuses_gets_the_same_message():
    for log in ("kernel.cu(4): error: a host function", "warning\nkernel.cu:4:5: error: ‘cudaMalloc’ was not declared"):
        message = about_program(UNDER_A_GUARD.replace("ifndef", "ifdef"), log=log)
        assert message.startswith("kernel.cu is a program around its kernels: main(), host code (line 4).")
        assert "k (line 1)" in message


def test_a_file_that_only_includes_headers_of_the_host_is_no_program():
    code = (
        "#include <cuda_fp16.h>\n#include <cstdint>\n#include <cassert>\n__global__ void k(uint32_t* x) { *x = 1; }\n"
    )
    module = RawModule(code=code)
    with pytest.raises(CompileError, match=r"^kernel\.cu:2: `#include <cstdint>` names a header of the host") as caught:
        module.compile()
    assert "program" not in str(caught.value) and "line 3: cassert is the host's" in str(caught.value)
    names = {"code": code, "RawModule": RawModule, "device_part": device_part}
    exec(lines_of(str(caught.value)), names)
    names["module"].compile()


def test_a_program_without_kernels_of_its_own_says_so():
    with pytest.raises(CompileError, match="There is no kernel in this file itself"):
        RawModule(code='#include "k.cuh"\nvoid run() { k<<<1, 1>>>(); }\n')


def test_a_function_that_the_runtime_calls_back_is_the_hosts():
    code = "__global__ void k(int* out) { *out = 1; }\nvoid CUDART_CB done(void* data) { *(int*)data = 1; }\n"
    assert [cut.reason for cut in device_part(code).cuts] == ["done(), host code"]
