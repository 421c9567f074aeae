"""cuda_fp16.h, cuda_bf16.h and cuda_fp8.h declare on the emulator what NVIDIA's headers of these names declare."""

import math
import re
import struct
from fractions import Fraction

import pytest
import torch
from cuda.pathfinder import find_nvidia_header_directory

from course_utils.cuda import RawModule
from course_utils.toolchain.nvrtc import compile_kernel

OLD = re.compile(r"_DEPRECATED__")  # shuffles without a mask, which no architecture since sm_70 has
HEADERS = {"cuda_fp16.h": "half", "cuda_bf16.h": "bfloat16", "cuda_fp8.h": "fp8"}


def declarations(header):
    """(result, name, types of the parameters) of each function that NVIDIA's header declares."""
    folder = find_nvidia_header_directory("cudart")
    with open(f"{folder}/{header}", encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/|//[^\n]*|^\s*#[^\n]*", " ", file.read(), flags=re.DOTALL | re.MULTILINE)
    found = []
    for declared in re.findall(r"__CUDA_(?:HOSTDEVICE_)?(?:FP16|BF16|FP8)_DECL__\s+([^;{]*?\))\s*[;{]", text):
        if OLD.search(declared):
            continue
        result, name, parameters = re.fullmatch(r"(.*?)\s*(\w+)\s*\((.*)\)", " ".join(declared.split())).groups()
        types = [re.sub(r"\s*=.*$", "", parameter) for parameter in parameters.split(",")]
        found.append((result, name, [re.match(r"(.*?[\s*])(?:const )?\w+$", each)[1].strip() for each in types]))
    return found


@pytest.mark.parametrize("header", HEADERS)
def test_every_function_of_nvidias_header_is_there_with_its_types(header):
    declared = declarations(header)
    assert len(declared) > 15 and any(HEADERS[header] in name for _, name, _ in declared)
    checks = [
        f'static_assert(same<decltype({name}({", ".join(f"value<{t}>()" for t in types)})), {result}>, "{name}");'
        for result, name, types in declared
    ]
    RawModule(
        code=f"#include <{header}>\n"
        "template <class A, class B> constexpr bool same = false;\n"
        "template <class A> constexpr bool same<A, A> = true;\n"
        "template <class T> __device__ T value();\n" + "\n".join(checks) + "\n__global__ void k() {}"
    ).compile()


TYPES = {torch.float16: ("__half", "half"), torch.bfloat16: ("__nv_bfloat16", "bfloat16")}
EDGES = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1.5,
    2.5,
    -2.5,
    127.5,
    255.0,
    300.0,
    -300.0,
    32767.0,
    40000.0,
    -65504.0,
    3e10,
    -3e38,
)
CANONICAL_NAN = 0x7FFF
INTEGERS = {  # in the names of functions: the type, its bits, and whether it has a sign
    "short": ("short", 16, 1),
    "ushort": ("unsigned short", 16, 0),
    "int": ("int", 32, 1),
    "uint": ("unsigned", 32, 0),
    "ll": ("long long", 64, 1),
    "ull": ("unsigned long long", 64, 0),
}


def values(dtype, seed):
    """256 numbers of the type: edges, infinities, NaN, subnormals and random patterns."""
    info = torch.finfo(dtype)
    special = [*EDGES, math.inf, -math.inf, math.nan, info.tiny, info.smallest_normal * info.eps, -info.tiny, info.max]
    patterns = torch.randint(-32768, 32768, (256 - len(special),), generator=torch.Generator().manual_seed(seed))
    found = torch.cat([torch.tensor(special, dtype=torch.float64).to(dtype), patterns.to(torch.int16).view(dtype)])
    return found[torch.randperm(256, generator=torch.Generator().manual_seed(seed + 1))]


