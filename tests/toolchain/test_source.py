"""What is read off a `.cu` file: its text, its kernels, their parameters, its header."""

import copy
import pickle

import pytest
import torch

from course_utils.cuda import RawModule
from course_utils.toolchain import source
from course_utils.toolchain.source import (
    KernelSource,
    blank_comments,
    compile_options,
    find_kernels,
    kernel_names,
    macro_kernels,
    read_kernel,
    required_architecture,
    source_name,
    split_outside_brackets,
)


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """A kernels/ folder with two files."""
    (tmp_path / "01_attention_basics").mkdir()
    for name in ("scores.cu", "softmax.cu"):
        (tmp_path / "01_attention_basics" / name).write_text(f"// {name} — für alle\n")
    monkeypatch.setattr(source, "KERNELS", tmp_path)
    return tmp_path


# ---- reading


def test_a_kernel_file_is_a_string_that_remembers_its_path(kernels):
    source = read_kernel("01_attention_basics/scores.cu")
    assert source == "// scores.cu — für alle\n" and isinstance(source, str)
    assert source.path == kernels / "01_attention_basics/scores.cu"
    assert source.name == source_name(source) == "01_attention_basics/scores.cu"
    assert source_name("some text") == "kernel.cu"


def test_a_file_elsewhere_is_read_by_its_path(kernels, tmp_path_factory):
    path = tmp_path_factory.mktemp("exercise") / "mine.cu"
    path.write_text("// mine\n")
    assert read_kernel(path).path == path and read_kernel(str(path)) == "// mine\n"


def test_a_mark_of_utf_8_and_bytes_of_other_encodings_are_no_matter(tmp_path):
    code = '#include "a.cuh"\n__global__ void k(float* x) { x[0] = A; }  // für\n'
    (tmp_path / "a.cuh").write_bytes("#define A 1  // für\n".encode("latin-1"))
    for encoding in ("utf-8-sig", "latin-1", "gbk"):
        (tmp_path / "a.cu").write_bytes(code.replace("\n", "\r\n").encode(encoding, errors="ignore"))
        RawModule(code=read_kernel(tmp_path / "a.cu")).compile()


def test_a_missing_file_is_an_error_that_suggests_similar_names(kernels):
    with pytest.raises(FileNotFoundError) as caught:
        read_kernel("01_attention_basics/score.cu")
    message = str(caught.value)
    assert "'01_attention_basics/score.cu'" in message and str(kernels) in message
    assert "did you mean one of 01_attention_basics/scores.cu" in message


def test_a_name_like_no_other_lists_the_files_there_are(kernels):
    with pytest.raises(FileNotFoundError, match=r"01_attention_basics/scores\.cu, 01_attention_basics/softmax\.cu"):
        read_kernel("zzz")


def test_a_folder_is_no_kernel_file(kernels):
    with pytest.raises(FileNotFoundError):
        read_kernel("01_attention_basics")


@pytest.fixture
def changed(kernels):
    """A diff of one of the files, beside it in broken/."""
    diff = kernels / "01_attention_basics/broken/loud.diff"
    diff.parent.mkdir()
    diff.write_text(
        "# loud.cu — scores.cu broken on purpose\n"
        "--- a/kernels/01_attention_basics/scores.cu\n+++ b/kernels/01_attention_basics/scores.cu\n"
        "@@ -1 +1 @@\n-// scores.cu — für alle\n+// scores.cu — FÜR ALLE\n",
        encoding="utf-8",
    )
    return diff


def test_a_kernel_that_is_a_diff_is_read_as_the_changed_kernel(changed, kernels):
    source = read_kernel("01_attention_basics/broken/loud.cu")
    assert source == "// scores.cu — FÜR ALLE\n" and isinstance(source, KernelSource)
    assert (source.path, source.name) == (changed, "01_attention_basics/broken/loud.cu")
    assert read_kernel(changed.with_suffix(".cu")) == source  # by its path, as any file
    assert kernel_names() == [
        "01_attention_basics/broken/loud.cu",
        "01_attention_basics/scores.cu",
        "01_attention_basics/softmax.cu",
    ]
    with pytest.raises(FileNotFoundError, match=r"did you mean one of 01_attention_basics/broken/loud\.cu"):
        read_kernel("01_attention_basics/broken/load.cu")


