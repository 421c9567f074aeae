// block_sparse_hopper.cu — block_sparse.cu by chapter 07's loop: wgmma, the copy engine, a producer and
// consumers.
//
// The consumers of a block have 64 queries each, and share the tiles of 64 keys that any of them sees: a
// tile comes once, whoever sees it. A consumer gives back at once what it does not see. So the list of a
// block's tiles says of each tile where each consumer's bits are, and the kernel need not know the size of
// the blocks that the pattern is made of.
//
// grid   (as many blocks as the GPU has multiprocessors, at most one for each item)
// block  (128 · CONSUMERS + 128): consumers with 64 queries each, a producer
// layout Q, O [heads, L_q, D] and K, V [heads / group, L_k, D] through tensor maps with boxes of 64 rows
//        (copy_engine.cuh), fp16 or bf16, heads = B·H; LSE [heads, L_q], fp32; query head h reads key head
//        h / group
//        items [items]: (block of B_R queries, first tile, end tile, part), the shortest first;
//        part −1: the block is not cut
//        tiles: (tile of 64 keys, then for each consumer the first word of the bits of its 64 × 64 pairs,
//        WHOLE or UNSEEN)
//        bits: bit k % 32 of word k / 32 of row q: query q sees key k; rows are `stride` words apart
//        O_parts [CONSUMERS · parts, heads, 64, D], LSE_parts [CONSUMERS · parts, heads, 64], fp32: consumer
//        w has part w · parts + part
//        counter: one int, 0 before the first launch, and 0 again after each
// shared 256·D·(CONSUMERS + BUFFERS) + 544·CONSUMERS + 48·BUFFERS + 64 bytes, dynamic
// limits scale > 0; D 64 or 128; CONSUMERS 2 or 3; every key of a whole tile exists; bits past L_k are 0;
//        stride a multiple of 2
// options: -DD=64 -DBF16=0 -DCONSUMERS=2 -DBUFFERS=5 | -DD=64 -DBF16=1 -DCONSUMERS=2 -DBUFFERS=5 | -DD=128 -DBF16=0 -DCONSUMERS=2 -DBUFFERS=5 | -DD=128 -DBF16=1 -DCONSUMERS=2 -DBUFFERS=5
// arch: sm_90a only
// paper  FlashAttention-3 (arXiv 2407.08608), Algorithm 2; BigBird (2007.14062)
constexpr int CONSUMER_THREADS = 128 * CONSUMERS;
constexpr int B_R = 64 * CONSUMERS, B_C = 64;
#include "consumers.cuh"
#include "items.cuh"

static_assert(CONSUMERS == 2 || CONSUMERS == 3, "CONSUMERS must be 2 or 3");
#ifndef REACH
#define REACH BUFFERS
#endif
#ifndef QREG   // Q in registers
#define QREG (CONSUMERS == 2)
#endif
#ifndef EARLY
#define EARLY 0
#endif

// factor: scale · log2(e). heads: how many there are; at_once: how many a launch works on at a time; items:
// of a head; stride: words of a row of bits; parts: of all blocks of a head.
struct Problem { int L_q, group; float factor; int heads, at_once, items, stride, parts; };

// The lists, as the header says.
struct Lists { const int4 *items, *tiles; const unsigned* bits; };

constexpr int WHOLE = -1, UNSEEN = -2;
struct Tile { int number, bits[3]; };

// B_R queries of a head from i0 on; their tiles are `first` to `end` − 1. i0 < 0: there is no more work.
struct Work { int head, i0, first, end, part; };

struct Shared {
    scalar_t Q[2][CONSUMERS][ROWS * D];   // in turn, and O in place of Q; with QREG the first is Q, the other O
    scalar_t K[BUFFERS][B_C * D], V[BUFFERS][B_C * D];
    Tile tiles[BUFFERS];            // what K and V are, and who sees them
    Gate gate_Q[2][CONSUMERS], gate_K[BUFFERS], gate_V[BUFFERS];
    Work work[3];                   // of this round and the next two
    float sink[CONSUMER_THREADS + 1];   // see hold()
};
static_assert(sizeof(Shared) == 256 * D * (CONSUMERS + BUFFERS) + 544 * CONSUMERS + 48 * BUFFERS + 64,
              "the header");

__device__ inline Place q_place(int round) {
    return QREG ? Place{0, round % 2} : Place{round % 2, round / 2 % 2};
}

__device__ inline Work work_of_item(const Problem& problem, const Lists& lists, int item) {
    const auto [head, block] = longest_first(item, problem.items, problem.heads, problem.at_once);
    const int4 found = lists.items[block];
    return {head, found.x * B_R, found.y, found.z, found.w};
}

__device__ inline Tile tile_at(const Lists& lists, int n) {
    const int4 tile = __ldg(lists.tiles + n);
    return {tile.x, {tile.y, tile.z, tile.w}};
}

