// csr_gather.cu — attention over any set of keys per query, given as CSR rows; one warp per row.
//
// Where the keys of a query are strewn, a tile holds next to none of them, and a tensor core would
// multiply mostly what the mask throws away. Here nothing is computed for a pair that is not kept;
// the price is that each query reads its own K and V, from a cache at best, and uses them once.
//
// A warp takes 32 keys at a time. LANES = D / 8 lanes read one key, 16 bytes each, so that the
// warp's 32 / LANES groups read as many keys at once; group g has keys g · LANES to
// (g + 1) · LANES − 1 of the 32, one after the other, and all LANES loads are on their way before
// the first is used. Each lane then holds LANES partial products; adding them up across the group
// by halves leaves lane n with the score of key n, and the softmax is one key per lane.
//
// grid   (ceil(L_q / WARPS), H, B)       block  (32 · WARPS)
//        Neighbouring blocks are rows of the same head, whose K and V then stay in L2.
// layout Q, O [B, H, L_q, D]  K, V [B, H / group, L_k, D], 16-bit; LSE [B, H, L_q], fp32;
//        contiguous, aligned to 16 bytes; query head h reads key head h / group
//        indptr [L_q + 1]: row i has indices[indptr[i]] to indices[indptr[i + 1] − 1], each at
//        least 0 and less than L_k; all heads share them
// shared 0 bytes
// limits scale > 0; D 64 or 128; the longest row is the work of one warp. Indices are not checked.
// options: -DD=64 -DBF16=0 -DWARPS=4 | -DD=64 -DBF16=1 -DWARPS=4 | -DD=128 -DBF16=0 -DWARPS=4 | -DD=128 -DBF16=1 -DWARPS=4
// arch: sm_80
// paper  online softmax: FlashAttention-2 (arXiv 2307.08691), Algorithm 1
#include "constants.cuh"
#include "tensor_core.cuh"

constexpr int THREADS = 32 * WARPS, LANES = D / 8;
constexpr unsigned ALL = 0xffffffff;
static_assert(D == 64 || D == 128, "D must be 64 or 128");

// Calls f(column, number) for the eight numbers of a lane's chunk.
template <class F>
__device__ inline void each_column(const uint4& chunk, F f) {
    const scalar_t* numbers = reinterpret_cast<const scalar_t*>(&chunk);
    #pragma unroll
    for (int c = 0; c < 8; c++) f(c, (float)numbers[c]);
}

// The chunk of this lane in the rows of the group's LANES keys; `key` is the lane's own one.
// A negative key is none: zeros, and nothing is read.
__device__ inline void gather(uint4 (&rows)[LANES], const scalar_t* matrix, int key) {
    #pragma unroll
    for (int n = 0; n < LANES; n++) {
        const int j = __shfl_sync(ALL, key, n, LANES);
        rows[n] = make_uint4(0, 0, 0, 0);
        if (j >= 0) rows[n] = *reinterpret_cast<const uint4*>(matrix + (long long)j * D);
    }
}

// Adds up each partial[n] over the lanes of the group; lane n of it gets sum n. A lane hands on the
// half of its numbers that is not its own, so LANES − 1 shuffles do for LANES sums.
__device__ inline float sum_for_each_lane(float (&partial)[LANES]) {
    #pragma unroll
    for (int half = LANES / 2; half > 0; half /= 2) {
        const bool upper = threadIdx.x & half;
        #pragma unroll
        for (int n = 0; n < half; n++) {
            const float kept = upper ? partial[n + half] : partial[n];
            const float given = upper ? partial[n] : partial[n + half];
            partial[n] = kept + __shfl_xor_sync(ALL, given, half);
        }
    }
    return partial[0];
}

extern "C" __global__ void __launch_bounds__(THREADS)
csr_gather(const scalar_t* Q, const scalar_t* K, const scalar_t* V, scalar_t* O, float* LSE,
           const long long* indptr, const int* indices, int L_q, int L_k, int group, float scale) {
    // The last rows first: in causal patterns they are the longest.
    const int i = ((int)gridDim.x - 1 - (int)blockIdx.x) * WARPS + threadIdx.x / 32;
    if (i >= L_q) return;   // the whole warp
    const int lane = threadIdx.x % 32, column = lane % LANES * 8;
    const int kv_head = (blockIdx.z * gridDim.y + blockIdx.y) / group;
    const long long row = (long long)(blockIdx.z * gridDim.y + blockIdx.y) * L_q + i;
    K += (long long)kv_head * L_k * D + column, V += (long long)kv_head * L_k * D + column;

    float q[8], o[8] = {}, m = NEG_INF, l = 0;   // m is the warp's, l of this lane's keys
    each_column(*reinterpret_cast<const uint4*>(Q + row * D + column),
                [&](int c, float x) { q[c] = x * (scale * LOG2_E); });

    const long long end = indptr[i + 1];
    long long at = indptr[i] + lane;
    int next = at < end ? indices[at] : -1;
    while (__any_sync(ALL, next >= 0)) {
        const int key = next;
        at += 32;
        next = at < end ? indices[at] : -1;   // on its way while this chunk is computed

        uint4 rows[LANES];
        gather(rows, K, key);
        float partial[LANES] = {};
        #pragma unroll
        for (int n = 0; n < LANES; n++)
            each_column(rows[n], [&](int c, float k) { partial[n] = fmaf(q[c], k, partial[n]); });
        gather(rows, V, key);   // runs while the weights are computed

        float s = sum_for_each_lane(partial);
        if (key < 0) s = NEG_INF;
        // Any m gives the same O / l up to rounding, as long as exp(s − m) neither overflows nor
        // vanishes: rescale only when a score is more than 2^8 times as heavy as m.
        if (__any_sync(ALL, s > m + 8)) {
            float m_new = fmaxf(m, s);
            for (int other = 16; other > 0; other /= 2)
                m_new = fmaxf(m_new, __shfl_xor_sync(ALL, m_new, other));
            const float rescale = exp2f(m - m_new);
            m = m_new, l *= rescale;
            for (int c = 0; c < 8; c++) o[c] *= rescale;
        }
        const float p = exp2f(s - (m == NEG_INF ? 0 : m));   // never −∞ − (−∞)
        l += p;
        #pragma unroll
        for (int n = 0; n < LANES; n++) {
            const float weight = __shfl_sync(ALL, p, n, LANES);
            each_column(rows[n], [&](int c, float v) { o[c] = fmaf(weight, v, o[c]); });
        }
    }

    // The groups saw other keys each: add up O over them, and l over all lanes.
    for (int other = 16; other > 0; other /= 2) {
        l += __shfl_xor_sync(ALL, l, other);
        if (other >= LANES)
            for (int c = 0; c < 8; c++) o[c] += __shfl_xor_sync(ALL, o[c], other);
    }
    const float inverse = l == 0 ? 0 : 1 / l;   // a row without keys: 0
    if (lane < LANES)
        *reinterpret_cast<uint4*>(O + row * D + column) =
            make_uint4(pack(o[0] * inverse, o[1] * inverse), pack(o[2] * inverse, o[3] * inverse),
                       pack(o[4] * inverse, o[5] * inverse), pack(o[6] * inverse, o[7] * inverse));
    if (lane == 0) LSE[row] = l == 0 ? NEG_INF : (m + log2f(l)) * LN_2;
}
