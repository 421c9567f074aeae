// step1_cuda_cores.cu — FlashAttention-2 forward for 16-bit floats, by fp32 arithmetic.
//
// Step 1 of the ladder, the baseline: the algorithm without tensor cores. A block keeps B_R queries
// and walks over tiles of B_C keys; S never reaches global memory. A thread makes an 8 × 4 piece of
// S at a time, so that a number from shared memory feeds 4 or 8 multiply-adds; before, each is
// converted to fp32. In the profiler: the FMA pipe and shared memory are busy, tensor cores idle.
//
// grid   (ceil(L_q / B_R), H, B)       block  (32 · WARPS)
// layout Q, O [B, H, L_q, D]  K, V [B, H/group, L_k, D], fp16 or bf16  LSE [B, H, L_q], fp32;
//        contiguous, aligned to 16 bytes; query head h reads key head h / group
// shared 2 · D·(B_R + 2·B_C) + 4 · B_R·(B_C+9) bytes, dynamic
// limits scale > 0; D 64 or 128; B_C a multiple of 16, B_R <= B_C <= D
// options: -DD=64 -DBF16=0 -DB_R=64 -DB_C=64 -DWARPS=4 | -DD=64 -DBF16=1 -DB_R=64 -DB_C=64 -DWARPS=4 | -DD=128 -DBF16=0 -DB_R=64 -DB_C=64 -DWARPS=4 | -DD=128 -DBF16=1 -DB_R=64 -DB_C=64 -DWARPS=4
// arch: sm_80
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 1
constexpr int THREADS = 32 * WARPS;
#include "tensor_core.cuh"
constexpr int S_PITCH = B_C + 8;                   // floats from one row of S to the next
constexpr int SHARE = THREADS / B_R;               // threads that share a row of S in the softmax
constexpr int TX = 16, TY = THREADS / TX;          // a thread has B_R/TY rows, B_C/TX keys of S
constexpr int TX_O = D / 8, TY_O = THREADS / TX_O; // and B_R/TY_O rows, 8 columns of O
#define NEG_INF __int_as_float(0xff800000)
static_assert(B_R <= B_C && B_C <= D, "B_R <= B_C <= D must hold: P lies in K's tile");
static_assert(SHARE * B_R == THREADS && B_C % (2 * SHARE) == 0, "B_R must divide 32 * WARPS");
static_assert(B_C % TX == 0 && B_R % TY == 0, "B_C must be a multiple of 16, B_R of 2 * WARPS");
static_assert((D == 64 || D == 128) && B_R % TY_O == 0, "D must be 64 or 128");

struct alignas(16) Chunk { scalar_t x[8]; };       // what one instruction reads

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

__device__ inline Chunk chunk_of(const scalar_t* tile, int row, int chunk) {
    const uint4 bits = *reinterpret_cast<const uint4*>(tile + place(row, chunk));
    return reinterpret_cast<const Chunk&>(bits);
}

// S = Q Kᵀ, to shared memory
__device__ void compute_scores(float* S, const scalar_t* Q, const scalar_t* K) {
    // Lanes alternate between two rows, so that eight of them read four rows of K, not eight.
    const int tx = threadIdx.x / 2 % TX, ty = threadIdx.x % 2 + threadIdx.x / (2 * TX) * 2;
    float s[B_R / TY][B_C / TX] = {};
    #pragma unroll 1
    for (int chunk = 0; chunk < D / 8; chunk++) {
        Chunk q[B_R / TY];
        for (int r = 0; r < B_R / TY; r++) q[r] = chunk_of(Q, ty + r * TY, chunk);
        for (int c = 0; c < B_C / TX; c++) {
            const Chunk k = chunk_of(K, tx + c * TX, chunk);
            for (int r = 0; r < B_R / TY; r++)
                for (int d = 0; d < 8; d++)
                    s[r][c] = fmaf(float(q[r].x[d]), float(k.x[d]), s[r][c]);
        }
    }
    for (int r = 0; r < B_R / TY; r++)
        for (int c = 0; c < B_C / TX; c++) S[(ty + r * TY) * S_PITCH + tx + c * TX] = s[r][c];
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
__device__ void accumulate(float (&O)[B_R / TY_O][8], const float* rescale, const scalar_t* P,
                           const scalar_t* V) {
    const int tx = threadIdx.x % TX_O, ty = threadIdx.x / TX_O;
    for (int r = 0; r < B_R / TY_O; r++)
        for (int c = 0; c < 8; c++) O[r][c] *= rescale[ty + r * TY_O];
    #pragma unroll 1
    for (int chunk = 0; chunk < B_C / 8; chunk++) {
        Chunk p[B_R / TY_O];
        for (int r = 0; r < B_R / TY_O; r++) p[r] = chunk_of(P, ty + r * TY_O, chunk);
        for (int j = 0; j < 8; j++) {
            const Chunk v = chunk_of(V, 8 * chunk + j, tx);
            for (int r = 0; r < B_R / TY_O; r++)
                for (int c = 0; c < 8; c++)
                    O[r][c] = fmaf(float(p[r].x[j]), float(v.x[c]), O[r][c]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
step1_cuda_cores(const scalar_t* Q, const scalar_t* K, const scalar_t* V, scalar_t* O,
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

    float O_i[B_R / TY_O][8] = {}, m = NEG_INF, l = 0;
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
    const int tx = threadIdx.x % TX_O, ty = threadIdx.x / TX_O;
    for (int r = 0; r < B_R / TY_O; r++) {
        const int i = i0 + ty + r * TY_O;
        const float inverse = rescale[i - i0];
        for (int c = 0; c < 8 && i < L_q; c += 2)
            *reinterpret_cast<unsigned*>(O + i * (long long)D + 8 * tx + c) =
                pack(O_i[r][c] * inverse, O_i[r][c + 1] * inverse);
    }
}
