// step2_tensor_cores.cu — FlashAttention-2 forward with both products on tensor cores.
//
// Step 2 of the ladder. mma.sync multiplies 16 × 16 by 16 × 8 numbers in one instruction of a warp,
// and ldmatrix brings its operands from shared memory; tensor cores do over ten times the work of
// the CUDA cores. A warp computes 32 rows of S and O, which it shares with another warp, so S and P
// still pass through shared memory. In the profiler: the tensor pipe works, but waits for shared
// memory: rows of a tile begin in the same bank, and each ldmatrix takes eight turns for one.
//
// grid   (ceil(L_q / B_R), H, B)       block  (32 · WARPS)
// layout Q, O [B, H, L_q, D]  K, V [B, H/group, L_k, D], fp16 or bf16  LSE [B, H, L_q], fp32;
//        contiguous, aligned to 16 bytes; query head h reads key head h / group
// shared 2 · D·(B_R + 2·B_C) + 4 · B_R·(B_C+9) bytes, dynamic
// limits scale > 0; D 64 or 128; B_R and B_C multiples of 32, B_R <= B_C <= D
// options: -DD=64 -DBF16=0 -DB_R=64 -DB_C=64 -DWARPS=4 | -DD=64 -DBF16=1 -DB_R=64 -DB_C=64 -DWARPS=4 | -DD=128 -DBF16=0 -DB_R=64 -DB_C=64 -DWARPS=4 | -DD=128 -DBF16=1 -DB_R=64 -DB_C=64 -DWARPS=4
// arch: sm_80
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 1
constexpr int THREADS = 32 * WARPS;
#include "tensor_core.cuh"
constexpr int S_PITCH = B_C + 8;                   // floats from one row of S to the next
constexpr int SHARE = THREADS / B_R;               // threads that share a row of S in the softmax
constexpr int ACROSS = SHARE;                        // warps that share 32 rows of S and O
constexpr int N = B_C / 8 / ACROSS, C = D / 8 / ACROSS;   // a warp's products of 8 columns
#define NEG_INF __int_as_float(0xff800000)
static_assert(B_R % 32 == 0 && THREADS % B_R == 0, "B_R must be a multiple of 32, divide THREADS");
static_assert(B_C % (16 * SHARE) + D % (16 * SHARE) == 0, "16 * THREADS / B_R must divide B_C, D");
static_assert(B_R <= B_C && B_C <= D, "B_R <= B_C <= D must hold: P lies in K's tile");

// Index of the first element of a chunk: row after row.
__device__ inline int place(int row, int chunk) { return row * D + chunk * 8; }

// Copies ROWS rows of a matrix to shared memory; zeros from row `rows_left` on.
template <int ROWS>
__device__ void load_tile(scalar_t* tile, const scalar_t* matrix, int rows_left) {
    #pragma unroll
    for (int e = threadIdx.x; e < ROWS * D / 8; e += THREADS) {
        const int row = e / (D / 8), chunk = e % (D / 8);
        *reinterpret_cast<uint4*>(tile + place(row, chunk)) =
            row < rows_left ? reinterpret_cast<const uint4*>(matrix)[e] : make_uint4(0, 0, 0, 0);
    }
}

// The same as a shared-memory address, for ldmatrix.
__device__ inline unsigned address(const scalar_t* tile, int row, int chunk) {
    return (unsigned)__cvta_generic_to_shared(tile + place(row, chunk));
}

// S = Q Kᵀ, to shared memory
__device__ void compute_scores(float* S, const scalar_t* Q, const scalar_t* K) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp / ACROSS * 32, column = warp % ACROSS * 8 * N;
    float s[2][N][4] = {};
    for (int d = 0; d < D / 16; d++) {
        unsigned q[2][4];
        for (int m = 0; m < 2; m++)
            ldmatrix_x4(q[m], address(Q, row + 16 * m + lane % 16, 2 * d + lane / 16));
        for (int n = 0; n < N; n += 2) {
            unsigned k[4];   // rows of K are columns of Kᵀ: 16 keys
            const int key = column + 8 * n + lane % 8 + lane / 16 * 8;
            ldmatrix_x4(k, address(K, key, 2 * d + lane / 8 % 2));
            for (int m = 0; m < 2; m++) {
                mma_16x8x16(s[m][n], q[m], k[0], k[1]);
                mma_16x8x16(s[m][n + 1], q[m], k[2], k[3]);
            }
        }
    }
    S += (row + lane / 4) * S_PITCH + column + lane % 4 * 2;
    for (int m = 0; m < 2; m++)
        for (int n = 0; n < N; n++)
            for (int r = 0; r < 2; r++)
                *reinterpret_cast<float2*>(S + (16 * m + 8 * r) * S_PITCH + 8 * n) =
                    make_float2(s[m][n][2 * r], s[m][n][2 * r + 1]);
}

