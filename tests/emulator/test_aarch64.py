"""The emulator on ARM: compiled for it here, and run under qemu where qemu is (tests/aarch64)."""

import dataclasses
from unittest import mock

import numpy as np
import pytest
import torch
from elftools.elf.elffile import ELFFile

from course_utils.cuda import KernelError, RawModule
from course_utils.emulator import configure, memory, record
from course_utils.emulator.compiler import Build, build_kernels, build_runtime
from course_utils.emulator.library_tables import asked_for, symbols
from course_utils.emulator.translate import translate
from tests.aarch64 import machine
from tests.aarch64.outcomes import launches, outcomes

UNDER_QEMU = pytest.mark.exhaustive("`make test` compiles for ARM: flags and headers are most of what differs")
BTI_C = 0xD503245F  # where a branch to an address may land
WHAT_DIFFERS = r"""
#include <cuda_fp16.h>
static_assert((char)-1 < 0, "char has a sign on every GPU");
extern "C" __global__ void k(float* out, const char* bytes) {
    __shared__ float tile[32];
    const char c = bytes[threadIdx.x];
    tile[threadIdx.x] = __half2float(__float2half(c < 0 ? c * 0.1f : c * 65504.0f));
    __syncthreads();
    atomicAdd(&out[32], tile[31 - threadIdx.x] < 0 ? 1.0f : 0.0f);
    out[threadIdx.x] = ((float4*)tile)[threadIdx.x / 4].x + tile[threadIdx.x];
}
"""


@pytest.fixture(params=machine.COMPILERS)
def arm_compiler(request):
    if why := machine.why_not():
        pytest.skip(why)
    compiler = machine.COMPILERS[request.param]()
    if compiler is None:
        pytest.skip(f"there is no {request.param} for aarch64 here")
    return compiler


@pytest.fixture
def on_arm(arm_compiler):
    """All launches of a test."""
    with machine.on_aarch64(arm_compiler):
        yield


def launch(code, *arguments, threads=32):
    RawModule(code=code).get_function("k")((1,), (threads,), arguments)


def test_runtime_and_kernels_compile_for_arm_and_need_no_function_of_the_compilers_library():
    compiler = machine.zig()
    if compiler is None:
        pytest.skip("the ziglang package is not installed")
    runtime = build_runtime(compiler)
    translated = translate(WHAT_DIFFERS, "kernel.cu", [], ())
    for build in (Build.PLAIN, Build.TRACED):
        library = build_kernels(compiler, translated.text, translated.headers, [], "kernel.cu", build, runtime)
        for built in (runtime, library):
            with built.open("rb") as file:
                assert ELFFile(file)["e_machine"] == "EM_AARCH64"
            assert not [name for name in asked_for(built) if name.startswith("__aarch64_")]
    with runtime.open("rb") as file:
        text = next(s for s in ELFFile(file).iter_sections() if s.name == ".text")
        at = symbols(runtime)["emu_switch"].offset - text["sh_addr"]
        assert int.from_bytes(text.data()[at : at + 4], "little") == BTI_C


@UNDER_QEMU
def test_char_halves_atomics_and_vectors_give_what_they_give_on_x86(arm_compiler):
    given = torch.arange(-16, 16, dtype=torch.int8)
    here, there = torch.zeros(33), torch.zeros(33)
    launch(WHAT_DIFFERS, here, given)
    with machine.on_aarch64(arm_compiler):
        launch(WHAT_DIFFERS, there, given)
    assert here.tolist() == there.tolist() and here[32] == 16


@UNDER_QEMU
def test_where_branches_and_return_addresses_are_protected_fibers_switch_and_a_crash_has_its_line(arm_compiler):
    flags = (*arm_compiler.command, "-mbranch-protection=standard")
    protected = dataclasses.replace(arm_compiler, command=flags)
    code = 'extern "C" __global__ void k(float* out) {\n __syncthreads();\n memset(out + (1 << 28), 0, 64);\n }'
    with machine.on_aarch64(protected, "-cpu", "max"), pytest.raises(KernelError, match="write") as caught:
        launch(code, torch.zeros(64))
    assert (caught.value.kind, caught.value.line) == ("crash", 3)


