// sparse_mla_backward.cu — gradients of sparse_mla.cu. P comes back tile by tile from the query,
// the gathered latent rows and the saved log-sum-exp:
//   dQ = scale · dS K, and d_latent += scale · dSᵀ Q + Pᵀ dO at the rows that the indices name: K is
//   a latent row, V its first D_V numbers
// where S = scale · Q Kᵀ, P = exp(S − LSE), dP = dO Vᵀ, Δ = rowsum(P ∘ dP), dS = P ∘ (dP − Δ).
//
// FlashAttention-2 takes Δ = rowsum(dO ∘ O), which is the same, from the O that was written: rounded
// to 16 bits. Where one key has most of the weight, dP − Δ of that key is a small difference of
// large numbers, and this rounding, over 512 columns, the largest. So the block walks twice over
// its tiles, and takes Δ from the first walk, in fp32; two of the seven products are done again.
//
// A block has B_R heads of one query and walks over the query's list, as in the forward pass; dQ
// stays in registers to the end. A latent row is named by the lists of many queries, which ones is
// not known: what it gets is added up by atomics, in fp32, in no fixed order, one sum per block and
// index. More heads per block are fewer atomics. What stands twice in a list is added twice.
//
// The warps split S and dP as in latent_tile.cuh: 16 heads and KEYS keys each. P and dS go through
// shared memory in 16 bits, and then a warp has all heads (of dQ), or all keys (of d_latent), and
// every WARPS-th unit of 16 columns.
//
// grid   (ceil(H / B_R), S)       block  (32 · WARPS)
// layout query, dQ [S, H, D_QK]  latent [T, D_QK]  dO [S, H, D_V], 16-bit; LSE [S, H], d_latent
//        [T, D_QK], fp32, d_latent zero at first; indices [S, k], as in sparse_mla.cu; contiguous,
//        aligned to 16 bytes; t = 0 … S − 1 counts queries, s = 0 … T − 1 latent rows
// shared 2 · B_R · (D_QK + D_V) + 4 · B_C · D_QK + 264 · B_R + 8 · B_C bytes, dynamic: Q, dO, two
//        tiles of the latent, P, dS, LSE and delta, which rows these tiles hold
// limits as of sparse_mla.cu
// options: -DD_QK=576 -DD_V=512 -DBF16=1 -DB_R=64 -DB_C=32 -DWARPS=8 | -DD_QK=576 -DD_V=512 -DBF16=0 -DB_R=32 -DB_C=32 -DWARPS=4 | -DD_QK=576 -DD_V=512 -DBF16=1 -DB_R=16 -DB_C=64 -DWARPS=4 | -DD_QK=192 -DD_V=128 -DBF16=0 -DB_R=64 -DB_C=32 -DWARPS=8 | -DD_QK=128 -DD_V=64 -DBF16=1 -DB_R=16 -DB_C=32 -DWARPS=2
// arch: sm_80
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 2; DeepSeek-V3.2 (2512.02556), §2.1
#include "latent_tile.cuh"

constexpr int UNIT = 16, UNITS = D_QK / UNIT;
constexpr int MINE = (UNITS + WARPS - 1) / WARPS;   // units of dQ that a warp has at most

struct GradientTiles {
    scalar_t Q[PANELS][B_R * D], dO[D_V / D][B_R * D];
    LatentTile latent[2];
    scalar_t P[B_R * D], dS[B_R * D];   // B_C of the D columns are in use
    float LSE[B_R], delta[B_R];
    int held[2][B_C];                   // which rows of the latent these are; −1: none
};

// The probability that belongs to a score; 0 where the key is none: of a query without keys LSE is
// −∞, and P would be ∞.
__device__ inline float probability(float score, float factor, float base, int held) {
    return held < 0 ? 0 : exp2_approx(score * factor - base);
}

// sum += rowsum(P ∘ dP) of the warp's 16 heads and KEYS keys, this lane's part of two rows.
__device__ inline void add_delta(float (&sum)[2], const GradientTiles& tile, const Scores& S,
                                 const Scores& dP, const int* held, float factor, int head) {
    const int lane = threadIdx.x % 32;
    for (int r = 0; r < 2; r++) {
        const float base = tile.LSE[head + 8 * r + lane / 4] * LOG2_E;
        for (int n = 0; n < KEYS / 8; n++)
            for (int e = 0; e < 2; e++)
                sum[r] += dP[n][2 * r + e] * probability(S[n][2 * r + e], factor, base,
                                                         held[8 * n + lane % 4 * 2 + e]);
    }
}

