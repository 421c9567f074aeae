// backward.cu — FlashAttention-3's backward pass. P comes back tile by tile from Q, K and the saved
// log-sum-exp, so nothing of size L² is ever stored:
//   backward_prepare  Δ = rowsum(dO ∘ O), the paper's D (here D is the head dimension), and the
//                     log-sum-exp in powers of two, side by side for each tile of queries; dQ_sum = 0
//   backward          a block per tile of keys, loop over tiles of queries: dV = Pᵀ dO,
//                     dK = scale · dSᵀ Q, and dQ_sum += dS K
//   backward_finish   dQ = scale · dQ_sum, rounded to 16 bits
// where S = scale · Q Kᵀ, P = exp(S − LSE), dP = dO Vᵀ, dS = P ∘ (dP − Δ).
//
// A consumer has 64 keys and computes Sᵀ = K Qᵀ and dPᵀ = V dOᵀ, St and dPt in the code: then Pᵀ and dSᵀ
// are laid out as left factors of Pᵀ dO and dSᵀ Q, and stay in registers. Only dSᵀ, of which dQ needs all
// keys of the block, goes through shared memory too. Each consumer computes a piece of the block's share
// of dQ, 64 × 64 numbers, and hands it to its adder, a thread that has the copy engine add it to dQ_sum.
// Under GQA a block loops over the query heads that share its key head. At D = 128 with a causal mask, a
// consumer lets the first head's first tile of queries go by if none of them sees its keys. What a block
// does with a tile is in backward_blocks.cuh.
//
// Sums of dQ have an order of chance; with -DTURNS=1 the blocks take turns (turns.cuh).
//
// With -DDILATED=1 the file holds the first and the last kernel alone, for range_backward_hopper.cu: a tile has
// queries of one residue class (backward_blocks.cuh), whose rows are `dilation` apart in memory.
//
// grid   backward_prepare, backward_finish (T, H, B · dilation), with T = ceil(L_q / B_R)
//        backward (ceil(L_k / 128), H / group, B)
// block  backward_prepare, backward_finish (256)
//        backward (384): two consumers with 64 keys each, a producer and two adders
// layout Q, O, dO, dQ [B·H, L_q, D], K, V, dK, dV [B·H / group, L_k, D], fp16 or bf16; for `backward` Q
//        and dO through tensor maps with boxes of B_R rows, the others with boxes of 64 rows
//        (copy_engine.cuh); LSE [B·H, L_q], fp32; of each tile of B_R queries its Statistics, and
//        dQ_sum as two pieces of 64 × 64: queries 0 to 63 and 64 to 127, or for D = 128 columns 0 to 63
//        and 64 to 127; of a piece eight columns after the other, as a warpgroup's registers hold them
//        (warpgroup.cuh); turns [B·H, T], int; query head h reads key head h / group
//        with DILATED=1 L_q is that of a class, and statistics, dQ_sum and turns are of B · dilation batches
// shared backward 512·D + 8·D·B_R + 528·B_R + 32928 bytes, dynamic; B_R = 8192 / D
// limits scale > 0; D 64 or 128; L_q, L_k >= 1; DILATED=0 takes dilation 1 only
// options: -DD=64 -DBF16=0 -DTURNS=0 | -DD=64 -DBF16=1 -DTURNS=0 | -DD=64 -DBF16=0 -DTURNS=1 | -DD=64 -DBF16=1 -DTURNS=1 | -DD=128 -DBF16=0 -DTURNS=0 | -DD=128 -DBF16=1 -DTURNS=0 | -DD=128 -DBF16=0 -DTURNS=1 | -DD=128 -DBF16=1 -DTURNS=1 | -DD=64 -DBF16=0 -DTURNS=0 -DDILATED=1 | -DD=64 -DBF16=1 -DTURNS=0 -DDILATED=1 | -DD=64 -DBF16=0 -DTURNS=1 -DDILATED=1 | -DD=64 -DBF16=1 -DTURNS=1 -DDILATED=1 | -DD=128 -DBF16=0 -DTURNS=0 -DDILATED=1 | -DD=128 -DBF16=1 -DTURNS=0 -DDILATED=1 | -DD=128 -DBF16=0 -DTURNS=1 -DDILATED=1 | -DD=128 -DBF16=1 -DTURNS=1 -DDILATED=1
// arch: sm_90a only
// paper  FlashAttention-3 (arXiv 2407.08608), §3.1 and Algorithm 3 in its appendix
#include "backward_blocks.cuh"

