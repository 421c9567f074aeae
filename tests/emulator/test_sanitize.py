"""The sanitizer is silent about correct kernels, names the tool and the line of a mistake, and changes no result.

A mistake is marked in the kernel by a comment with the tool that finds it: `// memcheck`. Of a race, both lines are.
"""

import functools
import itertools
import re
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from course_utils.cuda import KernelError, RawModule, read_kernel
from course_utils.emulator import configure, profile, sanitize
from tests.helpers.processes import interrupt, once_it_runs


class Case(NamedTuple):
    """A kernel's body and its launch. It takes (const float* in, float* out, int n), or `parameters` and `args`."""

    body: str
    block: tuple[int, ...] = (64,)
    grid: tuple[int, ...] = (1,)
    shared_mem: int = 0
    parameters: str = "const float* in, float* out, int n"
    args: Callable[[], tuple] = lambda: (torch.arange(4096.0), torch.zeros(256), np.int32(64))


PROLOGUE = """#include <cuda_fp16.h>
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__device__ const float table_a[4] = {1, 2, 3, 4};
__constant__ const float table_b[4] = {5, 6, 7, 8};
__constant__ float table_c[4] = {9, 10, 11, 12};
__device__ float table_d[8];
__device__ int total;
__device__ unsigned char bytes_e[64];
union Word { float f; half2 h; unsigned char c[4]; };
struct Six { float x[6]; int n; };
__device__ __noinline__ float look_up(const float* t, int i) { return t[i & 3]; }
__device__ __noinline__ float by_value(Six s, int i) { s.x[i % 6] += 1; return s.x[(i + 1) % 6]; }
__device__ __noinline__ void twice(float* t) { for (int i = 0; i < 8; i++) t[i] *= 2; }
__device__ void copy16(void* to, const void* from) {
    unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(address), "l"(from));
}
__device__ void copy_some(void* to, const void* from, int bytes) {
    unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(address), "l"(from), "r"(bytes));
}
__device__ void commit() { asm volatile("cp.async.commit_group;"); }
template <int groups> __device__ void wait_for() { asm volatile("cp.async.wait_group %0;" :: "n"(groups)); }
__device__ void ldmatrix(unsigned& r, const void* row) {
    unsigned address = (unsigned)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r) : "r"(address));
}
"""

base = torch.arange(256.0)  # several arguments are views of it


def bytes_of(n):
    return torch.arange(n, dtype=torch.int32).to(torch.int8)


