// forward.cu — FlashAttention forward, fp32, fast: each thread keeps an 8 × KEYS piece of S and an
// 8 × COLS piece of O in registers, so that a float read from shared memory feeds eight
// multiply-adds. The algorithm is that of forward_plain.cu: the grid runs over query tiles.
//
// grid   (ceil(L_q / B_R), H, B)       block  (B_R / 8 * TX)
// layout Q, O [B, H, L_q, D]  K, V [B, H, L_k, D]  LSE [B, H, L_q], fp32, contiguous,
//        Q, K, V and O aligned to 16 bytes
// shared 4 · (B_R·(D+4) + B_C·(D+4) + B_C·D + B_R·(B_C+TX)) bytes, dynamic
// limits scale > 0; TX threads share a row: 4, 8 or 16; D a multiple of 4·TX, B_C of TX and 4,
//        B_R of 256/TX
// options: -DD=32 -DB_R=64 -DB_C=32 -DTX=4 | -DD=64 -DB_R=128 -DB_C=64 -DTX=8 | -DD=64 -DB_R=64 -DB_C=32 -DTX=8 | -DD=128 -DB_R=128 -DB_C=64 -DTX=16 | -DD=128 -DB_R=32 -DB_C=32 -DTX=16
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 1
constexpr int ROWS = 8, TY = B_R / ROWS, THREADS = TX * TY;
constexpr int KEYS = B_C / TX, COLS = D / TX;   // a thread's columns of S, of O
constexpr float LOG2_E = 1.44269504f;
#define NEG_INF __int_as_float(0xff800000)
static_assert(16 % TX == 0 && TX >= 4 && D / 4 % TX == 0, "TX must be 4, 8 or 16 and divide D/4");
static_assert(KEYS * TX == B_C && B_C % 4 == 0, "B_C must be a multiple of TX and of 4");
static_assert(ROWS * TY == B_R && THREADS % 32 == 0, "B_R must be a multiple of 256 / TX");

// Padding shifts each row by a few banks, so that rows read together do not collide.
struct Tiles { float Q[B_R][D + 4], K[B_C][D + 4], V[B_C][D], P[B_R][B_C + TX]; };

__device__ float4& as_float4(float& x) { return reinterpret_cast<float4&>(x); }

