// block_sparse.cu — sparse attention over lists of blocks, as FlexAttention's BlockMask has them:
// for each block of queries the blocks of keys that it sees, each full (no mask) or partial (a bit
// per pair). What is not in a list costs nothing.
//   block_sparse_forward   a block of threads has one item: a block row, and a part of its list
//   merge_parts            the parts of a row that was split become one
// A row of blocks can be as long as the sequence (BigBird's global rows) while all others are
// short; left whole, it sets the time of everything. So its list is split, each part is attention
// over fewer keys, and the log-sum-exps say how to weigh the parts:
//   LSE = log Σ exp(LSE_p),  O = Σ exp(LSE_p − LSE) · O_p.
//
// grid   block_sparse_forward (items, H, B)       block  (32 · WARPS)
//        merge_parts (split rows · BLOCK / 4, H, B)   block  (128)
// layout Q, O [B, H, L_q, D]  K, V [B, H / group, L_k, D], 16-bit; LSE [B, H, L_q], fp32;
//        contiguous, aligned to 16 bytes; query head h reads key head h / group
//        items: (block row, first entry, end entry, part); part −1: the row is not split
//        indices, bits_index: one for each entry, the block of keys and the number of its bits,
//        −1 for a full block; bits [partial blocks, BLOCK, BLOCK / 32]: bit k % 32 of word k / 32
//        of row q: query q of the block sees key k of the block
//        O_parts [parts, B, H, BLOCK, D], LSE_parts [parts, B, H, BLOCK], fp32
//        split_rows: (block row, first part, end part, unused)
//        row_starts [block rows]: the first entry of each; softcap, and sink_logits [H]: read with
//        SOFTCAP=1 and SINKS=1 (model_softmax.cuh)
// shared block_sparse_forward 2 · D · (BLOCK + 4 · B_C) bytes, dynamic: Q, two tiles of K and of V
// limits scale > 0; D 64 or 128; BLOCK 64 or 128, a multiple of 16 · WARPS and of B_C; B_C a
//        multiple of 16; every key of a full block exists; bits past L_k are 0
// options: -DD=64 -DBF16=0 -DBLOCK=64 -DB_C=64 -DWARPS=2 | -DD=64 -DBF16=1 -DBLOCK=128 -DB_C=128 -DWARPS=4 | -DD=128 -DBF16=0 -DBLOCK=64 -DB_C=32 -DWARPS=2 | -DD=128 -DBF16=1 -DBLOCK=128 -DB_C=64 -DWARPS=4 | -DD=64 -DBF16=0 -DBLOCK=64 -DB_C=64 -DWARPS=2 -DSOFTCAP=1 | -DD=128 -DBF16=0 -DBLOCK=64 -DB_C=32 -DWARPS=2 -DSOFTCAP=1 -DSINKS=1
// arch: sm_80
// paper  FlashAttention (arXiv 2205.14135), §3.3, block-sparse; BigBird (2007.14062);
//        the merge: FlashAttention-2 (2307.08691), §3.1
constexpr int THREADS = 32 * WARPS, ROWS = BLOCK / WARPS;
#include "attention_tile.cuh"

constexpr int TILES = BLOCK / B_C;   // tiles of keys in a block
static_assert(BLOCK == 64 || BLOCK == 128, "BLOCK must be 64 or 128");
static_assert(BLOCK % B_C == 0, "BLOCK must be a multiple of B_C");

struct Tiles { scalar_t Q[BLOCK * D], K[2][B_C * D], V[2][B_C * D]; };

