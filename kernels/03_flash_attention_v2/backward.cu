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
// backward_dk_dv gives each warp keys, not queries, and computes Sᵀ = K Qᵀ and dPᵀ = V dOᵀ: then Pᵀ
// and dSᵀ are laid out as the left factor of Pᵀ dO and dSᵀ Q and stay in registers. K and V of the
// warp stay there too, as left factors, and 16 queries at a time leave room for that. Only dS, of
// which dQ needs all keys of the block, goes through shared memory. Under GQA a block loops over
// the query heads that share its key head: their dK and dV add up in registers, in a fixed order.
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
//        backward_dq 64·WARPS·D + 512·D bytes, dynamic
// limits D 64 or 128; KEYS a multiple of 16, B_R 32 or 64, WARPS 2, 4 or 8; L_q, L_k >= 1
// options: -DD=64 -DBF16=0 -DWARPS=4 -DKEYS=32 -DB_R=64 | -DD=64 -DBF16=1 -DWARPS=4 -DKEYS=32 -DB_R=64 | -DD=128 -DBF16=0 -DWARPS=8 -DKEYS=16 -DB_R=64 | -DD=128 -DBF16=1 -DWARPS=8 -DKEYS=16 -DB_R=64 | -DD=128 -DBF16=0 -DWARPS=4 -DKEYS=16 -DB_R=32
// arch: sm_80
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 2
constexpr int THREADS = 32 * WARPS, B_C = WARPS * KEYS;
constexpr float LOG2_E = 1.44269504f;
#include "tile_products.cuh"

constexpr int M = KEYS / 16;   // products that a warp's keys take
static_assert(KEYS % 16 == 0 && (B_R == 32 || B_R == 64), "tile sizes");
static_assert(WARPS == 2 || WARPS == 4 || WARPS == 8, "add_dQ divides D by a power of two");

__device__ inline void store_pair(scalar_t* address, float low, float high) {
    *reinterpret_cast<unsigned*>(address) = pack(low, high);
}

__device__ inline void add_pair(float* address, float first, float second) {
#if __CUDA_ARCH__ >= 900   // one instruction for both
    atomicAdd(reinterpret_cast<float2*>(address), make_float2(first, second));
#else
    atomicAdd(address, first);
    atomicAdd(address + 1, second);
#endif
}

// Calls f(P, dS, row, column) for each number of two products, [16 M, 8 N], that this lane holds.
template <int M, int N, class F>
__device__ inline void each_score(float (&P)[M][N][4], float (&dS)[M][N][4], F f) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    #pragma unroll
    for (int n = 0; n < N; n++)
        #pragma unroll
        for (int m = 0; m < M; m++)
            #pragma unroll
            for (int e = 0; e < 4; e++)
                f(P[m][n][e], dS[m][n][e], 16 * m + e / 2 * 8 + g, 8 * n + 2 * t + e % 2);
}

// ---- dK and dV, and dQ by atomics

struct Tiles {
    scalar_t K[B_C * D], V[B_C * D], Q[2][B_R * D], dO[2][B_R * D], dS[2][B_C * B_R];
    float LSE[2][B_R], delta[2][B_R];
};

// dSᵀ is stored [B_C, B_R]. Index of chunk 0 of a row; that of chunk c is this XOR 8 c, and eight
// rows use all banks.
__device__ inline int dS_row(int key) {
    return key * B_R + (B_R == 32 ? key / 2 % 4 : key % 8) * 8;
}

// Starts to copy a number for each query of a tile; zeros from row `rows_left` on.
__device__ inline void load_rows_async(float* rows, const float* source, int rows_left) {
    static_assert(B_R <= THREADS, "one copy per thread");
    const int r = threadIdx.x;
    if (r < B_R) copy_4_bytes_async(rows + r, source + r, r < rows_left);
}

