// backward.cu — FlashAttention-2's backward pass on tensor cores. P comes back tile by tile from
// Q, K and the saved log-sum-exp, so nothing of size L² is ever stored:
//   backward_delta     Δ = rowsum(dO ∘ O): the paper's D (here D is the head dimension)
//   backward_dk_dv     a block per tile of keys, loop over tiles of queries: dV = Pᵀ dO,
//                      dK = scale · dSᵀ Q, and, if `with_dQ`, dQ_sum += dS K by atomics, in an
//                      order of chance
//   backward_round_dq  dQ = scale · dQ_sum, rounded to 16 bits
//   backward_dq        dQ without atomics, the same bits in every run; S and dP are computed again
// where S = scale · Q Kᵀ, P = exp(S − LSE), dP = dO Vᵀ, dS = P ∘ (dP − Δ).
// "Line" is a line of Algorithm 2 of the paper.
//
// backward_dk_dv gives each warp keys, not queries; what it does with a tile of queries is in
// gradient_tile.cuh. Under GQA a block loops over the query heads that share its key head: their
// dK and dV add up in registers, in a fixed order. What a warp of backward_dq does with a tile of
// keys is in query_gradient_tile.cuh.
//
// grid   backward_delta (ceil(L_q · D / (8 · THREADS)), H, B)
//        backward_dk_dv (ceil(L_k / B_C), H / group, B), with B_C = WARPS · KEYS
//        backward_round_dq (ceil(B · H · L_q · D / (4 · THREADS)))
//        backward_dq (ceil(L_q / (16 · WARPS)), H, B)
// block  THREADS = 32 · WARPS
// layout Q, O, dO, dQ [B, H, L_q, D]  K, V, dK, dV [B, H / group, L_k, D], 16-bit
//        LSE, delta [B, H, L_q]  dQ_sum [B, H, L_q, D], fp32, dQ_sum zero at first;
//        contiguous, aligned to 16 bytes; query head h reads key head h / group
// shared backward_dk_dv 4·B_C·D + 8·B_R·D + 4·B_C·B_R + 16·B_R bytes, dynamic
//        backward_dq 64·WARPS·D + 8·KEY_TILE·D bytes, dynamic; KEY_TILE 64, or 32 with D = 256
// limits D 64, 128 or 256; KEYS a multiple of 16, B_R 32 or 64, WARPS 2, 4 or 8, B_C <= 2 · B_R;
//        L_q, L_k >= 1
// options: -DD=64 -DBF16=0 -DWARPS=4 -DKEYS=32 -DB_R=64 | -DD=64 -DBF16=1 -DWARPS=4 -DKEYS=32 -DB_R=64 | -DD=128 -DBF16=0 -DWARPS=8 -DKEYS=16 -DB_R=64 | -DD=128 -DBF16=1 -DWARPS=8 -DKEYS=16 -DB_R=64 | -DD=128 -DBF16=0 -DWARPS=4 -DKEYS=16 -DB_R=32 | -DD=256 -DBF16=0 -DWARPS=4 -DKEYS=16 -DB_R=32
// arch: sm_80
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 2
#include "gradient_tile.cuh"
#include "query_gradient_tile.cuh"

// ---- dK and dV, and dQ by atomics

extern "C" __global__ void __launch_bounds__(THREADS)
backward_dk_dv(const scalar_t* Q, const scalar_t* K, const scalar_t* V, const scalar_t* dO,
               const float* LSE, const float* delta, float* dQ_sum, scalar_t* dK, scalar_t* dV,
               int L_q, int L_k, int group, float scale, int is_causal, int with_dQ) {
    extern __shared__ __align__(256) uint4 shared_memory[];   // row_address takes that alignment
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);
    const int j0 = blockIdx.x * B_C, j_warp = j0 + first_key();   // the block's, the warp's first
    const long long key_head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    const long long key_row = key_head * L_k + j0;
    const long long query_rows = key_head * group * L_q;   // before the first head of the group
    Q += query_rows * D, dO += query_rows * D, dQ_sum += query_rows * D;
    LSE += query_rows, delta += query_rows;

    const int shift = L_k - L_q;   // causal: query i sees keys j <= i + shift
    // Rows before see no key of this tile.
    const int first = is_causal ? max(j0 - shift, 0) / B_R * B_R : 0;
    const int steps = group * ((L_q - first + B_R - 1) / B_R);   // head by head

    // A tile of queries: the rows of the group before its head, and its first row in the head.
    struct Queries { int head_row, i0; };
    auto after = [=](Queries q) {
        return q.i0 + B_R < L_q ? Queries{q.head_row, q.i0 + B_R}
                                : Queries{q.head_row + L_q, first};
    };
    auto start_copies = [&](Queries q, int place) {
        load_queries_async(tile, place, Q, dO, LSE, delta, q.head_row + q.i0, L_q - q.i0);
    };
    auto add_dQ_of = [&](Queries q, int place) {
        add_dQ(dQ_sum + (long long)(q.head_row + q.i0) * D, tile, place, L_q - q.i0);
    };

    load_keys_async(tile, K + key_row * D, V + key_row * D, L_k - j0);   // line 6
    Queries now = {0, first}, before = now;
    start_copies(now, 0);
    wait_for_copies<0>();
    __syncthreads();
    KeyGradients keys;
    initialize(keys, tile);   // line 7

    for (int n = 0; n < steps; n++) {   // line 8
        wait_for_copies<0>();
        __syncthreads();   // tile n is there, and nobody still reads the places of tile n - 1
        const int place = n % 2, i0 = now.i0;
        if (n + 1 < steps) start_copies(after(now), place ^ 1);   // line 9, one tile ahead
        if (with_dQ && n > 0) add_dQ_of(before, place ^ 1);   // line 15: its dS is complete by now
        // Lines 10 to 14, and 16
        const bool edge = j0 + B_C > L_k || (is_causal && j0 + B_C - 1 > i0 + shift);
        accumulate(keys, tile, place, scale, with_dQ, edge, [=](int query, int key) {
            return j_warp + key < L_k && (!is_causal || j_warp + key <= i0 + query + shift);
        });
        before = now, now = after(now);
    }
    __syncthreads();
    if (with_dQ) add_dQ_of(before, (steps - 1) % 2);
    write_gradients(keys, tile, dK + key_row * D, dV + key_row * D, scale, L_k - j0);   // line 18
}

