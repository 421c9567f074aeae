// range_backward.cu — gradients of range.cu: FlashAttention-2's backward pass, over the queries
// that see the block's keys. As the keys of a row, they follow from arithmetic: both ends of a
// range only grow with the row, so the rows that see a tile of keys are neighbours, too, and one
// that holds a sink is seen by all rows that come after.
//
// A block has a tile of keys of one residue class (see range.cu): rows of K, V, Q, dO and dQ are
// `dilation` apart in memory, and the tile is as dense as any other. It meets the rows that its item
// names (key_columns.cuh): all that see the tile, or a part of them, where sinks are seen by all. A
// warp none of whose keys a tile of queries sees leaves the tile out (WARPS = 8), as does add_dQ.
// dQ_sum += dS K by atomics, in an order of chance. delta and the rounding of dQ: backward_delta and
// backward_round_dq of 03_flash_attention_v2/backward.cu, whose tile this is.
//
// With TABLE=1 the file holds table_dk_dv in place of range_dk_dv, for table_forward of range.cu:
// key j is seen by the rows starts[j] <= r < ends[j], int32 [L_k]; neither array falls. SOFTCAP=1
// gives it a softcap; what it has to know of sinks is in LSE.
//
// With DQ_PASS=1 no block adds to dQ_sum, and the file also holds range_dq, or with TABLE=1 table_dq:
// dQ in a pass of its own, over the keys of each row in ascending order, the same bits in every run.
// Its table is that of table_forward: row r sees the keys starts[r] <= j < ends[r], int32 [L_q].
//
// grid   range_dk_dv, table_dk_dv (items · heads, H / group / heads, B); `heads` divides H / group
//        merge_gradients (split columns · B_C · D / (4 · THREADS), H / group, B)
//        range_dq, table_dq (dilation · ceil(ceil(L_q / dilation) / (16 · WARPS)), H, B)
// block  THREADS = 32 · WARPS
// layout Q, dO [B, H, L_q, D]  K, V, dK, dV [B, H / group, L_k, D], 16-bit
//        LSE, delta [B, H, L_q]  dQ_sum [B, H, L_q, D], fp32, dQ_sum zero at first; dQ as Q;
//        contiguous, aligned to 16 bytes; query head h reads key head h / group; query r has
//        position r + L_k − L_q; LSE is −∞ for a query that sees no key
//        items, parts, split: key_columns.cuh, with B_C = WARPS · KEYS; of tile n of class c the
//        number is c + dilation · n
// shared 4·B_C·D + 8·B_R·D + 4·B_C·B_R + 16·B_R bytes, dynamic
//        range_dq, table_dq 64·WARPS·D + 8·KEY_TILE·D bytes, dynamic; KEY_TILE 64, with D = 256 32
// limits scale > 0; left, right <= 2^30, which means no end; 1 <= step <= 2^29; dilation at most
//        max(L_q, L_k); sinks only with dilation 1 and step 1, columns are split only with
//        dilation 1; DILATED=0 takes dilation 1 only; B · H · L_q < 2^31; D 64 or 128, with
//        TABLE=1 also 256; KEYS a multiple of 16, B_R 32 or 64, WARPS 2, 4 or 8, B_C <= 2 · B_R
// options: -DD=64 -DBF16=0 -DWARPS=4 -DKEYS=32 -DB_R=64 -DDILATED=0 | -DD=64 -DBF16=1 -DWARPS=4 -DKEYS=32 -DB_R=64 -DDILATED=1 | -DD=128 -DBF16=0 -DWARPS=8 -DKEYS=16 -DB_R=64 -DDILATED=0 | -DD=128 -DBF16=1 -DWARPS=8 -DKEYS=16 -DB_R=64 -DDILATED=1 | -DD=128 -DBF16=0 -DWARPS=4 -DKEYS=16 -DB_R=32 -DDILATED=0 | -DD=64 -DBF16=0 -DWARPS=4 -DKEYS=32 -DB_R=64 -DTABLE=1 | -DD=128 -DBF16=0 -DWARPS=8 -DKEYS=16 -DB_R=64 -DTABLE=1 | -DD=64 -DBF16=0 -DWARPS=4 -DKEYS=32 -DB_R=64 -DTABLE=1 -DSOFTCAP=1 | -DD=128 -DBF16=1 -DWARPS=8 -DKEYS=16 -DB_R=64 -DTABLE=1 -DSOFTCAP=1 | -DD=256 -DBF16=0 -DWARPS=4 -DKEYS=16 -DB_R=32 -DTABLE=1 | -DD=64 -DBF16=0 -DWARPS=4 -DKEYS=32 -DB_R=64 -DDILATED=0 -DDQ_PASS=1 | -DD=128 -DBF16=1 -DWARPS=8 -DKEYS=16 -DB_R=64 -DDILATED=1 -DDQ_PASS=1 | -DD=128 -DBF16=0 -DWARPS=8 -DKEYS=16 -DB_R=64 -DTABLE=1 -DSOFTCAP=1 -DDQ_PASS=1 | -DD=256 -DBF16=0 -DWARPS=4 -DKEYS=16 -DB_R=32 -DTABLE=1 -DDQ_PASS=1
// arch: sm_80
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 2
#include "gradient_tile.cuh"
#include "key_columns.cuh"
#include "query_gradient_tile.cuh"
#include "ranges.cuh"