// Line 15: dQ_sum += dS K for one tile of queries. Of each pair of warps, one has the upper half of
// the rows, the other the lower; the pairs divide the columns.
__device__ inline void add_dQ(float* dQ_sum, const scalar_t* dS, const scalar_t* K, int rows_left) {
    constexpr int ROWS = B_R / 2, COLS = D / (WARPS / 2);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    const int row = warp % 2 * ROWS, col = warp / 2 * COLS;

    // As by_columns, for the pitch of dS: transposed on the way, dSᵀ is the A of dS K.
    const int corner = dS_row(lane % 8 + lane / 16 * 8) ^ (row + lane / 8 % 2 * 8);
    const unsigned dS_address = __cvta_generic_to_shared(dS + corner);
    float dQ[ROWS / 16][COLS / 8][4] = {};
    #pragma unroll
    for (int j = 0; j < B_C; j += 16) {
        unsigned a[ROWS / 16][4];
        for (int m = 0; m < ROWS / 16; m++)
            ldmatrix_x4_trans(a[m], (dS_address ^ 2 * 16 * m) + 2 * B_R * j);
        multiply(dQ, a, at(by_rows(K), j, col));
    }
    #pragma unroll
    for (int m = 0; m < ROWS / 16; m++)
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = row + 16 * m + 8 * half + g;
            if (i >= rows_left) continue;
            float* out = dQ_sum + i * D + col + 2 * t;
            #pragma unroll
            for (int n = 0; n < COLS / 8; n++)
                add_pair(out + 8 * n, dQ[m][n][2 * half], dQ[m][n][2 * half + 1]);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS)
