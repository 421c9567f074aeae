// range.cu — sparse attention whose rows see ranges of keys: sliding windows, sinks and a window
// (StreamingLLM), diagonal blocks, and all of these dilated. Which tiles a block visits is
// arithmetic: no list, no mask in memory. The tile itself is FlashAttention-2's.
//
// The pattern is five numbers. With base = i rounded down to a multiple of `step`, row i sees
//   base − left <= j < base + right,  and of the keys j < sinks those before base + right.
// Dilated by n, position p sees only keys j with p − j a multiple of n. Sorted by their remainder,
// positions fall into n classes that never see each other; inside a class, i = p / n and j / n are
// counted without gaps, and the pattern is a range again. So a block takes its rows from one class,
// n rows apart in memory, and its tiles are as dense as those of a window.
//
// With TABLE=1 the file holds table_forward in place of range_forward: row r sees the keys
// starts[r] <= j < ends[r], from two arrays, int32 [L_q], neither of which falls. Documents of any
// lengths are such rows. SOFTCAP=1 and SINKS=1 give it a softcap, > 0, and attention sinks, a logit for
// each query head, fp32 [H] (model_softmax.cuh); those have no keys, while the `sinks` above do.
//
// grid   (dilation · ceil(ceil(L_q / dilation) / B_R), H, B)       block  (32 · WARPS)
// layout Q, O [B, H, L_q, D]  K, V [B, H / group, L_k, D], 16-bit; LSE [B, H, L_q], fp32;
//        contiguous, aligned to 16 bytes; query head h reads key head h / group; query r has
//        position r + L_k − L_q
// shared 2 · D · (B_R + 4 · B_C) + 8 · B_R bytes, dynamic: Q, two tiles of K and of V, and what
//        each row sees
// limits scale > 0; left, right <= 2^30, which means no end; dilation and step >= 1, dilation at
//        most 131072; sinks only with dilation 1 and step 1; D 64 or 128, with TABLE=1
//        also 256; B_R a multiple of 16 · WARPS, B_C of 16; DILATED=0 takes dilation 1 only; SKIP=0 visits every tile;
//        TABLE=1 with DILATED=0, SOFTCAP=1 and SINKS=1 with TABLE=1
// options: -DD=64 -DBF16=0 -DB_R=128 -DB_C=128 -DWARPS=4 -DSKIP=1 -DDILATED=0 | -DD=128 -DBF16=1 -DB_R=128 -DB_C=64 -DWARPS=4 -DSKIP=1 -DDILATED=0 | -DD=64 -DBF16=1 -DB_R=128 -DB_C=128 -DWARPS=4 -DSKIP=1 -DDILATED=1 | -DD=128 -DBF16=0 -DB_R=128 -DB_C=64 -DWARPS=4 -DSKIP=1 -DDILATED=1 | -DD=64 -DBF16=0 -DB_R=128 -DB_C=128 -DWARPS=4 -DSKIP=0 -DDILATED=0 | -DD=64 -DBF16=0 -DB_R=128 -DB_C=128 -DWARPS=4 -DSKIP=1 -DDILATED=0 -DTABLE=1 | -DD=64 -DBF16=1 -DB_R=128 -DB_C=128 -DWARPS=4 -DSKIP=1 -DDILATED=0 -DTABLE=1 -DSOFTCAP=1 | -DD=128 -DBF16=1 -DB_R=128 -DB_C=64 -DWARPS=4 -DSKIP=1 -DDILATED=0 -DTABLE=1 -DSINKS=1 | -DD=128 -DBF16=0 -DB_R=128 -DB_C=64 -DWARPS=4 -DSKIP=1 -DDILATED=0 -DTABLE=1 -DSOFTCAP=1 -DSINKS=1 | -DD=256 -DBF16=0 -DB_R=64 -DB_C=64 -DWARPS=4 -DSKIP=1 -DDILATED=0 -DTABLE=1 | -DD=256 -DBF16=1 -DB_R=64 -DB_C=32 -DWARPS=4 -DSKIP=1 -DDILATED=0 -DTABLE=1
// arch: sm_80
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 1; Longformer (2004.05150), §3.1;
//        StreamingLLM (2309.17453)
constexpr int THREADS = 32 * WARPS, ROWS = B_R / WARPS;
#include "attention_tile.cuh"
#include "ranges.cuh"

struct Tiles { scalar_t Q[B_R * D], K[2][B_C * D], V[2][B_C * D]; Keys seen[B_R]; };

