"""The profiler's counters against values worked out by hand.

A comment in a kernel says what its line costs: `// global load 1 4/4 128` is 1 request of 4 sectors, ideally 4, and 128
bytes; `// shared load 1 32/1 128` is 1 request of 32 wavefronts, ideally 1, and 128 bytes.
"""

import functools
import re
from typing import NamedTuple

import numpy as np
import pytest
import torch

from course_utils.cuda import KernelError, RawModule
from course_utils.emulator import configure, profile, sanitize


class Case(NamedTuple):
    """A kernel's body and its launch; it takes (const float* in, float* out, const float* more)."""

    body: str
    block: int = 32
    grid: int = 1


PROLOGUE = """#include <cuda_fp16.h>
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__device__ void commit_and_wait() { asm volatile("cp.async.commit_group;"); asm volatile("cp.async.wait_group 0;"); }
"""

COUNTED = {
    "strides": Case(
        """
        int i = threadIdx.x;
        float v = in[i];         // global load 1 4/4 128
        v += in[i + 1];          // global load 1 5/4 128
        v += in[2 * i];          // global load 1 8/4 128
        v += in[8 * i];          // global load 1 32/4 128
        v += in[31 - i];         // global load 1 4/4 128
        v += in[i ^ 5];          // global load 1 4/4 128
        if (i < 3) v += in[i + 100];    // global load 1 1/1 12
        out[i] = v;              // global store 1 4/4 128"""
    ),
    "several_on_a_line": Case(
        """
        int i = threadIdx.x;
        out[i] = in[i] + in[i + 32] + more[4 * i];    // global load 3 24/12 384; global store 1 4/4 128"""
    ),
    "several_warps_and_blocks": Case(
        """
        int i = threadIdx.x + blockDim.x * blockIdx.x;
        out[i] = in[i];    // global load 9 36/36 1152; global store 9 36/36 1152""",
        block=96,
        grid=3,
    ),
    "an_odd_block": Case(
        "out[threadIdx.x] = in[threadIdx.x];    // global load 2 6/6 172; global store 2 6/6 172",
        block=43,
    ),
    "one_thread": Case("out[5] = in[3];    // global load 1 1/1 4; global store 1 1/1 4", block=1),
    "vectors": Case(
        """
        int i = threadIdx.x;
        float2 a = ((const float2*)in)[i];               // global load 1 8/8 256
        float4 b = ((const float4*)(in + 128))[i];       // global load 1 16/16 512
        half2 c = ((const half2*)more)[i];               // global load 1 4/4 128
        half d = ((const half*)more)[64 + i];            // global load 1 2/2 64
        char4 e = ((const char4*)more)[64 + i];          // global load 1 4/4 128
        signed char f = ((const signed char*)more)[i];   // global load 1 1/1 32
        double g = ((const double*)more)[128 + i];       // global load 1 8/8 256
        ((float4*)out)[i] = b;                           // global store 1 16/16 512
        ((float2*)(out + 128))[i] = a;                   // global store 1 8/8 256
        ((half2*)(out + 192))[i] = c;                    // global store 1 4/4 128
        ((half*)(out + 224))[i] = d;                     // global store 1 2/2 64
        ((char4*)(out + 256))[i] = e;                    // global store 1 4/4 128
        ((signed char*)(out + 288))[i] = f;              // global store 1 1/1 32
        ((double*)(out + 320))[i] = g;                   // global store 1 8/8 256"""
    ),
    "three_floats": Case(
        """
        int i = threadIdx.x;
        float3 a = ((const float3*)in)[i];    // global load 1 12/4 128: what is not used is not loaded
        out[3 * i] = a.x;                     // global store 1 12/4 128"""
    ),
    "a_lane_chooses_its_array": Case(
        """
        const float* from = threadIdx.x < 16 ? in : more;
        out[threadIdx.x] = from[threadIdx.x];    // global load 1 4/4 128; global store 1 4/4 128"""
    ),
    "both_branches_load": Case(
        """
        int i = threadIdx.x;
        float v;
        if (i % 2)
            v = in[i] + 1;       // global load 1 4/2 64
        else
            v = more[i] * 2;     // global load 1 4/2 64
        if (i < 8)
            v += in[i + 64];     // global load 1 1/1 32
        out[i] = v;              // global store 1 4/4 128"""
    ),
    "branches_swap_two_loads": Case(
        """
        int i = threadIdx.x;
        float v = 0;
        for (int j = 0; j < 2; j++) {
            if ((i + j) % 2)
                v += in[i];      // global load 2 8/4 128
            else
                v *= more[i];    // global load 2 8/4 128
            __syncwarp();
        }
        out[i] = v;              // global store 1 4/4 128"""
    ),
    "lanes_leave_early": Case(
        """
        int i = threadIdx.x;
        float v = in[i];         // global load 1 4/4 128
        if (i >= 20) return;
        v += in[i + 32];         // global load 1 3/3 80
        if (i % 2) return;
        out[i] = v;              // global store 1 3/2 40"""
    ),
    "loops_of_different_length": Case(
        """
        int i = threadIdx.x;
        float v = 0;
        for (int j = 0; j <= i; j++)
            v += in[32 * j + i];      // global load 32 80/80 2112
        out[i] = v;                   // global store 1 4/4 128"""
    ),
    "a_loop_longer_than_the_log": Case(
        """
        int i = threadIdx.x;
        float v = 0;
        for (int j = 0; j < 1000; j++)
            v += in[(32 * j + i) % 4096];      // global load 1000 4000/4000 128000
        out[i] = v;                            // global store 1 4/4 128"""
    ),
    "one_lane_loops_for_long": Case(
        """
        int i = threadIdx.x;
        float v = 0;
        if (i == 7)
            for (int j = 0; j < 3000; j++)
                v += in[j];           // global load 3000 3000/3000 12000
        v = __shfl_sync(~0u, v, 7);
        v += more[i];                 // global load 1 4/4 128
        out[i] = v;                   // global store 1 4/4 128"""
    ),
    "uneven_loops_longer_than_the_log": Case(
        """
        int i = threadIdx.x;
        float v = 0;
        for (int j = 0; j < 300 + i % 2; j++)
            v += in[(32 * j + i) % 4096];      // global load 301 1204/1202 38464
        out[i] = v;                            // global store 1 4/4 128"""
    ),
    "partial_warp_syncs": Case(
        """
        int i = threadIdx.x;
        float v = 0;
        if (i < 16) {
            v = in[i];                  // global load 1 2/2 64
            __syncwarp(0xffff);
            v += in[i + 16];            // global load 1 2/2 64
        } else {
            v = more[i];                // global load 1 2/2 64
        }
        __syncwarp();
        out[i] = v;                     // global store 1 4/4 128"""
    ),
    "shuffles": Case(
        """
        int i = threadIdx.x;
        float v = in[i];                // global load 1 4/4 128
        for (int step = 16; step; step /= 2) v += __shfl_xor_sync(~0u, v, step);
        if (i == 0)
            out[0] = v;                 // global store 1 1/1 4"""
    ),
    "banks": Case(
        """
        __shared__ __align__(16) float s[32 * 33];
        int i = threadIdx.x;
        for (int j = 0; j < 33; j++)
            s[32 * j + i] = j;         // shared store 33 33/33 4224
        __syncwarp();
        float v = s[2 * i];            // shared load 1 2/1 128
        v += s[4 * i];                 // shared load 1 4/1 128
        v += s[32 * i];                // shared load 1 32/1 128
        v += s[33 * i];                // shared load 1 1/1 128
        v += s[7];                     // shared load 1 1/1 128
        v += s[i / 2];                 // shared load 1 1/1 128
        v += s[32 * i + (i ^ 3)];      // shared load 1 1/1 128
        v += s[i % 2 * 32];            // shared load 1 2/1 128
        out[i] = v;                    // global store 1 4/4 128"""
    ),
    "wide_accesses_of_shared": Case(
        """
        __shared__ __align__(16) float s[128];
        int i = threadIdx.x;
        ((float4*)s)[i] = ((const float4*)in)[i];    // global load 1 16/16 512; shared store 1 4/4 512
        __syncwarp();
        float2 a = ((float2*)s)[i];                  // shared load 1 2/2 256
        half2 b = ((half2*)s)[i];                    // shared load 1 1/1 128
        half c = ((half*)s)[i];                      // shared load 1 1/1 64
        out[i] = a.x + __low2float(b) + __half2float(c);    // global store 1 4/4 128"""
    ),
    "asynchronous_copies": Case(
        """
        __shared__ __align__(16) float s[128];
        int i = threadIdx.x;
        unsigned to = (unsigned)__cvta_generic_to_shared(s + 4 * i);
        const float* from = in + 4 * i;
        // The next line: global load 1 16/16 512; shared store 1 4/4 512
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from));
        commit_and_wait();
        __syncwarp();
        out[i] = s[127 - i];    // shared load 1 1/1 128; global store 1 4/4 128"""
    ),
    "atomics": Case(
        """
        __shared__ int s[32];
        int i = threadIdx.x;
        s[i] = 0;                                  // shared store 1 1/1 128
        __syncwarp();
        atomicAdd((int*)out + i, s[31 - i]);       // shared load 1 1/1 128; global atomic 1 4/4 128
        atomicAdd((int*)out + 64 + 8 * i, 1);      // global atomic 1 32/4 128"""
    ),
    "memory_functions": Case(
        """
        if (threadIdx.x == 0) {
            memset(out, 0, 4);        // global store 1 1/1 4
            memcpy(out + 4, in, 4);   // global load 1 1/1 4; global store 1 1/1 4
        }"""
    ),
    "loops_that_set_and_copy": Case(
        """
        int i = threadIdx.x;
        for (int j = 0; j < 16; j++) out[16 * i + j] = 0;    // global store 16 512/64 2048
        // The next line: global load 16 512/64 2048; global store 16 512/64 2048
        for (int j = 0; j < 16; j++) out[16 * i + j] = in[16 * i + j];"""
    ),
}