backward_dk_dv(const scalar_t* Q, const scalar_t* K, const scalar_t* V, const scalar_t* dO,
               const float* LSE, const float* delta, float* dQ_sum, scalar_t* dK, scalar_t* dV,
               int L_q, int L_k, int group, float scale, int is_causal, int with_dQ) {
    extern __shared__ __align__(256) uint4 shared_memory[];   // row_address takes that alignment
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);
    const long long key_head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    const long long query_rows = key_head * group * L_q;   // before the first head of the group
    K += key_head * L_k * D, V += key_head * L_k * D;
    dK += key_head * L_k * D, dV += key_head * L_k * D;
    Q += query_rows * D, dO += query_rows * D, dQ_sum += query_rows * D;
    LSE += query_rows, delta += query_rows;

    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int j0 = blockIdx.x * B_C, warp_key = threadIdx.x / 32 * KEYS;
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
        const long long row = q.head_row + q.i0;
        load_tile_async<B_R>(tile.Q[place], Q + row * D, L_q - q.i0);
        load_tile_async<B_R>(tile.dO[place], dO + row * D, L_q - q.i0);
        load_rows_async(tile.LSE[place], LSE + row, L_q - q.i0);
        load_rows_async(tile.delta[place], delta + row, L_q - q.i0);
        commit_copies();
    };
    auto add_dQ_of = [&](Queries q, int place) {
        add_dQ(dQ_sum + (long long)(q.head_row + q.i0) * D, tile.dS[place], tile.K, L_q - q.i0);
    };

    // Lines 6 and 7.
    load_tile_async<B_C>(tile.K, K + (long long)j0 * D, L_k - j0);
    load_tile_async<B_C>(tile.V, V + (long long)j0 * D, L_k - j0);
    Queries now = {0, first}, before = now;
    start_copies(now, 0);
    wait_for_copies<0>();
    __syncthreads();
    unsigned K_j[D / 16][M][4], V_j[D / 16][M][4];
    #pragma unroll
    for (int d = 0; d < D; d += 16)
        for (int m = 0; m < M; m++) {
            ldmatrix_x4(K_j[d / 16][m], at(by_rows(tile.K), warp_key + 16 * m, d));
            ldmatrix_x4(V_j[d / 16][m], at(by_rows(tile.V), warp_key + 16 * m, d));
        }
    float dK_j[M][D / 8][4] = {}, dV_j[M][D / 8][4] = {};
    const int dS_lane = dS_row(warp_key + g) + 2 * t;

    for (int n = 0; n < steps; n++) {   // line 8
        wait_for_copies<0>();
        __syncthreads();   // tile n is there, and nobody still reads the places of tile n - 1
        const int place = n % 2, i0 = now.i0;
        if (n + 1 < steps) start_copies(after(now), place ^ 1);   // line 9, one tile ahead
        if (with_dQ && n > 0) add_dQ_of(before, place ^ 1);   // its dS is complete by now
        const scalar_t *Q_i = tile.Q[place], *dO_i = tile.dO[place];
        const bool edge = j0 + B_C > L_k || (is_causal && j0 + B_C - 1 > i0 + shift);

        #pragma unroll 1
        for (int r = 0; r < B_R; r += 16) {
            // Lines 10 and 13: Sᵀ = K Qᵀ and dPᵀ = V dOᵀ. A row is a key, a column a query.
            float P[M][2][4] = {}, dS[M][2][4] = {};
            #pragma unroll
            for (int d = 0; d < D; d += 16) {
                multiply_transposed(P, K_j[d / 16], at(by_columns(Q_i), r, d));
                multiply_transposed(dS, V_j[d / 16], at(by_columns(dO_i), r, d));
            }
            // Line 11, Pᵀ = exp(Sᵀ − LSE), and line 14, dSᵀ = Pᵀ ∘ (dPᵀ − Δ). Past L_q all of Q,
            // dO, LSE and Δ are 0: there P is 1, but it is multiplied by dO = 0, and dS is 0.
            const float *LSE_i = tile.LSE[place] + r, *delta_i = tile.delta[place] + r;
            each_score(P, dS, [&](float& p, float& ds, int key, int query) {
                p = exp2_approx(p * (scale * LOG2_E) - LSE_i[query] * LOG2_E);
            });
            if (edge)   // of a query that sees no key, LSE is −∞ and P is ∞ until here
                each_score(P, dS, [&](float& p, float& ds, int key, int query) {
                    const int i = i0 + r + query, j = j0 + warp_key + key;
                    if (j >= L_k || (is_causal && j > i + shift)) p = 0;
                });
            each_score(P, dS, [&](float& p, float& ds, int key, int query) {
                ds = p * (ds - delta_i[query]);
            });

            // Lines 12 and 16: dV += Pᵀ dO, dK += dSᵀ Q
            unsigned P_a[M][4], dS_a[M][4];
            for (int m = 0; m < M; m++) pack_a(P_a[m], P[m][0], P[m][1]);
            for (int m = 0; m < M; m++) pack_a(dS_a[m], dS[m][0], dS[m][1]);
            if (with_dQ)
                for (int m = 0; m < M; m++)
                    for (int e = 0; e < 4; e++) {
                        const int row = 16 * m + e % 2 * 8, column = r + e / 2 * 8;
                        scalar_t* pair = tile.dS[place] + (dS_lane ^ column) + row * B_R;
                        *reinterpret_cast<unsigned*>(pair) = dS_a[m][e];
                    }
            multiply(dV_j, P_a, at(by_rows(dO_i), r, 0));
            multiply(dK_j, dS_a, at(by_rows(Q_i), r, 0));
        }
        before = now, now = after(now);
    }
    if (with_dQ) {
        __syncthreads();
        add_dQ_of(before, (steps - 1) % 2);
    }

    #pragma unroll
    for (int m = 0; m < M; m++)
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const int j = j0 + warp_key + 16 * m + 8 * half + g;
            if (j >= L_k) continue;
            #pragma unroll
            for (int c = 0; c < D / 8; c++) {
                const long long at = (long long)j * D + 8 * c + 2 * t;
                const float *k = dK_j[m][c] + 2 * half, *v = dV_j[m][c] + 2 * half;
                store_pair(dK + at, scale * k[0], scale * k[1]);
                store_pair(dV + at, v[0], v[1]);
            }
        }
}

// ---- dQ without atomics: a warp holds 16 queries, as in the forward pass

constexpr int KEY_TILE = 64;

struct QueryTiles {
    scalar_t Q[16 * WARPS * D], dO[16 * WARPS * D], K[2][KEY_TILE * D], V[2][KEY_TILE * D];
};

