// block_sparse_hopper.cu — block_sparse.cu by wgmma and the copy engine, with a producer and consumers.
//
// The consumers of a block have 64 queries each, and share the tiles of 64 keys that any of them sees. Two
// tiles are met at a time, so that products are as large as those of range_hopper.cu; they need not be
// neighbours. The host pairs tiles that the same consumers see, as far as it can. Each pair comes once: a
// consumer that sees neither tile gives it back as soon as it is there, and one that sees a single tile masks
// the other.
// The list of a block's pairs says where each consumer's bits of a tile are, so the kernel need not know the
// size of the blocks that the pattern is made of.
//
// As consumers skip different pairs, they cannot take turns as in range_hopper.cu: each goes its own pace,
// and one computes its softmax while the other multiplies. Beside the P V of a pair runs Q Kᵀ of the next, if
// the consumer sees it; to look further, as the ring would allow, made scattered lists slower on an H200.
// K and V have the buffers of one ring in turn: shared memory has room for five, and two of K and two of V
// would leave one of them empty.
// Items are short, so the next item's Q comes while this item's is in use, and O takes its own Q's place.
//
// grid   (as many blocks as the GPU has multiprocessors, at most one for each item)
// block  (128 · CONSUMERS + 128): CONSUMERS = 2, with 64 queries each, and a producer
// layout Q, O [heads, L_q, D] and K, V [heads / group, L_k, D] through tensor maps with boxes of 64 rows
//        (copy_engine.cuh), of K and V with one panel of 64 columns, fp16 or bf16, heads = B·H; LSE
//        [heads, L_q], fp32; query head h reads key head h / group
//        items [items]: (block of B_R = 64 · CONSUMERS queries, first pair, end pair, part), the shortest
//        first; part −1: the block is not split
//        pairs [pairs, 1 + CONSUMERS]: two tiles of 64 keys, then for each consumer and tile the first word
//        of the bits of their 64 × 64 queries and keys, WHOLE or UNSEEN; without a second tile that is one
//        past the last key, UNSEEN
//        bits: bit k % 32 of word k / 32 of row q: query q sees key k; rows are `stride` words apart
//        O_parts [CONSUMERS · parts, heads, 64, D], LSE_parts [CONSUMERS · parts, heads, 64], fp32: consumer
//        w has part w · parts + part; merge_parts of block_sparse.cu merges them
//        counter: one int, 0 before the first launch, and 0 again after each
// shared 256·D·(CONSUMERS + BUFFERS) + 1232 bytes, dynamic; BUFFERS = 5
// limits scale > 0; D 128; every key of a whole tile exists; bits past L_k are 0; fewer than 2³¹ words of
//        bits and numbers of pairs; stride a multiple of 2
// options: -DD=128 -DBF16=0 | -DD=128 -DBF16=1
// arch: sm_90a only
// paper  FlashAttention-3 (arXiv 2407.08608), Algorithm 2; BigBird (2007.14062)
constexpr int CONSUMERS = 2, CONSUMER_THREADS = 128 * CONSUMERS;
constexpr int B_R = 64 * CONSUMERS, KEYS = 64, B_C = 2 * KEYS, BUFFERS = 5;
#include "consumers.cuh"
#include "items.cuh"

// factor: scale · log2(e). heads: how many there are; at_once: how many a launch works on at a time; items:
// of a head; stride: words of a row of bits; parts: of all blocks of a head.
struct Problem { int L_q, group; float factor; int heads, at_once, items, stride, parts; };

// The lists, as the header says.
struct Lists { const int4* items; const int2* pairs; const unsigned* bits; };

constexpr int WHOLE = -1, UNSEEN = -2;

// B_R queries of a head from i0 on; their pairs of tiles are `first` to `end` − 1. i0 < 0: no more work.
struct Work { int head, i0, first, end, part; };

// Q of an item, then its O.
union ItemRows { scalar_t Q[CONSUMERS][ROWS * D], O[CONSUMERS][ROWS * D]; };

struct Shared {
    ItemRows rows[2];                   // of this round and the next, in turn
    scalar_t tiles[BUFFERS][B_C * D];   // K and V of a pair, in turn
    Gate gate_Q[2][CONSUMERS], gates[BUFFERS];
    Work work[3];                       // of this round and the next two
    float sink[CONSUMER_THREADS];       // see hold()
};
static_assert(sizeof(Shared) == 256 * D * (CONSUMERS + BUFFERS) + 1232, "the header");

__device__ inline Place item_place(int round) { return {round % 2, round / 2 % 2}; }

// Of pair t of all that the block meets.
__device__ inline Place place_of_K(int t) { return place(2 * t); }
__device__ inline Place place_of_V(int t) { return place(2 * t + 1); }

