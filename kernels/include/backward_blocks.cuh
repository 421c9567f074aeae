// backward_blocks.cuh — FlashAttention-3's backward pass as a block sees it: its 128 keys meet tiles of
// B_R queries, one after the other.
//
// A producer brings the tiles. A consumer has 64 of the keys, and keeps their dK and dV in registers. Of each
// tile it computes Sᵀ = K Qᵀ and dPᵀ = V dOᵀ, St and dPt in the code, then Pᵀ and dSᵀ, and what they add to dV,
// dK and dQ. Sᵀ of the next tile starts before the products of this one end. At D = 128 a consumer lets the
// first or last tile go by if none of the tile's queries sees its keys. A kernel says which tiles a block meets
// (Walk), which of them a consumer skips (SkippedTiles), which pairs are hidden, and whose turn it is.
//
// In one thing the loop differs from the paper's: dQ of a tile is computed one tile later. It needs the rows of
// dSᵀ of both consumers, and a tile later the other's are likely there: so consumers do not wait for each other
// in the middle of a tile. Each consumer computes a piece of dQ, and hands it to an adder of its own, a thread
// that has the copy engine add it to global memory.
//
// The layout of the statistics and of dQ_sum: 07_hopper/backward.cu, whose first and last kernel make them
// and read them.
// Include after D, BF16 and TURNS are defined.
// paper  FlashAttention-3 (arXiv 2407.08608), Algorithm 3 in its appendix
#pragma once

// DILATED=1: positions fall into residue classes (range_hopper.cu), and each class of a batch counts as a batch of
// its own, number batch · dilation + class; L_q and L_k are those of a class.
#ifndef DILATED
#define DILATED 0
#endif

// STAYS=1: a block stays for one walk after the other. K has two places, so that the next walk's tiles come while this
// one ends, and the adder stores dK and dV. A round is a walk: `round` says which of the block's it is, and tiles are
// numbered on from one to the next.
#ifndef STAYS
#define STAYS 0
#endif

constexpr int CONSUMERS = 2, CONSUMER_THREADS = 128 * CONSUMERS;
constexpr int B_C = 64 * CONSUMERS, B_R = 8192 / D, BUFFERS = 2;
#include "tile_ring.cuh"
#include "turns.cuh"
#include "warpgroup_tile.cuh"

constexpr int PLACES = 1 + STAYS;   // of K
constexpr int PIECE = ROWS * 64;    // numbers of dQ that a consumer computes

// Of a tile's queries: the log-sum-exp times log2(e), and Δ.
struct Statistics { float LSE[B_R], delta[B_R]; };

struct Shared {
    scalar_t K[PLACES][CONSUMERS][ROWS * D], V[CONSUMERS][ROWS * D];   // at the end dK and, unless STAYS, dV
    scalar_t Q[BUFFERS][B_R * D], dO[BUFFERS][B_R * D];
    scalar_t dSt[2][B_C * B_R];   // panels of 64 queries
    float dQ[CONSUMERS][PIECE];   // from each consumer to its adder
    Statistics statistics[BUFFERS];
    Gate gate_Q[BUFFERS], gate_dO[BUFFERS];
    Gate gate_K[PLACES], gate_V, gate_dSt[2], gate_dQ[CONSUMERS];
};
static_assert(sizeof(Shared) == (256 * D + 16) * PLACES + 256 * D + 8 * D * B_R + 528 * B_R + 32912,
              "the kernels' headers");

typedef float KeysByQueries[B_R / 8][4];
typedef unsigned LeftFactor[B_R / 16][4];
typedef float QueryGradients[8][4];   // a consumer's piece of dQ

struct Factors { LeftFactor Pt, dSt; };   // of the products that add to dV and dK

struct KeyGradients { Output dK, dV; };   // of a consumer's keys; dK not yet times the scale

// A block's keys from j0 on, and the tiles of queries that it meets, one after the other: of each of the
// `group` query heads that share the key head, `head` and those behind it, `each` tiles from tile `first` on.
// `tiles`: how many a head has. Dilated, a box begins at the class's panel, and the classes before, batches of
// their own, have `heads_before` key heads. What takes AnyWalk also takes a struct that has these functions for
// other tiles.
struct Walk {
    int j0, head, group, first, each, tiles, panel = 0, heads_before = 0;