CLEAN = {
    "double_buffer": Case(
        """
        __shared__ __align__(16) float s[2][128];
        int i = threadIdx.x, tiles = 9;
        float v = 0;
        if (i < 32) copy16(&s[0][4 * i], in + 4 * i);
        commit();
        for (int t = 0; t < tiles; t++) {
            if (t + 1 < tiles && i < 32) copy16(&s[(t + 1) % 2][4 * i], in + (t + 1) * 128 + 4 * i);
            commit();
            wait_for<1>();
            __syncthreads();
            v += s[t % 2][i ^ 1] * s[t % 2][127 - i];
            __syncthreads();
        }
        out[i] = v;""",
        block=(128,),
    ),
    "copy_with_zero_fill": Case(
        """
        __shared__ __align__(16) float s[256];
        int i = threadIdx.x, rows = 101, whole = max(min(rows - 4 * i, 4), 0);
        copy_some(s + 4 * i, in + (whole ? 4 * i : 0), 4 * whole);
        commit();
        wait_for<0>();
        __syncthreads();
        out[i] = s[255 - i] + s[i];""",
    ),
    "copies_of_one_lane": Case(
        """
        __shared__ __align__(16) float s[16];
        if (threadIdx.x == 0) {
            for (int i = 0; i < 4; i++) copy16(s + 4 * i, in + 4 * i);
            commit();
            wait_for<0>();
        }
        __syncwarp();
        out[threadIdx.x] = s[threadIdx.x % 16];""",
        block=(32,),
    ),
    "one_lane_prepares": Case(
        """
        __shared__ float s[32];
        int lane = threadIdx.x;
        if (lane == 0) { float v = 0; for (int i = 0; i < 5; i++) v += in[i * 3]; s[0] = v; }
        __syncwarp();
        if (lane == 1) { float x = s[0]; for (int i = 0; i < 10; i++) x += in[i * 3]; s[0] = x; }
        __syncthreads();
        out[lane] = s[0];""",
        block=(32,),
    ),
    "warp_reduction": Case(
        """
        __shared__ float s[64];
        int i = threadIdx.x, lane = i % 32;
        s[i] = in[i];
        for (int step = 16; step; step /= 2) {
            __syncwarp();
            float v = lane < step ? s[i + step] : 0;
            __syncwarp();
            if (lane < step) s[i] += v;
        }
        __syncthreads();
        out[i] = s[0] + s[32];""",
    ),
    "partial_masks": Case(
        """
        __shared__ float s[64];
        int i = threadIdx.x, lane = i % 32;
        s[i] = in[i];
        if (lane < 8) {
            __syncwarp(0xff);
            float v = s[i ^ 7];
            __syncwarp(0xff);
            s[i] = v;
        } else if (lane >= 20) {
            for (int n = 0; n < 3; n++) {
                __syncwarp(0xfff00000);
                float v = s[i == 31 || i == 63 ? i - 11 : i + 1];
                __syncwarp(0xfff00000);
                s[i] = v;
            }
        }
        __syncthreads();
        out[i] = s[63 - i];""",
    ),
    "tiles": Case(
        """
        __shared__ float s[64];
        auto tile = cg::tiled_partition<8>(cg::this_thread_block());
        int i = threadIdx.x, rank = tile.thread_rank();
        s[i] = in[i];
        for (int step = 4; step; step /= 2) {
            tile.sync();
            float v = rank < step ? s[i + step] : 0;
            tile.sync();
            if (rank < step) s[i] += v;
        }
        cg::this_thread_block().sync();
        out[i] = s[(63 - i) / 8 * 8] + tile.shfl(s[i], 0);""",
    ),
    "other_views_of_shared": Case(
        """
        __shared__ Word u[64];
        __shared__ __align__(16) half h[128];
        __shared__ __align__(4) signed char c[130];
        int i = threadIdx.x;
        u[i].f = in[i];
        h[2 * i] = 1;
        h[2 * i + 1] = 2;
        c[i] = i;
        c[64 + i] = 3;
        if (i < 2) c[128 + i] = 1;
        __syncthreads();
        float v = __low2float(u[63 - i].h) + u[i ^ 32].c[1];
        v += ((const uint4*)h)[i % 16].x % 7 + ((const int*)c)[i % 32] % 7;
        v += __high2float(((const half2*)h)[i ^ 33]);
        __syncthreads();
        ((float*)h)[i] = v;
        ((half*)u)[i] = 3;
        __syncthreads();
        out[i] = ((float*)h)[63 - i] + __half2float(((half*)u)[63 - i]);""",
    ),
    "neighbouring_bytes_of_shared": Case(
        """
        __shared__ signed char c[66];
        __shared__ half h[66];
        c[threadIdx.x + 1] = threadIdx.x;       // the word of c[32] belongs to two warps
        h[threadIdx.x + 1] = threadIdx.x;
        c[threadIdx.x + 1] += 1;
        __syncthreads();
        out[threadIdx.x] = c[64 - threadIdx.x] + __half2float(h[64 - threadIdx.x]);""",
    ),
    "shared_atomics": Case(
        """
        __shared__ int histogram[8];
        __shared__ float sum;
        if (threadIdx.x < 8) histogram[threadIdx.x] = 0;
        if (threadIdx.x == 0) sum = 0;
        __syncthreads();
        atomicAdd(&histogram[(int)in[threadIdx.x] % 8], 1);
        atomicAdd(&sum, 1.f);
        __syncthreads();
        if (threadIdx.x < 8) atomicAdd(out + threadIdx.x, histogram[threadIdx.x] + sum);""",
        grid=(5,),
    ),
    "atomics_where_zeros_were_written": Case(
        """
        __shared__ int seen;
        extern __shared__ int counts[];
        if (threadIdx.x == 0) seen = counts[0] = 0;
        __syncthreads();
        atomicAdd(&seen, 1);
        atomicMax(counts, (int)threadIdx.x);
        __syncthreads();
        out[threadIdx.x] = seen + counts[0];""",
        shared_mem=4,
    ),
    "loops_of_cas_that_begin_with_a_plain_read": Case(
        """
        __shared__ int most;
        if (threadIdx.x == 0) most = 0;
        __syncthreads();
        auto keep = [](int* at, float v) {     // the loop of CUDA's own guide
            int old = *at, expected;
            do {
                expected = old;
                if (__int_as_float(expected) >= v) break;
                old = atomicCAS(at, expected, __float_as_int(v));
            } while (old != expected);
        };
        keep(&most, in[threadIdx.x] * (blockIdx.x + 1));
        keep((int*)out, in[threadIdx.x] * (blockIdx.x + 1));
        __syncthreads();
        if (threadIdx.x == 0) atomicMax((int*)out + 1, most);""",
        grid=(4,),
    ),
    "a_look_before_a_minimum": Case(
        """
        int v = (int)in[63 - threadIdx.x] + blockIdx.x % 3;
        if (v > *(int*)out) atomicMax((int*)out, v);""",
        grid=(4,),
    ),
    "blocks_say_yes": Case("if (in[threadIdx.x] > 3) *out = 1;", grid=(5,)),
    "memory_of_its_own": Case(
        """
        struct Node { float x; Node* next; };
        float* s = (float*)malloc(16);
        for (int i = 0; i < 4; i++) s[i] = in[i];
        Node* last = new Node{s[3], nullptr};
        Node* first = new Node{s[0], last};
        float* more = new float[2];
        more[1] = first->next->x;
        out[threadIdx.x] = more[1] + first->x;
        free(s);
        delete first;
        delete last;
        delete[] more;""",
    ),
    "lanes_exchange_through_global_memory": Case(
        """
        float v = in[threadIdx.x];
        for (int step = 1; step < 32; step *= 2) {
            out[threadIdx.x] = v;
            __syncwarp();
            v += out[threadIdx.x ^ step];
            __syncwarp();
        }
        if (v >= 0) out[64] = 1;               // whoever writes it: the same value
        out[threadIdx.x] = v;""",
    ),
    "warps_exchange_through_a_variable": Case(
        """
        table_d[threadIdx.x % 8] = threadIdx.x % 8;
        __syncthreads();
        out[threadIdx.x] = table_d[(threadIdx.x + 1) % 8];
        atomicAdd(&total, 1);
        bytes_e[threadIdx.x] = threadIdx.x;
        __syncthreads();
        out[threadIdx.x] += bytes_e[63 - threadIdx.x];""",
    ),
    "leaves_before_the_barrier": Case(
        """
        __shared__ float s[64];
        int i = threadIdx.x;
        if (i >= 45) return;
        float v = 0;
        for (int j = 0; j < i; j++) v += in[j];
        s[i] = v;
        __syncthreads();
        out[i] = s[44 - i];
        if (i % 3) return;
        __syncthreads();
        s[i] = 1;""",
    ),
    "many_barriers": Case(
        """
        __shared__ float s[40];
        s[threadIdx.x] = 0;
        for (int j = 0; j < 50000; j++) {
            __syncthreads();
            float v = s[39 - threadIdx.x];
            __syncthreads();
            s[threadIdx.x] = v + 1;
        }
        out[threadIdx.x] = s[threadIdx.x];""",
        block=(40,),
    ),
    "two_warps_add_to_one_element": Case("atomicAdd(out, 1.f);", block=(64,)),
    "many_warp_syncs": Case(  # as many as a 16-bit counter has values
        """
        __shared__ float s[32];
        s[threadIdx.x] = in[threadIdx.x];
        for (int j = 0; j < 65536; j++) __syncwarp();
        out[threadIdx.x] = s[31 - threadIdx.x];""",
        block=(32,),
    ),
    "tables": Case(
        """
        static const int steps[3] = {1, 2, 3};
        int i = threadIdx.x;
        const float* t = i % 3 == 0 ? table_a : i % 3 == 1 ? table_b : table_c;
        const char* text = i % 2 ? "abcd" : "efgh";
        const int* step = steps + i % 2;
        if (i < 8) table_d[i] = i;
        __syncthreads();
        const float* d = table_d + i % 4;
        out[i] = look_up(t, i) + text[i % 4] + step[i % 2] + d[i % 4];""",
    ),
    "local_arrays": Case(
        """
        float t[8];
        Six six = {};
        for (int i = 0; i < 8; i++) t[i] = in[i];
        twice(t);
        six.x[threadIdx.x % 6] = look_up(t, threadIdx.x);
        out[threadIdx.x] = by_value(six, threadIdx.x);
        if (threadIdx.x < 4) printf("%d of %d;", threadIdx.x, n);""",
    ),
    "a_large_local_array": Case(
        """
        volatile int large[64500];
        large[n] = n;
        float v = 0;
        for (int i = 0; i < 200; i++) v += in[i + threadIdx.x];
        __syncthreads();
        out[threadIdx.x] = v + large[n];""",
    ),
    "memory_functions": Case(
        """
        __shared__ float s[64], t[64];
        if (threadIdx.x == 0) { memset(s, 0, sizeof s); memcpy(t, in, sizeof t); }
        __syncthreads();
        out[threadIdx.x] = s[63 - threadIdx.x] + t[63 - threadIdx.x];""",
    ),
    "loops_that_set_and_copy": Case(
        """
        __shared__ float s[64], t[64];
        if (threadIdx.x == 0) {
            for (int i = 0; i < 64; i++) s[i] = 0;
            for (int i = 0; i < 64; i++) t[i] = in[i];
        }
        __syncthreads();
        out[threadIdx.x] = s[63 - threadIdx.x] + t[63 - threadIdx.x];""",
    ),
    "an_array_through_its_first_element": Case(
        """
        __shared__ float t[8][9];
        float* flat = &t[0][0];
        for (int i = threadIdx.x; i < 72; i += 64) flat[i] = i;
        __syncthreads();
        float v = 0;
        for (const float* p = flat + threadIdx.x % 9; p < flat + 72; p += 9) v += *p;
        out[threadIdx.x] = v + *(&t[0][0] + threadIdx.x);""",
    ),
    "several_dynamic_arrays": Case(
        """
        extern __shared__ float dynamic[];
        float* s = dynamic;
        half* h = (half*)(s + 64);
        signed char* c = (signed char*)(h + 65);
        s[threadIdx.x] = in[threadIdx.x];
        h[threadIdx.x] = 1;
        if (threadIdx.x == 0) h[64] = 2;
        c[threadIdx.x] = 3;
        __syncthreads();
        out[threadIdx.x] = s[63 - threadIdx.x] + __half2float(h[64 - threadIdx.x]) + c[63 - threadIdx.x];""",
        shared_mem=64 * 4 + 65 * 2 + 64,
    ),
    "ldmatrix_after_a_barrier": Case(
        """
        __shared__ __align__(16) unsigned short s[8 * 40];
        for (int i = threadIdx.x; i < 320; i += 32) s[i] = i;
        __syncwarp();
        unsigned r;
        ldmatrix(r, s + threadIdx.x % 8 * 40);
        out[threadIdx.x] = r;""",
        block=(32,),
    ),
    "all_store_the_same_value": Case(
        """
        __shared__ bool any;
        if (threadIdx.x == 0) any = false;
        __syncthreads();
        if (in[threadIdx.x] > 3) any = true;
        __syncthreads();
        out[threadIdx.x] = any;""",
    ),
    "a_pre_check_of_a_maximum": Case(  # a volatile access is as good as an atomic one
        "int v = (int)in[blockIdx.x], *most = (int*)out; if (v > *(volatile int*)most) atomicMax(most, v);",
        block=(1,),
        grid=(6,),
    ),
    "tensor_cores": Case(
        """
        __shared__ __align__(16) half a[16 * 24], b[8 * 24];
        int t = threadIdx.x;
        for (int i = t; i < 256; i += 32) a[i / 16 * 24 + i % 16] = in[i];
        for (int i = t; i < 128; i += 32) b[i / 16 * 24 + i % 16] = in[i];
        __syncwarp();
        unsigned r[4], s[2], to_a = (unsigned)__cvta_generic_to_shared(a + t % 16 * 24 + t / 16 * 8);
        unsigned to_b = (unsigned)__cvta_generic_to_shared(b + t % 8 * 24 + t / 8 % 2 * 8);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(to_a));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(s[0]), "=r"(s[1]) : "r"(to_b));
        float c[4] = {};
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(s[0]), "r"(s[1]));
        ((float2*)out)[t] = make_float2(c[0], c[1]);
        ((float2*)out)[32 + t] = make_float2(c[2], c[3]);
        __syncwarp();
        for (int i = t; i < 256; i += 32) a[i / 16 * 24 + i % 16] = 0;""",
        block=(32,),
    ),
    "a_tile_by_an_odd_block": Case(
        """
        __shared__ float s[16][17];
        for (int r = threadIdx.y; r < 16; r += blockDim.y)
            for (int c = threadIdx.x; c < 16; c += blockDim.x) s[r][c] = in[16 * r + c];
        __syncthreads();
        for (int r = threadIdx.y; r < 16; r += blockDim.y)
            for (int c = threadIdx.x; c < 16; c += blockDim.x) {
                float v = 0;
                for (int k = 0; k < 16; k++) v += s[r][k] * s[c][k];
                out[16 * r + c] = v + s[c][r];
            }""",
        block=(5, 3),
    ),
    "votes_at_barriers": Case(
        """
        __shared__ float s[64];
        __shared__ double d[64];
        int i = threadIdx.x;
        s[i] = in[i];
        d[i] = i;
        __syncthreads();
        float v = s[63 - i];
        double w = d[i ^ 32];
        int all = __syncthreads_and(v >= 0), some = __syncthreads_count(v > 3);
        s[i] = v * all + some;
        d[i] = w;
        bool any = __syncthreads_or(i == 3);
        out[i] = s[63 - i] + d[63 - i] + any + __ballot_sync(~0u, v > 5) % 7 + __all_sync(~0u, i < 40);""",
    ),
    "three_dimensions_of_bytes": Case(
        """
        __shared__ signed char s[33];
        int t = threadIdx.x + 3 * threadIdx.y, b = blockIdx.x + 2 * (blockIdx.y + 3 * blockIdx.z), i = 33 * b + t;
        if (i >= n) return;
        s[t] = from[i];
        __syncthreads();
        to[i] = b < 23 ? s[32 - t] : s[t];""",
        block=(3, 11),
        grid=(2, 3, 4),
        parameters="const signed char* from, signed char* to, int n",
        args=lambda: (bytes_of(787), torch.zeros(787, dtype=torch.int8), np.int32(787)),
    ),
    "a_thousand_threads": Case(
        """
        __shared__ float s[1024];
        int i = threadIdx.x + 32 * (threadIdx.y + 8 * threadIdx.z);
        s[i] = in[i];
        __syncthreads();
        if (i < 256) out[i] = s[1023 - i];""",
        block=(32, 8, 4),
    ),
    "one_thread": Case("__shared__ float s; s = in[3]; out[0] = s;", block=(1,)),
    "blocks_write_halves_of_a_word": Case(
        "((unsigned short*)to)[blockIdx.x] = blockIdx.x;",
        block=(1,),
        grid=(8,),
        parameters="unsigned char* to",
        args=lambda: (torch.zeros(4, dtype=torch.int32),),
    ),
    "warps_write_halves_of_a_word": Case(
        "((unsigned short*)to)[threadIdx.x + 1] = threadIdx.x;",
        parameters="unsigned char* to",
        args=lambda: (torch.zeros(64, dtype=torch.int32),),
    ),
    "blocks_write_neighbouring_halves": Case(
        "to[blockIdx.x] = __float2half((float)blockIdx.x);",
        block=(1,),
        grid=(7,),
        parameters="half* to",
        args=lambda: (torch.zeros(7, dtype=torch.float16),),
    ),
    "views_of_one_tensor": Case(
        "int i = 32 * blockIdx.x + threadIdx.x; c[i] = a[i] + b[i];",
        block=(32,),
        grid=(2,),
        parameters="const float* a, const float* b, float* c",
        args=lambda: (base[3:67], base[40:104], base[129:193]),
    ),
    "an_empty_tensor": Case(
        "if (none) out[threadIdx.x] = 1;",
        block=(3,),
        parameters="const float* none, float* out",
        args=lambda: (torch.zeros(0), torch.zeros(3)),
    ),
}

