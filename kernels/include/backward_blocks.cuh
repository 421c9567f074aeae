// backward_blocks.cuh — FlashAttention-3's backward pass as a block sees it: its 128 keys meet tiles of
// B_R queries, one after the other.
//
// A producer brings the tiles. A consumer has 64 of the keys, and keeps their dK and dV in registers. Of each
// tile it computes Sᵀ = K Qᵀ and dPᵀ = V dOᵀ, St and dPt in the code, then Pᵀ and dSᵀ, and what they add to dV,
// dK and dQ. Sᵀ of the next tile starts before the products of this one end. An adder hands dQ to the copy
// engine. A kernel says which tiles a block meets (Walk), which pairs are hidden, and whose turn it is.
// The layout of the statistics and of dQ_sum: 07_hopper/backward.cu, whose first and last kernel make them
// and read them.
// Include after D, BF16 and TURNS are defined.
// paper  FlashAttention-3 (arXiv 2407.08608), Algorithm 3 in its appendix
#pragma once
#ifndef DELAY
#define DELAY 0   // dQ of a tile one tile later; 2: in front of dV
#endif
#ifndef SKIP
#define SKIP 0    // no products where a consumer's keys are seen by no query of a tile
#endif
#ifndef EDGES
#define EDGES 0   // S of the first tile does not wait for V; with DELAY dV is written while the last dQ runs
#endif
#ifndef OWN
#define OWN 0     // a gate and an adder for each consumer's piece of dQ
#endif
constexpr int CONSUMERS = 2, CONSUMER_THREADS = 128 * CONSUMERS;
constexpr int B_C = 64 * CONSUMERS, B_R = 8192 / D, BUFFERS = 2;
#include "tile_ring.cuh"
#include "turns.cuh"
#include "warpgroup_tile.cuh"

constexpr int PIECE = ROWS * 64;    // numbers of dQ that a consumer computes

// Of a tile's queries: the log-sum-exp times log2(e), and Δ.
struct Statistics { float LSE[B_R], delta[B_R]; };

struct Shared {
    scalar_t K[CONSUMERS][ROWS * D], V[CONSUMERS][ROWS * D];   // at the end dK and dV
    scalar_t Q[BUFFERS][B_R * D], dO[BUFFERS][B_R * D];
    scalar_t dSt[2][B_C * B_R];   // panels of 64 queries
    float dQ[CONSUMERS * PIECE];  // from the consumers to the adder
    Statistics statistics[BUFFERS];
    Gate gate_Q[BUFFERS], gate_dO[BUFFERS];
    Gate gate_K, gate_V, gate_dQ[CONSUMERS];
    Gate gate_dSt[2];
};
static_assert(sizeof(Shared) == 512 * D + 8 * D * B_R + 528 * B_R + 32928, "the kernels' headers");

typedef float KeysByQueries[B_R / 8][4];
typedef unsigned LeftFactor[B_R / 16][4];
typedef float QueryGradients[8][4];   // a consumer's piece of dQ

struct Factors { LeftFactor Pt, dSt; };   // of the products that add to dV and dK

struct KeyGradients { Output dK, dV; };   // of a consumer's keys; dK not yet times the scale

// A block's keys from j0 on, and the tiles of queries that it meets, one after the other: of each of the
// `group` query heads that share the key head, `head` and those behind it, `each` tiles from tile `first` on.
// `tiles`: how many a head has.
struct Walk {
    int j0, head, group, first, each, tiles;

    __device__ int steps() const { return group * each; }
    __device__ int kv_head() const { return head / group; }
    __device__ int head_of(int n) const { return head + n / each; }
    __device__ int tile_of(int n) const { return first + n % each; }
    // Its number among all tiles of all heads.
    __device__ int number(int n) const { return head_of(n) * tiles + tile_of(n); }
};

// All threads begin so.
__device__ inline void initialize(Shared& shared) {
    if (threadIdx.x == 0) {
        initialize(shared.gate_Q, 4 * CONSUMERS);
        initialize(shared.gate_dO, 4 * CONSUMERS);
        initialize(shared.gate_K, 4 * CONSUMERS);
        initialize(shared.gate_V, 4 * CONSUMERS);
        initialize(shared.gate_dQ, 1, OWN ? 4 : 4 * CONSUMERS);
        initialize(shared.gate_dSt, 4 * CONSUMERS, 4 * CONSUMERS);
        publish_barriers();
    }
    __syncthreads();
}

