// range_backward_hopper.cu — range_backward.cu on a Hopper GPU: the loop of 07_hopper/backward.cu, over the
// queries that see the block's keys.
//
// Key j is seen by the queries starts[j] <= i < ends[j]. A window, sinks, equal blocks and documents are all of
// this form, and one kernel serves them: a lane has two keys of its block, whose four numbers it reads once.
// A block meets the tiles of queries that its item names (key_columns.cuh): all that see one of its keys, or a
// part of them. At D = 128 a consumer lets the first or the last of these tiles go by if none of its queries sees
// one of its 64 keys. A warp hides pairs only in tiles that some of its 16 keys are not seen by as a whole.
//
// With -DTURNS=1 blocks that add to the same tile of dQ take turns in the order of the items. Statistics, dQ_sum,
// turns and the rounding of dQ: backward_prepare and backward_finish of 07_hopper/backward.cu.
//
// With -DDILATED=1 a block has keys of a residue class, and meets its queries; to the grid a class is a batch of
// its own (backward_blocks.cuh). The dilation divides both lengths: so all classes see the same, and share starts,
// ends, items and order, and the copy engine takes boxes of one of them (range_hopper.cu).
// SOFTCAP=1 gives it a softcap, > 0 (model_softmax.cuh); what it has to know of sinks is in LSE.
//
// grid   range_backward (items · heads, H / group / heads, B · dilation); `heads` divides H / group
//        merge_gradients (split columns · B_C · D / (4 · THREADS), H / group, B)
// block  range_backward (384): two consumers with 64 keys each, a producer and two adders; merge_gradients (256)
// layout Q, dO, K, V, dK, dV, statistics, dQ_sum, turns: as `backward` of 07_hopper/backward.cu takes them;
//        dK and dV once more as pointers for merge_gradients
//        starts, ends [L_k], int, from 0 to L_q; starts never falls
//        items, parts, split: key_columns.cuh, with B_C = 128; first and end of an item are queries, first
//        a multiple of B_R, first = end if no query sees the keys; no two items of a tile of keys meet the
//        same tile of queries
//        order: with TURNS=1, of each item's tiles of queries how many items before it meet the same one; those
//        of item n from order_at[n] on; both int
//        with DILATED=1 L_q and L_k are those of a class, and tensor maps have `dilation` rows in one
// shared range_backward 512·D + 8·D·B_R + 528·B_R + 32928 bytes, dynamic; B_R = 8192 / D
// limits scale > 0; D 64 or 128; L_q, L_k >= 1; DILATED=0 takes dilation 1 only, and with DILATED=1 no column is
//        split
// options: -DD=64 -DBF16=0 -DTURNS=0 | -DD=64 -DBF16=1 -DTURNS=0 | -DD=64 -DBF16=0 -DTURNS=1 | -DD=64 -DBF16=1 -DTURNS=1 | -DD=128 -DBF16=0 -DTURNS=0 | -DD=128 -DBF16=1 -DTURNS=0 | -DD=128 -DBF16=0 -DTURNS=1 | -DD=128 -DBF16=1 -DTURNS=1 | -DD=64 -DBF16=0 -DTURNS=0 -DDILATED=1 | -DD=64 -DBF16=1 -DTURNS=0 -DDILATED=1 | -DD=64 -DBF16=0 -DTURNS=1 -DDILATED=1 | -DD=64 -DBF16=1 -DTURNS=1 -DDILATED=1 | -DD=128 -DBF16=0 -DTURNS=0 -DDILATED=1 | -DD=128 -DBF16=1 -DTURNS=0 -DDILATED=1 | -DD=128 -DBF16=0 -DTURNS=1 -DDILATED=1 | -DD=128 -DBF16=1 -DTURNS=1 -DDILATED=1 | -DD=64 -DBF16=0 -DTURNS=0 -DSOFTCAP=1 | -DD=64 -DBF16=0 -DTURNS=1 -DSOFTCAP=1 | -DD=128 -DBF16=0 -DTURNS=0 -DSOFTCAP=1 | -DD=128 -DBF16=0 -DTURNS=1 -DSOFTCAP=1
// arch: sm_90a only
// paper  FlashAttention-3 (arXiv 2407.08608), Algorithm 3 in its appendix
#include "backward_blocks.cuh"
constexpr int THREADS = 256;   // of merge_gradients
#include "key_columns.cuh"

