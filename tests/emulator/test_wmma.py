"""Products of tiles by nvcuda::wmma."""

import numpy as np
import pytest
import torch

from course_utils.cuda import RawModule
from course_utils.emulator import sanitize
from course_utils.toolchain.errors import KernelError
from course_utils.toolchain.nvrtc import compile_kernel

SHAPES = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
TYPES = {  # of A and B: in the fragment, in memory, to torch
    "half": ("__half", "__half", torch.float16),
    "bf16": ("__nv_bfloat16", "__nv_bfloat16", torch.bfloat16),
    "s8": ("signed char", "signed char", torch.int8),
    "u8": ("unsigned char", "unsigned char", torch.uint8),
    "tf32": ("precision::tf32", "float", torch.float32),
    "double": ("double", "double", torch.float64),
}
SUMS = {"float": torch.float32, "__half": torch.float16, "int": torch.int32, "double": torch.float64}
LAYOUTS = (("row", "col"), ("col", "col"), ("row", "row"), ("col", "row"))
PRODUCTS = [
    *[(shape, "half", sums) for shape in SHAPES for sums in ("float", "__half")],
    *[(shape, "bf16", "float") for shape in SHAPES],
    *[(shape, kind, "int") for shape in SHAPES for kind in ("s8", "u8")],
    ((16, 16, 8), "tf32", "float"),
    ((8, 8, 4), "double", "double"),
]
CASES = [(*product, *LAYOUTS[n % 4]) for n, product in enumerate(PRODUCTS)]
ALL_CASES = [(*product, *layouts) for product in PRODUCTS for layouts in LAYOUTS]


def kernel(number, shape, kind, sums, layout_a, layout_b):
    """D = 2 (A B + C), stored by columns; `counts`: the elements of the fragments."""
    m, n, k = shape
    fragment, memory, _ = TYPES[kind]
    size = f"{m}, {n}, {k}"
    return f"""
    extern "C" __global__ void
    k{number}(const {memory}* a, const {memory}* b, const {sums}* c, {sums}* d, int* counts) {{
        fragment<matrix_a, {size}, {fragment}, {layout_a}_major> of_a;
        fragment<matrix_b, {size}, {fragment}, {layout_b}_major> of_b;
        fragment<accumulator, {size}, {sums}> of_c;
        load_matrix_sync(of_a, a, {k if layout_a == "row" else m});
        load_matrix_sync(of_b, b, {n if layout_b == "row" else k});
        load_matrix_sync(of_c, c, {n}, mem_row_major);
        mma_sync(of_c, of_a, of_b, of_c);
        for (int i = 0; i < of_c.num_elements; i++) of_c.x[i] += of_c.x[i];
        store_matrix_sync(d, of_c, {m}, mem_col_major);
        counts[0] = of_a.num_elements, counts[1] = of_b.num_elements, counts[2] = of_c.num_elements;
    }}"""


def laid_out(matrix, layout):
    return matrix.contiguous() if layout == "row" else matrix.t().contiguous()