// P and dS of the warp's 16 heads and KEYS keys, to shared memory. Heads that do not exist have
// zeros in Q, dO and LSE: their P is 1, but dS is 0, and so is Pᵀ dO.
__device__ inline void write_scores(GradientTiles& tile, const Scores& S, const Scores& dP,
                                    const int* held, float factor, int head, int key) {
    const int lane = threadIdx.x % 32;
    for (int r = 0; r < 2; r++) {
        const int row = head + 8 * r + lane / 4;
        const float base = tile.LSE[row] * LOG2_E, delta = tile.delta[row];
        for (int n = 0; n < KEYS / 8; n++) {
            float p[2], ds[2];
            for (int e = 0; e < 2; e++) {
                p[e] = probability(S[n][2 * r + e], factor, base, held[8 * n + lane % 4 * 2 + e]);
                ds[e] = p[e] * (dP[n][2 * r + e] - delta);
            }
            const int pair = swizzled(row, key / 8 + n);
            reinterpret_cast<unsigned*>(tile.P + pair)[lane % 4] = pack(p[0], p[1]);
            reinterpret_cast<unsigned*>(tile.dS + pair)[lane % 4] = pack(ds[0], ds[1]);
        }
    }
}

// dQ += dS K, without the scale: all heads, the warp's units.
__device__ inline void accumulate_dQ(float (&dQ)[MINE][B_R / 16][2][4], const GradientTiles& tile,
                                     const LatentTile& latent) {
    #pragma unroll
    for (int key = 0; key < B_C; key += 16) {
        unsigned dS[B_R / 16][4];
        for (int m = 0; m < B_R / 16; m++) ldmatrix_x4(dS[m], at(by_rows(tile.dS), 16 * m, key));
        #pragma unroll
        for (int n = 0; n < MINE; n++) {
            const int unit = threadIdx.x / 32 + n * WARPS, column = unit * UNIT;
            if (unit < UNITS)
                multiply(dQ[n], dS, at(by_rows(latent[column / D]), key, column % D));
        }
    }
}

// sum += Aᵀ B over the block's heads; A [B_R, B_C] is P or dS, B [B_R, UNIT] begins at `column`.
__device__ inline void multiply_by_heads(float (&sum)[B_C / 16][2][4], const scalar_t* A,
                                         const scalar_t (*B)[B_R * D], int column) {
    #pragma unroll
    for (int head = 0; head < B_R; head += 16) {
        unsigned a[B_C / 16][4];   // transposed on the way
        for (int m = 0; m < B_C / 16; m++) ldmatrix_x4_trans(a[m], at(by_columns(A), head, 16 * m));
        multiply(sum, a, at(by_rows(B[column / D]), head, column % D));
    }
}

// d_latent += scale · dSᵀ Q + Pᵀ dO at the rows of a tile, the second in the first D_V columns.
__device__ inline void add_d_latent(float* d_latent, const GradientTiles& tile, const int* held,
                                    float scale) {
    const int lane = threadIdx.x % 32;
    #pragma unroll 1
    for (int unit = threadIdx.x / 32; unit < UNITS; unit += WARPS) {
        const int column = unit * UNIT;
        float sum[B_C / 16][2][4] = {};
        multiply_by_heads(sum, tile.dS, tile.Q, column);
        for (auto& keys : sum)
            for (auto& part : keys)
                for (float& x : part) x *= scale;
        if (column < D_V) multiply_by_heads(sum, tile.P, tile.dO, column);
        for (int m = 0; m < B_C / 16; m++)
            for (int r = 0; r < 2; r++) {
                const int s = held[16 * m + 8 * r + lane / 4];
                if (s < 0) continue;
                float* out = d_latent + (long long)s * D_QK + column + lane % 4 * 2;
                for (int n = 0; n < 2; n++)
                    add_pair(out + 8 * n, sum[m][n][2 * r], sum[m][n][2 * r + 1]);
            }
    }
}

