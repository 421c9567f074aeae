// range_backward_hopper.cu — range_backward.cu on a Hopper GPU: the loop of 07_hopper/backward.cu, over the
// queries that see the block's keys.
//
// Key j is seen by the queries starts[j] <= i < ends[j]. A window, sinks, equal blocks and documents are all of
// this form, and one kernel serves them: a lane has two keys of its block, whose four numbers it reads once.
// A block meets the tiles of queries that its item names (key_columns.cuh): all that see one of its keys, or a
// part of them. At D = 128 a consumer lets the first or the last of these tiles go by if none of its queries sees
// one of its 64 keys. A warp hides pairs only in tiles that some of its 16 keys are not seen by as a whole.
//
// Blocks stay, and fetch their jobs: a job is an item for one key head. While dK and dV of a job leave, the tiles of
// the next one come.
//
// With -DTURNS=1 blocks that add to the same tile of dQ take turns in the order of the items. Statistics, dQ_sum,
// turns and the rounding of dQ: backward_prepare and backward_finish of 07_hopper/backward.cu.
//
// With -DDILATED=1 a job has keys of a residue class, and meets its queries; a class counts as a batch of its own
// (backward_blocks.cuh). The dilation divides both lengths: so all classes see the same, and share starts,
// ends, items and order, and the copy engine takes boxes of one of them (range_hopper.cu).
// SOFTCAP=1 gives it a softcap, > 0 (model_softmax.cuh); what it has to know of sinks is in LSE.
//
// grid   range_backward (up to all_jobs; as many as the GPU runs at a time)
//        merge_gradients (split columns · B_C · D / (4 · THREADS), H / group, B)
// block  range_backward (384): two consumers with 64 keys each, a producer and two adders; merge_gradients (256)
// layout Q, dO, K, V, dK, dV, statistics, dQ_sum, turns: as `backward` of 07_hopper/backward.cu takes them;
//        dK and dV once more as pointers for merge_gradients
//        starts, ends [L_k], int, from 0 to L_q; starts never falls
//        counter: 0 before and after; all_jobs: items · all_heads; items_by_heads: items · heads, where `heads` divides
//        kv_heads = H / group; all_heads: kv_heads · B · dilation; tiles: ceil(L_q / B_R). They spare the producer registers
//        items, parts, split: key_columns.cuh, with B_C = 128; first and end of an item are queries, first
//        a multiple of B_R, first = end if no query sees the keys; no two items of a tile of keys meet the
//        same tile of queries
//        order: with TURNS=1, of each item's tiles of queries how many items before it meet the same one; those
//        of item n from order_at[n] on; both int
//        with DILATED=1 L_q and L_k are those of a class, and tensor maps have `dilation` rows in one
// shared range_backward 768·D + 8·D·B_R + 528·B_R + 33024 bytes, dynamic; B_R = 8192 / D
// limits scale > 0; D 64 or 128; L_q, L_k >= 1; DILATED=0 takes dilation 1 only, and with DILATED=1 no column is
//        split
// options: -DD=64 -DBF16=0 -DTURNS=0 | -DD=64 -DBF16=1 -DTURNS=0 | -DD=64 -DBF16=0 -DTURNS=1 | -DD=64 -DBF16=1 -DTURNS=1 | -DD=128 -DBF16=0 -DTURNS=0 | -DD=128 -DBF16=1 -DTURNS=0 | -DD=128 -DBF16=0 -DTURNS=1 | -DD=128 -DBF16=1 -DTURNS=1 | -DD=64 -DBF16=0 -DTURNS=0 -DDILATED=1 | -DD=64 -DBF16=1 -DTURNS=0 -DDILATED=1 | -DD=64 -DBF16=0 -DTURNS=1 -DDILATED=1 | -DD=64 -DBF16=1 -DTURNS=1 -DDILATED=1 | -DD=128 -DBF16=0 -DTURNS=0 -DDILATED=1 | -DD=128 -DBF16=1 -DTURNS=0 -DDILATED=1 | -DD=128 -DBF16=0 -DTURNS=1 -DDILATED=1 | -DD=128 -DBF16=1 -DTURNS=1 -DDILATED=1 | -DD=64 -DBF16=0 -DTURNS=0 -DSOFTCAP=1 | -DD=64 -DBF16=0 -DTURNS=1 -DSOFTCAP=1 | -DD=128 -DBF16=0 -DTURNS=0 -DSOFTCAP=1 | -DD=128 -DBF16=0 -DTURNS=1 -DSOFTCAP=1
// arch: sm_90a only
// paper  FlashAttention-3 (arXiv 2407.08608), Algorithm 3 in its appendix
#define STAYS 1
#include "backward_blocks.cuh"
#include "items.cuh"
constexpr int THREADS = 256;   // of merge_gradients
#include "key_columns.cuh"