// One thread of the producer asks for tiles, item after item. V of a tile comes for those who see it: for
// each other consumer its place is given back in advance.
__device__ inline void produce(Shared& shared, const TensorMap& Q, const TensorMap& K, const TensorMap& V,
                               unsigned* counter, const Problem& problem, const Lists& lists) {
    const int items = problem.items * problem.heads;
    int item = blockIdx.x, round = 0;
    for (int t = 0; item < items; round++) {
        int following = EARLY ? next_item(counter, items) : 0;
        const Work& work = shared.work[round % 3] = work_of_item(problem, lists, item);
        const int kv_head = work.head / problem.group;
        Tile next;   // read while the producer waits for the tile before
        if (work.first < work.end) next = tile_at(lists, work.first);
        for (int w = 0; w < CONSUMERS; w++)
            fill(shared.Q[q_place(round).buffer][w], shared.gate_Q[q_place(round).buffer][w],
                 q_place(round).parity, Q, work.i0 + w * ROWS, work.head);
        for (int n = work.first; n < work.end; n++, t++) {
            const auto [buffer, parity] = place(t);
            wait_for(&shared.gate_K[buffer].empty, parity ^ 1);
            const Tile& tile = shared.tiles[buffer] = next;
            next = tile_at(lists, min(n + 1, work.end - 1));
            fill(shared.K[buffer], shared.gate_K[buffer], parity, K, tile.number * B_C, kv_head);
            fill(shared.V[buffer], shared.gate_V[buffer], parity, V, tile.number * B_C, kv_head);
            for (int w = 0; w < CONSUMERS; w++)
                for (int warp = 0; warp < 4 && tile.bits[w] == UNSEEN; warp++)
                    arrive(&shared.gate_V[buffer].empty);
        }
        item = EARLY ? following : next_item(counter, items);
    }
    shared.work[round % 3] = {0, -1};
    for (Gate& gate : shared.gate_Q[q_place(round).buffer]) fill_with_nothing(gate, q_place(round).parity);
}

// S = −∞ where the query does not see the key. words: the bits of the lane's two rows.
__device__ inline void mask(Scores& S, const uint2 (&words)[2]) {
    #pragma unroll
    for (int r = 0; r < 2; r++) {
        const unsigned of_lane[2] = {words[r].x >> threadIdx.x % 4 * 2, words[r].y >> threadIdx.x % 4 * 2};
        #pragma unroll
        for (int n = 0; n < B_C / 8; n++)
            #pragma unroll
            for (int e = 0; e < 2; e++)
                if (!(of_lane[n / 4] >> (n % 4 * 8 + e) & 1)) S[n][2 * r + e] = NEG_INF;
    }
}

#if QREG
typedef unsigned Queries[D / 16][4];   // Q, as the left factor of a product has it

__device__ inline void load_queries(Queries& queries, const scalar_t* Q) {
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int d = 0; d < D / 16; d++)
        ldmatrix_x4(queries[d], (unsigned)__cvta_generic_to_shared(
                                    Q + in_panels(ROWS, warp_row() + lane % 16, 2 * d + lane / 16)));
}

__device__ inline void multiply_transposed(float (&d)[32], const unsigned (&a)[4], unsigned long long b,
                                           int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; "
                 WGMMA(64) "{" D_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0; }"
                 : REGISTERS_32(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

__device__ inline void start_scores(Scores& S, const Queries& queries, const scalar_t* K) {
    const unsigned long long k = descriptor(K);
    wgmma_fence();
    #pragma unroll
    for (int d = 0; d < D; d += 16)
        multiply_transposed(flat(S), queries[d / 16], moved(k, d / 64 * B_C * 128 + d % 64 * 2), d > 0);
    wgmma_commit();
}
#endif

// What a consumer has found out about a part of its rows' keys.
__device__ inline void store_part(const Output& O, float* O_part) {
    #pragma unroll
    for (int n = 0; n < D / 8; n++)
        #pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = warp_row() + 8 * r + threadIdx.x % 32 / 4;
            reinterpret_cast<float2*>(O_part + row * D + 8 * n)[threadIdx.x % 4] =
                make_float2(O[n][2 * r], O[n][2 * r + 1]);
        }
}