__device__ inline void write_dQ(scalar_t* dQ_out, const float (&dQ)[MINE][B_R / 16][2][4],
                                int heads, float scale) {
    const int lane = threadIdx.x % 32;
    #pragma unroll
    for (int n = 0; n < MINE; n++) {
        const int unit = threadIdx.x / 32 + n * WARPS;
        if (unit >= UNITS) break;
        for (int m = 0; m < B_R / 16; m++)
            for (int r = 0; r < 2; r++) {
                const int head = 16 * m + 8 * r + lane / 4;
                if (head >= heads) continue;
                for (int half = 0; half < 2; half++) {
                    const float* x = &dQ[n][m][half][2 * r];
                    scalar_t* out = dQ_out + head * D_QK + unit * UNIT + 8 * half + lane % 4 * 2;
                    *reinterpret_cast<unsigned*>(out) = pack(scale * x[0], scale * x[1]);
                }
            }
    }
}

// Calls f(S, dP, latent tile, its rows) for each tile of the query's list, S and dP of the warp's
// 16 heads and KEYS keys.
template <class RowOf, class F>
__device__ inline void for_each_tile(GradientTiles& tile, const scalar_t* latent, int k, int head,
                                     int key, RowOf row_of, F f) {
    int rows[B_C / STEP];   // of the tile that is loaded next
    name_rows(rows, 0, row_of);
    __syncthreads();   // nobody still reads the tiles
    load_latent_async(tile.latent[0], tile.held[0], latent, rows);
    commit_copies();
    name_rows(rows, B_C, row_of);
    for (int j = 0, buffer = 0; j < k; j += B_C, buffer ^= 1) {
        wait_for_copies<0>();
        __syncthreads();   // this tile is there, and nobody still reads P, dS or the tile before
        if (j + B_C < k) {   // one tile ahead, and the names of its rows one more
            load_latent_async(tile.latent[buffer ^ 1], tile.held[buffer ^ 1], latent, rows);
            commit_copies();
            name_rows(rows, j + 2 * B_C, row_of);
        }
        Scores S, dP;
        // One panel at a time: dQ needs the registers.
        compute_scores<PANELS, 1>(S, tile.Q, tile.latent[buffer], head, key);
        compute_scores<D_V / D, 1>(dP, tile.dO, tile.latent[buffer], head, key);
        f(S, dP, tile.latent[buffer], tile.held[buffer]);
    }
    wait_for_copies<0>();   // where there is no tile
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
sparse_mla_backward(const scalar_t* query, const scalar_t* latent, const int* indices,
                    const scalar_t* dO, const float* LSE, scalar_t* dQ_out, float* d_latent,
                    int T, int H, int k, float scale) {
    extern __shared__ __align__(256) uint4 shared_memory[];
    GradientTiles& tile = *reinterpret_cast<GradientTiles*>(shared_memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int head = warp / KEY_WARPS * 16, key = warp % KEY_WARPS * KEYS;
    const int t = blockIdx.y, h = blockIdx.x * B_R, heads = H - h;
    const long long row = (long long)t * H + h;   // of the block's first head
    const int* selected = indices + (long long)t * k;
    const float factor = scale * LOG2_E;
    auto row_of = [=](int i) {
        const int s = i < k ? selected[i] : -1;
        return 0 <= s && s < T ? s : -1;
    };

    int head_rows[B_R / STEP];
    name_rows(head_rows, 0, [=](int r) { return r < heads ? r : -1; });
    copy_rows_async(tile.Q, query + row * D_QK, head_rows);
    copy_rows_async<D_V>(tile.dO, dO + row * D_V, head_rows);
    for (int r = threadIdx.x; r < B_R; r += THREADS) {
        tile.LSE[r] = r < heads ? LSE[row + r] : 0;
        tile.delta[r] = 0;
    }

    float sum[2] = {};
    for_each_tile(tile, latent, k, head, key, row_of,
                  [&](Scores& S, Scores& dP, const LatentTile&, const int* held) {
                      add_delta(sum, tile, S, dP, held + key, factor, head);
                  });
    for (int r = 0; r < 2; r++) {   // four lanes of each of KEY_WARPS warps share a row
        sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 1);
        sum[r] += __shfl_xor_sync(0xffffffff, sum[r], 2);
        if (lane % 4 == 0) atomicAdd(&tile.delta[head + 8 * r + lane / 4], sum[r]);
    }

    float dQ[MINE][B_R / 16][2][4] = {};
    for_each_tile(tile, latent, k, head, key, row_of,
                  [&](Scores& S, Scores& dP, const LatentTile& rows, const int* held) {
                      write_scores(tile, S, dP, held + key, factor, head, key);
                      __syncthreads();
                      accumulate_dQ(dQ, tile, rows);
                      add_d_latent(d_latent, tile, held, scale);
                  });
    write_dQ(dQ_out + row * D_QK, dQ, heads, scale);
}
