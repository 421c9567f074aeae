"""From CUDA C++ to C++: what changes, and that lines keep their numbers."""

import numpy as np
import pytest
import torch

from course_utils.cuda import CompileError, KernelError, RawModule, read_kernel
from course_utils.emulator.translate import translate


def plain(code):
    return translate(code, "a.cu", []).text


def test_lines_keep_their_numbers_over_statements_of_many_lines(run_kernel):
    code = """#define EX2(y, x) \\
        asm volatile("ex2.approx.f32 %0, %1;" \\
            : "=f"(y)      /* written */ \\
            : "f"(x))
    extern "C" __global__ void k(float* out) {
        extern __shared__
            float
            s[];
        asm volatile("{ \\n"
                     "ex2.approx.f32 %0, %1; \\n"
                     "}"
                     : "=f"(s[0])
                     : "f"(2.0f));
        float y;
        EX2(y, s[0]);
        out[0] = y;
        __trap();
    }"""
    out = torch.zeros(1)
    with pytest.raises(KernelError) as caught:
        run_kernel(code, (1,), (1,), (out,), shared_mem=4)
    assert caught.value.line == code[: code.index("__trap")].count("\n") + 1
    run_kernel(code.replace("__trap();", ""), (1,), (1,), (out,), shared_mem=4)
    assert out.item() == 16


def test_comments_and_strings_are_left_alone():
    code = """
        // extern __shared__ float s[]; asm("nonsense"); #include "nowhere.cuh"
        /* return; asm volatile("more");
           #include "nowhere.cuh" */
        __device__ const char* text = "return; asm(\\"x\\"); extern __shared__ float s[];";
    """
    assert plain(code) == f'#line 1 "a.cu"\n{code}\n'


def test_only_a_kernel_leaves_early():
    text = plain("""
        __device__ void f(int i) { if (i) return; }
        __global__ void k(int i) { if (i) return; f(i); }
    """)
    assert "f(int i) { if (i) return; }" in text and "k(int i) { if (i) return emu_leave(); f(i); }" in text


def test_a_return_in_a_lambda_leaves_the_lambda_alone():
    kernel = "__global__ void k(int* a, int i) {{ {} if (a[i]) {{ return; }} f(a); }}"
    for function in (
        "auto f = [&](int* x) { if (x[i]) return; x[i] = 1; };",
        "auto f = [=] { if (i) { return; } };",
        "auto f = [=, &a](int* x) mutable -> void { if (i) return; i++; };",
    ):
        text = plain(kernel.format(function))
        assert function in text and text.count("emu_leave()") == 1, text


def test_a_return_that_stands_in_a_macro_is_an_early_return_too(compiler, run_kernel):
    out = torch.zeros(4, dtype=torch.int32)
    run_kernel(
        """#define UNLESS(condition) \\
            if (!(condition)) return
        extern "C" __global__ void k(int* out) { UNLESS(threadIdx.x < 4); __syncthreads(); out[threadIdx.x] = 1; }""",
        (1,),
        (64,),
        (out,),
    )
    assert out.tolist() == [1] * 4


def test_an_unusual_declaration_of_dynamic_shared_memory_says_what_is_taken():
    with pytest.raises(
        CompileError, match=r"a\.cu:2: the emulator takes .*, got `extern __shared__ float \(\*f\)\(int\);`"
    ):
        plain("\nextern __shared__ float (*f)(int);")


def test_a_kernel_that_the_preprocessor_leaves_out_cannot_be_launched_and_disturbs_no_other(run_kernel):
    code = """
        #ifdef EXTRA
        extern "C" __global__ void extra(float* out) { out[0] = 2; }
        #endif
        extern "C" __global__ void k(float* out) { out[0] = 1; }
    """
    out = torch.zeros(1)
    run_kernel(code, (1,), (1,), (out,))
    assert out.item() == 1
    with pytest.raises(LookupError, match=r"preprocessor leaves extra\(\) out"):
        run_kernel(code, (1,), (1,), (out,), name="extra")
    run_kernel(code, (1,), (1,), (out,), name="extra", options=("-DEXTRA",))
    assert out.item() == 2


def test_a_kernel_in_a_namespace_can_be_launched(run_kernel):
    out = torch.zeros(1)
    run_kernel('namespace a { namespace b { extern "C" __global__ void k(float* o) { *o = 1; } } }', (1,), (1,), (out,))
    assert out.item() == 1


@pytest.mark.parametrize("name", ["index", "div", "time", "select", "softmax", "connect", "signal", "environ"])
def test_a_kernel_or_variable_may_have_a_name_of_libc(name, each_compiler, run_kernel):
    out = torch.zeros(2)
    run_kernel(
        f"""__device__ float stdout_ = 1, program_invocation_name = 2;
        extern "C" __global__ void {name}(float* out) {{ out[0] = stdout_; out[1] = program_invocation_name; }}""",
        (1,),
        (1,),
        (out,),
        name=name,
    )
    assert out.tolist() == [1, 2]


# ---- headers


