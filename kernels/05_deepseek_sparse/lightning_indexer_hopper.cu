// lightning_indexer_hopper.cu — lightning_indexer_fp8.cu on Hopper's FP8 tensor cores.
//
// On sm_90 only wgmma multiplies E4M3 at twice the speed of bf16. The plan is the same: keys stay in
// registers, as the left factor, and queries stream by; a warpgroup has two tiles of 64 keys, and
// the tensor cores work on the second while it sums the first over the heads. Hopper's FP8 sums keep
// about 14 bits (DeepSeek-V3, arXiv 2412.19437, §3.3.2): enough to choose keys.
//
// grid   (ceil(T / 256), any number up to S)       block  (256)
//        the blocks of a column share the queries among them
// layout q [S, H, 128], k [T, 128], E4M3, a byte a number; weights, q_scale [S, H], k_scale [T],
//        logits [S, T], fp32; contiguous, aligned to 16 bytes; key s is legal for query t if
//        s <= t + q_start, else its logit is −∞
// shared 4 · 64 · (128 + 4) bytes, dynamic: four queries, each with its weights = 33792
// limits scales >= 0; H at most 64; |q_start| + S + T fits an int; a product that is NaN counts as 0
// arch: sm_90a only
// paper  DeepSeek-V3.2 (arXiv 2512.02556), §2.1, equation 1
#include "async_copy.cuh"
#include "constants.cuh"
#include "warpgroup.cuh"

constexpr int THREADS = 256, D = 128, HEADS = 64, TILES = 2;   // tiles of a warpgroup, 64 keys each
constexpr int KEYS = THREADS / 128 * TILES * 64, STAGES = 4;
static_assert(KEYS == THREADS, "each thread ends with the logit of one key");

struct Shared { unsigned char q[STAGES][HEADS * D]; float w[STAGES][HEADS]; };
typedef unsigned Keys[TILES][D / 32][4];   // fragments: A [64, 32] of E4M3, four to a register

// S = K Qᵀ, [64, 64], or += with `add`; K in registers, Q in shared memory.
__device__ inline void multiply_e4m3(float (&S)[32], const unsigned (&k)[4], unsigned long long q,
                                     int add) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %37, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1; }"
        : REGISTERS_8(S, 0), REGISTERS_8(S, 8), REGISTERS_8(S, 16), REGISTERS_8(S, 24)
        : "r"(k[0]), "r"(k[1]), "r"(k[2]), "r"(k[3]), "l"(q), "r"(add));
}

// Starts to copy the heads of query t and their weights; zeros from head H on.
__device__ inline void load_query_async(Shared& shared, const unsigned char* q,
                                        const float* weights, int t, int stage, int H) {
    for (int i = threadIdx.x; i < HEADS * 8; i += THREADS) {
        const int head = i / 8, chunk = i % 8;
        copy_16_bytes_async(shared.q[stage] + head * D + (chunk ^ head % 8) * 16,
                            q + ((long long)t * H + head) * D + chunk * 16, head < H);
    }
    const int j = threadIdx.x;
    if (j < HEADS) copy_4_bytes_async(&shared.w[stage][j], weights + (long long)t * H + j, j < H);
}

// I[r] = sum of w ReLU(S) over the lane's heads; r: row g or g + 8.
__device__ inline void sum_heads(float (&I)[2], const float (&S)[32], const float* w) {
    I[0] = I[1] = 0;
    #pragma unroll
    for (int n = 0; n < HEADS / 8; n++) {
        const float2 pair = *reinterpret_cast<const float2*>(w + 8 * n + threadIdx.x % 4 * 2);
        for (int r = 0; r < 2; r++) {
            I[r] = fmaf(pair.x, fmaxf(S[4 * n + 2 * r], 0), I[r]);
            I[r] = fmaf(pair.y, fmaxf(S[4 * n + 2 * r + 1], 0), I[r]);
        }
    }
}