#if !DILATED
struct Problem { int L_q, L_k, group, is_causal; float scale; };

// Causal, the block that meets most queries begins first; but if blocks take turns, it comes last: then
// none waits for one that comes to a tile later.
__device__ inline Walk walk_of_block(const Problem& problem) {
    const bool backwards = TURNS && problem.is_causal;
    const int j0 = (backwards ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * B_C;
    const int tiles = (problem.L_q + B_R - 1) / B_R;
    // Queries before see no key of this block.
    const int first = problem.is_causal ? max(j0 - (problem.L_k - problem.L_q), 0) / B_R : 0;
    const int head = (blockIdx.z * gridDim.y + blockIdx.y) * problem.group;
    return {j0, head, problem.group, first, tiles - first, tiles};
}

// How many blocks add to a tile of queries before this one does, if they take turns: those that began
// before, but for those whose keys no query of the tile sees.
__device__ inline int turn_of_block(const Problem& problem, int tile) {
    if (!problem.is_causal) return blockIdx.x;
    const int last_key = min(problem.L_k, (tile + 1) * B_R + problem.L_k - problem.L_q) - 1;
    return last_key / B_C - ((int)gridDim.x - 1 - (int)blockIdx.x);
}

// P = 0 where a query does not see a key, or there is no such key. The consumer's first key is j_w.
__device__ inline void hide(KeysByQueries& Pt, int i0, int j_w, const Problem& problem) {
    const int shift = problem.L_k - problem.L_q;
    each_of_lane<1, B_R / 8>([&](int, int n, int e, int row, int query) {
        const int key = j_w + warp_row() + row;
        if (key >= problem.L_k || (problem.is_causal && key > i0 + query + shift)) Pt[n][e] = 0;
    });
}

__device__ inline void consume(Shared& shared, const TensorMap& dK, const TensorMap& dV,
                               const Problem& problem, const Walk& walk) {
    const int w = consumer(), j_w = walk.j0 + w * ROWS, shift = problem.L_k - problem.L_q;
    KeyGradients keys = {};
    const SkippedTiles skipped(walk, [&](int i0) { return !problem.is_causal || j_w < i0 + B_R + shift; });
    meet_tiles(keys, shared, walk, skipped, w, problem.scale, [&](KeysByQueries& Pt, int n) {
        const int i0 = walk.tile_of(n) * B_R;
        const bool edge =
            j_w + ROWS > problem.L_k || (problem.is_causal && j_w + ROWS - 1 > i0 + shift);
        if (edge) hide(Pt, i0, j_w, problem);
    });
    store_gradients(shared, keys, dK, dV, walk, w, problem.scale);
}

extern "C" __global__ void __launch_bounds__(CONSUMER_THREADS + 128, 1)
backward(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap dO,
         const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V,
         const __grid_constant__ TensorMap dK, const __grid_constant__ TensorMap dV,
         const float* statistics, float* dQ_sum, int* turns, int L_q, int L_k, int group,
         float scale, int is_causal) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    initialize(shared);
    const Problem problem = {L_q, L_k, group, is_causal, scale};
    const Walk walk = walk_of_block(problem);
    // 384 threads got 168 registers each, and 128 · (168 − 24) = 256 · (240 − 168) move.
    if (threadIdx.x >= CONSUMER_THREADS) {
        lower_register_limit<24>();
        const int warp = (threadIdx.x - CONSUMER_THREADS) / 32;
        if (threadIdx.x % 32 != 0 || warp > CONSUMERS) return;
        if (warp == 0)
            produce(shared, Q, dO, K, V, reinterpret_cast<const Statistics*>(statistics), walk);
        else
            add_dQ(shared, dQ_sum, turns, walk, warp - 1,
                   [&](int n) { return turn_of_block(problem, walk.tile_of(n)); });
    } else {
        raise_register_limit<240>();
        consume(shared, dK, dV, problem, walk);
    }
}
#endif

// ---- before and after: 256 threads share a tile of queries, of which one has 8 columns of a row at a time

constexpr int THREADS = 256, CHUNKS = D / 8;

