// forward_plain.cu — FlashAttention forward at its plainest: one thread per query row, tiles of Q,
// K, V and S in shared memory, the output row O_i in registers. S never reaches global memory.
// The loops are FlashAttention-2's: the grid runs over query tiles i, each block over key tiles j.
//
// grid   (ceil(L_q / B_R), H, B)       block  (B_R)
// layout Q, O [B, H, L_q, D]  K, V [B, H, L_k, D]  LSE [B, H, L_q], fp32, contiguous
// shared 4 · (B_R·(D+1) + 2·B_C·D + B_R·(B_C+1)) bytes, dynamic
// limits any B_R up to 1024, any B_C and D whose tiles fit shared memory and whose O_i fits registers
// options: -DD=32 -DB_R=64 -DB_C=32 | -DD=64 -DB_R=64 -DB_C=32 | -DD=128 -DB_R=64 -DB_C=32
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 1
#include "constants.cuh"

// One column of padding: the threads of a warp read one column of 32 rows, in 32 different banks.
struct Tiles { float Q[B_R][D + 1], K[B_C][D], V[B_C][D], S[B_R][B_C + 1]; };

// Copies rows `first`, first + 1, ... of a [L, D] matrix to shared memory; zeros past its end.
template <int N, int PITCH>
__device__ void load_tile(float (&tile)[N][PITCH], const float* matrix, int first, int L) {
    for (int e = threadIdx.x; e < N * D; e += B_R)
        tile[e / D][e % D] = first + e / D < L ? matrix[(long long)first * D + e] : 0;
}

extern "C" __global__ void __launch_bounds__(B_R)
forward_plain(const float* Q, const float* K, const float* V, float* O, float* LSE,
              int L_q, int L_k, float scale, int is_causal) {
    extern __shared__ float shared_memory[];
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    Q += head * L_q * D, O += head * L_q * D, LSE += head * L_q;
    K += head * L_k * D, V += head * L_k * D;
    const int t = threadIdx.x, i0 = blockIdx.x * B_R, i = i0 + t;   // this thread's query: row i
    const int shift = L_k - L_q;                                    // causal: i sees j <= i + shift
    const int keys_end = is_causal ? min(L_k, i0 + B_R + shift) : L_k;

    load_tile(tile.Q, Q, i0, L_q);
    float O_i[D] = {}, l = 0, m = NEG_INF;

    for (int j0 = 0; j0 < keys_end; j0 += B_C) {
        __syncthreads();   // every thread is done with the previous K and V
        load_tile(tile.K, K, j0, L_k);
        load_tile(tile.V, V, j0, L_k);
        __syncthreads();

        // S = scale · Q Kᵀ, and the maximum so far
        float m_new = m;
        for (int c = 0; c < B_C; c++) {
            float s = 0;
            for (int d = 0; d < D; d++) s += tile.Q[t][d] * tile.K[c][d];
            const bool masked = j0 + c >= L_k || (is_causal && j0 + c > i + shift);
            s = masked ? NEG_INF : s * scale;
            tile.S[t][c] = s;
            m_new = fmaxf(m_new, s);
        }
        const float base = m_new == NEG_INF ? 0 : m_new;   // no key yet: never −∞ − (−∞) = NaN

        // what was summed relative to the old maximum is rescaled to the new one
        const float rescale = expf(m - base);
        m = m_new;
        l *= rescale;
        for (int d = 0; d < D; d++) O_i[d] *= rescale;

        // P = exp(S − m), l += Σ P, O += P V
        for (int c = 0; c < B_C; c++) {
            const float p = expf(tile.S[t][c] - base);
            l += p;
            for (int d = 0; d < D; d++) O_i[d] += p * tile.V[c][d];
        }
    }
    // one division per row; a row that saw no key gives 0 and −∞
    if (i < L_q) {
        for (int d = 0; d < D; d++) O[(long long)i * D + d] = l > 0 ? O_i[d] / l : 0;
        LSE[i] = l > 0 ? m + logf(l) : NEG_INF;
    }
}