struct Queries { int start, end; };   // those that see a key

struct Problem { int L_q, L_k; float scale; const int *starts, *ends; };

// An item for one key head; with walk.tiles = 0 there are no more.
struct Job { Walk walk; int item, part; };

struct StayingShared : Shared { Job jobs[PLACES]; };   // each written before its K comes
static_assert(sizeof(StayingShared) == 768 * D + 8 * D * B_R + 528 * B_R + 33024, "the header");

// The lane's two keys, of the 16 of its warp from j_warp on; no query sees a key past the last one.
struct Keys {
    Queries seen_by[2];

    __device__ Keys(const Problem& problem, int j_warp) {
        #pragma unroll
        for (int r = 0; r < 2; r++) {
            const int key = j_warp + 8 * r + threadIdx.x % 32 / 4;
            seen_by[r] = key < problem.L_k ? Queries{problem.starts[key], problem.ends[key]}
                                           : Queries{problem.L_q, 0};
        }
    }

    // Whether some query from i0 to i_end − 1 does not see one of the warp's keys.
    __device__ bool hidden_from(int i0, int i_end) const {
        const bool mine = i0 < max(seen_by[0].start, seen_by[1].start) ||
                          i_end > min(seen_by[0].end, seen_by[1].end);
        return __any_sync(0xffffffff, mine);
    }

    // P = 0 where a query does not see a key. The tile's first query is i0, and the lane's first is `lane_i0`:
    // counted from there, all queries are constants, which take no registers.
    __device__ void hide(KeysByQueries& Pt, int i0) const {
        const int lane_i0 = i0 + threadIdx.x % 4 * 2;
        each_of_lane<1, B_R / 8>([&](int, int n, int e, int, int) {
            const Queries& by = seen_by[e / 2];
            const int query = 8 * n + e % 2;
            if (query < by.start - lane_i0 || query >= by.end - lane_i0) Pt[n][e] = 0;
        });
    }
};

// Whether any query of the tile from i0 on sees a key of the consumer whose first key is j_w.
__device__ inline bool tile_sees(const Problem& problem, int i0, int j_w) {
    bool mine = false;
    #pragma unroll
    for (int n = 0; n < ROWS / 32; n++) {
        const int key = j_w + 32 * n + threadIdx.x % 32;
        if (key < problem.L_k) mine |= problem.starts[key] < i0 + B_R && problem.ends[key] > i0;
    }
    return __any_sync(0xffffffff, mine);
}

// All jobs, the items of `heads` key heads side by side, then those of the next ones. kv_heads: of a batch.
struct Jobs {
    const int4* items;
    int all, items_by_heads, heads, kv_heads, group, tiles, dilation;

    __device__ Job number(int n) const {
        const int item = n % items_by_heads / heads, key_head = n / items_by_heads * heads + n % heads;
        const int nth = DILATED ? key_head / kv_heads : 0, batch = nth / dilation, before = (nth - batch) * kv_heads;
        const int4 column = items[item];   // tile of keys, first query, end, part
        const int first = column.y / B_R, each = (column.z + B_R - 1) / B_R - first;
        return {{column.x * B_C, (key_head - before) * group, group, first, each, tiles, nth % dilation * (D / 64),
                 before}, item, column.w};
    }

    // The block's next one. Blocks that take turns begin in the order of the items, so they ask for the first, too.
    __device__ int first(unsigned* counter) const { return TURNS ? next(counter) : blockIdx.x; }
    __device__ int next(unsigned* counter) const {
        return TURNS ? atomicInc(counter, all + gridDim.x - 1) : next_item(counter, all);
    }
};

// One thread of the producer brings the tiles of one job after the other, and says what they are.
__device__ inline void produce(StayingShared& shared, const TensorMap& Q, const TensorMap& dO, const TensorMap& K,
                               const TensorMap& V, const Statistics* statistics, unsigned* counter,
                               const Jobs& jobs) {
    int number = jobs.first(counter);
    for (int t = 0, round = 0; ; round++) {
        Gate& gate = shared.gate_K[round % PLACES];
        Job& job = shared.jobs[round % PLACES];
        wait_for(&gate.empty, round / PLACES % 2 ^ 1);
        if (number >= jobs.all) {
            job.walk = {};
            arrive(&gate.full);
            return;
        }
        job = jobs.number(number);
        produce(shared, Q, dO, K, V, statistics, job.walk, t, round);
        t += job.walk.steps();
        number = jobs.next(counter);
    }
}

