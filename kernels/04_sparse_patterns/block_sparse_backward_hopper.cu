// block_sparse_backward_hopper.cu — block_sparse_backward.cu on a Hopper GPU: the loop of 07_hopper/backward.cu,
// over the tiles of queries that a list names for the block's keys.
//
// A column of 128 keys has a list of the tiles of 64 queries in which some query sees one of the keys. As in
// block_sparse_hopper.cu it says where each consumer's bits of a tile are, so the kernel need not know the size
// of the blocks that the pattern is made of. A block meets the entries of the list that its item names
// (key_columns.cuh), all or a part of them; under GQA each for one query head after the other. A consumer skips
// the tiles that it does not see at both ends of its walk, where the list has most of them; others it computes and
// hides.
//
// Blocks add to dQ_sum in an order of chance, and need no turns. To take turns in the order of the items, as
// range_backward_hopper.cu does, made the kernel up to 40 times slower (tried by hand, NVIDIA H200, 2026-11-30): under
// scattered lists most blocks wait. Statistics, dQ_sum and the rounding of dQ: backward_prepare and backward_finish of
// 07_hopper/backward.cu.
//
// grid   block_sparse_backward (items · heads, H / group / heads, B); `heads` divides H / group
//        merge_gradients (split columns · B_C · D / (4 · THREADS), H / group, B)
// block  block_sparse_backward (384): two consumers with 64 keys each, a producer and two adders;
//        merge_gradients (256)
// layout Q, dO, K, V, dK, dV, statistics, dQ_sum, turns: as `backward` of 07_hopper/backward.cu takes them;
//        dK and dV once more as pointers for merge_gradients
//        items, parts, split: key_columns.cuh, with B_C = 128; first and end of an item are entries of `list`,
//        first = end if no query sees the keys; no two entries of a tile of keys name the same tile of queries
//        list [entries, 1 + CONSUMERS]: tile of B_R queries, then for each consumer the first word of the bits
//        of its 64 × 64 pairs, WHOLE or UNSEEN; int
//        bits: bit k % 32 of word k / 32 of row q: query q sees key k; rows are `stride` words apart
// shared block_sparse_backward 512·D + 8·D·B_R + 528·B_R + 32928 bytes, dynamic; B_R = 8192 / D
// limits scale > 0; D 128; L_q, L_k >= 1; every key of a whole tile exists; bits past L_k are 0; fewer than 2³¹
//        words of bits
// options: -DD=128 -DBF16=0 -DTURNS=0 | -DD=128 -DBF16=1 -DTURNS=0
// arch: sm_90a only
// paper  FlashAttention-3 (arXiv 2407.08608), Algorithm 3 in its appendix; BigBird (2007.14062)
#include "backward_blocks.cuh"
constexpr int THREADS = 256;   // of merge_gradients
#include "key_columns.cuh"

static_assert(B_R == ROWS, "a consumer's bits of a tile are of 64 queries");
constexpr int WHOLE = -1, UNSEEN = -2;

// The tiles that a block meets: those that entries of the list name, each for all heads of the group.
struct ListWalk : Walk {
    const int* list;

    __device__ int head_of(int n) const { return head + n % group; }
    __device__ const int* entry(int n) const { return list + (first + n / group) * (1 + CONSUMERS); }
    __device__ int tile_of(int n) const { return __ldg(entry(n)); }
    __device__ int bits(int n, int w) const { return __ldg(entry(n) + 1 + w); }
    __device__ int number(int n) const { return head_of(n) * tiles + tile_of(n); }
};

struct Bits { const unsigned* words; int stride; };