// One thread of the producer asks for tiles.
__device__ inline void produce(Shared& shared, const TensorMap& Q, const TensorMap& dO,
                               const TensorMap& K, const TensorMap& V, const Statistics* statistics,
                               const Walk& walk) {
    arrive_expecting(&shared.gate_K.full, sizeof(shared.K));
    for (int w = 0; w < CONSUMERS; w++)
        load_box(shared.K[w], K, walk.j0 + w * ROWS, walk.kv_head(), &shared.gate_K.full);
    #pragma unroll 1   // few registers are left for it
    for (int n = 0; n < walk.steps(); n++) {
        const int head = walk.head_of(n), i0 = walk.tile_of(n) * B_R;
        const auto [buffer, parity] = place(n);
        Gate& gate = shared.gate_Q[buffer];
        wait_for(&gate.empty, parity ^ 1);
        arrive_expecting(&gate.full, sizeof(shared.Q[0]) + sizeof(Statistics));
        load_box(shared.Q[buffer], Q, i0, head, &gate.full);
        load_bytes(&shared.statistics[buffer], &statistics[walk.number(n)], sizeof(Statistics),
                   &gate.full);
        if (n == 0) {
            arrive_expecting(&shared.gate_V.full, sizeof(shared.V));
            for (int w = 0; w < CONSUMERS; w++)
                load_box(shared.V[w], V, walk.j0 + w * ROWS, walk.kv_head(), &shared.gate_V.full);
        }
        fill(shared.dO[buffer], shared.gate_dO[buffer], parity, dO, i0, head);
    }
}

constexpr int ADDERS = OWN ? CONSUMERS : 1;

// One thread is the adder: dQ_sum += dQ, tile by tile. If blocks take turns, turn(tile) of them add to a tile
// before this one does.
template <class Turn>
__device__ inline void add_dQ(Shared& shared, float* dQ_sum, int* turns, const Walk& walk, Turn turn, int a = 0) {
    Gate& gate = shared.gate_dQ[a];
    #pragma unroll 1   // as above
    for (int n = 0; n < walk.steps(); n++) {
        const long long number = walk.number(n);
        wait_until_full(gate, n % 2);
#if OWN
        if (TURNS) {
            while (atomicAdd(turns + number, 0) / ADDERS != turn(n)) {}
            __threadfence();
        }
        add_floats(dQ_sum + number * (CONSUMERS * PIECE) + a * PIECE,
                   reinterpret_cast<float (&)[PIECE]>(shared.dQ[a * PIECE]));
#else
        if (TURNS) wait_for_turn(turns + number, turn(n));
        add_floats(dQ_sum + number * (CONSUMERS * PIECE), shared.dQ);
#endif
        if (TURNS) {
            finish_stores();
            end_turn(turns + number);
        }
        wait_for_stores();
        arrive(&gate.empty);
    }
}

// ---- the consumers

// Which of them a thread belongs to.
__device__ inline int consumer() { return __shfl_sync(0xffffffff, threadIdx.x / 128, 0); }

// Until K and V are there.
__device__ inline void wait_for_keys(Shared& shared) {
    wait_until_full(shared.gate_K, 0);
    if (!EDGES) wait_until_full(shared.gate_V, 0);
}

// Pᵀ = exp(scale · Sᵀ − LSE) in place of Sᵀ; factor: the scale, times log2(e).
__device__ inline void weights(KeysByQueries& St, const float* LSE, float factor) {
    each_of_lane<1, B_R / 8>([&](int, int n, int e, int key, int query) {
        St[n][e] = exp2_approx(fmaf(St[n][e], factor, -LSE[query]));
    });
}

// dSᵀ = Pᵀ ∘ (dPᵀ − Δ) in place of dPᵀ. With a softcap times 1 − tanh², and there are no registers to keep
// tanh in: it comes back as (log2(P) + LSE) / factor. Where P is 0, and its logarithm −∞, fmaxf makes that 0.
__device__ inline void score_gradients(KeysByQueries& dPt, const KeysByQueries& Pt,
                                       const float* delta, const float* LSE, float factor) {
    const float inverse = SOFTCAP ? 1 / factor : 0;
    each_of_lane<1, B_R / 8>([&](int, int n, int e, int key, int query) {
        dPt[n][e] = Pt[n][e] * (dPt[n][e] - delta[query]);
        if (SOFTCAP) {
            const float tanh = (log2_approx(Pt[n][e]) + LSE[query]) * inverse;
            dPt[n][e] *= fmaxf(1 - tanh * tanh, 0);
        }
    });
}