// The block's job in this round, once it is there.
__device__ inline const Job& job_of(StayingShared& shared, int round) {
    wait_until_full(shared.gate_K[round % PLACES], round / PLACES % 2);
    return shared.jobs[round % PLACES];
}

// One thread is the adder of consumer w. It stores dK and dV, too.
__device__ inline void add(StayingShared& shared, const TensorMap& dK, const TensorMap& dV, float* dQ_sum, int* turns,
                           const int* order_at, const int* order, int w) {
    for (int t = 0, round = 0; ; round++) {
        const Job& job = job_of(shared, round);
        if (job.walk.tiles == 0) return;
        const int* my_turns = TURNS ? order + order_at[job.item] : nullptr;
        add_dQ(shared, dQ_sum, turns, job.walk, w, [&](int n) { return my_turns[n % job.walk.each]; }, t, round);
        t += job.walk.steps();
        store_handed_over(shared, dK, dV, job.walk, t, round, w, job.part < 0);
    }
}

__device__ inline void consume(StayingShared& shared, float* parts, const Problem& problem,
                               const ModelSoftmax& softmax, int all_heads) {
    const int w = consumer();
    for (int t = 0, round = 0; ; round++) {
        const Job& job = job_of(shared, round);
        const Walk walk = job.walk;
        if (walk.tiles == 0) return;
        const Keys mine(problem, walk.j0 + w * ROWS + warp_row());
        KeyGradients keys = {};
        const SkippedTiles skipped(walk, [&](int i0) { return tile_sees(problem, i0, walk.j0 + w * ROWS); });
        const auto hide = [&](KeysByQueries& Pt, int n) {
            const int i0 = (SOFTCAP ? job.walk : walk).tile_of(n) * B_R;   // capped, no registers are left for walk
            if (mine.hidden_from(i0, min(i0 + B_R, problem.L_q))) mine.hide(Pt, i0);
        };
        if (walk.steps() > 0)
            meet_tiles(keys, shared, walk, skipped, w, problem.scale, hide, softmax, t, round);
        else
            meet_no_tiles(shared, round);
        t += job.walk.steps();   // again, not kept in registers
        if (job.part >= 0)
            write_part(keys.dK, keys.dV, w * ROWS + warp_row(), parts,
                       {0, 0, 0, job.part, job.walk.kv_head(), all_heads});
        hand_over(shared, keys, t, round, w, problem.scale);
    }
}

extern "C" __global__ void __launch_bounds__(CONSUMER_THREADS + 128, 1)
range_backward(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap dO,
               const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V,
               const __grid_constant__ TensorMap dK, const __grid_constant__ TensorMap dV,
               const float* statistics, float* dQ_sum, int* turns, unsigned* counter, int L_q, int L_k, int group,
               float scale, const int4* items, int all_jobs, int items_by_heads, int heads, int kv_heads,
               int all_heads, int tiles, float* parts, const int* starts, const int* ends, const int* order_at,
               const int* order, float softcap, int dilation) {
    extern __shared__ __align__(1024) char memory[];
    StayingShared& shared = *reinterpret_cast<StayingShared*>(memory);
    initialize(shared);
    const Jobs jobs = {items, all_jobs, items_by_heads, heads, kv_heads, group, tiles, DILATED ? dilation : 1};
    // 384 threads got 168 registers each, and 128 · (168 − 24) = 256 · (240 − 168) move.
    if (threadIdx.x >= CONSUMER_THREADS) {
        lower_register_limit<24>();
        const int warp = (threadIdx.x - CONSUMER_THREADS) / 32;
        if (threadIdx.x % 32 != 0 || warp > CONSUMERS) return;
        if (warp == 0)
            produce(shared, Q, dO, K, V, reinterpret_cast<const Statistics*>(statistics), counter, jobs);
        else
            add(shared, dK, dV, dQ_sum, turns, order_at, order, warp - 1);
    } else {
        raise_register_limit<240>();
        consume(shared, parts, {L_q, L_k, scale, starts, ends}, {softcap}, all_heads);
    }
}

// Where columns were split: dK and dV from their parts.
extern "C" __global__ void __launch_bounds__(THREADS)
merge_gradients(const float* parts, const int4* split, scalar_t* dK, scalar_t* dV, int L_k,
                float scale) {
    merge_parts(parts, split, dK, dV, L_k, scale);
}
