"""Inline PTX: the instructions that the emulator knows, against plain arithmetic; the others are errors with a line."""

import math

import numpy as np
import pytest
import torch

from course_utils.cuda import CompileError, KernelError, read_kernel
from course_utils.emulator import ptx

FORMATS = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float8_e4m3fn: "e4m3"}  # dtype -> PTX type


def bits(tensor):
    """Two floats of 16 bits, or four of 8, to an int32, as registers hold them."""
    return tensor.contiguous().view(torch.int32)


# ---- mma.sync


def a_fragment(a, lane):
    """Registers a0..a3 of one lane, by the figures of the PTX ISA for .m16n8k16 and .m16n8k32: each has `count`
    neighbours of a row, and four lanes share a half of it."""
    count = a.shape[1] // 8
    group, first = lane // 4, count * (lane % 4)
    places = [(group + row, first + column) for column in (0, 4 * count) for row in (0, 8)]
    return [bits(a[row, column : column + count]).item() for row, column in places]


def b_fragment(b, lane):
    count = b.shape[0] // 8
    group, first = lane // 4, count * (lane % 4)
    return [bits(b[row : row + count, group]).item() for row in (first, first + 4 * count)]


def c_places(lane):
    group, pair = lane // 4, 2 * (lane % 4)
    return [(group, pair), (group, pair + 1), (group + 8, pair), (group + 8, pair + 1)]


MMA = """extern "C" __global__ void k(const unsigned* a, const unsigned* b, const float* c, float* d) {
    int i = threadIdx.x;
    float x[4];
    for (int j = 0; j < 4; j++) x[j] = c[4 * i + j];
    asm volatile("mma.sync.aligned.m16n8kDEPTH.row.col.f32.TYPE.TYPE.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\\n"
                 : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
                 : "r"(a[4 * i]), "r"(a[4 * i + 1]), "r"(a[4 * i + 2]), "r"(a[4 * i + 3]),
                   "r"(b[2 * i]), "r"(b[2 * i + 1]));
    for (int j = 0; j < 4; j++) d[4 * i + j] = x[j];
}"""


def mma_code(ptx_type):
    return MMA.replace("TYPE", ptx_type).replace("DEPTH", "32" if ptx_type == "e4m3" else "16")


def multiply(run_kernel, a, b, c):
    """A B + C by one mma.sync."""
    registers = [
        torch.tensor([a_fragment(a, lane) for lane in range(32)], dtype=torch.int32),
        torch.tensor([b_fragment(b, lane) for lane in range(32)], dtype=torch.int32),
        torch.stack([torch.stack([c[place] for place in c_places(lane)]) for lane in range(32)]),
    ]
    d, found = torch.zeros(32, 4), torch.zeros(16, 8)
    run_kernel(mma_code(FORMATS[a.dtype]), (1,), (32,), (*registers, d))
    for lane in range(32):
        for register, place in enumerate(c_places(lane)):
            found[place] = d[lane, register]
    return found


@pytest.mark.parametrize("dtype", FORMATS)
def test_mma_multiplies_the_matrices_of_its_fragments(dtype, compiler, run_kernel):
    depth = 16 // dtype.itemsize * 2
    a, b, c = torch.randn(16, depth).to(dtype), torch.randn(depth, 8).to(dtype), torch.randn(16, 8)
    expected = a.double() @ b.double() + c.double()
    assert (multiply(run_kernel, a, b, c) - expected).abs().max() < 1e-5


def test_mma_knows_each_number_of_e4m3(run_kernel):
    one = torch.zeros(32, 8)
    one[5] = 1
    for codes in torch.arange(256, dtype=torch.uint8).view(16, 16):
        a = torch.zeros(16, 32, dtype=torch.uint8)
        a[:, 5] = codes
        found = multiply(run_kernel, a.view(torch.float8_e4m3fn), one.to(torch.float8_e4m3fn), torch.zeros(16, 8))
        values = codes.view(torch.float8_e4m3fn).float()
        assert torch.equal(found[:, 0].nan_to_num(1e9), values.nan_to_num(1e9))


