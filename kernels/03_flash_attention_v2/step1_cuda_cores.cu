// step1_cuda_cores.cu — FlashAttention forward for 16-bit floats, by fp32 arithmetic.
//
// Step 1 of the ladder, where it starts: forward.cu of chapter 02, with tiles of 16-bit numbers,
// each of which becomes fp32 when it is read from shared memory. Left out, for step 6: that tiles
// beyond the diagonal are skipped and only those at an edge masked. In the profiler: the FMA pipe
// and shared memory are busy, tensor cores idle.
//
// grid   (ceil(L_q / B_R), H, B)       block  (32 · WARPS)
// layout Q, O [B, H, L_q, D]  K, V [B, H/group, L_k, D], fp16 or bf16  LSE [B, H, L_q], fp32;
//        contiguous, aligned to 16 bytes; query head h reads key head h / group
// shared 2 · ((B_R+B_C)·(D+8) + B_C·D + B_R·(B_C+D/8)) bytes, dynamic
// limits scale > 0; D 64 or 128; B_C a multiple of D / 8, B_R of 16; B_R · D = 2048 · WARPS
// options: -DD=64 -DBF16=0 -DB_R=128 -DB_C=64 -DWARPS=4 | -DD=64 -DBF16=1 -DB_R=128 -DB_C=64 -DWARPS=4 | -DD=128 -DBF16=0 -DB_R=128 -DB_C=64 -DWARPS=8 | -DD=128 -DBF16=1 -DB_R=128 -DB_C=64 -DWARPS=8
// arch: sm_80
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 1
constexpr int TX = D / 8;   // threads that share a row
constexpr int ROWS = 8, TY = B_R / ROWS, THREADS = TX * TY;
constexpr int KEYS = B_C / TX, COLS = D / 4 / TX;   // a thread's columns of S; its float4s of O
#include "register_tile.cuh"
#include "tensor_core.cuh"   // for scalar_t and pack

static_assert(D == 64 || D == 128, "D must be 64 or 128");
static_assert(KEYS * TX == B_C, "B_C must be a multiple of D / 8");
static_assert(ROWS * TY == B_R && THREADS == 32 * WARPS, "B_R * D must be 2048 * WARPS");

// Padding shifts each row by a few banks, so that rows read together do not collide.
struct Tiles { scalar_t Q[B_R][D + 8], K[B_C][D + 8], V[B_C][D], P[B_R][B_C + TX]; };

// Four neighbours in shared memory, as fp32.
__device__ inline float4 as_float4(const scalar_t& x) {
    const uint2 bits = reinterpret_cast<const uint2&>(x);   // one read of 8 bytes
    const scalar_t* of = reinterpret_cast<const scalar_t*>(&bits);
    return make_float4(of[0], of[1], of[2], of[3]);
}

// Copies rows `first`, first + 1, ... of a [L, D] matrix to shared memory; zeros past its end.
template <int N, int PITCH>
__device__ void load_tile(scalar_t (&tile)[N][PITCH], const scalar_t* matrix, int first, int L) {
    for (int e = threadIdx.x * 8; e < N * D; e += THREADS * 8) {
        const uint4* source = reinterpret_cast<const uint4*>(matrix + (long long)first * D + e);
        reinterpret_cast<uint4&>(tile[e / D][e % D]) =
            first + e / D < L ? *source : make_uint4(0, 0, 0, 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
step1_cuda_cores(const scalar_t* Q, const scalar_t* K, const scalar_t* V, scalar_t* O,
                 float* LSE, int L_q, int L_k, int group, float scale, int is_causal) {
    extern __shared__ uint4 shared_memory[];
    Tiles& tile = *reinterpret_cast<Tiles*>(shared_memory);
    const long long head = (long long)blockIdx.z * gridDim.y + blockIdx.y;
    Q += head * L_q * D, O += head * L_q * D, LSE += head * L_q;
    K += head / group * L_k * D, V += head / group * L_k * D;
    const int i0 = blockIdx.x * B_R, shift = L_k - L_q;   // causal: i sees j <= i + shift
    const float factor = scale * LOG2_E;   // exp2 is what the hardware has

    float4 O_i[ROWS][COLS] = {};
    float l[ROWS] = {}, m[ROWS];
    for (int r = 0; r < ROWS; r++) m[r] = NEG_INF;
    load_tile(tile.Q, Q, i0, L_q);

    for (int j0 = 0; j0 < L_k; j0 += B_C) {
        __syncthreads();   // every thread is done with the previous K and V
        load_tile(tile.K, K, j0, L_k);
        load_tile(tile.V, V, j0, L_k);
        __syncthreads();

        // S = Q Kᵀ, not scaled yet: four columns of d at a time
        float S[ROWS][KEYS] = {};
        #pragma unroll 2
        for (int d = 0; d < D; d += 4) {
            float4 q[ROWS];
            for (int r = 0; r < ROWS; r++) q[r] = as_float4(tile.Q[row() + r * TY][d]);
            for (int c = 0; c < KEYS; c++) {
                const float4 k = as_float4(tile.K[column() + c * TX][d]);
                for (int r = 0; r < ROWS; r++) S[r][c] = add_dot(S[r][c], q[r], k);
            }
        }
        // mask
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < KEYS; c++) {
                const int i = i0 + row() + r * TY, j = j0 + column() + c * TX;
                if (j >= L_k || (is_causal && j > i + shift)) S[r][c] = NEG_INF;
            }
        // online softmax: raise the maximum m, rescale l and O to it, P = exp(scale · (S − m)): the
        // scale comes after the difference, where it rounds least
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
                tile.P[row() + r * TY][column() + c * TX] = scalar_t(p);
            }
        }
        __syncwarp();   // a row of P is written and read by one warp

        // O += P V: four keys at a time
        #pragma unroll 2
        for (int j = 0; j < B_C; j += 4) {
            float4 p[ROWS];
            for (int r = 0; r < ROWS; r++) p[r] = as_float4(tile.P[row() + r * TY][j]);
            for (int c = 0; c < COLS; c++) {
                const int x = 4 * (column() + c * TX);
                const float4 v[] = {as_float4(tile.V[j][x]), as_float4(tile.V[j + 1][x]),
                                    as_float4(tile.V[j + 2][x]), as_float4(tile.V[j + 3][x])};
                for (int r = 0; r < ROWS; r++) add_scaled(O_i[r][c], p[r].x, v[0]);
                for (int r = 0; r < ROWS; r++) add_scaled(O_i[r][c], p[r].y, v[1]);
                for (int r = 0; r < ROWS; r++) add_scaled(O_i[r][c], p[r].z, v[2]);
                for (int r = 0; r < ROWS; r++) add_scaled(O_i[r][c], p[r].w, v[3]);
            }
        }
    }
    // one division per row; a row that saw no key gives 0 and −∞
    for (int r = 0; r < ROWS; r++) {
        const int i = i0 + row() + r * TY;
        for (int x = TX; x > 1; x /= 2) l[r] += __shfl_xor_sync(0xffffffff, l[r], x);
        const float inverse = l[r] > 0 ? 1 / l[r] : 0;
        uint2* O_row = reinterpret_cast<uint2*>(O + (long long)i * D) + column();
        for (int c = 0; c < COLS && i < L_q; c++) {
            const float4 o = scaled(inverse, O_i[r][c]);
            O_row[c * TX] = make_uint2(pack(o.x, o.y), pack(o.z, o.w));
        }
        if (column() == 0 && i < L_q) LSE[i] = l[r] > 0 ? fmaf(m[r], scale, logf(l[r])) : NEG_INF;
    }
}