@pytest.fixture
def folder(tmp_path):
    def write(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_cuh", ".cuh").replace("_cu", ".cu")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


KERNEL = 'extern "C" __global__ void k(float* out) { out[0] = VALUE; }\n'


def value(run_kernel, path, **options):
    out = torch.zeros(1)
    run_kernel(read_kernel(path), (1,), (1,), (out,), **options)
    return out.item()


@pytest.mark.parametrize(
    "include", ['#include "value.cuh"', "#include <value.cuh>", '  #  include   "value.cuh" // why']
)
def test_a_header_beside_the_kernel_is_found(include, folder, run_kernel):
    path = folder(a_cu=f"{include}\n{KERNEL}", value_cuh="#define VALUE 3\n")
    assert value(run_kernel, path / "a.cu") == 3


def test_a_header_beside_the_kernel_wins_over_the_include_path(folder, run_kernel):
    path = folder(
        a_cu=f'#include "value.cuh"\n#include "other.cuh"\n{KERNEL}',
        value_cuh="#define VALUE (3 + OTHER)\n",
        include__value_cuh="#define VALUE (5 + OTHER)\n",
        include__other_cuh="#define OTHER 100\n",
    )
    assert value(run_kernel, path / "a.cu", options=(f"-I{path / 'include'}",)) == 103


def test_an_include_folder_may_be_relative_to_where_python_runs(folder, run_kernel, monkeypatch):
    path = folder(a_cu=f'#include "value.cuh"\n{KERNEL}', include__value_cuh="#define VALUE 7\n")
    monkeypatch.chdir(path)
    assert value(run_kernel, "a.cu", options=("-I", "include")) == 7


def test_headers_are_included_relative_to_themselves(folder, run_kernel):
    path = folder(
        a_cu=f'#include "one/value.cuh"\n#include "two/value.cuh"\n{KERNEL}',
        one__value_cuh='#include "part.cuh"\n#define ONE PART\n#undef PART\n',
        one__part_cuh="constexpr int part_of_one = 10;\n",
        two__value_cuh='#include "part.cuh"\n#define VALUE (part_of_one + part_of_two)\n',
        two__part_cuh="constexpr int part_of_two = 20;\n",
    )
    assert value(run_kernel, path / "a.cu") == 30


def test_a_header_without_a_guard_can_be_included_twice(folder, run_kernel):
    path = folder(
        a_cu='#define NAME a\n#include "twice.cuh"\n#undef NAME\n#define NAME b\n#include "twice.cuh"\n'
        + KERNEL.replace("VALUE", "a + b"),
        twice_cuh="constexpr int NAME = 4;\n",
    )
    assert value(run_kernel, path / "a.cu") == 8


def test_a_header_that_includes_itself_is_bounded_by_its_guard(folder, run_kernel):
    path = folder(
        a_cu=f'#include "self.cuh"\n{KERNEL}', self_cuh='#pragma once\n#include "self.cuh"\n#define VALUE 9\n'
    )
    assert value(run_kernel, path / "a.cu") == 9


def test_asm_shared_memory_and_barriers_work_in_a_header(folder, compiler, run_kernel):
    path = folder(
        a_cu='#include "tools.cuh"\nextern "C" __global__ void k(float* out) { out[0] = total(threadIdx.x); }\n',
        tools_cuh="""#pragma once
        __device__ float total(float x) {
            extern __shared__ float s[];
            asm("ex2.approx.f32 %0, %1;" : "=f"(s[threadIdx.x]) : "f"(x));
            __syncthreads();
            float sum = 0;
            for (int i = 0; i < blockDim.x; i++) sum += s[i];
            return sum;
        }""",
    )
    out = torch.zeros(1)
    run_kernel(read_kernel(path / "a.cu"), (1,), (8,), (out,), shared_mem=32)
    assert out.item() == 255


def test_a_missing_header_is_a_compile_error_that_names_it(folder, run_kernel):
    path = folder(a_cu=f'\n#include "valeu.cuh"\n{KERNEL}')
    with pytest.raises(CompileError, match=r"a\.cu\(2\):.*valeu\.cuh"):
        value(run_kernel, path / "a.cu")


# ---- options and templates


@pytest.mark.parametrize("options", [("-DVALUE=3",), ("-D", "VALUE=3"), ("--define-macro=VALUE=3", "-lineinfo")])
def test_macros_are_defined_in_every_spelling(options, run_kernel):
    out = torch.zeros(1)
    run_kernel(KERNEL, (1,), (1,), (out,), options=options)
    assert out.item() == 3
    with pytest.raises(CompileError, match="VALUE"):
        run_kernel(KERNEL, (1,), (1,), (out,), options=(*options, "--undefine-macro=VALUE"))


def test_template_instances_are_named_by_expressions(compiler, run_kernel):
    code = """
        template <typename T, int N = 2> __global__ void scale(T* x, T by) {
            if (threadIdx.x >= 4) return;
            __syncthreads();
            x[threadIdx.x] *= by * N;
        }
    """
    names = ("scale<float>", "scale<float, 3>", "scale<double, 5>")
    module = RawModule(code=code, name_expressions=names)
    for name, factor in zip(names, (2, 3, 5), strict=True):
        x = torch.arange(4.0, dtype=torch.float64 if "double" in name else torch.float32)
        by = x.numpy().dtype.type(10)
        module.get_function(name)((1,), (8,), (x, by))
        assert x.tolist() == [10.0 * factor * i for i in range(4)]


def test_a_scalar_of_another_size_than_the_template_takes_is_a_type_error(run_kernel):
    code = "template <typename T> __global__ void scale(T* x, T by) { *x *= by; }"
    with pytest.raises(TypeError, match=r"argument 1 \('by'\) of scale<float>\(\) takes 4 bytes, got 8"):
        run_kernel(
            code, (1,), (1,), (torch.ones(1), np.float64(2)), name="scale<float>", name_expressions=["scale<float>"]
        )
