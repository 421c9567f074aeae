// block_sparse_backward.cu — gradients of block_sparse.cu: FlashAttention-2's backward pass, over
// the blocks of queries that a list names for the block's keys.
//
// The lists are those of block_sparse.cu by key blocks: an entry of `rows` is a query block in which
// a query sees a key of the column. A block of queries and keys that is full, bits_index −1, takes no
// mask; of a partial one, bit k % 32 of word k / 32 of row q says whether its query q sees its key k.
// A block of threads has the entries that its item names (key_columns.cuh): those of a tile of keys,
// or a part of them, since the column of a global token is as long as the sequence. A tile without
// entries gets dK = dV = 0.
// dQ_sum += dS K by atomics, in an order of chance. delta and the rounding of dQ: backward_delta
// and backward_round_dq of 03_flash_attention_v2/backward.cu, whose tile this is.
// With SOFTCAP=1 the file holds capped_dk_dv in place of block_sparse_dk_dv: it takes a softcap
// (model_softmax.cuh). What the backward pass has to know of sinks is in LSE.
// With DQ_PASS=1 no block adds to dQ_sum, and the file also holds block_sparse_dq: dQ in a pass of its
// own, over the lists of block_sparse.cu in their order, the same bits in every run.
//
// grid   block_sparse_dk_dv, capped_dk_dv (items · heads, H / group / heads, B)
//        merge_gradients (split columns · B_C · D / (4 · THREADS), H / group, B)
//        block_sparse_dq (ceil(L_q / (16 · WARPS)), H, B)
// block  THREADS = 32 · WARPS
// layout Q, dO [B, H, L_q, D]  K, V, dK, dV [B, H / group, L_k, D], 16-bit
//        LSE, delta [B, H, L_q]  dQ_sum [B, H, L_q, D], fp32, dQ_sum zero at first; dQ as Q;
//        contiguous, aligned to 16 bytes; query head h reads key head h / group
//        items, parts, split: key_columns.cuh, with B_C = WARPS · KEYS; `heads` divides H / group
//        rows, bits_index [entries]  bits [partial blocks, BLOCK, BLOCK / 32]; all heads share them
//        row_starts [block rows + 1], indices and bits_index [entries]: the lists by rows
// shared 4·B_C·D + 8·B_R·D + 4·B_C·B_R + 16·B_R bytes, dynamic
//        block_sparse_dq 64·WARPS·D + 512·D bytes, dynamic
// limits scale > 0; BLOCK a multiple of B_C and of B_R; D 64 or 128; KEYS 16 or 32, B_R 32 or 64,
//        WARPS 2, 4 or 8; B_C <= 2 · B_R; B · H · L_q < 2^31. Lists are not checked.
// options: -DD=64 -DBF16=0 -DBLOCK=128 -DWARPS=4 -DKEYS=32 -DB_R=64 | -DD=64 -DBF16=1 -DBLOCK=128 -DWARPS=4 -DKEYS=32 -DB_R=64 | -DD=64 -DBF16=0 -DBLOCK=64 -DWARPS=4 -DKEYS=16 -DB_R=64 | -DD=64 -DBF16=1 -DBLOCK=64 -DWARPS=4 -DKEYS=16 -DB_R=64 | -DD=128 -DBF16=0 -DBLOCK=128 -DWARPS=8 -DKEYS=16 -DB_R=64 | -DD=128 -DBF16=1 -DBLOCK=128 -DWARPS=8 -DKEYS=16 -DB_R=64 | -DD=128 -DBF16=0 -DBLOCK=64 -DWARPS=4 -DKEYS=16 -DB_R=32 | -DD=128 -DBF16=1 -DBLOCK=64 -DWARPS=4 -DKEYS=16 -DB_R=32 | -DD=128 -DBF16=0 -DBLOCK=128 -DWARPS=4 -DKEYS=16 -DB_R=32 | -DD=64 -DBF16=0 -DBLOCK=64 -DWARPS=4 -DKEYS=16 -DB_R=64 -DSOFTCAP=1 | -DD=64 -DBF16=0 -DBLOCK=64 -DWARPS=4 -DKEYS=16 -DB_R=64 -DDQ_PASS=1 | -DD=128 -DBF16=1 -DBLOCK=128 -DWARPS=8 -DKEYS=16 -DB_R=64 -DSOFTCAP=1 -DDQ_PASS=1
// arch: sm_80
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 2; FlashAttention (2205.14135), §3.3
#include "gradient_tile.cuh"
#include "key_columns.cuh"
#include "query_gradient_tile.cuh"