def test_a_file_comes_before_a_diff_of_the_same_name(changed):
    changed.with_suffix(".cu").write_text("// whole\n")
    assert read_kernel("01_attention_basics/broken/loud.cu") == "// whole\n"


def test_a_diff_of_an_edited_kernel_or_of_none_is_an_error_that_names_both(changed, kernels):
    (kernels / "01_attention_basics/scores.cu").write_text("// edited\n")
    with pytest.raises(ValueError, match=rf"{changed} no longer applies: expects .* from line 1 of .*/scores\.cu"):
        read_kernel("01_attention_basics/broken/loud.cu")
    (kernels / "01_attention_basics/scores.cu").unlink()
    with pytest.raises(
        FileNotFoundError, match=rf"{changed} changes {kernels}/.*/scores\.cu, and there is no such file"
    ):
        read_kernel("01_attention_basics/broken/loud.cu")


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda source: pickle.loads(pickle.dumps(source))])
def test_a_source_can_be_copied_and_pickled(duplicate, kernels):
    source = read_kernel("01_attention_basics/scores.cu")
    other = duplicate(source)
    assert isinstance(other, KernelSource) and (other, other.path, other.name) == (source, source.path, source.name)


# ---- kernels and parameters


def signature(code):
    (kernel,) = find_kernels(code).values()
    return kernel.name, [(p.type, p.name, p.pointer, p.const) for p in kernel.parameters]


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        ("float* out", ("float", "out", True, False)),
        ("const float *a", ("float", "a", True, True)),
        ("float const* a", ("float", "a", True, True)),
        ("float* const a", ("float", "a", True, False)),
        ("const float* __restrict__ a", ("float", "a", True, True)),
        ("const __nv_bfloat16 *__restrict__ a", ("__nv_bfloat16", "a", True, True)),
        ("float a[]", ("float", "a", True, False)),
        ("const float* const __restrict__ a", ("float", "a", True, True)),
        ("float*", ("float", "", True, False)),
        ("const float a[16]", ("float", "a", True, True)),
        ("int n", ("int", "n", False, False)),
        ("const int n", ("int", "n", False, True)),
        ("unsigned   long  long n", ("unsigned long long", "n", False, False)),
        ("float scale = 1.0f", ("float", "scale", False, False)),
        ("const __grid_constant__ Shape shape", ("Shape", "shape", False, True)),
        ("struct Shape shape", ("Shape", "shape", False, False)),
        ("std::pair<int, float> p", ("std::pair<int, float>", "p", False, False)),
        ("volatile int* flag", ("int", "flag", True, False)),
    ],
)
def test_the_types_of_parameters(parameter, expected):
    assert signature(f"__global__ void k({parameter}) {{}}") == ("k", [expected])


@pytest.mark.parametrize("parameter", ["float** rows", "float* rows[]", "const float* const* rows"])
def test_a_pointer_to_pointers_is_not_a_pointer_to_its_type(parameter):
    _, [(type_, _, pointer, _)] = signature(f"__global__ void k({parameter}) {{}}")
    assert not pointer and "*" in type_


@pytest.mark.parametrize("parameters", ["", "  ", "void"])
def test_a_kernel_may_take_nothing(parameters):
    assert signature(f"__global__ void k({parameters}) {{}}") == ("k", [])


@pytest.mark.parametrize(
    "head",
    [
        'extern "C" __global__ void',
        "static __global__ void",
        "__global__ static void",
        'extern "C" __global__ void __launch_bounds__(256, 2)',
        'extern "C" __global__ __launch_bounds__(THREADS * (2 + 1)) void',
        "__global__ void\n__launch_bounds__(\n    64\n)\n",
        "__global__ __attribute__((used)) void",
    ],
)
def test_a_kernel_is_found_behind_its_attributes(head):
    assert signature(f"{head} scores(int n) {{ }}") == ("scores", [("int", "n", False, False)])


def test_parameters_spread_over_lines_with_comments():
    code = """__global__ void k(
        const float* a,   // [B, H, L, d], contiguous
        /* how many, in all */ int n
    ) { }"""
    assert [name for _, name, _, _ in signature(code)[1]] == ["a", "n"]


def test_a_kernel_knows_its_line_and_its_body():
    code = "\n\n__device__ int f() { return 1; }\n__global__ void k() { if (1) { return; } }\nint after;"
    kernel = find_kernels(code)["k"]
    assert kernel.line == 4 and [code[a : b + 1] for a, b in kernel.bodies] == ["{ if (1) { return; } }"]