// The rows of the block's tile, of all heads, begin at this one, `pitch` apart; it has so many.
struct TileRows { long long tile, first; int count, pitch; };
__device__ inline TileRows tile_rows(int L_q, int dilation) {
    const int pitch = DILATED ? dilation : 1;
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    const long long in_memory = (long long)(blockIdx.z / pitch) * gridDim.y + blockIdx.y;
    return {head * gridDim.x + blockIdx.x, (in_memory * L_q + blockIdx.x * B_R) * pitch + blockIdx.z % pitch,
            min(B_R, L_q - (int)blockIdx.x * B_R), pitch};
}

extern "C" __global__ void __launch_bounds__(THREADS)
backward_prepare(const scalar_t* O, const scalar_t* dO, const float* LSE, float* statistics,
                 float* dQ_sum, int* turns, int L_q, int dilation) {
    const TileRows rows = tile_rows(L_q, dilation);
    if (threadIdx.x == 0) turns[rows.tile] = 0;
    Statistics& of_tile = reinterpret_cast<Statistics*>(statistics)[rows.tile];
    float4* sums = reinterpret_cast<float4*>(dQ_sum + rows.tile * (B_R * D));
    for (int n = threadIdx.x; n < B_R * CHUNKS; n += THREADS) {
        const int row = n / CHUNKS, chunk = n % CHUNKS;
        float sum = 0;
        if (row < rows.count) {
            const long long at = (rows.first + row * rows.pitch) * CHUNKS + chunk;
            const uint4 o = reinterpret_cast<const uint4*>(O)[at];
            const uint4 d = reinterpret_cast<const uint4*>(dO)[at];
            const scalar_t* O_i = reinterpret_cast<const scalar_t*>(&o);
            const scalar_t* dO_i = reinterpret_cast<const scalar_t*>(&d);
            for (int e = 0; e < 8; e++) sum += (float)O_i[e] * (float)dO_i[e];
        }
        for (int other = CHUNKS / 2; other > 0; other /= 2)
            sum += __shfl_xor_sync(0xffffffff, sum, other);
        if (chunk == 0) {
            // Of a query that sees no key, LSE is −∞; there, and past the last query, P shall be 0.
            const float lse = row < rows.count ? LSE[rows.first + row * rows.pitch] : NEG_INF;
            of_tile.LSE[row] = lse == NEG_INF ? -NEG_INF : lse * LOG2_E;
            of_tile.delta[row] = sum;
        }
        sums[n] = sums[n + B_R * CHUNKS] = float4{};
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
backward_finish(const float* dQ_sum, scalar_t* dQ, int L_q, float scale, int dilation) {
    const TileRows rows = tile_rows(L_q, dilation);
    const float4* sums = reinterpret_cast<const float4*>(dQ_sum) + rows.tile * (2 * PIECE / 4);
    uint4* chunks = reinterpret_cast<uint4*>(dQ) + rows.first * CHUNKS;
    // Eight columns of two rows: what a lane's four neighbours hold. Eight lanes read 512 bytes, and
    // four write 64.
    for (int n = threadIdx.x; n < 2 * PIECE / 16; n += THREADS) {
        const int piece = n / 256, warp = n / 64 % 4, chunk = n / 32 % 2 * 4 + n % 4, g = n / 4 % 8;
        float4 of_lane[4];
        for (int t = 0; t < 4; t++)
            of_lane[t] = sums[piece * (PIECE / 4) + chunk * 128 + warp * 32 + g * 4 + t];
        const int column = D == 64 ? chunk : piece * 8 + chunk;
        const int row = (D == 64 ? piece * ROWS : 0) + warp * 16 + g;
        unsigned first[4], second[4];
        for (int t = 0; t < 4; t++) {
            first[t] = pack(scale * of_lane[t].x, scale * of_lane[t].y);
            second[t] = pack(scale * of_lane[t].z, scale * of_lane[t].w);
        }
        if (row < rows.count)
            chunks[row * rows.pitch * CHUNKS + column] = make_uint4(first[0], first[1], first[2], first[3]);
        if (row + 8 < rows.count)
            chunks[(row + 8) * rows.pitch * CHUNKS + column] =
                make_uint4(second[0], second[1], second[2], second[3]);
    }
}