def source():
    return PROLOGUE + "\n".join(
        f'extern "C" __global__ void {name}(const float* in, float* out, const float* more) {{\n{case.body}\n}}'
        for name, case in COUNTED.items()
    )


@functools.cache
def compiled(compiler):
    """All kernels in one file, which saves compilations."""
    return RawModule(code=source())


def expected(name):
    """(line, space, operation, requests, sectors or wavefronts, ideal, bytes) from the comments of a kernel."""
    lines = source().splitlines()
    start = next(n for n, line in enumerate(lines) if f" {name}(" in line)
    found = []
    for n in range(start, start + COUNTED[name].body.count("\n") + 2):
        comment = lines[n].partition("// ")[2]
        for m in re.finditer(r"(global|shared) (load|store|atomic) (\d+) (\d+)/(\d+) (\d+)", comment):
            line = n + 2 if comment.startswith("The next line: ") else n + 1
            found.append((line, m[1], m[2], *map(int, m.groups()[2:])))
    return sorted(found)


def counted(name, compiler, **options):
    case = COUNTED[name]
    args = (torch.arange(8192.0), torch.zeros(4096), torch.arange(4096.0))
    with profile(**options) as counters:
        compiled(compiler).get_function(name)((case.grid,), (case.block,), args)
    return counters