def check_products(cases):
    code = "#include <mma.h>\nusing namespace nvcuda::wmma;\n"
    code += "".join(kernel(number, *case) for number, case in enumerate(cases))
    compile_kernel(code, "sm_80")
    module = RawModule(code=code)
    generator = torch.Generator().manual_seed(1)
    for number, ((m, n, k), kind, sums, layout_a, layout_b) in enumerate(cases):
        lowest = 0 if kind == "u8" else -8
        a, b, c = (torch.randint(lowest, 8, size, generator=generator) for size in ((m, k), (k, n), (m, n)))
        a, b, c = a.to(TYPES[kind][2]), b.to(TYPES[kind][2]), c.to(SUMS[sums])
        d, counts = torch.zeros(n, m, dtype=SUMS[sums]), torch.zeros(3, dtype=torch.int32)
        arguments = (laid_out(a, layout_a), laid_out(b, layout_b), c, d, counts)
        module.get_function(f"k{number}")((1,), (32,), arguments)
        case = cases[number]
        assert torch.equal(d.t().double(), 2 * (a.double() @ b.double() + c.double())), case
        of_operands = [16, 16] if kind == "half" else [m * k // 32, k * n // 32]
        assert counts.tolist() == [*of_operands, m * n // 32], case


def test_products_of_every_shape_and_type_are_right():
    check_products(CASES)


@pytest.mark.exhaustive("each product in all four layouts; make test has each in one of them")
def test_products_of_every_layout_are_right():
    check_products(ALL_CASES)


SMALL = """#include <mma.h>
using namespace nvcuda::wmma;
extern "C" __global__ void rounds(const float* x, float* y) { y[threadIdx.x] = __float_to_tf32(x[threadIdx.x]); }
extern "C" __global__ void copies(const __half* a, __half* out, int lanes) {
    fragment<matrix_a, 16, 16, 16, __half, row_major> of_a;
    fragment<matrix_b, 16, 16, 16, __half, col_major> one;
    fragment<accumulator, 16, 16, 16, __half> product;
    fill_fragment(one, __float2half(1.0f));
    fill_fragment(product, __float2half(0.0f));
    if (threadIdx.x < lanes) load_matrix_sync(of_a, a, 16);
    mma_sync(product, of_a, one, product);
    store_matrix_sync(out, product, 16, mem_row_major);
}
extern "C" __global__ void saturates(const signed char* a, int* sums) {
    fragment<matrix_a, 16, 16, 16, signed char, row_major> of_a;
    fragment<matrix_b, 16, 16, 16, signed char, col_major> of_b;
    fragment<accumulator, 16, 16, 16, int> most, wrapped;
    load_matrix_sync(of_a, a, 16);
    load_matrix_sync(of_b, a, 16);
    fill_fragment(most, 2147483647);
    mma_sync(wrapped, of_a, of_b, most);
    mma_sync(most, of_a, of_b, most, true);
    if (threadIdx.x == 0) sums[0] = most.x[0], sums[1] = wrapped.x[0];
}
"""


def test_tf32_rounds_to_the_nearest_and_ties_away_from_zero(run_kernel):
    x = torch.tensor([1 + 2**-11, -1 - 2**-11, 1 + 2**-11 - 2**-23, 3.5, float("inf")])
    y = torch.zeros(5)
    run_kernel(SMALL, (1,), (5,), (x, y), name="rounds")
    assert y.tolist() == [1 + 2**-10, -1 - 2**-10, 1.0, 3.5, float("inf")]


def test_sums_of_integers_wrap_or_saturate(run_kernel):
    sums = torch.zeros(2, dtype=torch.int32)
    run_kernel(SMALL, (1,), (32,), (torch.ones(256, dtype=torch.int8), sums), name="saturates")
    assert sums.tolist() == [2**31 - 1, -(2**31) + 15]


def test_the_sanitizer_sees_the_accesses_of_a_fragment():

    module = RawModule(code=SMALL)
    for rows, is_inside in ((16, True), (15, False)):
        out = torch.zeros(16, 16, dtype=torch.float16)
        with sanitize() as report:
            module.get_function("copies")((1,), (32,), (torch.ones(rows, 16, dtype=torch.float16), out, np.int32(32)))
        lines = [str(finding) for finding in report.findings]
        assert not lines if is_inside else any("load_matrix_sync(of_a, a, 16)" in line for line in lines), lines


def test_a_lane_that_is_elsewhere_stops_the_kernel(run_kernel):

    out = torch.zeros(16, 16, dtype=torch.float16)
    with pytest.raises(KernelError, match="mma_sync|load_matrix_sync"):
        run_kernel(SMALL, (1,), (32,), (torch.ones(16, 16).half(), out, np.int32(31)), name="copies")