// For dQ, which needs all keys of the block: the consumer's rows of dSᵀ to shared memory.
__device__ inline void write_dSt(scalar_t* tile, const LeftFactor& dSt, int w) {
    const int lane = threadIdx.x % 32, row = w * ROWS + warp_row() + lane % 16;
    #pragma unroll
    for (int n = 0; n < B_R / 16; n++) {
        const scalar_t* chunk = tile + in_panels(B_C, row, 2 * n + lane / 16);
        stmatrix_x4((unsigned)__cvta_generic_to_shared(chunk), dSt[n]);
    }
}

// Which of the block's keys take part in a tile's dQ: those of both consumers, or of one.
struct Part { int first; bool both; };

// A head's tiles that some query sees a consumer's keys of, counted from the walk's first.
struct Tiles {
    int first, end;
    __device__ bool has(int t) const { return first <= t && t < end; }
};

// Those of the consumer itself and of the other. A tile that nobody sees keys of both take.
struct Seen {
    Tiles mine, other;
    __device__ bool by_mine(int t) const { return !SKIP || mine.has(t) || !other.has(t); }
    __device__ bool by_other(int t) const { return !SKIP || other.has(t) || !mine.has(t); }
    __device__ Part part(int t, int w) const {
        const bool both = by_mine(t) && by_other(t);
        return {both ? 0 : by_mine(t) ? w : 1 - w, both};
    }
};

// Starts dQ = dS K of so many keys, a consumer's piece of it: for D = 64 its 64 queries, otherwise its 64 columns.
template <int KEYS>
__device__ inline void start_dQ(QueryGradients& dQ, const scalar_t* dSt, const scalar_t* K, int w) {
    const unsigned long long ds = descriptor(dSt + (D == 64 ? w * B_C * 64 : 0));
    const unsigned long long k = descriptor(K + (D == 64 ? 0 : w * ROWS * 64));
    wgmma_fence();
    #pragma unroll
    for (int key = 0; key < KEYS; key += 16)
        multiply_by_columns(flat(dQ), moved(ds, key * 128),
                            moved(k, key / ROWS * ROWS * D * 2 + key % ROWS * 128), key > 0);
    wgmma_commit();
}

// The same of a part of the keys. ptxas wants a product whole on either side of a branch.
__device__ inline void start_dQ(QueryGradients& dQ, const scalar_t* dSt, const scalar_t* K, int w, Part part) {
    if (!SKIP || part.both)
        start_dQ<B_C>(dQ, dSt, K, w);
    else
        start_dQ<ROWS>(dQ, dSt + part.first * ROWS * 64, K + part.first * ROWS * D, w);
}

// The consumer's piece of dQ of tile n to the adder, eight columns after the other.
__device__ inline void hand_over(Shared& shared, const QueryGradients& dQ, int n, int w) {
    Gate& gate = shared.gate_dQ[OWN ? w : 0];
    wait_for(&gate.empty, n % 2 ^ 1);
    float4* piece = reinterpret_cast<float4*>(shared.dQ + w * PIECE) + threadIdx.x % 128;
    #pragma unroll
    for (int c = 0; c < 8; c++)
        piece[128 * c] = make_float4(dQ[c][0], dQ[c][1], dQ[c][2], dQ[c][3]);
    publish_tile();
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(&gate.full);
}

// Starts Sᵀ = K Qᵀ of tile n.
__device__ inline void start_tile(KeysByQueries& St, Shared& shared, int n, int w) {
    const auto [buffer, parity] = place(n);
    wait_until_full(shared.gate_Q[buffer], parity);
    start_scores(St, shared.K[w], shared.Q[buffer]);
}

// Pᵀ and dSᵀ of tile n, whose Sᵀ has started. hide(Pt, n) puts 0 where a query does not see a key.
template <class Hide>
__device__ __forceinline__ void
meet_tile(Factors& factors, KeysByQueries& St, Shared& shared, int n, int w, float scale, Hide hide,
          const ModelSoftmax& softmax) {
    const auto [buffer, parity] = place(n);
    const Statistics& statistics = shared.statistics[buffer];
    const float factor = softmax.factor(scale) * LOG2_E;
    KeysByQueries dPt;                     // becomes dSt, as St becomes Pt
    wait_until_full(shared.gate_dO[buffer], parity);
    start_scores(dPt, shared.V[w], shared.dO[buffer]);
    wait_for_product<1>(St);
    if (SOFTCAP) cap_scores(St, scale / softmax.softcap);
    weights(St, statistics.LSE, factor);
    hide(St, n);
    wait_for_product<0>(dPt);
    score_gradients(dPt, St, statistics.delta, statistics.LSE, factor);
    pack_weights(factors.Pt, St);
    pack_weights(factors.dSt, dPt);
    if (DELAY) wait_for(&shared.gate_dSt[buffer].empty, parity ^ 1);
    write_dSt(shared.dSt[n % 2], factors.dSt, w);   // the other may still be read for the last dQ
    publish_tile();
    if (DELAY) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(&shared.gate_dSt[buffer].full);
    }
}