# Kernels with fences stand in a file of their own: what one of them calls counts for all of its file.
FENCED_CLEAN = {
    "loop_of_cas_that_begins_with_a_plain_read": Case(
        """
        __threadfence();
        int old = *(int*)out, expected;
        do {
            expected = old;
            old = atomicCAS((int*)out, expected, expected + 1);
        } while (old != expected);""",
        grid=(3,),
    ),
    "last_block_sums": Case(
        """
        __shared__ float s[4];
        __shared__ bool last;
        float v = 0;
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < 4096; i += gridDim.x * blockDim.x) v += in[i];
        for (int step = 16; step; step /= 2) v += __shfl_xor_sync(~0u, v, step);
        if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
        __syncthreads();
        if (threadIdx.x == 0) {
            out[1 + blockIdx.x] = s[0] + s[1] + s[2] + s[3];
            __threadfence();
            last = atomicInc((unsigned*)out + 100, gridDim.x - 1) == gridDim.x - 1;
        }
        __syncthreads();
        if (!last || threadIdx.x) return;
        v = 0;
        for (int i = 0; i < gridDim.x; i++) v += out[1 + i];
        out[0] = v;""",
        block=(128,),
        grid=(16,),
    ),
    "every_thread_fences_and_the_last_block_sums": Case(  # as in CUDA's sample; and it is ready for the next launch
        """
        __shared__ bool last;
        unsigned* retired = (unsigned*)out + 255;
        out[64 * blockIdx.x + threadIdx.x] = in[threadIdx.x];
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) last = atomicInc(retired, gridDim.x) == gridDim.x - 1;
        __syncthreads();
        if (!last) return;
        __threadfence();
        float v = 0;
        for (int b = 0; b < 3; b++) v += out[64 * b + threadIdx.x];
        out[192 + threadIdx.x % 32] = 1;
        if (threadIdx.x == 1) *retired = 0;
        if (threadIdx.x < 32) out[threadIdx.x] = v;""",
        grid=(3,),
    ),
    "one_warp_hands_over_to_another": Case(
        """
        float* buffer = out + 100;
        int* flag = (int*)out + 200;
        if (threadIdx.x < 32) {
            buffer[threadIdx.x] = in[threadIdx.x];
            __threadfence();
            __syncwarp();
            if (threadIdx.x == 0) atomicExch(flag, 1);
        } else {
            while (atomicAdd(flag, 0) == 0) {}
            __threadfence();
            out[threadIdx.x - 32] = buffer[threadIdx.x - 32];
        }""",
    ),
    "warps_of_a_block_need_a_fence_of_the_block": Case(
        """
        volatile int* flag = (int*)out + 200;
        if (threadIdx.x == 0) {
            out[0] = in[0];
            __threadfence_block();
            *flag = 1;
        } else if (threadIdx.x == 32) {
            while (*flag == 0) __nanosleep(20);
            __threadfence_block();
            out[1] = out[0];
        }""",
    ),
    "a_scan_looks_back": Case(  # volatile flags; a block waits for the one before
        """
        volatile float* sums = out + 1;
        volatile int* flags = (int*)out + 100;
        __shared__ float before;
        if (threadIdx.x == 0) {
            float v = in[blockIdx.x];
            if (blockIdx.x > 0) {
                while (flags[blockIdx.x - 1] == 0) {}
                __threadfence();
                v += sums[blockIdx.x - 1];
            }
            sums[blockIdx.x] = before = v;
            __threadfence();
            flags[blockIdx.x] = 1;
        }
        __syncthreads();
        out[110 + 32 * blockIdx.x + threadIdx.x] = before;""",
        block=(32,),
        grid=(4,),
    ),
    "flags_by_ptx": Case(
        """
        int* flag = (int*)out + 200;
        int seen = 0;
        if (blockIdx.x == 0) {
            out[threadIdx.x] = in[threadIdx.x];
            __syncthreads();
            if (threadIdx.x == 0) asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(flag), "r"(1) : "memory");
        } else {
            while (threadIdx.x == 0 && seen == 0)
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
            __syncthreads();
            out[64 + threadIdx.x] = out[63 - threadIdx.x];
        }""",
        grid=(2,),
    ),
    "a_lock": Case(
        """
        int* lock = (int*)out + 200;
        if (threadIdx.x == 0) {
            while (atomicCAS(lock, 0, 1) != 0) {}
            __threadfence();
            out[0] += in[blockIdx.x];
            __threadfence();
            atomicExch(lock, 0);
        }
        out[1 + 32 * blockIdx.x + threadIdx.x] = 1;""",
        block=(32,),
        grid=(6,),
    ),
    "each_knows_by_the_one_before": Case(  # block 2 has waited for block 1 alone, which has waited for block 0
        """
        int* turn = (int*)out + 200;
        if (threadIdx.x == 0) {
            while (atomicAdd(turn, 0) != blockIdx.x) {}
            __threadfence();
            float v = 0;
            for (int i = 0; i < blockIdx.x; i++) v += out[i];
            out[blockIdx.x] = v + 1;
            __threadfence();
            atomicAdd(turn, 1);
        }""",
        block=(32,),
        grid=(4,),
    ),
}