def test_mma_needs_the_whole_warp(run_kernel):
    empty = torch.zeros(128, dtype=torch.int32)
    with pytest.raises(KernelError, match="mma.sync needs all 32 lanes") as caught:
        run_kernel(mma_code("f16"), (1,), (31,), (empty, empty, torch.zeros(128), torch.zeros(128)))
    assert (caught.value.kind, caught.value.line) == ("trap", 5)


def test_an_mma_that_half_a_warp_runs_into_is_a_deadlock(run_kernel):
    empty = torch.zeros(128, dtype=torch.int32)
    code = mma_code("f16").replace("float x[4];", "float x[4]; if (i < 16) __syncthreads();")
    with pytest.raises(KernelError, match=r"16 threads in mma.sync at line 5") as caught:
        run_kernel(code, (1,), (32,), (empty, empty, torch.zeros(128), torch.zeros(128)))
    assert caught.value.kind == "deadlock"


# ---- ldmatrix


def ldmatrix_code(count, trans):
    outputs = ", ".join(f'"=r"(r[{i}])' for i in range(count))
    registers = ", ".join(f"%{i}" for i in range(count))
    return f"""extern "C" __global__ void k(const uint4* rows, unsigned* out) {{
        __shared__ uint4 tile[33];
        int lane = threadIdx.x;
        tile[lane] = rows[lane];
        __syncwarp();
        unsigned r[{count}], address = (unsigned)__cvta_generic_to_shared(&tile[lane % {8 * count}]);
        asm volatile("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{registers}}}, [%{count}];"
                     : {outputs} : "r"(address) : "memory");
        for (int i = 0; i < {count}; i++) out[{count} * lane + i] = r[i];
    }}"""


@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_deals_out_8_by_8_matrices(count, trans, compiler, run_kernel):
    matrices = torch.arange(4 * 64, dtype=torch.int16).view(4, 8, 8)
    out = torch.zeros(32, count, dtype=torch.int32)
    run_kernel(ldmatrix_code(count, trans), (1,), (32,), (matrices.view(torch.int32), out))
    for lane in range(32):
        row, pair = lane // 4, 2 * (lane % 4)
        for m in range(count):
            matrix = matrices[m].T if trans else matrices[m]
            assert out[lane, m].item() == bits(matrix[row, pair : pair + 2]).item(), (lane, m)


def test_modifiers_may_stand_in_any_order(run_kernel):
    matrices, out = torch.arange(64, dtype=torch.int16), torch.zeros(32, 1, dtype=torch.int32)
    code = ldmatrix_code(1, "").replace("sync.aligned.m8n8.x1.shared.b16", "sync.aligned.shared.x1.m8n8.b16")
    run_kernel(code, (1,), (32,), (matrices.repeat(4).view(torch.int32), out))
    assert torch.equal(out.view(torch.int16).flatten(), matrices)
    count = torch.zeros(1, dtype=torch.int32)
    add = 'unsigned r; asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 2;" : "=r"(r) : "l"(x));'
    run_kernel(f'extern "C" __global__ void k(int* x) {{ {add} }}', (1,), (32,), (count,))
    assert count.item() == 64


# ---- cp.async

COPY = """
#define COPY(to, from, bytes) \\
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;\\n" \\
                 :: "r"((unsigned)__cvta_generic_to_shared(to)), \\
                    "l"(from), "n"(bytes))
#define COMMIT() asm volatile("cp.async.commit_group;\\n" ::)
#define WAIT(n) asm volatile("cp.async.wait_group %0;\\n" :: "n"(n) : "memory")
extern "C" __global__ void k(const float4* a, float* out) {
    __shared__ float4 s[3][32];
    int i = threadIdx.x;
    for (int stage = 0; stage < 3; stage++) {
        COPY(&s[stage][i], a + 32 * stage + i, 16);
        COMMIT();
    }
    out[i] = s[0][i].x;
    WAIT(2);
    out[32 + i] = s[0][i].x;
    out[64 + i] = s[1][i].x;
    WAIT(0);
    out[96 + i] = s[1][i].x;
    out[128 + i] = s[2][i].x;
}"""


def test_an_asynchronous_copy_arrives_at_the_wait_for_its_group_and_not_before(each_compiler, run_kernel):
    a, out = torch.rand(96, 4), torch.zeros(5, 32)
    run_kernel(COPY, (1,), (32,), (a, out))
    stages = a[:, 0].view(3, 32)
    assert out[0].isnan().all()
    assert torch.equal(out[1], stages[0])
    assert out[2].isnan().all()
    assert torch.equal(out[3:], stages[1:])