// Copies rows `first`, first + 1, ... of a [L, D] matrix to shared memory; zeros past its end.
template <int N, int PITCH>
__device__ void load_tile(float (&tile)[N][PITCH], const float* matrix, int first, int L) {
    for (int e = threadIdx.x * 4; e < N * D; e += THREADS * 4) {
        const float4* source = reinterpret_cast<const float4*>(matrix + (long long)first * D + e);
        as_float4(tile[e / D][e % D]) = first + e / D < L ? *source : make_float4(0, 0, 0, 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
forward(const float* Q, const float* K, const float* V, float* O, float* LSE,
        int L_q, int L_k, float scale, int is_causal) {
    extern __shared__ float4 shared_memory[];
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    Q += head * L_q * D, O += head * L_q * D, LSE += head * L_q;
    K += head * L_k * D, V += head * L_k * D;
    // Lanes alternate between two rows: 16-byte reads of Q and P, and of K and V, merge in pairs.
    const int tx = threadIdx.x / 2 % TX, ty = threadIdx.x % 2 + threadIdx.x / (2 * TX) * 2;
    const int i0 = blockIdx.x * B_R, shift = L_k - L_q;   // causal: i sees j <= i + shift
    const int keys_end = is_causal ? min(L_k, i0 + B_R + shift) : L_k;

    float O_i[ROWS][COLS] = {}, l[ROWS] = {}, m[ROWS];
    for (int r = 0; r < ROWS; r++) m[r] = NEG_INF;
    load_tile(tile.Q, Q, i0, L_q);

    for (int j0 = 0; j0 < keys_end; j0 += B_C) {
        __syncthreads();   // every thread is done with the previous K and V
        load_tile(tile.K, K, j0, L_k);
        load_tile(tile.V, V, j0, L_k);
        __syncthreads();

        // S = Q Kᵀ: four columns of d at a time
        float S[ROWS][KEYS] = {};
        #pragma unroll 2
        for (int d = 0; d < D; d += 4) {
            float4 q[ROWS];
            for (int r = 0; r < ROWS; r++) q[r] = as_float4(tile.Q[ty + r * TY][d]);
            for (int c = 0; c < KEYS; c++) {
                const float4 k = as_float4(tile.K[tx + c * TX][d]);
                for (int r = 0; r < ROWS; r++) {
                    S[r][c] = fmaf(q[r].x, k.x, S[r][c]), S[r][c] = fmaf(q[r].y, k.y, S[r][c]);
                    S[r][c] = fmaf(q[r].z, k.z, S[r][c]), S[r][c] = fmaf(q[r].w, k.w, S[r][c]);
                }
            }
        }
        // scale (to base 2: exp2 is what the hardware has) after S − m, where it rounds least;
        // mask at the diagonal and the end
        const float factor = scale * LOG2_E;
        const bool crosses = j0 + B_C > L_k || (is_causal && j0 + B_C - 1 > i0 + shift);
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < KEYS; c++) {
                const int i = i0 + ty + r * TY, j = j0 + tx + c * TX;
                if (crosses && (j >= L_k || (is_causal && j > i + shift))) S[r][c] = NEG_INF;
            }
        // online softmax: raise the maximum m, rescale l and O to it, P = exp(scale · (S − m))
        for (int r = 0; r < ROWS; r++) {
            float m_new = m[r];
            for (int c = 0; c < KEYS; c++) m_new = fmaxf(m_new, S[r][c]);
            for (int x = TX; x > 1; x /= 2)
                m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffff, m_new, x));
            const float base = m_new == NEG_INF ? 0 : m_new;   // no key yet: never −∞ − (−∞)
            const float rescale = exp2f((m[r] - base) * factor);
            m[r] = m_new, l[r] *= rescale;
            for (int c = 0; c < COLS; c++) O_i[r][c] *= rescale;
            for (int c = 0; c < KEYS; c++) {
                const float p = exp2f((S[r][c] - base) * factor);
                l[r] += p;   // this thread's keys; the row's threads add up once, at the end
                tile.P[ty + r * TY][tx + c * TX] = p;
            }
        }
        __syncwarp();   // a row of P is written and read by one warp

        // O += P V: four keys at a time
        #pragma unroll 2
        for (int j = 0; j < B_C; j += 4) {
            float4 p[ROWS];
            for (int r = 0; r < ROWS; r++) p[r] = as_float4(tile.P[ty + r * TY][j]);
            for (int jj = 0; jj < 4; jj++)
                for (int c = 0; c < COLS; c += 4) {
                    const float4 v = as_float4(tile.V[j + jj][4 * tx + c * TX]);
                    for (int r = 0; r < ROWS; r++) {
                        const float p_j = (&p[r].x)[jj];
                        float* o = &O_i[r][c];
                        o[0] = fmaf(p_j, v.x, o[0]), o[1] = fmaf(p_j, v.y, o[1]);
                        o[2] = fmaf(p_j, v.z, o[2]), o[3] = fmaf(p_j, v.w, o[3]);
                    }
                }
        }
    }
    // one division per row; a row that saw no key gives 0 and −∞
    for (int r = 0; r < ROWS; r++) {
        const int i = i0 + ty + r * TY;
        for (int x = TX; x > 1; x /= 2) l[r] += __shfl_xor_sync(0xffffffff, l[r], x);
        const float inverse = l[r] > 0 ? 1 / l[r] : 0;
        for (int c = 0; c < COLS; c++) O_i[r][c] *= inverse;
        float4* row = reinterpret_cast<float4*>(O + (long long)i * D) + tx;
        for (int c = 0; c < COLS && i < L_q; c += 4) row[c * TX / 4] = as_float4(O_i[r][c]);
        if (tx == 0 && i < L_q) LSE[i] = l[r] > 0 ? fmaf(m[r], scale, logf(l[r])) : NEG_INF;
    }
}