def rounded(x, dtype, direction="rn"):
    """x as a number of the type; its bits, as a GPU has them."""
    if math.isnan(x):
        return CANONICAL_NAN
    near = torch.tensor(x, dtype=torch.float64).to(dtype)  # torch goes by way of fp32: mended below
    if math.isfinite(x):
        near = min(_neighbours(near), key=lambda y: (abs(Fraction(_finite(y)) - Fraction(x)), y.view(torch.int16) & 1))
        if direction != "rn":
            fits = {"rz": lambda y: abs(y) <= abs(x), "rd": lambda y: y <= x, "ru": lambda y: y >= x}[direction]
            inside = [y for y in _neighbours(near) if fits(float(y))]
            near = min(inside, key=lambda y: abs(_finite(y) - x))
    bits = near.view(torch.int16).item() & 0xFFFF
    return bits | 0x8000 if x == 0 and math.copysign(1, x) < 0 or x < 0 else bits & 0x7FFF


def _neighbours(y):
    return [torch.nextafter(y, torch.full_like(y, end)) for end in (-math.inf, math.inf)] + [y]


def _finite(y):
    """A number for what stands behind the largest of a type: as far from it as that is from the one before."""
    if math.isfinite(y):
        return float(y)
    largest = torch.tensor(torch.finfo(y.dtype).max, dtype=y.dtype)
    step = float(largest) - float(torch.nextafter(largest, torch.zeros_like(largest)))
    return math.copysign(float(largest) + step, y)


def integer(x, bits, signed):
    """What cvt makes of x, which is whole or no number."""
    if math.isnan(x):
        return 1 << 63 if bits == 64 else 0
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return int(max(low, min(high, x))) if math.isfinite(x) else high if x > 0 else low


@pytest.mark.parametrize("dtype", TYPES)
def test_functions_give_the_bits_that_the_documents_say(dtype, run_kernel):
    a, b, c = (values(dtype, seed) for seed in (1, 3, 5))
    x, y, z = ([float(v) for v in t] for t in (a, b, c))
    pairs, triples = list(zip(x, y, strict=True)), list(zip(x, y, z, strict=True))
    name, word = TYPES[dtype]
    whole = {"rn": round, "rz": math.trunc, "rd": math.floor, "ru": math.ceil}

    def is_nan(*numbers):
        return any(map(math.isnan, numbers))

    def whole_number(number, direction):
        return float(whole[direction](number)) if math.isfinite(number) else number

    def saturated(number):
        return 0.0 if math.isnan(number) else min(max(number, 0.0), 1.0)

    def larger(p, q):
        return q if math.isnan(p) else p if math.isnan(q) else max(p, q, key=lambda v: (v, math.copysign(1, v)))

    def exact(p, q, r=-0.0):
        if not all(map(math.isfinite, (p, q, r))):
            return float(torch.tensor(p, dtype=torch.float64) * q + r)
        total = Fraction(p) * Fraction(q) + Fraction(r)
        if total == 0:
            return p * q + r
        near = float(total)  # an inexact one is odd, so that it is rounded once only
        if Fraction(near) != total and struct.unpack("<q", struct.pack("<d", near))[0] % 2 == 0:
            near = math.nextafter(near, math.inf if total > Fraction(near) else -math.inf)
        return near

    cases = {}  # expression -> the 64 bits of each thread
    for mode in whole:
        cases[f"as_bits(__float2{word}_{mode}(f))"] = [rounded(v * 1.0009765625, dtype, mode) for v in x]
        for integers, (kind, bits, signed) in INTEGERS.items():
            cases[f"__{word}2{integers}_{mode}(a)"] = [integer(whole_number(v, mode), bits, signed) for v in x]
            wide = [((i * 0x9E3779B97F4A7C15 & (1 << 64) - 1) >> i % 48) & (1 << bits) - 1 for i in range(256)]
            wide = [v - (v >> bits - 1 << bits) * signed for v in wide]
            expression = f"as_bits(__{integers}2{word}_{mode}(({kind})((i * 0x9E3779B97F4A7C15ull) >> i % 48)))"
            cases[expression] = [_of_whole(v, dtype, mode) for v in wide]
    cases |= {
        f"__{word}2char_rz(a)": [integer(whole_number(v, "rz"), 8, 1) for v in x],
        f"__{word}2uchar_rz(a)": [integer(whole_number(v, "rz"), 8, 0) for v in x],
        f"as_bits(__double2{word}(1.0000000001 * (double)(float)a))": [rounded(v * 1.0000000001, dtype) for v in x],
        "as_bits(hrint(a))": [rounded(math.copysign(whole_number(v, "rn"), v), dtype) for v in x],
        "as_bits(__hadd_sat(a, b))": [rounded(saturated(exact(p, 1.0, q)), dtype) for p, q in pairs],
        "as_bits(__hmul(a, b))": [rounded(exact(p, q), dtype) for p, q in pairs],
        "as_bits(__hmax(a, b))": [rounded(larger(p, q), dtype) for p, q in pairs],
        "as_bits(__hmin(a, b))": [rounded(-larger(-p, -q), dtype) for p, q in pairs],
        "as_bits(__hmax_nan(a, b))": [rounded(math.nan if is_nan(p, q) else larger(p, q), dtype) for p, q in pairs],
        "as_bits(__hfma(a, b, c))": [rounded(exact(*v), dtype) for v in triples],
        "as_bits(__hfma_relu(a, b, c))": [
            rounded(math.nan if is_nan(exact(*v)) else max(exact(*v), 0.0), dtype) for v in triples
        ],
        "__hltu(a, b)": [is_nan(p, q) or p < q for p, q in pairs],
        "__hne(a, b)": [not is_nan(p, q) and p != q for p, q in pairs],
        "a != b": [p != q for p, q in pairs],
        "__hge2_mask(make(a, b), make(b, a))": [0xFFFF * (p >= q) | 0xFFFF0000 * (q >= p) for p, q in pairs],
        "__hisinf(a)": [math.isinf(v) * int(math.copysign(1, v)) for v in x],
    }
    stores = "\n".join(f"out[{256 * n} + i] = (long long)({expression});" for n, expression in enumerate(cases))
    out = torch.zeros(len(cases), 256, dtype=torch.int64)
    run_kernel(
        f"""#include <cuda_fp16.h>\n#include <cuda_bf16.h>
        __device__ unsigned short as_bits({name} x) {{ return __{word}_as_ushort(x); }}
        extern "C" __global__ void k(const {name}* a_, const {name}* b_, const {name}* c_, long long* out) {{
            const int i = threadIdx.x;
            const {name} a = a_[i], b = b_[i], c = c_[i];
            const float f = 1.0009765625f * (float)a;
            auto make = []({name} low, {name} high) {{ return __halves2{word}2(low, high); }};
            {stores}
        }}""",
        (1,),
        (256,),
        (a, b, c, out),
    )
    wrong = []
    for expression, found, expected in zip(cases, out.tolist(), cases.values(), strict=True):
        bad = [i for i in range(256) if (found[i] - int(expected[i])) % (1 << 64)]
        if bad:
            i = bad[0]
            wrong.append(
                f"{expression}: {len(bad)} wrong, {x[i]}, {y[i]}, {z[i]} give {found[i]:#x}, not {expected[i]:#x}"
            )
    assert not wrong, "\n".join(wrong)