def test_an_asynchronous_copy_fills_up_with_zeros_past_its_source_bytes(run_kernel):
    a, out = torch.rand(4), torch.ones(8)
    run_kernel(
        """extern "C" __global__ void k(const float* a, float* out) {
            __shared__ alignas(16) float s[8];
            unsigned to = (unsigned)__cvta_generic_to_shared(s);
            asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" :: "r"(to), "l"(a), "r"(8));
            asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" :: "r"(to + 16), "l"(a), "r"(0));
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to + 24), "l"(a + 3));
            asm volatile("cp.async.wait_all;");
            for (int i = 0; i < 8; i++) out[i] = s[i];
        }""",
        (1,),
        (1,),
        (a, out),
    )
    assert out[:7].tolist() == [a[0], a[1], 0, 0, 0, 0, a[3]] and out[7].isnan()


def test_a_thread_sees_what_another_copied_after_its_wait_and_a_barrier(run_kernel):
    a, out = torch.rand(200, 4), torch.zeros(200, 4)
    run_kernel(
        """extern "C" __global__ void k(const float4* a, float4* out) {
            __shared__ float4 s[2][50];
            int i = threadIdx.x;
            unsigned to[2];
            for (int stage = 0; stage < 2; stage++) to[stage] = (unsigned)__cvta_generic_to_shared(&s[stage][i]);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to[0]), "l"(a + i));
            asm volatile("cp.async.commit_group;");
            for (int tile = 0; tile < 4; tile++) {
                if (tile < 3) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                                           :: "r"(to[(tile + 1) % 2]), "l"(a + 50 * (tile + 1) + i));
                asm volatile("cp.async.commit_group;");
                asm volatile("cp.async.wait_group 1;");
                __syncthreads();
                out[50 * tile + i] = s[tile % 2][49 - i];
                __syncthreads();
            }
        }""",
        (1,),
        (50,),
        (a, out),
    )
    assert torch.equal(out, a.view(4, 50, 4).flip(1).reshape(200, 4))


def test_a_copy_from_outside_its_array_is_a_crash_with_a_line(compiler, run_kernel):
    code = COPY.replace("a + 32 * stage + i", "a + (1 << 24) + i")
    with pytest.raises(KernelError, match=r"read .* past the end of argument 0 \('a'\)") as caught:
        run_kernel(code, (1,), (32,), (torch.rand(96, 4), torch.zeros(5, 32)))
    assert (caught.value.file, caught.value.line) == ("kernel.cu", 12)  # the copy, not the wait


def test_copies_that_are_never_waited_for_come_to_an_end(run_kernel):
    code = COPY.replace("for (int stage = 0; stage < 3; stage++)", "for (int stage = 0;; )")
    with pytest.raises(KernelError, match="cp.async: this thread has issued 65536 copies without waiting") as caught:
        run_kernel(code, (1,), (1,), (torch.rand(96, 4), torch.zeros(5, 32)))
    assert (caught.value.kind, caught.value.line) == ("trap", 12)


# ---- functions of one float


