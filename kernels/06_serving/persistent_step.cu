// persistent_step.cu — one launch for a step: append, attention over pieces and merge, of all layers.
//
// Rung 9. A step of 32 layers is some hundred launches, and at each of them the whole GPU waits until
// the slowest block is done. Here the blocks stay, and take items of work, a piece of a sequence for a
// key head, layer after layer, from a queue: a counter in global memory. An item waits for what it
// needs, and for no more: the queries and new tokens of a layer come from the layer before, so for its
// own sequence to be done there. The cache's other keys do not, and are on their way in the meantime.
// Whoever finds that its part is the last of a row merges the row.
//
// An item only needs items that were taken before it, and a block works on its own one after the other.
// So of all that are not done the first never waits: it works with any number of blocks
// at a time, also with one. The counters are zeros before, and the last block leaves zeros.
//
// grid   any; at best as many as there are places for on the GPU       block  (32, WARPS)
// layout Q, O [layers, B, group · heads, L_q, D]; K_new, V_new [layers, B, L_q, heads, D], 16-bit;
//        K, V [layers, pages, page_size, heads, D], 16-bit or with -DCACHE_BITS=8 E4M3; LSE [layers,
//        B, group · heads, L_q], fp32; k_scale, v_scale [layers, B, heads], fp32, with E4M3;
//        block_table, seq_lens and parents as in paged_cache.cu, of all layers; O_parts, LSE_parts as
//        there, of one layer; counters [2 + B + B · heads], zeros
// shared paged_cache.cu's, dynamic; 516 · WARPS + 4 bytes, static
// limits as paged_cache.cu and append.cu; all items together are fewer than 2^31
// options: -DD=64 -DBF16=0 -DB_C=32 -DB_R=16 -DWARPS=8 -DSTAGES=2 -DCACHE_BITS=16 | -DD=64 -DBF16=1 -DB_C=32 -DB_R=32 -DWARPS=8 -DSTAGES=2 -DCACHE_BITS=16 | -DD=128 -DBF16=1 -DB_C=16 -DB_R=16 -DWARPS=8 -DSTAGES=2 -DCACHE_BITS=16 | -DD=128 -DBF16=0 -DB_C=32 -DB_R=32 -DWARPS=8 -DSTAGES=2 -DCACHE_BITS=8
// arch: sm_80
// paper  No Bubbles (Spector, Juravsky et al., 2025), one launch for a model; stream-K (arXiv 2301.03598)
#include "decode_tile.cuh"
#include "merge_rows.cuh"

static_assert(WARPS % MERGE_WARPS == 0, "WARPS must be a multiple of 4");

// Orders what this block wrote before a barrier, and what it reads after one, with the counters.
__device__ inline void fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

__device__ inline bool is_first_thread() { return threadIdx.x == 0 && threadIdx.y == 0; }

// What the blocks know of each other.
struct Counters {
    int* taken;     // items
    int* left;      // blocks that found none
    int* done;      // [B]: heads of a sequence, of all layers so far
    int* arrived;   // [B, heads]: parts, of all layers so far
    int numbers;

    __device__ Counters(int* first, int B, int heads)
        : taken(first), left(first + 1), done(first + 2), arrived(done + B),
          numbers(2 + B + B * heads) {}

    // One more, by the first thread, for what its block has done before a barrier. Returns how many
    // came before.
    __device__ int arrive(int* counter) const {
        fence();
        const int before = atomicAdd(counter, 1);
        fence();
        return before;
    }

    // By all threads of a block: until the counter is `least`.
    __device__ void wait(const int* counter, int least) const {
        if (is_first_thread()) {
            while (*(volatile const int*)counter < least) __nanosleep(20);
            fence();
        }
        __syncthreads();
    }
};

// To all threads of a block, what its first one has.
__device__ inline int from_first_thread(int number) {
    __shared__ int told;
    if (is_first_thread()) told = number;
    __syncthreads();
    number = told;
    __syncthreads();   // before another comes in its place
    return number;
}

// What an item is of: a layer's queries and new tokens, and a piece of a sequence there.
struct Item {
    int layer, head;
    Piece piece;
    PageTable table;
};

// The keys of an item's piece up to `end`, for some rows.
__device__ inline PagedKeys keys_of(const Item& item, const NewTokens& tokens, const Rows& which,
                                    int end) {
    Piece piece = item.piece;
    piece.end = min(piece.end, end);
    return keys_in_pages(tokens.K, tokens.V, item.table, which, piece);
}