@UNDER_QEMU
def test_a_nan_has_another_sign_than_on_x86_and_prints_and_rounds_alike(arm_compiler, capsys):
    code = r"""
    #include <cuda_fp16.h>
    extern "C" __global__ void k(int* out, float infinity) {
        const float none = infinity - infinity;
        out[0] = __float_as_int(none), out[1] = copysignf(1, none), out[2] = __half_as_ushort(__float2half(none));
        printf("%f\n", none);
    }"""

    def bits():
        out = torch.zeros(3, dtype=torch.int32)
        launch(code, out, np.float32("inf"), threads=1)
        return [number & 0xFFFFFFFF for number in out.tolist()]

    assert bits() == [0xFFC00000, 0xFFFFFFFF, 0x7FFF]  # docs/validation.md has these figures
    with machine.on_aarch64(arm_compiler):
        assert bits() == [0x7FC00000, 1, 0x7FFF]
    assert capsys.readouterr().out == "nan\n" * 2


CRASHES = {
    "a store": "out[n << 20] = 1;",
    "a load": "out[0] = out[n << 20];",
    "a load of four": "*(float4*)out = ((float4*)out)[n << 18];",
    "a store of four": "((float4*)out)[n << 18] = *(float4*)out;",
    "a load of a byte with its sign": "out[0] = ((signed char*)out)[n << 22];",
    "a store of a byte": "((signed char*)out)[n << 22] = n;",
    "an atomic": "atomicAdd(out + (n << 20), 1.0f);",
    "an atomic of an int": "atomicOr((int*)out + (n << 20), 1);",
    "memset": "memset(out + (n << 20), 0, 4096);",
    "libm's leaf": "out[0] = modff(out[1], out + (n << 20));",
    "loads of a loop": "int sum = 0; for (int i = 0; i < 64; i++) sum += ((int*)out)[(n << 20) + i]; out[0] = sum;",
    "stores of a loop": "for (int i = 0; i < 64; i++) ((int*)out)[(n << 20) + i] = 3 * i;",
}
NEWEST = {"gcc": "-mcpu=neoverse-v1", "zig": "-mcpu=neoverse_v1"}  # with SVE's vectors and atomic instructions


@UNDER_QEMU
@pytest.mark.parametrize("newest", [False, True])
def test_a_crash_says_what_it_did_where_and_in_which_line_as_on_x86(arm_compiler, newest):
    processor = ()
    if newest:  # a learner's kernels are built for the learner's processor
        arm_compiler = dataclasses.replace(arm_compiler, command=(*arm_compiler.command, NEWEST[arm_compiler.kind]))
        processor = ("-cpu", "max")

    def said(code):
        text = f'extern "C" __global__ void k(float* out, int n) {{\n out[1] = n;\n {code}\n out[2] = n;\n}}'
        with pytest.raises(KernelError) as caught:
            launch(text, torch.zeros(64), np.int32(200), threads=1)
        return str(caught.value)

    here = {name: said(code) for name, code in CRASHES.items()}
    with machine.on_aarch64(arm_compiler, *processor):
        there = {name: said(code) for name, code in CRASHES.items()}
    assert here == there and all("past the end" in one for one in here.values())