    __device__ int steps() const { return group * each; }
    __device__ int kv_head() const { return head / group; }
    __device__ int head_of(int n) const { return head + n / each; }
    __device__ int tile_of(int n) const { return first + n % each; }
    // Its number among all tiles of all heads.
    __device__ int number(int n) const { return (head_of(n) + group * heads_before) * tiles + tile_of(n); }
};

// Tiles of the walk that a consumer lets go by, since none of their queries sees one of its keys: the first head's
// first and the last head's last, but never all. sees(i0): whether some query of the tile from i0 on does.
// Not where a tile has as many queries as the block has keys: there causal rows of equal lengths and windows of a
// multiple of 128 keys leave nothing to skip.
struct SkippedTiles {
    bool first, last;
    int begin, end;   // first and last are of the tiles `begin` to `end` − 1; those outside go by, too

    template <class Sees>
    __device__ SkippedTiles(const Walk& walk, Sees sees) : begin(0), end(walk.steps()) {
        constexpr bool may_skip = B_R < B_C;
        const int steps = walk.steps();
        first = may_skip && steps > 1 && !sees(walk.tile_of(0) * B_R);
        last = may_skip && steps > 1 + first && !sees(walk.tile_of(steps - 1) * B_R);
    }
    __device__ SkippedTiles(int begin, int end) : first(false), last(false), begin(begin), end(end) {}
};

// All threads begin so.
__device__ inline void initialize(Shared& shared) {
    if (threadIdx.x == 0) {
        initialize(shared.gate_Q, 4 * CONSUMERS);
        initialize(shared.gate_dO, 4 * CONSUMERS);
        initialize(shared.gate_K, CONSUMERS);   // the adders, which are done last
        initialize(shared.gate_V, 4 * CONSUMERS);
        initialize(shared.gate_dSt, 4 * CONSUMERS, 4 * CONSUMERS);
        initialize(shared.gate_dQ, 1, 4);
        publish_barriers();
    }
    __syncthreads();
}

// One thread of the producer asks for the tiles of a walk, from number t on. K's place is empty.
template <class AnyWalk>
__device__ inline void produce(Shared& shared, const TensorMap& Q, const TensorMap& dO,
                               const TensorMap& K, const TensorMap& V, const Statistics* statistics,
                               const AnyWalk& walk, int t = 0, int round = 0) {
    if (!STAYS && walk.steps() == 0) return;
    const auto bring = [&](scalar_t (&tiles)[CONSUMERS][ROWS * D], const TensorMap& map, Gate& gate) {
        arrive_expecting(&gate.full, sizeof(tiles));
        for (int w = 0; w < CONSUMERS; w++)
            load_box(tiles[w], map, walk.j0 + w * ROWS, walk.kv_head(), &gate.full, walk.panel);
    };
    bring(shared.K[round % PLACES], K, shared.gate_K[round % PLACES]);
    if (STAYS && walk.steps() == 0) fill_with_nothing(shared.gate_V, round % 2);
    #pragma unroll 1   // few registers are left for it
    for (int n = 0; n < walk.steps(); n++) {
        const int head = walk.head_of(n), i0 = walk.tile_of(n) * B_R;
        const auto [buffer, parity] = place(t + n);
        Gate& gate = shared.gate_Q[buffer];
        wait_for(&gate.empty, parity ^ 1);
        arrive_expecting(&gate.full, sizeof(shared.Q[0]) + sizeof(Statistics));
        load_box(shared.Q[buffer], Q, i0, head, &gate.full, walk.panel);
        load_bytes(&shared.statistics[buffer], &statistics[walk.number(n)], sizeof(Statistics),
                   &gate.full);
        if (n == 0) {
            if (STAYS) wait_for(&shared.gate_V.empty, round % 2 ^ 1);
            bring(shared.V, V, shared.gate_V);
        }
        fill(shared.dO[buffer], shared.gate_dO[buffer], parity, dO, i0, head, walk.panel);
    }
}

