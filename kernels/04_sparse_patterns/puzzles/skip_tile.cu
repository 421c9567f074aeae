// skip_tile.cu — sliding-window attention, 0 <= i − j < window, that loads no tile of keys which its queries do not see.
//
// grid   (ceil(L / B_R))               block  (B_R), a thread per query
// layout Q, K, V, O [L, D], fp32, contiguous
// shared 8 · B_C · D bytes
// limits any L and window from 1 with L · D below 2^31; L + B_R below 2^31
// options: -DD=16 -DB_R=32 -DB_C=16 | -DD=16 -DB_R=16 -DB_C=24
#include "one_row.cuh"

extern "C" __global__ void skip_tile(const float* Q, const float* K, const float* V, float* O,
                                     int L, int window, float scale) {
    __shared__ float K_tile[B_C * D], V_tile[B_C * D];
    const int i0 = blockIdx.x * B_R, i = i0 + threadIdx.x;   // the block's first query, my query
    int first = 0, last = (L - 1) / B_C;                     // tiles of B_C keys: all of them
    // BEGIN SOLUTION
    first = max(0, i0 - window + 1) / B_C;   // of the first query's first key
    last = (min(i0 + B_R, L) - 1) / B_C;     // of the last query's own key
    // END SOLUTION
    Row row;
    for (int tile = first; tile <= last; tile++) {
        const int j0 = tile * B_C, keys = min(B_C, L - j0);
        __syncthreads();   // all are done with the tile before
        for (int e = threadIdx.x; e < keys * D; e += B_R)
            K_tile[e] = K[j0 * D + e], V_tile[e] = V[j0 * D + e];
        __syncthreads();   // the tile is there
        for (int j = 0; j < keys; j++)
            if (i < L && i >= j0 + j && i - (j0 + j) < window)
                see(row, Q + i * D, K_tile + j * D, V_tile + j * D, scale);
    }
    for (int c = 0; c < D && i < L; c++) O[i * D + c] = row.O[c] / row.l;
}
