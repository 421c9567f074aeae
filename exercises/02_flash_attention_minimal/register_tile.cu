// register_tile.cu — S = scale · Q Kᵀ by register tiles: a block has 64 × 64 scores, each of its 64
// threads 8 × 8 of them. A number that was read from shared memory feeds eight multiply-adds.
//
// grid   (ceil(L_k / 64), ceil(L_q / 64), heads)      block  (8, 8): threadIdx.x of keys, y of queries
// layout Q [heads, L_q, d], K [heads, L_k, d], S [heads, L_q, L_k], fp32, contiguous
// shared 2 · 4 · 64 · 36 = 18432 bytes, static
// limits any L_q and L_k from 1; d a multiple of 4; heads and L_q / 64 up to 65535
// paper  V. Volkov, "Better Performance at Lower Occupancy", GTC 2010
constexpr int TILE = 64, PIECE = 32;             // queries and keys of a block; columns of d at a time
constexpr int SIDE = 8, PER_THREAD = TILE / SIDE;
constexpr int PITCH = PIECE + 4;   // rows stay aligned to 16 bytes; eight rows one after the other
                                   // begin four banks apart

// Copies columns c0 to c0 + 31 of 64 rows of a [L, d] matrix to shared memory; zeros past its ends.
__device__ void load_piece(float (&tile)[TILE][PITCH], const float* matrix, int first, int L, int c0,
                           int d) {
    for (int e = threadIdx.y * SIDE + threadIdx.x; e < TILE * PIECE; e += SIDE * SIDE) {
        const int row = first + e / PIECE, column = c0 + e % PIECE;
        tile[e / PIECE][e % PIECE] = row < L && column < d ? matrix[(long long)row * d + column] : 0;
    }
}

extern "C" __global__ void __launch_bounds__(SIDE * SIDE)
register_tile(const float* Q, const float* K, float* S, int L_q, int L_k, int d, float scale) {
    __shared__ __align__(16) float Q_tile[TILE][PITCH], K_tile[TILE][PITCH];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int i0 = blockIdx.y * TILE, j0 = blockIdx.x * TILE;   // the block's first query and key
    Q += (long long)blockIdx.z * L_q * d, K += (long long)blockIdx.z * L_k * d;
    S += (long long)blockIdx.z * L_q * L_k;

    // 1. The sums of this thread's 64 scores. Which 64 of the block's 4096 they are is up to you.
    // YOUR CODE HERE

    for (int c0 = 0; c0 < d; c0 += PIECE) {
        load_piece(Q_tile, Q, i0, L_q, c0, d);
        load_piece(K_tile, K, j0, L_k, c0, d);
        __syncthreads();

        // 2. The products of 32 columns, added to the sums. The counters look at this loop.
        // YOUR CODE HERE
        __syncthreads();
    }

    // 3. scale · sum to S, for queries below L_q and keys below L_k.
    // YOUR CODE HERE
}