constexpr int WORDS = BLOCK / 32;   // of bits, per query of a partial block
static_assert(BLOCK % B_C == 0, "BLOCK must be a multiple of B_C = WARPS * KEYS");
static_assert(BLOCK % B_R == 0, "BLOCK must be a multiple of B_R");
static_assert(32 % KEYS == 0, "KEYS must be 16 or 32");   // a warp's bits are in one word

__device__ __forceinline__ void
differentiate(const scalar_t* Q, const scalar_t* K, const scalar_t* V, const scalar_t* dO,
              const float* LSE, const float* delta, float* dQ_sum, scalar_t* dK, scalar_t* dV,
              int L_q, int L_k, int group, float scale, const int4* items, int heads, float* parts,
              const int* rows, const int* bits_index, const unsigned* bits,
              const ModelSoftmax& softmax) {
    extern __shared__ __align__(256) uint4 shared_memory[];   // row_address takes that alignment
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);
    const Column column = column_of_block(items, heads);
    const int j0 = column.tile * B_C, j_warp = j0 + first_key();
    const long long keys_at = (column.key_head * L_k + j0) * D;
    const int first_row = column.key_head * group * L_q;   // of the first head of the group
    const int first = column.first, end = column.end;   // entries
    const int end_row = first_row + (first < end ? group * L_q : 0);   // the walk is head by head

    // A tile of queries: the first row of its head in memory, its entry, its own first row.
    struct Queries { int head_row, entry, i0; };
    auto after = [=](Queries q) {
        if ((q.i0 + B_R) % BLOCK) return Queries{q.head_row, q.entry, q.i0 + B_R};
        const bool last = q.entry + 1 == end;
        const int entry = last ? first : q.entry + 1;
        return Queries{last ? q.head_row + L_q : q.head_row, entry, rows[entry] * BLOCK};
    };
    auto row_of = [=](Queries q) { return (long long)q.head_row + q.i0; };
    auto start_copies = [&](Queries q, int place) {
        load_queries_async(tile, place, Q, dO, LSE, delta, row_of(q), L_q - q.i0);
    };
    auto add_dQ_of = [&](Queries q, int place) {
        if (!DQ_PASS) add_dQ(dQ_sum + row_of(q) * D, tile, place, L_q - q.i0);
    };

    load_keys_async(tile, K + keys_at, V + keys_at, L_k - j0);
    Queries now = {first_row, first, first < end ? rows[first] * BLOCK : L_q};
    Queries before = {0, 0, L_q};   // none yet
    start_copies(now, 0);   // zeros if there are no entries
    wait_for_copies<0>();
    __syncthreads();
    KeyGradients keys;
    initialize(keys, tile);

    int place = 0;
    for (; now.head_row < end_row; place ^= 1) {
        wait_for_copies<0>();
        __syncthreads();   // this tile is there, and nobody still reads the places of the last one
        const Queries next = after(now);
        if (next.head_row < end_row) start_copies(next, place ^ 1);   // one tile ahead
        if (before.i0 < L_q) add_dQ_of(before, place ^ 1);   // its dS is complete by now
        const int partial = bits_index[now.entry];
        const long long bits_row = (long long)partial * BLOCK + now.i0 % BLOCK;
        const unsigned* words = bits + bits_row * WORDS + j_warp % BLOCK / 32;
        accumulate(keys, tile, place, scale, !DQ_PASS, partial >= 0, [=](int query, int key) {
            return words[query * WORDS] >> (j_warp % 32 + key) & 1;
        }, softmax);
        before = now, now = next;
    }
    __syncthreads();   // nobody reads Q and dO any more, in whose place the gradients pass through
    if (before.i0 < L_q) add_dQ_of(before, place ^ 1);
    if (column.part < 0)
        write_gradients(keys, tile, dK + keys_at, dV + keys_at, scale, L_k - j0);
    else
        for (int m = 0; m < M; m++)
            write_part(keys.dK[m], keys.dV[m], first_key() + 16 * m, parts, column);
}