extern "C" __global__ void __launch_bounds__(THREADS, 256 / THREADS)
block_sparse_forward(const scalar_t* Q, const scalar_t* K, const scalar_t* V, scalar_t* O,
                     float* LSE, const int4* items, const int* indices, const int* bits_index,
                     const unsigned* bits, float* O_parts, float* LSE_parts,
                     int L_q, int L_k, int group, float scale, const int* row_starts,
                     float softcap, const float* sink_logits) {
    extern __shared__ __align__(256) uint4 shared_memory[];   // row_address takes that alignment
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);

    const int4 item = items[blockIdx.x];
    const int i0 = item.x * BLOCK, first = item.y * TILES, end = item.z * TILES, part = item.w;
    const int head = blockIdx.z * gridDim.y + blockIdx.y;
    const long long first_key = (long long)(head / group) * L_k;   // in K and V
    const int row0 = threadIdx.x / 32 * ROWS;   // this warp's first query in the block
    const ModelSoftmax softmax = {softcap, sink_logits};
    const float factor = softmax.factor(scale) * LOG2_E;

    auto start_copies = [&](int n) {   // of tile n: tile n % TILES of a block
        const int j0 = indices[n / TILES] * BLOCK + n % TILES * B_C;
        load_tile_async<B_C>(tile.K[n % 2], K + (first_key + j0) * D, L_k - j0);
        load_tile_async<B_C>(tile.V[n % 2], V + (first_key + j0) * D, L_k - j0);
        commit_copies();
    };
    if (first < end) {
        load_tile_async<BLOCK>(tile.Q, Q + ((long long)head * L_q + i0) * D, L_q - i0);
        start_copies(first);
    }
    OnlineSoftmax state;
    initialize(state);

    for (int n = first; n < end; n++) {
        const int mask = bits_index[n / TILES];
        wait_for_copies<0>();
        __syncthreads();   // tile n is there, and every warp is done with tile n - 1
        if (n + 1 < end) start_copies(n + 1);

        Scores S;
        compute_scores(S, tile.Q + row0 * D, tile.K[n % 2]);
        if (SOFTCAP) cap_scores(S, scale / softcap);
        if (mask >= 0) {
            const long long first_row = (long long)mask * BLOCK + row0;
            mask_scores(S, [=](int row) {
                const unsigned* words = bits + ((first_row + row) * BLOCK + n % TILES * B_C) / 32;
                return [=](int key) { return words[key / 32] >> key % 32 & 1; };
            });
        }
        update_maximum(state, S, factor);
        accumulate(state, S, tile.V[n % 2], factor);
    }
    // Of a split row, the first part has the sink.
    const bool has_sink = SINKS && item.y == row_starts[item.x];
    normalize(state, has_sink ? softmax.sink(blockIdx.y) : NEG_INF);
    if (part < 0) {
        const long long row = (long long)head * L_q + i0 + row0;
        write_rows(state, O + row * D, LSE + row, L_q - i0 - row0, tile.Q + row0 * D);
        return;
    }
    // All rows of the part, also those past L_q: merge_parts leaves them out.
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const long long heads = (long long)gridDim.y * gridDim.z;
    for (int i = 0; i < M; i++)
        for (int r = 0; r < 2; r++) {
            const long long row = (part * heads + head) * BLOCK + row0 + 16 * i + 8 * r + g;
            if (t == 0) LSE_parts[row] = state.m[i][r];
            for (int c = 0; c < D / 8; c++)
                *reinterpret_cast<float2*>(O_parts + row * D + 8 * c + 2 * t) =
                    make_float2(state.O[i][c][2 * r], state.O[i][c][2 * r + 1]);
        }
}

// A warp merges a row; a lane has D / 64 pairs of columns.
extern "C" __global__ void __launch_bounds__(128)
merge_parts(const float* O_parts, const float* LSE_parts, const int4* split_rows, scalar_t* O,
            float* LSE, int L_q) {
    const int4 split = split_rows[blockIdx.x / (BLOCK / 4)];
    const int first = split.y, end = split.z, lane = threadIdx.x % 32;
    const int row = blockIdx.x % (BLOCK / 4) * 4 + threadIdx.x / 32, i = split.x * BLOCK + row;
    if (i >= L_q) return;
    const long long head = blockIdx.z * gridDim.y + blockIdx.y;
    const long long heads = (long long)gridDim.y * gridDim.z;
    auto row_of = [=](int part) { return (part * heads + head) * BLOCK + row; };

    float m = NEG_INF, l = 0;
    float2 sum[D / 64] = {};
    for (int part = first; part < end; part++) m = fmaxf(m, LSE_parts[row_of(part)]);
    for (int part = first; part < end; part++) {
        // −∞ − 0 where no part saw a key; a part that is NaN makes the row NaN, though not m
        const float base = m == NEG_INF ? 0 : m;
        const float weight = exp2_approx((LSE_parts[row_of(part)] - base) * LOG2_E);
        const float2* o = reinterpret_cast<const float2*>(O_parts + row_of(part) * D) + lane;
        l += weight;
        for (int c = 0; c < D / 64; c++)
            sum[c].x += weight * o[32 * c].x, sum[c].y += weight * o[32 * c].y;
    }
    const float inverse = l == 0 ? 0 : 1 / l;
    if (lane == 0) LSE[head * L_q + i] = l == 0 ? NEG_INF : m + __log2f(l) * LN_2;
    for (int c = 0; c < D / 64; c++)
        reinterpret_cast<unsigned*>(O + (head * L_q + i) * D)[lane + 32 * c] =
            pack(sum[c].x * inverse, sum[c].y * inverse);
}
