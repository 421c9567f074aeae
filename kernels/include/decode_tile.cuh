// decode_tile.cuh — a few queries and a long cache: warps stream keys past queries that stay.
//
// The queries of all heads that share a key head are the rows of one matrix, [group · L_q, D], as
// they lie behind one another in memory; row r is query r % L_q of its head. So K and V are read
// once per key head. A block has B_R rows, which all of its warps share, and each warp has keys of
// its own: every WARPS-th tile of B_C. A warp's copies are its own, too, STAGES tiles of K and V at
// a time, and it waits for no other warp before the end, where the warps' results are merged.
//
// A block is (32, WARPS): threadIdx.x is the lane, threadIdx.y the warp.
// Include after D, B_R, B_C, WARPS and STAGES are defined, and CACHE_BITS as 8 for keys in E4M3. Options
// besides: WINDOW=1, and those of model_softmax.cuh.
#pragma once
constexpr int THREADS = 32, ROWS = B_R;   // a warp copies a tile, and has all rows
#include "attention_tile.cuh"
#include "cache.cuh"
#include "merge_parts.cuh"
#include "pieces.cuh"

#ifndef WINDOW
#define WINDOW 0
#endif
static_assert(STAGES >= 2, "STAGES must be at least 2");
static_assert(B_C <= 32, "B_C must be at most 32");   // a lane looks up the place of a key

#if CACHE_BITS == 8
#include "e4m3_tile.cuh"
#else
constexpr float UNIT = 1;
__device__ inline int column_of(int place) { return place; }
__device__ inline int place_of(int row, int chunk) { return swizzled(row, chunk); }
#endif

struct Stage { cache_t K[B_C * D], V[B_C * D]; };

struct Tiles {
    scalar_t Q[B_R * D];
    union {
        Stage stages[WARPS][STAGES];
        struct { float O[WARPS][B_R][D + 8], LSE[WARPS][B_R]; } parts;   // 8: no bank conflicts
    };
};

// The queries stand at the last L_q positions of a sequence, the first of them at `first`, which is
// negative where the sequence has fewer keys. A query sees every key before `first`, and after that
// itself and its ancestors: in a chain all queries before it, in a tree those that `parents` says,
// whose entries are smaller than their index; less than 0 is the root. With WINDOW=1 it sees the last
// `window` of these up to itself.
struct Queries {
    const int* parents;
    int L_q, first, tree, window;

    // Bit t: query i sees the key of query t.
    __device__ unsigned seen_by(int i) const {
        if (!tree) return (2u << i) - 1;
        unsigned seen = 0;
        for (int t = i; t >= 0; t = min(parents[t], t - 1)) seen |= 1u << t;
        return seen;
    }

    // Whether the window of some query begins after key j.
    __device__ bool windows_begin_after(int j) const { return WINDOW && j <= first + L_q - 1 - window; }
};

// Starts to copy a tile of K and of V. `row_of(n)` says in which row of both key n of the tile is;
// a negative row is none: its numbers are zeros, since old ones may be NaN, and 0 · NaN is NaN.
// `pitch`: numbers from one row to the next.
template <class RowOf>
__device__ inline void copy_keys(Stage& stage, const cache_t* K, const cache_t* V, int pitch,
                                 RowOf row_of) {
    constexpr int CHUNKS = D * sizeof(cache_t) / 16, STEP = 32 / CHUNKS;
    const int chunk = threadIdx.x % CHUNKS;
    #pragma unroll
    for (int n = threadIdx.x / CHUNKS; n < B_C; n += STEP) {
        const int row = row_of(n), place = place_of(n, chunk);
        const long long from = (long long)max(row, 0) * pitch + chunk * (D / CHUNKS);
        copy_16_bytes_async(stage.K + place, K + from, row >= 0);
        copy_16_bytes_async(stage.V + place, V + from, row >= 0);
    }
}

// The queries of the block's rows, `row0` and on, meet a tile of keys, j0, j0 + 1, ..., the last of
// them below `end`. scale_per_cap: as for cap_scores.
__device__ inline void meet_keys(OnlineSoftmax& state, const scalar_t* Q, const Stage& stage,
                                 const Queries& queries, int row0, int j0, int end, float factor,
                                 float scale_per_cap) {
    Scores S;
    compute_scores(S, Q, stage.K);
    if (SOFTCAP) cap_scores(S, scale_per_cap);
    if (j0 + B_C > min(end, queries.first) || queries.windows_begin_after(j0))
        mask_scores(S, [=](int row) {
            const int i = (row0 + row) % queries.L_q;
            const unsigned seen = queries.seen_by(i);
            return [=](int key) {
                const int j = j0 + key, t = j - queries.first;
                return j < end && (t < 0 || seen >> t & 1) && (!WINDOW || t > i - queries.window);
            };
        });
    update_maximum(state, S, factor);
    accumulate(state, S, stage.V, factor);
}