BROKEN = {
    "one_past_the_end": Case("out[threadIdx.x + 193] = 1;    // memcheck"),
    "one_before_the_start": Case("out[threadIdx.x] = in[(int)threadIdx.x - 1];    // memcheck"),
    "far_away": Case("out[threadIdx.x] = in[100000000 + threadIdx.x];    // memcheck"),
    "the_sixth_of_five_bytes": Case(
        "to[threadIdx.x] = 1;    // memcheck",
        block=(6,),
        parameters="signed char* to",
        args=lambda: (torch.zeros(5, dtype=torch.int8),),
    ),
    "a_vector_that_sticks_out": Case(
        "*(float2*)(out + 2) = make_float2(0, 0);    // memcheck",
        block=(1,),
        parameters="float* out",
        args=lambda: (torch.zeros(3),),
    ),
    "from_one_view_into_the_next": Case(
        "c[threadIdx.x] = a[threadIdx.x + 1];    // memcheck",
        block=(32,),
        parameters="const float* a, const float* b, float* c",
        args=lambda: (base[:32], base[32:64], base[64:96]),
    ),
    "of_an_empty_tensor": Case(
        "out[threadIdx.x] = none[0];    // memcheck",
        block=(1,),
        parameters="const float* none, float* out",
        args=lambda: (torch.zeros(0), torch.zeros(3)),
    ),
    "misaligned_float2": Case("*(float2*)out = *(const float2*)(in + 1);    // memcheck", block=(1,)),
    "misaligned_int": Case("*(int*)((char*)out + 2) = 1;    // memcheck", block=(1,)),
    "misaligned_atomic": Case("atomicAdd((int*)((char*)out + 2), 1);    // memcheck", block=(1,)),
    "misaligned_ldmatrix": Case(
        """
        __shared__ __align__(16) unsigned short s[8 * 40];
        for (int i = threadIdx.x; i < 320; i += 32) s[i] = i;
        __syncwarp();
        unsigned r, address = (unsigned)__cvta_generic_to_shared(s + threadIdx.x % 8 * 36);
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r) : "r"(address));    // memcheck
        out[threadIdx.x] = r;""",
        block=(32,),
    ),
    "local_array": Case(
        """
        float t[8], v = 0;
        for (int i = 0; i < n - 55; i++)
            t[i] = in[i];    // memcheck
        for (int i = 0; i < 8; i++) v += t[i];
        out[threadIdx.x] = v;""",
    ),
    "static_shared": Case(
        """
        __shared__ float s[64];
        s[threadIdx.x + n - 63] = 1;    // memcheck
        __syncthreads();
        out[threadIdx.x] = s[1 + threadIdx.x % 63];""",
    ),
    "bad_index_then_bad_address": Case(
        """
        __shared__ float s[32], t[32];
        t[threadIdx.x] = 0;
        if (threadIdx.x) return;
        s[n - 31] = 1;     // memcheck
        out[n + 200] = t[0];    // memcheck""",
        block=(32,),
    ),
    "dynamic_shared": Case(
        """
        extern __shared__ float dynamic[];
        dynamic[threadIdx.x] = 1;    // memcheck
        if (threadIdx.x == 0) out[0] = dynamic[0];""",
        shared_mem=252,
    ),
    "before_dynamic_shared": Case(
        """
        extern __shared__ float dynamic[];
        dynamic[threadIdx.x] = 1;
        __syncthreads();
        if (threadIdx.x == 0) dynamic[-1 * n / n] = 1;    // memcheck
        out[threadIdx.x] = dynamic[threadIdx.x];""",
        shared_mem=256,
    ),
    "read_before_the_barrier": Case(
        """
        __shared__ float s[64];
        s[threadIdx.x] = in[threadIdx.x];    // racecheck
        out[threadIdx.x] = s[threadIdx.x ^ 32];    // racecheck""",
    ),
    "overwritten_before_it_is_read": Case(
        """
        __shared__ float s[64];
        s[threadIdx.x] = in[threadIdx.x];
        __syncthreads();
        out[threadIdx.x] = s[threadIdx.x ^ 32];    // racecheck
        s[threadIdx.x] = 1;    // racecheck""",
    ),
    "within_a_warp": Case(
        """
        __shared__ float s[64];
        s[threadIdx.x] = in[threadIdx.x];    // racecheck
        float v = __shfl_xor_sync(~0u, in[threadIdx.x], 1);
        out[threadIdx.x] = v + s[threadIdx.x ^ 1];    // racecheck""",
    ),
    "two_write": Case(
        """
        __shared__ float s[32];
        s[threadIdx.x / 2] = threadIdx.x;    // racecheck
        __syncthreads();
        out[threadIdx.x] = s[threadIdx.x / 2];""",
    ),
    "halves_of_words": Case(
        """
        __shared__ __align__(4) half h[64];
        h[threadIdx.x] = 1;    // racecheck
        __syncwarp();
        out[threadIdx.x] = __low2float(((half2*)h)[(threadIdx.x / 2 + 16) % 32]);    // racecheck""",
    ),
    "count_and_then_add": Case(
        """
        int slot = *(int*)out;    // racecheck
        out[1 + slot % 64] = 1;
        if (threadIdx.x == 0) atomicAdd((int*)out, 1);    // racecheck""",
    ),
    "blocks_read_what_others_add_to": Case(
        """
        int old = *(int*)out;    // racecheck
        atomicCAS((int*)out + 1, old, old + 1);
        if (threadIdx.x == 0 && blockIdx.x == 0) atomicAdd((int*)out, 1);    // racecheck""",
        grid=(2,),
    ),
    "behind_its_own_memory": Case(
        """
        float* s = new float[4];
        s[4] = 1;    // memcheck
        out[threadIdx.x] = s[threadIdx.x % 4];
        delete[] s;""",
    ),
    "atomic_after_plain": Case(
        """
        __shared__ int sum;
        if (threadIdx.x == 5) sum = 0;    // racecheck
        atomicAdd(&sum, 1);    // racecheck
        __syncthreads();
        out[threadIdx.x] = sum;""",
    ),
    "atomic_after_plain_and_own_atomic": Case(
        """
        __shared__ int sum;
        if (threadIdx.x == 0) {
            sum = 0;    // racecheck
            atomicAdd(&sum, 1);
        } else {
            int v = (int)in[threadIdx.x];
            atomicAdd(&sum, (int)in[v]);    // racecheck
        }
        __syncthreads();
        out[threadIdx.x] = sum;""",
    ),
    "plain_after_atomic": Case(
        """
        __shared__ int sum;
        if (threadIdx.x == 0) sum = 0;
        __syncthreads();
        atomicAdd(&sum, 1);    // racecheck
        if (threadIdx.x == 40) out[0] = sum;    // racecheck""",
    ),
    "global_within_a_block": Case(
        """
        out[threadIdx.x] = in[threadIdx.x];    // racecheck
        out[64 + threadIdx.x] = out[63 - threadIdx.x];    // racecheck""",
    ),
    "global_atomic_within_a_block": Case(
        """
        if (threadIdx.x == 0) out[0] = 0;    // racecheck
        atomicAdd(out, 1.f);    // racecheck""",
    ),
    "atomics_on_what_nobody_has_written": Case(
        """
        __shared__ int seen;
        atomicAdd(&seen, 1);    // initcheck
        __syncthreads();
        out[threadIdx.x] = seen;""",
    ),
    "atomics_on_dynamic_memory_that_nobody_has_written": Case(
        """
        extern __shared__ unsigned counts[];
        if (threadIdx.x == 0) atomicInc(counts, 5);    // initcheck
        if (threadIdx.x == 1) atomicCAS(counts + 1, 0, 1);    // initcheck
        if (threadIdx.x == 2) atomicExch((float*)counts + 2, 1.f);    // initcheck
        if (threadIdx.x == 3) atomicAdd((double*)counts + 2, 1.0);    // initcheck
        if (threadIdx.x == 4) atomicOr(counts + 6, 1u);    // initcheck
        out[threadIdx.x] = 1;""",
        shared_mem=28,
    ),
    "lanes_exchange_through_global_memory_at_once": Case(
        """
        out[threadIdx.x] = in[threadIdx.x];    // racecheck
        out[64 + threadIdx.x] = out[threadIdx.x ^ 1];    // racecheck""",
        block=(32,),
    ),
    "a_lane_overwrites_what_another_reads": Case(
        """
        float v = out[threadIdx.x ^ 1];    // racecheck
        out[threadIdx.x] = v + 1;    // racecheck""",
        block=(32,),
    ),
    "halves_of_words_in_global_memory": Case(
        """
        to[threadIdx.x] = 1;    // racecheck
        __syncwarp();
        from[threadIdx.x] = ((int*)to)[(threadIdx.x / 2 + 16) % 32];    // racecheck""",
        parameters="short* to, int* from",
        args=lambda: (torch.zeros(64, dtype=torch.int16), torch.zeros(64, dtype=torch.int32)),
    ),
    "warps_exchange_through_a_variable_at_once": Case(
        """
        table_d[threadIdx.x / 8] = in[threadIdx.x / 8];    // racecheck
        out[threadIdx.x] = table_d[7 - threadIdx.x / 8];    // racecheck""",
    ),
    "blocks_write_a_variable": Case("total = 5 + blockIdx.x;    // racecheck", block=(1,), grid=(3,)),
    "copy_without_wait": Case(
        """
        __shared__ __align__(16) float s[256];
        copy16(s + 4 * threadIdx.x, in + 4 * threadIdx.x);
        commit();
        __syncthreads();
        out[threadIdx.x] = s[255 - threadIdx.x];    // copy""",
    ),
    "wait_for_the_wrong_group": Case(
        """
        __shared__ __align__(16) float s[256], t[256];
        copy16(s + 4 * threadIdx.x, in + 4 * threadIdx.x);
        commit();
        copy16(t + 4 * threadIdx.x, in + 4 * threadIdx.x);
        commit();
        wait_for<1>();
        __syncthreads();
        out[threadIdx.x] = s[255 - threadIdx.x];
        out[threadIdx.x] += t[255 - threadIdx.x];    // copy""",
    ),
    "copy_over_what_others_read": Case(
        """
        __shared__ __align__(16) float s[2][256];
        int i = threadIdx.x;
        float v = 0;
        copy16(&s[0][4 * i], in + 4 * i);
        commit();
        for (int t = 0; t < 4; t++) {
            copy16(&s[(t + 1) % 2][4 * i], in + 4 * i);
            commit();
            wait_for<1>();
            __syncthreads();
            v += s[t % 2][255 - i];    // copy
        }
        out[i] = v;""",
    ),
    "write_over_a_copy": Case(
        """
        __shared__ __align__(16) float s[256];
        copy16(s + 4 * threadIdx.x, in + 4 * threadIdx.x);
        commit();
        __syncthreads();
        s[threadIdx.x] = 1;    // copy
        __syncthreads();
        wait_for<0>();
        __syncthreads();
        out[threadIdx.x] = s[255 - threadIdx.x];""",
    ),
    "global_sum_in_place": Case(
        """
        float sum = 0;
        for (int j = 0; j < 64; j++) sum += out[j];    // racecheck
        out[threadIdx.x] /= sum + 1;    // racecheck""",
    ),
    "blocks_write_one_element": Case("out[threadIdx.x] = blockIdx.x;    // racecheck", grid=(3,)),
    "blocks_write_and_a_later_one_reads": Case(
        """
        if (blockIdx.x == 0) out[threadIdx.x] = 1;    // racecheck
        if (blockIdx.x == 2) out[64 + threadIdx.x] = out[threadIdx.x];    // racecheck""",
        grid=(3,),
    ),
    "blocks_write_and_an_earlier_one_reads": Case(
        """
        if (blockIdx.x == 2) out[threadIdx.x] = 1;    // racecheck
        if (blockIdx.x == 0) out[64 + threadIdx.x] = out[threadIdx.x];    // racecheck""",
        grid=(3,),
    ),
    "block_0_clears_what_all_add_to": Case(
        """
        if (blockIdx.x == 0 && threadIdx.x == 0) out[0] = 0;    // racecheck
        atomicAdd(out, 1.f);    // racecheck""",
        block=(1,),
        grid=(8,),
    ),
    "block_0_reads_what_all_add_to": Case(
        """
        atomicAdd(out, 1.f);    // racecheck
        if (blockIdx.x == 0) out[1] = out[0];    // racecheck""",
        block=(1,),
        grid=(8,),
    ),
    "blocks_meet_in_overlapping_arguments": Case(
        "c[blockIdx.x] = a[blockIdx.x];    // racecheck",
        block=(1,),
        grid=(4,),
        parameters="const float* a, float* c",
        args=lambda: (base[:64], base[2:66]),
    ),
    "sum_without_a_start": Case(
        """
        __shared__ float s[64];
        s[threadIdx.x] += in[threadIdx.x];    // initcheck
        out[threadIdx.x] = s[threadIdx.x];""",
    ),
    "words_written_in_part": Case(
        """
        __shared__ float s[64];
        ((short*)s)[2 * threadIdx.x] = 1;
        __syncthreads();
        out[threadIdx.x] = s[63 - threadIdx.x];    // initcheck""",
    ),
    "written_after_the_read": Case(
        """
        __shared__ float s[32];
        float v = s[threadIdx.x];    // initcheck
        __syncwarp();
        s[threadIdx.x ^ 1] = 1;
        __syncwarp();
        out[threadIdx.x] = v + s[threadIdx.x];""",
        block=(32,),
    ),
    "barrier_before_a_return_at_the_end": Case(
        """
        for (int i = 0; i < (threadIdx.x < 32 ? 3 : 4); i++) __syncthreads();    // synccheck
        out[threadIdx.x] = 1;
        return;"""
    ),
    "barrier_of_one_branch": Case(
        """
        if (threadIdx.x < 32)
            __syncthreads();    // synccheck
        out[threadIdx.x] = 1;""",
    ),
    "barrier_of_two_branches": Case(
        """
        if (threadIdx.x < 5)
            __syncthreads();    // synccheck: either
        else
            __syncthreads();    // synccheck: either
        out[threadIdx.x] = 1;""",
    ),
    "barrier_in_a_loop": Case(
        """
        for (int i = 0; i < 1 + threadIdx.x % 2; i++)
            __syncthreads();    // synccheck
        out[threadIdx.x] = 1;""",
    ),
    "shuffle_against_barrier": Case(
        """
        if (threadIdx.x % 32 < 16)
            out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, n, 1);    // synccheck
        else
            __syncthreads();    // synccheck""",
    ),
    "mask_without_the_caller": Case(
        """
        if (threadIdx.x == 5)
            __syncwarp(0xf);    // synccheck""",
    ),
    "two_collectives": Case(
        """
        if (threadIdx.x % 2)
            out[0] = __any_sync(0xffffffffu, 1);    // synccheck: either
        else
            out[1] = __shfl_sync(0xffffffffu, n, 0);    // synccheck: either""",
    ),
    "shuffle_from_a_lane_that_left": Case(
        """
        if (threadIdx.x >= 40) return;
        float v = in[threadIdx.x];
        out[threadIdx.x] = v + __shfl_xor_sync(0xffffffffu, v, 16);    // synccheck""",
    ),
    "shuffle_from_a_lane_that_never_was": Case(
        """
        out[threadIdx.x] = __shfl_down_sync(0xffffffffu, in[threadIdx.x], 4);    // synccheck""",
        block=(40,),
    ),
    "shuffle_from_a_lane_outside_the_mask": Case(
        """
        if (threadIdx.x % 32 < 16)
            out[threadIdx.x] = __shfl_sync(0xffffu, in[threadIdx.x], 20);    // synccheck""",
    ),
}


