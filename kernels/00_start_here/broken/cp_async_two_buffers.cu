// cp_async_two_buffers.cu — the scores of 4 queries and a row of key tiles, the next tile on its way while
// one is read, broken on purpose: with two buffers and one barrier per tile, the copy may overwrite the
// tile that slower warps still read. Mended: -DBUFFERS=3.
//
// arch: sm_80
// grid   (1)                           block  (128): a warp per query, a lane per key of the tile
// layout Q [4, 16], K [32 · tiles, 16], S [4, 32 · tiles], fp32, contiguous, K aligned to 16 bytes
// shared 4 · BUFFERS · 32 · 16 bytes, static
// limits any number of tiles
// options: -DBUFFERS=2 | -DBUFFERS=3
constexpr int D = 16;

// Each of the 128 threads copies 16 bytes of the tile.
__device__ void start_copy(float (&tile)[32][D], const float* K, int n) {
    const int t = threadIdx.x;
    const unsigned to = __cvta_generic_to_shared(&tile[t / 4][t % 4 * 4]);
    const float* from = K + n * 32 * D + t * 4;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
}

extern "C" __global__ void scores_of_tiles(const float* Q, const float* K, float* S, int tiles) {
    __shared__ __align__(16) float tile[BUFFERS][32][D];
    const int i = threadIdx.x / 32, j = threadIdx.x % 32;
    start_copy(tile[0], K, 0);
    asm volatile("cp.async.commit_group;" ::: "memory");
    for (int n = 0; n < tiles; n++) {
        if (n + 1 < tiles) start_copy(tile[(n + 1) % BUFFERS], K, n + 1);
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group 1;" ::: "memory");   // all but the copy just started
        __syncthreads();   // tile n is complete
        float s = 0;
        for (int d = 0; d < D; d++) s += Q[i * D + d] * tile[n % BUFFERS][j][d];
        S[(i * tiles + n) * 32 + j] = s;
    }
}
