// forward_fa1_order.cu — the first FlashAttention's loops: outer over key tiles j, inner over query
// tiles i. K_j and V_j are read once, but O, l and m go through global memory at every inner step;
// and one block serves a whole head, since the steps of a row depend on one another.
// Slower than forward_plain.cu on purpose: it is here so that the traffic of both can be counted.
//
// grid   (1, H, B)                     block  (B_R)
// layout Q, O [B, H, L_q, D]  K, V [B, H, L_k, D]  l, m [B, H, L_q], fp32, contiguous
// shared 4 · (2·B_R·(D+1) + 2·B_C·D + B_R·(B_C+1)) bytes, dynamic
// limits any B_R up to 1024, any B_C and D whose tiles fit shared memory
// options: -DD=32 -DB_R=64 -DB_C=32 | -DD=64 -DB_R=64 -DB_C=32 | -DD=128 -DB_R=64 -DB_C=32
// paper  FlashAttention (arXiv 2205.14135), Algorithm 1
#include "constants.cuh"

// One column of padding: the threads of a warp read one column of 32 rows, in 32 different banks.
struct Tiles { float Q[B_R][D + 1], O[B_R][D + 1], K[B_C][D], V[B_C][D], S[B_R][B_C + 1]; };

// Copies rows `first`, first + 1, ... of a [L, D] matrix to shared memory; zeros past its end.
template <int N, int PITCH>
__device__ void load_tile(float (&tile)[N][PITCH], const float* matrix, int first, int L) {
    for (int e = threadIdx.x; e < N * D; e += B_R)
        tile[e / D][e % D] = first + e / D < L ? matrix[(long long)first * D + e] : 0;
}

extern "C" __global__ void __launch_bounds__(B_R)
forward_fa1_order(const float* Q, const float* K, const float* V, float* O, float* l, float* m,
                  int L_q, int L_k, float scale, int is_causal) {
    extern __shared__ float shared_memory[];
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    Q += head * L_q * D, O += head * L_q * D, l += head * L_q, m += head * L_q;
    K += head * L_k * D, V += head * L_k * D;
    const int t = threadIdx.x, shift = L_k - L_q;   // causal: query i sees keys j <= i + shift

    // O = 0, l = 0, m = −∞ in global memory
    for (long long e = t; e < (long long)L_q * D; e += B_R) O[e] = 0;
    for (int i = t; i < L_q; i += B_R) l[i] = 0, m[i] = NEG_INF;

    for (int j0 = 0; j0 < L_k; j0 += B_C) {
        __syncthreads();   // every thread is done with the previous K and V
        load_tile(tile.K, K, j0, L_k);
        load_tile(tile.V, V, j0, L_k);

        // causal: the first query tile with a row that sees key j0
        const int first = is_causal ? max(j0 - shift, 0) / B_R * B_R : 0;
        for (int i0 = first; i0 < L_q; i0 += B_R) {
            const int i = i0 + t;
            __syncthreads();   // the previous O tile has been written back
            load_tile(tile.Q, Q, i0, L_q);
            load_tile(tile.O, O, i0, L_q);
            const float l_old = i < L_q ? l[i] : 0, m_old = i < L_q ? m[i] : NEG_INF;
            __syncthreads();

            // S = scale · Q Kᵀ, and the maximum so far
            float m_new = m_old;
            for (int c = 0; c < B_C; c++) {
                float s = 0;
                for (int d = 0; d < D; d++) s += tile.Q[t][d] * tile.K[c][d];
                const bool masked = j0 + c >= L_k || (is_causal && j0 + c > i + shift);
                s = masked ? NEG_INF : s * scale;
                tile.S[t][c] = s;
                m_new = fmaxf(m_new, s);
            }
            const float base = m_new == NEG_INF ? 0 : m_new;   // no key yet: never −∞ − (−∞) = NaN

            // P = exp(S − m), in place, and the new sum
            const float rescale = expf(m_old - base);
            float l_new = l_old * rescale;
            for (int c = 0; c < B_C; c++) {
                tile.S[t][c] = expf(tile.S[t][c] - base);
                l_new += tile.S[t][c];
            }
            // O = (O · l · rescale + P V) / l_new: O stays normalised between the steps
            for (int d = 0; d < D; d++) {
                float o = tile.O[t][d] * l_old * rescale;
                for (int c = 0; c < B_C; c++) o += tile.S[t][c] * tile.V[c][d];
                tile.O[t][d] = l_new > 0 ? o / l_new : 0;
            }
            if (i < L_q) l[i] = l_new, m[i] = m_new;
            __syncthreads();   // the O tile is complete
            for (int e = t; e < B_R * D; e += B_R)
                if (i0 + e / D < L_q) O[(long long)i0 * D + e] = tile.O[e / D][e % D];
        }
    }
}