FENCED_BROKEN = {
    "a_fence_of_the_block_is_none_of_the_grid": Case(
        """
        __threadfence_block();
        out[threadIdx.x] = blockIdx.x;    // racecheck""",
        grid=(3,),
    ),
    "a_fence_waits_for_nobody": Case(
        """
        atomicAdd(out, in[threadIdx.x]);    // racecheck
        __threadfence();
        out[1 + 32 * blockIdx.x + threadIdx.x] = in[threadIdx.x] / out[0];    // racecheck""",
        block=(32,),
        grid=(4,),
    ),
    "a_fence_is_no_barrier_of_warps": Case(
        """
        out[threadIdx.x] = in[threadIdx.x];    // racecheck
        __threadfence();
        out[64 + threadIdx.x] = out[63 - threadIdx.x];    // racecheck""",
    ),
    "the_fence_is_missing_before_the_flag": Case(
        """
        int* flag = (int*)out + 200;
        if (blockIdx.x == 0) {
            out[0] = 5;    // racecheck
            atomicExch(flag, 1);
        } else {
            while (atomicAdd(flag, 0) == 0) {}
            __threadfence();
            out[1] = out[0];    // racecheck
        }""",
        block=(1,),
        grid=(2,),
    ),
    "the_fence_stands_before_the_write": Case(
        """
        __shared__ bool last;
        if (threadIdx.x == 0) {
            __threadfence();
            out[1 + blockIdx.x] = in[blockIdx.x];    // racecheck
            last = atomicInc((unsigned*)out + 100, gridDim.x - 1) == gridDim.x - 1;
        }
        __syncthreads();
        if (!last || threadIdx.x) return;
        for (int i = 0; i < gridDim.x; i++) out[0] += out[1 + i];    // racecheck""",
        block=(32,),
        grid=(8,),
    ),
    "no_barrier_before_the_flag": Case(
        """
        __shared__ bool last;
        out[1 + 32 * blockIdx.x + threadIdx.x] = in[threadIdx.x];    // racecheck
        __threadfence();
        if (threadIdx.x == 31) last = atomicInc((unsigned*)out + 200, gridDim.x - 1) == gridDim.x - 1;
        __syncthreads();
        if (!last || threadIdx.x) return;
        for (int i = 0; i < 32 * gridDim.x; i++) out[0] += out[1 + i];    // racecheck""",
        block=(32,),
        grid=(5,),
    ),
    "no_barrier_behind_the_flag": Case(
        """
        volatile int* flag = (int*)out + 200;
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            out[0] = in[1];    // racecheck
            __threadfence();
            *flag = 1;
        } else if (blockIdx.x == 1) {
            while (threadIdx.x == 0 && *flag == 0) {}
            out[1 + threadIdx.x] = out[0];    // racecheck
        }""",
        grid=(2,),
    ),
    "a_fence_of_the_block_does_not_reach_the_next_one": Case(
        """
        volatile int* flag = (int*)out + 200;
        if (blockIdx.x == 0) {
            out[0] = in[1];    // racecheck
            __threadfence_block();
            *flag = 1;
        } else {
            while (*flag == 0) {}
            out[1] = out[0];    // racecheck
        }""",
        block=(1,),
        grid=(2,),
    ),
    "a_plain_flag": Case(
        """
        int* flag = (int*)out + 200;
        if (blockIdx.x == 0) {
            *flag = 1;    // racecheck
            __threadfence();
        } else {
            while (*(volatile int*)flag == 0) {}    // racecheck
        }""",
        block=(1,),
        grid=(2,),
    ),
}

