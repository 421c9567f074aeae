// flash_half.cu — tiled attention in fp16 with dynamic shared memory: a warp works on eight queries, lane j owns key j of
// the tile, and the warp reduces and hands round by shuffles. For the emulator's speed this is the hard case: 42 warp
// collectives per query and tile, each a point where 32 threads meet.
//
// grid   (ceil(L / 32), B·H)           block  (128)
// layout Q, K, V [B·H, L, 64] fp16, O [B·H, L, 64] fp32, contiguous
// shared 2 · 96 · 66 bytes, dynamic
#define NEG_INF __int_as_float(0xff800000)
#include <cuda_fp16.h>
constexpr int D = 64, B_C = 32, ROWS = 8, WARPS = 4, PITCH = D + 2, THREADS = 32 * WARPS;

// Copies rows `first`, first + 1, ... of a [L, D] matrix to shared memory; zeros past its end.
__device__ void load_tile(half* tile, const half* matrix, int rows, int first, int L) {
    for (int e = threadIdx.x; e < rows * D; e += THREADS) {
        const int r = e / D, c = e % D;
        tile[r * PITCH + c] = first + r < L ? matrix[(long long)(first + r) * D + c] : __float2half(0.0f);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
flash_half(const half* __restrict__ Q, const half* __restrict__ K, const half* __restrict__ V, float* __restrict__ O,
           int L, float scale) {
    extern __shared__ __align__(16) half shared_memory[];
    half* K_tile = shared_memory;               // [B_C][PITCH]
    half* V_tile = K_tile + B_C * PITCH;        // [B_C][PITCH]
    half* Q_tile = V_tile + B_C * PITCH;        // [WARPS * ROWS][PITCH]
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, i0 = blockIdx.x * WARPS * ROWS;
    const long long head = (long long)blockIdx.y * L * D;
    Q += head, K += head, V += head, O += head;
    load_tile(Q_tile, Q, WARPS * ROWS, i0, L);

    float m[ROWS], l[ROWS], o[ROWS][2];   // lane c owns columns 2c and 2c + 1 of O
    #pragma unroll
    for (int r = 0; r < ROWS; r++) m[r] = NEG_INF, l[r] = o[r][0] = o[r][1] = 0;

    for (int j0 = 0; j0 < L; j0 += B_C) {
        __syncthreads();   // every thread is done with the previous K and V
        load_tile(K_tile, K, B_C, j0, L);
        load_tile(V_tile, V, B_C, j0, L);
        __syncthreads();
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const half2* q = reinterpret_cast<const half2*>(Q_tile + (warp * ROWS + r) * PITCH);
            const half2* k = reinterpret_cast<const half2*>(K_tile + lane * PITCH);
            float s = 0;
            #pragma unroll 8
            for (int d = 0; d < D / 2; d++) {
                const float2 a = __half22float2(q[d]), b = __half22float2(k[d]);
                s += a.x * b.x + a.y * b.y;
            }
            s = j0 + lane < L ? s * scale : NEG_INF;
            float m_new = s;
            for (int step = 16; step > 0; step /= 2) m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffffu, m_new, step));
            m_new = fmaxf(m_new, m[r]);
            const float rescale = __expf(m[r] - m_new), p = __expf(s - m_new);
            float sum = p;
            for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
            l[r] = l[r] * rescale + sum, m[r] = m_new, o[r][0] *= rescale, o[r][1] *= rescale;
            #pragma unroll 8
            for (int j = 0; j < B_C; j++) {
                const float p_j = __shfl_sync(0xffffffffu, p, j);
                const float2 v = __half22float2(reinterpret_cast<const half2*>(V_tile + j * PITCH)[lane]);
                o[r][0] += p_j * v.x, o[r][1] += p_j * v.y;
            }
        }
    }
    #pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int i = i0 + warp * ROWS + r;
        if (i < L)
            reinterpret_cast<float2*>(O + (long long)i * D)[lane] = make_float2(o[r][0] / l[r], o[r][1] / l[r]);
    }
}