#if TABLE
#define DILATED 0
#endif

// Rows [start, end) of a residue class, counted from its first one.
struct Rows { int start, end; };

__device__ inline bool meet(Rows a, Rows b) { return a.start < b.end && b.start < a.end; }

// rows_that_see(j): the rows of the class that see its key j. Those of the column are in its item.
template <class RowsThatSee>
__device__ __forceinline__ void
differentiate(const scalar_t* Q, const scalar_t* K, const scalar_t* V, const scalar_t* dO,
              const float* LSE, const float* delta, float* dQ_sum, scalar_t* dK, scalar_t* dV,
              int L_q, int L_k, int group, float scale, int heads, float* parts, int sinks,
              int dilation, const Column& column, ResidueClass of, const ModelSoftmax& softmax,
              RowsThatSee rows_that_see) {
    extern __shared__ __align__(512) uint4 shared_memory[];   // row_address takes that alignment
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);
    const int j0 = column.tile / dilation * B_C, j_warp = j0 + first_key();
    const int pitch = dilation * D;   // elements from one row of the class to the next
    const long long keys_at = (column.key_head * L_k + of.first_key) * D + (long long)j0 * pitch;
    const int first_row = column.key_head * group * L_q + of.first_query;   // of the first head
    const int first = column.first, end = column.end;
    const int tiles = (end - first + B_R - 1) / B_R, steps = group * max(0, tiles);

    // Tile n of the walk, head by head: the first row of its head in memory, its own in the class.
    struct Queries { int head_row, i0; };
    auto queries = [=](int n) {
        return Queries{first_row + n / tiles * L_q, first + n % tiles * B_R};
    };
    auto row_of = [=](Queries q) { return (long long)q.head_row + q.i0 * dilation; };
    auto start_copies = [&](Queries q, int place) {
        load_queries_async(tile, place, Q, dO, LSE, delta, row_of(q), end - q.i0, pitch);
    };

    load_keys_async(tile, K + keys_at, V + keys_at, of.keys - j0, pitch);
    start_copies({first_row, first}, 0);   // zeros if no row sees a key
    wait_for_copies<0>();
    __syncthreads();
    KeyGradients keys;
    initialize(keys, tile);

    // V of the warp is in registers. In its place: the rows that see each of the warp's keys, then
    // those that see all of them, and those that see one. Only the ends of the sinks do not grow
    // with the key.
    auto seen_by = [&](int warp) { return reinterpret_cast<Rows*>(tile.V + warp * KEYS * D); };
    Rows* mine = seen_by(threadIdx.x / 32);
    __syncwarp();
    for (int key = threadIdx.x % 32; key < KEYS; key += 32)
        mine[key] = j_warp + key < of.keys ? rows_that_see(j_warp + key) : Rows{of.queries, 0};
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        const int earliest_end = max(0, min(sinks - j_warp, KEYS - 1));
        const int last = max(0, min(of.keys - j_warp, KEYS) - 1);
        mine[KEYS] = {mine[KEYS - 1].start, mine[earliest_end].end};
        mine[KEYS + 1] = {mine[0].start, max(mine[0].end, mine[last].end)};
    }
    __syncthreads();

    // Bit w: no query of the tile from row i0 on sees a key of warp w.
    auto idle_at = [&](int i0) {
        const Rows some = seen_by(threadIdx.x % WARPS)[KEYS + 1];
        return __ballot_sync(0xffffffff, !meet(some, {i0, i0 + B_R})) & ((1u << WARPS) - 1);
    };
    auto add_dQ_of = [&](Queries q, int place) {
        if (DQ_PASS) return;
        add_dQ(dQ_sum + row_of(q) * D, tile, place, end - q.i0, idle_at(q.i0), pitch);
    };

    // Half of the warps send dQ off while the others multiply: either leaves the other's units idle.
    const bool early = WARPS < 8 || DILATED || threadIdx.x < THREADS / 2;
    for (int n = 0; n < steps; n++) {
        wait_for_copies<0>();
        __syncthreads();   // tile n is there, and nobody still reads the places of tile n - 1
        const int place = n % 2, i0 = queries(n).i0;
        if (n + 1 < steps) start_copies(queries(n + 1), place ^ 1);   // one tile ahead
        if (n > 0 && early) add_dQ_of(queries(n - 1), place ^ 1);   // its dS is complete by now
        const bool edge = i0 < mine[KEYS].start || min(i0 + B_R, end) > mine[KEYS].end;
        if (WARPS < 8 || meet(mine[KEYS + 1], {i0, i0 + B_R}))   // smaller tiles lack registers
            accumulate(keys, tile, place, scale, !DQ_PASS, edge, [=](int query, int key) {
                return mine[key].start <= i0 + query && i0 + query < mine[key].end;
            }, softmax);
        if (n > 0 && !early) add_dQ_of(queries(n - 1), place ^ 1);
    }
    __syncthreads();   // nobody reads Q and dO any more, in whose place the gradients pass through
    if (steps > 0) add_dQ_of(queries(steps - 1), (steps - 1) % 2);
    if (column.part < 0)
        write_gradients(keys, tile, dK + keys_at, dV + keys_at, scale, of.keys - j0, pitch);
    else
        for (int m = 0; m < M; m++)
            write_part(keys.dK[m], keys.dV[m], first_key() + 16 * m, parts, column);
}