// Adds over the four lanes of a row: lane 4 g + t gets row g + 8 (t mod 2) of tile t / 2. A lane
// sends what others keep.
__device__ inline float add_lanes(const float (&I)[TILES][2]) {
    const bool second = threadIdx.x & 2, lower = threadIdx.x & 1;
    float row[2];
    for (int r = 0; r < 2; r++)
        row[r] = (second ? I[1][r] : I[0][r]) +
                 __shfl_xor_sync(0xffffffff, second ? I[0][r] : I[1][r], 2);
    return (lower ? row[1] : row[0]) + __shfl_xor_sync(0xffffffff, lower ? row[0] : row[1], 1);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
lightning_indexer_hopper(const unsigned char* q, const unsigned char* k, const float* weights,
                         const float* q_scale, const float* k_scale, float* logits,
                         int S, int T, int H, int q_start) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const int s0 = blockIdx.x * KEYS, lane = threadIdx.x % 32;
    const int queries = (S + gridDim.y - 1) / gridDim.y, t0 = blockIdx.y * queries;
    const int t_end = min(S, t0 + queries);
    const int first = min(t_end, max(t0, s0 - q_start));   // the first that sees one of the keys
    for (int t = t0; t < first; t++)
        if (s0 + threadIdx.x < T) logits[(long long)t * T + s0 + threadIdx.x] = NEG_INF;
    if (first >= t_end) return;

    // The warp's rows of the tiles: 16 of each, in the layout of A.
    const int warp_row = s0 + threadIdx.x / 128 * TILES * 64 + threadIdx.x % 128 / 32 * 16;
    Keys K;
    for (int tile = 0; tile < TILES; tile++)
        for (int d = 0; d < D / 32; d++)
            for (int i = 0; i < 4; i++) {
                const int row = warp_row + 64 * tile + i % 2 * 8 + lane / 4;
                const int column = 32 * d + i / 2 * 16 + lane % 4 * 4;
                K[tile][d][i] = row < T ? *reinterpret_cast<const unsigned*>(
                                              k + (long long)row * D + column) : 0;
            }
    const int s = warp_row + 64 * (lane % 4 / 2) + 8 * (lane % 2) + lane / 4;   // see add_lanes
    const float own_scale = s < T ? k_scale[s] : 0;
    // Thread j copies the weight of head j, and multiplies it by the head's scale.
    auto scale_of_head = [=](int t) {
        return threadIdx.x < H && t < t_end ? q_scale[(long long)t * H + threadIdx.x] : 0;
    };
    float scale = scale_of_head(first);
    for (int ahead = 0; ahead < STAGES - 1; ahead++) {
        if (first + ahead < t_end) load_query_async(shared, q, weights, first + ahead, ahead, H);
        commit_copies();
    }
    for (int t = first; t < t_end; t++) {
        const int stage = (t - first) % STAGES, next = t + STAGES - 1;
        wait_for_copies<STAGES - 2>();
        if (threadIdx.x < HEADS) shared.w[stage][threadIdx.x] *= scale;
        publish_tile();
        __syncthreads();   // query t is there, and all are done with query t − 1
        if (next < t_end)
            load_query_async(shared, q, weights, next, (next - first) % STAGES, H);
        commit_copies();
        scale = scale_of_head(t + 1);

        float scores[TILES][32], I[TILES][2];
        const unsigned long long Q = descriptor(shared.q[stage]);
        wgmma_fence();
        #pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            #pragma unroll
            for (int d = 0; d < D / 32; d++)
                multiply_e4m3(scores[tile], K[tile][d], moved(Q, 32 * d), d > 0);
            wgmma_commit();
        }
        wgmma_wait<1>();
        sum_heads(I[0], scores[0], shared.w[stage]);
        wgmma_wait<0>();
        sum_heads(I[1], scores[1], shared.w[stage]);
        const float logit = add_lanes(I) * own_scale;
        if (s < T) logits[(long long)t * T + s] = s <= t + q_start ? logit : NEG_INF;
    }
}