__device__ inline Work work_of_item(const Problem& problem, const Lists& lists, int item) {
    const auto [head, block] = longest_first(item, problem.items, problem.heads, problem.at_once);
    const int4 found = lists.items[block];
    return {head, found.x * B_R, found.y, found.z, found.w};
}

__device__ inline int2 tiles_of(const Lists& lists, int n) {
    return __ldg(lists.pairs + n * (1 + CONSUMERS));
}

__device__ inline int2 bits_of(const Lists& lists, int n, int w) {
    return __ldg(lists.pairs + n * (1 + CONSUMERS) + 1 + w);
}

// As `fill` of tile_ring.cuh, with the rows of two tiles: a panel of each, then the next panel of each.
__device__ inline void fill_pair(Shared& shared, Place place, const TensorMap& map, int2 tiles, int head) {
    scalar_t* next = shared.tiles[place.buffer];
    Gate& gate = shared.gates[place.buffer];
    wait_for(&gate.empty, place.parity ^ 1);
    arrive_expecting(&gate.full, sizeof(shared.tiles[0]));
    for (int panel = 0; panel < D / 64; panel++, next += B_C * 64) {
        load_box(next, map, tiles.x * KEYS, head, &gate.full, panel);
        load_box(next + KEYS * 64, map, tiles.y * KEYS, head, &gate.full, panel);
    }
}

// One thread of the producer asks for pairs, item after item.
__device__ inline void produce(Shared& shared, const TensorMap& Q, const TensorMap& K, const TensorMap& V,
                               unsigned* counter, const Problem& problem, const Lists& lists) {
    const int items = problem.items * problem.heads;
    int item = blockIdx.x, round = 0;
    for (int t = 0; item < items; round++, item = next_item(counter, items)) {
        const Work& work = shared.work[round % 3] = work_of_item(problem, lists, item);
        const int kv_head = work.head / problem.group;
        int2 next;   // read while the producer waits for the pair before
        if (work.first < work.end) next = tiles_of(lists, work.first);
        const auto [rows, rows_parity] = item_place(round);
        for (int w = 0; w < CONSUMERS; w++)
            fill(shared.rows[rows].Q[w], shared.gate_Q[rows][w], rows_parity, Q, work.i0 + w * ROWS, work.head);
        for (int n = work.first; n < work.end; n++, t++) {
            const int2 tiles = next;
            next = tiles_of(lists, min(n + 1, work.end - 1));
            fill_pair(shared, place_of_K(t), K, tiles, kv_head);
            fill_pair(shared, place_of_V(t), V, tiles, kv_head);
        }
    }
    shared.work[round % 3] = {0, -1};
    const auto [rows, parity] = item_place(round);
    for (Gate& gate : shared.gate_Q[rows]) fill_with_nothing(gate, parity);
}

// The bits of the lane's two rows, of each tile.
struct Seen { uint2 words[2][2]; };

__device__ inline uint2 load_row(const Lists& lists, int bits, int offset) {
    const unsigned all = bits == WHOLE ? ~0u : 0;
    return bits < 0 ? make_uint2(all, all) : *reinterpret_cast<const uint2*>(lists.bits + bits + offset);
}

__device__ inline Seen load_bits(const Lists& lists, int2 bits, int stride) {
    Seen seen;
    #pragma unroll
    for (int r = 0; r < 2; r++) {
        const int offset = (warp_row() + 8 * r + threadIdx.x % 32 / 4) * stride;
        seen.words[0][r] = load_row(lists, bits.x, offset);
        seen.words[1][r] = load_row(lists, bits.y, offset);
    }
    return seen;
}

// S = −∞ where the query does not see the key.
__device__ inline void mask(Scores& S, const Seen& seen) {
    const int first = threadIdx.x % 4 * 2;   // the lane's first column of each eight
    #pragma unroll
    for (int n = 0; n < B_C / 8; n += 4)     // a word has 32 columns
        #pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint2 words = seen.words[n / 8][r];
            const unsigned of_lane = (n % 8 ? words.y : words.x) >> first;
            #pragma unroll
            for (int e = 0; e < 8; e++)
                if (!(of_lane >> (e / 2 * 8 + e % 2) & 1)) S[n + e / 2][2 * r + e % 2] = NEG_INF;
        }
}

