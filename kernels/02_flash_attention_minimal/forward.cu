// forward.cu — FlashAttention forward, fp32, fast: each thread keeps an 8 × KEYS piece of S and an
// 8 × 4·COLS piece of O in registers, so that a float of K or V, once read, feeds eight
// multiply-adds. The algorithm is that of forward_plain.cu: the grid runs over query tiles.
//
// grid   (ceil(L_q / B_R), H, B)       block  (B_R / 8 * TX)
// layout Q, O [B, H, L_q, D]  K, V [B, H, L_k, D]  LSE [B, H, L_q], fp32, contiguous,
//        Q, K, V and O aligned to 16 bytes
// shared 4 · (B_R·(D+4) + B_C·(D+4) + B_C·D + B_R·(B_C+TX)) bytes, dynamic
// limits scale > 0; TX threads share a row: 4, 8 or 16; D a multiple of 4·TX, B_C of TX and 4,
//        B_R of 256/TX
// options: -DD=32 -DB_R=64 -DB_C=32 -DTX=4 | -DD=64 -DB_R=128 -DB_C=64 -DTX=8 | -DD=64 -DB_R=64 -DB_C=32 -DTX=8 | -DD=128 -DB_R=128 -DB_C=64 -DTX=16 | -DD=128 -DB_R=32 -DB_C=32 -DTX=16
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 1: "line" is a line of it
// A thread has ROWS rows of a tile, and in each KEYS columns of S and COLS float4s of O.
constexpr int ROWS = 8, TY = B_R / ROWS, THREADS = TX * TY, KEYS = B_C / TX, COLS = D / 4 / TX;
#include "register_tile.cuh"

static_assert(16 % TX == 0 && TX >= 4 && D / 4 % TX == 0, "TX must be 4, 8 or 16 and divide D/4");
static_assert(KEYS * TX == B_C && B_C % 4 == 0, "B_C must be a multiple of TX and of 4");
static_assert(ROWS * TY == B_R && THREADS % 32 == 0, "B_R must be a multiple of 256 / TX");

// In Q and K one more float4 shifts a row by four banks: rows read together do not collide.
struct Tiles { float4 Q[B_R][D/4 + 1], K[B_C][D/4 + 1], V[B_C][D/4]; float P[B_R][B_C + TX]; };

extern "C" __global__ void __launch_bounds__(THREADS)
forward(const float4* Q, const float4* K, const float4* V, float4* O, float* LSE,
        int L_q, int L_k, float scale, int is_causal) {
    extern __shared__ float4 shared_memory[];
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    Q += head * L_q * D / 4, O += head * L_q * D / 4, LSE += head * L_q;
    K += head * L_k * D / 4, V += head * L_k * D / 4;
    const int i0 = blockIdx.x * B_R, shift = L_k - L_q;   // causal: i sees j <= i + shift
    const int keys_end = is_causal ? min(L_k, i0 + B_R + shift) : L_k;
    const float factor = scale * LOG2_E;   // exp2 is what the hardware has

    float4 O_i[ROWS][COLS] = {};                   // line 5
    float l[ROWS] = {}, m[ROWS];
    for (int r = 0; r < ROWS; r++) m[r] = NEG_INF;
    load_tile(tile.Q, Q, i0, L_q);                 // line 4

    for (int j0 = 0; j0 < keys_end; j0 += B_C) {   // line 6, up to the last key that is seen
        __syncthreads();   // every thread is done with the previous K and V
        load_tile(tile.K, K, j0, L_k), load_tile(tile.V, V, j0, L_k);   // line 7
        __syncthreads();
        float S[ROWS][KEYS] = {};
        multiply_transposed(S, tile.Q, tile.K);    // line 8, not scaled yet
        const bool crosses = j0 + B_C > L_k || (is_causal && j0 + B_C - 1 > i0 + shift);
        for (int r = 0, i = i0 + row(); r < ROWS; r++, i += TY)   // mask, at the diagonal and end
            for (int c = 0, j = j0 + column(); c < KEYS; c++, j += TX)
                if (crosses && (j >= L_k || (is_causal && j > i + shift))) S[r][c] = NEG_INF;
        // line 9, and of line 10 the rescaling: raise the maximum m, rescale l and O to it,
        // P = exp(scale · (S − m)): the scale comes after the difference, where it rounds least
        for (int r = 0; r < ROWS; r++) {
            float m_new = m[r];
            for (int c = 0; c < KEYS; c++) m_new = fmaxf(m_new, S[r][c]);
            for (int x = TX; x > 1; x /= 2)
                m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffff, m_new, x));
            const float base = m_new == NEG_INF ? 0 : m_new;   // no key yet: never −∞ − (−∞)
            const float rescale = exp2f((m[r] - base) * factor);
            m[r] = m_new, l[r] *= rescale;
            for (int c = 0; c < COLS; c++) O_i[r][c] = scaled(rescale, O_i[r][c]);
            for (int c = 0; c < KEYS; c++) {
                const float p = exp2f((S[r][c] - base) * factor);
                l[r] += p;   // this thread's keys; the row's threads add up once, at the end
                tile.P[row() + r * TY][column() + c * TX] = p;
            }
        }
        __syncwarp();   // a row of P is written and read by one warp
        multiply(O_i, tile.P, tile.V);   // line 10: O += P V
    }
    // lines 12 to 15: one division per row; a row that saw no key gives 0 and −∞
    for (int r = 0, i = i0 + row(); r < ROWS; r++, i += TY) {
        for (int x = TX; x > 1; x /= 2) l[r] += __shfl_xor_sync(0xffffffff, l[r], x);
        const float inverse = l[r] > 0 ? 1 / l[r] : 0;
        float4* O_row = O + (long long)i * (D / 4) + column();
        for (int c = 0; c < COLS && i < L_q; c++) O_row[c * TX] = scaled(inverse, O_i[r][c]);
        if (column() == 0 && i < L_q) LSE[i] = l[r] > 0 ? fmaf(m[r], scale, logf(l[r])) : NEG_INF;
    }
}