#if TABLE
extern "C" __global__ void __launch_bounds__(THREADS)
table_dk_dv(const scalar_t* Q, const scalar_t* K, const scalar_t* V, const scalar_t* dO,
            const float* LSE, const float* delta, float* dQ_sum, scalar_t* dK, scalar_t* dV,
            int L_q, int L_k, int group, float scale, const int4* items, int heads, float* parts,
            const int* starts, const int* ends, float softcap) {
    const ResidueClass all = {0, 0, L_k, L_q, L_k - L_q};
    differentiate(Q, K, V, dO, LSE, delta, dQ_sum, dK, dV, L_q, L_k, group, scale, heads, parts,
                  0, 1, column_of_block(items, heads), all, {softcap},
                  [=](int j) { return Rows{starts[j], ends[j]}; });
}
#else
extern "C" __global__ void __launch_bounds__(THREADS)
range_dk_dv(const scalar_t* Q, const scalar_t* K, const scalar_t* V, const scalar_t* dO,
            const float* LSE, const float* delta, float* dQ_sum, scalar_t* dK, scalar_t* dV,
            int L_q, int L_k, int group, float scale, const int4* items, int heads, float* parts,
            int sinks, int left, int right, int step, int dilation) {
    if (!DILATED) dilation = 1;   // known to the compiler, it makes all addresses immediate
    const Column column = column_of_block(items, heads);
    const ResidueClass of = residue_class(column.tile % dilation, dilation, L_q, L_k);
    // Row i sees key j if j − right < base <= j + left, where base is i rounded down.
    auto rows_that_see = [=](int j) {
        const int start = round_down(j - right + step, step) - of.shift;
        const int end = round_down(j + left, step) + step - of.shift;
        return Rows{max(0, start), j < sinks ? of.queries : min(end, of.queries)};
    };
    differentiate(Q, K, V, dO, LSE, delta, dQ_sum, dK, dV, L_q, L_k, group, scale, heads, parts,
                  sinks, dilation, column, of, {}, rows_that_see);
}
#endif

// Where columns were split: dK and dV from their parts.
extern "C" __global__ void __launch_bounds__(THREADS)
merge_gradients(const float* parts, const int4* split, scalar_t* dK, scalar_t* dV, int L_k,
                float scale) {
    merge_parts(parts, split, dK, dV, L_k, scale);
}

