"""Whatever header, function, pragma or instruction a message names, a kernel may take: it compiles on both machines."""

import ast
import re
from pathlib import Path

import course_utils
from course_utils.cuda import RawModule
from course_utils.grading.kernel_rules import SYSTEM_HEADERS, broken_rule
from course_utils.toolchain.nvrtc import compile_kernel
from course_utils.toolchain.source import INCLUDE, KERNELS, kernel_names, read_kernel, with_headers
from tests.helpers.all_of import all_of

PACKAGE = Path(course_utils.__file__).parent
SPEAK = ("emulator", "toolchain", "grading", "puzzles", "cuda.py")  # where messages about kernels are made
FINDINGS = ("emulator/words.py",)  # they say which instruction is missing

CALLS = {
    "__activemask": "__activemask()",
    "__all_sync": "__all_sync(~0u, x)",
    "__any_sync": "__any_sync(~0u, x)",
    "__ballot_sync": "__ballot_sync(~0u, x)",
    "__match_all_sync": "__match_all_sync(~0u, x, &all)",
    "__match_any_sync": "__match_any_sync(~0u, x)",
    "__shfl_down_sync": "__shfl_down_sync(~0u, x, 1)",
    "__shfl_sync": "__shfl_sync(~0u, x, 0)",
    "__shfl_up_sync": "__shfl_up_sync(~0u, x, 1)",
    "__shfl_xor_sync": "__shfl_xor_sync(~0u, x, 1)",
    "__syncthreads": "(__syncthreads(), x)",
    "__syncwarp": "(__syncwarp(), x)",
    "__threadfence": "(__threadfence(), x)",
    "__threadfence_block": "(__threadfence_block(), x)",
    "__trap": "(x < 0 ? __trap() : (void)0, x)",
    "__uni_sync": "__uni_sync(~0u, x)",
}
PRAGMAS = {"unroll": "#pragma unroll\n", "once": ""}  # `once` is for headers
OF_A_CLUSTER = """// arch: sm_90a only
extern "C" __global__ void __cluster_dims__(2) k(int* out) {
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], 16;" :: "l"(out) : "memory");
    __shared__ unsigned long long bar;
    const unsigned at = (unsigned)__cvta_generic_to_shared(&bar);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;" :: "r"(at) : "memory");
    unsigned long long state;
    asm volatile("mbarrier.arrive.noComplete.shared::cta.b64 %0, [%1], 1;" : "=l"(state) : "r"(at) : "memory");
    out[threadIdx.x] = (int)state;
}"""
INSTRUCTION = r"(?:wgmma|fence|cp\.async|barrier|mbarrier|mma|setmaxnreg|ldmatrix|stmatrix)(?:\.\w+)+"


def messages(places=SPEAK):
    """Every string of the code that speaks of kernels, but for docstrings."""
    for place in (PACKAGE / name for name in places):
        for file in [place] if place.is_file() else sorted(place.rglob("*")):
            if file.suffix == ".py":
                tree = ast.parse(file.read_text(encoding="utf-8"))
                statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
                for node in ast.walk(tree):
                    if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
                        yield node.value
            elif file.suffix in (".cpp", ".h"):
                text = re.sub(r"^\s*#\s*include.*", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
                yield from re.findall(r'"((?:\\.|[^"\\\n])*)"', text)


def named(pattern, places=SPEAK):
    return {name for message in messages(places) for name in re.findall(pattern, message)}


def compile_on_both(code, arch="sm_80"):
    compile_kernel(code, arch)
    RawModule(code=code).compile()


def test_each_function_and_pragma_that_a_message_names():
    assert named(r"\b(__[a-z]\w+)\(\)") <= set(CALLS)
    assert named(r"#\s*pragma (\w+)") <= set(PRAGMAS)
    calls = "".join(f"    x += {call};\n" for call in CALLS.values())
    loop = PRAGMAS["unroll"] + "    for (int i = 0; i < 4; i++) x += i;\n"
    compile_on_both(f'extern "C" __global__ void k(int* out, int x) {{\n    int all;\n{calls}{loop}    *out = x;\n}}')


@all_of("header", SYSTEM_HEADERS)
def test_each_header_that_the_grader_offers(header):
    code = f"#include <{header}>\n{read_kernel('00_start_here/vector_add.cu')}"
    assert broken_rule(code) is None
    compile_on_both(code)


def test_the_headers_and_instructions_that_messages_offer_are_those_of_the_courses_kernels():
    """Which other tests compile on both machines. The course has no clusters, and needs no prefetch."""
    compile_on_both(OF_A_CLUSTER, "sm_90a")
    kernels = "\n".join([OF_A_CLUSTER, *map(with_headers, map(read_kernel, kernel_names()))])
    missing = {name for name in named(rf"(?<![\w.])({INSTRUCTION})", FINDINGS) if name not in kernels}
    assert not missing
    included = "\n".join(file.read_text(encoding="utf-8") for file in KERNELS.rglob("*.cu*"))
    for header in INCLUDE.glob("*.cuh"):
        if f'#include "{header.name}"' not in included:  # only put in to measure
            compile_on_both(f'#include "{header.name}"\n{read_kernel("00_start_here/vector_add.cu")}')