def test_templates_are_marked():
    kernels = find_kernels(
        "template <typename T, int N = (3 > 2)>\n__global__ void t(T* x) {}\n"
        "template <int N> struct S {};\n__global__ void k() {}"
    )
    assert kernels["t"].template and not kernels["k"].template


def test_kernels_in_comments_strings_and_macros_are_none():
    code = """
    // __global__ void a() {}
    /* __global__ void b() {} */
    const char* s = "__global__ void c() {}";
    #define KERNEL(T) \\
        __global__ void k_##T(T* x) \\
        {}
    __global__ void real() {}
    """
    assert list(find_kernels(code)) == ["real"]


def test_a_macro_may_stand_for_global_but_not_write_the_kernel():
    code = (
        '#define GLOBAL __global__\n#define EXPORT extern "C" GLOBAL void\n#define HOST static inline\n'
        "#define UNARY(NAME) \\\n    __global__ void NAME##_kernel(float* x) { x[0] = 1; }\n"
        "#define BOTH UNARY(a) UNARY(b)\n"
        "template <int N> GLOBAL void __launch_bounds__(N) t(float* x) {}\nEXPORT k(int* x) { x[0] = 2; }\nUNARY(c)\n"
    )
    assert {name: kernel.template for name, kernel in find_kernels(code).items()} == {"t": True, "k": False}
    assert macro_kernels(code) == ["UNARY", "BOTH"] and macro_kernels("__global__ void k() {}") == []
    x = torch.zeros(1, dtype=torch.int32)
    RawModule(code=code, name_expressions=("t<32>",)).get_function("k")((1,), (1,), (x,))
    assert x.item() == 2


def test_a_declaration_gives_way_to_the_definition():
    code = "__global__ void k(float* a);\n__global__ void k(float* b) {}\n__global__ void k(float* c);"
    kernel = find_kernels(code)["k"]
    assert kernel.parameters[0].name == "b" and kernel.line == 2 and kernel.other_line is None


def test_definitions_of_one_kernel_are_compared():
    same = "#if A\n__global__ void k(float* a) {}\n#else\n__global__ void k(float* b) {}\n#endif"
    assert len(find_kernels(same)["k"].bodies) == 2 and find_kernels(same)["k"].other_line is None
    assert find_kernels(same.replace("float* b", "half* b"))["k"].other_line == 2


def test_unfinished_code_is_read_without_an_error():
    for code in (
        "__global__",
        "__global__ void",
        "__global__ void k(",
        "__global__ void k(int n",
        "__global__ void k() {",
    ):
        find_kernels(code)


# ---- header


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("// arch: sm_80", ("sm_80", False)),
        ("// arch   sm_80", ("sm_80", False)),
        ("// arch: sm_90a only", ("sm_90a", True)),
        (" * arch: sm_120", ("sm_120", False)),
        ("// no word of it", ("sm_75", False)),
        ("int x; // arch: sm_90", ("sm_75", False)),
    ],
)
def test_the_architecture_stands_in_the_header(line, expected):
    found = required_architecture(f"// title\n{line}\n__global__ void k() {{}}")
    assert (str(found), found.exact) == expected


def test_the_options_stand_in_the_header():
    assert compile_options("// options: -DD=32 -DB=1 | -DD=64") == [("-DD=32", "-DB=1"), ("-DD=64",)]
    assert compile_options("// nothing") == [()]


# ---- helpers


def test_comments_become_spaces_and_strings_too_unless_wanted():
    code = 'int a; // x\nchar c = \'"\'; /* y\n z */ const char* s = "// no\\" comment";'
    plain = blank_comments(code)
    assert len(plain) == len(code) and plain.count("\n") == code.count("\n")
    assert not set("xyz") & set(plain) and "no" not in plain and "int a;" in plain
    assert "// no" in blank_comments(code, strings=False)


def test_text_is_split_where_no_bracket_or_string_is_open():
    assert split_outside_brackets('f(a, b), "x, y", c[1, 2]') == ["f(a, b)", ' "x, y"', " c[1, 2]"]
    assert split_outside_brackets("T<a, b>, c", brackets="<>") == ["T<a, b>", " c"]