// O in fp32 to 64 rows of a part.
__device__ inline void store_part(float* O_part, const Output& O) {
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
        const auto [place_of_Q, parity_of_Q] = item_place(round);
        wait_until_full(shared.gate_Q[place_of_Q][w], parity_of_Q);
        const Work work = shared.work[round % 3];
        if (work.i0 < 0) break;
        ItemRows& item = shared.rows[place_of_Q];
        Gate& gate_of_last = shared.gate_Q[1 - place_of_Q][w];
        bool holds_last = round > 0;   // the last item's place, which its O leaves
        auto give_back_last = [&] {
            if (!holds_last) return;
            if (threadIdx.x % 128 == 0) wait_for_stores();
            give_back(gate_of_last);
            holds_last = false;
        };
        Rows rows;
        Output O = {};
        Scores S;
        Weights P;
        int n = work.first;   // pair n of the lists, t of all
        int2 bits;
        if (n < work.end) bits = bits_of(lists, n, w);
        auto go_on = [&] {
            t++;
            if (++n < work.end) bits = bits_of(lists, n, w);
        };
        auto sees = [&] { return n < work.end && (bits.x != UNSEEN || bits.y != UNSEEN); };
        auto let_go_by = [&] {
            // It is waited for all the same. An mbarrier tells two phases in a row apart, and no more: after a
            // skipped phase the wait for the next would end while the skipped one still runs.
            const auto [k, k_parity] = place_of_K(t);
            const auto [v, v_parity] = place_of_V(t);
            wait_until_full(shared.gates[k], k_parity);
            wait_until_full(shared.gates[v], v_parity);
            __syncwarp();   // all lanes have waited
            give_back(shared.gates[k]);
            give_back(shared.gates[v]);
            go_on();
        };
        // The first of a run of pairs that the consumer sees has no P V to compute beside.
        auto meet_pair = [&](bool is_first) {
            const auto [k, k_parity] = place_of_K(t);
            const auto [v, v_parity] = place_of_V(t - 1);
            const bool is_whole = bits.x == WHOLE && bits.y == WHOLE;
            Seen seen;   // comes while S is computed
            if (!is_whole) seen = load_bits(lists, bits, problem.stride);
            wait_until_full(shared.gates[k], k_parity);
            start_scores(S, item.Q[w], shared.tiles[k]);
            if (is_first)
                wait_for_product<0>(S);
            else {
                wait_until_full(shared.gates[v], v_parity);
                start_output(O, P, shared.tiles[v]);
                wait_for_product<1>(S);
            }
            give_back(shared.gates[k]);
            give_back_last();
            if (!is_whole) mask(S, seen);
            raise_maximum(rows, S, problem.factor);
            if (!is_first) {
                hold(shared.sink[threadIdx.x], rows);
                wait_for_product<0>(O);
                give_back(shared.gates[v]);
            }
            exponentials(S, rows, problem.factor);
            rescale(O, rows);   // at a run's first pair too: O is of the runs before
            pack_weights(P, S);
            go_on();
        };
        while (n < work.end) {
            if (!sees()) {
                let_go_by();
                continue;
            }
            meet_pair(true);
            while (sees()) meet_pair(false);
            const auto [v, v_parity] = place_of_V(t - 1);
            wait_until_full(shared.gates[v], v_parity);
            start_output(O, P, shared.tiles[v]);
            wait_for_product<0>(O);
            give_back(shared.gates[v]);
        }
        give_back_last();   // if the consumer has seen no tile
        const int i_w = work.i0 + w * ROWS;
        if (work.part < 0) {
            normalize(O, rows, LSE + (long long)work.head * problem.L_q + i_w, problem.L_q - i_w);
            store_output(item, O, out, i_w, work.head, w);
        } else {
            const long long part = (long long)(w * problem.parts + work.part) * problem.heads + work.head;
            normalize(O, rows, LSE_parts + part * ROWS, ROWS);
            store_part(O_parts + part * ROWS * D, O);
        }
    }
    if (threadIdx.x % 128 == 0) wait_for_stores();   // shared memory must live as long
}

extern "C" __global__ void __launch_bounds__(CONSUMER_THREADS + 128, 1)
block_sparse_forward(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap K,
                     const __grid_constant__ TensorMap V, const __grid_constant__ TensorMap O, float* LSE,
                     unsigned* counter, float* O_parts, float* LSE_parts, int L_q, int group, float scale,
                     int heads, int at_once, const int4* items, int item_count, const int2* pairs,
                     const unsigned* bits, int stride, int parts) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    const Problem problem = {L_q, group, scale * LOG2_E, heads, at_once, item_count, stride, parts};
    const Lists lists = {items, pairs, bits};
    if (threadIdx.x == 0) {
        for (auto& gates : shared.gate_Q) initialize(gates, 4);
        initialize(shared.gates, 4 * CONSUMERS);
        publish_barriers();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMER_THREADS) {   // most of the block's registers move from here to the consumers
        lower_register_limit<24>();
        if (threadIdx.x == CONSUMER_THREADS) produce(shared, Q, K, V, counter, problem, lists);
    } else {
        raise_register_limit<240>();
        consume(shared, O, LSE, O_parts, LSE_parts, problem, lists);
    }
}