__device__ inline void consume(Shared& shared, const TensorMap& out, float* LSE, float* O_parts,
                               float* LSE_parts, const Problem& problem, const Lists& lists) {
    const int w = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);   // which consumer
    for (int t = 0, round = 0; ; round++) {
        Gate& gate_Q = shared.gate_Q[q_place(round).buffer][w];
        wait_until_full(gate_Q, q_place(round).parity);                 // line 3
        const Work work = shared.work[round % 3];
        if (work.i0 < 0) break;
        const int end = t + work.end - work.first, i_w = work.i0 + w * ROWS;
#if QREG
        Queries queries;
        load_queries(queries, shared.Q[0][w]);
        __syncwarp();   // all lanes have read it
        give_back(gate_Q);
#else
        const scalar_t* queries = shared.Q[round % 2][w];
#endif
        bool holds = !QREG && round > 0;   // the last round's place for Q, in which O was
        auto give_back_last = [&] {
            if (!holds) return;
            if (threadIdx.x % 128 == 0) wait_for_stores();
            give_back(shared.gate_Q[(round + 1) % 2][w]);
            holds = false;
        };
        Rows rows;                                                      // line 2
        Output O = {};
        Scores S;
        Weights P;
        int bits;   // of tile t: where they are

        // Goes on from tile t to the next that this consumer sees, before tile `limit`; whether there is one.
        auto find_tile = [&](int limit) {
            for (; t < limit; t++) {
                const auto [buffer, parity] = place(t);
                wait_until_full(shared.gate_K[buffer], parity);
                bits = shared.tiles[buffer].bits[w];
                if (bits != UNSEEN) return true;
                __syncwarp();
                give_back(shared.gate_K[buffer]);
            }
            return false;
        };
        // Tile t, whose K is there. Before it came tile `last`, whose P V is yet to compute; a first one has
        // none.
        auto meet_tile = [&](bool is_first, int last) {
            const int next = place(t).buffer;
            const auto [buffer, parity] = place(last);
            uint2 words[2];
            if (bits != WHOLE)
                for (int r = 0; r < 2; r++)
                    words[r] = *reinterpret_cast<const uint2*>(
                        lists.bits + bits + (warp_row() + 8 * r + threadIdx.x % 32 / 4) * problem.stride);
            start_scores(S, queries, shared.K[next]);                   // lines 4 and 9
            if (is_first)
                wait_for_product<0>(S);                                 // line 4
            else {
                wait_until_full(shared.gate_V[buffer], parity);         // line 10
                start_output(O, P, shared.V[buffer]);                   // line 11
                wait_for_product<1>(S);                                 // line 12
            }
            give_back(shared.gate_K[next]);                             // line 5; of line 15, early
            if (bits != WHOLE) mask(S, words);
            raise_maximum(rows, S, problem.factor);                     // m of lines 6 and 13
            if (!is_first) {
                hold(shared.sink[threadIdx.x], rows);
                wait_for_product<0>(O);                                 // line 14
                give_back(shared.gate_V[buffer]);                       // line 15
            }
            exponentials(S, rows, problem.factor);                      // P, l of lines 6 and 13
            rescale(O, rows);                                           // line 14
            pack_weights(P, S);                                         // line 16
        };
        // A run of tiles. It ends where the next tile cannot come before V of the last one is given back.
        while (find_tile(end)) {
            meet_tile(true, t);
            give_back_last();
            int last = t++;
            while (REACH && find_tile(min(end, last + 1 + REACH))) {             // line 7
                meet_tile(false, last);
                last = t++;
            }
            const auto [buffer, parity] = place(last);
            wait_until_full(shared.gate_V[buffer], parity);             // line 18
            start_output(O, P, shared.V[buffer]);                       // line 19
            wait_for_product<0>(O);
            give_back(shared.gate_V[buffer]);
        }
        give_back_last();
        if (work.part < 0) {
            normalize(O, rows, LSE + (long long)work.head * problem.L_q + i_w, problem.L_q - i_w);   // line 20
            scalar_t* staged = shared.Q[QREG ? 1 : round % 2][w];
            if (QREG && threadIdx.x % 128 == 0) wait_for_stores();
            sync_threads(1 + w, 128);   // all are done with Q, or the O before has left
            write_tile(staged, O);
            publish_tile();
            sync_threads(1 + w, 128);
            if (threadIdx.x % 128 == 0) store_box(out, i_w, work.head, staged);
        } else {
            const long long part = (long long)(w * problem.parts + work.part) * problem.heads + work.head;
            normalize(O, rows, LSE_parts + part * ROWS, ROWS);
            store_part(O, O_parts + part * ROWS * D);
        }
    }
    if (threadIdx.x % 128 == 0) wait_for_stores();   // shared memory must live as long
}

extern "C" __global__ void __launch_bounds__(CONSUMER_THREADS + 128, 1)
block_sparse_forward(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
                     const __grid_constant__ TensorMap V, const __grid_constant__ TensorMap O, float* LSE,
                     unsigned* counter, float* O_parts, float* LSE_parts, int L_q, int group, float scale,
                     int heads, int at_once, const int4* items, int item_count, const int4* tiles,
                     const unsigned* bits, int stride, int parts) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const Problem problem = {L_q, group, scale * LOG2_E, heads, at_once, item_count, stride, parts};
    const Lists lists = {items, tiles, bits};
    if (threadIdx.x == 0) {
        for (auto& gates : shared.gate_Q) initialize(gates, 4);
        initialize(shared.gate_K, 4 * CONSUMERS);
        initialize(shared.gate_V, 4 * CONSUMERS);
        publish_barriers();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMER_THREADS) {                          // line 1: most of the block's registers move from here
        lower_register_limit<CONSUMERS == 2 ? 24 : 32>();
        if (threadIdx.x == CONSUMER_THREADS) produce(shared, Q, K, V, counter, problem, lists);
    } else {
        raise_register_limit<CONSUMERS == 2 ? 240 : 160>();
        consume(shared, O, LSE, O_parts, LSE_parts, problem, lists);
    }
}