// ---- dQ without atomics

extern "C" __global__ void __launch_bounds__(THREADS)
backward_dq(const scalar_t* Q, const scalar_t* K, const scalar_t* V, const scalar_t* dO,
            const float* LSE, const float* delta, scalar_t* dQ,
            int L_q, int L_k, int group, float scale, int is_causal) {
    extern __shared__ __align__(256) uint4 shared_memory[];   // row_address takes that alignment
    QueryTiles& tile = *reinterpret_cast<QueryTiles*>(shared_memory);
    const int i0 = blockIdx.x * QUERIES, shift = L_k - L_q;
    const long long row = ((long long)blockIdx.z * gridDim.y + blockIdx.y) * L_q + i0;
    const long long key_head = (long long)blockIdx.z * (gridDim.y / group) + blockIdx.y / group;
    K += key_head * L_k * D, V += key_head * L_k * D;
    const int keys = is_causal ? min(L_k, i0 + QUERIES + shift) : L_k;   // later ones are hidden

    auto start_copies = [&](int j0) {
        const int place = j0 / KEY_TILE % 2;
        const long long at = (long long)j0 * D;
        if (j0 < keys) load_keys_async(tile, place, K + at, V + at, L_k - j0);
        commit_copies();
    };
    load_queries_async(tile, Q + row * D, dO + row * D, L_q - i0);
    start_copies(0);
    QueryGradients queries;
    initialize(queries, LSE + row, delta + row, L_q - i0);

    for (int j0 = 0; j0 < keys; j0 += KEY_TILE) {
        wait_for_copies<0>();
        __syncthreads();   // this tile is there for all, and all are done with the one before
        start_copies(j0 + KEY_TILE);
        const int place = j0 / KEY_TILE % 2, i_warp = i0 + first_query();
        const bool edge = j0 + KEY_TILE > L_k || (is_causal && j0 + KEY_TILE - 1 > i0 + shift);
        accumulate(queries, tile, place, scale, edge, [=](int query, int key) {
            return j0 + key < L_k && (!is_causal || j0 + key <= i_warp + query + shift);
        });
    }
    wait_for_copies<0>();   // a block that sees no key started some, too
    write_dQ(queries, dQ + row * D, scale, L_q - i0);
}

// ---- before and after

// D / 8 threads share a row, 8 columns each.
extern "C" __global__ void __launch_bounds__(THREADS)
backward_delta(const scalar_t* O, const scalar_t* dO, float* delta, int L_q) {
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    const int thread = blockIdx.x * THREADS + threadIdx.x;
    const int i = thread / (D / 8), col = thread % (D / 8) * 8;
    float sum = 0;
    if (i < L_q) {
        const uint4 o = *reinterpret_cast<const uint4*>(O + (head * L_q + i) * D + col);
        const uint4 d = *reinterpret_cast<const uint4*>(dO + (head * L_q + i) * D + col);
        const scalar_t *O_i = reinterpret_cast<const scalar_t*>(&o);
        const scalar_t *dO_i = reinterpret_cast<const scalar_t*>(&d);
        for (int e = 0; e < 8; e++) sum += (float)O_i[e] * (float)dO_i[e];
    }
    for (int other = D / 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffff, sum, other);
    if (i < L_q && col == 0) delta[head * L_q + i] = sum;
}

// Four numbers per thread.
extern "C" __global__ void __launch_bounds__(THREADS)
backward_round_dq(const float* dQ_sum, scalar_t* dQ, float scale, long long size) {
    const long long at = ((long long)blockIdx.x * THREADS + threadIdx.x) * 4;
    if (at >= size) return;
    const float4 sum = *reinterpret_cast<const float4*>(dQ_sum + at);
    *reinterpret_cast<uint2*>(dQ + at) = make_uint2(pack(scale * sum.x, scale * sum.y),
                                                    pack(scale * sum.z, scale * sum.w));
}
