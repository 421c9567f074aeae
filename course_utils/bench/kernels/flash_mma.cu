// flash_mma.cu — FlashAttention-2 with tensor cores: four warps of 16 queries each, tiles of 64 keys, S and O in the
// fragments of mma.sync, operands by ldmatrix, the next K and V by cp.async while this one is worked on. For the
// emulator's speed: little per thread, much inside the warp-wide instructions.
//
// grid   (L / 64, B·H)                 block  (128)
// layout Q, K, V [B·H, L, 64] fp16, O [B·H, L, 64] fp32, contiguous, aligned to 16 bytes
// shared 2 · 5 · 64 · 72 bytes, dynamic
// limits L a multiple of 64
// arch: sm_80
// paper  FlashAttention-2 (arXiv 2307.08691), Algorithm 1
#define NEG_INF __int_as_float(0xff800000)
#include <cuda_fp16.h>
constexpr int D = 64, B_R = 64, B_C = 64, PITCH = D + 8, THREADS = 128;

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" :: "r"(shared_address(shared)), "l"(global));
}
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)));
}
__device__ __forceinline__ void load_matrices_transposed(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)));
}
// C (16 x 8, fp32) += A (16 x 16, fp16) B (16 x 8, fp16)
__device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ unsigned pack(float low, float high) {
    const half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const unsigned*>(&pair);
}
// Starts copying a tile of 64 rows to shared memory, 16 bytes at a time.
__device__ __forceinline__ void copy_tile(half* tile, const half* matrix) {
    for (int e = threadIdx.x; e < B_C * D / 8; e += THREADS)
        copy_async(tile + e / 8 * PITCH + e % 8 * 8, matrix + e * 8);
}

extern "C" __global__ void __launch_bounds__(THREADS)
flash_mma(const half* __restrict__ Q, const half* __restrict__ K, const half* __restrict__ V, float* __restrict__ O,
          int L, float scale) {
    extern __shared__ __align__(128) half shared_memory[];
    half* Q_tile = shared_memory;                    // [B_R][PITCH]
    half* K_tiles = Q_tile + B_R * PITCH;            // [2][B_C][PITCH]
    half* V_tiles = K_tiles + 2 * B_C * PITCH;       // [2][B_C][PITCH]
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const long long head = (long long)blockIdx.y * L * D, first = head + (long long)blockIdx.x * B_R * D;
    const int tiles = L / B_C;

    copy_tile(Q_tile, Q + first);
    copy_tile(K_tiles, K + head);
    copy_tile(V_tiles, V + head);
    asm volatile("cp.async.commit_group;\n" ::);

    // A thread's rows of the fragments are lane / 4 and lane / 4 + 8; index 0 and 1 below.
    float o[8][4] = {}, m[2] = {NEG_INF, NEG_INF}, l[2] = {};
    unsigned q[4][4];
    for (int t = 0; t < tiles; t++) {
        if (t + 1 < tiles) {
            copy_tile(K_tiles + (t + 1) % 2 * B_C * PITCH, K + head + (long long)(t + 1) * B_C * D);
            copy_tile(V_tiles + (t + 1) % 2 * B_C * PITCH, V + head + (long long)(t + 1) * B_C * D);
        }
        asm volatile("cp.async.commit_group;\n" ::);
        asm volatile("cp.async.wait_group 1;\n" ::);   // all but the tile just asked for has arrived
        __syncthreads();
        if (t == 0) {
            #pragma unroll
            for (int kk = 0; kk < 4; kk++)
                load_matrices(q[kk], Q_tile + (warp * 16 + lane % 16) * PITCH + kk * 16 + lane / 16 * 8);
        }
        const half* K_tile = K_tiles + t % 2 * B_C * PITCH;
        const half* V_tile = V_tiles + t % 2 * B_C * PITCH;

        // S = Q Kᵀ
        float s[8][4] = {};
        #pragma unroll
        for (int kk = 0; kk < 4; kk++) {
            #pragma unroll
            for (int n = 0; n < 8; n += 2) {
                unsigned k[4];
                load_matrices(k, K_tile + (n * 8 + lane % 8 + lane / 16 * 8) * PITCH + kk * 16 + lane / 8 % 2 * 8);
                multiply_add(s[n], q[kk], k[0], k[1]);
                multiply_add(s[n + 1], q[kk], k[2], k[3]);
            }
        }
        // online softmax; four threads share a row
        #pragma unroll
        for (int r = 0; r < 2; r++) {
            float m_new = m[r];
            #pragma unroll
            for (int n = 0; n < 8; n++) {
                s[n][2 * r] *= scale, s[n][2 * r + 1] *= scale;
                m_new = fmaxf(m_new, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
            }
            for (int step = 1; step < 4; step *= 2) m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffffu, m_new, step));
            const float rescale = __expf(m[r] - m_new);
            m[r] = m_new, l[r] *= rescale;
            #pragma unroll
            for (int n = 0; n < 8; n++) {
                s[n][2 * r] = __expf(s[n][2 * r] - m_new), s[n][2 * r + 1] = __expf(s[n][2 * r + 1] - m_new);
                l[r] += s[n][2 * r] + s[n][2 * r + 1];
                o[n][2 * r] *= rescale, o[n][2 * r + 1] *= rescale;
            }
        }
        // O += P V: the fragments of S have the layout of an operand once they are packed
        #pragma unroll
        for (int kk = 0; kk < 4; kk++) {
            const unsigned p[4] = {pack(s[2 * kk][0], s[2 * kk][1]), pack(s[2 * kk][2], s[2 * kk][3]),
                                   pack(s[2 * kk + 1][0], s[2 * kk + 1][1]), pack(s[2 * kk + 1][2], s[2 * kk + 1][3])};
            #pragma unroll
            for (int n = 0; n < 8; n += 2) {
                unsigned v[4];
                load_matrices_transposed(v, V_tile + (kk * 16 + lane % 16) * PITCH + n * 8 + lane / 16 * 8);
                multiply_add(o[n], p, v[0], v[1]);
                multiply_add(o[n + 1], p, v[2], v[3]);
            }
        }
        __syncthreads();   // every warp is done with this K and V
    }
    #pragma unroll
    for (int r = 0; r < 2; r++) {
        for (int step = 1; step < 4; step *= 2) l[r] += __shfl_xor_sync(0xffffffffu, l[r], step);
        float* row = O + first + (warp * 16 + lane / 4 + 8 * r) * D + lane % 4 * 2;
        #pragma unroll
        for (int n = 0; n < 8; n++)
            *reinterpret_cast<float2*>(row + n * 8) = make_float2(o[n][2 * r] / l[r], o[n][2 * r + 1] / l[r]);
    }
}