// Online softmax of one row, SHARE threads together: raises the maximum m and rescales l to it,
// P = exp(scale · S − m); the factor for O goes to `rescale`. Keys from `visible` on are masked.
__device__ void softmax(const float* S, scalar_t* P, float* rescale, float& m, float& l,
                        float scale, int visible) {
    const int row = threadIdx.x / SHARE, first = threadIdx.x % SHARE * 2;
    float s[B_C / SHARE], m_new = m;
    #pragma unroll
    for (int n = 0; n < B_C / SHARE; n += 2) {
        const int j = first + n * SHARE;
        const float2 pair = *reinterpret_cast<const float2*>(S + row * S_PITCH + j);
        s[n] = j < visible ? pair.x * scale : NEG_INF;
        s[n + 1] = j + 1 < visible ? pair.y * scale : NEG_INF;
        m_new = fmaxf(m_new, fmaxf(s[n], s[n + 1]));
    }
    for (int x = 1; x < SHARE; x *= 2) m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffff, m_new, x));
    const float base = m_new == NEG_INF ? 0 : m_new;   // no key yet: never −∞ − (−∞)
    const float factor = expf(m - base);
    if (first == 0) rescale[row] = factor;
    m = m_new, l *= factor;
    #pragma unroll
    for (int n = 0; n < B_C / SHARE; n += 2) {
        const int j = first + n * SHARE;
        const float p0 = expf(s[n] - base), p1 = expf(s[n + 1] - base);
        l += p0 + p1;   // this thread's keys; the row's threads add up once, at the end
        *reinterpret_cast<unsigned*>(P + place(row, j / 8) + j % 8) = pack(p0, p1);
    }
}

// O = rescale · O + P V
__device__ void accumulate(float (&O)[2][C][4], const float* rescale, const scalar_t* P,
                           const scalar_t* V) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp / ACROSS * 32, chunk = warp % ACROSS * C;
    for (int m = 0; m < 2; m++)
        for (int c = 0; c < C; c++)
            for (int e = 0; e < 4; e++) O[m][c][e] *= rescale[row + 16 * m + e / 2 * 8 + lane / 4];
    for (int j = 0; j < B_C / 16; j++) {
        unsigned p[2][4];
        for (int m = 0; m < 2; m++)
            ldmatrix_x4(p[m], address(P, row + 16 * m + lane % 16, 2 * j + lane / 16));
        for (int c = 0; c < C; c += 2) {
            unsigned v[4];   // columns of V: 16 keys, transposed on the way
            ldmatrix_x4_trans(v, address(V, 16 * j + lane % 16, chunk + c + lane / 16));
            for (int m = 0; m < 2; m++) {
                mma_16x8x16(O[m][c], p[m], v[0], v[1]);
                mma_16x8x16(O[m][c + 1], p[m], v[2], v[3]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
step2_tensor_cores(const scalar_t* Q, const scalar_t* K, const scalar_t* V, scalar_t* O,
                   float* LSE, int L_q, int L_k, int group, float scale, int is_causal) {
    extern __shared__ uint4 shared_memory[];
    scalar_t* Q_tile = reinterpret_cast<scalar_t*>(shared_memory);
    scalar_t* K_tile = Q_tile + B_R * D;
    scalar_t* V_tile = K_tile + B_C * D;
    float* S_tile = reinterpret_cast<float*>(V_tile + B_C * D);
    float* rescale = S_tile + B_R * S_PITCH;   // [B_R]
    scalar_t* P_tile = K_tile;                 // once S is there, K has served

    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    Q += head * L_q * D, O += head * L_q * D, LSE += head * L_q;
    K += head / group * L_k * D, V += head / group * L_k * D;
    const int i0 = blockIdx.x * B_R, row = threadIdx.x / SHARE;
    // A query sees the keys j < visible: with a causal mask j <= i + L_k − L_q.
    const int visible = is_causal ? min(L_k, i0 + row + L_k - L_q + 1) : L_k;

    float O_i[2][C][4] = {}, m = NEG_INF, l = 0;
    load_tile<B_R>(Q_tile, Q + (long long)i0 * D, L_q - i0);
    for (int j0 = 0; j0 < L_k; j0 += B_C) {
        __syncthreads();   // all are done with the previous P and V
        load_tile<B_C>(K_tile, K + (long long)j0 * D, L_k - j0);
        load_tile<B_C>(V_tile, V + (long long)j0 * D, L_k - j0);
        __syncthreads();   // the tiles are there
        compute_scores(S_tile, Q_tile, K_tile);
        __syncthreads();   // S is there
        softmax(S_tile, P_tile, rescale, m, l, scale, visible - j0);
        __syncthreads();   // P is there
        accumulate(O_i, rescale, P_tile, V_tile);
    }

    // one division per row; a row that saw no key gives 0 and −∞
    for (int x = 1; x < SHARE; x *= 2) l += __shfl_xor_sync(0xffffffff, l, x);
    __syncthreads();   // all are done with `rescale`
    if (threadIdx.x % SHARE == 0) {
        rescale[row] = l > 0 ? 1 / l : 0;
        if (i0 + row < L_q) LSE[i0 + row] = l > 0 ? m + logf(l) : NEG_INF;
    }
    __syncthreads();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int column = (warp % ACROSS * C) * 8 + lane % 4 * 2;
    for (int m = 0; m < 2; m++)
        for (int r = 0; r < 2; r++) {
            const int i = i0 + warp / ACROSS * 32 + 16 * m + 8 * r + lane / 4;
            const float inverse = rescale[i - i0];
            for (int c = 0; c < C && i < L_q; c++)
                *reinterpret_cast<unsigned*>(O + i * (long long)D + column + 8 * c) =
                    pack(O_i[m][c][2 * r] * inverse, O_i[m][c][2 * r + 1] * inverse);
        }
}