GROUPS = (CLEAN, FENCED_CLEAN, BROKEN, FENCED_BROKEN)


def source(cases):
    return PROLOGUE + "\n".join(
        f'extern "C" __global__ void {name}({case.parameters}) {{\n{case.body}\n}}' for name, case in cases.items()
    )


def group_of(name):
    return next(group for group in GROUPS if name in group)


@functools.cache
def _compiled(group, compiler):
    return RawModule(code=source(GROUPS[group]))


def compiled(name, compiler):
    """All kernels of a group in one file, which saves compilations."""
    return _compiled(GROUPS.index(group_of(name)), compiler)


def marked(name):
    """The lines of a broken kernel that its comments mark, with what they say."""
    text = source(group_of(name)).splitlines()
    start = next(n for n, line in enumerate(text) if f" {name}(" in line)
    end = start + group_of(name)[name].body.count("\n") + 2
    found = {
        n + 1: re.search(r"// (memcheck|racecheck|initcheck|synccheck|copy)(: either)?", text[n])
        for n in range(start, end)
    }
    return {n: match for n, match in found.items() if match}


def launch(module, name, case, args):
    module.get_function(name)(case.grid, case.block, args, shared_mem=case.shared_mem)


@pytest.mark.parametrize("name", [*CLEAN, *FENCED_CLEAN])
def test_a_correct_kernel_has_no_finding_and_the_same_result(name, compiler, capsys):
    case, module = group_of(name)[name], compiled(name, compiler)
    plain, watched = (
        [a.clone() if isinstance(a, torch.Tensor) and a._base is None else a for a in case.args()] for _ in "12"
    )
    launch(module, name, case, tuple(plain))
    printed = capsys.readouterr().out
    with sanitize() as report, profile() as counters:
        launch(module, name, case, tuple(watched))
    assert not report.findings, str(report)
    assert report.launches == counters.launches == 1
    assert capsys.readouterr().out == printed
    for a, b in zip(plain, watched, strict=True):
        if isinstance(a, torch.Tensor):
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def found_in(name, compiler):
    case = group_of(name)[name]
    with sanitize() as report:
        try:
            launch(compiled(name, compiler), name, case, case.args())
        except KernelError:
            assert any("synccheck" in match[0] for match in marked(name).values()), str(report)
    return report


@pytest.mark.parametrize("name", [*BROKEN, *FENCED_BROKEN])
def test_a_mistake_is_found_and_nothing_else(name, each_compiler):
    with configure(threads=1):
        report = found_in(name, each_compiler)
    marks = marked(name)
    tools = {match[1].replace("copy", "racecheck") for match in marks.values()}
    assert {finding.tool for finding in report.findings} == tools, str(report)
    lines = {finding.line for finding in report.findings}
    if tools == {"racecheck"} and "copy" not in next(iter(marks.values()))[0]:
        assert all({f.line, f.other_line} == set(marks) for f in report.findings), str(report)
    elif any("copy" in match[0] for match in marks.values()):  # its other party is the cp.async in a function
        assert all(f.line in marks or f.other_line in marks for f in report.findings), str(report)
    elif any("either" in match[0] for match in marks.values()):  # the one names the other
        assert all({f.line, f.other_line} == set(marks) for f in report.findings), str(report)
        assert all(f.other_thread not in (None, f.thread) and f.other_block == f.block for f in report.findings)
    else:
        assert lines == set(marks), str(report)
    text = source(group_of(name)).splitlines()
    for finding in report.findings:
        assert finding.kernel == name and finding.file == "kernel.cu"
        assert finding.source == text[finding.line - 1].strip()
        assert finding.other_line is None or finding.other_source == text[finding.other_line - 1].strip()
        assert finding.block is not None and finding.thread is not None and finding.count >= 1


# ---------------------------------------------------------------------------------------------- what a finding says

