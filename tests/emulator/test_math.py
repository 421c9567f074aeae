"""Functions of CUDA that C++ does not have, and those that it has, against PyTorch and Python."""

import pytest
import torch


def evaluate(run_kernel, expressions, parameters, arguments, dtype):
    """out[row] = expression, for 64 threads: each expression sees the parameters at the thread's index."""
    out = torch.zeros(len(expressions), 64, dtype=dtype)
    element = {torch.float32: "float", torch.float64: "double", torch.int64: "long long"}[dtype]
    lists = "".join(f", const {type_}* {name}_" for type_, name in parameters)
    loads = "".join(f"{type_} {name} = {name}_[threadIdx.x]; " for type_, name in parameters)
    stores = "".join(f"out[{64 * row} + threadIdx.x] = {e};\n" for row, e in enumerate(expressions))
    run_kernel(
        f'extern "C" __global__ void k({element}* out{lists}) {{ {loads}\n{stores} }}', (1,), (64,), (out, *arguments)
    )
    return out


FLOATS = {
    "expf(x)": torch.exp,
    "__expf(x)": torch.exp,
    "exp2f(x)": torch.exp2,
    "logf(y)": torch.log,
    "__logf(y)": torch.log,
    "log2f(y)": torch.log2,
    "log1pf(y)": torch.log1p,
    "sqrtf(y)": torch.sqrt,
    "rsqrtf(y)": torch.rsqrt,
    "__frcp_rn(y)": torch.reciprocal,
    "fabsf(x)": torch.abs,
    "abs(x)": torch.abs,
    "floorf(x)": torch.floor,
    "ceilf(x)": torch.ceil,
    "rintf(x)": torch.round,
    "nearbyintf(x)": torch.round,
    "truncf(x)": torch.trunc,
    "tanhf(x)": torch.tanh,
    "erff(x)": torch.erf,
    "sinf(x)": torch.sin,
    "__cosf(x)": torch.cos,
    "__saturatef(x)": lambda x: x.clamp(0, 1),
    "ldexpf(x, 3)": lambda x: 8 * x,
    "(float)__float2int_rn(x)": torch.round,
    "(float)lrintf(x)": torch.round,
    "(float)__float2int_rd(x)": torch.floor,
    "__int_as_float(__float_as_int(x))": lambda x: x,
    "fma(x, x, 1.0f)": lambda x: (x.double() * x.double() + 1).float(),
}


def test_functions_of_a_float(compiler, run_kernel):
    x, y = torch.linspace(-8, 8, 64), torch.linspace(0.01, 40, 64)
    out = evaluate(run_kernel, FLOATS, [("float", "x"), ("float", "y")], (x, y), torch.float32)
    for row, (expression, function) in zip(out, FLOATS.items(), strict=True):
        expected = function(y if "(y)" in expression else x)
        assert torch.allclose(row, expected, rtol=3e-7, atol=1e-7), expression


def test_max_and_min_of_floats_drop_a_nan(run_kernel):
    x = torch.full((64,), float("nan"))
    out = evaluate(
        run_kernel, ["fmaxf(x, 1.0f)", "fminf(1.0f, x)", "max(x, 2.0f)"], [("float", "x")], (x,), torch.float32
    )
    assert out[:, 0].tolist() == [1, 1, 2]


def test_products_and_sums_are_not_contracted(each_compiler, run_kernel):
    """The same bits with every compiler: a * b + c rounds twice."""
    a, b, c = torch.randn(3, 64)
    parameters = [("float", "a"), ("float", "b"), ("float", "c")]
    (found,) = evaluate(run_kernel, ["a * b + c"], parameters, (a, b, c), torch.float32)
    assert torch.equal(found, (a * b) + c)


def signed(n, bits=32):
    n &= (1 << bits) - 1
    return n - (1 << bits) if n >> (bits - 1) else n


INTEGERS = {
    "__popc(a)": lambda a, b: (a & 0xFFFFFFFF).bit_count(),
    "__clz(a)": lambda a, b: 32 - (a & 0xFFFFFFFF).bit_length(),
    "__ffs(a)": lambda a, b: (a & -a).bit_length() if a else 0,
    "(int)__brev(a)": lambda a, b: signed(int(f"{a & 0xFFFFFFFF:032b}"[::-1], 2)),
    "__mulhi(a, b)": lambda a, b: (a * b) >> 32,
    "(int)__umulhi(a, b)": lambda a, b: signed(((a & 0xFFFFFFFF) * (b & 0xFFFFFFFF)) >> 32),
    "(int)__funnelshift_l(a, b, 5)": lambda a, b: signed((b << 5) | ((a & 0xFFFFFFFF) >> 27)),
    "(int)__funnelshift_r(a, b, 5)": lambda a, b: signed((b << 27) | ((a & 0xFFFFFFFF) >> 5)),
    "(int)__byte_perm(a, b, 0x7210)": lambda a, b: signed((a & 0xFFFFFF) | (b & 0xFF000000)),
    "min(a, b)": min,
    "max(a, b)": max,
    "(int)umax(a, b)": lambda a, b: max(a, b, key=lambda n: n & 0xFFFFFFFF),
    "abs(a)": lambda a, b: abs(a),
}


def test_integer_intrinsics(compiler, run_kernel):
    generator = torch.Generator().manual_seed(8)
    a, b = torch.randint(-(2**31) + 1, 2**31, (2, 64), generator=generator, dtype=torch.int64).int()
    a[:4] = torch.tensor([0, 1, -1, 2**31 - 1])
    out = evaluate(run_kernel, INTEGERS, [("int", "a"), ("int", "b")], (a, b), torch.int64)
    for row, (expression, function) in zip(out.tolist(), INTEGERS.items(), strict=True):
        assert row == [function(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)], expression


@pytest.mark.parametrize("name", ["float4", "int4", "double2", "uchar4", "short2"])
def test_vectors_have_the_size_and_alignment_of_cuda(name, run_kernel):
    size, alignment = {"float4": (16, 16), "int4": (16, 16), "double2": (16, 16), "uchar4": (4, 4), "short2": (4, 4)}[
        name
    ]
    (found,) = evaluate(run_kernel, [f"100 * sizeof({name}) + alignof({name})"], [], (), torch.int64)
    assert found[0] == 100 * size + alignment