def test_approximate_functions_are_exact(compiler, run_kernel):
    x = torch.linspace(0.1, 20, 128)
    out = torch.zeros(5, 128)
    run_kernel(
        """extern "C" __global__ void k(const float* x, float* out) {
            int i = threadIdx.x;
            asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out[i]) : "f"(x[i]));
            asm("lg2.approx.f32 %0, %1;" : "=f"(out[128 + i]) : "f"(x[i]));
            asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out[256 + i]) : "f"(x[i]));
            asm("rsqrt.approx.f32 %0, %1;" : "=f"(out[384 + i]) : "f"(x[i]));
            asm("tanh.approx.f32 %0, %1;" : "=f"(out[512 + i]) : "f"(x[i]));
        }""",
        (1,),
        (128,),
        (x, out),
    )
    expected = torch.stack([x.exp2(), x.log2(), 1 / x, x.rsqrt(), x.tanh()])
    assert torch.allclose(out, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("infinite", [float("inf"), float("-inf"), float("nan")])
def test_ex2_of_what_is_not_finite(infinite, run_kernel):
    x, out = torch.tensor([infinite]), torch.zeros(1)
    run_kernel(
        'extern "C" __global__ void k(const float* x, float* out) '
        '{ asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(*out) : "f"(*x)); }',
        (1,),
        (1,),
        (x, out),
    )
    assert out.item() == x.exp2().item() or (out.isnan() and x.isnan())


@pytest.mark.parametrize(("dtype", "name"), [(torch.float16, "f16x2"), (torch.bfloat16, "bf16x2")])
def test_cvt_packs_its_first_operand_into_the_upper_half(dtype, name, run_kernel):
    x, out = torch.randn(64, 2), torch.zeros(64, 2, dtype=dtype)
    run_kernel(
        f"""extern "C" __global__ void k(const float2* x, unsigned* out, int n) {{
            float2 v = x[threadIdx.x];
            asm("cvt.rn.{name}.f32 %0, %1, %2;" : "=r"(out[threadIdx.x]) : "f"(v.y), "f"(v.x));
        }}""",
        (1,),
        (64,),
        (x, out.view(torch.int32), np.int32(64)),
    )
    assert torch.equal(out, x.to(dtype))


def test_cvt_rounds_to_e4m3_as_torch_does_and_keeps_to_the_largest(run_kernel):
    """Numbers of E4M3, those between two of them, and a little to either side; two pairs are joined by mov."""
    numbers = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    between = (numbers[1:] + numbers[:-1]) / 2
    x = torch.cat(
        [numbers, between, between * (1 + 1e-6), between * (1 - 1e-6), torch.tensor([1e-9, 460.0, 1e9, torch.inf])]
    )
    x = torch.cat([x, -x, torch.tensor([torch.nan, -torch.nan])])
    x = torch.cat([x, x.new_zeros(-len(x) % 4)]).view(-1, 4)
    out = torch.zeros(x.shape, dtype=torch.uint8)
    run_kernel(
        """extern "C" __global__ void k(const float4* x, unsigned* out) {
            const float4 v = x[threadIdx.x];
            asm("{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, %2, %1; "
                "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3; mov.b32 %0, {low, high}; }"
                : "=r"(out[threadIdx.x]) : "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w));
        }""",
        (1,),
        (len(x),),
        (x, out.view(torch.int32)),
    )
    expected = x.clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(out.view(torch.float8_e4m3fn).float().nan_to_num(nan=1e3), expected.float().nan_to_num(nan=1e3))


def test_a_shared_address_can_be_converted_by_ptx_and_the_lane_read(run_kernel):
    out = torch.zeros(64, 2, dtype=torch.int32)
    run_kernel(
        """extern "C" __global__ void k(int* out) {
            __shared__ int s[64];
            unsigned address, lane;
            asm("{ .reg .u64 p; cvta.to.shared.u64 p, %1; cvt.u32.u64 %0, p; }" : "=r"(address) : "l"(&s[threadIdx.x]));
            asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
            out[2 * threadIdx.x] = address - (unsigned)__cvta_generic_to_shared(s);
            out[2 * threadIdx.x + 1] = lane;
        }""",
        (1,),
        (64,),
        (out,),
    )
    assert out[:, 0].tolist() == [4 * i for i in range(64)] and out[:, 1].tolist() == [*range(32)] * 2


def test_barriers_and_fences_of_ptx(run_kernel):
    out = torch.zeros(64, dtype=torch.int32)
    run_kernel(
        """extern "C" __global__ void k(int* out) {
            __shared__ int s[64];
            s[threadIdx.x] = threadIdx.x;
            asm volatile("membar.cta;" ::: "memory");
            asm volatile("bar.sync 0;" ::: "memory");
            out[threadIdx.x] = s[63 - threadIdx.x];
        }""",
        (1,),
        (64,),
        (out,),
    )
    assert out.tolist() == list(range(63, -1, -1))


def test_asm_can_stand_in_an_if_without_braces(run_kernel):
    out = torch.zeros(2)
    run_kernel(
        """extern "C" __global__ void k(float* out) {
            float y = 0;
            if (threadIdx.x == 0)
                asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(3.0f));
            else
                y = 1;
            out[threadIdx.x] = y;
        }""",
        (1,),
        (2,),
        (out,),
    )
    assert out.tolist() == [8, 1]


# ---- what it does not know

UNKNOWN = """extern "C" __global__ void k(float* out) {
    out[0] = 1;
    asm volatile("fence.proxy.async;");
}"""


def test_unknown_ptx_is_a_compile_error_that_names_the_instruction_and_its_line(compiler, run_kernel):
    with pytest.raises(CompileError) as caught:
        run_kernel(UNKNOWN, (1,), (1,), (torch.zeros(1),))
    assert "kernel.cu:3:" in str(caught.value)
    assert "does not know this PTX instruction: fence.proxy.async" in str(caught.value)


def test_unknown_ptx_in_a_header_names_the_header(tmp_path, run_kernel):
    (tmp_path / "new.cuh").write_text('\n\n__device__ void fence() { asm volatile("fence.proxy.async;"); }\n')
    (tmp_path / "a.cu").write_text('#include "new.cuh"\nextern "C" __global__ void k(float* out) { fence(); }\n')
    with pytest.raises(CompileError, match=r"new\.cuh:3:.*fence\.proxy\.async"):
        run_kernel(read_kernel(tmp_path / "a.cu"), (1,), (1,), (torch.zeros(1),))


def test_unknown_ptx_is_no_error_where_the_preprocessor_leaves_it_out(run_kernel):
    out = torch.zeros(1)
    code = UNKNOWN.replace("    asm", "#if __CUDA_ARCH__ >= 900\n    asm").replace(");\n}", ");\n#endif\n}")
    run_kernel(code, (1,), (1,), (out,))
    assert out.item() == 1


def test_an_operand_that_does_not_exist_is_named(without_nvrtc, run_kernel):
    code = 'extern "C" __global__ void k(float* out) { asm("ex2.approx.f32 %0, %1;" : "=f"(out[0])); }'
    with pytest.raises(CompileError, match="operand %1, of 1"):
        run_kernel(code, (1,), (1,), (torch.zeros(1),))


def test_an_approximation_flushes_where_it_says_so_and_takes_registers_without_a_type(run_kernel):
    """PTX: with .ftz a denormal input counts as a zero of its sign, and a denormal result becomes one."""
    code = """extern "C" __global__ void k(float* out, const float* x) {
        unsigned bits;
        asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(out[0]) : "f"(x[0]));
        asm("rsqrt.approx.f32 %0, %1;" : "=f"(out[1]) : "f"(x[0]));
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out[2]) : "f"(x[1]));
        asm("ex2.approx.f32 %0, %1;" : "=r"(bits) : "r"(__float_as_uint(x[1])));
        out[3] = __uint_as_float(bits);
    }"""
    out = torch.zeros(4)
    run_kernel(code, (1,), (1,), (out, torch.tensor([1e-40, -130.0])))
    assert out[0] == math.inf and out[1] == pytest.approx(1e20, rel=1e-4)
    assert out[2] == 0 and out[3] == pytest.approx(2.0**-130)


def test_named_operands_are_an_error_that_says_what_is_taken(without_nvrtc, run_kernel):
    code = 'extern "C" __global__ void k(float* out) {\n asm("ex2.approx.f32 %[y], %1;" : [y] "=f"(*out) : "f"(1.f)); }'
    with pytest.raises(CompileError, match=r'kernel\.cu:2: .* operands of asm as "r"\(x\), got `\[y\] "=f"\(\*out\)`'):
        run_kernel(code, (1,), (1,), (torch.zeros(1),))


def test_the_translation_of_one_statement():
    exponential = "emu::ptx::put(y, emu::ptx::compute::ex2(emu::ptx::get<float>(x)))"
    assert ptx.translate("{ ex2.approx.f32 %0, %1; }", ["y", "x"]) == exponential
    assert ptx.translate("cp.async.wait_group %0;", ["2"]) == "emu::ptx::cp_async_wait_group(2)"
    with pytest.raises(ptx.UnknownInstruction, match="vmax.s32.s32.s32 %0, %1, %2$"):
        ptx.translate("vmax.s32.s32.s32 %0, %1, %2;", ["a", "b", "c"])
    with pytest.raises(ptx.UnknownInstruction, match="bar.arrive 1, 64, but in a kernel .* `arch: sm_90a only`"):
        ptx.translate("bar.arrive 1, 64;", [])