struct Queries { int start, end; };   // those that see a key

struct Problem { int L_q, L_k; float scale; const int *starts, *ends; };

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

__device__ inline void consume(Shared& shared, const TensorMap& dK, const TensorMap& dV, float* parts,
                               const Problem& problem, const ModelSoftmax& softmax,
                               const Walk& walk, const int4* items, int heads) {
    const int w = consumer();
    const Keys mine(problem, walk.j0 + w * ROWS + warp_row());
    KeyGradients keys = {};
    const SkippedTiles skipped(walk, [&](int i0) { return tile_sees(problem, i0, walk.j0 + w * ROWS); });
    const auto hide = [&](KeysByQueries& Pt, int n) {
        const int i0 = walk.tile_of(n) * B_R;
        if (mine.hidden_from(i0, min(i0 + B_R, problem.L_q))) mine.hide(Pt, i0);
    };
    if (walk.steps() > 0) meet_tiles(keys, shared, walk, skipped, w, problem.scale, hide, softmax);
    const Column column = column_of_block(items, heads);   // again, not kept in registers
    if (column.part < 0)
        store_gradients(shared, keys, dK, dV, walk, w, problem.scale);
    else
        write_part(keys.dK, keys.dV, w * ROWS + warp_row(), parts, column, heads);
}

extern "C" __global__ void __launch_bounds__(CONSUMER_THREADS + 128, 1)
range_backward(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap dO,
               const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V,
               const __grid_constant__ TensorMap dK, const __grid_constant__ TensorMap dV,
               const float* statistics, float* dQ_sum, int* turns, int L_q, int L_k, int group,
               float scale, const int4* items, int heads, float* parts, const int* starts,
               const int* ends, const int* order_at, const int* order, float softcap, int dilation) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    initialize(shared);
    const Problem problem = {L_q, L_k, scale, starts, ends};
    const Column column = column_of_block(items, heads);
    const int first = column.first / B_R, each = (column.end + B_R - 1) / B_R - first;
    const int classes = DILATED ? dilation : 1, residue = blockIdx.z % classes;
    const int before = (blockIdx.z - blockIdx.z / classes) * gridDim.y * heads * group;
    const Walk walk = {column.tile * B_C, (int)column.key_head * group - before, group, first, each,
                       (L_q + B_R - 1) / B_R, residue * (D / 64), before};
    // 384 threads got 168 registers each, and 128 · (168 − 24) = 256 · (240 − 168) move.
    if (threadIdx.x >= CONSUMER_THREADS) {
        lower_register_limit<24>();
        const int warp = (threadIdx.x - CONSUMER_THREADS) / 32;
        if (threadIdx.x % 32 != 0 || warp > CONSUMERS) return;
        if (warp == 0)
            produce(shared, Q, dO, K, V, reinterpret_cast<const Statistics*>(statistics), walk);
        else {
            const int* my_turns = TURNS ? order + order_at[blockIdx.x / heads] : nullptr;
            add_dQ(shared, dQ_sum, turns, walk, warp - 1, [&](int n) { return my_turns[n % each]; });
        }
    } else {
        raise_register_limit<240>();
        consume(shared, dK, dV, parts, problem, {softcap}, walk, items, heads);
    }
}

// Where columns were split: dK and dV from their parts.
extern "C" __global__ void __launch_bounds__(THREADS)
merge_gradients(const float* parts, const int4* split, scalar_t* dK, scalar_t* dV, int L_k,
                float scale) {
    merge_parts(parts, split, dK, dV, L_k, scale);
}