// P = 0 where a query does not see a key. Of a query a lane needs the word that has the warp's 16 keys: it loads
// those of two queries, and gets the others from the lanes that have them.
__device__ inline void hide(KeysByQueries& Pt, const Bits& bits, int first_word) {
    const int lane = threadIdx.x % 32;
    unsigned words[2] = {};
    if (first_word != UNSEEN)
        for (int half = 0; half < 2; half++)
            words[half] = __ldg(bits.words + first_word + (32 * half + lane) * bits.stride + warp_row() / 32);
    #pragma unroll
    for (int n = 0; n < B_R / 8; n++)
        #pragma unroll
        for (int e = 0; e < 2; e++) {
            const unsigned word = __shfl_sync(0xffffffff, words[n / 4], n % 4 * 8 + lane % 4 * 2 + e);
            const unsigned of_lane = word >> (warp_row() % 32 + lane / 4);   // its keys are bits 0 and 8
            if (!(of_lane & 1)) Pt[n][e] = 0;
            if (!(of_lane >> 8 & 1)) Pt[n][2 + e] = 0;
        }
}

__device__ inline void consume(Shared& shared, const TensorMap& dK, const TensorMap& dV, float* parts,
                               const ListWalk& walk, const Bits& bits, float scale, const int4* items, int heads) {
    const int w = consumer();
    KeyGradients keys = {};
    int begin = 0, end = walk.steps();
    while (begin < end - 1 && walk.bits(begin, w) == UNSEEN) begin++;
    while (begin < end - 1 && walk.bits(end - 1, w) == UNSEEN) end--;
    const auto hide_unseen = [&](KeysByQueries& Pt, int n) {
        const int first_word = walk.bits(n, w);
        if (first_word != WHOLE) hide(Pt, bits, first_word);
    };
    if (walk.steps() > 0) meet_tiles(keys, shared, walk, {begin, end}, w, scale, hide_unseen);
    const Column column = column_of_block(items, heads);   // again, not kept in registers
    if (column.part < 0)
        store_gradients(shared, keys, dK, dV, walk, w, scale);
    else
        write_part(keys.dK, keys.dV, w * ROWS + warp_row(), parts, column);
}

extern "C" __global__ void __launch_bounds__(CONSUMER_THREADS + 128, 1)
block_sparse_backward(const __grid_constant__ TensorMap Q, const __grid_constant__ TensorMap dO,
                      const __grid_constant__ TensorMap K, const __grid_constant__ TensorMap V,
                      const __grid_constant__ TensorMap dK, const __grid_constant__ TensorMap dV,
                      const float* statistics, float* dQ_sum, int* turns, int L_q, int group, float scale,
                      const int4* items, int heads, float* parts, const int* list, const unsigned* bits,
                      int stride) {
    extern __shared__ __align__(1024) char memory[];
    Shared& shared = *reinterpret_cast<Shared*>(memory);
    initialize(shared);
    const Column column = column_of_block(items, heads);
    const ListWalk walk = {{column.tile * B_C, (int)column.key_head * group, group, column.first,
                            column.end - column.first, (L_q + B_R - 1) / B_R}, list};
    // 384 threads got 168 registers each, and 128 · (168 − 24) = 256 · (240 − 168) move.
    if (threadIdx.x >= CONSUMER_THREADS) {
        lower_register_limit<24>();
        const int warp = (threadIdx.x - CONSUMER_THREADS) / 32;
        if (threadIdx.x % 32 != 0 || warp > CONSUMERS) return;
        if (warp == 0)
            produce(shared, Q, dO, K, V, reinterpret_cast<const Statistics*>(statistics), walk);
        else
            add_dQ(shared, dQ_sum, turns, walk, warp - 1, [](int) { return 0; });
    } else {
        raise_register_limit<240>();
        consume(shared, dK, dV, parts, walk, {bits, stride}, scale, items, heads);
    }
}

// Where columns were split: dK and dV from their parts.
extern "C" __global__ void __launch_bounds__(THREADS)
merge_gradients(const float* parts, const int4* split, scalar_t* dK, scalar_t* dV, int L_k,
                float scale) {
    merge_parts(parts, split, dK, dV, L_k, scale);
}
