// e4m3_tile.cuh — tiles of E4M3, a byte a number, that multiply on tensor cores of 16 bits.
//
// ldmatrix takes two bytes for one number. So each register that it brings holds four numbers where
// a fragment has two: those in the even bytes are one fragment, those in the odd bytes another, and
// no byte changes places. Of 16 columns the even ones thus come first, then the odd ones, in K and
// in V. A sum of products does not mind the order, if Q has the same; and O has it as well.
//
// E4M3 and the 16-bit formats differ in how wide their exponents are: with its bits in the places of
// theirs a number is too small by a power of two, which is exact. In fp16 that is left to the
// caller, UNIT; in bf16 it would be 2^-120, where numbers have few bits left, so it is taken back.
// Functions have the names and the meaning that they have in tile_products.cuh.
// Include after D is defined.
#pragma once
#include "e4m3.cuh"
#include "tile_products.cuh"

#if BF16
constexpr float UNIT = 1;
#else
constexpr float UNIT = 256;
#endif

// The numbers in the upper byte of either half, over UNIT, as two numbers of 16 bits.
__device__ inline unsigned widen(unsigned x) {
#if BF16
    unsigned both = (x & 0x80008000) | (x >> 4 & 0x07f007f0);
    __nv_bfloat162& pair = reinterpret_cast<__nv_bfloat162&>(both);
    pair = __hmul2(pair, __float2bfloat162_rn(1.32922800e36f));   // 2^120
    return both;
#else
    return (x & 0x80008000) | (x >> 1 & 0x3f803f80);
#endif
}

// The column that is at a place of the 16-bit tiles: of 16, the even ones first.
__device__ inline int column_of(int place) {
    return place / 16 * 16 + place % 8 * 2 + place / 8 % 2;
}

// Index of the first number of a chunk, of 16. Eight rows of the same chunk lie in all 32 banks.
__device__ inline int place_of(int row, int chunk) {
    return row * D + (chunk ^ (D == 128 ? row % 8 : row / 2 % 4)) * 16;
}

struct Corner { unsigned address; };

__device__ inline Corner by_rows(const E4M3* tile) {   // 16 rows of two chunks
    const int lane = threadIdx.x % 32;
    return {(unsigned)__cvta_generic_to_shared(tile + place_of(lane % 16, 0)) ^ lane / 16 * 16};
}

__device__ inline Corner by_columns(const E4M3* tile) {   // 32 rows of one chunk
    return {(unsigned)__cvta_generic_to_shared(tile + place_of(threadIdx.x % 32, 0))};
}

__device__ inline Corner at(Corner corner, int row, int column) {
    return {(corner.address ^ column) + D * row};
}

// sum += a Bᵀ / UNIT; B by columns, [8 N, 16].
template <int M, int N>
__device__ inline void multiply_transposed(float (&sum)[M][N][4], const unsigned (&a)[M][4],
                                           Corner B) {
    static_assert(N % 4 == 0, "B_C must be a multiple of 32");
    #pragma unroll
    for (int n = 0; n < N; n += 4) {
        unsigned b[4];
        ldmatrix_x4(b, at(B, 8 * n, 0).address);
        #pragma unroll
        for (int k = 0; k < 4; k++) {
            const unsigned even = widen(b[k] << 8), odd = widen(b[k]);
            for (int m = 0; m < M; m++) mma_16x8x16(sum[m][n + k], a[m], even, odd);
        }
    }
}

// sum += a B / UNIT; B by rows, [16, 8 N].
template <int M, int N>
__device__ inline void multiply(float (&sum)[M][N][4], const unsigned (&a)[M][4], Corner B) {
    #pragma unroll
    for (int n = 0; n < N; n += 4) {
        unsigned b[4];
        ldmatrix_x4_trans(b, at(B, 0, 8 * n).address);
        #pragma unroll
        for (int k = 0; k < 4; k += 2) {
            const unsigned even[] = {widen(b[k] << 8), widen(b[k + 1] << 8)};
            const unsigned odd[] = {widen(b[k]), widen(b[k + 1])};
            for (int m = 0; m < M; m++) {
                mma_16x8x16(sum[m][n + k], a[m], even[0], even[1]);
                mma_16x8x16(sum[m][n + k + 1], a[m], odd[0], odd[1]);
            }
        }
    }
}