FIRST = {
    "one_past_the_end": ((0, 0, 0), (63, 0, 0), 1, "writes out[256], and out has 256 elements of 4 bytes"),
    "one_before_the_start": ((0, 0, 0), (0, 0, 0), 1, "reads in[-1], and in has 4,096 elements"),
    "far_away": ((0, 0, 0), (0, 0, 0), 64, "reads in[100,000,000], and in has 4,096 elements"),
    "the_sixth_of_five_bytes": ((0, 0, 0), (5, 0, 0), 1, "writes to[5], and to has 5 elements of 1 byte"),
    "a_vector_that_sticks_out": ((0, 0, 0), (0, 0, 0), 1, "write of 8 bytes out of bounds, 4 bytes before the end of"),
    "from_one_view_into_the_next": ((0, 0, 0), (31, 0, 0), 1, "reads a[32], and a has 32 elements"),
    "misaligned_float2": ((0, 0, 0), (0, 0, 0), 1, "4 bytes past a multiple of 8"),
    "local_array": ((0, 0, 0), (0, 0, 0), 64, "index 8 is outside of"),
    "static_shared": ((0, 0, 0), (63, 0, 0), 1, "index 64 is outside of"),
    "dynamic_shared": ((0, 0, 0), (63, 0, 0), 1, "at byte 252 of dynamic shared memory"),
    "read_before_the_barrier": ((0, 0, 0), (0, 0, 0), 64, "read-after-write hazard in shared memory"),
    "overwritten_before_it_is_read": ((0, 0, 0), (0, 0, 0), 64, "write-after-read hazard in shared memory"),
    "within_a_warp": ((0, 0, 0), (0, 0, 0), 64, "with no __syncwarp()"),
    "two_write": ((0, 0, 0), (1, 0, 0), 32, "write-after-write hazard in shared memory"),
    "blocks_write_one_element": ((1, 0, 0), (0, 0, 0), 64, "writes global memory that another block writes"),
    "sum_without_a_start": ((0, 0, 0), (0, 0, 0), 64, "reads shared memory that no thread of the block has written"),
    "barrier_of_two_branches": (
        (0, 0, 0),
        (0, 0, 0),
        1,
        "but thread (63,0,0) of the same block waits at the one in line",
    ),
    "shuffle_against_barrier": ((0, 0, 0), (0, 0, 0), 1, r"32 threads in __syncthreads() at line"),
}


@pytest.mark.parametrize("name", FIRST)
def test_who_was_first_how_often_and_what_it_says(name, compiler):
    block, thread, count, message = FIRST[name]
    finding = found_in(name, compiler).findings[0]
    assert (finding.block, finding.thread, finding.count) == (block, thread, count)
    assert message in finding.message


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_reports_do_not_depend_on_the_order_of_blocks(threads):
    code = """extern "C" __global__ void k(float* out) {
        __shared__ float s[64];
        s[threadIdx.x ^ 1] = 1;
        out[threadIdx.x] = s[threadIdx.x ^ 33];
        atomicAdd(out + 64, 1.f);
        if (blockIdx.x % 5 == 3) out[66 + blockIdx.x] = out[64];
        if (blockIdx.x == 7) out[64] = 2;
    }"""
    kernel = RawModule(code=code).get_function("k")
    seen = set()
    for _ in range(5):
        with configure(threads=threads), sanitize() as report:
            kernel((40,), (64,), (torch.zeros(80),))
        seen.add(str(report))
    with configure(threads=1), sanitize() as report:
        kernel((40,), (64,), (torch.zeros(80),))
    assert seen == {str(report)}
    assert len(report.findings) >= 5


def test_the_first_block_is_named_though_several_pieces_of_code_share_a_line(run_kernel):
    with sanitize() as report:
        run_kernel(
            """extern "C" __global__ void k(float* out) {
            if (blockIdx.x % 2 == 1) out[threadIdx.x + 100] = 1; else out[threadIdx.x + 70] = 2;
        }""",
            (4,),
            (64,),
            (torch.zeros(64),),
        )
    assert [(f.block, f.thread, f.count) for f in report.findings] == [((0, 0, 0), (0, 0, 0), 256)]


def test_lines_of_headers_functions_macros_and_templates(compiler, tmp_path):
    (tmp_path / "store.cuh").write_text(
        "// stores\n#pragma once\n__device__ void store(float* to, int i) {\n    to[i] = 1;\n}\n"
    )
    (tmp_path / "k.cu").write_text(
        """#include "store.cuh"
#define PUT(i) out[i] = 2
template <int offset> __device__ void put(float* to) {
    to[threadIdx.x + offset] = 3;
}
__device__ __noinline__ void put_out_of_line(float* to, int i) {
    to[i] = 4;
}
extern "C" __global__ void k(float* out) {
    store(out, threadIdx.x + 1);
    PUT(threadIdx.x + 1);
    put<1>(out); put<2>(out);
    put_out_of_line(out, threadIdx.x + 1);
}
"""
    )
    with sanitize() as report:
        RawModule(code=read_kernel(tmp_path / "k.cu")).get_function("k")((1,), (32,), (torch.zeros(32),))
    found = sorted((Path(f.file).name, f.line, f.source, f.count) for f in report.findings if f.tool == "memcheck")
    assert found == [
        ("k.cu", 4, "to[threadIdx.x + offset] = 3;", 3),
        ("k.cu", 7, "to[i] = 4;", 1),
        ("k.cu", 11, "PUT(threadIdx.x + 1);", 1),
        ("store.cuh", 4, "to[i] = 1;", 1),
    ]


def test_a_function_of_a_header_that_stands_for_an_instruction_is_named_by_its_call(compiler, tmp_path):
    copy = """asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                 :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from) : "memory");"""
    header = f"__device__ inline void copy(float* to, const float* from) {{\n    {copy}\n}}\n"
    (tmp_path / "copy.cuh").write_text(header)
    (tmp_path / "k.cu").write_text(
        f"""#include "copy.cuh"
extern "C" __global__ void k(const float* x) {{
    __shared__ float s[32];
    float *to = s + threadIdx.x;
    const float *from = x + threadIdx.x + 1;
    copy(to, from);
    {copy}
}}
"""
    )
    with sanitize() as report:
        RawModule(code=read_kernel(tmp_path / "k.cu")).get_function("k")((1,), (32,), (torch.zeros(32),))
    found = [(Path(f.file).name, f.line) for f in report.findings if f.tool == "memcheck"]
    assert found == [("k.cu", 6), ("k.cu", 7)]


def test_the_same_line_of_two_files_is_two_findings(tmp_path):
    text = """__device__ float NAME(const float* x, int i) {
    float t[4] = {x[0], x[1], x[2], x[3]};
    return t[i];
}
"""
    for name in "ab":
        (tmp_path / f"{name}.cuh").write_text(text.replace("NAME", name))
    (tmp_path / "k.cu").write_text(
        """#include "a.cuh"
#include "b.cuh"
extern "C" __global__ void k(float* out, int n) { out[0] = a(out, n) + b(out, n); }
"""
    )
    with sanitize() as report:
        RawModule(code=read_kernel(tmp_path / "k.cu")).get_function("k")((1,), (1,), (torch.zeros(32), np.int32(5)))
    assert sorted((f.file, f.line) for f in report.findings) == [("a.cuh", 3), ("b.cuh", 3)]


# ---------------------------------------------------------------------------------------------- report and launch

GOOD = 'extern "C" __global__ void k(float* out) { out[threadIdx.x] += 1; }'
BAD = 'extern "C" __global__ void k(float* out) {\n    out[threadIdx.x + 1] += 1;\n}'


def run_once(code, out=None, grid=(1,), block=(32,)):
    out = torch.zeros(32) if out is None else out
    RawModule(code=code).get_function("k")(grid, block, (out,))
    return out


def test_launches_follow_one_another_and_a_plain_one_is_plain():
    run_once(BAD.replace("+ 1]", "+ 0]"))
    with sanitize() as report:
        run_once(GOOD)
        run_once(BAD)
        assert len(report.findings) == 2  # a read and a write, during the `with`, too
        run_once(BAD)
    assert report.launches == 3
    assert "3 launches" in str(report)
    with pytest.raises(KernelError, match="past the end"):
        run_once(BAD)
    assert report.launches == 3 and (run_once(GOOD) == 1).all()


def test_two_kernels_of_the_same_name_keep_their_findings_apart():
    with sanitize() as report:
        run_once('extern "C" __global__ void k(float* out) {\n    out[threadIdx.x + 1] = 1;\n}')
        run_once('extern "C" __global__ void k(float* out) {\n    out[threadIdx.x + 2] = 1;\n}')
    assert [(f.source, f.count) for f in report.findings] == [
        ("out[threadIdx.x + 1] = 1;", 1),
        ("out[threadIdx.x + 2] = 1;", 2),
    ]


def test_the_same_mistake_in_two_launches_is_one_finding_that_counts_both():
    with sanitize() as once:
        run_once(BAD)
    with sanitize() as twice:
        run_once(BAD)
        run_once(BAD)
    assert [f.count for f in twice.findings] == [2 * f.count for f in once.findings] != []