#if DQ_PASS
// keys_in(r): the keys of row r of the class, beside the sinks; r may lie behind the last row.
template <class KeysIn>
__device__ __forceinline__ void
differentiate_rows(const scalar_t* Q, const scalar_t* K, const scalar_t* V, const scalar_t* dO,
                   const float* LSE, const float* delta, scalar_t* dQ, int L_q, int L_k, int group,
                   float scale, int sinks, int dilation, ResidueClass of,
                   const ModelSoftmax& softmax, KeysIn keys_in) {
    extern __shared__ __align__(512) uint4 shared_memory[];   // row_address takes that alignment
    QueryTiles& tile = *reinterpret_cast<QueryTiles*>(shared_memory);
    const int i0 = blockIdx.x / dilation * QUERIES, rows_left = of.queries - i0;
    if (rows_left <= 0) return;
    const int pitch = dilation * D;   // elements from one row of the class to the next
    const int head = blockIdx.z * gridDim.y + blockIdx.y;
    const long long row = (long long)head * L_q + of.first_query + (long long)i0 * dilation;
    const long long first_key = (long long)(head / group) * L_k + of.first_key;
    K += first_key * D, V += first_key * D;

    // Both ends of what a row sees only grow with the row: first and last row decide.
    const Keys top = keys_in(i0), bottom = keys_in(i0 + QUERIES - 1);
    // Where a tile begins that comes from j0 on: behind the sinks no row sees a key before top.start.
    auto from = [=](int j0) { return j0 < sinks ? j0 : max(j0, top.start); };
    auto start_copies = [&](int j0, int place) {
        const long long at = (long long)j0 * pitch;
        if (j0 < bottom.end) load_keys_async(tile, place, K + at, V + at, of.keys - j0, pitch);
        commit_copies();
    };
    int j0 = from(0);
    load_queries_async(tile, Q + row * D, dO + row * D, rows_left, pitch);
    start_copies(j0, 0);
    QueryGradients queries;
    initialize(queries, LSE + row, delta + row, rows_left, pitch);
    const Keys seen[2] = {keys_in(i0 + query_of_lane(0)), keys_in(i0 + query_of_lane(1))};

    for (int place = 0; j0 < bottom.end; place ^= 1) {
        wait_for_copies<0>();
        __syncthreads();   // this tile is there for all, and all are done with the one before
        const int next = from(j0 + KEY_TILE);
        start_copies(next, place ^ 1);
        const bool edge = j0 + KEY_TILE > top.end || (j0 < bottom.start && j0 + KEY_TILE > sinks);
        accumulate(queries, tile, place, scale, edge, [=](int query, int key) {
            const int j = j0 + key;
            const Keys& keys = seen[query / 8];
            return j < keys.end & (j >= keys.start | j < sinks);
        }, softmax);
        j0 = next;
    }
    wait_for_copies<0>();   // a block that sees no key started some, too
    write_dQ(queries, dQ + row * D, scale, rows_left, pitch);
}

#if TABLE
extern "C" __global__ void __launch_bounds__(THREADS)
table_dq(const scalar_t* Q, const scalar_t* K, const scalar_t* V, const scalar_t* dO,
         const float* LSE, const float* delta, scalar_t* dQ, int L_q, int L_k, int group,
         float scale, const int* starts, const int* ends, float softcap) {
    const ResidueClass all = {0, 0, L_k, L_q, L_k - L_q};
    const ModelSoftmax softmax = {softcap};
    differentiate_rows(Q, K, V, dO, LSE, delta, dQ, L_q, L_k, group, scale, 0, 1, all, softmax,
                       [=](int row) {
        const int r = min(row, L_q - 1);
        return Keys{starts[r], ends[r]};
    });
}
#else
extern "C" __global__ void __launch_bounds__(THREADS)
range_dq(const scalar_t* Q, const scalar_t* K, const scalar_t* V, const scalar_t* dO,
         const float* LSE, const float* delta, scalar_t* dQ, int L_q, int L_k, int group,
         float scale, int sinks, int left, int right, int step, int dilation) {
    if (!DILATED) dilation = 1;   // known to the compiler, it makes all addresses immediate
    const ResidueClass of = residue_class(blockIdx.x % dilation, dilation, L_q, L_k);
    differentiate_rows(Q, K, V, dO, LSE, delta, dQ, L_q, L_k, group, scale, sinks, dilation, of, {},
                       [=](int row) {
        return keys_of_row(row + of.shift, left, right, step, of.keys);
    });
}
#endif
#endif