// The block's rows of Q, of which `rows_left` exist, and zeros after them. Of 16 columns a thread
// takes care that they come in the order of the keys' columns.
__device__ inline void load_queries(scalar_t* tile, const scalar_t* Q, int rows_left) {
    #pragma unroll
    for (int e = threadIdx.y * 32 + threadIdx.x; e < B_R * D / 16; e += 32 * WARPS) {
        const int row = e / (D / 16), chunk = e % (D / 16) * 2;
        uint4 given[2] = {}, ordered[2];
        if (row < rows_left)
            for (int n = 0; n < 2; n++)
                given[n] = reinterpret_cast<const uint4*>(Q + row * D)[chunk + n];
        for (int place = 0; place < 16; place++)
            reinterpret_cast<scalar_t*>(ordered)[place] =
                reinterpret_cast<const scalar_t*>(given)[column_of(place)];
        for (int n = 0; n < 2; n++)
            *reinterpret_cast<uint4*>(tile + swizzled(row, chunk + n)) = ordered[n];
    }
}

// This warp's part of the keys: of the block's `tiles` those number threadIdx.y, + WARPS, and so on.
// `start_copies(stage, t)` starts those of tile t, one after the other; `meet(stage, t)` lets the
// queries meet its keys. Between the first copies and the first keys, `load()` brings what all need.
template <class StartCopies, class Load, class Meet>
__device__ inline void stream(Tiles& tile, int tiles, StartCopies start_copies, Load load,
                              Meet meet) {
    Stage* stages = tile.stages[threadIdx.y];
    #pragma unroll
    for (int n = 0; n < STAGES; n++) {
        const int t = threadIdx.y + n * WARPS;
        if (t < tiles) start_copies(stages[n], t);
        commit_copies();
    }
    load();
    __syncthreads();
    int stage = 0;
    for (int t = threadIdx.y; t < tiles; t += WARPS) {
        wait_for_copies<STAGES - 1>();
        __syncwarp();   // tile t is there
        meet(stages[stage], t);
        __syncwarp();   // and done with: the copies of another may go in its place
        if (t + STAGES * WARPS < tiles) start_copies(stages[stage], t + STAGES * WARPS);
        commit_copies();
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
}

// Merges what the block's warps have; `write(row, column, o, lse)` gets four columns of a row, for
// each of the B_R rows. The keys' stages give way to it. With SINKS=1 one part more is the sink,
// `sink_of(row)`, whose output is 0.
template <class SinkOf, class Write>
__device__ inline void merge_warps(OnlineSoftmax& state, Tiles& tile, SinkOf sink_of, Write write) {
    normalize(state);
    __syncthreads();   // every warp is done with its keys
    const int lane = threadIdx.x;
    #pragma unroll
    for (int i = 0; i < M; i++)
        for (int r = 0; r < 2; r++) {
            const int row = 16 * i + 8 * r + lane / 4;
            if (lane % 4 == 0) tile.parts.LSE[threadIdx.y][row] = state.m[i][r];
            #pragma unroll
            for (int c = 0; c < D / 8; c++)
                for (int e = 0; e < 2; e++)
                    tile.parts.O[threadIdx.y][row][column_of(8 * c + lane % 4 * 2 + e)] =
                        state.O[i][c][2 * r + e];
        }
    __syncthreads();
    for (int e = threadIdx.y * 32 + lane; e < B_R * D / 4; e += 32 * WARPS) {
        const int row = e / (D / 4), column = e % (D / 4) * 4;
        float4 o;
        const float lse = merge_parts(
            o, 0, WARPS + SINKS, 1,
            [&](int w) { return w < WARPS ? tile.parts.LSE[w][row] : sink_of(row); },
            [&](int w) {
                return w < WARPS ? *reinterpret_cast<float4*>(&tile.parts.O[w][row][column])
                                 : make_float4(0, 0, 0, 0);
            });
        write(row, column, o, lse);
    }
}

// What a block's piece has to be attended by, and where the results go.
struct Problem {
    const scalar_t* Q;      // [B, H, L_q, D]
    const int* parents;     // [B, L_q]
    int L_q, group, tree;
    float scale;
    scalar_t* O;            // [B, H, L_q, D]
    float* LSE;             // [B, H, L_q]
    float *O_parts, *LSE_parts;   // [pieces, H, L_q, D] and [pieces, H, L_q]
    float k_factor = 1, v_factor = 1;   // of the numbers in K and V
    int window = 0;
    ModelSoftmax softmax = {};
};

// Rows `first` and on, B_R of them, of key head `head` of so many.
struct Rows { int first, head, heads; };

__device__ inline Rows rows_of_block() {
    return {(int)blockIdx.x * B_R, (int)blockIdx.y, (int)gridDim.y};
}

// Attends a piece for some rows. Tile t begins at key piece.first + t · B_C; `start_copies(stage, t)`
// as in `stream`. Where the sequence has one piece, the output is written; else the piece's part.
// `prepare()` comes after the first copies are started and before the queries are read, by all
// threads; `complete(stage, t)` before the queries meet a tile, by the warp that has it.
template <class StartCopies, class Prepare, class Complete>
__device__ inline void attend(const Problem& problem, const Piece& piece, const Rows& which,
                              StartCopies start_copies, Prepare prepare, Complete complete) {
    extern __shared__ __align__(256) uint4 shared_memory[];   // row_address takes that alignment
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);
    const int row0 = which.first, rows = problem.group * problem.L_q;
    const long long head = (long long)piece.sequence * which.heads + which.head;
    const Queries queries{problem.parents + (long long)piece.sequence * problem.L_q, problem.L_q,
                          piece.keys - problem.L_q, problem.tree, problem.window};
    const ModelSoftmax& softmax = problem.softmax;
    const float factor =
        SOFTCAP ? softmax.softcap * LOG2_E : problem.scale * LOG2_E * problem.k_factor;
    const float scale_per_cap = SOFTCAP ? problem.scale * problem.k_factor / softmax.softcap : 0;

    OnlineSoftmax state;
    initialize(state);
    stream(
        tile, (piece.end - piece.first + B_C - 1) / B_C, start_copies,
        [&] {
            prepare();
            load_queries(tile.Q, problem.Q + (head * rows + row0) * D, rows - row0);
        },
        [&](Stage& stage, int t) {
            const int j0 = piece.first + t * B_C;
            complete(stage, t);
            meet_keys(state, tile.Q, stage, queries, row0, j0, piece.end, factor, scale_per_cap);
        });

    const bool whole = piece.parts == 1;
    const long long part = (long long)piece.number * which.heads + which.head;
    auto sink_of = [=](int row) {   // in the first part alone: parts are of disjoint sets of keys
        const int r = row0 + row;
        if (piece.part > 0 || r >= rows) return NEG_INF;
        return softmax.sink_logits[which.head * problem.group + r / problem.L_q];
    };
    merge_warps(state, tile, sink_of, [=](int row, int column, float4 o, float lse) {
        if (row0 + row >= rows) return;
        o.x *= problem.v_factor, o.y *= problem.v_factor;
        o.z *= problem.v_factor, o.w *= problem.v_factor;
        const long long at = (whole ? head : part) * rows + row0 + row;
        if (whole)
            *reinterpret_cast<uint2*>(problem.O + at * D + column) =
                make_uint2(pack(o.x, o.y), pack(o.z, o.w));
        else
            *reinterpret_cast<float4*>(problem.O_parts + at * D + column) = o;
        if (column == 0) (whole ? problem.LSE : problem.LSE_parts)[at] = lse;
    });
}

