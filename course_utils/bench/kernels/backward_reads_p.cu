// backward_reads_p.cu — dK, dV and dQ by a backward pass that reads P, not computes it again.
//
// backward_dk_dv of chapter 03 without lines 10 and 11 of Algorithm 2, and without an exponential:
// what recomputing P costs is the difference of their times. P comes as the left factors that
// line 12 takes, so that a lane reads 16 bytes and neighbours lie side by side, 16 queries ahead of
// their use. Only for this comparison: no mask, one query head to a key head, full tiles.
//
// grid   (L_k / B_C, H, B), with B_C = WARPS · KEYS      block  (32 · WARPS)
// layout Q, dO [B, H, L_q, D]  K, V, dK, dV [B, H, L_k, D], 16-bit; delta [B, H, L_q],
//        dQ_sum [B, H, L_q, D], fp32, zero at first; P [B, H, L_q / 16, L_k / 16, 32 lanes, 8]
// shared 4·B_C·D + 8·B_R·D + 4·B_C·B_R + 16·B_R bytes, dynamic
// limits as of backward_dk_dv; L_q a multiple of B_R, L_k of B_C
// options: -DD=64 -DBF16=0 -DWARPS=4 -DKEYS=32 -DB_R=64 | -DD=128 -DBF16=0 -DWARPS=8 -DKEYS=16 -DB_R=64
// arch: sm_80
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 2
#include "gradient_tile.cuh"

// P of the warp's keys and 16 queries.
__device__ inline void load_Pt(LeftFactor& Pt, const uint4* P) {
    for (int m = 0; m < M; m++) {
        const uint4 bits = P[m * 32 + threadIdx.x % 32];
        Pt[m][0] = bits.x, Pt[m][1] = bits.y, Pt[m][2] = bits.z, Pt[m][3] = bits.w;
    }
}

// The inverse of as_left_factor.
__device__ inline void as_product(KeysByQueries& product, const LeftFactor& a) {
    each_of_lane<M, 2>([&](int m, int n, int e, int key, int query) {
        const unsigned pair = a[m][2 * n + e / 2];
        product[m][n][e] = float(reinterpret_cast<const scalar_t*>(&pair)[e % 2]);
    });
}

extern "C" __global__ void __launch_bounds__(THREADS)
backward_reads_p(const scalar_t* Q, const scalar_t* K, const scalar_t* V, const scalar_t* dO,
                 const uint4* P, const float* delta, float* dQ_sum, scalar_t* dK, scalar_t* dV,
                 int L_q, int L_k, float scale) {
    extern __shared__ __align__(256) uint4 shared_memory[];   // row_address takes that alignment
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    const int j0 = blockIdx.x * B_C, key_tiles = L_k / 16;
    const long long key_row = head * L_k + j0;
    Q += head * L_q * D, dO += head * L_q * D, dQ_sum += head * L_q * D, delta += head * L_q;
    P += (head * (L_q / 16) * key_tiles + (j0 + first_key()) / 16) * 32;
    auto start_copies = [&](int i0, int place) {   // `delta` fills the place of LSE
        load_queries_async(tile, place, Q, dO, delta, delta, i0, L_q - i0);
    };
    load_keys_async(tile, K + key_row * D, V + key_row * D, L_k - j0);
    start_copies(0, 0);
    wait_for_copies<0>();
    __syncthreads();
    KeyGradients keys;
    initialize(keys, tile);
    LeftFactor Pt, next;
    load_Pt(next, P);

    for (int i0 = 0; i0 < L_q; i0 += B_R) {
        wait_for_copies<0>();
        __syncthreads();   // as in backward_dk_dv
        const int place = i0 / B_R % 2;
        if (i0 + B_R < L_q) start_copies(i0 + B_R, place ^ 1);
        if (i0 > 0) add_dQ(dQ_sum + (long long)(i0 - B_R) * D, tile, place ^ 1, B_R);
        #pragma unroll 1
        for (int r = 0; r < B_R; r += 16) {
            for (int m = 0; m < M; m++)
                for (int e = 0; e < 4; e++) Pt[m][e] = next[m][e];
            const int ahead = min(i0 + r + 16, L_q - 16) / 16;
            load_Pt(next, P + (long long)ahead * key_tiles * 32);
            KeysByQueries exact, dPt;
            LeftFactor dSt;
            as_product(exact, Pt);
            compute_dPt(dPt, keys, tile.dO[place], r);                        // line 13
            compute_dSt(dSt, exact, dPt, tile.delta[place] + r);              // line 14
            store_dSt(tile.dSt[place], dSt, r);                               // line 15
            multiply(keys.dV, Pt, at(by_rows(tile.dO[place]), r, 0));         // line 12
            add_dK(keys, dSt, tile.Q[place], r);                              // line 16
        }
    }
    __syncthreads();
    add_dQ(dQ_sum + (long long)(L_q - B_R) * D, tile, (L_q / B_R - 1) % 2, B_R);
    write_gradients(keys, tile, dK + key_row * D, dV + key_row * D, scale, L_k - j0);
}