// With DELAY: starts dQ of tile n, once dSᵀ is complete.
__device__ inline void start_dQ_of(QueryGradients& dQ, Shared& shared, int n, int w, Part part) {
    const auto [buffer, parity] = place(n);
    wait_until_full(shared.gate_dSt[buffer], parity);
    start_dQ(dQ, shared.dSt[buffer], shared.K[0], w, part);
}

// dQ of tile n, while no other product runs.
template <class Meanwhile>
__device__ __forceinline__ void add_dQ_alone(Shared& shared, int n, int w, Part part, Meanwhile meanwhile) {
    QueryGradients dQ;
    if (DELAY)
        start_dQ_of(dQ, shared, n, w, part);
    else {
        sync_threads(1, CONSUMER_THREADS);
        start_dQ(dQ, shared.dSt[n % 2], shared.K[0], w, part);
    }
    meanwhile();
    wait_for_product<0>(dQ);
    if (DELAY) give_back(shared.gate_dSt[n % 2]);
    hand_over(shared, dQ, n, w);
}

// With SKIP: tile n goes by.
__device__ inline void pass_tile(Shared& shared, int n) {
    const auto [buffer, parity] = place(n);
    wait_until_full(shared.gate_Q[buffer], parity);
    give_back(shared.gate_Q[buffer]);
    wait_until_full(shared.gate_dO[buffer], parity);
    give_back(shared.gate_dO[buffer]);
    if (DELAY && threadIdx.x % 32 == 0) arrive(&shared.gate_dSt[buffer].full);
}

// With DELAY: what tile n adds to dV and dK, and, but for the FIRST, the tile before to dQ.
template <bool FIRST, bool LAST>
__device__ __forceinline__ void
add_tile_delayed(KeyGradients& keys, const Factors& factors, KeysByQueries& St, Shared& shared, int n, int w,
                 Part before) {
    const int buffer = place(n).buffer;
    QueryGradients dQ;
    if constexpr (DELAY == 2 && !FIRST) start_dQ_of(dQ, shared, n - 1, w, before);
    start_output(keys.dV, factors.Pt, shared.dO[buffer]);
    if constexpr (DELAY == 1 && !FIRST) start_dQ_of(dQ, shared, n - 1, w, before);
    start_output(keys.dK, factors.dSt, shared.Q[buffer]);
    if constexpr (DELAY == 1) {
        wait_for_product<1 + !FIRST>(keys.dV);
        give_back(shared.gate_dO[buffer]);
    }
    if constexpr (!FIRST) {
        wait_for_product<DELAY>(dQ);
        give_back(shared.gate_dSt[(n - 1) % 2]);
        hand_over(shared, dQ, n - 1, w);
    }
    if constexpr (DELAY == 2) {
        wait_for_product<1>(keys.dV);
        give_back(shared.gate_dO[buffer]);
    }
    if constexpr (!LAST) start_tile(St, shared, n + 1, w);
    wait_for_product<!LAST>(keys.dK);
    give_back(shared.gate_Q[buffer]);
}

// What tile n adds to dV, dQ and dK. While dK's product runs, the next tile's Sᵀ starts, unless this is the last.
template <bool LAST>
__device__ __forceinline__ void
add_tile(KeyGradients& keys, const Factors& factors, KeysByQueries& St, Shared& shared, int n, int w,
         Part part = {0, true}) {
    const int buffer = place(n).buffer;
    QueryGradients dQ;
    start_output(keys.dV, factors.Pt, shared.dO[buffer]);   // dV += Pᵀ dO
    sync_threads(1, CONSUMER_THREADS);                      // dSᵀ is complete
    start_dQ(dQ, shared.dSt[n % 2], shared.K[0], w, part);
    start_output(keys.dK, factors.dSt, shared.Q[buffer]);   // dK += dSᵀ Q
    wait_for_product<2>(keys.dV);
    give_back(shared.gate_dO[buffer]);
    wait_for_product<1>(dQ);
    hand_over(shared, dQ, n, w);
    if constexpr (!LAST) start_tile(St, shared, n + 1, w);
    wait_for_product<!LAST>(keys.dK);
    give_back(shared.gate_Q[buffer]);
}