@pytest.mark.parametrize("name", COUNTED)
def test_what_each_line_asks_for(name, each_compiler):
    counters = counted(name, each_compiler)
    found = [
        (
            r.line,
            r.space,
            r.operation,
            r.requests,
            r.sectors + r.wavefronts,
            r.ideal_sectors + r.ideal_wavefronts,
            r.bytes,
        )
        for r in counters.rows
    ]
    assert sorted(found) == expected(name), str(counters)
    lines = source().splitlines()
    for row in counters.rows:
        assert (row.kernel, row.file, row.source) == (name, "kernel.cu", lines[row.line - 1].strip())
        assert (row.wavefronts == 0) == (row.space == "global") and (row.sectors == 0) == (row.space == "shared")
        assert row.bank_conflicts == row.wavefronts - row.ideal_wavefronts
    assert counters.rows == sorted(counters.rows, key=lambda row: (row.line, row.space, row.operation))
    loads = sum(r.bytes for r in counters.rows if r.space == "global" and r.operation != "store")
    assert sum(argument.bytes_loaded for argument in counters.footprint) == loads


def test_a_struct_is_counted_in_bytes_whatever_pieces_the_compiler_makes_of_it(compiler, run_kernel):
    code = """struct Pair { float a, b; };
    struct __align__(16) Four { float x[4]; };
    extern "C" __global__ void k(const float* in, float* out) {
        int i = threadIdx.x;
        ((Pair*)out)[i] = ((const Pair*)in)[i];
        ((Four*)(out + 64))[i] = ((const Four*)(in + 64))[i];
    }"""
    with profile() as counters:
        run_kernel(code, (1,), (32,), (torch.zeros(192), torch.zeros(192)))
    assert counters.total("bytes", "global", "load") == counters.total("bytes", "global", "store") == 768
    assert [(f.bytes_read, f.bytes_written) for f in counters.footprint] in ([(768, 0), (0, 768)], [(0, 768), (768, 0)])


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_counters_do_not_depend_on_the_number_of_threads(threads):
    code = """extern "C" __global__ void k(const float* in, float* out) {
        __shared__ float s[64];
        s[threadIdx.x] = in[threadIdx.x + blockIdx.x];
        __syncthreads();
        atomicAdd(out + blockIdx.x % 7, s[(blockIdx.x * threadIdx.x) % 64]);
    }"""
    kernel = RawModule(code=code).get_function("k")
    seen = []
    for n in (1, threads):
        with configure(threads=n), profile() as counters:
            kernel((1000,), (64,), (torch.zeros(1064), torch.zeros(64)))  # so long that the others begin, too
        seen.append((counters.rows, counters.footprint, counters.blocks, counters.blocks_traced))
    assert seen[0] == seen[1] and seen[0][2:] == (1000, 1000)


