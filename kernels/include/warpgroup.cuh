// warpgroup.cuh — Hopper's matrix products: four warps multiply tiles that lie in shared memory.
//
// wgmma runs beside the threads that started it: wgmma_fence() before, wgmma_commit() after, and
// wgmma_wait<N>() until at most the N newest groups are still running, as with cp.async. D [64, n]
// is in registers: warp w of the four has rows 16 w + g and 16 w + g + 8, and of each eight columns
// 2t and 2t+1, where lane = 4 g + t; the same as mma.sync's D.
//
// A tile in shared memory is panels of 64 columns: row r of a panel is 128 bytes, of which chunk c,
// 16 bytes, is stored at place c XOR (r mod 8); a panel begins at a multiple of 1024 bytes. That is
// "128-byte swizzle", and a 64-bit descriptor says where the tile begins and how it goes on.
// source  PTX ISA, "Asynchronous warpgroup level matrix instructions", "setmaxnreg"
#pragma once
#include "tensor_core.cuh"

// Index of the first element of a chunk in a tile of `rows` rows; chunk 8 begins the second panel.
__device__ inline int in_panels(int rows, int row, int chunk) {
    return chunk / 8 * rows * 64 + row * 64 + (chunk % 8 ^ row % 8) * 8;
}

// A descriptor: bits 0 to 13 the address; 16 to 29 the bytes from a panel to the next, for products
// that take more than one; 32 to 45 the bytes from eight rows to the next eight, 1024; all three
// divided by 16. Bits 62 and 63 are 1 for the 128-byte swizzle. The shuffle tells the compiler that
// all lanes have the same one: it then computes those it needs where it needs them.
// With ROW_BYTES = 64 a panel's rows are half as long, and chunk c of row r is at c XOR (r / 2 mod 4):
// "64-byte swizzle", 2 in bits 62 and 63.
template <int ROW_BYTES = 128>
__device__ inline unsigned long long descriptor(const void* tile, int next_panel = 16) {
    const unsigned place = __shfl_sync(0xffffffff, (unsigned)__cvta_generic_to_shared(tile), 0);
    const unsigned low = (place & 0x3ffff) >> 4 | next_panel >> 4 << 16;
    const unsigned high = 8 * ROW_BYTES >> 4 | (ROW_BYTES == 128 ? 1u : 2u) << 30;
    return (unsigned long long)high << 32 | low;
}

// The same, a number of bytes further on. Only the lower half counts on: the address is there.
__device__ inline unsigned long long moved(unsigned long long descriptor, int bytes) {
    const unsigned low = (unsigned)descriptor + (bytes >> 4);
    return descriptor & 0xffffffff00000000 | low;
}

// What was written to registers of D and A before this, the products after it see.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N>
__device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}
// The same for a D that is complete then. The compiler, which knows nothing of that, must believe
// that D changes here: else it reads D before.
template <int N, int SIZE>
__device__ inline void wgmma_wait(float (&d)[SIZE]) {
    wgmma_wait<N>();
    #pragma unroll
    for (int i = 0; i < SIZE; i++) asm volatile("" : "+f"(d[i]) :: "memory");
}

#if BF16
#define WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 "
#else
#define WGMMA(n) "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 "
#endif
#define REGISTERS_8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
                          "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define REGISTERS_16(d, i) REGISTERS_8(d, i), REGISTERS_8(d, i + 8)
#define REGISTERS_32(d) REGISTERS_16(d, 0), REGISTERS_16(d, 16)
#define REGISTERS_64(d) REGISTERS_32(d), REGISTERS_16(d, 32), REGISTERS_16(d, 48)
// What stands for them in an instruction.
#define D_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define D_32 D_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define D_64 D_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46" \
                  ", %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61" \
                  ", %62, %63"

// D = A Bᵀ, or D += A Bᵀ with `add`: A [64, 16], and B [32, 16], [64, 16] or [128, 16].
__device__ inline void multiply_transposed(float (&d)[16], unsigned long long a,
                                           unsigned long long b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %18, 0; "
                 WGMMA(32) "{" D_16 "}, %16, %17, p, 1, 1, 0, 0; }"
                 : REGISTERS_16(d, 0) : "l"(a), "l"(b), "r"(add));
}
__device__ inline void multiply_transposed(float (&d)[32], unsigned long long a,
                                           unsigned long long b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; "
                 WGMMA(64) "{" D_32 "}, %32, %33, p, 1, 1, 0, 0; }"
                 : REGISTERS_32(d) : "l"(a), "l"(b), "r"(add));
}
__device__ inline void multiply_transposed(float (&d)[64], unsigned long long a,
                                           unsigned long long b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; "
                 WGMMA(128) "{" D_64 "}, %64, %65, p, 1, 1, 0, 0; }"
                 : REGISTERS_64(d) : "l"(a), "l"(b), "r"(add));
}

// D += A B: A [64, 16], and B [16, 128] in two panels. The last 1: B is stored with its columns side
// by side, "transposed".
__device__ inline void multiply(float (&d)[64], unsigned long long a, unsigned long long b) {
    asm volatile(WGMMA(128) "{" D_64 "}, %64, %65, 1, 1, 1, 0, 1;"
                 : REGISTERS_64(d) : "l"(a), "l"(b));
}

// D = Aᵀ B, or D += Aᵀ B with `add`: A [16, 64] and B [16, 64], each in one panel.
__device__ inline void multiply_by_columns(float (&d)[32], unsigned long long a,
                                           unsigned long long b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; "
                 WGMMA(64) "{" D_32 "}, %32, %33, p, 1, 1, 1, 1; }"
                 : REGISTERS_32(d) : "l"(a), "l"(b), "r"(add));
}

// D += A B with A in registers, as mma.sync takes it (tensor_core.cuh); B [16, 64] or [16, 128].
__device__ inline void multiply(float (&d)[32], const unsigned (&a)[4], unsigned long long b) {
    asm volatile(WGMMA(64) "{" D_32 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : REGISTERS_32(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ inline void multiply(float (&d)[64], const unsigned (&a)[4], unsigned long long b) {
    asm volatile(WGMMA(128) "{" D_64 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : REGISTERS_64(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// Four 8 × 8 matrices of 16 bits to shared memory, as ldmatrix_x4 (tensor_core.cuh) brings them from
// there: lane 8 i + r brings the address of row r of matrix i.
__device__ inline void stmatrix_x4(unsigned address, const unsigned (&matrices)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(address), "r"(matrices[0]), "r"(matrices[1]), "r"(matrices[2]),
                    "r"(matrices[3]) : "memory");
}

// What this thread has stored to shared memory, the tensor cores and the copy engine see after the
// barrier that follows.
__device__ inline void publish_tile() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Registers of a thread from here on. All warps of a warpgroup ask; what some take, others have given.
template <int N>
__device__ inline void raise_register_limit() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N));
}
template <int N>
__device__ inline void lower_register_limit() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N));
}
