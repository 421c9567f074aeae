// barrier_ring.cu — scores of keys that the copy engine brings through a ring of buffers.
//
// One thread, the producer, asks for tiles of keys and runs ahead of the consumers as far as there
// are empty buffers. The consumers are two warps with a query each. They meet at two mbarriers for
// each buffer: `full` ends a phase when a tile has come, `empty` when both warps are done with it.
// Each key has a scale, as keys of 8 bits have: S_j = scale_j · (q · k_j).
//
// grid   (H)   block (96): warps 0 and 1 are consumers, warp 2 is the producer
// layout Q [H, 2, 64]  K [H, L_k, 64]  scales [H, L_k]  S [H, 2, L_k], fp32, contiguous
// shared BUFFERS · (8,320 + 16) + 512 bytes, static
// limits L_k a multiple of 4, at least 4; BUFFERS 1 to 5
// options: -DBUFFERS=2 | -DBUFFERS=3
// arch: sm_90a only
// paper  FlashAttention-3 (arXiv 2407.08608), §3.1
#include "copy_engine.cuh"

constexpr int D = 64, KEYS = 32, CONSUMERS = 2;   // KEYS: of a whole tile; CONSUMERS: warps

struct Ring {
    float K[BUFFERS][KEYS * D], scales[BUFFERS][KEYS];
    Mbarrier full[BUFFERS], empty[BUFFERS];
};

// How many keys tile t has: KEYS, or what is left of them.
__device__ inline int keys_of(int t, int L_k) { return min(KEYS, L_k - t * KEYS); }

// The score of a key of a tile. The columns begin elsewhere in each lane, at 32 different banks.
__device__ inline float score(const float* q, const float* K_tile, const float* scales, int key) {
    float sum = 0;
    for (int c = 0; c < D; c++) sum += q[(c + key) % D] * K_tile[key * D + (c + key) % D];
    return sum * scales[key];
}

// 1. One thread makes the mbarriers ready: how many threads arrive at each of them in a phase?
__device__ inline void prepare(Ring& ring) {
    // YOUR CODE HERE
}

// 2. The producer, one thread. For each tile: wait until its buffer is empty, say at `full` how many
//    bytes will come, and start two copies with load_bytes: the tile's keys and their scales.
__device__ inline void produce(Ring& ring, const float* K, const float* scales, int L_k) {
    const int tiles = (L_k + KEYS - 1) / KEYS;
    // YOUR CODE HERE
}

// 3. A consumer warp. For each tile: wait until it is there; each lane that has a key stores its
//    score in S; give the buffer back.
__device__ inline void consume(Ring& ring, const float* q, float* S, int L_k) {
    const int tiles = (L_k + KEYS - 1) / KEYS, lane = threadIdx.x % 32;
    // YOUR CODE HERE
}

extern "C" __global__ void __launch_bounds__(32 * CONSUMERS + 32)
barrier_ring(const float* Q, const float* K, const float* scales, float* S, int L_k) {
    __shared__ __align__(128) Ring ring;
    __shared__ float q[CONSUMERS][D];
    const int head = blockIdx.x, warp = threadIdx.x / 32;
    for (int i = threadIdx.x; i < CONSUMERS * D; i += blockDim.x)
        q[i / D][i % D] = Q[head * CONSUMERS * D + i];
    if (threadIdx.x == 0) prepare(ring);
    __syncthreads();
    const long long first = (long long)head * L_k;   // of the head's keys
    if (threadIdx.x == 32 * CONSUMERS) produce(ring, K + first * D, scales + first, L_k);
    if (warp < CONSUMERS) consume(ring, q[warp], S + first * CONSUMERS + warp * L_k, L_k);
}