def _of_whole(v, dtype, mode):
    """The bits of an integer, which a double may not hold: an inexact one is made odd."""
    near = float(v)
    if int(near) != v and int(near / 2.0 ** max(abs(v).bit_length() - 53, 0)) % 2 == 0:
        near = math.nextafter(near, math.inf if v > near else -math.inf)
    return rounded(near, dtype, mode)


STATEMENTS = """
    T a = 1.5f, b = 2.5, c = 3, d = 4u, e = 5ll, f = (unsigned short)6, g = 7ul, h(static_cast<T>(8.0f));
    const T constant = a;
    float as_float = a; double as_double = a; int whole = a; unsigned char byte = a; long long wide = a; bool is = a;
    float product = 2.0f * float(a) + static_cast<float>(b); if (a) whole++; if (!a) whole--;
    a += b; a -= 1.5f; a *= 2; a /= c; a++; ++a; a--; --a;
    b = +a; b = -constant; b = a++; c = a * b + c / d - e;
    a = 1.0f; a = 2.0; a = 3; a = 4u; a = 5ll; is = a < b || a > b || a <= b || a >= b || a == b || a != b;
    T2 p(a, b), q = p, r = {a, b}, s{a, b}; p.x = q.y; p.y = 1.0f; q = p + r; q = p - r; q *= p / r; q = -p; q = +p;
    p++; --p;
    is = p < q || p > q || p <= q || p >= q || p == q || p != q;
    Raw raw = a; a = raw; T from_raw(raw); raw.x = 0x3c00; Raw2 raw2 = p; p = raw2;
    T2 pair_from_raw(raw2); raw2.y = 1;
    volatile T kept; kept = raw; raw = kept; T array[4] = {1.0f, 2.0f, a, b}; T2 pairs[2] = {}; T zero = T(), other{};
    a = fmaxf(a, b); a = min(float(a), 1.0f); a = sqrtf(a); a = T(1) / T(3); a = whole ? a : b;
    switch ((int)a) { case 0: break; }
    a = __shfl_xor_sync(~0u, a, 1); p = __shfl_down_sync(~0u, p, 1); p = __shfl_sync(~0u, p, 0);
    a = __shfl_up_sync(~0u, a, 1);
    __shared__ T tile[4]; __shared__ T2 tiles[4]; tile[0] = a; tiles[0] = p; atomicAdd(tile, a); atomicAdd(tiles, p);
    const auto sum = a + b; static_assert(sizeof(T) == 2 && sizeof(T2) == 4 && alignof(T2) == 4);
"""
OTHER_TYPES = {"__half": "__nv_bfloat16", "__nv_bfloat16": "__half"}