# ---------------------------------------------------------------------------------------------- footprint

COPY = """extern "C" __global__ void k(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i / 2] + a[0];
}"""


def footprint(args, code=COPY, grid=(4,), block=(32,), **options):
    kernel = RawModule(code=code).get_function("k")
    with profile(**options) as counters:
        kernel(grid, block, args)
    return [(f.argument, f.bytes, f.bytes_read, f.bytes_written) for f in counters.footprint]


def label(i, name):
    return f"argument {i} ('{name}') of k()"


def test_the_footprint_is_of_distinct_bytes_in_the_order_of_the_arguments():
    tensors = [torch.zeros(200) for _ in range(3)]
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):  # wherever the tensors happen to lie
        a, b, c = (tensors[i] for i in order)
        assert footprint((a, b, c, np.int32(100))) == [
            (label(0, "a"), 800, 400, 0),
            (label(1, "b"), 800, 200, 0),
            (label(2, "c"), 800, 0, 400),
        ]


def test_overlapping_arguments_share_their_footprint():
    base = torch.zeros(300)
    found = footprint((base[0:100], base[50:150], base[160:260], np.int32(100)))
    assert found == [(f"{label(0, 'a')} = {label(1, 'b')}", 600, 400, 0), (label(2, "c"), 400, 0, 400)]


def test_every_launch_has_its_footprint_and_the_rows_add_up():
    kernel = RawModule(code=COPY).get_function("k")
    args = (torch.zeros(100), torch.zeros(100), torch.zeros(100), np.int32(100))
    with profile() as counters:
        kernel((4,), (32,), args)
        once = counters.total("bytes")
        kernel((4,), (32,), args)
    assert (counters.launches, counters.blocks, counters.blocks_traced) == (2, 8, 8)
    assert once == 100 * 16 and counters.total("bytes") == 2 * once
    assert [f.bytes_read + f.bytes_written for f in counters.footprint] == [400, 200, 400] * 2


def test_a_view_keeps_its_place_among_the_sectors():
    """A warp's 128 bytes lie in four sectors if they begin with one, and in five if they begin in the middle of one."""
    code = """extern "C" __global__ void k(const float* in, float* out) { out[threadIdx.x] = in[threadIdx.x]; }"""
    with profile() as counters:
        RawModule(code=code).get_function("k")((1,), (32,), (torch.zeros(64)[4:36], torch.zeros(64)[8:40]))
    assert [counters.total("sectors", operation=operation) for operation in ("load", "store")] == [5, 4]


@pytest.mark.parametrize(
    ("dtype", "offset", "read", "count"),
    [
        (torch.float16, 1, "*(const half2*)(in + 1)", 4),
        (torch.uint8, 1, "*(const float*)(in + 3)", 4),
        (torch.uint8, 1, "*(const unsigned short*)(in + 3)", 2),
        (torch.uint8, 2, "*(const unsigned short*)(in + 2)", 2),
        (torch.uint8, 0, "in[7]", 1),
    ],
)
def test_the_footprint_of_a_view_at_an_odd_address(dtype, offset, read, count):
    kind = "half" if dtype == torch.float16 else "unsigned char"
    store = "__low2float" if "half2" in read else "(float)"
    code = f"""#include <cuda_fp16.h>
    extern "C" __global__ void k(const {kind}* in, float* out) {{ out[0] = {store}({read}); }}"""
    x = torch.zeros(64, dtype=dtype)[offset:]
    assert footprint((x, torch.zeros(1)), code, (1,), (1,)) == [
        (label(0, "in"), x.numel() * x.element_size(), count, 0),
        (label(1, "out"), 4, 0, 4),
    ]