// Consumer w meets all tiles of the walk, one or more. ptxas lets no product run across the end of a loop's
// body, so the body begins in the middle of a tile, where none runs.
template <class Hide>
__device__ __forceinline__ void
meet_tiles(KeyGradients& keys, Shared& shared, const Walk& walk, int w, float scale, Hide hide,
           const Seen& seen, const ModelSoftmax& softmax = {}) {
    KeysByQueries St;
    Factors factors;
    wait_for_keys(shared);
#if DELAY || SKIP
    const int steps = walk.steps();
    int n = 0, t = 0;   // t = n % walk.each
    Part before = {0, true};
    const auto go_on = [&] {
        before = seen.part(t, w);
        n++;
        if (SKIP) t = t + 1 == walk.each ? 0 : t + 1;
    };
    const auto more = [&] {
        return n + 1 < steps && seen.by_mine(t + 1 == walk.each ? 0 : t + 1);
    };
    do {
        const bool meets = seen.by_mine(t);
        if (meets) {
            start_tile(St, shared, n, w);
            if (EDGES) wait_until_full(shared.gate_V, 0);
            meet_tile(factors, St, shared, n, w, scale, hide, softmax);
        } else
            pass_tile(shared, n);
#if DELAY
        if (SKIP && n > 0) add_dQ_alone(shared, n - 1, w, before, [] {});
        if (meets) {
            if (!more())
                add_tile_delayed<true, true>(keys, factors, St, shared, n, w, before);
            else {
                add_tile_delayed<true, false>(keys, factors, St, shared, n, w, before);
                go_on();
                meet_tile(factors, St, shared, n, w, scale, hide, softmax);
                while (more()) {
                    add_tile_delayed<false, false>(keys, factors, St, shared, n, w, before);
                    go_on();
                    meet_tile(factors, St, shared, n, w, scale, hide, softmax);
                }
                add_tile_delayed<false, true>(keys, factors, St, shared, n, w, before);
            }
        }
#else
        if (meets) {
            while (more()) {
                add_tile<false>(keys, factors, St, shared, n, w, seen.part(t, w));
                go_on();
                meet_tile(factors, St, shared, n, w, scale, hide, softmax);
            }
            add_tile<true>(keys, factors, St, shared, n, w, seen.part(t, w));
        } else
            add_dQ_alone(shared, n, w, seen.part(t, w), [] {});
#endif
        go_on();
    } while (SKIP && n < steps);
    if (SKIP && EDGES) wait_until_full(shared.gate_V, 0);   // if the consumer met no tile
    if (DELAY)
        add_dQ_alone(shared, steps - 1, w, before, [&] {
            if (!EDGES) return;
            sync_threads(2 + w, 128);   // nobody reads V any more
            write_tile(shared.V[w], keys.dV);
        });
    sync_threads(1, CONSUMER_THREADS);   // nobody reads K any more
    return;
#endif
    start_tile(St, shared, 0, w);
    if (EDGES) wait_until_full(shared.gate_V, 0);
    meet_tile(factors, St, shared, 0, w, scale, hide, softmax);
    for (int n = 1; n < walk.steps(); n++) {
        add_tile<false>(keys, factors, St, shared, n - 1, w);
        meet_tile(factors, St, shared, n, w, scale, hide, softmax);
    }
    add_tile<true>(keys, factors, St, shared, walk.steps() - 1, w);
    sync_threads(1, CONSUMER_THREADS);   // nobody reads K any more
}

// After meet_tiles: dK and dV of consumer w leave by way of its tiles of K and V.
__device__ inline void store_gradients(Shared& shared, KeyGradients& keys, const TensorMap& out_dK,
                                       const TensorMap& out_dV, const Walk& walk, int w, float scale) {
    #pragma unroll
    for (int r = 0; r < 2; r++) scale_row(keys.dK, r, scale);
    write_tile(shared.K[w], keys.dK);
    if (!(DELAY && EDGES)) write_tile(shared.V[w], keys.dV);
    publish_tile();
    sync_threads(2 + w, 128);
    if (threadIdx.x % 128 == 0) {
        store_box(out_dK, walk.j0 + w * ROWS, walk.kv_head(), shared.K[w]);
        store_box(out_dV, walk.j0 + w * ROWS, walk.kv_head(), shared.V[w]);
        wait_for_stores();   // shared memory must live as long
    }
}