// keys_in(r): the keys of row r of the class, beside the sinks; r may lie behind the last row.
template <class KeysIn>
__device__ __forceinline__ void
attend(const scalar_t* Q, const scalar_t* K, const scalar_t* V, scalar_t* O, float* LSE,
       int L_q, int L_k, int group, float scale, int sinks, int dilation, ResidueClass of,
       const ModelSoftmax& softmax, KeysIn keys_in) {
    extern __shared__ __align__(512) uint4 shared_memory[];   // row_address takes that alignment
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);

    // A block has one tile of queries of one class; if causal, the longest rows are first.
    const int i0 = (gridDim.x - 1 - blockIdx.x) / dilation * B_R;
    if (i0 >= of.queries) return;
    const int pitch = dilation * D;   // elements from one row of the class to the next
    const int head = blockIdx.z * gridDim.y + blockIdx.y, kv_head = head / group;
    const long long first_row = (long long)head * L_q + of.first_query;
    Q += first_row * D + (long long)i0 * pitch;
    K += ((long long)kv_head * L_k + of.first_key) * D;
    V += ((long long)kv_head * L_k + of.first_key) * D;
    const int row0 = threadIdx.x / 32 * ROWS, i_warp = i0 + row0;   // this warp's first query

    // Both ends of what a row sees only grow with the row: first and last row decide.
    auto keys_of = [=](int row) { return keys_in(i0 + row); };
    const Keys block_sees = {keys_of(0).start, keys_of(B_R - 1).end};
    const TileRange tiles = SKIP ? tiles_of(block_sees, sinks) : every_tile(of.keys);
    const float factor = softmax.factor(scale) * LOG2_E;

    // Tiles are visited from last to first: only the first one visited can be ragged.
    int j = tiles.last();
    if (j >= 0) {
        const long long row = j * B_C;
        load_tile_async<B_R>(tile.Q, Q, of.queries - i0, pitch);
        load_tile_async<B_C>(tile.K[0], K + row * pitch, of.keys - j * B_C, pitch);
        load_tile_async<B_C>(tile.V[0], V + row * pitch, of.keys - j * B_C, pitch);
    }
    commit_copies();
    for (int r = threadIdx.x; r < B_R; r += THREADS) tile.seen[r] = keys_of(r);
    OnlineSoftmax state;
    initialize(state);

    for (int place = 0; j >= 0; place ^= 1) {
        wait_for_copies<0>();
        __syncthreads();   // tile j is there, and every warp is done with the one before
        const int j0 = j * B_C;
        j = tiles.before(j);
        if (j >= 0) {   // one tile ahead
            const long long row = j * B_C;
            load_tile_async<B_C, false>(tile.K[place ^ 1], K + row * pitch, B_C, pitch);
            load_tile_async<B_C, false>(tile.V[place ^ 1], V + row * pitch, B_C, pitch);
            commit_copies();
        }
        const Keys *seen = tile.seen + row0, top = seen[0], bottom = seen[ROWS - 1];
        if (SKIP && (j0 >= bottom.end || (j0 + B_C <= top.start && j0 >= sinks))) continue;

        Scores S;
        compute_scores(S, tile.Q + row0 * D, tile.K[place]);
        if (SOFTCAP) cap_scores(S, scale / softmax.softcap);
        if (!SKIP || j0 + B_C > top.end || (j0 < bottom.start && j0 + B_C > sinks))
            mask_scores(S, [=](int row) {
                const int start = seen[row].start - j0, end = seen[row].end - j0;
                return [=](int key) { return key < end & (key >= start | key < sinks - j0); };
            });
        update_maximum(state, S, factor);
        accumulate(state, S, tile.V[place], factor);
    }
    normalize(state, SINKS ? softmax.sink(blockIdx.y) : NEG_INF);
    const long long row = first_row + (long long)i_warp * dilation;
    write_rows(state, O + row * D, LSE + row, of.queries - i_warp, tile.Q + row0 * D, pitch);
}

#if TABLE
extern "C" __global__ void __launch_bounds__(THREADS, 2)
table_forward(const scalar_t* Q, const scalar_t* K, const scalar_t* V, scalar_t* O, float* LSE,
              int L_q, int L_k, int group, float scale, const int* starts, const int* ends,
              float softcap, const float* sink_logits) {
    const ResidueClass all = {0, 0, L_k, L_q, L_k - L_q};
    const ModelSoftmax softmax = {softcap, sink_logits};
    attend(Q, K, V, O, LSE, L_q, L_k, group, scale, 0, 1, all, softmax, [=](int row) {
        const int r = min(row, L_q - 1);
        return Keys{starts[r], ends[r]};
    });
}
#else
extern "C" __global__ void __launch_bounds__(THREADS, 2)
range_forward(const scalar_t* Q, const scalar_t* K, const scalar_t* V, scalar_t* O, float* LSE,
              int L_q, int L_k, int group, float scale,
              int sinks, int left, int right, int step, int dilation) {
    if (!DILATED) dilation = 1;   // known to the compiler, it makes all addresses immediate
    const ResidueClass of = residue_class(blockIdx.x % dilation, dilation, L_q, L_k);
    attend(Q, K, V, O, LSE, L_q, L_k, group, scale, sinks, dilation, of, {}, [=](int row) {
        return keys_of_row(row + of.shift, left, right, step, of.keys);
    });
}
#endif