def test_updates_and_atomics_are_read_and_written():
    code = (
        """extern "C" __global__ void k(int* a, int* b) { a[threadIdx.x] += 1; atomicAdd(b + threadIdx.x / 2, 1); }"""
    )
    a, b = (torch.zeros(40, dtype=torch.int32) for _ in "ab")
    assert footprint((a, b), code, (1,), (32,)) == [(label(0, "a"), 160, 128, 128), (label(1, "b"), 160, 64, 64)]


def test_an_atomic_or_volatile_store_reads_nothing():
    code = """extern "C" __global__ void k(int* a, volatile int* b) {
        __nv_atomic_store_n(a + threadIdx.x, 1, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
        b[threadIdx.x] = 1;
    }"""
    a, b = (torch.zeros(40, dtype=torch.int32) for _ in "ab")
    assert footprint((a, b), code, (1,), (32,)) == [(label(0, "a"), 160, 0, 128), (label(1, "b"), 160, 0, 128)]


def test_what_is_loaded_again_counts_again_for_its_argument_whichever_line_loads_it():
    code = """__device__ float sum(const float* x, int n) {
        float s = 0;
        for (int i = 0; i < n; i++) s += x[i];
        return s;
    }
    extern "C" __global__ void k(const float* a, const float* b, float* c) {
        const float* mine = threadIdx.x % 2 ? a : b;
        atomicAdd(c, sum(a, 3) + sum(b, 5) + mine[threadIdx.x]);
        c[1 + threadIdx.x] = 0;
    }"""
    kernel = RawModule(code=code).get_function("k")
    with profile() as counters:
        kernel((2,), (32,), tuple(torch.zeros(40) for _ in "abc"))
    assert [f.bytes_loaded for f in counters.footprint] == [4 * 64 * n + 4 * 32 for n in (3, 5)] + [4 * 64]


def test_an_empty_tensor_and_one_of_odd_length_have_a_footprint():
    code = """extern "C" __global__ void k(const signed char* in, float* out, float* none) {
        if (threadIdx.x < 7) out[threadIdx.x] = in[threadIdx.x];
    }"""
    found = footprint((torch.zeros(7, dtype=torch.int8), torch.zeros(7), torch.zeros(0)), code, (1,), (32,))
    assert found == [(label(0, "in"), 7, 7, 0), (label(1, "out"), 28, 0, 28), (label(2, "none"), 0, 0, 0)]


# ---------------------------------------------------------------------------------------------- blocks=

ONE_PER_BLOCK = """extern "C" __global__ void k(int* out) {
    if (threadIdx.x) return;
    out[blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)] = 1;
}"""


@pytest.mark.parametrize(
    ("blocks", "traced"),
    [
        ([0], 1),
        ([3, 1, 3], 2),
        (range(4), 4),
        ([(1, 2)], 1),
        ([(1, 2, 1), 2, (0, 0, 1)], 3),
        ([np.int64(2)], 1),
        (3, 1),
        (None, 24),
    ],
)
def test_only_the_chosen_blocks_are_traced_and_all_run(blocks, traced):
    out = torch.zeros(24, dtype=torch.int32)
    kernel = RawModule(code=ONE_PER_BLOCK).get_function("k")
    with profile(blocks=blocks) as counters:
        kernel((4, 3, 2), (32,), (out,))
    assert (out == 1).all()
    assert (counters.blocks, counters.blocks_traced, counters.total("requests")) == (24, traced, traced)
    assert counters.footprint[0].bytes_written == 4 * traced


def test_the_block_that_is_named_is_the_one_that_is_traced():
    code = """extern "C" __global__ void k(int* out) {
        if (blockIdx.x == 3 && blockIdx.y == 1 && blockIdx.z == 1 && threadIdx.x == 0) *out = 1;
    }"""
    kernel = RawModule(code=code).get_function("k")
    with profile(blocks=[(3, 1, 1)]) as counters:
        kernel((4, 3, 2), (32,), (torch.zeros(1, dtype=torch.int32),))
    assert counters.total("requests") == 1


@pytest.mark.parametrize("blocks", [[4], [(0, 3)], [(0, 0, 2)], [0, 100]])
def test_a_block_that_the_grid_does_not_have_is_an_error(blocks):
    kernel = RawModule(code=ONE_PER_BLOCK).get_function("k")
    with profile(blocks=blocks), pytest.raises(ValueError, match="blocks names block .* but the grid is"):
        kernel((4, 3, 2), (32,), (torch.zeros(24, dtype=torch.int32),))


