"""Inline PTX that follows from an instruction's name: arithmetic, conversions, comparisons, memory, lanes, and the
matrix products of every shape, each against plain Python."""

import numpy as np
import pytest
import torch

from course_utils.cuda import RawModule
from course_utils.toolchain.nvrtc import compile_kernel

BITS = 0xFFFFFFFF


def f32(x):
    return int(np.float32(x).view(np.uint32))


def signed(x):
    return x - (1 << 32) if x >> 31 else x


A, B, C = 0x80000005, 7, 0x12345678
P, Q = 2.75, -1.5
RESULTS = {  # the instruction, of which %1 to %3 are A, B, C, and %4, %5 are P, Q, and the 32 bits that it gives
    "add.u32 %0, %1, %2": A + B,
    "sub.s32 %0, %2, %1": (B - A) & BITS,
    "mul.lo.u32 %0, %1, %3": A * C & BITS,
    "mul.hi.u32 %0, %1, %3": A * C >> 32,
    "mul.hi.s32 %0, %1, %3": (signed(A) * C >> 32) & BITS,
    "mad.lo.s32 %0, %1, %2, %3": (A * B + C) & BITS,
    "add.sat.s32 %0, %1, %1": 1 << 31,
    "add.cc.u32 %0, %1, %1; addc.u32 %0, %2, %2": 2 * B + 1,
    "add.cc.s32 %0, %1, -1; addc.cc.s32 %0, -1, 0; addc.u32 %0, 0, 0": 1,  # each carries into the next one
    "add.cc.u32 %0, %1, -1; addc.cc.u32 %0, %2, 0; addc.u32 %0, 0, 0": 0,
    "sub.cc.u32 %0, %2, %1; subc.u32 %0, %3, %2": C - B - 1,
    "sub.cc.u32 %0, %1, %2; subc.cc.u32 %0, 0, 1; subc.u32 %0, %3, 0": C - 1,
    "mad.lo.cc.u32 %0, %1, %3, %1; madc.hi.u32 %0, %1, %3, %2": ((A * C & BITS) + A >> 32) + (A * C >> 32) + B,
    "mad.hi.cc.s32 %0, %1, %3, %1; madc.lo.cc.u32 %0, %1, %3, 0; addc.u32 %0, %2, 0": B,
    ".reg .u64 x; cvt.u64.u32 x, %1; sub.cc.u64 x, x, -1; subc.u32 %0, %2, 0": B - 1,
    "div.u32 %0, %3, %2": C // B,
    "div.s32 %0, %1, %2": -(-signed(A) // B) & BITS,
    "div.u32 %0, %3, 0": BITS,
    "rem.s32 %0, %1, %2": -(-signed(A) % B) & BITS,
    "min.s32 %0, %1, %2": A,
    "max.u32 %0, %1, %2": A,
    "abs.s32 %0, %1": -signed(A),
    "neg.s32 %0, %2": -B & BITS,
    "sad.u32 %0, %1, %2, %3": (A - B + C) & BITS,
    "and.b32 %0, %1, %3": A & C,
    "or.b32 %0, %1, %3": A | C,
    "xor.b32 %0, %1, %3": A ^ C,
    "not.b32 %0, %1": ~A & BITS,
    "cnot.b32 %0, %1": 0,
    "shl.b32 %0, %3, %2": C << B & BITS,
    "shl.b32 %0, %3, 32": 0,
    "shr.s32 %0, %1, 99": BITS,
    "shr.u32 %0, %1, %2": A >> B,
    "shf.l.wrap.b32 %0, %1, %3, 8": (C << 8 | A >> 24) & BITS,
    "shf.r.clamp.b32 %0, %1, %3, 40": C,
    "popc.b32 %0, %3": C.bit_count(),
    "clz.b32 %0, %3": 3,
    "brev.b32 %0, %2": 0xE0000000,
    "bfind.u32 %0, %3": 28,
    "bfind.shiftamt.u32 %0, %3": 3,
    "bfind.s32 %0, -1": BITS,
    "bfe.u32 %0, %3, 4, 8": C >> 4 & 255,
    "bfe.s32 %0, %3, 3, 4": BITS,
    "bfe.s32 %0, %1, 28, 12": BITS << 3 & BITS,
    "bfi.b32 %0, %2, %3, 8, 4": C & ~0xF00 | B << 8,
    "prmt.b32 %0, %1, %3, 0x7058": 0x12055600,  # 8: the sign of byte 0
    "lop3.b32 %0, %1, %2, %3, 0xE8": (A & B) | (A & C) | (B & C),
    "dp4a.u32.u32 %0, %3, %2, %2": 0x78 * B + B,
    "selp.b32 %0, %1, %2, p": A,
    "add.f32 %0, %4, %5": f32(P + Q),
    "mul.ftz.f32 %0, %4, 0f00000001": 0,
    "fma.rn.f32 %0, %4, %5, %4": f32(P * Q + P),
    "add.sat.f32 %0, %4, %4": f32(1),
    "div.full.f32 %0, %4, 0f40000000": f32(P / 2),
    "min.f32 %0, %4, 0f7FFFFFFF": f32(P),
    "abs.f32 %0, %5": f32(-Q),
    "copysign.f32 %0, %5, %4": f32(-P),
    "sqrt.rn.f32 %0, 0f40800000": f32(2),
    "mov.b32 %0, %4": f32(P),
    "cvt.rni.s32.f32 %0, %4": 3,
    "cvt.rzi.s32.f32 %0, %5": -1 & BITS,
    "cvt.rmi.s32.f32 %0, %5": -2 & BITS,
    "cvt.rpi.u32.f32 %0, %5": 0,
    "cvt.rni.s32.f32 %0, 0f7FC00000": 0,  # NaN
    "cvt.rni.sat.s8.f32 %0, 0f7FC00000": 0,
    "cvt.rni.sat.s8.f32 %0, 0f43960000": 127,
    "cvt.rzi.f32.f32 %0, %4": f32(2),
    "cvt.rn.f32.s32 %0, %1": f32(signed(A)),
    "cvt.sat.u8.s32 %0, %3": 255,
    "cvt.s32.s8 %0, %1": 5,
    "cvt.rna.tf32.f32 %0, 0f3F801000": 0x3F802000,
    "add.f16x2 %0, %6, %7": 0x42004400,
    "fma.rn.bf16x2 %0, %8, %9, %10": 0x40403F80,
}
PAIRS = {6: 0x3C003C00, 7: 0x40004200, 8: 0x3F803F80, 9: 0x40004000, 10: 0x3F80BF80}  # operands of two 16-bit numbers
OPERANDS = ", ".join(['"r"(a), "r"(b), "r"(c), "f"(p), "f"(q)', *(f'"r"({pair}u)' for pair in PAIRS.values())])
STATEMENTS = "".join(
    f"""    asm volatile("{{ .reg .pred p; setp.ne.u32 p, %2, 0; {instruction}; }}" : "=r"(out[{n}]) : {OPERANDS});\n"""
    for n, instruction in enumerate(RESULTS)
)
ARITHMETIC = f"""extern "C" __global__ void k(unsigned* out, unsigned a, unsigned b, unsigned c, float p, float q) {{
{STATEMENTS}}}"""

OTHERS = r"""
KERNEL wide(unsigned long long* out, unsigned a, unsigned b, double d) {
    unsigned low, high;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(out[0]) : "r"(a), "r"(b));
    asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(out[1]) : "r"(a), "r"(b), "l"(out[0]));
    asm("mov.b64 %0, {%1, %2};" : "=l"(out[2]) : "r"(a), "r"(b));
    asm("mov.b64 {%0, %1}, %2;" : "=r"(low), "=r"(high) : "l"(out[2]));
    out[3] = low - a + high - b;
    asm("shl.b64 %0, %1, 36;" : "=l"(out[4]) : "l"(out[0]));
    asm("mov.b64 %0, %1;" : "=l"(out[5]) : "d"(d));
    asm("fma.rn.f64 %0, %1, %1, 0d3FF0000000000000;" : "=d"(((double*)out)[6]) : "d"(d));
    unsigned short h, other;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"((float)d));
    asm("mov.b32 {%0, %1}, %2;" : "=h"(h), "=h"(other) : "r"(a));
    asm("{ add.f16 %0, %1, %1; }" : "=h"(h) : "h"(other));
    out[7] = h;
}
KERNEL flow(unsigned* out, unsigned n) {
    unsigned& sum = out[0];
    asm volatile("{\n\t.reg .pred %%p<2>; // two of them\n\t.reg .u32 i;\n\tmov.u32 i, 0;\n\tmov.u32 %0, 0;\n"
                 "AGAIN:\n\tadd.u32 i, i, 1; /* up; */\n\t{ .reg .u32 t; mul.lo.u32 t, i, i; add.u32 %0, %0, t; }\n"
                 "\tsetp.lt.u32 %%p0|%%p1, i, %1;\n\t@%%p0 bra AGAIN;\n\t@!%%p1 mov.u32 %0, 0;\n}"
                 : "+r"(sum) : "r"(n));
    asm volatile("{ .reg .pred p, q; setp.gt.u32 p, %1, 3; setp.lt.and.u32 q, %1, 9, !p; selp.u32 %0, 1, 2, q; }"
                 : "=r"(out[1]) : "r"(n));
    asm volatile("{ .reg .pred p; setp.ltu.f32 p, %1, 0f00000000; selp.u32 %0, 1, 0, p; }"
                 : "=r"(out[2]) : "f"(__int_as_float(0x7fffffff)));
}
KERNEL lanes(unsigned* out) {
    const unsigned t = threadIdx.x;
    unsigned* o = out + 12 * t;
    asm volatile("shfl.sync.bfly.b32 %0, %1, 1, 0x1f, 0xffffffff;" : "=r"(o[0]) : "r"(t));
    asm volatile("{ .reg .pred p; shfl.sync.up.b32 %0|p, %1, 2, 0, -1; @!p mov.u32 %0, 99; }" : "=r"(o[1]) : "r"(t));
    asm volatile("shfl.sync.down.b32 %0, %1, 1, 0x181f, -1;" : "=r"(o[2]) : "r"(t));
    asm volatile("{ .reg .pred p; setp.gt.u32 p, %1, 9; vote.sync.ballot.b32 %0, p, -1; }" : "=r"(o[3]) : "r"(t));
    asm volatile("match.any.sync.b32 %0, %1, -1;" : "=r"(o[4]) : "r"(t / 8));
    asm volatile("redux.sync.add.s32 %0, %1, -1;" : "=r"(o[5]) : "r"(t));
    asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(o[6]));
    asm volatile("mov.u32 %0, %%lanemask_ge;" : "=r"(o[7]));
    asm volatile("activemask.b32 %0;" : "=r"(o[8]));
    asm volatile("{ .reg .pred p; setp.lt.u32 p, %1, 5; bar.red.popc.u32 %0, 0, p; }" : "=r"(o[9]) : "r"(t));
    asm volatile("bar.sync 1, 32;" ::: "memory");
    asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(o[10]));
    asm volatile("{ .reg .pred p; isspacep.global p, %1; selp.u32 %0, 1, 0, p; }" : "=r"(o[11]) : "l"(out));
}
KERNEL memory(unsigned* out, float* f) {
    __shared__ unsigned s;
    const unsigned place = (unsigned)__cvta_generic_to_shared(&s);
    if (threadIdx.x == 0) asm volatile("st.shared.u32 [%0], %1;" ::"r"(place), "r"(1));
    __syncthreads();
    asm volatile("red.shared.add.u32 [%0], 2;" ::"r"(place));
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(f), "f"(0.5f));
    unsigned old;
    asm volatile("atom.relaxed.gpu.global.max.u32 %0, [%1 + 4], %2;" : "=r"(old) : "l"(out), "r"(threadIdx.x));
    asm volatile("atom.global.cas.b32 %0, [%1], 0, 7;" : "=r"(old) : "l"(out));
    __syncthreads();
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(old) : "l"(out));
    if (threadIdx.x == 0) {
        asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" ::"l"(out + 2), "r"(old), "r"(s));
        float x, y;
        asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "l"(f));
        f[2] = x + y;
    }
}
""".replace("KERNEL", 'extern "C" __global__ void')


def ints(*shape):
    return torch.zeros(shape, dtype=torch.int32)


@pytest.fixture(scope="module")
def others():
    return RawModule(code=OTHERS)


def test_arithmetic_gives_the_bits_that_ptx_says():
    out = ints(len(RESULTS))
    arguments = (np.uint32(A), np.uint32(B), np.uint32(C), np.float32(P), np.float32(Q))
    RawModule(code=ARITHMETIC).get_function("k")((1,), (1,), (out, *arguments))
    found = dict(zip(RESULTS, (value & BITS for value in out.tolist()), strict=True))
    assert {i: hex(v) for i, v in found.items()} == {i: hex(v & BITS) for i, v in RESULTS.items()}


def test_registers_of_other_widths(others):
    out = torch.zeros(8, dtype=torch.int64)
    others.get_function("wide")((1,), (1,), (out, np.uint32(0x40000001), np.uint32(5), np.float64(1.5)))
    product = 0x40000001 * 5
    bits, square = (int(np.float64(x).view(np.int64)) for x in (1.5, 3.25))
    sum_of_halves = 0x4400  # of 0x4000, which is 2
    expected = [
        product,
        2 * product,
        5 << 32 | 0x40000001,
        0,
        product << 36,
        bits,
        int(np.float64(3.25).view(np.int64)),
    ]
    wrapped = [value - (1 << 64) if value >> 63 else value for value in (v & (1 << 64) - 1 for v in expected)]
    assert out.tolist() == [*wrapped, sum_of_halves]


def test_predicates_loops_and_blocks(others):
    out = ints(3)
    others.get_function("flow")((1,), (1,), (out, np.uint32(4)))
    assert out.tolist() == [30, 2, 1]


def test_lanes_meet_in_ptx(others):
    out = ints(32, 12)
    others.get_function("lanes")((1,), (32,), (out,), shared_mem=48)
    for t, row in enumerate(out.tolist()):
        down = t + 1 if t % 8 != 7 else t
        masks = [(1 << t) - 1, BITS << t & BITS]
        expected = [
            t ^ 1,
            t - 2 if t >= 2 else 99,
            down,
            BITS << 10 & BITS,
            255 << t // 8 * 8,
            496,
            *masks,
            BITS,
            5,
            48,
            1,
        ]
        assert [value & BITS for value in row] == expected


def test_memory_in_ptx(others):
    out, f = ints(4), torch.zeros(3)
    others.get_function("memory")((1,), (32,), (out, f))
    assert out.tolist() == [7, 31, 7, 65] and f.tolist() == [16, 0, 16]


# ---- mma.sync

SHAPES = [  # rows, depth, type of the sums, type of the factors
    *((16, depth, sums, "f16") for depth in (8, 16) for sums in ("f16", "f32")),
    *((16, depth, "f32", kind) for depth, kind in ((8, "bf16"), (16, "bf16"), (4, "tf32"), (8, "tf32"))),
    *((rows, depth, "s32", "s8") for rows, depth in ((8, 16), (16, 16), (16, 32))),
    (16, 32, "s32", "u8"),
    (8, 4, "f64", "f64"),
]
FACTORS = {"f16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32, "f64": torch.float64}
FACTORS |= {"s8": torch.int8, "u8": torch.uint8}
SUMS = {"f16": torch.float16, "f32": torch.float32, "s32": torch.int32, "f64": torch.float64}
CONSTRAINTS = {"f16": ("unsigned", "r"), "f32": ("float", "f"), "s32": ("int", "r"), "f64": ("double", "d")}


def registers(shape):
    """Of each of D, A, B and C how many, and their bytes."""
    rows, depth, sums, kind = shape
    word = 8 if kind == "f64" else 4
    of_sums = rows // 8 if sums == "f16" else rows // 4
    of_right = depth * 8 * FACTORS[kind].itemsize // 32 // word
    return [of_sums, of_right * rows // 8, of_right, of_sums]


def product_kernel(n, shape):
    rows, depth, sums, kind = shape
    counts = registers(shape)
    sum_type, letter = CONSTRAINTS[sums]
    word, word_letter = ("double", "d") if kind == "f64" else ("unsigned", "r")
    numbers = iter(range(sum(counts)))
    groups = ", ".join("{" + ", ".join(f"%{next(numbers)}" for _ in range(count)) + "}" for count in counts)
    of_factors = (("a", counts[1]), ("b", counts[2]))
    given = [f'"{word_letter}"({name}[{count} * t + {i}])' for name, count in of_factors for i in range(count)]
    given += [f'"{letter}"(c[{counts[3]} * t + {i}])' for i in range(counts[3])]
    results = ", ".join(f'"={letter}"(d[{counts[0]} * t + {i}])' for i in range(counts[0]))
    return f"""extern "C" __global__ void k{n}(const {word}* a, const {word}* b, const {sum_type}* c, {sum_type}* d) {{
        const int t = threadIdx.x;
        asm volatile("mma.sync.aligned.m{rows}n8k{depth}.row.col.{sums}.{kind}.{kind}.{sums} {groups};"
                     : {results} : {", ".join(given)});
    }}
    """


def fragments(matrix, count, per_register, is_left):
    """By the figures of the PTX ISA: [32, registers of a lane, elements of a register]."""
    found = []
    for lane in range(32):
        group, quad = lane // 4, lane % 4
        for register in range(count):
            down, along = (register % 2, register // 2) if is_left and matrix.shape[0] == 16 else (0, register)
            first = per_register * quad + 4 * per_register * along
            found.append(matrix[group + 8 * down, first : first + per_register])
    return torch.stack(found).contiguous()


def places(rows):
    """Row and column of each sum of each lane."""
    lanes = [(lane // 4, 2 * (lane % 4)) for lane in range(32)]
    sums = [(group + 8 * (i // 2), pair + i % 2) for group, pair in lanes for i in range(rows // 4)]
    return tuple(torch.tensor(sums).T)


def test_products_of_every_shape():
    module = RawModule(code="".join(product_kernel(n, shape) for n, shape in enumerate(SHAPES)))
    for n, (rows, depth, sums, kind) in enumerate(SHAPES):
        _, of_left, of_right, _ = registers((rows, depth, sums, kind))
        is_integer = sums == "s32"
        a, b = (
            torch.randint(-128 if kind == "s8" else 0, 128 if kind == "s8" else 256, shape).to(FACTORS[kind])
            if is_integer
            else (torch.randint(-64, 64, shape) / 8).to(FACTORS[kind])  # exact in all of the types
            for shape in ((rows, depth), (8, depth))
        )
        c = torch.randint(-100, 100, (rows, 8)).to(SUMS[sums])
        per_register = depth * rows // 32 // of_left
        word = torch.float64 if kind == "f64" else torch.int32
        at = places(rows)
        left, right = (
            fragments(m, count, per_register, m is a).view(word) for m, count in ((a, of_left), (b, of_right))
        )
        given_c = c[at].contiguous().view(torch.int32) if sums == "f16" else c[at].contiguous()
        d = torch.zeros_like(given_c)
        module.get_function(f"k{n}")((1,), (32,), (left, right, given_c, d))
        found = torch.zeros(rows, 8, dtype=SUMS[sums])
        found[at] = d.view(SUMS[sums])
        expected = (a.double() @ b.double().T + c.double()).to(SUMS[sums])
        assert torch.equal(found, expected), SHAPES[n]


@pytest.mark.exhaustive("NVRTC was asked once; the emulator runs all of it in make test")
def test_all_of_it_is_ptx():
    for code in (ARITHMETIC, OTHERS, "".join(product_kernel(n, shape) for n, shape in enumerate(SHAPES))):
        compile_kernel(code, "sm_80")


def test_operands_without_a_comma_and_labels_numbered_by_the_compiler():
    """NVRTC takes both."""
    code = """extern "C" __global__ void k(unsigned* out, unsigned r) {
        asm volatile("st.global.u32 [%1], %0;" :: "r"(r) "l"(out));
        for (int n = 1; n < 3; n++)
            asm volatile("{ .reg .pred p; mov.u32 %0, 0; L_%=: add.u32 %0, %0, 1; setp.lt.u32 p, %0, %1; @p bra L_%=; }"
                         : "=r"(out[n]) : "r"(5 * n));
    }"""
    out = torch.zeros(3, dtype=torch.int32)
    RawModule(code=code).get_function("k")((1,), (1,), (out, np.uint32(7)))
    assert out.tolist() == [7, 5, 10]
    compile_kernel(code, "sm_80")