// Appends what is new in the piece, and attends it.
__device__ inline void append_and_attend(const Item& item, const Problem& problem,
                                         const NewTokens& tokens, const Counters& counters) {
    const Piece& piece = item.piece;
    const int first_new = piece.keys - tokens.count, rows = problem.group * problem.L_q;
    for (int row0 = 0; row0 < rows; row0 += B_R) {
        const Rows which{row0, item.head, tokens.heads};
        const PagedKeys all = keys_of(item, tokens, which, piece.end);
        auto prepare = [&] {
            if (row0 > 0) return;
            counters.wait(counters.done + piece.sequence, item.layer * tokens.heads);
            const int from = max(piece.first, first_new), chunks = D / 8;
            const int count = (piece.end - from) * chunks;
            for (int e = threadIdx.y * 32 + threadIdx.x; e < count; e += 32 * WARPS)
                tokens.append(piece.sequence, piece.keys, item.table, from - first_new + e / chunks,
                              item.head, e % chunks * 8);
        };
        auto complete = [&](Stage& stage, int t) {   // again, with the keys that were not there yet
            if (min(piece.first + (t + 1) * B_C, piece.end) <= first_new) return;
            all.copy(stage, all.look_up(t));
            commit_copies();
            wait_for_copies<0>();
            __syncwarp();
        };
        attend(problem, piece, which, copies_of_pages(keys_of(item, tokens, which, first_new)),
               prepare, complete);
        __syncthreads();   // all is written, and the stages are free
    }
}

// Whether all other parts of the item's head, too, are written: of its sequence, in its layer.
__device__ inline bool is_last_part(const Item& item, const Counters& counters, int heads) {
    const int parts = item.piece.parts;
    if (parts == 1) return true;
    int* arrived = counters.arrived + item.piece.sequence * heads + item.head;
    const int before = from_first_thread(is_first_thread() ? counters.arrive(arrived) : 0);
    return before == parts * (item.layer + 1) - 1;
}

// The rows of an item's head, of whose sequence all pieces are attended.
__device__ inline void merge(const Item& item, const Problem& problem, int heads) {
    __shared__ MergeTeam teams[WARPS / MERGE_WARPS];
    const Piece& piece = item.piece;
    const int rows = problem.group * problem.L_q, team = threadIdx.y / MERGE_WARPS;
    const long long first = ((long long)(piece.number - piece.part) * heads + item.head) * rows;
    const long long head = ((long long)piece.sequence * heads + item.head) * rows;
    for (int row = team; row - team < rows; row += WARPS / MERGE_WARPS) {
        const long long at = head + row;
        merge_row(teams[team], problem.O_parts, problem.LSE_parts, first + row,
                  (long long)heads * rows, row < rows ? piece.parts : 0, problem.O + at * D,
                  problem.LSE + at, D);
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
persistent_step(const scalar_t* Q, const scalar_t* K_new, const scalar_t* V_new, cache_t* K,
                cache_t* V, scalar_t* O, float* LSE, float* O_parts, float* LSE_parts,
                const int* seq_lens, const int* parents, const int* block_table,
                const float* k_scale, const float* v_scale, int* first_counter, int layers, int B,
                int pages, int max_pages, int page_size, int L_q, int heads, int group, float scale,
                int tree, int wanted, int size, int pieces) {
    const Counters counters(first_counter, B, heads);
    const Batch batch{seq_lens, B, max_pages * page_size, 1};
    const int of_layer = pieces * heads;

    int number = from_first_thread(is_first_thread() ? atomicAdd(counters.taken, 1) : 0);
    while (number < layers * of_layer) {
        const int layer = number / of_layer, head = number % heads;
        const Piece piece = piece_of_batch(batch, {wanted, size}, number % of_layer / heads);
        const int b = piece.sequence;
        const bool exists = b >= 0;   // else there are fewer pieces
        const Item item{layer, head, piece, {block_table + (long long)b * max_pages, page_size}};

        const long long before = (long long)layer * B * heads;   // key heads of the layers before
        const long long rows = before * group * L_q;
        const long long cache = (long long)layer * pages * page_size * heads * D;
        const NewTokens tokens{K_new + before * L_q * D, V_new + before * L_q * D, K + cache, V + cache,
                               k_scale + before, v_scale + before, L_q, heads, D};
        Problem problem{Q + rows * D, parents, L_q, group, tree, scale, O + rows * D, LSE + rows,
                        O_parts, LSE_parts, UNIT, UNIT};
        if (CACHE_BITS == 8 && exists) {
            problem.k_factor *= tokens.k_scale[b * heads + head];
            problem.v_factor *= tokens.v_scale[b * heads + head];
        }

        if (exists) append_and_attend(item, problem, tokens, counters);
        const int next = is_first_thread() ? atomicAdd(counters.taken, 1) : 0;   // takes its time
        if (exists && is_last_part(item, counters, heads)) {
            if (piece.parts > 1) merge(item, problem, heads);
            if (is_first_thread()) counters.arrive(counters.done + b);
        }
        number = from_first_thread(next);
    }

    const int before = from_first_thread(is_first_thread() ? counters.arrive(counters.left) : 0);
    if (before == gridDim.x - 1)   // nobody else will look at them
        for (int n = threadIdx.y * 32 + threadIdx.x; n < counters.numbers; n += 32 * WARPS)
            first_counter[n] = 0;
}