def test_nested_sanitizers_both_see_a_launch_and_end_in_order():
    with sanitize() as outer:
        with sanitize() as inner:
            pass
        run_once(BAD)
    assert (outer.launches, inner.launches) == (1, 0)
    with sanitize() as outer:
        run_once(GOOD)
        with sanitize() as inner, profile() as counters:
            run_once(BAD)
        run_once(GOOD)
    assert (outer.launches, inner.launches, counters.launches) == (3, 1, 1)
    assert outer.findings == [replace(one, launch=1) for one in inner.findings] and counters.total("requests") == 2
    with sanitize() as alone:
        run_once(GOOD)
    assert (outer.launches, alone.launches) == (3, 1)


def test_an_exception_inside_ends_the_watch():
    with pytest.raises(ZeroDivisionError), sanitize() as report:
        run_once(BAD)
        raise ZeroDivisionError
    assert len(report.findings) == 2
    with pytest.raises(KernelError):
        run_once(BAD)


def test_writes_out_of_bounds_reach_no_tensor():
    base = torch.zeros(96)
    with sanitize() as report:
        run_once(
            'extern "C" __global__ void k(float* out) { int i = threadIdx.x; out[i - 16] = 1; out[i + 16] = 1; }',
            base[32:64],
        )
    assert sum(f.count for f in report.findings if f.tool == "memcheck") == 32
    assert (base[32:64] == 1).all() and (base[:32] == 0).all() and (base[64:] == 0).all()


def test_a_read_only_argument_stays_as_it_is():
    x, out = torch.ones(32), torch.zeros(32)
    code = """extern "C" __global__ void k(const float* x, float* out) {
        ((float*)x)[threadIdx.x] = 7;
        out[threadIdx.x] = 1;
    }"""
    with sanitize():
        RawModule(code=code).get_function("k")((1,), (32,), (x, out))
    assert (x == 1).all() and (out == 1).all()


def test_what_was_found_before_a_crash_is_kept(compiler):
    code = """extern "C" __global__ void k(float* out) {
        if (threadIdx.x == 3) out[-1] = 1;
        if (threadIdx.x == 4) __trap();
        out[threadIdx.x] = 1;
    }"""
    out = torch.zeros(32)
    with sanitize() as report, pytest.raises(KernelError, match="trap") as caught:
        run_once(code, out)
    assert caught.value.line == 3 and [(f.tool, f.line, f.thread) for f in report.findings] == [
        ("memcheck", 2, (3, 0, 0))
    ]
    assert (out == 0).all()


def test_an_access_too_far_to_let_pass_is_a_finding_and_a_crash(compiler):
    code = """extern "C" __global__ void k(float* out) {
        if (threadIdx.x == 4)
            out[(long long)threadIdx.x << 40] = 1;
    }"""
    with sanitize() as report, pytest.raises(KernelError, match="invalid memory access") as caught:
        run_once(code)
    assert caught.value.line == 3 and [(f.tool, f.line, f.thread) for f in report.findings] == [
        ("memcheck", 3, (4, 0, 0))
    ]


def test_the_time_limit_is_kept_and_the_error_has_its_line():
    code = """extern "C" __global__ void k(float* out) {
        while (true)
            out[threadIdx.x + 1] += 1;
    }"""
    took = []
    for _ in range(3):  # the alarm may come in the middle of a finding
        start = time.monotonic()
        with configure(time_limit=0.1), sanitize() as report, pytest.raises(KernelError, match="time limit") as caught:
            run_once(code)
        took.append(time.monotonic() - start)
        assert caught.value.line in (2, 3) and {f.line for f in report.findings if f.tool == "memcheck"} == {3}
    assert min(took) < 2, took  # others are at work on this machine


def test_an_interrupt_ends_a_watched_launch():
    code = 'extern "C" __global__ void k(float* out) { while (true) out[threadIdx.x] += 1; }'
    with configure(time_limit=0.1), sanitize(), pytest.raises(KernelError):
        run_once(code)  # so that no compiler runs meanwhile
    with sanitize(), pytest.raises(KeyboardInterrupt), once_it_runs(lambda workers: interrupt()):
        run_once(code)
    with sanitize() as report:
        run_once(GOOD)
    assert report.launches == 1 and not report.findings


def test_variables_keep_their_values_between_watched_and_plain_launches(compiler):
    code = """
    __device__ int count;
    __constant__ int step = 1;
    extern "C" __global__ void k(int* out) { count += step; out[0] = count; }"""
    for watched in itertools.product([False, True], repeat=3):
        module, out, seen, findings = RawModule(code=code), torch.zeros(1, dtype=torch.int32), [], []
        for watch in watched:
            if watch:
                with sanitize() as report:
                    module.get_function("k")((1,), (1,), (out,))
                findings += report.findings
            else:
                module.get_function("k")((1,), (1,), (out,))
            seen.append(out.item())
        assert seen == [1, 2, 3] and not findings, watched
        assert module.get_global("count", (1,), torch.int32).item() == 3


def test_64_tensors_can_be_watched_and_more_are_refused():
    def run(n):
        parameters = ", ".join(f"int* a{i}" for i in range(n))
        stores = " ".join(f"a{i}[threadIdx.x] = {i};" for i in range(n))
        code = f'extern "C" __global__ void k({parameters}) {{ {stores} }}'
        tensors = tuple(torch.zeros(8, dtype=torch.int32) for _ in range(n))
        with sanitize() as report:
            RawModule(code=code).get_function("k")((1,), (9,), tensors)
        assert [int(t.sum()) for t in tensors] == [8 * i for i in range(n)]
        return report

    report = run(64)
    assert sum(f.count for f in report.findings) == 64
    with pytest.raises(ValueError, match="up to 64 tensors, got 65"):
        run(65)


def test_findings_beyond_the_room_for_them_are_counted():
    stores = "".join(f"    out[threadIdx.x + {i}] = 1;\n" for i in range(300))
    with sanitize() as report:
        run_once(f'extern "C" __global__ void k(float* out) {{\n{stores}}}', torch.zeros(0), block=(1,))
    assert len(report.findings) == 256 and report.dropped == 44 and "44 more" in str(report)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float32, "float"),
        pytest.param(torch.int8, "signed char", marks=pytest.mark.exhaustive("the same for each byte of a float")),
    ],
)
def test_a_large_array_needs_little_memory(dtype, name):
    """At most 20 bytes for each byte of a tensor: 64 MB of them fit into a laptop."""
    x = torch.zeros((8 << 20) // dtype.itemsize, dtype=dtype)
    code = f"""extern "C" __global__ void k({name}* x, int n) {{
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] = 1;
    }}"""
    kernel = RawModule(code=code).get_function("k")
    with sanitize() as report:
        kernel((1,), (32,), (x[:32], np.int32(32)))
        workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        kernel((8,), (256,), (x, np.int32(x.numel())))
    assert not report.findings and (x == 1).all()
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss - workers < 20 * (8 << 10)


# ---- shared variables of functions


@pytest.mark.parametrize("function", ["__device__", "__device__ inline", "template <int n> __device__"])
def test_shared_variables_of_a_function_belong_to_their_library(function, each_compiler):
    """Two modules and their traced builds, with a variable of one name and two sizes."""
    for size in (32, 512):
        code = f"""{function} float reverse(float x) {{
            __shared__ float s[{size}];
            s[threadIdx.x] = x;
            __syncthreads();
            return s[{size} - 1 - threadIdx.x];
        }}
        extern "C" __global__ void k(float* y) {{
            y[threadIdx.x] = reverse{"<1>" if "template" in function else ""}(y[threadIdx.x]);
        }}"""
        kernel = RawModule(code=code).get_function("k")
        y = torch.arange(float(size))
        kernel((1,), (size,), (y,))
        with sanitize() as report:
            kernel((1,), (size,), (y,))
        assert not report.findings and torch.equal(y, torch.arange(float(size)))


def test_lines_that_race_within_a_warp_and_between_warps_want_the_barrier_of_the_block():
    code = r"""extern "C" __global__ void k(float* x) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = s[INDEX];
}"""
    for index, barrier in (("threadIdx.x ^ 1", "__syncwarp()"), ("(threadIdx.x + 1) % 64", "__syncthreads()")):
        kernel = RawModule(code=code.replace("INDEX", index)).get_function("k")
        with sanitize() as report:
            kernel((1,), (64,), (torch.zeros(64),))
        (race,) = report.findings
        assert race.message.endswith(f"with no {barrier} in between"), index