@pytest.mark.parametrize("blocks", [[], -1, [-1], [1.5], [(1, 2, 3, 4)], [()], ["1"], [True]])
def test_blocks_that_cannot_be_are_an_error(blocks):
    with pytest.raises((ValueError, TypeError), match="blocks takes"), profile(blocks=blocks):
        pass


def test_many_blocks_can_be_chosen():
    code = 'extern "C" __global__ void k(int* out) { out[blockIdx.x] = 1; }'
    kernel, out = RawModule(code=code).get_function("k"), torch.zeros(60000, dtype=torch.int32)
    with profile(blocks=range(0, 60000, 2)) as counters:
        kernel((60000,), (1,), (out,))
    assert (counters.blocks_traced, counters.total("bytes")) == (30000, 120000) and (out == 1).all()


# ---------------------------------------------------------------------------------------------- several at a time


def one_launch(grid=4):
    RawModule(code=ONE_PER_BLOCK).get_function("k")((grid,), (32,), (torch.zeros(grid, dtype=torch.int32),))


def test_nested_profilers_end_in_order():
    with profile() as outer:
        with profile() as inner:
            pass
        one_launch()
    assert (outer.launches, inner.launches) == (1, 0)
    with profile() as outer:
        with profile() as inner:
            one_launch()
        one_launch()
    assert (outer.launches, outer.total("requests")) == (2, 8)
    assert (inner.launches, inner.total("requests")) == (1, 4)


def test_a_nested_profiler_of_other_blocks_is_refused_or_counted_apart():
    with profile(blocks=[0]) as outer:
        try:
            with profile() as inner:
                one_launch()
        except ValueError:
            return
    assert (outer.blocks_traced, outer.total("requests")) == (1, 1)
    assert (inner.blocks_traced, inner.total("requests")) == (4, 4)


def test_chosen_blocks_and_a_sanitizer_do_not_mix():
    with sanitize(), pytest.raises(ValueError, match="one after the other"), profile(blocks=[0]):
        pass
    with profile(blocks=[0]), pytest.raises(ValueError, match="one after the other"), sanitize():
        pass
    with sanitize() as report, profile() as counters:
        one_launch()
    assert not report.findings and counters.total("requests") == 4


def test_two_kernels_of_the_same_name_keep_their_rows_apart():
    with profile() as counters:
        for text in ("out[threadIdx.x] = 1;", "out[2 * threadIdx.x] = 1;"):
            code = f'extern "C" __global__ void k(float* out) {{\n    {text}\n}}'
            RawModule(code=code).get_function("k")((1,), (32,), (torch.zeros(64),))
    assert {row.source: row.sectors for row in counters.rows} == {
        "out[threadIdx.x] = 1;": 4,
        "out[2 * threadIdx.x] = 1;": 8,
    }


def test_select_and_total():
    counters = counted("banks", "")
    assert {row.space for row in counters.select("shared")} == {"shared"}
    assert counters.total("requests", "shared", "store") == 33 and counters.total("bytes", "global") == 128
    assert counters.total("bank_conflicts") == 1 + 3 + 31 + 1
    assert counters.select(line=counters.rows[0].line) == counters.rows[:1]
    assert str(counters).count("\n") == len(counters.rows)


# ---------------------------------------------------------------------------------------------- when a launch fails


def test_a_kernel_that_fails_is_an_error_and_the_next_is_counted():
    endless = 'extern "C" __global__ void k(int* out) { while (true) out[threadIdx.x % 4] += 1; }'
    with profile() as counters:
        with configure(time_limit=0.1), pytest.raises(KernelError, match="time limit"):
            RawModule(code=endless).get_function("k")((1,), (32,), (torch.zeros(4, dtype=torch.int32),))
        far = 'extern "C" __global__ void k(int* out) { out[100000000] = 1; }'
        with pytest.raises(KernelError, match="past the end"):
            RawModule(code=far).get_function("k")((1,), (32,), (torch.zeros(4, dtype=torch.int32),))
        one_launch()
    assert counters.total("requests", "global", "store") >= 4


def test_a_kernel_of_thousands_of_lines_is_counted_in_full():
    lines = "".join(f"    out[{i}] = in[{i}];\n" for i in range(2500))
    code = f'extern "C" __global__ void k(const volatile float* in, volatile float* out) {{\n{lines}}}'
    with profile() as counters:
        RawModule(code=code).get_function("k")((1,), (1,), (torch.zeros(2500), torch.zeros(2500)))
    assert counters.total("bytes") == 2500 * 8 and len(counters.rows) == 5000
