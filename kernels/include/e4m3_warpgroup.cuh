// e4m3_warpgroup.cuh — what a warpgroup does with tiles of E4M3, beside warpgroup_tile.cuh.
//
// wgmma takes factors of 8 bits in one order only: the numbers that it multiplies and adds lie side by
// side. The head dimension does so in Q and K; of V the keys have to. So V is transposed: a tile
// [D, B_C], of rows of 128 bytes. ldmatrix moves two bytes as one number, and transposes pairs of
// columns: in two registers, of keys 0 to 7 and 8 to 15, a lane has keys 2t, 2t+1, 2t+8 and 2t+9 of
// two columns. Those of a column become bytes 4t to 4t+3 of its 16. A lane has the same keys of a row
// of P, and wgmma wants them in the same four places of the left factor: no number of P changes lanes.
//
// Weights are 2^8 times as large as exp(S − m), up to 256: E4M3 ends at 448, and below 2^-6 loses bits,
// from 2^-10 on all. So a weight counts down to 2^-18 of the largest.
// Include after D, B_C and BF16 (of O) are defined.
// paper  FlashAttention-3 (arXiv 2407.08608), §3.3
#pragma once
#include "e4m3.cuh"
#include "warpgroup_tile.cuh"

constexpr float WEIGHT_BITS = 8;
typedef unsigned Weights8[B_C / 32][4];   // P, four numbers to a register, the left factor of P V

#define WGMMA_E4M3(n) "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 "

// D = A Bᵀ, or D += A Bᵀ with `add`: A [64, 32], and B [128, 32] or [64, 32].
__device__ inline void multiply_e4m3(float (&d)[64], unsigned long long a, unsigned long long b,
                                     int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; "
                 WGMMA_E4M3(128) "{" D_64 "}, %64, %65, p, 1, 1; }"
                 : REGISTERS_64(d) : "l"(a), "l"(b), "r"(add));
}
__device__ inline void multiply_e4m3(float (&d)[64], const unsigned (&a)[4], unsigned long long b,
                                     int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0; "
                 WGMMA_E4M3(128) "{" D_64 "}, {%64, %65, %66, %67}, %68, p, 1, 1; }"
                 : REGISTERS_64(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
__device__ inline void multiply_e4m3(float (&d)[32], const unsigned (&a)[4], unsigned long long b,
                                     int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; "
                 WGMMA_E4M3(64) "{" D_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1; }"
                 : REGISTERS_32(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// Starts S = Q Kᵀ. A row is D bytes.
__device__ inline void start_scores(Scores& S, const E4M3* Q, const E4M3* K) {
    const unsigned long long q = descriptor<D>(Q), k = descriptor<D>(K);
    wgmma_fence();
    #pragma unroll
    for (int d = 0; d < D; d += 32) multiply_e4m3(flat(S), moved(q, d), moved(k, d), d > 0);
    wgmma_commit();
}

// Starts T = P V, or T += P V with `add`; V transposed.
__device__ inline void start_output(Output& T, const Weights8& P, const E4M3* V, bool add) {
    const unsigned long long v = descriptor(V);
    wgmma_fence();
    #pragma unroll
    for (int key = 0; key < B_C; key += 32)
        multiply_e4m3(flat(T), P[key / 32], moved(v, key), add || key > 0);
    wgmma_commit();
}

// O = factor O + T in fp32, the factor by row.
__device__ inline void add_output(Output& O, const float (&factor)[2], const Output& T) {
    #pragma unroll
    for (int n = 0; n < D / 8; n++)
        #pragma unroll
        for (int e = 0; e < 4; e++) O[n][e] = fmaf(O[n][e], factor[e / 2], T[n][e]);
}

__device__ inline void pack_weights(Weights8& P, const Scores& S) {
    #pragma unroll
    for (int n = 0; n < B_C / 8; n += 2)
        #pragma unroll
        for (int r = 0; r < 2; r++)
            P[n / 4][n % 4 + r] =
                pack_e4m3(S[n][2 * r], S[n][2 * r + 1], S[n + 1][2 * r], S[n + 1][2 * r + 1]);
}

// A warp transposes 32 keys of V, from key on, in the order that P has. Of 16 columns the lanes with
// g < 4 take the even one first and the others the odd one: so the rows that a warp writes together
// are all different modulo 8, and lie in all 32 banks.
__device__ inline void transpose_keys(E4M3* to, const E4M3* from, int key) {
    const int lane = threadIdx.x % 32, matrix = lane / 8, r = lane % 8;
    const int column = 2 * r + (matrix % 2 ^ r / 4), chunk = key / 16 + matrix / 2;
    const unsigned own_chunk = D == 128 ? lane % 8 : lane / 2 % 4;   // where a row has chunk 0
    const unsigned source =
        (unsigned)__cvta_generic_to_shared(from) + (key + lane) * D + own_chunk * 16;
    const unsigned target = (unsigned)__cvta_generic_to_shared(to) + column * B_C +
                            (chunk ^ column % 8) * 16;
    const unsigned one = lane < 16 ? 0x6420 : 0x7531, other = one ^ 0x1111;   // of each pair's bytes
    constexpr int AT_ONCE = 2;
    #pragma unroll 1   // the producer has few registers
    for (int d = 0; d < D / 16; d += AT_ONCE) {
        unsigned pairs[AT_ONCE][4];
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            ldmatrix_x4_trans(pairs[i], source ^ (d + i) * 16);
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const unsigned(&x)[4] = pairs[i];
            stmatrix_x4(target + (d + i) * 16 * B_C,
                        {__byte_perm(x[0], x[1], one), __byte_perm(x[0], x[1], other),
                         __byte_perm(x[2], x[3], one), __byte_perm(x[2], x[3], other)});
        }
    }
}