@UNDER_QEMU
@pytest.mark.parametrize("page", [4 << 10, 16 << 10])
def test_whatever_the_size_of_a_page_shared_memory_that_was_not_asked_for_is_a_fault(arm_compiler, page):
    code = """extern "C" __global__ void k(float* out, int i) {
        extern __shared__ float shared[];
        shared[i] = 1;
        out[0] = shared[i];
    }"""
    with mock.patch.object(memory, "PAGE", page), machine.on_aarch64(arm_compiler, "-p", str(page)):
        kernel = RawModule(code=code).get_function("k")
        for asked in (0, page):
            with pytest.raises(KernelError, match=r"kernel\.cu:3: .* past the end of the dynamic shared memory"):
                kernel((1,), (1,), (torch.zeros(1), np.int32(asked // 4)), shared_mem=asked)


@UNDER_QEMU
def test_a_call_of_what_is_no_code_is_an_error_of_its_line(on_arm):
    code = """typedef void (*Function)(float*);
    extern "C" __global__ void k(float* out, int n) {
        ((Function)(size_t)(n - 40))(out);
        out[0] = n;
    }"""
    with pytest.raises(KernelError, match="a null pointer") as caught:
        launch(code, torch.zeros(1), np.int32(40), threads=1)
    assert (caught.value.kind, caught.value.line) == ("crash", 3)


OVERFLOWS = {
    "endless recursion": """__device__ __noinline__ int f(volatile int* o, int n) { return f(o, n + 1) + o[n & 7]; }
    extern "C" __global__ void k(int* out, int n) { out[0] = f(out, n); }""",
    "a large array": """extern "C" __global__ void k(int* out, int n) {
        volatile int large[1000000];
        large[n] = 1;
        out[threadIdx.x] = large[n];
    }""",
}


@UNDER_QEMU
@pytest.mark.parametrize("code", OVERFLOWS.values(), ids=OVERFLOWS)
def test_a_stack_that_overflows_meets_its_guard(on_arm, code):
    with pytest.raises(KernelError, match="stack overflow") as caught:
        launch(code, torch.zeros(64, dtype=torch.int32), np.int32(40), threads=4)
    assert caught.value.kind == "crash"


@UNDER_QEMU
@pytest.mark.parametrize(
    "code, says",
    [
        ("out[n] = 5 / (n - 40);", "integer division by zero"),
        ("out[n] = 5u % (unsigned)(n - 40);", "integer division by zero"),
        ("*(float4*)(out + 1) = {};", "invalid memory access"),  # a vector that is not at a multiple of its size
    ],
)
def test_what_an_arm_processor_takes_and_a_gpu_does_not_is_an_error(on_arm, code, says):
    text = f'extern "C" __global__ void k(float* out, int n) {{\n {code}\n}}'
    with pytest.raises(KernelError, match=says) as caught:
        launch(text, torch.zeros(64), np.int32(40), threads=1)
    assert (caught.value.kind, caught.value.line) == ("crash", 2)


@UNDER_QEMU
def test_a_recording_has_the_variables_and_the_shared_elements_of_x86(arm_compiler):
    if arm_compiler.kind != "gcc":
        pytest.skip("only g++ says where variables are")
    code = r"""struct Tile { float row[2][4]; int count; };
    template <class T> __device__ void scale(T* values) {
        __shared__ T kept[4];
        T twice = 2 * values[threadIdx.x];
        kept[threadIdx.x] = twice;
        values[threadIdx.x] = kept[threadIdx.x];
    }
    extern "C" __global__ void k(float* out, int* numbers) {
        __shared__ Tile tile;
        __shared__ short half[4];
        const float x = out[threadIdx.x];
        tile.row[1][threadIdx.x] = x, tile.count = 3;
        half[threadIdx.x] = x;
        { __shared__ int half[2]; half[threadIdx.x / 2] = 7; }
        scale(out), scale(numbers);
    }"""

    def looked_at():
        found = record(lambda: launch(code, torch.arange(4.0), torch.arange(4, dtype=torch.int32), threads=4))
        columns = {name: column.tobytes() for name, column in found.columns.items()}
        return columns, [str(one) for one in found.variables], [str(one) for one in found.arrays]

    with mock.patch.dict("os.environ", COURSE_EMULATOR_CXX="g++"):
        here = looked_at()
    with machine.on_aarch64(arm_compiler):
        there = looked_at()
    assert here == there
    assert "tile.row" in str(here[2]) and "kept" in str(here[2]) and "twice" in str(here[1])


@UNDER_QEMU
@pytest.mark.parametrize("name", launches())
def test_a_kernel_of_the_course_gives_the_outputs_findings_and_counters_of_x86(name):
    if why := machine.why_not():
        pytest.skip(why)
    compiler = machine.gcc()
    if compiler is None:
        pytest.skip("there is no g++ for aarch64 here")
    with configure(threads=1, time_limit=600):
        here = outcomes(name, launches()[name])
        with machine.on_aarch64(compiler):
            there = outcomes(name, launches()[name])
    assert not [aspect for aspect in here if here[aspect] != there[aspect]]