extern "C" __global__ void __launch_bounds__(THREADS)
backward_dq(const scalar_t* Q, const scalar_t* K, const scalar_t* V, const scalar_t* dO,
            const float* LSE, const float* delta, scalar_t* dQ,
            int L_q, int L_k, int group, float scale, int is_causal) {
    extern __shared__ __align__(256) uint4 shared_memory[];   // row_address takes that alignment
    QueryTiles& tile = *reinterpret_cast<QueryTiles*>(shared_memory);
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    Q += head * L_q * D, dO += head * L_q * D, dQ += head * L_q * D;
    LSE += head * L_q, delta += head * L_q;
    const long long key_head = (long long)blockIdx.z * (gridDim.y / group) + blockIdx.y / group;
    K += key_head * L_k * D, V += key_head * L_k * D;

    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int i0 = blockIdx.x * 16 * WARPS, warp_row = threadIdx.x / 32 * 16, shift = L_k - L_q;
    const int keys = is_causal ? min(L_k, i0 + 16 * WARPS + shift) : L_k;   // later ones are hidden

    auto start_copies = [&](int j0) {
        const int place = j0 / KEY_TILE % 2;
        if (j0 < keys) {
            load_tile_async<KEY_TILE>(tile.K[place], K + (long long)j0 * D, L_k - j0);
            load_tile_async<KEY_TILE>(tile.V[place], V + (long long)j0 * D, L_k - j0);
        }
        commit_copies();
    };
    load_tile_async<16 * WARPS>(tile.Q, Q + (long long)i0 * D, L_q - i0);
    load_tile_async<16 * WARPS>(tile.dO, dO + (long long)i0 * D, L_q - i0);
    start_copies(0);

    float lse[2], Delta[2];
    for (int half = 0; half < 2; half++) {
        const int i = i0 + warp_row + 8 * half + g;
        lse[half] = i < L_q ? LSE[i] * LOG2_E : 0;
        Delta[half] = i < L_q ? delta[i] : 0;
    }
    float dQ_i[1][D / 8][4] = {};

    for (int j0 = 0; j0 < keys; j0 += KEY_TILE) {
        wait_for_copies<0>();
        __syncthreads();   // this tile is there for all, and all are done with the one before
        start_copies(j0 + KEY_TILE);
        const int place = j0 / KEY_TILE % 2;
        const bool edge = j0 + KEY_TILE > L_k || (is_causal && j0 + KEY_TILE - 1 > i0 + shift);

        // S = Q Kᵀ, dP = dO Vᵀ
        float S[1][KEY_TILE / 8][4] = {}, dS[1][KEY_TILE / 8][4] = {};
        #pragma unroll
        for (int d = 0; d < D; d += 16) {
            unsigned q[1][4], o[1][4];
            ldmatrix_x4(q[0], at(by_rows(tile.Q), warp_row, d));
            ldmatrix_x4(o[0], at(by_rows(tile.dO), warp_row, d));
            multiply_transposed(S, q, at(by_columns(tile.K[place]), 0, d));
            multiply_transposed(dS, o, at(by_columns(tile.V[place]), 0, d));
        }
        each_score(S, dS, [&](float& s, float& ds, int query, int key) {
            const int half = query / 8;
            const float P = exp2_approx(s * (scale * LOG2_E) - lse[half]);
            ds = P * (ds - Delta[half]);
        });
        if (edge)
            each_score(S, dS, [&](float&, float& ds, int query, int key) {
                const int i = i0 + warp_row + query, j = j0 + key;
                if (j >= L_k || (is_causal && j > i + shift)) ds = 0;
            });
        // dQ += dS K
        #pragma unroll
        for (int k = 0; k < KEY_TILE / 16; k++) {
            unsigned a[1][4];
            pack_a(a[0], dS[0][2 * k], dS[0][2 * k + 1]);
            multiply(dQ_i, a, at(by_rows(tile.K[place]), 16 * k, 0));
        }
    }
    wait_for_copies<0>();   // a block that sees no key started some, too

    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = i0 + warp_row + 8 * half + g;
        if (i >= L_q) continue;
        #pragma unroll
        for (int c = 0; c < D / 8; c++)
            store_pair(dQ + (long long)i * D + 8 * c + 2 * t, scale * dQ_i[0][c][2 * half],
                       scale * dQ_i[0][c][2 * half + 1]);
    }
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
