// tensor_core_tile_mistakes.cuh — tensor_core_tile.cu with hooks where learners err; the .toml of its name has them.
// arch: sm_80
#include "tensor_core.cuh"

constexpr int ROWS = 16, MOST_D = 256, PITCH = MOST_D + 8;
__constant__ int D;   // an option of the solution

struct Place { int row, column; };   // of a tile; of a step's columns

__device__ void load_tile(__half (&tile)[ROWS][PITCH], const __half* matrix, int first, int L) {
    for (int e = threadIdx.x * 8; e < ROWS * D; e += 32 * 8)
        *reinterpret_cast<uint4*>(&tile[e / D][e % D]) = first + e / D < L
            ? *reinterpret_cast<const uint4*>(matrix + (long long)first * D + e) : uint4{};
}

// Where number h of a[e] comes from.
__device__ Place of_A(const Variant& variant, int g, int t, int e, int h) {
    e = WRONG(A_ROWS_SWAPPED, WRONG(A_COLUMNS_SWAPPED, e, e ^ 2), e ^ 1);
    e = WRONG(A_ROW_TWICE, WRONG(A_COLUMNS_TWICE, e, e & 1), e & 2);
    e = WRONG(A_1_AND_2_SWAPPED, e, e % 2 * 2 + e / 2);
    const int row = WRONG(A_ROWS_2G, g + e % 2 * 8, 2 * g + e % 2);
    const int column = WRONG(A_COLUMNS_4T, 2 * t + e / 2 * 8, 4 * t + e / 2 * 2) + WRONG(A_PAIR_SWAPPED, h, 1 - h);
    return variant.pulls(A_TRANSPOSED) ? Place{column, row} : Place{row, column};
}

// Where number h of b[n][e] comes from.
__device__ Place of_B(const Variant& variant, int g, int t, int n, int e, int h) {
    e = WRONG(B_ROWS_TWICE, e, 0), n = WRONG(B_HALF_TWICE, WRONG(B_HALVES_SWAPPED, n, 1 - n), 0);
    const int row = 8 * n + g, column = WRONG(B_ROWS_4T, 2 * t + e * 8, 4 * t + e * 2) + h;
    return variant.pulls(B_TRANSPOSED) ? Place{column, row} : Place{row, column};
}

// Where S_d[n][e] goes.
__device__ Place of_S(const Variant& variant, int g, int t, int n, int e) {
    e = WRONG(D_1_AND_2_SWAPPED, WRONG(D_PAIR_SWAPPED, e, e ^ 1), e % 2 * 2 + e / 2);
    const int row = WRONG(D_ROWS_2G, g + e / 2 * 8, 2 * g + e / 2);
    const int column = 8 * n + WRONG(D_COLUMNS_T, 2 * t + e % 2, t + e % 2 * 4);
    return variant.pulls(S_TRANSPOSED) ? Place{column, row} : Place{row, column};
}

__device__ unsigned pair_at(const __half (&tile)[ROWS][PITCH], int k, Place first, Place second) {
    return __half_as_ushort(tile[first.row][k + first.column]) |
           (unsigned)__half_as_ushort(tile[second.row][k + second.column]) << 16;
}

extern "C" __global__ void __launch_bounds__(32)
tensor_core_tile(const __half* Q, const __half* K, float* S, int L_q, int L_k) {
    const Variant variant = variants[variant_number()];
    __shared__ __align__(16) __half Q_tile[ROWS][PITCH], K_tile[ROWS][PITCH];
    const int i0 = blockIdx.y * ROWS, j0 = blockIdx.x * ROWS, lane = threadIdx.x, g = lane / 4, t = lane % 4;
    const long long head = blockIdx.z;
    S += ((long long)variant_number() * gridDim.z + head) * L_q * L_k;
    load_tile(Q_tile, Q + WRONG(HEAD_0_OF_Q, head, 0) * L_q * D, i0, L_q);
    load_tile(K_tile, K + WRONG(HEAD_0_OF_K, head, 0) * L_k * D, j0, L_k);
    __syncwarp();

    float S_d[2][4] = {};
    const int end = WRONG(FIRST_STEP, WRONG(LAST_STEP, D, max(16, D - 16)), 16);
    for (int k = 0; k < end; k += 16) {
        const int k_of_Q = WRONG(FIRST_COLUMNS_OF_Q, k, 0), k_of_K = WRONG(FIRST_COLUMNS_OF_K, k, 0);
        unsigned a[4], b[2][2];
        for (int e = 0; e < 4; e++)
            a[e] = pair_at(Q_tile, k_of_Q, of_A(variant, g, t, e, 0), of_A(variant, g, t, e, 1));
        for (int n = 0; n < 2; n++)
            for (int e = 0; e < 2; e++)
                b[n][e] = pair_at(K_tile, k_of_K, of_B(variant, g, t, n, e, 0), of_B(variant, g, t, n, e, 1));
        for (int e = 0; e < 8 && variant.pulls(SUMS_ANEW); e++) S_d[e / 4][e % 4] = 0;
        for (int n = 0; n < WRONG(ONE_HALF, 2, 1); n++) mma_16x8x16(S_d[n], a, b[n][0], b[n][1]);
    }

    for (int n = 0; n < 2; n++)
        for (int e = 0; e < 4; e++) {
            const Place place = of_S(variant, g, t, n, e);
            const int i = i0 + place.row, j = j0 + place.column;
            const float s = WRONG(IN_FP16, S_d[n][e], __half2float(__float2half(S_d[n][e])));
            if (i < L_q && j < L_k) S[(long long)i * L_k + j] = WRONG(SCALED, s, s * rsqrtf(D));
        }
}