#if SOFTCAP
extern "C" __global__ void __launch_bounds__(THREADS)
capped_dk_dv(const scalar_t* Q, const scalar_t* K, const scalar_t* V, const scalar_t* dO,
             const float* LSE, const float* delta, float* dQ_sum, scalar_t* dK, scalar_t* dV,
             int L_q, int L_k, int group, float scale, const int4* items, int heads, float* parts,
             const int* rows, const int* bits_index, const unsigned* bits, float softcap) {
    differentiate(Q, K, V, dO, LSE, delta, dQ_sum, dK, dV, L_q, L_k, group, scale, items, heads,
                  parts, rows, bits_index, bits, {softcap});
}
#else
extern "C" __global__ void __launch_bounds__(THREADS)
block_sparse_dk_dv(const scalar_t* Q, const scalar_t* K, const scalar_t* V, const scalar_t* dO,
                   const float* LSE, const float* delta, float* dQ_sum, scalar_t* dK, scalar_t* dV,
                   int L_q, int L_k, int group, float scale, const int4* items, int heads,
                   float* parts, const int* rows, const int* bits_index, const unsigned* bits) {
    differentiate(Q, K, V, dO, LSE, delta, dQ_sum, dK, dV, L_q, L_k, group, scale, items, heads,
                  parts, rows, bits_index, bits, {});
}
#endif

// Where columns were split: dK and dV from their parts.
extern "C" __global__ void __launch_bounds__(THREADS)
merge_gradients(const float* parts, const int4* split, scalar_t* dK, scalar_t* dV, int L_k,
                float scale) {
    merge_parts(parts, split, dK, dV, L_k, scale);
}

#if DQ_PASS
static_assert(BLOCK % QUERIES == 0 && BLOCK % KEY_TILE == 0, "blocks must be of whole tiles");

extern "C" __global__ void __launch_bounds__(THREADS)
block_sparse_dq(const scalar_t* Q, const scalar_t* K, const scalar_t* V, const scalar_t* dO,
                const float* LSE, const float* delta, scalar_t* dQ, int L_q, int L_k, int group,
                float scale, const int* row_starts, const int* indices, const int* bits_index,
                const unsigned* bits, float softcap) {
    extern __shared__ __align__(256) uint4 shared_memory[];   // row_address takes that alignment
    QueryTiles& tile = *reinterpret_cast<QueryTiles*>(shared_memory);
    constexpr int TILES = BLOCK / KEY_TILE;   // tiles of keys in a block
    const int i0 = blockIdx.x * QUERIES, block_row = i0 / BLOCK;
    const int first = row_starts[block_row] * TILES, end = row_starts[block_row + 1] * TILES;
    const int head = blockIdx.z * gridDim.y + blockIdx.y;
    const long long row = (long long)head * L_q + i0, first_key = (long long)(head / group) * L_k;

    auto start_copies = [&](int n) {   // of tile n: tile n % TILES of a block
        if (n < end) {
            const int j0 = indices[n / TILES] * BLOCK + n % TILES * KEY_TILE;
            const long long at = (first_key + j0) * D;
            load_keys_async(tile, n % 2, K + at, V + at, L_k - j0);
        }
        commit_copies();
    };
    load_queries_async(tile, Q + row * D, dO + row * D, L_q - i0);
    start_copies(first);
    QueryGradients queries;
    initialize(queries, LSE + row, delta + row, L_q - i0);

    for (int n = first; n < end; n++) {
        wait_for_copies<0>();
        __syncthreads();   // tile n is there for all, and all are done with the one before
        start_copies(n + 1);
        const int partial = bits_index[n / TILES];
        const long long bits_row = (long long)partial * BLOCK + i0 % BLOCK + first_query();
        const unsigned* words = bits + bits_row * WORDS + n % TILES * KEY_TILE / 32;
        accumulate(queries, tile, n % 2, scale, partial >= 0, [=](int query, int key) {
            return words[query * WORDS + key / 32] >> key % 32 & 1;
        }, {softcap});
    }
    wait_for_copies<0>();   // a row without blocks started some, too
    write_dQ(queries, dQ + row * D, scale, L_q - i0);
}
#endif