def with_statements(code):
    """A kernel for either type around the code, where T, T2, Raw, Raw2 and Other are types."""
    kernels = (
        f"""__global__ void k{n}() {{ typedef {t} T; typedef {t}2 T2; typedef {t}_raw Raw; typedef {t}2_raw Raw2;
        typedef {OTHER_TYPES[t]} Other; {code} }}\n"""
        for n, t in enumerate(OTHER_TYPES)
    )
    return "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n" + "".join(kernels)


def test_what_nvrtc_takes_of_operators_and_conversions_the_emulator_takes():
    code = with_statements(STATEMENTS + "Other y(a); T z = (T)y; y = static_cast<Other>(a);")
    compile_kernel(code, "sm_80")
    RawModule(code=code).compile()


REFUSED = ("a * 2.0f", "2 + a", "a == 0.0f", "a < 1", "p * a", "p + 1.0f", "a % b", "a + other")


def test_what_is_ambiguous_in_cuda_is_so_here():
    """The types must say so themselves: they decide which overload of a learner's function is called."""
    templates = "".join(
        f"template <class T, class T2, class Other> __device__ constexpr auto takes{n}(T a, T b, T2 p, Other other)"
        f" -> decltype(void({expression}), true) {{ return true; }}\n"
        f"__device__ constexpr bool takes{n}(...) {{ return false; }}\n"
        for n, expression in enumerate(REFUSED)
    )
    asks = "".join(f'static_assert(!takes{n}(T(), T(), T2(), Other()), "{e}");' for n, e in enumerate(REFUSED))
    code = templates + with_statements(asks)
    code = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n" + code
    compile_kernel(code, "sm_80")
    RawModule(code=code).compile()


@pytest.mark.parametrize(("kind", "dtype"), [("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)])
def test_numbers_of_8_bits_are_those_of_torch(kind, dtype, run_kernel):
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    largest = torch.finfo(dtype).max
    x = torch.linspace(-1.2 * largest, 1.2 * largest, 256)
    x[:64] *= 1e-5
    widened, narrowed = torch.zeros(256), torch.zeros(256, dtype=torch.uint8)
    run_kernel(
        f"""#include <cuda_fp8.h>
        extern "C" __global__ void
        k(const __nv_fp8_{kind}* codes, const float* x, float* widened, __nv_fp8_{kind}* narrowed) {{
            const int i = threadIdx.x;
            widened[i] = float(codes[i]);
            if (i < 128) narrowed[i] = __nv_fp8_{kind}(x[i]);
            else if (i % 4 == 0) ((__nv_fp8x4_{kind}*)narrowed)[i / 4] = __nv_fp8x4_{kind}(((const float4*)x)[i / 4]);
        }}""",
        (1,),
        (256,),
        (codes, x, widened, narrowed),
    )
    assert torch.equal(widened.nan_to_num(1e9), codes.view(dtype).float().nan_to_num(1e9))
    assert torch.equal(narrowed, x.clamp(-largest, largest).to(dtype).view(torch.uint8))
