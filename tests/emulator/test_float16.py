"""half and bfloat16 give the bits that PyTorch gives."""

from fractions import Fraction

import pytest
import torch

TYPES = {torch.float16: "half", torch.bfloat16: "__nv_bfloat16"}
HEADERS = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
BLOCK = 256


def same_bits(found, expected):
    """Equal bit for bit, but for the payload of a NaN."""
    assert found.dtype == expected.dtype and found.shape == expected.shape
    integer = {2: torch.int16, 4: torch.int32}[found.element_size()]
    equal = found.view(integer) == expected.view(integer)
    return bool((equal | (found.isnan() & expected.isnan())).all())


def all_patterns(dtype):
    return torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(dtype)


def elementwise(run_kernel, dtype, arguments, expression):
    """Launches `out = expression` over all elements: `arguments` are named a, b and c."""
    parameters = ", ".join(f"const {TYPES.get(a.dtype, 'float')}* {n}_" for n, a in zip("abc", arguments, strict=False))
    loads = "".join(f"auto {n} = {n}_[i]; " for n, _ in zip("abc", arguments, strict=False))
    out = torch.zeros(len(arguments[0]), dtype=dtype)
    run_kernel(
        f"""{HEADERS}extern "C" __global__ void k({parameters}, {TYPES.get(dtype, "float")}* out) {{
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            {loads}
            out[i] = {expression};
        }}""",
        (len(out) // BLOCK,),
        (BLOCK,),
        (*arguments, out),
    )
    return out


def samples(dtype, seed):
    """Random bit patterns, so that subnormals, infinities and NaNs are among them, half of them of like size."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randint(0, 65536, (1 << 15,), generator=generator, dtype=torch.int32).to(torch.uint16).view(dtype)
    return torch.cat([patterns, torch.randn(1 << 15, generator=generator).to(dtype)])


@pytest.mark.parametrize("dtype", TYPES)
def test_every_bit_pattern_becomes_the_float_that_torch_makes_of_it(dtype, each_compiler, run_kernel):
    a = all_patterns(dtype)
    assert same_bits(elementwise(run_kernel, torch.float32, (a,), "(float)a"), a.float())


@pytest.mark.parametrize("dtype", TYPES)
def test_floats_round_to_nearest_even_as_in_torch(dtype, compiler, run_kernel):
    exact = all_patterns(dtype).float()
    bits = exact.view(torch.int32)
    half_way = 1 << (12 if dtype == torch.float16 else 15)  # half a unit in the last place of a normal number
    near = [(bits + offset).view(torch.float32) for offset in (half_way - 1, half_way, half_way + 1, 1, -1)]
    scaled = [exact * factor for factor in (0.5, 0.75, 1.5, 1e-3)]  # subnormals, and ties among them
    x = torch.cat([exact, *near, *scaled])
    function = "__float2half_rn" if dtype == torch.float16 else "__float2bfloat16_rn"
    assert same_bits(elementwise(run_kernel, dtype, (x,), f"{function}(a)"), x.to(dtype))


@pytest.mark.parametrize("operator", ["+", "-", "*", "/"])
@pytest.mark.parametrize("dtype", TYPES)
def test_arithmetic_rounds_as_in_torch(dtype, operator, compiler, run_kernel):
    a, b = samples(dtype, 1), samples(dtype, 2)
    expected = {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[operator]
    assert same_bits(elementwise(run_kernel, dtype, (a, b), f"a {operator} b"), expected)


@pytest.mark.parametrize("dtype", TYPES)
def test_fma_rounds_once(dtype, compiler, run_kernel):
    a, b, c = (torch.randn(2048, generator=torch.Generator().manual_seed(seed)).to(dtype) for seed in (3, 4, 5))
    # Sums just off the middle between two numbers: rounded to fp32 or fp64 first, half of them would go the wrong way.
    info = torch.finfo(dtype)
    a[:1024], b[:1024] = 1.5, 1 + info.eps * (1 + torch.arange(1024) % 21 * 2)
    c[:1024] = info.tiny * info.eps * c[:1024].sign()
    found = elementwise(run_kernel, dtype, (a, b, c), "__hfma(a, b, c)")
    below, above = (torch.nextafter(found, torch.full_like(found, end)) for end in (float("-inf"), float("inf")))
    even = found.view(torch.int16) % 2 == 0
    rows = [tensor.tolist() for tensor in (a, b, c, found, below, above, even)]
    for x, y, z, result, low, high, is_even in zip(*rows, strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        error, others = abs(exact - Fraction(result)), [abs(exact - Fraction(other)) for other in (low, high)]
        assert error < min(others) or (error == min(others) and is_even), (x, y, z, result)


def number_first(choose, a, b):
    """A NaN loses against a number, a signalling one too (torch.fmax asks the C library, which differs there)."""
    return torch.where(a.isnan(), b, torch.where(b.isnan(), a, choose(a, b)))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("__hmax(a, b)", lambda a, b: number_first(torch.maximum, a, b)),
        ("__hmin(a, b)", lambda a, b: number_first(torch.minimum, a, b)),
        ("__hneg(a)", lambda a, b: -a),
        ("__habs(a)", lambda a, b: a.abs()),
        ("__hge(a, b) ? a : b", lambda a, b: torch.where(a >= b, a, b)),
        ("__hne(a, b) ? a : b", lambda a, b: torch.where((a < b) | (a > b), a, b)),
        ("a < b ? a : b", lambda a, b: torch.where(a < b, a, b)),
        ("hsqrt(__habs(a))", lambda a, b: a.abs().sqrt()),
        ("hrcp(a)", lambda a, b: 1 / a),
    ],
)
@pytest.mark.parametrize("dtype", TYPES)
def test_functions_of_one_and_two_values(dtype, expression, expected, run_kernel):
    a, b = samples(dtype, 6), samples(dtype, 7)
    found, wanted = elementwise(run_kernel, dtype, (a, b), expression), expected(a, b)
    assert bool(((found == wanted) | (found.isnan() & wanted.isnan())).all())


def test_pairs_work_on_both_halves(compiler, run_kernel):
    a, b = torch.randn(64, 2).half(), torch.randn(64, 2).half()
    out = torch.zeros(5, 64, 2, dtype=torch.float16)
    run_kernel(
        f"""{HEADERS}extern "C" __global__ void k(const half2* a, const half2* b, half2* out) {{
            int i = threadIdx.x;
            half2 x = a[i], y = b[i];
            out[i] = __hadd2(x, y);
            out[64 + i] = __hmul2(x, __half2half2(y.x));
            out[128 + i] = __hfma2(x, y, -x);
            float2 f = __half22float2(x);
            out[192 + i] = __floats2half2_rn(f.y, f.x);
            x += y;
            out[256 + i] = __halves2half2(__high2half(x), __low2half(x));
        }}""",
        (1,),
        (64,),
        (a, b, out),
    )
    assert same_bits(out[0], a + b)
    assert same_bits(out[1], a * b[:, :1])
    assert same_bits(out[2], (a.double() * b.double() - a.double()).half())
    assert same_bits(out[3], a.flip(1).contiguous())
    assert same_bits(out[4], (a + b).flip(1).contiguous())


def test_bits_can_be_taken_as_an_integer_and_back(run_kernel):
    a = torch.randn(256).half()
    found = elementwise(run_kernel, torch.float16, (a,), "__ushort_as_half(__half_as_ushort(a) ^ 0x8000)")
    assert torch.equal(found, -a)


@pytest.mark.parametrize("kind", ["half", "__nv_bfloat16"])
def test_a_loop_that_reads_16_bits_from_memory_sees_what_another_thread_writes(kind, run_kernel):
    code = f"""#include <cuda_fp16.h>
    #include <cuda_bf16.h>
    extern "C" __global__ void k({kind}* flag, float* out) {{
        if (threadIdx.x == 32) *flag = ({kind})1.0f;
        if (threadIdx.x == 0) while ((float)__ldcv(flag) == 0) {{}}
        out[threadIdx.x] = 1;
    }}"""
    flag, out = torch.zeros(1, dtype=torch.float16 if kind == "half" else torch.bfloat16), torch.zeros(64)
    run_kernel(code, (1,), (64,), (flag, out))
    assert flag.item() == 1 and out.sum() == 64
