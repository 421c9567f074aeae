// tensor_core_tile.cu — S = Q Kᵀ on a tensor core: one warp computes a tile of 16 queries and 16
// keys by mma.sync, 16 columns of Q and K at a time.
//
// mma.sync multiplies for the whole warp at once: D += A B, with A [16, 16], B [16, 8] in fp16 and
// D [16, 8] in fp32. Each lane brings its share of A, B and D in registers, and gets its share of D
// back. Which numbers are whose is fixed by the hardware; with lane = 4 g + t, g = 0 … 7, t = 0 … 3:
//   A   a[0]: row g,     columns 2t and 2t + 1      a[1]: row g + 8, columns 2t and 2t + 1
//       a[2]: row g,     columns 2t + 8 and 2t + 9  a[3]: row g + 8, columns 2t + 8 and 2t + 9
//   B   b[0]: column g,  rows 2t and 2t + 1         b[1]: column g,  rows 2t + 8 and 2t + 9
//   D   d[0], d[1]: row g, columns 2t and 2t + 1    d[2], d[3]: row g + 8, columns 2t and 2t + 1
// A register of A or B holds two fp16 numbers, the first of them in its lower half.
//
// grid   (ceil(L_k / 16), ceil(L_q / 16), B · H)      block (32)
// layout Q [B, H, L_q, D], K [B, H, L_k, D], fp16, aligned to 16 bytes, S [B, H, L_q, L_k], fp32;
//        contiguous
// shared 64 · (D + 8) bytes, static
// limits D a multiple of 16, up to 256; any L_q and L_k from 1
// options: -DD=16 | -DD=64
// arch: sm_80
// source PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type"
#include "tensor_core.cuh"

constexpr int ROWS = 16, PITCH = D + 8;   // padding: eight rows of a column lie in different banks
static_assert(D % 16 == 0, "mma.sync takes 16 columns");

// Rows `first`, first + 1, ... of a [L, D] matrix to shared memory, 8 numbers at a time; zeros past
// its end.
__device__ void load_tile(__half (&tile)[ROWS][PITCH], const __half* matrix, int first, int L) {
    for (int e = threadIdx.x * 8; e < ROWS * D; e += 32 * 8)
        *reinterpret_cast<uint4*>(&tile[e / D][e % D]) = first + e / D < L
            ? *reinterpret_cast<const uint4*>(matrix + (long long)first * D + e) : uint4{};
}

// The two neighbouring numbers at `from`, as a register for mma.sync. `from` is a multiple of 4 bytes.
__device__ inline unsigned pair_at(const __half* from) {
    return *reinterpret_cast<const unsigned*>(from);
}

extern "C" __global__ void __launch_bounds__(32)
tensor_core_tile(const __half* Q, const __half* K, float* S, int L_q, int L_k) {
    __shared__ __align__(16) __half Q_tile[ROWS][PITCH], K_tile[ROWS][PITCH];
    const int i0 = blockIdx.y * ROWS, j0 = blockIdx.x * ROWS, lane = threadIdx.x;
    const long long head = blockIdx.z;
    S += head * L_q * L_k;
    load_tile(Q_tile, Q + head * L_q * D, i0, L_q);
    load_tile(K_tile, K + head * L_k * D, j0, L_k);
    __syncwarp();

    // S of the tile, as sums that the lane keeps: S_d[n] are its four numbers of the keys 8 n …
    // 8 n + 7. The tensor core adds to them.
    float S_d[2][4] = {};

    // 1. g and t of this lane.
    int g = 0, t = 0;
    // BEGIN SOLUTION
    g = lane / 4;
    t = lane % 4;
    // END SOLUTION

    for (int k = 0; k < D; k += 16) {
        unsigned a[4] = {}, b[2][2] = {};
        // 2. The fragments of columns k … k + 15. A is a piece of Q_tile. B is a piece of Kᵀ: column
        //    g of B is a row of K_tile, and b[n] belongs to S_d[n].
        // BEGIN SOLUTION
        for (int e = 0; e < 4; e++)
            a[e] = pair_at(&Q_tile[g + e % 2 * 8][k + 2 * t + e / 2 * 8]);
        for (int n = 0; n < 2; n++)
            for (int e = 0; e < 2; e++)
                b[n][e] = pair_at(&K_tile[8 * n + g][k + 2 * t + e * 8]);
        // END SOLUTION

        // 3. The products: mma_16x8x16(d, a, b0, b1) does d += A B.
        // BEGIN SOLUTION
        for (int n = 0; n < 2; n++) mma_16x8x16(S_d[n], a, b[n][0], b[n][1]);
        // END SOLUTION
    }

    // 4. The lane's eight numbers to S, where there are such a query and key.
    // BEGIN SOLUTION
    for (int n = 0; n < 2; n++)
        for (int e = 0; e < 4; e++) {
            const int i = i0 + g + e / 2 * 8, j = j0 + 8 * n + 2 * t + e % 2;
            if (i < L_q && j < L_k) S[(long long)i * L_k + j] = S_d[n][e];
        }
    // END SOLUTION
}