template <class StartCopies>
__device__ inline void attend(const Problem& problem, const Piece& piece, StartCopies start_copies) {
    attend(problem, piece, rows_of_block(), start_copies, [] {}, [](Stage&, int) {});
}

// `start_copies` for K and V [B, H / group, L, D], of which key j is row j.
__device__ inline auto copies_of_rows(const cache_t* K, const cache_t* V, int L,
                                      const Piece& piece) {
    const Rows which = rows_of_block();
    const long long head = (long long)piece.sequence * which.heads + which.head;
    K += head * L * D, V += head * L * D;
    return [=](Stage& stage, int t) {
        const int j0 = piece.first + t * B_C;
        copy_keys(stage, K, V, D, [=](int n) { return j0 + n < piece.end ? j0 + n : -1; });
    };
}

// Keys [first, end) of a sequence and of one head, in pages [pages, page_size, heads, D]: tile t
// begins at key first + t · B_C. Key 0 is the one that has `skipped` keys of the sequence before it.
struct PagedKeys {
    const cache_t *K, *V;   // of the head
    PageTable table;
    int pitch, first, end, skipped;

    // In which row of the pages this lane's key of a tile is, −1 for none.
    __device__ int look_up(int t) const {
        const int n = threadIdx.x, j = first + t * B_C + n;
        return n >= B_C || j >= end ? -1 : table.row_of(j + skipped);
    }

    // Starts to copy a tile whose rows the lanes have looked up.
    __device__ void copy(Stage& stage, int row) const {
        copy_keys(stage, K, V, pitch, [=](int n) { return __shfl_sync(ALL_LANES, row, n); });
    }
};

__device__ inline PagedKeys keys_in_pages(const cache_t* K, const cache_t* V, const PageTable& table,
                                          const Rows& which, const Piece& piece,
                                          int skipped = 0) {
    return {K + which.head * D, V + which.head * D, table, which.heads * D, piece.first, piece.end,
            skipped};
}

// With WINDOW=1 a batch counts no more keys of a sequence than some query's window has, its last
// ones: how many of all its keys, `capacity` at most, come before.
__device__ inline int keys_before_window(const int* seq_lens, int capacity, const Piece& piece) {
    return WINDOW ? Batch{seq_lens, 0, capacity, 1}.keys(piece.sequence) - piece.keys : 0;
}

// `start_copies` for these. Each lane looks up a key of the next tile, before the copies of this one
// are started.
__device__ inline auto copies_of_pages(const PagedKeys& keys) {
    return [=, next = keys.look_up(threadIdx.y)](Stage& stage, int t) mutable {
        const int row = next;
        next = keys.look_up(t + WARPS);
        keys.copy(stage, row);
    };
}