// One thread is the adder of consumer w: dQ_sum += its piece of dQ, tile by tile. If blocks take turns, turn(n) of
// them add to the walk's tile n before this one does, and end a turn for each piece.
template <class AnyWalk, class Turn>
__device__ inline void add_dQ(Shared& shared, float* dQ_sum, int* turns, const AnyWalk& walk, int w, Turn turn,
                              int t = 0, int round = 0) {
    Gate& gate = shared.gate_dQ[w];
    #pragma unroll 1   // as above
    for (int n = 0; n < walk.steps(); n++) {
        const long long number = walk.number(n);
        const int before = TURNS ? CONSUMERS * turn(n) : 0;
        wait_until_full(gate, (t + n + round) % 2);
        if (TURNS) wait_for_turns(turns + number, before);
        add_floats(dQ_sum + (number * CONSUMERS + w) * PIECE, shared.dQ[w]);
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
__device__ inline void wait_for_keys(Shared& shared, int round = 0) {
    wait_until_full(shared.gate_K[round % PLACES], round / PLACES % 2);
    wait_until_full(shared.gate_V, round % 2);
}

// x, read again for each tile, since no register is left to keep it in.
__device__ inline float not_kept(float x) {
    asm volatile("" : "+f"(x));
    return x;
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
    const float inverse = SOFTCAP ? __fdividef(1, factor) : 0;
    each_of_lane<1, B_R / 8>([&](int, int n, int e, int key, int query) {
        dPt[n][e] = Pt[n][e] * (dPt[n][e] - delta[query]);
        if (SOFTCAP) {
            const float tanh = (log2_approx(Pt[n][e]) + LSE[query]) * inverse;
            dPt[n][e] *= fmaxf(1 - tanh * tanh, 0);
        }
    });
}

// The warp has written its part of what others wait for at the gate.
__device__ inline void announce(Gate& gate) {
    publish_tile();
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(&gate.full);
}

// For dQ, which needs all keys of the block: the consumer's rows of dSᵀ of tile n to shared memory.
__device__ inline void write_dSt(Shared& shared, const LeftFactor& dSt, int n, int w) {
    const auto [buffer, parity] = place(n);
    wait_for(&shared.gate_dSt[buffer].empty, parity ^ 1);   // dQ of tile n − 2 has been computed
    const int lane = threadIdx.x % 32, row = w * ROWS + warp_row() + lane % 16;
    // Two chunks further on in a panel is a bit of the address: so the compiler keeps no addresses in registers.
    const unsigned first = __cvta_generic_to_shared(shared.dSt[buffer] + in_panels(B_C, row, lane / 16));
    #pragma unroll
    for (int c = 0; c < B_R / 16; c++) stmatrix_x4((first ^ c % 4 * 32) + c / 4 * B_C * 128, dSt[c]);
    announce(shared.gate_dSt[buffer]);
}

// Starts dQ = dS K of tile n, a consumer's piece of it: for D = 64 its 64 queries, otherwise its 64 columns.
__device__ inline void start_dQ(QueryGradients& dQ, Shared& shared, int n, int round, int w) {
    const auto [buffer, parity] = place(n);
    wait_until_full(shared.gate_dSt[buffer], parity);
    const unsigned long long ds = descriptor(shared.dSt[buffer] + (D == 64 ? w * B_C * 64 : 0));
    const unsigned long long k = descriptor(shared.K[round % PLACES][0] + (D == 64 ? 0 : w * ROWS * 64));
    wgmma_fence();
    #pragma unroll
    for (int key = 0; key < B_C; key += 16)
        multiply_by_columns(flat(dQ), moved(ds, key * 128),
                            moved(k, key / ROWS * ROWS * D * 2 + key % ROWS * 128), key > 0);
    wgmma_commit();
}

// The consumer's piece of dQ of tile n, whose product has ended, to the adder, eight columns after the other.
__device__ inline void hand_over(Shared& shared, const QueryGradients& dQ, int n, int round, int w) {
    give_back(shared.gate_dSt[place(n).buffer]);
    wait_for(&shared.gate_dQ[w].empty, (n + round) % 2 ^ 1);
    float4* piece = reinterpret_cast<float4*>(shared.dQ[w]) + threadIdx.x % 128;
    #pragma unroll
    for (int c = 0; c < 8; c++)
        piece[128 * c] = make_float4(dQ[c][0], dQ[c][1], dQ[c][2], dQ[c][3]);
    announce(shared.gate_dQ[w]);
}

// Starts Sᵀ = K Qᵀ of tile n.
__device__ inline void start_tile(KeysByQueries& St, Shared& shared, int n, int round, int w) {
    const auto [buffer, parity] = place(n);
    wait_until_full(shared.gate_Q[buffer], parity);
    start_scores(St, shared.K[round % PLACES][w], shared.Q[buffer]);
}

// Pᵀ and dSᵀ of tile n, whose Sᵀ has started. hide(Pt, n) puts 0 where a query does not see a key.
template <class Hide>
__device__ __forceinline__ void
meet_tile(Factors& factors, KeysByQueries& St, Shared& shared, int n, int w, float scale, Hide hide,
          const ModelSoftmax& softmax) {
    const auto [buffer, parity] = place(n);
    const Statistics& statistics = shared.statistics[buffer];
    const float softcap = SOFTCAP ? not_kept(softmax.softcap) : 0;
    const float factor = ModelSoftmax{softcap}.factor(scale) * LOG2_E;
    KeysByQueries dPt;                     // becomes dSt, as St becomes Pt
    wait_until_full(shared.gate_dO[buffer], parity);
    start_scores(dPt, shared.V[w], shared.dO[buffer]);
    wait_for_product<1>(St);
    if (SOFTCAP) cap_scores(St, __fdividef(scale, softcap));
    weights(St, statistics.LSE, factor);
    hide(St, n);
    wait_for_product<0>(dPt);
    score_gradients(dPt, St, statistics.delta, statistics.LSE, factor);
    pack_weights(factors.Pt, St);
    pack_weights(factors.dSt, dPt);
    write_dSt(shared, factors.dSt, n, w);
}

// Lets tile n go by, since none of its queries sees the consumer's keys: dQ gets zeros. The consumer waits for the tile
// even so: if both consumers gave a buffer back before its tile is there, the next one would be requested too early.
__device__ inline void skip_tile(Shared& shared, int n, int w) {
    const auto [buffer, parity] = place(n);
    write_dSt(shared, LeftFactor{}, n, w);
    wait_until_full(shared.gate_Q[buffer], parity);
    wait_until_full(shared.gate_dO[buffer], parity);
    __syncwarp();   // all lanes have waited, before one of them gives the tiles back for its warp
    give_back(shared.gate_Q[buffer]);
    give_back(shared.gate_dO[buffer]);
}

// What tile n adds to dV and dK, and the tile before it to dQ, unless this is the first. While dK's product runs,
// the next tile's Sᵀ starts, unless this is the last.
template <bool FIRST, bool LAST>
__device__ __forceinline__ void
add_tile(KeyGradients& keys, const Factors& factors, KeysByQueries& St, Shared& shared, int n, int round, int w) {
    const int buffer = place(n).buffer;
    QueryGradients dQ;
    start_output(keys.dV, factors.Pt, shared.dO[buffer]);   // dV += Pᵀ dO
    if constexpr (!FIRST) start_dQ(dQ, shared, n - 1, round, w);   // dQ = dS K of the tile before
    start_output(keys.dK, factors.dSt, shared.Q[buffer]);   // dK += dSᵀ Q
    wait_for_product<1 + !FIRST>(keys.dV);
    give_back(shared.gate_dO[buffer]);
    if constexpr (!FIRST) {
        wait_for_product<1>(dQ);
        hand_over(shared, dQ, n - 1, round, w);
    }
    if constexpr (!LAST) start_tile(St, shared, n + 1, round, w);
    wait_for_product<!LAST>(keys.dK);
    give_back(shared.gate_Q[buffer]);
}

// What tile n adds to dQ, once no other product runs.
__device__ __forceinline__ void add_last_dQ(Shared& shared, int n, int round, int w) {
    QueryGradients dQ;
    start_dQ(dQ, shared, n, round, w);
    wait_for_product<0>(dQ);
    hand_over(shared, dQ, n, round, w);
}

// The same, and adds the tile to dQ at once: for a consumer that has no other tile to compute meanwhile.
__device__ inline void skip_whole_tile(Shared& shared, int n, int round, int w) {
    skip_tile(shared, n, w);
    add_last_dQ(shared, n, round, w);
}

// Consumer w meets the tiles of the walk, one or more, from number t on, but for the skipped ones. ptxas lets no
// product run across the end of a loop's body, so the body begins in the middle of a tile, where none runs.
template <class AnyWalk, class Hide>
__device__ __forceinline__ void
meet_tiles(KeyGradients& keys, Shared& shared, const AnyWalk& walk, const SkippedTiles& skipped, int w, float scale,
           Hide hide_in_walk, const ModelSoftmax& softmax = {}, int t = 0, int round = 0) {
    const int begin = t + skipped.begin, first = begin + skipped.first;
    const int end = t + skipped.end, last = end - 1 - skipped.last;
    const auto hide = [&](KeysByQueries& Pt, int n) { hide_in_walk(Pt, n - t); };
    KeysByQueries St;
    Factors factors;
    wait_for_keys(shared, round);
    for (int n = t; n < begin; n++) skip_whole_tile(shared, n, round, w);
    if (skipped.first) skip_tile(shared, begin, w);
    start_tile(St, shared, first, round, w);
    meet_tile(factors, St, shared, first, w, scale, hide, softmax);
    if (last == begin) {
        if (STAYS) give_back(shared.gate_V);
        add_tile<true, true>(keys, factors, St, shared, begin, round, w);
    } else {
        if (!skipped.first) {   // no tile before it adds to dQ
            add_tile<true, false>(keys, factors, St, shared, begin, round, w);
            meet_tile(factors, St, shared, begin + 1, w, scale, hide, softmax);
        }
        for (int n = begin + 2; n <= last; n++) {
            add_tile<false, false>(keys, factors, St, shared, n - 1, round, w);
            meet_tile(factors, St, shared, n, w, scale, hide, softmax);
        }
        if (STAYS) give_back(shared.gate_V);
        add_tile<false, true>(keys, factors, St, shared, last, round, w);
    }
    if (skipped.last) skip_tile(shared, last + 1, w);
    add_last_dQ(shared, last, round, w);
    if (skipped.last) add_last_dQ(shared, last + 1, round, w);
    for (int n = end; n < t + walk.steps(); n++) skip_whole_tile(shared, n, round, w);
    sync_threads(1, CONSUMER_THREADS);   // nobody reads K any more
}

// The same for a walk that has no steps.
__device__ inline void meet_no_tiles(Shared& shared, int round) {
    wait_for_keys(shared, round);
    __syncwarp();
    give_back(shared.gate_V);
}

// After meet_tiles: dK of consumer w to its tile of K, whence it leaves.
__device__ inline void write_dK(Shared& shared, KeyGradients& keys, int round, int w, float scale) {
    #pragma unroll
    for (int r = 0; r < 2; r++) scale_row(keys.dK, r, scale);
    write_tile(shared.K[round % PLACES][w], keys.dK);
}

// One thread stores dK from there, and dV.
__device__ inline void store_boxes(Shared& shared, const void* dV, const TensorMap& out_dK, const TensorMap& out_dV,
                                   const Walk& walk, int round, int w) {
    store_box(out_dK, walk.j0 + w * ROWS, walk.kv_head(), shared.K[round % PLACES][w], walk.panel);
    store_box(out_dV, walk.j0 + w * ROWS, walk.kv_head(), dV, walk.panel);
    wait_for_stores();   // shared memory must live as long
}

// dK and dV leave by way of the consumer's tiles of K and V.
__device__ inline void store_gradients(Shared& shared, KeyGradients& keys, const TensorMap& out_dK,
                                       const TensorMap& out_dV, const Walk& walk, int w, float scale) {
    write_dK(shared, keys, 0, w, scale);
    write_tile(shared.V[w], keys.dV);
    publish_tile();
    sync_threads(2 + w, 128);
    if (threadIdx.x % 128 == 0) store_boxes(shared, shared.V[w], out_dK, out_dV, walk, 0, w);
}

// With STAYS=1 the adder stores them: dV comes in the place of dQ. t: behind the last tile.
__device__ inline void hand_over(Shared& shared, KeyGradients& keys, int t, int round, int w, float scale) {
    write_dK(shared, keys, round, w, scale);
    wait_for(&shared.gate_dQ[w].empty, (t + round) % 2 ^ 1);
    write_tile(reinterpret_cast<scalar_t*>(shared.dQ[w]), keys.dV);
    announce(shared.gate_dQ[w]);
}

// The adder stores them, unless they went elsewhere, and gives the places back.
__device__ inline void store_handed_over(Shared& shared, const TensorMap& out_dK, const TensorMap& out_dV,
                                         const Walk& walk, int t, int round, int w, bool are_here) {
    wait_until_full(shared.gate_dQ[w], (t + round) % 2);
    if (are_here) store_boxes(shared, shared.dQ[w], out_dK, out_dV, walk, round, w);
    arrive(&shared.gate_dQ[w].empty);
    arrive(&shared.gate_K[round % PLACES].empty);
}
