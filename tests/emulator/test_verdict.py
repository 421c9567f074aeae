"""One truth for what CUDA is: what NVRTC refuses is refused on the emulator; of what only the emulator lacks it has
sentences of its own."""

import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from course_utils import toolchain
from course_utils.cuda import CompileError, KernelSource, RawModule, read_kernel
from course_utils.emulator import module as emulated
from course_utils.emulator.shortfalls import SUBJECTS, shortfall
from course_utils.grading.runner import _compile_problem
from course_utils.toolchain import nvrtc, verdict
from course_utils.toolchain.verdict import Verdict
from tests.helpers.all_of import all_of

KERNEL = 'extern "C" __global__ void k(float* a, int n, long long* c) {\n    %s\n}\n'
RIGHT = KERNEL % "a[0] = 1;"


def refusal(code, *architectures, options=(), name_expressions=()):
    """What is said of a kernel that NVRTC refuses."""
    try:
        Verdict(code, architectures or ("sm_80",), options, name_expressions).is_taken()
    except CompileError as error:
        return str(error)
    raise AssertionError("NVRTC takes it")


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    """Of NVRTC's answers."""
    monkeypatch.setattr(nvrtc, "cache_folder", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def asked(monkeypatch):
    """The names of the kernels that NVRTC is asked about from now on."""
    names, program = [], nvrtc._program

    def count(request, flags, failure):
        names.append(request.name)
        return program(request, flags, failure)

    monkeypatch.setattr(nvrtc, "_program", count)
    return names


# ---- what NVRTC refuses

NO_CUDA = {  # the code, the line of the error, and a part of its words
    "array of a run-time length": (KERNEL % "float b[n]; b[0] = 1; a[0] = b[0];", 2, "must have a constant value"),
    "initialiser of a __shared__ variable": (KERNEL % "__shared__ int s = 0; a[0] = s;", 2, "initializer not allowed"),
    "helper without __device__": (
        "float twice(float x) { return 2 * x; }\n" + KERNEL % "a[0] = twice(a[0]);",
        1,
        "host function",
    ),
    "global variable without __device__": ("float factor = 2;\n" + KERNEL % "a[0] *= factor;", 1, "host variable"),
    "atomicAdd of long long": (KERNEL % "atomicAdd(c, 1ll);", 2, "no instance of overloaded function"),
    "atomicMax of float": (KERNEL % "atomicMax(a, 1.0f);", 2, "no instance of overloaded function"),
    "half times float": (
        "#include <cuda_fp16.h>\n" + KERNEL % "__half h = a[0]; a[0] = h * 2.0f;",
        3,
        'operator "*" matches',
    ),
    "uint32_t without its header": (KERNEL % "uint32_t u = n; a[0] = u;", 2, '"uint32_t" is undefined'),
    "a header of the host": ("\n#include <vector>\n" + RIGHT, 2, 'cannot open source file "vector"'),
    "std::max": (KERNEL % "a[0] = std::max(n, 1);", 2, '"std"'),
    "a designated array": (KERNEL % "int b[2] = {[0] = n, [1] = 2}; a[0] = b[1];", 2, "error"),
    "a conditional without a middle": (KERNEL % "a[0] = n ?: 2;", 2, "expected an expression"),
    "a nested function": (
        KERNEL % "auto f = []() -> int { return n; }; a[0] = f();",
        2,
        "an enclosing-function local variable",
    ),
    "an exception": (KERNEL % "throw 1;", 2, "exception"),
    "typeid": (KERNEL % "a[0] = typeid(n) == typeid(int);", 2, "typeid"),
    "a kernel that returns a number": ('extern "C" __global__ int k(float* a) { return 1; }', 1, "void return type"),
    "a call of the host": (KERNEL % "printf(stderr);", 2, '"stderr" is undefined'),
    "a write to __constant__ memory": ("__constant__ float t;\n" + KERNEL % "t = a[0];", 3, "modifiable"),
    "size_t of nothing": (KERNEL % "a[0] = sizeof(Unknown);", 2, '"Unknown" is undefined'),
}


@all_of("what", NO_CUDA)
def test_what_is_no_cuda_is_refused_in_nvrtcs_words_with_its_line(what):
    code, line, words = NO_CUDA[what]
    said = refusal(code)
    error = next(text for text in said.splitlines() if text.startswith("kernel.cu(") and " error: " in text)
    assert error.startswith(f"kernel.cu({line}): ") and words in said, said


def test_what_the_host_compiler_takes_is_refused_before_anything_runs():
    code = NO_CUDA["initialiser of a __shared__ variable"][0]
    with pytest.raises(CompileError, match=r"did not compile: NVIDIA's compiler says\nkernel\.cu\(2\): error"):
        RawModule(code=code).compile()


PTXAS = {
    "static shared memory": (KERNEL % "__shared__ float s[13000]; s[n] = 1; a[0] = s[0];", "0xc000 max"),
    "shared memory of two sizes": (
        KERNEL % "__shared__ double s[70][80]; __shared__ char t[5000]; s[n][0] = t[n] = 1; a[0] = s[0][n] + t[0];",
        "0xc000 max",
    ),
    "constants": ("__constant__ float t[20000];\n" + KERNEL % "a[0] = t[n];", "0x10000 max"),
    "inline PTX": (
        KERNEL % 'asm volatile("add.f32 %0, %0;" : "+f"(a[0]));',
        "kernel.cu(2): ptxas error   : Arguments mismatch for instruction 'add'",
    ),
    "inline PTX in a function that is called": (
        '__device__ void f() {\n    asm volatile("bar.sync 1, 40;");\n}\n' + KERNEL % "f();",
        "kernel.cu(2): ptxas error   : Number of threads",
    ),
    "a function without a body": ("__device__ int f(int);\n" + KERNEL % "a[0] = f(n);", "Unresolved extern function"),
}


@all_of("what", PTXAS)
def test_what_ptxas_refuses_is_refused_with_its_line_and_without_its_account_of_registers(what):
    said = refusal(PTXAS[what][0])
    assert PTXAS[what][1] in said and "ptxas info" not in said and "\0" not in said, said


def test_a_launch_in_a_kernel_that_nvrtc_refuses_has_the_emulators_sentence_too():
    assert refusal(TEXTURE % ("float*", "k<<<1, 1>>>(a, t);")).endswith(SUBJECTS["<<<"])


def test_where_both_compilers_fail_nvrtcs_words_are_shown():
    with pytest.raises(CompileError, match=r'kernel\.cu\(2\): error: identifier "unheard_of" is undefined'):
        RawModule(code=KERNEL % "a[0] = unheard_of;").compile()


def test_lines_are_the_learners_through_macros_and_headers(tmp_path):
    (tmp_path / "tool.cuh").write_text("#pragma once\n\n__device__ int tool(int x) { return x + absent; }\n")
    (tmp_path / "a.cu").write_text('#include "tool.cuh"\n' + KERNEL % "a[0] = tool(n);")
    assert "tool.cuh(3): error: " in refusal(read_kernel(tmp_path / "a.cu"))
    macro = "#define TWICE(x) \\\n    (2 * (x) + absent)\n\n" + KERNEL % "a[0] = TWICE(n);"
    assert "cell.cu(5): error: " in refusal(KernelSource(macro, tmp_path / "cell.cu", "cell.cu"))


def test_options_and_name_expressions_are_nvrtcs(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "size.cuh").write_text("#define SIZE N\n")
    monkeypatch.chdir(tmp_path)
    code = '#include "size.cuh"\ntemplate <int M> __global__ void k(float* a) { a[0] = SIZE + M; }'
    options = "-Iown", "-D", "N=2", "-DUNUSED", "-UUNUSED", "--use_fast_math"
    assert Verdict(code, ("sm_80",), options, ("k<3>",)).is_taken()
    assert "unrecognized option -O3 found" in refusal(code, options=(*options, "-O3"))
    assert '"N" is undefined' in refusal(code, options=("-I", "own"), name_expressions=("k<3>",))
    assert "other" in refusal(code, options=options, name_expressions=("other<3>",))


def test_what_only_a_newer_gpu_has_is_not_refused():
    newer = KERNEL % 'asm volatile("fence.proxy.async;");'
    assert "not supported" in refusal(newer) or "requires" in refusal(newer)
    assert Verdict(newer, ("sm_80", "sm_89", "sm_90"), (), ()).is_taken()
    e4m3 = KERNEL % 'short p; asm volatile("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %1;" : "=h"(p) : "f"(a[0])); a[0] = p;'
    RawModule(code=e4m3).compile()  # without `arch: sm_89` in its header: the emulator knows it all the same


# ---- what it takes is remembered


def test_what_nvrtc_takes_is_asked_once(own_cache, asked, tmp_path):
    headers = tmp_path / "headers"
    headers.mkdir()
    for value in (1, 2, 1):
        (headers / "value.cuh").write_text(f"#define VALUE {value}\n")
        code = KernelSource('#include "value.cuh"\n' + KERNEL % "a[0] = VALUE;", headers / "a.cu", "a.cu")
        assert Verdict(code, ("sm_80",), (), ()).is_taken()
    assert len(asked) == 2
    assert Verdict(code, ("sm_80",), ("-DOTHER",), ()).is_taken()
    assert len(asked) == 3
    assert (
        Verdict(RIGHT, ("sm_75", "sm_80"), (), ()).is_taken() and Verdict(RIGHT, ("sm_80", "sm_75"), (), ()).is_taken()
    )
    assert len(asked) == 4
    assert not list(own_cache.glob("*.json"))  # no machine code is kept of a kernel that runs on the emulator


def test_what_compile_kernel_has_compiled_is_not_asked_again(own_cache, asked):
    nvrtc.compile_kernel(RIGHT, "sm_80")
    assert Verdict(RIGHT, ("sm_80",), (), ()).is_taken() and len(asked) == 1


def test_a_refusal_is_asked_again(own_cache, asked):
    for _ in range(2):
        refusal(KERNEL % "a[0] = unheard_of;")
    assert not list(own_cache.iterdir()) and len(asked) == 4  # fast, then as for a GPU


def test_what_is_refused_only_when_little_is_optimized_is_taken(own_cache, monkeypatch):
    program = nvrtc._program

    def refuse_fast(request, flags, failure):
        if len(flags) > len(request.flags):
            raise CompileError("only so")
        return program(request, flags, failure)

    monkeypatch.setattr(nvrtc, "_program", refuse_fast)
    assert Verdict(RIGHT, ("sm_80",), (), ()).is_taken()
    assert nvrtc.is_known_to_compile(RIGHT, ("sm_80",))


# ---- side by side


def test_nvrtc_is_asked_while_the_host_compiler_works(own_cache, monkeypatch):
    both, check, build = threading.Barrier(2, timeout=20), nvrtc.check_kernel, emulated.build_kernels

    def wait_and(call):
        def run(*arguments, **more):
            both.wait()
            return call(*arguments, **more)

        return run

    monkeypatch.setattr(nvrtc, "check_kernel", wait_and(check))
    monkeypatch.setattr(emulated, "build_kernels", wait_and(build))
    RawModule(code=RIGHT).compile()


def test_several_threads_compile_at_once(own_cache):
    said = {}

    def run(number):
        try:
            RawModule(code=KERNEL % (f"a[0] = {number};" if number % 2 else f"a[0] = missing_{number};")).compile()
            said[number] = "taken"
        except CompileError as error:
            said[number] = str(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(said[n] == "taken" if n % 2 else f'"missing_{n}" is undefined' in said[n] for n in range(6)), said


# ---- without NVRTC


def test_where_nvrtc_cannot_be_imported_the_emulator_goes_on(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.delitem(sys.modules, "course_utils.toolchain.nvrtc")
    monkeypatch.delattr(toolchain, "nvrtc")
    out = torch.zeros(1)
    RawModule(code=RIGHT).get_function("k")((1,), (1,), (out, np.int32(1), torch.zeros(1, dtype=torch.int64)))
    assert out.item() == 1
    with pytest.raises(CompileError, match=r"kernel\.cu did not compile:\nkernel\.cu"):
        RawModule(code=KERNEL % "a[0] = unheard_of;").compile()


def test_where_a_part_of_nvrtc_is_missing_the_emulator_goes_on(own_cache, monkeypatch):
    def fail(*_):
        raise nvrtc.NvrtcFailure("libnvrtc-builtins.so is not there")

    monkeypatch.setattr(nvrtc, "_program", fail)
    assert not Verdict(RIGHT, ("sm_80",), (), ()).is_taken()
    RawModule(code=RIGHT).compile()


def test_nvrtc_that_does_not_answer_is_not_waited_for_for_ever(own_cache, monkeypatch):
    answers = threading.Event()
    monkeypatch.setattr(nvrtc, "_program", lambda *_: answers.wait(20))
    monkeypatch.setattr(verdict, "PATIENCE", 0.05)
    asked = Verdict(RIGHT, ("sm_80",), (), ())
    with pytest.warns(UserWarning, match=r"kernel\.cu: NVIDIA's compiler gave no answer within 0\.05 s"):
        assert not asked.is_taken()
    assert not asked.is_taken()  # no second warning
    assert all(thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread())
    answers.set()


# ---- what only the emulator lacks

TEXTURE = 'extern "C" __global__ void k(float* a, %s t) {\n    %s\n}\n'
OWN = {
    "a texture": (TEXTURE % ("cudaTextureObject_t", "a[0] = tex2D<float>(t, 1, 2);"), ()),
    "a texture in a struct": (
        "struct S { cudaTextureObject_t t; };\n" + TEXTURE % ("S", "a[0] = tex2D<float>(t.t, 1, 2);"),
        (),
    ),
    "a fetch": (TEXTURE % ("unsigned long long", "a[0] = tex1Dfetch<float>(t, 1);"), ()),
    "a layered texture": (TEXTURE % ("unsigned long long", "a[0] = tex2DLayered<float>(t, 1, 2, 3);"), ()),
    "a cube": (TEXTURE % ("unsigned long long", "a[0] = texCubemap<float>(t, 1, 2, 3);"), ()),
    "a surface": (TEXTURE % ("cudaSurfaceObject_t", "surf2Dwrite(a[0], t, 0, 0);"), ()),
    "a surface by number": (TEXTURE % ("unsigned long long", "surf1Dread(a, t, 0);"), ()),
    "a launch in a kernel": (TEXTURE % ("float*", "k<<<1, 1>>>(a, t);"), ("-dc",)),
}


@all_of("what", OWN)
def test_what_only_the_emulator_lacks_has_a_sentence_of_its_own(compiler, what):
    code, options = OWN[what]
    with pytest.raises(CompileError) as caught:  # NVRTC takes it: else the words would be NVRTC's
        RawModule(code=code, options=options).compile()
    said = str(caught.value)
    assert said.startswith("kernel.cu:") and ", a GPU does: " in said and said.count("\n") == 0
    assert said.endswith(SUBJECTS[r"<<<" if "launch" in what else next(iter(SUBJECTS))])
    assert "error: " in caught.value.log


def test_a_shortfall_is_named_at_the_learners_line_through_a_header(tmp_path, compiler):
    (tmp_path / "fetch.cuh").write_text("#pragma once\n\n#define FETCH(t) tex2D<float>(t, 1, 2)\n")
    text = '#include "fetch.cuh"\n' + TEXTURE % ("unsigned long long", "a[0] = FETCH(t);")
    with pytest.raises(CompileError, match=r"^(a\.cu:3|fetch\.cuh:3): the emulator does not have tex2D, a GPU does: "):
        RawModule(code=KernelSource(text, tmp_path / "a.cu", "a.cu")).compile()


SOURCES = {
    "a.cu": "one\n  two(x);\nthree\n",
    "b.cuh": "four\n",
    "c.cu": "#include <cuda/ptx>\n #include <x/y.cuh>\n",
}
WORDS = {  # a line of g++'s or clang's, and what is made of it
    "a.cu:2:3: error: 'two' was not declared in this scope; did you mean 'too'?": "a.cu:2: {} have two, a GPU does",
    "a.cu:2:3: error: use of undeclared identifier 'two'; did you mean 'too'?": "a.cu:2: {} have two, a GPU does",
    "a.cu:1:1: error: unknown type name 'one'": "a.cu:1: {} have one, a GPU does",
    "a.cu:1:1: error: 'one' does not name a type": "a.cu:1: {} have one, a GPU does",
    "a.cu:1:1: error: 'struct float4' has no member named 'q'": "a.cu:1: {} have q, a GPU does",
    "a.cu:1:1: error: no member named 'q' in 'float4'": "a.cu:1: {} have q, a GPU does",
    "a.cu:2:1: error: no matching function for call to 'two(int)'": "a.cu:2: {} have two(int), a GPU does",
    "a.cu:2:1: error: no matching function for call to 'two'": "a.cu:2: {} have two, a GPU does",
    "a.cu:2:3: error: redefinition of 'int max(int, int)'\nemu.h:9:1: note: 'int max(int, int)' previously defined": (
        "a.cu:2: {} take a second `int max(int, int)`, a GPU does: CUDA has one; give this one another name"
    ),
    "b.cuh:1:10: fatal error: cuda/std/nothing: No such file or directory": (
        "b.cuh:1: {} have <cuda/std/nothing>, a GPU does"
    ),
    "b.cuh:1:10: fatal error: 'mma.h' file not found": "b.cuh:1: {} have <mma.h>, a GPU does",
    "a.cu:2:3: error: expected ';' before 'x'": "a.cu:2: {} take this line, a GPU does: `two(x);`",
    "emu.h:9:1: error: cannot convert 'int' to 'X'\na.cu:3:5:   required from here": (
        "a.cu:3: {} take this line, a GPU does: `three`"
    ),
    "emu.h:9:1: error: cannot convert 'int' to 'X'\nemu.h:10:1: error: no\na.cu:3:5: note: here": (
        "a.cu: {} take this kernel, a GPU does"
    ),
    "a.cu:2:9: error: static assertion failed: the emulator does not know this PTX instruction: x.y": (
        "a.cu:2: {} know this PTX instruction: x.y"
    ),
    "a.cu:3:1: error: jump to case label\na.cu:2:3: note:   crosses initialization of 'int y'": (
        "a.cu:3: {} take a label of a `switch` behind a variable with an initial value, a GPU does: put the statements "
        "of each case in braces"
    ),
    "a.cu:2:3: error: 'this_cluster' is not a member of 'cooperative_groups'": (
        "a.cu:2: {} have this_cluster, a GPU does: it has clusters in kernels whose header says `// arch: sm_90a only`"
    ),
    "In file included from x/y.cuh:9,\n                 from c.cu:2:\nz:1:5: error: 'int8' does not name a type\n"
    "In file included from x/y.cuh:11:\nptx:1:5: error: static assertion failed: the emulator does not have <cuda/ptx>"
    ", a GPU does\nptx:1:5: error: static assertion failed: the emulator does not have <cuda/ptx>, a GPU does": (
        "c.cu:2: {} have <cuda/ptx>, a GPU does: <x/y.cuh> needs it"
    ),
    "In file included from c.cu:1:\nptx:1:5: error: static assertion failed: the emulator does not have <cuda/ptx>, a "
    "GPU does": "c.cu:1: {} have <cuda/ptx>, a GPU does",
    "no line has a place": "a.cu: {} take this kernel, a GPU does",
}


@all_of("words", WORDS)
def test_a_host_compilers_words_become_a_sentence(words):
    assert shortfall(words, SOURCES, "a.cu") == WORDS[words].format("the emulator does not")


TWO_KERNELS = (
    "__global__ void k(float* x) {}\n__global__ void k(double* x) {}\n",
    "namespace v1 { __global__ void k(int* x) {} }\nnamespace v2 { __global__ void\nk(int* x) {} }\n",
)


@all_of("code", TWO_KERNELS)
def test_kernels_of_one_name_are_named_with_their_lines(compiler, code):
    last = code.count("\n")
    with pytest.raises(CompileError) as caught:
        RawModule(code=f"__global__ void other() {{}} {code}").compile()
    assert str(caught.value) == (
        f"kernel.cu:{last}: the emulator does not take two kernels of one name, a GPU does: k is defined in lines 1 "
        f"and {last}; give each a name of its own"
    )


def test_a_kernel_in_a_namespace_is_found_by_its_whole_name(compiler):
    x = torch.zeros(1)
    module = RawModule(code="namespace a { namespace b { __global__ void k(float* x) { x[0] += 1; } } }")
    for name in ("a::b::k", "k"):
        module.get_function(name)((1,), (1,), (x,))
    assert x.item() == 2


def test_the_grader_quotes_the_line_of_either_error():
    source = KernelSource(TEXTURE % ("cudaTextureObject_t", "a[0] = tex2D<float>(t, 1, 2);"), None, "kernel.cu")
    with pytest.raises(CompileError) as caught:
        RawModule(code=str(source)).compile()
    problem = _compile_problem(caught.value, source)
    assert problem["line"] == 2 and problem["error"].startswith("kernel.cu:2: the emulator does not have tex2D")
    wrong = KernelSource(KERNEL % "a[0] = unheard_of;", None, "kernel.cu")
    with pytest.raises(CompileError) as caught:
        RawModule(code=str(wrong)).compile()
    problem = _compile_problem(caught.value, wrong)
    assert problem["line"] == 2 and "    2 |" in problem["error"] and "undefined" in problem["error"]


@pytest.mark.parametrize(
    ("body", "line", "said"),
    [
        ("float x = 1\n    a[0] = x;\n}", 2, 'k.cu(2): error: expected a ";" at the end of this line'),
        ("a[0] = 1   // the last one\n\n}", 2, 'k.cu(2): error: expected a ";" at the end of this line'),
        ("for (int i = 0; i < 1; i++)\n    a[0] = 1 a[1] = 2;\n}", 3, 'k.cu(3): error: expected a ";"'),
        ("a[0] = 1;", 1, 'k.cu: error: expected a "}" for the "{" of this line'),
    ],
)
def test_a_missing_semicolon_or_bracket_is_where_it_should_stand(body, line, said):
    source = KernelSource(f'extern "C" __global__ void k(float* a) {{\n    {body}\n', Path("k.cu"), "k.cu")
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_kernel(source)
    problem = _compile_problem(caught.value, source)
    assert problem["line"] == line and problem["error"].startswith(f"{said}\n{line:6d} | ")
